"""One call for any pair average: picks the road, and never returns a value without an error estimate."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.boundary import require_memory, x64
from widefield.answer.certificate import SolveError
from widefield.gaussian import closed, quadrature
from widefield.gaussian.kernels import RESOLVED, Orders, SeriesKernel, Table, level_of, series_kernel
from widefield.question import checks
from widefield.question.activation import Activation, as_activation

EPS = float(np.finfo(float).eps)
# Closed forms in which a rounding of the variances is magnified by the variances; in an arcsine by 1/√EPS at most.
MAGNIFIED = {"exp": math.inf, "rbf": math.inf, "sin": math.inf, "cos": math.inf, "erf": EPS**-0.5, "gelu": EPS**-0.5}
LARGEST = 1e150  # variance, and its inverse the smallest
HIGHEST = 8  # order: compilation grows with it
SIZES = (1, 16, 256)  # of tiles of a series: few, because each is compiled once
BYTES = 80  # of a pair (measured with a series: 72 and 82)
SCATTERED = 4096  # pairs without the structure of a matrix, at a time


@dataclass(frozen=True)
class Expectation:
    """``value`` with its ``error`` estimate (absolute, entry by entry), and the ``method`` that made it."""

    value: np.ndarray
    error: np.ndarray
    method: str


@x64
def expectation(
    activation: str | Activation,
    variance: Any,
    variance_: Any,
    covariance: Any,
    orders: tuple[int, int] = (0, 0),
    *,
    method: str = "auto",
    rtol: float = 1e-10,
) -> Expectation:
    r"""Average :math:`\langle\varphi^{(i)}(a)\varphi^{(j)}(b)\rangle` over zero-mean Gaussian pairs.

    ``variance``, ``variance_`` and ``covariance`` (:math:`\langle a^2\rangle, \langle b^2\rangle, \langle ab\rangle`)
    broadcast against one another. By Price's theorem the derivatives of :math:`\langle\varphi\varphi\rangle` are
    averages too: with respect to the covariance ``orders=(1, 1)``, to a variance half of ``orders=(2, 0)``.

    Method: closed form where there is one; otherwise, for any ``orders``, a Hermite series where its tail bound meets
    ``rtol``, and two-dimensional quadrature for the other pairs (high variance near ρ = ±1, delta functions).
    ``method`` insists on ``"closed"``, ``"series"`` or ``"quadrature"``. A kernel matrix costs least with variances of
    shape (P, 1) and (1, P), or their full broadcast: each variance is expanded once.
    Error: relative to :math:`\sqrt{\langle\varphi^{(i)}(a)^2\rangle\langle\varphi^{(j)}(b)^2\rangle}` at most
    ``rtol``, or `SolveError`; with delta functions, which have no such scale, only the stated error holds. A value that overflows or is infinite raises `OverflowError`.
    Limits: a kinked activation has a delta function in its second derivative, one that jumps in its first; derivatives
    of delta functions are known for relu, leaky relu and abs alone. A user's function is scanned for steep places first:
    features narrower than 6e-5 of their distance from 0 are not seen. What jumps or bends without being declared in
    ``breaks``, or oscillates too fast, raises `SolveError` with the point where it does.
    """
    activation = as_activation(activation)
    checks.choice("method", method, ("auto", "closed", "series", "quadrature"))
    rtol = checks.tolerance("rtol", rtol, 1e-13)
    if not isinstance(orders, tuple | list) or len(orders) != 2:
        raise ValueError(f"`orders` must be two derivative orders such as (1, 1), got {orders!r}.")
    i, j = (checks.integer(f"orders[{n}]", order, 0) for n, order in enumerate(orders))
    if max(i, j) > HIGHEST:
        raise ValueError(f"`orders` must be at most {HIGHEST}, got {(i, j)}.")
    orders = i, j
    q, p, c = _pairs(variance, variance_, covariance)
    if method == "closed" or (method == "auto" and closed.has_closed_form(activation, orders)):
        with np.errstate(over="ignore", invalid="ignore"):  # said below, with the numbers
            value, error, used = *_closed(activation, orders, q, p, c), "closed"
    else:
        value, error, used = _numerical(activation, orders, q, p, c, method, rtol)
    if not (np.isfinite(value).all() and np.isfinite(error).all()):
        bad = np.unravel_index(np.argmin(np.isfinite(value) & np.isfinite(error)), value.shape)
        raise OverflowError(
            f"<{activation}^({orders[0]}) {activation}^({orders[1]})> is {value[bad]} at variance {q[bad]:g}, "
            f"variance_ {p[bad]:g}, covariance {c[bad]:g}: it overflows or is infinite there. Lower the variance."
        )
    return Expectation(np.asarray(value), np.asarray(error), used)


def _pairs(variance: Any, variance_: Any, covariance: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three arguments, checked and broadcast."""
    named = {"variance": variance, "variance_": variance_, "covariance": covariance}
    for name, v in named.items():
        if np.ma.isMaskedArray(v):
            raise ValueError(f"`{name}` must be a plain array, got a masked one.")
    arrays = {k: checks.real_array(k, v, range(9), "real numbers")[0] for k, v in named.items()}
    for name in ("variance", "variance_"):
        v = arrays[name]
        if np.any(v < 0):
            raise ValueError(f"`{name}` must be non-negative, got {v.min()}.")
        out = v[(v > LARGEST) | ((v > 0) & (v < 1 / LARGEST))]
        if out.size:  # products of two are taken
            raise ValueError(f"`{name}` must be 0 or lie between {1 / LARGEST:g} and {LARGEST:g}, got {out[0]:g}.")
    try:
        q, p, c = np.broadcast_arrays(*arrays.values())
    except ValueError:
        shapes = [a.shape for a in arrays.values()]
        raise ValueError(f"`covariance` and the variances must broadcast, got {shapes}.") from None
    require_memory(
        BYTES * q.size, f"Averages over {q.size} pairs of `variance` and `variance_`", "Ask for fewer at once."
    )
    limit = np.sqrt(q) * np.sqrt(p)
    if np.any(np.abs(c) > limit * (1 + 8 * EPS)):
        bad = int(np.argmax(np.abs(c) - limit))
        raise ValueError(
            f"`covariance` must lie within ±√(variance·variance_) = ±{limit.flat[bad]:g}, got {c.flat[bad]:g}."
        )
    return q, p, c


@partial(jax.jit, static_argnums=(0, 1))
def _closed_moment(activation, orders, q, p, c):
    return closed.moment(activation, orders, q, p, c, exact=True) + 0 * c


def _closed(activation: Activation, orders: Orders, q, p, c) -> tuple[np.ndarray, np.ndarray]:
    """Value, and an error of some roundings of the natural scale (more where an exponential magnifies them)."""
    if not closed.has_closed_form(activation, orders):
        raise ValueError(f"`method` must not be 'closed': {activation} has no closed form at orders {orders}.")
    value = np.asarray(_closed_moment(activation, orders, q, p, c))
    if activation.breaks and max(orders) > 1:  # the second derivative of a kink has no second moment
        return value, 64 * EPS * np.abs(value)
    norms = (_closed_moment(activation, (k, k), v, v, v) for k, v in zip(orders, (q, p), strict=True))
    scale = math.prod(np.sqrt(np.asarray(norm)) for norm in norms)
    magnified = 1 + np.minimum(q + p, MAGNIFIED.get(activation.name, 0.0))
    return value, 64 * EPS * magnified * np.maximum(np.abs(value), np.where(np.isfinite(scale), scale, 0.0))


def _numerical(activation: Activation, orders: Orders, q, p, c, method: str, rtol: float):
    """Value, error and method: the series, and quadrature where that is not good enough."""
    singular = any(quadrature.factor(activation, order).deltas for order in orders)
    if method == "quadrature" or singular:
        value, error, scale = np.zeros_like(c), np.full_like(c, np.inf), np.ones_like(c)
    else:
        value, error, scale = _series(activation, orders, q, p, c)
    rest = error > rtol * scale
    used = "series"
    if rest.any() and method != "series":
        pairs = q[rest], p[rest], c[rest]
        value[rest], error[rest] = quadrature.average(activation, orders, *pairs)
        scale[rest] = np.inf if singular else _scales(activation, orders, *pairs[:2])
        used = "quadrature" if rest.all() else "series and quadrature"
    excess = error - rtol * scale
    worst = np.unravel_index(np.argmax(excess), c.shape)
    if np.isfinite(value).all() and not excess[worst] <= 0:
        raise SolveError(
            f"The average of {activation} is known only to {error[worst]:.1e} (scale {scale[worst]:.1e}, asked "
            f"rtol={rtol:g}) at variance {q[worst]:g}, variance_ {p[worst]:g}, covariance {c[worst]:g}. Name every "
            "point where the function or its derivative jumps in Activation(breaks=...), or raise rtol."
        )
    return value, error, used


def _scales(activation: Activation, orders: Orders, q, p) -> np.ndarray:
    """√(<f²><g²>)."""
    norms = []
    for order, v in zip(orders, (q, p), strict=True):
        unique, back = np.unique(v, return_inverse=True)
        norms.append(quadrature.average(activation, (order, order), unique, unique, unique)[0][back])
    return np.sqrt(norms[0] * norms[1])


# The series of many pairs: every variance is expanded once, the pairs are summed in tiles of few shapes.


def _series(activation: Activation, orders: Orders, q, p, c) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, errors and scales of <φ^(i)(a)φ^(j)(b)> for arrays of one shape; the error is infinite where unknown.

    Where ``q`` varies along the rows alone and ``p`` along the columns, as in a kernel matrix, only these are expanded.
    """
    wanted = (0, 1) if max(orders) < 2 else tuple(sorted(set(orders)))
    kernel = series_kernel(activation, level_of(max(q.max(), p.max())), "float64", True, wanted)
    matrices = [v.reshape(-1, *(1, 1, *v.shape)[-2:]) for v in (q, p, c)]
    rows, columns = matrices[0][:, :, 0], matrices[1][:, 0, :]
    if (matrices[0] == rows[:, :, None]).all() and (matrices[1] == columns[:, None, :]).all():
        parts = [_pairs_of(kernel, orders, *triple) for triple in zip(rows, columns, matrices[2], strict=True)]
    else:
        flat = [v.reshape(-1) for v in (q, p, c)]
        parts = [_pairs_of(kernel, orders, *(v[s] for v in flat)) for s in _slices(c.size, SCATTERED)]
    value, error, scale = (np.concatenate([part[n].reshape(-1) for part in parts]).reshape(c.shape) for n in range(3))
    return value, error, scale


def _pairs_of(kernel: SeriesKernel, orders: Orders, q, p, c) -> np.ndarray:
    """Values, errors and scales, (3, ...), of all pairs of q and p where c is a matrix, one by one where it is not."""
    result = np.empty((3, *c.shape))
    rows, columns = list(_tiles(kernel, q)), list(_tiles(kernel, p))
    if c.ndim == 1:
        tiles: list[Any] = [((r,), row, column) for (r, row), (_, column) in zip(rows, columns, strict=True)]
    else:
        rows = [(r, {k: v[..., :, None] for k, v in row.items()}) for r, row in rows]
        columns = [(s, {k: v[..., None, :] for k, v in column.items()}) for s, column in columns]
        tiles = [((r, s), row, column) for r, row in rows for s, column in columns]
    for where, row, column in tiles:
        here = c[where]
        padded = np.asarray(_averages(kernel, orders, row, column, _padded(here)))
        result[:, *where] = padded[:, *map(slice, here.shape)]
    return result


def _slices(n: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _padded(v: np.ndarray) -> np.ndarray:
    """Every axis filled up to an allowed size by repeating its last entry."""
    return np.pad(v, [(0, next(size for size in SIZES if size >= n) - n) for n in v.shape], mode="edge")


def _tiles(kernel: SeriesKernel, v: np.ndarray) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
    """The table of all nodes, tile by tile, padded."""
    unique, index = np.unique(v, return_inverse=True)
    parts = [_table(kernel, _padded(unique[s])) for s in _slices(len(unique), SIZES[-1])]
    whole = {k: np.concatenate([part[k] for part in parts], axis=-1) for k in parts[0]}
    return ((s, {k: leaf[..., _padded(index[s])] for k, leaf in whole.items()}) for s in _slices(len(v), SIZES[-1]))


_table = jax.jit(lambda kernel, q: kernel.table(q))


@partial(jax.jit, static_argnums=1)
def _averages(kernel: SeriesKernel, orders: Orders, row: Table, column: Table, c) -> jax.Array:
    value, error = kernel.average(row, column, c, orders)
    norms = (t[f"moment_{k}_{k}"] for t, k in zip((row, column), orders, strict=True))
    rough = (kernel.roughness(t, k) for t, k in zip((row, column), orders, strict=True))
    scale = jnp.sqrt(next(norms)) * jnp.sqrt(next(norms))
    # ρ is known to some roundings, which the series magnifies by its slope.
    rounding = 64 * EPS + 8 * EPS * next(rough) * next(rough)
    error = jnp.where(jnp.isfinite(error), (error + rounding + RESOLVED) * scale, jnp.inf)
    return jnp.stack(jnp.broadcast_arrays(value, error, scale))
