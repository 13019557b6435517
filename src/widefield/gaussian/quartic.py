r"""Four-node averages :math:`\langle\varphi(h_1)\varphi(h_2)\varphi(h_3)\varphi(h_4)\rangle` for any 4×4 covariance, and their gradient.

The noise of a kernel at finite width, :math:`\langle\varphi\varphi\varphi\varphi\rangle - \langle\varphi\varphi\rangle\langle\varphi\varphi\rangle`.
Nodes may coincide, be opposite, or have zero variance. No covariance is ever inverted.
It enters Eqs. (finite_width.3), (finite_width.22); its gradient Eq. (finite_width.25).
"""

import math
from typing import Any

import numpy as np

from widefield.answer.boundary import x64
from widefield.gaussian import quadrature, quartic_grid
from widefield.gaussian.closed import kink_slope
from widefield.gaussian.quartic_relu import kinked
from widefield.gaussian.quartic_sign import EPS, PAIRS, erf_gradient, erf_moment
from widefield.question import checks
from widefield.question.activation import Activation, as_activation

LARGEST = 1e150
PHASES = {
    "sin": (1.0, -0.5 * math.pi, 1.0),
    "cos": (1.0, 0.0, 1.0),
    "rbf": (math.sqrt(2), -0.25 * math.pi, math.sqrt(2)),
}
ELEMENTARY = ("linear", "exp", *PHASES)


@x64
def fourth_moment(activation: str | Activation, covariance: Any) -> tuple[np.ndarray, np.ndarray]:
    r"""Averages <φφφφ> over zero-mean Gaussian nodes with covariances (batch, 4, 4), and error estimates, both (batch,).

    Method: linear, Wick's theorem; erf, signs and one integral along a path; relu, leaky relu and abs, integration by
    parts down to orthant probabilities; sin, cos, rbf and exp, exponentials; others, the trapezoid rule in whitened
    coordinates (`quartic_grid`; some milliseconds each, so use that the value is symmetric under permutations).
    Error: estimated by refinement, plus roundings; absolute.
    Limits: an activation with breaks other than relu's converges slowly on the grid, which its error shows.
    """
    return _moments(as_activation(activation), _covariances(covariance))


@x64
def fourth_moment_gradient(activation: str | Activation, covariance: Any) -> np.ndarray:
    r"""Derivatives of <φφφφ> with respect to the covariance, (batch, 4, 4).

    The symmetric matrix :math:`G_{ef} = \langle\partial_e\partial_f(\varphi\varphi\varphi\varphi)\rangle`, so that
    :math:`d\langle\varphi\varphi\varphi\varphi\rangle = \tfrac12\sum_{ef}G_{ef}\,dC_{ef}` (Price's theorem). Where
    nodes coincide each factor keeps its own row.

    Method: as `fourth_moment`, closed for erf and relu up to the one orthant integral.
    Limits: relu and its kin have a square-root singularity where two nodes coincide, so that nodes an angle α apart
    have the gradient of coinciding ones to O(α); nodes of zero variance are given gradient 0. Other activations with a
    break are refused: their derivatives hold delta functions.
    """
    return _gradients(as_activation(activation), _covariances(covariance))


@x64
def fourth_moment_and_gradient(
    activation: str | Activation, covariance: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, errors and gradients at once: relu and its kin make all three from one integral."""
    activation, C = as_activation(activation), _covariances(covariance)
    slope = kink_slope(activation)
    return kinked(C, slope) if slope is not None else (*_moments(activation, C), _gradients(activation, C))


def _moments(activation: Activation, C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    name, slope = activation.name if activation.is_named else "", kink_slope(activation)
    if slope is not None:
        return kinked(C, slope)[:2]
    if name == "erf":
        return erf_moment(C)
    if name in ELEMENTARY:
        value = _elementary(name, C)[0]
        # The scale against which a sum of exponentials or of products rounds.
        size = np.abs(C).max(axis=(1, 2)) ** 2 if name == "linear" else 4.0 if name == "rbf" else 1.0
        return value, 64 * EPS * (1 + np.abs(C).sum(axis=(1, 2))) * np.abs(value) + 64 * EPS * size
    value, error = quartic_grid.averages(activation, C, gradient=False)
    return value[:, 0], error[:, 0]


def _gradients(activation: Activation, C: np.ndarray) -> np.ndarray:
    name, slope = activation.name if activation.is_named else "", kink_slope(activation)
    if slope is not None:
        return kinked(C, slope)[2]
    if name == "erf":
        return erf_gradient(C)
    if name in ELEMENTARY:
        return _elementary(name, C)[1]
    if any(quadrature.factor(activation, order).deltas for order in (1, 2)):
        raise ValueError(
            f"`activation` must be smooth, relu, leaky_relu or abs for the gradient of four-node averages; {activation} "
            f"has breaks at {activation.breaks}."
        )
    e, f = np.triu_indices(4)
    G = np.zeros_like(C)
    G[:, e, f] = G[:, f, e] = quartic_grid.averages(activation, C, gradient=True)[0]
    return G


def _covariances(covariance: Any) -> np.ndarray:
    C, _ = checks.real_array("covariance", covariance, (3,), "covariances of shape (batch, 4, 4)")
    if C.shape[1:] != (4, 4):
        raise ValueError(f"`covariance` must have shape (batch, 4, 4), got {C.shape}.")
    size = np.abs(C).max(axis=(1, 2), keepdims=True)
    if size.max() > LARGEST or np.any((size > 0) & (size < 1 / LARGEST)):  # products of two are taken
        raise ValueError(f"`covariance` must be 0 or lie between {1 / LARGEST:g} and {LARGEST:g}, got {size.max():g}.")
    if np.any(np.abs(C - C.transpose(0, 2, 1)) > 1e-12 * size):
        raise ValueError("`covariance` must be symmetric.")
    q = np.einsum("bii->bi", C)
    if np.any(q < 0):
        raise ValueError(f"`covariance` must have non-negative variances, got {q.min()}.")
    limit = np.sqrt(q[:, :, None] * q[:, None, :])
    if np.any(np.abs(C) > limit * (1 + 1e-12)):
        bad = np.unravel_index(np.argmax(np.abs(C) - limit), C.shape)
        raise ValueError(f"`covariance` must lie within ±√(variances) = ±{limit[bad]:g}, got {C[bad]:g} at {bad}.")
    return 0.5 * (C + C.transpose(0, 2, 1))


def _elementary(name: str, C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Value and gradient of the linear function (Wick), the exponential, and the sines."""
    G = np.zeros_like(C)
    if name == "linear":
        for (e, f), (k, l) in zip(PAIRS, PAIRS[::-1], strict=True):
            G[:, e, f] = G[:, f, e] = C[:, k, l]
        return 0.25 * np.einsum("bef,bef->b", C, G), G
    if name == "exp":
        value = np.exp(0.5 * C.sum(axis=(1, 2)))
        return value, np.broadcast_to(value[:, None, None], C.shape).copy()
    rate, phase, amplitude = PHASES[name]  # amplitude · cos(rate · x + phase), as eight pairs of conjugate exponentials
    value = np.zeros(len(C))
    for code in range(8):
        sign = np.array([1.0, *(1 - 2.0 * (code >> n & 1) for n in range(3))])
        spread = np.exp(-0.5 * rate**2 * np.einsum("e,bef,f->b", sign, C, sign))
        term = amplitude**4 / 8 * math.cos(phase * sign.sum()) * spread
        value += term
        G -= rate**2 * term[:, None, None] * sign[:, None] * sign
    return value, G
