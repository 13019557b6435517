r"""Two-time matrices in blocks of rows: the part far from the diagonal is smooth, so that it factorizes.

Block :math:`k` of :math:`m` rows that are complete is kept as

.. math::  \big(U_kV_k, \; D_k, \; 0\big),

:math:`D_k` the :math:`m` columns on the diagonal of time, :math:`U_kV_k` the earlier ones with few inner indices. A product with a row then
reads :math:`2nm + n^2r/m` numbers instead of :math:`n^2`. Rows that are still being filled are `Blocks.live`, all columns.

Matrices over two sources have both side by side, (n, 2n), as elsewhere.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax


class CausalPast(NamedTuple):
    """Complete blocks of a lower triangular matrix; blocks to come are zero."""

    diagonal: Array  # (block, m, source·m)
    left: Array  # (block, m, rank)
    right: Array  # (block·rank, source·n)


class SymmetricPast(NamedTuple):
    """The same of a symmetric matrix, whose upper triangle is not kept."""

    diagonal: Array
    left: Array
    right: Array


class Blocks(NamedTuple):
    """A matrix: the rows being filled, (m, source·n), and those before them."""

    live: Array
    past: CausalPast | SymmetricPast

    @property
    def size(self) -> int:
        return self.live.size

    def first_row(self, row: Array) -> Array:
        """Where the live rows begin when ``row`` is one of them."""
        return row - row % len(self.live)


def written(matrix: Blocks, row: Array, values: Array) -> Blocks:
    """``matrix`` with ``values`` as its rows from ``row`` on."""
    return matrix._replace(live=lax.dynamic_update_slice_in_dim(matrix.live, values, row % len(matrix.live), axis=0))


def written_symmetric(matrix: Blocks, row: Array, values: Array) -> Blocks:
    """The same with the columns among the live rows."""
    among = lax.dynamic_slice_in_dim(values, matrix.first_row(row), len(matrix.live), axis=1)
    live = lax.dynamic_update_slice_in_dim(matrix.live, among.T, row, axis=1)
    return written(matrix._replace(live=live), row, values)


def row_times(x: Array, matrix: Blocks, row: Array) -> Array:
    """``x`` times the matrix, ``row`` being filled."""
    start, m = matrix.first_row(row), len(matrix.live)
    product = _row_times_past(x, matrix.past) + lax.dynamic_slice_in_dim(x, start, m, axis=1) @ matrix.live
    if isinstance(matrix.past, CausalPast):
        return product
    above = lax.dynamic_slice_in_dim(product, start, m, axis=1) + against_dense(
        x * (jnp.arange(x.shape[1])[None] < start), matrix.live
    )
    product = product + _against_far(x, matrix.past)
    return lax.dynamic_update_slice_in_dim(product, above, start, axis=1)


def against_rows(x: Array, matrix: Blocks, row: Array) -> Array:
    """``x`` times the transpose of a lower triangular matrix, ``row`` being filled."""
    past = matrix.past
    n_blocks, m, _ = past.left.shape
    in_blocks = jnp.moveaxis(x.reshape(len(x), -1, n_blocks, m), 2, 1).reshape(len(x), n_blocks, -1)
    near = jnp.stack([jnp.einsum("bmk,bk->bm", past.diagonal, one) for one in in_blocks]).reshape(len(x), -1)
    product = near + _against_far(x, past)
    return lax.dynamic_update_slice_in_dim(product, against_dense(x, matrix.live), matrix.first_row(row), axis=1)


def first_rows(matrix: Blocks, count: int, row: Array) -> Array:
    """The first ``count`` rows of a symmetric matrix, ``row`` being filled."""
    past = matrix.past
    n_blocks, _, rank = past.left.shape
    far = jnp.einsum("bmr,brc->bmc", past.left, past.right.reshape(n_blocks, rank, -1)[..., :count])
    column = far.at[0].add(past.diagonal[0, :, :count]).reshape(-1, count)
    return lax.dynamic_update_slice_in_dim(column, matrix.live[:, :count], matrix.first_row(row), axis=0).T


def against_dense(x: Array, matrix: Array) -> Array:
    """``x`` times the transpose of ``matrix``: as matrix–vector products twenty times faster than XLA's on the CPU."""
    return jnp.stack([matrix @ one for one in x])


def _against_far(x: Array, past: CausalPast | SymmetricPast) -> Array:
    n_blocks, _, rank = past.left.shape
    inner = against_dense(x, past.right).reshape(len(x), n_blocks, rank)
    return jnp.einsum("bmr,cbr->cbm", past.left, inner).reshape(len(x), -1)


def _row_times_past(x: Array, past: CausalPast | SymmetricPast) -> Array:
    n_blocks, m, _ = past.left.shape
    parts = x.reshape(len(x), n_blocks, m)
    far = jnp.einsum("cbm,bmr->cbr", parts, past.left).reshape(len(x), -1) @ past.right
    near = jnp.einsum("cbm,bmk->cbk", parts, past.diagonal).reshape(len(x), n_blocks, -1, m)
    return far + jnp.moveaxis(near, 2, 1).reshape(far.shape)
