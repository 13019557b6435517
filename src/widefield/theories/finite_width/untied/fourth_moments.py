r"""Fourth moments :math:`\langle\varphi_i\varphi_j\varphi_k\varphi_l\rangle` of one neuron on sets of four samples, some of them equal.

On two samples :math:`\langle\varphi(a)^3\varphi(b)\rangle` and :math:`\langle\varphi(a)^2\varphi(b)^2\rangle` are closed for relu,
leaky relu and abs, for which Stein's lemma ends at the opening angle, and done by quadrature for other kinks. The smooth
ones are made in `pair_averages`, along with the derivatives. Three or four samples are four-dimensional averages.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import SolveError
from widefield.gaussian import closed, quartic
from widefield.question.activation import Activation
from widefield.theories.finite_width.untied.pair_averages import pair_quadrature

EPS = float(np.finfo(float).eps)
CHUNK = 4096  # sets of four at a time


class FourthMoments(NamedTuple):
    """<φ(a)³φ(b)> and <φ(a)²φ(b)²> of all pairs (row a, column b), and the largest error relative to their scale."""

    cubic: np.ndarray
    square: np.ndarray
    error: float


class Ramp(NamedTuple):
    """Of all pairs of nodes: <a₊b₊>, <θ(a)θ(b)> and Δ/2π = √(qq' − c²)/2π, each (sample, sample)."""

    value: np.ndarray
    opening: np.ndarray
    delta: np.ndarray


def ramp(q: np.ndarray, c: np.ndarray) -> Ramp:
    """The three closed forms that all averages of relu, leaky relu and abs are made of."""
    n = len(q)
    missing = 2 ** math.ceil(math.log2(max(n, 4))) - n  # few shapes: each is compiled once
    with jax.enable_x64(True):
        parts = _ramp(np.pad(q, (0, missing)), np.pad(c, (0, missing)))
    return Ramp(*(np.asarray(part)[:n, :n] for part in parts))


@jax.jit
def _ramp(q, c):
    triple = q[:, None], q[None, :], c
    delta = jnp.sqrt(closed.determinant(*triple)) / (2 * math.pi)
    return closed.relu_value(*triple, True), closed.relu_slope(*triple, True), delta


def kinked_pairs(slope: float, q: np.ndarray, c: np.ndarray, one: Ramp) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """<φφ>, <φ''φ> and <φ'φ'>; φ = slope·x + (1 − slope)·relu. A node that does not vary has no curvature."""
    jump = (1 - slope) ** 2
    curve = np.where(q > 0, jump / np.where(q > 0, q, 1), 0)[:, None] * one.delta
    return slope * c + jump * one.value, curve, slope + jump * one.opening


def kinked_moments(slope: float, q: np.ndarray, c: np.ndarray, one: Ramp) -> FourthMoments:
    r"""With :math:`\varphi = x_+ - s(-x)_+` every power splits into the two half-lines, and :math:`c \to -c` flips one."""
    s = slope
    (cubic, square), (cubic_, square_) = _ramp_moments(q, c, one), _ramp_moments(q, -c, ramp(q, -c))
    cubic, square = (1 + s**4) * cubic - (s + s**3) * cubic_, (1 + s**4) * square + 2 * s**2 * square_
    return FourthMoments(cubic, square, 64 * EPS)


def _ramp_moments(q, c, one: Ramp) -> tuple[np.ndarray, np.ndarray]:
    r""":math:`\langle a_+^3 b_+\rangle = 2qF + c\langle a_+^2\theta(b)\rangle`, by Stein's lemma; likewise the squares.

    Notation: :math:`F = \langle a_+b_+\rangle`, :math:`\langle a_+^2\theta(b)\rangle = q\langle\theta\theta\rangle + c\Delta/2\pi q'`.
    """
    p = q[None, :]
    q = q[:, None]
    half = q * one.opening + c * one.delta / np.where(p > 0, p, 1)
    return 2 * q * one.value + c * half, q * p * one.opening + c * one.delta + 2 * c * one.value


def broken_moments(activation: Activation, q: np.ndarray, c: np.ndarray) -> FourthMoments:
    """Any activation with breaks, pair by pair."""
    n = len(q)
    moments = np.zeros((2, 2, n, n))
    for i, j in np.ndindex(n, n):
        for k, powers in enumerate(((3, 1), (2, 2))):
            moments[k, :, i, j] = pair_quadrature(activation, powers, q[i], q[j], c[i, j])
    fourth = np.diag(moments[1, 0])
    scale = np.sqrt(fourth[:, None] * fourth[None, :])
    error = np.max(moments[:, 1] / np.where(scale > 0, scale, 1))
    return FourthMoments(moments[0, 0], moments[1, 0], float(error))


def quartets(activation: Activation, sets: np.ndarray, K: np.ndarray, fourth: FourthMoments, rtol: float):
    """Moments of sorted index sets (set, 4) and their largest error, relative to √(<σ⁴>…<σ⁴>)^¼.

    Sets of one or two different samples are looked up among the pair moments; the others are four-dimensional averages.
    """
    first, last = sets[:, 0], sets[:, 3]
    count = np.sum(sets == first[:, None], axis=1)
    pairs = np.all((sets == first[:, None]) | (sets == last[:, None]), axis=1)
    value = np.where(count == 3, fourth.cubic[first, last], fourth.square[first, last])
    value = np.where(count == 1, fourth.cubic[last, first], value)
    error = fourth.error
    if not pairs.all():
        value[~pairs], more = _different(activation, sets[~pairs], K)
        scale = np.prod(np.diag(fourth.square)[sets[~pairs]], axis=1) ** 0.25
        error = max(error, float(np.max(more / np.where(scale > 0, scale, 1))))
    if not error <= rtol:
        raise SolveError(
            f"Fourth moments of {activation} are known only to {error:.1e} of their scale (asked rtol={rtol:g})."
        )
    return value, error


def _different(activation: Activation, sets: np.ndarray, K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Averages over three or four different samples."""
    if activation.known_as("linear"):
        i, j, k, l = sets.T
        return K[i, j] * K[k, l] + K[i, k] * K[j, l] + K[i, l] * K[j, k], np.zeros(len(sets))
    parts = [
        quartic.fourth_moment(activation, K[part[:, :, None], part[:, None, :]])
        for part in np.split(sets, range(CHUNK, len(sets), CHUNK))
    ]
    values, errors = (np.concatenate([np.asarray(part[k]) for part in parts]) for k in range(2))
    return values, errors
