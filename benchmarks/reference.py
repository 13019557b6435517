"""Exact kernels, with numpy alone: tanh by a two-dimensional trapezoid rule at every layer, relu on the diagonal."""

import numpy as np
from cases import N_FEATURES, Case

REACH = 9.0  # standard deviations: what lies beyond is below 1e-17
SPACING = 0.1


def _rule(spacing: float) -> tuple[np.ndarray, np.ndarray]:
    z = np.arange(-round(REACH / spacing), round(REACH / spacing) + 1) * spacing
    return z, spacing * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)


def _slope(x: np.ndarray) -> np.ndarray:
    return 1 / np.cosh(x) ** 2


def _averages(q: float, p: float, c: float, spacing: float) -> tuple[float, float]:
    """<tanh tanh> and <tanh' tanh'> of two Gaussian numbers with variances q, p and covariance c."""
    z, weight = _rule(spacing)
    a = np.sqrt(q) * z[:, None]
    b = c / np.sqrt(q) * z[:, None] + np.sqrt(max(p - c * c / q, 0.0)) * z
    return tuple(float(weight @ (f(a) * f(b)) @ weight) for f in (np.tanh, _slope))  # type: ignore[return-value]


def _pair(case: Case, x: np.ndarray, y: np.ndarray, spacing: float) -> tuple[float, float]:
    """Covariance and tangent kernel of the readouts of one pair of inputs."""
    w, b = case.weight_variance, case.bias_variance
    q, p, c = (w * float(u @ v) / N_FEATURES + b for u, v in ((x, x), (y, y), (x, y)))
    tangent = c
    for _ in range(case.n_hidden):
        value, slope = _averages(q, p, c, spacing)
        q, p = (w * _averages(v, v, v, spacing)[0] + b for v in (q, p))
        c = w * value + b
        tangent = c + w * slope * tangent
    return c, tangent


def kernels(case: Case, n_samples: int, spacing: float = SPACING) -> dict[str, np.ndarray]:
    """``nngp`` and ``ntk`` of the first ``n_samples`` inputs."""
    x = case.inputs()[:n_samples]
    result = {"nngp": np.empty((n_samples, n_samples)), "ntk": np.empty((n_samples, n_samples))}
    for i in range(n_samples):
        for j in range(i + 1):
            for name, entry in zip(result, _pair(case, x[i], x[j], spacing)):
                result[name][i, j] = result[name][j, i] = entry
    return result


def relu_diagonals(case: Case) -> dict[str, np.ndarray]:
    """Diagonals of both kernels of a relu network, where <relu^2> = q/2 and <relu'^2> = 1/2."""
    x = case.inputs()
    q = case.weight_variance * np.einsum("id,id->i", x, x) / N_FEATURES + case.bias_variance
    tangent = q
    for _ in range(case.n_hidden):
        q = case.weight_variance * q / 2 + case.bias_variance
        tangent = q + case.weight_variance * tangent / 2
    return {"nngp": q, "ntk": tangent}
