r"""Two-time matrices that are filled row by row: what a row may read, and how it is written.

A matrix acts on functions of training time; with several channels an index is (step, channel), step first, and a "row" is
the block of rows of one step. Backward variables are kept as :math:`d(0) = g(0)` and :math:`d(t) = (g(t) - g(0))/\gamma_0`:
then nothing is divided by the richness and the lazy limit loses no digits, Eq. (proportional.16). So :math:`g = M d` with
:math:`M = 1e_0^T + \gamma_0(I - e_0e_0^T)`, and what the input layer sees is :math:`N d = (g(t) - \text{centering})/\gamma_0`
with :math:`N = c\,1e_0^T + I - e_0e_0^T`: :math:`c` = 0 for a centered network and :math:`1/\gamma_0` otherwise.

A matrix is dense or, in long runs, `Blocks`: far from the diagonal it is smooth, so that it factorizes. Block :math:`k` of
:math:`m` complete rows is :math:`\big(U_kV_k, D_k, 0\big)`: :math:`D_k` the :math:`m` columns on the diagonal of time,
:math:`U_kV_k` the earlier ones with few inner indices. A product with a row then reads :math:`2nm + n^2r/m` numbers instead
of :math:`n^2`. Matrices over two sources have both side by side, (n, 2n).
"""

from typing import Any, NamedTuple

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


Matrix = Array | Blocks


class Clock(NamedTuple):
    """Which step a row belongs to, and the masks of what came before."""

    step: Array
    n_channels: int
    unit: Array  # (channel, n): the row of the identity
    before: Array  # (n,): 1 at earlier steps
    first: Array  # (n,): 1 at step 0

    @property
    def row(self) -> Array:
        """The first row of this step."""
        return self.step * self.n_channels

    @property
    def past(self) -> Array:
        """(n,): 1 at this step and earlier ones."""
        return self.before + self.unit.sum(axis=0)


def clock(step: Array, n: int, n_channels: int, dtype) -> Clock:
    """The masks of ``step`` in matrices of ``n`` rows."""
    index = jnp.arange(n)
    rows = step * n_channels + jnp.arange(n_channels)
    unit = (rows[:, None] == index[None]).astype(dtype)
    before = (index < step * n_channels).astype(dtype)
    return Clock(step, n_channels, unit, before, (index < n_channels).astype(dtype))


def times(x: Array, matrix: Matrix, now: Clock) -> Array:
    """The rows ``x`` times ``matrix``."""
    if not isinstance(matrix, Blocks):
        return x @ matrix
    (live, past), start = matrix, matrix.first_row(now.row)
    n_blocks, m, _ = past.left.shape
    parts = x.reshape(len(x), n_blocks, m)
    far = jnp.einsum("cbm,bmr->cbr", parts, past.left).reshape(len(x), -1) @ past.right
    near = jnp.einsum("cbm,bmk->cbk", parts, past.diagonal).reshape(len(x), n_blocks, -1, m)
    product = far + jnp.moveaxis(near, 2, 1).reshape(far.shape)
    product = product + lax.dynamic_slice_in_dim(x, start, m, axis=1) @ live
    if isinstance(past, CausalPast):
        return product
    earlier = x * (jnp.arange(x.shape[1])[None] < start)
    above = lax.dynamic_slice_in_dim(product, start, m, axis=1) + _against_dense(earlier, live)
    return lax.dynamic_update_slice_in_dim(product + _against_far(x, past), above, start, axis=1)


def against(x: Array, matrix: Matrix, now: Clock) -> Array:
    """The rows ``x`` times the transpose of ``matrix``, in blocks a lower triangular one."""
    if not isinstance(matrix, Blocks):
        return _against_dense(x, matrix)
    live, past = matrix
    n_blocks, m, _ = past.left.shape
    in_blocks = jnp.moveaxis(x.reshape(len(x), -1, n_blocks, m), 2, 1).reshape(len(x), n_blocks, -1)
    near = jnp.stack([jnp.einsum("bmk,bk->bm", past.diagonal, one) for one in in_blocks]).reshape(len(x), -1)
    product = near + _against_far(x, past)
    return lax.dynamic_update_slice_in_dim(product, _against_dense(x, live), matrix.first_row(now.row), axis=1)


def _against_dense(x: Array, matrix: Array) -> Array:
    """``x`` times the transpose of ``matrix``: as matrix–vector products twenty times faster than XLA's on the CPU."""
    return jnp.stack([matrix @ one for one in x])


def _against_far(x: Array, past: CausalPast | SymmetricPast) -> Array:
    n_blocks, _, rank = past.left.shape
    inner = _against_dense(x, past.right).reshape(len(x), n_blocks, rank)
    return jnp.einsum("bmr,cbr->cbm", past.left, inner).reshape(len(x), -1)


def halves(row: Array) -> tuple[Array, Array]:
    """The two sources of a row over (source, step); kept flat, since XLA copies what is reshaped after a write."""
    n = row.shape[-1] // 2
    return row[..., :n], row[..., n:]


def beside(first: Array, second: Array) -> Array:
    """The inverse of `halves`."""
    return jnp.concatenate([first, second], axis=-1)


def put(matrix: Matrix, now: Clock, row: Array) -> Any:
    """``matrix`` with this step's rows."""
    if isinstance(matrix, Blocks):
        at = now.row % len(matrix.live)
        return matrix._replace(live=lax.dynamic_update_slice_in_dim(matrix.live, row, at, axis=0))
    return lax.dynamic_update_slice_in_dim(matrix, row, now.row, axis=0)


def put_symmetric(matrix: Matrix, now: Clock, row: Array) -> Any:
    """``matrix`` with this step's rows and columns; ``row`` must vanish at later steps."""
    row = symmetric_row(row, now)
    if isinstance(matrix, Blocks):
        among = lax.dynamic_slice_in_dim(row, matrix.first_row(now.row), len(matrix.live), axis=1)
        live = lax.dynamic_update_slice_in_dim(matrix.live, among.T, now.row, axis=1)
        return put(matrix._replace(live=live), now, row)
    return put(lax.dynamic_update_slice_in_dim(matrix, row.T, now.row, axis=1), now, row)


def symmetric_row(row: Array, now: Clock) -> Array:
    """``row`` with a symmetric block on the diagonal of time."""
    if now.n_channels == 1:
        return row
    block = block_now(row, now)
    return lax.dynamic_update_slice_in_dim(row, 0.5 * (block + block.T), now.row, axis=1)


def block_now(row: Array, now: Clock) -> Array:
    """The (channel, channel) block of a row on the diagonal of time."""
    return lax.dynamic_slice_in_dim(row, now.row, now.n_channels, axis=1)


def times_constant(row: Array, first: Array | float, rest: Array | float, now: Clock) -> Array:
    r""":math:`x T` for :math:`T = f\,1e_0^T + r\,(I - e_0e_0^T)`: with (1, γ0) :math:`M`, with (c, 1) :math:`N`."""
    total = row.reshape(len(row), -1, now.n_channels).sum(axis=1)
    at_first = jnp.zeros((len(total), row.shape[1]), total.dtype).at[:, : total.shape[1]].set(total)
    return rest * row * (1 - now.first)[None] + first * at_first


def congruent_row(covariance: Matrix, row: Array, first: Array | float, rest: Array | float, now: Clock) -> Array:
    r"""The row of :math:`T C T^T`, with `times_constant`'s T, from this step's row of C and C itself; zero at later steps."""
    c = now.n_channels
    if not isinstance(covariance, Blocks):
        origin = covariance[:c]
    else:
        (live, past), start = covariance, covariance.first_row(now.row)
        n_blocks, _, rank = past.left.shape
        far = jnp.einsum("bmr,brc->bmc", past.left, past.right.reshape(n_blocks, rank, -1)[..., :c])
        column = far.at[0].add(past.diagonal[0, :, :c]).reshape(-1, c)
        origin = lax.dynamic_update_slice_in_dim(column, live[:, :c], start, axis=0).T
    left = first * origin + jnp.where(now.step > 0, rest, 0.0) * row
    spread = jnp.tile(left[:, :c], (1, row.shape[1] // c))
    full = first * spread + rest * left * (1 - now.first)[None]
    return full * now.past[None]
