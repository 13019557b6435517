r"""The 1/n expansion of deep networks with untied weights, layer by layer and without inverse kernels.

.. math::
    K' &= C_b + C_W F, \qquad F_{12} = \langle\sigma_1\sigma_2\rangle_K \\
    V'_{(12)(34)} &= C_W^2\left[\langle\sigma_1\sigma_2\sigma_3\sigma_4\rangle - F_{12}F_{34}
        + \tfrac{n}{n_{-}}\,D_{12}\,V\,D_{34}\right] \\
    G'_{12} &= C_W \tfrac{n}{n_{-}} \left[D_{12}\cdot G + \tfrac12\,\mathrm{Hess}\,F_{12} : V\right]

Eqs. (finite_width.2), (finite_width.3), (finite_width.4), with Gaussian derivatives in place of inverse metrics:
:math:`D_{12} = \partial F_{12}/\partial(K_{11}, K_{12}, K_{22})` by Price's theorem, Eq. (finite_width.5).
Notation: :math:`C_W` = weight variance, :math:`C_b` = bias variance, :math:`G` = ``correction``, :math:`V` = ``vertex``,
:math:`n/n_-` = width of the layer over that of the one before. :math:`V_{(12)(34)}` needs :math:`V` on
{11, 12, 22} × {33, 34, 44} alone: a 3×3 *block*, closed under the recursion.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from widefield.gaussian import expectation, quadrature
from widefield.gaussian.closed import kink_slope
from widefield.question.activation import Activation
from widefield.theories.finite_width.untied.fourth_moments import (
    FourthMoments,
    Ramp,
    broken_moments,
    kinked_moments,
    kinked_pairs,
    ramp,
)
from widefield.theories.finite_width.untied.pair_averages import pair_averages

EPS = float(np.finfo(float).eps)
NEARLY_PARALLEL = 1e-4  # sine of the angle below which the curvature of a kinked kernel contributes less than rounding

Array = np.ndarray
Quartic = Callable[[Array], tuple[Array, float]]  # of index sets (set, 4)


class Averages(NamedTuple):
    """Pair averages at one layer: F, its gradient (F_a, F_c, F_b) and Hessian, all (…, sample, sample)."""

    value: Array
    gradient: Array
    hessian: Array | None
    fourth: FourthMoments | None
    error: float


def averages_of(
    activation: Activation, K: Array, rtol: float, *, vertex: bool = True, hessian: bool = True
) -> Averages:
    """Everything that the recursion needs of the Gaussian of covariance ``K`` (sample, sample)."""
    orders = [(0, 0), *[(2, 0), (1, 1)] * vertex, *[(4, 0), (3, 1), (2, 2)] * (vertex and hessian)]
    if activation.breaks:
        return _broken(activation, K, rtol, orders[:3], hessian)
    pairs = [((1, i), (1, j)) for i, j in orders] + [((3, 0), (1, 0)), ((2, 0), (2, 0))] * vertex
    parts, error = pair_averages(activation, np.diag(K), K, pairs, rtol)
    values = [parts[pair] for pair in pairs]
    if not vertex:
        return Averages(values[0], np.zeros((3, *K.shape)), None, None, error)
    second = hessian_of(*values[3:6]) if hessian else None
    return Averages(values[0], _gradient(*values[1:3]), second, FourthMoments(values[-2], values[-1], error), error)


def _broken(activation: Activation, K: Array, rtol: float, orders, hessian: bool) -> Averages:
    """Activations with kinks: closed forms, or pair by pair."""
    q, slope, vertex = np.diag(K), kink_slope(activation), len(orders) > 1
    if slope is None:
        values = [expectation(activation, q[:, None], q[None, :], K, o, rtol=rtol).value for o in orders]
        fourth = broken_moments(activation, q, K) if vertex else None
        second = None
    else:
        one = ramp(q, K)
        values = list(kinked_pairs(slope, q, K, one))
        fourth = kinked_moments(slope, q, K, one) if vertex else None
        second = _kinked_hessian(slope, q, K, one) if vertex and hessian else None
    gradient = _gradient(*values[1:]) if vertex else np.zeros((3, *K.shape))
    return Averages(values[0], gradient, second, fourth, fourth.error if fourth else 64 * EPS)


def _gradient(curve: Array, slope: Array) -> Array:
    return np.stack([0.5 * curve, slope, 0.5 * curve.T])


def hessian_of(fourth: Array, third: Array, second: Array) -> Array:
    """Second derivatives of F in (K11, K12, K22), shape (3, 3, sample, sample)."""
    aa, ac, ab, cc = 0.25 * fourth, 0.5 * third, 0.25 * second, second
    return np.stack([np.stack(row) for row in ((aa, ac, ab), (ac, cc, ac.T), (ab, ac.T, aa.T))])


def _kinked_hessian(slope: float, q: Array, c: Array, one: Ramp) -> Array:
    r"""F_aa = (2c²−ab)/8πa²Δ, F_ac = −c/4πaΔ, F_ab = 1/8πΔ, F_cc = 1/2πΔ, times (1 − slope)².

    Eq. (finite_width.6). They diverge where two nodes are parallel, but V is the covariance of kernel entries: at angle θ the combination that
    meets 1/Δ is the variance of a squared distance, of order θ⁴. Below ``NEARLY_PARALLEL`` what remains (θ³) is less than
    the roundings of V that 1/Δ magnifies, and the Hessian counts as zero.
    """
    a, b = np.broadcast_arrays(q[:, None], q[None, :])
    delta = 2 * math.pi * one.delta
    far = delta > NEARLY_PARALLEL * np.sqrt(a) * np.sqrt(b)
    safe = lambda v: np.where(far, v, 1.0)  # noqa: E731
    scale = np.where(far, (1 - slope) ** 2 / (8 * math.pi * safe(delta)), 0.0)
    aa, ac = (2 * c**2 / safe(a) ** 2 - b / safe(a)) * scale, -2 * c / safe(a) * scale
    return np.stack([np.stack(row) for row in ((aa, ac, scale), (ac, 4 * scale, ac.T), (scale, ac.T, aa.T))])


def refuse(activation: Activation) -> str | None:
    """Why the correction G1 is out of reach for an activation, if it is; V needs one derivative less."""
    if kink_slope(activation) is not None or not activation.breaks:
        return None
    if quadrature.factor(activation, 1).deltas:
        return "jumps"
    return "kinked"


# Blocks: V over {11, 12, 22} × {33, 34, 44}, shape (..., 3, 3).


def transport(averages: Averages, i: Array | int, j: Array | int) -> Array:
    """∂(F_ii, F_ij, F_jj)/∂(K_ii, K_ij, K_jj), shape (..., 3, 3)."""
    itself = averages.gradient.sum(axis=0).diagonal()
    zero = np.zeros(np.broadcast_shapes(np.shape(i), np.shape(j)))
    rows = [
        [itself[i] + zero, zero, zero],
        [averages.gradient[k][i, j] for k in range(3)],
        [zero, zero, itself[j] + zero],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def next_block(block: Array, source: Array, left: Array, right: Array, weight: float, ratio: float) -> Array:
    """V' on blocks, from V, the one-neuron covariance ``source`` and the transports of the two pairs."""
    return weight**2 * (source + ratio * left @ block @ right.swapaxes(-1, -2))


def pair_source(averages: Averages) -> Array:
    """Cov(σσ, σσ) of one neuron over {11, 12, 22}², for all pairs of samples: (sample, sample, 3, 3)."""
    assert averages.fourth is not None
    cubic, square, value = averages.fourth.cubic, averages.fourth.square, averages.value
    fourth, second = np.diag(square), np.diag(value)
    one = np.ones_like(value)
    rows = [
        [fourth[:, None] * one, cubic, square],
        [cubic, square, cubic.T],
        [square, cubic.T, fourth[None, :] * one],
    ]
    moment = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    mean = np.stack([second[:, None] * one, value, second[None, :] * one], axis=-1)
    return moment - mean[..., :, None] * mean[..., None, :]


def next_correction(correction: Array, block: Array, averages: Averages, weight: float, ratio: float) -> Array:
    """G1' of all pairs from G1 and V on pairs."""
    assert averages.hessian is not None
    diagonal = np.diag(correction)
    left, middle, right = averages.gradient
    drift = left * diagonal[:, None] + middle * correction + right * diagonal[None, :]
    return weight * ratio * (drift + 0.5 * np.einsum("abij,ijab->ij", averages.hessian, block))


# The full tensor, as a matrix over unordered pairs.


def sample_pairs(n: int) -> tuple[Array, Array]:
    """Unordered pairs i ≤ j."""
    return np.triu_indices(n)


def quartet_source(
    averages: Averages, rows: tuple[Array, Array], columns: tuple[Array, Array], quartic: Quartic
) -> tuple[Array, float]:
    """Cov(σ_iσ_j, σ_kσ_l) of one neuron for broadcast index arrays; equal sets of four are evaluated once."""
    index = np.stack(np.broadcast_arrays(*rows, *columns), axis=-1)
    unique, back = np.unique(np.sort(index, axis=-1).reshape(-1, 4), axis=0, return_inverse=True)
    moment, error = quartic(unique)
    mean = averages.value[rows] * averages.value[columns]
    return moment[back.reshape(-1)].reshape(index.shape[:-1]) - mean, error


def next_matrix(V: Array, source: Array, averages: Averages, weight: float, ratio: float) -> Array:
    """V' over unordered pairs (pair, pair)."""
    i, j = sample_pairs(len(averages.value))
    position = np.empty((len(averages.value),) * 2, dtype=int)
    position[i, j] = position[j, i] = np.arange(len(i))
    parts = position[i, i], position[i, j], position[j, j]
    weights = [averages.gradient[k][i, j] for k in range(3)]
    along = sum(w[:, None] * V[p] for w, p in zip(weights, parts, strict=True))
    both = sum(w[None, :] * along[:, p] for w, p in zip(weights, parts, strict=True))
    return weight**2 * (source + ratio * both)


def unfold(V: Array, n: int) -> Array:
    """(pair, pair) to (sample, sample, sample, sample)."""
    i, j = sample_pairs(n)
    position = np.empty((n, n), dtype=int)
    position[i, j] = position[j, i] = np.arange(len(i))
    return V[position[:, :, None, None], position[None, None, :, :]]
