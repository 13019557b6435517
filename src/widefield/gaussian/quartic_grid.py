r"""Four-node averages of any smooth function, by the trapezoid rule in whitened coordinates.

.. math::
    \langle\varphi_1\varphi_2\varphi_3\varphi_4\rangle = \int\!d^3z\,\gamma(z)\,\varphi(l_1\!\cdot z)\,\varphi(l_2\!\cdot z)\,
    \varphi(l_3\!\cdot z)\;g(l_4\!\cdot z), \qquad g(m) = \int\!dz\,\gamma(z)\,\varphi(m + L_{44}z)

with :math:`C = LL^T` (pivoted, so that coinciding nodes need fewer dimensions). The innermost integral depends on one
number and is tabulated: the cost is that of a three-dimensional sum. Derivatives of the average are averages of
derivatives on the same nodes.
Error: the difference between two spacings, refined until it is small.
Limits: functions analytic in a strip (the rule converges exponentially there); a kink shows in the error estimate.
"""

import math
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from widefield.question.activation import Activation

REACH = 8.0
STEPS = (0.75, 0.53, 0.375, 0.265, 0.19, 0.135)  # of the arguments, finer and finer
STEEP = 0.8  # a slope below this gains no wider step: the density itself must be resolved
WIDTH = 10  # points of the local interpolation
TARGET = 1e-10  # of the scale
BARYCENTRIC = np.array([(-1.0) ** k * math.comb(WIDTH - 1, k) for k in range(WIDTH)])  # weights of equal steps
BLOCK = 2**13  # nodes summed at a time: one shape to compile
LARGEST = 2**22  # nodes of one average
WIDEST = 1e3  # standard deviation: long before it no spacing is fine enough
MODES = ((0, 0, 0, 0),)
SLOPES = tuple(
    tuple((e == m) + (f == m) for m in range(4)) for e in range(4) for f in range(e, 4)
)  # orders of the derivatives ∂_e∂_f


def pivoted_cholesky(C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors L of C[order, order] = L Lᵀ, the largest remaining variance first, and the orders."""
    C, n = C.copy(), C.shape[1]
    L, order = np.zeros_like(C), np.tile(np.arange(n), (len(C), 1))
    batch = np.arange(len(C))
    floor = 1e-15 * np.einsum("bii->b", C)
    for k in range(n):
        pivot = k + np.argmax(np.einsum("bii->bi", C)[:, k:], axis=1)
        for array in (order, L):
            array[batch, k], array[batch, pivot] = array[batch, pivot].copy(), array[batch, k].copy()
        C[batch, k], C[batch, pivot] = C[batch, pivot].copy(), C[batch, k].copy()
        C[batch, :, k], C[batch, :, pivot] = C[batch, :, pivot].copy(), C[batch, :, k].copy()
        live = C[:, k, k] > floor
        root = np.sqrt(np.where(live, C[:, k, k], 1.0))
        column = np.where(live[:, None] & (np.arange(n) >= k), C[:, :, k] / root[:, None], 0.0)
        L[:, :, k] = column
        C -= column[:, :, None] * column[:, None, :]
    return L, order


def _line(count: int) -> tuple[np.ndarray, np.ndarray]:
    if count == 0:
        return np.zeros(1), np.ones(1)
    h = REACH / count
    z = h * np.arange(-count, count + 1)
    return z, h * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


@lru_cache(maxsize=64)
def _nodes(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (node, dimension) within a ball and their weights, filled up with weightless ones to whole blocks."""
    z, w = zip(*map(_line, counts), strict=True)
    grid = np.stack(np.meshgrid(*z, indexing="ij"), axis=-1).reshape(-1, len(counts))
    weights = np.prod(np.stack(np.meshgrid(*w, indexing="ij")), axis=0).reshape(-1)
    keep = np.sum(grid**2, axis=1) <= REACH**2 + 8.0
    block = BLOCK if len(counts) > 1 else 64
    missing = -int(keep.sum()) % block
    return np.pad(grid[keep], ((0, missing), (0, 0))), np.pad(weights[keep], (0, missing))


def _derivatives(function, highest: int):
    """φ, φ', … φ^(highest), elementwise."""
    result = [function]
    for _ in range(highest):
        result.append(lambda x, f=result[-1]: jax.jvp(f, (x,), (jnp.ones_like(x),))[1])
    return result


@partial(jax.jit, static_argnums=(0, 1, 2))
def _tables(function, highest: int, n_points: int, z, w, step, spread) -> list[jax.Array]:
    """g and its derivatives on an equally spaced grid around zero."""
    m = step * (jnp.arange(n_points) - n_points // 2)
    return [f(m[:, None] + spread * z[None]) @ w for f in _derivatives(function, highest)]


def _look_up(tables: list[jax.Array], step, x) -> list[jax.Array]:
    """Local polynomial interpolation of the tables at x."""
    n_points = len(tables[0])
    position = x / step + n_points // 2
    first = jnp.clip(jnp.floor(position).astype(int) - WIDTH // 2 + 1, 0, n_points - WIDTH)
    offset = position - first
    total, values = jnp.zeros_like(x), [jnp.zeros_like(x)] * len(tables)
    for k, weight in enumerate(BARYCENTRIC):
        distance = offset - k
        share = weight / jnp.where(distance == 0, 1e-290, distance)
        total = total + share
        values = [v + share * table[first + k] for v, table in zip(values, tables, strict=True)]
    return [v / total for v in values]


@partial(jax.jit, static_argnums=(0, 1))
def _sums(function, highest: int, tables, step, z, w, L: jax.Array) -> jax.Array:
    """A block of nodes: the value, or all ∂_e∂_f with e ≤ f in the order of the nodes; last, four factors of a scale."""
    functions = _derivatives(function, highest)
    x = z @ L[:, :3].T
    factors = [[f(x[:, m]) for f in functions] for m in range(3)]
    factors.append(_look_up(tables, step, x[:, 3]))
    modes = SLOPES if highest else MODES
    sums = [jnp.sum(w * math.prod(f[k] for f, k in zip(factors, mode, strict=True))) for mode in modes]
    return jnp.stack([*sums, *(jnp.sum(w * f[0] ** 4) for f in factors)])


def _rule(activation: Activation, highest: int, n_points: int, L: np.ndarray, counts: tuple[int, ...]):
    """One quadruple at one spacing: averages, and the scale Π <φ⁴>^¼ (or the largest of the averages)."""
    size = float(np.sqrt(np.sum(L[3] ** 2)))
    step = (REACH + 1.5) * size / (n_points // 2 - WIDTH) if size > 0 else 1.0
    line, weight = _nodes(counts[3:])
    tables = _tables(activation.function, highest, n_points, line[:, 0], weight, step, L[3, 3])
    z, w = _nodes(counts[:3])
    blocks = [slice(start, start + BLOCK) for start in range(0, len(w), BLOCK)]
    total = sum(np.asarray(_sums(activation.function, highest, tables, step, z[b], w[b], L)) for b in blocks)
    value, moments = np.asarray(total)[:-4], np.asarray(total)[-4:]
    return value, max(float(np.prod(moments**0.25)), float(np.abs(value).max()))


def averages(activation: Activation, C: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray]:
    """Values (batch, 1 or 10) and error estimates of <φφφφ> or of <∂_e∂_f(φφφφ)> with e ≤ f."""
    L, order = pivoted_cholesky(C)
    largest = math.sqrt(float(np.einsum("bii->bi", C).max(initial=0.0)))
    if largest > WIDEST:
        raise ValueError(f"`covariance` must have variances up to {WIDEST**2:g} for {activation}, got {largest**2:g}.")
    # A table for the largest standard deviation with a spacing of at most 0.06.
    n_points = 2 * (2 ** math.ceil(math.log2(max(largest, 0.25) * (REACH + 1.5) / 0.06)) + WIDTH)
    value, error = (np.stack(v) for v in zip(*(_refine(activation, gradient, n_points, f) for f in L), strict=True))
    if gradient:  # sorted back from the pivoted order, to the pairs e ≤ f
        e, f = np.triu_indices(4)
        square = np.zeros((len(C), 4, 4))
        batch, first, second = np.arange(len(C))[:, None], order[:, e], order[:, f]
        square[batch, first, second] = square[batch, second, first] = value
        value = square[:, e, f]
    return value, error


def _refine(activation: Activation, gradient: bool, n_points: int, L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One quadruple at finer and finer spacings.

    The error left is at most that of a geometric series of the differences: the rule converges faster than that for
    an analytic function, and not faster for a kinked one.
    """
    value = np.full(10 if gradient else 1, np.inf)
    before = error = np.inf
    for step in STEPS:
        # Steps from 0 to REACH along every whitened coordinate, none where nothing depends on it.
        counts = tuple(math.ceil(REACH * max(s, STEEP) / step) if s > 0 else 0 for s in np.abs(L).max(axis=0))
        if math.prod(2 * c + 1 for c in counts[:3]) > LARGEST:
            break
        new, scale = _rule(activation, 2 if gradient else 0, n_points, L, counts)
        difference = float(np.abs(new - value).max())
        ratio = difference / before if np.isfinite(before) and before > 0 else 1.0
        error = difference * min(1.0, 2 * ratio + 1e-3) + 1e-14 * scale
        value, before = new, difference
        if error <= TARGET * scale:
            break
    return value, np.full_like(value, error)
