"""Positive definite matrices on an accelerator: tiles written into one donated buffer, and Cholesky's factor in place.

The buffer is padded by the identity to whole tiles. Everything here is one compiled program per tile, which reads the buffer
and writes one tile of it, so that a device holds the matrix once and a few tiles.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from widefield.solvers.symmetric import AbstractMatrix

_dot = partial(jnp.matmul, precision="highest")


class DeviceMatrix(AbstractMatrix):
    """On JAX's device; to be filled with `write`, tile by tile of the upper triangle, then `seal`."""

    def __init__(self, n: int, tile: int, dtype: Any):
        self.n, self.tile, self.n_tiles = n, tile, -(-n // tile)
        self.dtype, self.eps = np.dtype(dtype), float(np.finfo(dtype).eps)
        self.device = jax.local_devices()[0]
        self.buffer = jnp.zeros((self.n_tiles * tile,) * 2, self.dtype)

    def write(self, block: jax.Array, i: int, j: int) -> None:
        """Put the block of tile ``i``, ``j`` ≥ ``i`` there and beyond the diagonal; past the samples is the identity."""
        self.buffer = _write(self.buffer, block, i, j, self.n)

    def seal(self) -> None:
        """To be called when all tiles are written."""
        self.diagonal = _diagonal(self.buffer)
        self.norm = float(_norm(self.buffer, self.n, self.tile))

    def entries(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Some entries, of the upper triangle."""
        return np.asarray(self.buffer[np.minimum(i, j), np.maximum(i, j)])

    def to_host(self) -> np.ndarray:
        """The whole matrix, before it is factored."""
        array = np.empty((self.n, self.n), self.dtype)
        for start in range(0, self.n, self.tile):
            array[start : start + self.tile] = self.buffer[start : min(start + self.tile, self.n), : self.n]
        return array

    def factor(self, ridge: float) -> np.ndarray:
        shift = jnp.asarray(ridge, self.dtype)
        for k in range(self.n_tiles):
            upper, part = _rest_of_tile(self.buffer, k, k, self.tile)
            pivot, kept = _factor_diagonal(upper, part, _rows(self.diagonal, k, self.tile) + shift)
            self.buffer = _place(self.buffer, kept, k, k)
            for i in range(k + 1, self.n_tiles):
                part = _rest_of_tile(self.buffer, i, k, self.tile)[1]
                self.buffer = _place(self.buffer, _divide_right(pivot, part), i, k)
        diagonal = np.asarray(_diagonal(self.buffer))[: self.n]
        if not np.all(np.isfinite(diagonal)):
            first = int(np.argmin(np.isfinite(diagonal))) + 1
            raise np.linalg.LinAlgError(f"a leading minor near order {first} is not positive")
        return diagonal

    def solve(self, b: np.ndarray) -> np.ndarray:
        return np.asarray(self._substitute(self._substitute(self._padded(b), False), True))[: self.n]

    def whiten(self, b: np.ndarray) -> np.ndarray:
        return np.asarray(self._substitute(self._padded(b), False))[: self.n]

    def _substitute(self, b: jax.Array, transpose: bool) -> jax.Array:
        """L⁻¹b, or with ``transpose`` L⁻ᵀb."""
        for i in reversed(range(self.n_tiles)) if transpose else range(self.n_tiles):
            rest = _rest_of_rows(self.buffer, b, i, self.tile, transpose)
            rows = _divide_left(_get(self.buffer, i, i, self.tile), rest, transpose)
            b = lax.dynamic_update_slice_in_dim(b, rows, i * self.tile, 0)
        return b

    def multiply(self, b: np.ndarray) -> np.ndarray:
        return np.asarray(_multiply(self.buffer, self.diagonal, self._padded(b), self.tile))[: self.n]

    def spectrum(self) -> tuple[np.ndarray, jax.Array]:
        self.buffer = _symmetric(self.buffer, self.diagonal)
        vectors, values = lax.linalg.eigh(self.buffer[: self.n, : self.n], symmetrize_input=False, lower=False)
        return np.asarray(values), vectors

    def _padded(self, b: np.ndarray) -> jax.Array:
        return jnp.pad(jnp.asarray(b, self.dtype), ((0, len(self.buffer) - self.n), (0, 0)))


def _tile(A: jax.Array, i: Any, j: Any, tile: int) -> jax.Array:
    return lax.dynamic_slice(A, (i * tile, j * tile), (tile, tile))


def _rows(b: jax.Array, i: Any, tile: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(b, i * tile, tile)


@partial(jax.jit, donate_argnums=0)
def _write(A, block, i, j, n):
    tile = len(block)
    row, column = (k * tile + jnp.arange(tile) for k in (i, j))
    inside = (row < n)[:, None] & (column < n)[None, :]
    block = jnp.where(inside, block, (row[:, None] == column[None, :]).astype(A.dtype))
    A = lax.dynamic_update_slice(A, block.T, (j * tile, i * tile))
    return lax.dynamic_update_slice(A, block, (i * tile, j * tile))


_diagonal = jax.jit(jnp.diagonal)


def _upper(block, on_diagonal):
    return jnp.where(on_diagonal, jnp.triu(block), block)


@partial(jax.jit, static_argnums=2)
def _norm(A, n, tile):
    """Frobenius norm of the symmetric matrix whose upper triangle A has, without the padding."""

    def block(i, j, total):
        row, column = (k * tile + jnp.arange(tile) for k in (i, j))
        inside = (row < n)[:, None] & (column < n)[None, :]
        kept = jnp.where(inside, _upper(_tile(A, i, j, tile), i == j), 0) ** 2
        return total + 2 * jnp.sum(kept) - jnp.where(i == j, jnp.sum(jnp.diag(kept)), 0)

    n_tiles, zero = len(A) // tile, jnp.zeros((), A.dtype)
    row = lambda i, total: lax.fori_loop(i, n_tiles, partial(block, i), total)  # noqa: E731
    return jnp.sqrt(lax.fori_loop(0, n_tiles, row, zero))


# Factors of tiles are programs of their own: LAPACK's order of entries would otherwise spread to the whole buffer, as a copy.


@partial(jax.jit, static_argnums=3)
def _rest_of_tile(A, i, k, tile):
    """Tile ``k``, ``i`` of the matrix, and tile ``i``, ``k`` less what the factor's tiles left of it explain."""
    upper = _tile(A, k, i, tile)
    take = lambda j, t: t - _dot(_tile(A, i, j, tile), _tile(A, k, j, tile).T)  # noqa: E731
    return upper, lax.fori_loop(0, k, take, upper.T)


@jax.jit
def _factor_diagonal(upper, part, diagonal):
    """The factor of a diagonal tile, and what the buffer keeps: that, and the matrix above the diagonal."""
    explained = upper.T - part  # symmetric, and so is the tile, of which only the upper triangle is known
    above = jnp.triu(upper, 1)
    whole = above + above.T + jnp.diag(diagonal) - explained
    factor = jnp.tril(lax.linalg.cholesky(whole, symmetrize_input=False))
    return factor, factor + above


@jax.jit
def _divide_right(pivot, part):
    return lax.linalg.triangular_solve(pivot, part, left_side=False, lower=True, transpose_a=True)


@partial(jax.jit, static_argnums=2)
def _divide_left(pivot, part, transpose):
    return lax.linalg.triangular_solve(pivot, part, left_side=True, lower=True, transpose_a=transpose)


@partial(jax.jit, donate_argnums=0)
def _place(A, block, i, j):
    return lax.dynamic_update_slice(A, block, (i * len(block), j * len(block)))


_get = jax.jit(_tile, static_argnums=3)


@partial(jax.jit, static_argnums=(3, 4))
def _rest_of_rows(A, b, i, tile, transpose):
    """Rows of b less what the rows solved before explain."""

    def take(j, rest):
        block = _tile(A, j, i, tile).T if transpose else _tile(A, i, j, tile)
        return rest - _dot(block, _rows(b, j, tile))

    first, last = (i + 1, len(A) // tile) if transpose else (0, i)
    return lax.fori_loop(first, last, take, _rows(b, i, tile))


@partial(jax.jit, static_argnums=3)
def _multiply(A, diagonal, b, tile):
    """The symmetric matrix with A's upper triangle and the ``diagonal``, times b."""
    n = len(A) // tile

    def row(i, _):
        upper = jnp.triu(_tile(A, i, i, tile), 1)
        mine = _rows(b, i, tile)
        start = _dot(upper, mine) + _dot(upper.T, mine) + _rows(diagonal, i, tile)[:, None] * mine
        right = lambda j, t: t + _dot(_tile(A, i, j, tile), _rows(b, j, tile))  # noqa: E731
        left = lambda j, t: t + _dot(_tile(A, j, i, tile).T, _rows(b, j, tile))  # noqa: E731
        return i + 1, lax.fori_loop(0, i, left, lax.fori_loop(i + 1, n, right, start))

    return lax.scan(row, 0, length=n)[1].reshape(b.shape)


@partial(jax.jit, donate_argnums=0)
def _symmetric(A, diagonal):
    upper = jnp.triu(A, 1)
    return upper + jnp.diag(diagonal)
