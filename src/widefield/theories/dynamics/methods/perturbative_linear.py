r"""Leading order in the squared richness of deep linear networks, in closed form: Eqs. (dynamics.30), (dynamics.31).

Eqs. 12 and 144–147 of Bordelon & Pehlevan (2022), corrected, on the grid of steps, with the sums of Eq. (dynamics.29) over the
static errors, in units in which all variances are one. The outputs follow from
:math:`A^\ell = (1-\gamma_0^2C^\ell D^\ell)^{-1}C^\ell`, :math:`C^{\ell+1} = A^\ell + \eta\Delta\Phi^\ell` and
:math:`f = \sum C^{L+1}`. Nothing is sampled or marched: the error is that of the static limit. Cost T P². Test inputs are
rows whose errors are zero.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from widefield.theories.dynamics.curves import Estimate, TrainingCurves
from widefield.theories.dynamics.methods import lazy
from widefield.theories.dynamics.methods.perturbative import correction
from widefield.theories.dynamics.problem import Problem, squared
from widefield.theories.dynamics.request import Request


def covers(problem: Problem, request: Request) -> bool:
    """A deep linear network without biases, driven at the first state and read out at the last, one output, squared loss."""
    network = problem.network
    plain = problem.exact and problem.by_layer and problem.readouts == (network.depth - 1,)
    if request.method != "perturbative" or not plain or problem.loss is not squared:
        return False
    return not np.any(network.bias_variances) and problem.labels.shape[2] == 1 and _gain(problem) > 0


def solve(problem: Problem, request: Request) -> TrainingCurves:
    """The static limit and its corrections."""
    static = lazy.solve(problem, replace(request, fields=(), at=()))
    if static.failure is not None:
        return static
    n, square = problem.task.n_samples, problem.richness**2
    wrong = problem.labels[0, :, 0] - static.prediction.value[:, -1, :n, 0]
    sums = _sums(problem, wrong)
    f2 = _outputs(problem, sums)
    prediction = static.prediction.value.copy()
    prediction[:, -1, :, 0] += square * f2
    tangent, second, kernels = static.kernels["ntk"].value, _tangent(problem, sums), _kernels(problem, sums, request)
    if "ntk_alignment" in request.fields:
        first = tangent[:, 0, 0, :n, :n]
        kernels["ntk_alignment"] = Estimate(_cosine(problem, first, second[:, :n, :n]))
    outputs = Estimate(prediction)
    if request.ntk:
        kernels["ntk"] = Estimate(tangent + square * second[:, None, None])
    return replace(
        static, prediction=outputs, diagnostics={"solver": "closed form"}, kernels=kernels,
        loss=Estimate(static.loss.value - square * np.sum(wrong * f2[:, :n], axis=1)),
        correction=correction(problem, static, outputs, kernels),
    )  # fmt: skip


class Sums(NamedTuple):
    """a, c, b (row, sample), m (row, sample, sample) and q (row,) of Eq. (dynamics.29), and ηΔ."""

    moved: np.ndarray
    c: np.ndarray
    b: np.ndarray
    m: np.ndarray
    q: np.ndarray
    kicks: np.ndarray
    input_kernel: np.ndarray

    def features(self, depth: int, layer: int, at: np.ndarray) -> np.ndarray:
        """Φ^{layer,2} (at, at_, sample, sample_)."""
        k = np.arange(1, layer + 1)
        m, c = self.m[at], self.c[at]
        mixed = m[:, None] + m[None].swapaxes(2, 3)
        return np.sum(k * (depth + 1 - k)) * mixed + np.sum(k**2) * np.einsum("tp,sq->tspq", c, c)

    def gradients(self, depth: int, layer: int, at: np.ndarray) -> np.ndarray:
        """G^{layer,2} (at, at_), the same for all samples."""
        k = np.arange(layer, depth + 1)
        q = self.q[at]
        return np.sum(k * (depth + 1 - k)) * (q[:, None] + q) + np.sum((depth + 1 - k) ** 2) * self.b[at] @ self.c[at].T


def _sums(problem: Problem, wrong: np.ndarray) -> Sums:
    """Of the errors ``wrong`` (row, training sample), scaled to unit variances: labels / gain, rate · gain²."""
    x = problem.task.sequences(problem.network.depth, test=True)[:, 0]
    K = x @ x.T / x.shape[1]
    kicks = np.zeros((len(wrong), len(K)))
    kicks[:, : wrong.shape[1]] = problem.rates[:, None] * _gain(problem) * wrong
    a = kicks @ K
    c = _before(a)
    m = _before(a[:, :, None] * c[:, None, :])
    return Sums(a, c, _before(kicks), m, _before(np.sum(kicks * c, axis=1)), kicks, K)


def _before(rows: np.ndarray) -> np.ndarray:
    """Sums over all earlier rows."""
    return np.cumsum(rows, axis=0) - rows


def _gain(problem: Problem) -> float:
    """Outputs in units of those of a network whose variances are one."""
    network = problem.network
    return float(np.sqrt(network.input_variances[0] * np.prod(network.weight_variances) * network.readout_variance))


def _outputs(problem: Problem, sums: Sums) -> np.ndarray:
    """f2 (row, sample)."""
    L, n, gain = problem.network.depth, problem.task.n_samples, _gain(problem)
    l = np.arange(1, L + 1)
    mixed = np.cumsum(l * (L + 1 - l)).sum()  # Σ_ℓ Σ_{k≤ℓ}
    squares = np.cumsum(l**2).sum()
    later = np.einsum("tpq,tq->tp", sums.m, sums.b) + _before(np.einsum("tq,tqp->tp", sums.kicks, sums.m))
    source = np.sum(l**2 * (L + 1 - l)) * _before(sums.moved * sums.q[:, None])
    source += mixed * later + squares * sums.c * sums.q[:, None]
    f2, learned = np.empty_like(source), np.zeros(source.shape[1])
    for t, rate in enumerate(problem.rates):
        f2[t] = learned + source[t]
        learned = learned - (L + 1) * rate * gain**2 * sums.input_kernel[:, :n] @ f2[t, :n]
    return gain * f2


def _tangent(problem: Problem, sums: Sums) -> np.ndarray:
    """Second order (row, sample, sample_) of the tangent kernel Σ G^{ℓ+1} Φ^ℓ at equal times."""
    L = problem.network.depth
    total = np.zeros((len(sums.q), *sums.input_kernel.shape))
    for t in range(len(total)):
        row = np.array([t])
        for l in range(1, L + 1):
            total[t] += sums.features(L, l, row)[0, 0] + sums.gradients(L, l, row)[0, 0] * sums.input_kernel
    return _gain(problem) ** 2 * total


def _kernels(problem: Problem, sums: Sums, request: Request) -> dict[str, Estimate]:
    """Two-time kernels at the chosen steps and the alignment of every layer, of training samples."""
    network, n, at, square = problem.network, problem.task.n_samples, np.asarray(request.at, int), problem.richness**2
    L, K, w = network.depth, sums.input_kernel[:n, :n], network.weight_variances
    kernels: dict[str, Estimate] = {}
    layers = range(1, L + 1)
    if "feature_kernel" in request.fields:
        below = [network.input_variances[0] * np.prod(w[: l - 1]) for l in layers]
        rows = [below[l - 1] * (K + square * sums.features(L, l, at)[:, :, :n, :n]) for l in layers]
        kernels["feature_kernel"] = Estimate(np.stack(rows)[:, None])
    if "gradient_kernel" in request.fields:
        above = [network.readout_variance * np.prod(w[l - 1 :]) for l in layers]
        one = lambda l: np.multiply.outer(1 + square * sums.gradients(L, l, at), np.ones((n, n)))  # noqa: E731
        kernels["gradient_kernel"] = Estimate(np.stack([above[l - 1] * one(l) for l in layers])[None, None, :, None])
    if "alignment" in request.fields:
        steps = [np.array([t]) for t in range(len(sums.q))]
        change = [np.stack([sums.features(L, l, t)[0, 0, :n, :n] for t in steps]) for l in layers]
        cosines = [_cosine(problem, np.broadcast_to(K, one.shape), one) for one in change]
        kernels["alignment"] = Estimate(np.stack(cosines, axis=1))
    return kernels


def _cosine(problem: Problem, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosine (row,) of first + γ0² second with the kernel of the labels, to order γ0²."""
    y = problem.labels[0, :, 0]
    along = lambda kernel: np.einsum("tpq,p,q->t", kernel, y, y)  # noqa: E731
    size = np.sqrt(np.sum(first**2, axis=(1, 2)))
    slope = along(second) - along(first) * np.sum(first * second, axis=(1, 2)) / size**2
    return (along(first) + problem.richness**2 * slope) / (size * np.sum(y**2))
