r"""Two-time matrices that are filled row by row: what a row may read, and how it is written.

A matrix acts on functions of training time; with several channels an index is (step, channel), step first, and a "row" is
the block of rows of one step. Backward variables are kept as :math:`d(0) = g(0)` and :math:`d(t) = (g(t) - g(0))/\gamma_0`:
then nothing is divided by the richness and the lazy limit loses no digits, Eq. (proportional.16).

Notation: :math:`g = M d` with :math:`M = 1e_0^T + \gamma_0(I - e_0e_0^T)`. What the input layer sees is
:math:`N d = (g(t) - \text{centering})/\gamma_0`, with :math:`N = c\,1e_0^T + I - e_0e_0^T`: :math:`c` = 0 for a centered
network and :math:`1/\gamma_0` otherwise.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from widefield.theories.proportional.march import blocks
from widefield.theories.proportional.march.blocks import Blocks

Matrix = Array | Blocks  # dense, or with its complete rows in factors


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


def times(rows: Array, matrix: Matrix, now: Clock) -> Array:
    """``rows`` times ``matrix``."""
    return blocks.row_times(rows, matrix, now.row) if isinstance(matrix, Blocks) else rows @ matrix


def against(rows: Array, matrix: Matrix, now: Clock) -> Array:
    """``rows`` times the transpose of ``matrix``."""
    return (
        blocks.against_rows(rows, matrix, now.row) if isinstance(matrix, Blocks) else blocks.against_dense(rows, matrix)
    )


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
        return blocks.written(matrix, now.row, row)
    return lax.dynamic_update_slice_in_dim(matrix, row, now.row, axis=0)


def put_symmetric(matrix: Matrix, now: Clock, row: Array) -> Any:
    """``matrix`` with this step's rows and columns; ``row`` must vanish at later steps."""
    row = symmetric_row(row, now)
    if isinstance(matrix, Blocks):
        return blocks.written_symmetric(matrix, now.row, row)
    matrix = lax.dynamic_update_slice_in_dim(matrix, row.T, now.row, axis=1)
    return put(matrix, now, row)


def symmetric_row(row: Array, now: Clock) -> Array:
    """``row`` with a symmetric block on the diagonal of time."""
    if now.n_channels == 1:
        return row
    block = block_now(row, now)
    return lax.dynamic_update_slice_in_dim(row, 0.5 * (block + block.T), now.row, axis=1)


def block_now(row: Array, now: Clock) -> Array:
    """The (channel, channel) block of a row on the diagonal of time."""
    return lax.dynamic_slice_in_dim(row, now.row, now.n_channels, axis=1)


def times_gradient(row: Array, richness: Array, now: Clock) -> Array:
    r""":math:`x M`: a row that acts on :math:`g` as one that acts on :math:`d`."""
    return _times(row, 1.0, richness, now)


def times_input(row: Array, offset: Array, now: Clock) -> Array:
    r""":math:`x N`."""
    return _times(row, offset, 1.0, now)


def gradient_row(covariance: Matrix, scaled: Array, richness: Array, now: Clock) -> Array:
    r"""The row of :math:`M C_d M^T = C_g` from this step's row of :math:`C_d` and the matrix itself."""
    return _congruent(covariance, scaled, 1.0, richness, now)


def input_row(covariance: Matrix, scaled: Array, offset: Array, now: Clock) -> Array:
    r"""The row of :math:`N C_d N^T`."""
    return _congruent(covariance, scaled, offset, 1.0, now)


def _times(row: Array, first: Array | float, rest: Array | float, now: Clock) -> Array:
    total = row.reshape(len(row), -1, now.n_channels).sum(axis=1)
    return rest * row * (1 - now.first)[None] + first * _at_first(total, row.shape[1])


def _at_first(block: Array, n: int) -> Array:
    return jnp.zeros((len(block), n), block.dtype).at[:, : block.shape[1]].set(block)


def _congruent(covariance: Matrix, row: Array, first: Array | float, rest: Array | float, now: Clock) -> Array:
    """The row of T C Tᵀ for T = first·1e₀ᵀ + rest·(1 − e₀e₀ᵀ), zero at later steps."""
    c = now.n_channels
    origin = blocks.first_rows(covariance, c, now.row) if isinstance(covariance, Blocks) else covariance[:c]
    left = first * origin + jnp.where(now.step > 0, rest, 0.0) * row
    spread = jnp.tile(left[:, :c], (1, row.shape[1] // c))
    full = first * spread + rest * left * (1 - now.first)[None]
    return full * now.past[None]
