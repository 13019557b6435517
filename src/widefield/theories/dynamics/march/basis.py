r"""One weight matrix, known only through what it has acted on: Eq. (dynamics.15).

Vectors that a Gaussian matrix :math:`W` acts on, :math:`\varphi` forward and :math:`g` backward, are expanded in time order
in orthonormal directions. What :math:`W` makes of a direction is a fresh white noise plus what is already known of it:
earlier :math:`W^T\hat g_j` have shown its components along :math:`\hat g_j`. These tables are the responses A and B by Stein's
lemma; they are frozen when a direction opens, or pairs in the wrong order would add noise where the theory has zero. The
g and φ of updates are what has been expanded, so that their memory is one small table
:math:`M = \sum_{kj}m_{kj}\hat g_j\hat\varphi_k^T` for both sides.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from widefield.theories.dynamics.march.noise import dot, folded, mirrored

BLOCK = 32  # directions that are worked on together: they stay in the processor's cache; buffers are multiples of it


class Side(NamedTuple):
    """Directions of one side of every matrix. ``table``: (matrix, direction, direction of the other side)."""

    direction: Array  # (matrix, n, S)
    noise: Array  # (matrix, n, S/2), of the first path of each pair; (matrix, n, S) of coordinates, which have no pairs
    table: Array
    opened: Array  # (matrix,) how many
    parity: Array  # of the noises of a pair

    @property
    def paired(self) -> bool:
        return self.noise.shape[2] != self.direction.shape[2]


class Matrices(NamedTuple):
    """Both sides of all weight matrices: ``forward`` expands features, ``backward`` gradients; ``memory`` of updates.

    They are stacked, so that one loop serves any number: a layer more compiles nothing more.
    """

    forward: Side
    backward: Side
    memory: Array  # (matrix, forward direction, backward direction)
    momentum: Array  # no rows without momentum

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.forward, self.backward


def empty(noises: tuple[Array, Array], n_paths: int, momentum: bool = False) -> Matrices:
    """Matrices before they have acted; ``noises`` are the white ones that their sides will open."""
    n_matrices, n, _ = noises[0].shape
    zero = lambda *shape: jnp.zeros((n_matrices, *shape), noises[0].dtype)  # noqa: E731
    forward, backward = (
        Side(zero(n, n_paths), white, zero(n, n), jnp.zeros(n_matrices, int), jnp.asarray(parity))
        for white, parity in zip(noises, (1.0, -1.0), strict=True)
    )
    return Matrices(forward, backward, zero(n, n), zero(n * momentum, n))


def expand(
    side: Side, other: Side, m: Array, vectors: Array, weight: float, tolerance: Array
) -> tuple[Side, Array, Array]:
    """Coefficients (vector, direction) of ``vectors`` (vector, S) in matrix m, opening directions for what is new in them.

    A direction opens where the rest of a vector has more than ``tolerance`` of its variance. Those beyond the buffer are
    dropped and show as a count larger than it. A smaller rest gets no noise, which would matter by its variance, but what
    is known of W along it matters by its size: its averages with the other side's noises are returned as well.
    """
    scale = weight * jnp.sum(vectors**2, axis=1)
    n = side.direction.shape[1]
    known, rest = project(side, m, jnp.zeros((len(vectors), n), vectors.dtype), vectors, weight)

    def open_new(known, rest):
        known, rest = project(side, m, known, rest, weight)  # once is unstable: roundings grow by what little is left
        return known, *orthonormal(rest, scale, weight, tolerance)

    def nothing_new(known, rest):
        return known, rest, jnp.zeros((len(rest), len(rest)), rest.dtype), jnp.zeros(len(rest), bool)

    is_new = jnp.any(weight * jnp.sum(rest**2, axis=1) > tolerance * scale)
    known, fresh, lower, opened = lax.cond(is_new, open_new, nothing_new, known, rest)
    overlaps = overlaps_with_noise(other, m, fresh, weight)
    where = side.opened[m] + jnp.cumsum(opened) - 1
    where = jnp.where(opened, where, n)  # out of bounds: dropped
    direction = side.direction.at[m, where].set(fresh, mode="drop")
    table = side.table.at[m, where].set(overlaps, mode="drop")
    coefficients = known.at[:, where].add(lower, mode="drop")
    side = side._replace(direction=direction, table=table, opened=side.opened.at[m].add(opened.sum()))
    return side, coefficients, jnp.where(opened[:, None], 0.0, overlaps)


def project(side: Side, m: Array, known: Array, rest: Array, weight: float) -> tuple[Array, Array]:
    """What ``rest`` still has along the open directions, moved to ``known``; block after block, so each is read once."""

    def one(start, carry):
        known, rest = carry
        block = _rows(side.direction, m, start)
        more = dot(rest, block, weight)
        return lax.dynamic_update_slice_in_dim(known, _columns(known, start) + more, start, axis=1), rest - more @ block

    return _over_blocks(side, m, one, (known, rest))


def overlaps_with_noise(other: Side, m: Array, fresh: Array, weight: float) -> Array:
    """Averages of fresh directions, rows of the table, and of small rests with the noises that the other side has opened."""
    n = other.noise.shape[1]
    fresh = folded(fresh, other.parity) if other.paired else fresh

    def one(start, table):
        return lax.dynamic_update_slice_in_dim(table, dot(fresh, _rows(other.noise, m, start), weight), start, axis=1)

    table = _over_blocks(other, m, one, jnp.zeros((len(fresh), n), fresh.dtype))
    return table * (jnp.arange(n) < other.opened[m])[None]


def _rows(array: Array, m: Array, start: Array) -> Array:
    """A block of rows of matrix m."""
    return lax.dynamic_slice(array, (m, start, 0), (1, min(BLOCK, array.shape[1]), array.shape[2]))[0]


def _columns(array: Array, start: Array) -> Array:
    return lax.dynamic_slice_in_dim(array, start, min(BLOCK, array.shape[-1]), array.ndim - 1)


@custom_vmap
def _most(opened: Array) -> Array:
    """The largest number of batches that are marched together, so that their loops are one."""
    return opened


@_most.def_vmap
def _most_of_batches(axis_size: int, in_batched: list[bool], opened: Array) -> tuple[Array, bool]:
    return jnp.max(opened) if in_batched[0] else opened, False


def _over_blocks(side: Side, m: Array, body, carry):
    """``body(start, carry)`` for every block of rows that holds open directions: the cost follows those, not the buffer."""
    n = side.direction.shape[1]
    size = min(BLOCK, n)
    n_blocks = jnp.minimum(-(-_most(side.opened[m]) // size), n // size)
    return lax.fori_loop(0, n_blocks, lambda i, carry: body(i * size, carry), carry)


def orthonormal(vectors: Array, scale: Array, weight: float, tolerance: Array | float) -> tuple[Array, Array, Array]:
    """Gram–Schmidt in the given order, skipping vectors of which less than ``tolerance`` of ``scale`` is left.

    Returns the directions (what is left of vectors that are skipped), the coefficients (vector, direction) and which were opened.
    """
    n = len(vectors)

    def one(i, carry):
        fresh, lower, opened = carry
        vector, coefficients = vectors[i], jnp.zeros(n, vectors.dtype)
        for _ in range(2):
            overlap = weight * opened * (fresh @ vector)
            vector, coefficients = vector - overlap @ fresh, coefficients + overlap
        variance = weight * (vector @ vector)
        new = variance > tolerance * jnp.maximum(scale[i], jnp.finfo(vectors.dtype).tiny)
        root = jnp.sqrt(jnp.where(new, variance, 1.0))
        coefficients = coefficients.at[i].set(jnp.where(new, root, 0.0))
        return fresh.at[i].set(vector / root), lower.at[i].set(coefficients), opened.at[i].set(new)

    return lax.fori_loop(0, n, one, (jnp.zeros_like(vectors), jnp.zeros((n, n), vectors.dtype), jnp.zeros(n, bool)))


def act(
    side: Side, other: Side, memory: Array, backward: bool, m: Array, coefficients: Array, rest: Array, scales: tuple
) -> Array:
    """Matrix m, or its transpose if ``backward``, on vectors given by ``coefficients`` and the averages of their ``rest``:
    noise, memory and response parts, each with its scale.
    """
    noise, learned, response = scales
    n_other = other.direction.shape[1]

    def updates(start):
        """Memory rows of this side's directions; transposing it would read all of a buffer that may be mostly empty."""
        if not backward:
            return _rows(memory, m, start)
        return lax.dynamic_slice(memory, (m, 0, start), (1, n_other, min(BLOCK, memory.shape[2])))[0].T

    def drawn(start, carry):
        total, along = carry
        some = _columns(coefficients, start)
        known = response * some @ _rows(side.table, m, start) + learned * some @ updates(start)
        return total + noise * some @ _rows(side.noise, m, start), along + known

    zero = jnp.zeros((len(coefficients), side.noise.shape[2]), side.noise.dtype)
    total, along = _over_blocks(side, m, drawn, (zero, response * rest))
    total = mirrored(total, side.parity) if side.paired else total
    shown = lambda start, total: total + _columns(along, start) @ _rows(other.direction, m, start)  # noqa: E731
    return _over_blocks(other, m, shown, total)


def remember(matrices: Matrices, m: Array, forward: Array, backward: Array, move) -> Matrices:
    """The memory of matrix m after an update by Σ ``backward`` ⊗ ``forward`` coefficients.

    ``move`` maps (memory, momentum, kick).
    """
    moving = bool(matrices.momentum.shape[1])

    def one(start, carry):
        memory, momentum = carry
        inertia = _rows(momentum, m, start) if moving else momentum
        new, speed = move(_rows(memory, m, start), inertia, _columns(forward, start).T @ backward)
        put = lambda array, rows: lax.dynamic_update_slice(array, rows[None], (m, start, 0))  # noqa: E731
        return put(memory, new), put(momentum, speed) if moving else momentum

    memory, momentum = _over_blocks(matrices.forward, m, one, (matrices.memory, matrices.momentum))
    return matrices._replace(memory=memory, momentum=momentum)
