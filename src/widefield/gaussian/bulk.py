"""Series averages of many pairs: every variance expanded once, the pairs summed in tiles of few shapes."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from widefield.gaussian.kernels import RESOLVED, Orders, SeriesKernel, Table, level_of, series_kernel
from widefield.question.activation import Activation

EPS = float(np.finfo(float).eps)
SIZES = (1, 16, 256)  # of tiles: few, because each is compiled once
SCATTERED = 4096  # pairs without the structure of a matrix, at a time


def average(activation: Activation, orders: Orders, q, p, c) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, errors and scales of <φ^(i)(a)φ^(j)(b)> for arrays of one shape; the error is infinite where unknown.

    Where ``q`` varies along the rows alone and ``p`` along the columns, as in a kernel matrix, only these are expanded.
    """
    wanted = (0, 1) if max(orders) < 2 else tuple(sorted(set(orders)))
    kernel = series_kernel(activation, level_of(max(q.max(), p.max())), "float64", True, wanted)
    matrices = [v.reshape(-1, *(1, 1, *v.shape)[-2:]) for v in (q, p, c)]
    rows, columns = matrices[0][:, :, 0], matrices[1][:, 0, :]
    if (matrices[0] == rows[:, :, None]).all() and (matrices[1] == columns[:, None, :]).all():
        parts = [_matrix(kernel, orders, *triple) for triple in zip(rows, columns, matrices[2], strict=True)]
    else:
        flat = [v.reshape(-1) for v in (q, p, c)]
        parts = [_scattered(kernel, orders, *(v[s] for v in flat)) for s in _slices(c.size, SCATTERED)]
    value, error, scale = (np.concatenate([part[n].reshape(-1) for part in parts]).reshape(c.shape) for n in range(3))
    return value, error, scale


def _matrix(kernel: SeriesKernel, orders: Orders, q, p, c) -> np.ndarray:
    result = np.empty((3, *c.shape))
    columns = list(_tiles(kernel, p))
    for r, row in _tiles(kernel, q):
        row = {k: v[..., :, None] for k, v in row.items()}
        for s, column in columns:
            result[:, r, s] = _pairs(kernel, orders, row, {k: v[..., None, :] for k, v in column.items()}, c[r, s])
    return result


def _scattered(kernel: SeriesKernel, orders: Orders, q, p, c) -> np.ndarray:
    result = np.empty((3, *c.shape))
    for (s, row), (_, column) in zip(_tiles(kernel, q), _tiles(kernel, p), strict=True):
        result[:, s] = _pairs(kernel, orders, row, column, c[s])
    return result


def _slices(n: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _padded(v: np.ndarray) -> np.ndarray:
    """Every axis filled up to an allowed size by repeating its last entry."""
    missing = [(0, next(size for size in SIZES if size >= n) - n) for n in v.shape]
    return np.pad(v, missing, mode="edge")


def _tiles(kernel: SeriesKernel, v: np.ndarray) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
    """The table of all nodes, tile by tile, padded."""
    unique, index = np.unique(v, return_inverse=True)
    parts = [_table(kernel, _padded(unique[s])) for s in _slices(len(unique), SIZES[-1])]
    whole = {k: np.concatenate([part[k] for part in parts], axis=-1) for k in parts[0]}
    return ((s, {k: leaf[..., _padded(index[s])] for k, leaf in whole.items()}) for s in _slices(len(v), SIZES[-1]))


def _pairs(kernel: SeriesKernel, orders: Orders, row, column, c: np.ndarray) -> np.ndarray:
    result = np.asarray(_averages(kernel, orders, row, column, _padded(c)))
    return result[(slice(None), *map(slice, c.shape))]


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
