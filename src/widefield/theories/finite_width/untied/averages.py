r"""What the recursions need of one layer: averages over pairs of samples, and fourth moments of one neuron.

Smooth activations take everything on pairs from `pair_averages`. For relu, leaky relu and abs Stein's lemma ends at the opening
angle, and all is closed; other kinks are done by quadrature. Three or four different samples are four-dimensional averages.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import SolveError
from widefield.gaussian import closed, expectation, quadrature, quartic
from widefield.question.activation import Activation
from widefield.theories.finite_width.untied.pair_averages import pair_averages, pair_quadrature

Array = np.ndarray
Advance = Callable[[int], None]
EPS = float(np.finfo(float).eps)
CHUNK = 8192  # sets of four at a time
SLOW = 32  # the same where each is a four-dimensional sum
CLOSED = ("linear", "exp", "erf", "sin", "cos", "rbf")
NEARLY_PARALLEL = 1e-4  # sine of the angle below which the curvature of a kinked kernel contributes less than rounding


class Averages(NamedTuple):
    """F, its gradient (F_a, F_c, F_b) and Hessian, <φ(a)³φ(b)> and <φ(a)²φ(b)²>, all (…, sample, sample); their error."""

    value: Array
    gradient: Array
    hessian: Array | None
    cubic: Array | None
    square: Array | None
    error: float


def averages_of(
    activation: Activation, K: Array, rtol: float, *, vertex: bool = True, hessian: bool = True
) -> Averages:
    """Everything that the recursion needs of the Gaussian of covariance ``K`` (sample, sample)."""
    q, hessian = np.diag(K), hessian and vertex
    if not activation.breaks:
        orders = [(0, 0), *[(2, 0), (1, 1)] * vertex, *[(4, 0), (3, 1), (2, 2)] * hessian]
        pairs = [((1, i), (1, j)) for i, j in orders] + [((3, 0), (1, 0)), ((2, 0), (2, 0))] * vertex
        parts, error = pair_averages(activation, q, K, pairs, rtol)
        values = [parts[pair] for pair in pairs]
        if not vertex:
            return Averages(values[0], np.zeros((3, *K.shape)), None, None, None, error)
        second = hessian_of(*values[3:6]) if hessian else None
        return Averages(values[0], _gradient(*values[1:3]), second, values[-2], values[-1], error)
    slope, second = closed.kink_slope(activation), None
    if slope is None:
        orders = [(0, 0), *[(2, 0), (1, 1)] * vertex]
        values = [expectation(activation, q[:, None], q[None, :], K, o, rtol=rtol).value for o in orders]
    else:
        one = _ramp(q, K)
        jump = (1 - slope) ** 2
        curve = np.where(q > 0, jump / np.where(q > 0, q, 1), 0)[:, None] * one.delta  # none where a node does not vary
        values = [slope * K + jump * one.value, curve, slope + jump * one.opening]
        second = _kinked_hessian(slope, q, K, one) if hessian else None
    if not vertex:
        return Averages(values[0], np.zeros((3, *K.shape)), None, None, None, 64 * EPS)
    cubic, square, error = _broken_moments(activation, q, K) if slope is None else _kinked_moments(slope, q, K, one)
    return Averages(values[0], _gradient(*values[1:]), second, cubic, square, error)


def refuse(activation: Activation) -> str | None:
    """Why the correction G1 is out of reach for an activation, if it is; V needs one derivative less."""
    if closed.kink_slope(activation) is not None or not activation.breaks:
        return None
    return "jumps" if quadrature.factor(activation, 1).deltas else "kinked"


def _gradient(curve: Array, slope: Array) -> Array:
    return np.stack([0.5 * curve, slope, 0.5 * curve.T])


def hessian_of(fourth: Array, third: Array, second: Array) -> Array:
    """Second derivatives of F in (K11, K12, K22), shape (3, 3, sample, sample)."""
    aa, ac, ab, cc = 0.25 * fourth, 0.5 * third, 0.25 * second, second
    return np.stack([np.stack(row) for row in ((aa, ac, ab), (ac, cc, ac.T), (ab, ac.T, aa.T))])


# Linear on either side of zero: slope·x + (1 − slope)·relu.


class Ramp(NamedTuple):
    """Of all pairs of nodes: <a₊b₊>, <θ(a)θ(b)> and Δ/2π = √(qq' − c²)/2π, each (sample, sample)."""

    value: Array
    opening: Array
    delta: Array


def _ramp(q: Array, c: Array) -> Ramp:
    """The three closed forms that all averages of relu, leaky relu and abs are made of."""
    n = len(q)
    missing = 2 ** math.ceil(math.log2(max(n, 4))) - n  # few shapes: each is compiled once
    with jax.enable_x64(True):
        parts = _padded_ramp(np.pad(q, (0, missing)), np.pad(c, (0, missing)))
    return Ramp(*(np.asarray(part)[:n, :n] for part in parts))


@jax.jit
def _padded_ramp(q, c):
    triple = q[:, None], q[None, :], c
    delta = jnp.sqrt(closed.determinant(*triple)) / (2 * math.pi)
    return closed.relu_value(*triple, True), closed.relu_slope(*triple, True), delta


def _kinked_hessian(slope: float, q: Array, c: Array, one: Ramp) -> Array:
    r"""F_aa = (2c²−ab)/8πa²Δ, F_ac = −c/4πaΔ, F_ab = 1/8πΔ, F_cc = 1/2πΔ, times (1 − slope)², Eq. (finite_width.6).

    They diverge where two nodes are parallel, but V is the covariance of kernel entries: at angle θ the combination that
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


def _kinked_moments(slope: float, q: Array, c: Array, one: Ramp) -> tuple[Array, Array, float]:
    r"""With :math:`\varphi = x_+ - s(-x)_+` every power splits into the two half-lines, and :math:`c \to -c` flips one.

    :math:`\langle a_+^3 b_+\rangle = 2q\langle a_+b_+\rangle + c\langle a_+^2\theta(b)\rangle`, by Stein's lemma; likewise the squares.
    """
    a, b, s = q[:, None], q[None, :], slope

    def half_lines(c: Array, one: Ramp) -> tuple[Array, Array]:
        half = a * one.opening + c * one.delta / np.where(b > 0, b, 1)
        return 2 * a * one.value + c * half, a * b * one.opening + c * one.delta + 2 * c * one.value

    (cubic, square), (cubic_, square_) = half_lines(c, one), half_lines(-c, _ramp(q, -c))
    return (1 + s**4) * cubic - (s + s**3) * cubic_, (1 + s**4) * square + 2 * s**2 * square_, 64 * EPS


def _broken_moments(activation: Activation, q: Array, c: Array) -> tuple[Array, Array, float]:
    """Any activation with breaks, pair by pair."""
    n = len(q)
    moments = np.zeros((2, 2, n, n))
    for i, j in np.ndindex(n, n):
        for k, powers in enumerate(((3, 1), (2, 2))):
            moments[k, :, i, j] = pair_quadrature(activation, powers, q[i], q[j], c[i, j])
    fourth = np.diag(moments[1, 0])
    scale = np.sqrt(fourth[:, None] * fourth[None, :])
    error = np.max(moments[:, 1] / np.where(scale > 0, scale, 1))
    return moments[0, 0], moments[1, 0], float(error)


# Sets of four samples or nodes.


def sets_of_four(index: Array, n: int) -> tuple[Array, Array]:
    """Different sorted sets (set, 4) in ``index`` (…, 4) below ``n``, and which of them each entry is (…)."""
    a, b, c, d = np.moveaxis(np.sort(index, axis=-1), -1, 0)
    code = ((a * n + b) * n + c) * n + d
    codes, entry = np.unique(code.reshape(-1), return_inverse=True)
    return np.stack(np.unravel_index(codes, (n, n, n, n)), axis=-1), entry.reshape(code.shape)


def of_three_or_four(sets: Array) -> Array:
    """Which sorted sets have more than two different members."""
    return ~np.all((sets == sets[:, :1]) | (sets == sets[:, 3:]), axis=1)


def is_fast(activation: Activation) -> bool:
    """Whether an average over four nodes is closed, or a four-dimensional sum."""
    return (activation.is_named and activation.name in CLOSED) or closed.kink_slope(activation) is not None


def fourth_moments(
    activation: Activation, C: Array, advance: Advance, *, gradient: bool = False
) -> tuple[Array, Array, Array]:
    """<φφφφ> of covariances (set, 4, 4), its errors and, on request, its gradients, some at a time."""
    values, errors, gradients = np.empty(len(C)), np.empty(len(C)), np.empty(C.shape if gradient else 0)
    size = CHUNK if is_fast(activation) else SLOW
    for start in range(0, len(C), size):
        part = slice(start, start + size)
        if gradient:
            values[part], errors[part], gradients[part] = quartic.fourth_moment_and_gradient(activation, C[part])
        else:
            values[part], errors[part] = quartic.fourth_moment(activation, C[part])
        advance(len(C[part]))
    return values, errors, gradients


def quartets(
    activation: Activation, sets: Array, K: Array, averages: Averages, rtol: float, advance: Advance
) -> tuple[Array, float]:
    """Moments of sorted index sets (set, 4) and their largest error, relative to √(<σ⁴>…<σ⁴>)^¼.

    Sets of one or two different samples are looked up among the pair moments; the others are four-dimensional averages.
    """
    cubic, square, error = averages.cubic, averages.square, averages.error
    assert cubic is not None and square is not None
    first, last = sets[:, 0], sets[:, 3]
    count = np.sum(sets == first[:, None], axis=1)
    value = np.where(count == 3, cubic[first, last], square[first, last])
    value = np.where(count == 1, cubic[last, first], value)
    hard = of_three_or_four(sets)
    if hard.any():
        others = sets[hard]
        if activation.known_as("linear"):
            i, j, k, l = others.T
            value[hard], more = K[i, j] * K[k, l] + K[i, k] * K[j, l] + K[i, l] * K[j, k], np.zeros(len(others))
        else:
            value[hard], more, _ = fourth_moments(activation, K[others[:, :, None], others[:, None, :]], advance)
        scale = np.prod(np.diag(square)[others], axis=1) ** 0.25
        error = max(error, float(np.max(more / np.where(scale > 0, scale, 1))))
    if not error <= rtol:
        raise SolveError(
            f"Fourth moments of {activation} are known only to {error:.1e} of their scale (asked rtol={rtol:g})."
        )
    return value, error
