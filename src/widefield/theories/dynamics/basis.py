r"""One weight matrix, known only through what it has acted on (Sec. 4 of the theory page).

Vectors that a Gaussian matrix :math:`W` acts on, :math:`\varphi` forward and :math:`g` backward, are expanded in time order
in orthonormal directions :math:`\hat\varphi_k, \hat g_j`. :math:`W\hat\varphi_k` is a fresh white noise :math:`\xi_k` plus
what is already known of it, since earlier :math:`W^T\hat g_j` have shown its components along :math:`\hat g_j`:

.. math::
    W\varphi = \sum_k\langle\varphi\hat\varphi_k\rangle\Big[\xi_k + \gamma_0M_k + \sum_jC_{kj}\hat g_j\Big], \qquad
    C_{kj} = \langle\hat\varphi_k\,\xi^r_j\rangle \text{ for } j \text{ opened before } k,

and likewise backward with :math:`D_{jk} = \langle\hat g_j\xi_k\rangle` for k opened before j. These tables are the
responses A and B by Stein's lemma; they are frozen when a direction opens, or pairs in the wrong order would add noise
where the theory has zero (Sec. 5). :math:`M` is the memory of the updates :math:`\sum\eta\Delta g\varphi^T`. Their g and
φ are what has been expanded, so that :math:`M = \sum_{kj}m_{kj}\hat g_j\hat\varphi_k^T` is one small table for both sides.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from widefield.theories.dynamics.paths import dot

BLOCK = 32  # directions that are worked on together: they stay in the processor's cache; buffers are multiples of it


class Side(NamedTuple):
    """Directions of one side of a matrix. ``table``: (direction, direction of the other side)."""

    direction: Array  # (n, S)
    noise: Array  # (n, S)
    table: Array
    opened: Array  # how many


class Matrix(NamedTuple):
    """Both sides of a weight matrix: ``forward`` expands features, ``backward`` gradients; ``memory`` of updates."""

    forward: Side
    backward: Side
    memory: Array  # (forward direction, backward direction)
    momentum: Array  # no rows without momentum


def sides_of(matrices: tuple[Matrix, ...]) -> list[Side]:
    """Forward and backward of the first matrix, then of the second, …"""
    return [side for matrix in matrices for side in (matrix.forward, matrix.backward)]


def with_sides(matrices: tuple[Matrix, ...], sides: list[Side]) -> tuple[Matrix, ...]:
    """The matrices with other sides, in the order of `sides_of`."""
    pairs = zip(sides[::2], sides[1::2], strict=True)
    return tuple(
        matrix._replace(forward=forward, backward=backward)
        for matrix, (forward, backward) in zip(matrices, pairs, strict=True)
    )


def empty(n: int, n_paths: int, noises: tuple[Array, Array], momentum: bool = False) -> Matrix:
    """A matrix before it has acted; ``noises`` (n, S) are the white ones that its sides will open."""
    zero = lambda rows, columns: jnp.zeros((rows, columns), noises[0].dtype)  # noqa: E731
    forward, backward = (Side(zero(n, n_paths), white, zero(n, n), jnp.zeros((), int)) for white in noises)
    return Matrix(forward, backward, zero(n, n), zero(n * momentum, n))


def expand(side: Side, other: Side, vectors: Array, weight: float, tolerance: Array) -> tuple[Side, Array]:
    """Coefficients (vector, direction) of ``vectors`` (vector, S), opening directions for what is new in them.

    A direction opens where the rest of a vector has more than ``tolerance`` of its variance. Those beyond the buffer are
    dropped and show as a count larger than it.
    """
    scale = weight * jnp.sum(vectors**2, axis=1)
    n, n_other = len(side.direction), len(other.direction)
    known, rest = _project(side, jnp.zeros((len(vectors), n), vectors.dtype), vectors, weight)

    def open_new(known, rest):
        known, rest = _project(side, known, rest, weight)  # once is unstable: roundings grow by what little is left
        fresh, lower, opened = orthonormal(rest, scale, weight, tolerance)
        return known, fresh, lower, opened, _seen(other, fresh, weight)

    def nothing_new(known, rest):
        square = jnp.zeros((len(rest), len(rest)), rest.dtype)
        return known, rest, square, jnp.zeros(len(rest), bool), jnp.zeros((len(rest), n_other), rest.dtype)

    is_new = jnp.any(weight * jnp.sum(rest**2, axis=1) > tolerance * scale)
    known, fresh, lower, opened, seen = lax.cond(is_new, open_new, nothing_new, known, rest)
    where = side.opened + jnp.cumsum(opened) - 1
    where = jnp.where(opened, where, n)  # out of bounds: dropped
    direction = side.direction.at[where].set(fresh, mode="drop")
    table = side.table.at[where].set(seen, mode="drop")
    coefficients = known.at[:, where].add(lower, mode="drop")
    return side._replace(direction=direction, table=table, opened=side.opened + opened.sum()), coefficients


def _project(side: Side, known: Array, rest: Array, weight: float) -> tuple[Array, Array]:
    """What ``rest`` still has along the open directions, moved to ``known``; block after block, so each is read once."""

    def one(start, carry):
        known, rest = carry
        block = _part(side.direction, start)
        more = dot(rest, block, weight)
        return lax.dynamic_update_slice_in_dim(known, _part(known, start, 1) + more, start, axis=1), rest - more @ block

    return _over_blocks(side, one, (known, rest))


def _seen(other: Side, fresh: Array, weight: float) -> Array:
    """Rows of the table: averages of fresh directions with the noises that the other side has opened."""

    def one(start, table):
        return lax.dynamic_update_slice_in_dim(table, dot(fresh, _part(other.noise, start), weight), start, axis=1)

    table = _over_blocks(other, one, jnp.zeros((len(fresh), len(other.noise)), fresh.dtype))
    return table * (jnp.arange(len(other.noise)) < other.opened)


def _part(array: Array, start: Array, axis: int = 0) -> Array:
    return lax.dynamic_slice_in_dim(array, start, min(BLOCK, array.shape[axis]), axis)


def _over_blocks(side: Side, body, carry):
    """``body(start, carry)`` for every block of rows that holds open directions: the cost follows those, not the buffer."""
    size = min(BLOCK, len(side.direction))
    n_blocks = jnp.minimum(-(-side.opened // size), len(side.direction) // size)
    return lax.fori_loop(0, n_blocks, lambda i, carry: body(i * size, carry), carry)


def orthonormal(vectors: Array, scale: Array, weight: float, tolerance: Array | float) -> tuple[Array, Array, Array]:
    """Gram–Schmidt in the given order, skipping vectors of which less than ``tolerance`` of ``scale`` is left.

    Returns the directions (zero where skipped), the coefficients (vector, direction) and which were opened.
    """
    n = len(vectors)

    def one(i, carry):
        fresh, lower, opened = carry
        vector, coefficients = vectors[i], jnp.zeros(n, vectors.dtype)
        for _ in range(2):
            overlap = weight * (fresh @ vector)
            vector, coefficients = vector - overlap @ fresh, coefficients + overlap
        variance = weight * (vector @ vector)
        new = variance > tolerance * jnp.maximum(scale[i], jnp.finfo(vectors.dtype).tiny)
        root = jnp.sqrt(jnp.where(new, variance, 1.0))
        coefficients = coefficients.at[i].set(jnp.where(new, root, 0.0))
        return fresh.at[i].set(jnp.where(new, vector / root, 0.0)), lower.at[i].set(coefficients), opened.at[i].set(new)

    return lax.fori_loop(0, n, one, (jnp.zeros_like(vectors), jnp.zeros((n, n), vectors.dtype), jnp.zeros(n, bool)))


def act(side: Side, other: Side, memory: Array, axis: int, coefficients: Array, scales: tuple) -> Array:
    """W or its transpose on vectors given by ``coefficients``: noise, memory and response parts, each with its scale.

    ``memory`` has the directions of ``side`` on ``axis``; transposing it would read all of a buffer that may be mostly empty.
    """
    noise, learned, response = scales

    def drawn(start, carry):
        total, along = carry
        some, updates = _part(coefficients, start, 1), _part(memory, start, axis)
        known = response * some @ _part(side.table, start) + learned * some @ (updates.T if axis else updates)
        return total + noise * some @ _part(side.noise, start), along + known

    zero = lambda n: jnp.zeros((len(coefficients), n), side.noise.dtype)  # noqa: E731
    total, along = _over_blocks(side, drawn, (zero(side.noise.shape[1]), zero(len(other.direction))))
    shown = lambda start, total: total + _part(along, start, 1) @ _part(other.direction, start)  # noqa: E731
    return _over_blocks(other, shown, total)


def remember(matrix: Matrix, forward: Array, backward: Array, move) -> Matrix:
    """The memory after an update by Σ ``backward`` ⊗ ``forward`` coefficients; ``move`` maps (memory, momentum, kick)."""

    def one(start, carry):
        memory, momentum = carry
        inertia = _part(momentum, start) if len(momentum) else momentum
        new, speed = move(_part(memory, start), inertia, _part(forward, start, 1).T @ backward)
        put = lambda array, rows: lax.dynamic_update_slice_in_dim(array, rows, start, axis=0)  # noqa: E731
        return put(memory, new), put(momentum, speed) if len(momentum) else momentum

    memory, momentum = _over_blocks(matrix.forward, one, (matrix.memory, matrix.momentum))
    return matrix._replace(memory=memory, momentum=momentum)
