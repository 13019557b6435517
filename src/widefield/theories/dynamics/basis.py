r"""One weight matrix, known only through what it has acted on (Sec. 4 of the theory page).

Vectors that a Gaussian matrix :math:`W` acts on, :math:`\varphi` forward and :math:`g` backward, are expanded in time order
in orthonormal directions :math:`\hat\varphi_k, \hat g_j`. :math:`W\hat\varphi_k` is a fresh white noise :math:`\xi_k` plus
what is already known of it, since earlier :math:`W^T\hat g_j` have shown its components along :math:`\hat g_j`:

.. math::
    W\varphi = \sum_k\langle\varphi\hat\varphi_k\rangle\Big[\xi_k + \gamma_0M_k + \sum_jC_{kj}\hat g_j\Big], \qquad
    C_{kj} = \langle\hat\varphi_k\,\xi^r_j\rangle \text{ for } j \text{ opened before } k,

and likewise backward with :math:`D_{jk} = \langle\hat g_j\xi_k\rangle` for k opened before j. These tables are the
responses A and B by Stein's lemma; they are frozen when a direction opens, or pairs in the wrong order would add noise
where the theory has zero (Sec. 5). :math:`M` is the memory of the updates, in the same directions.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from widefield.theories.dynamics.paths import dot


class Side(NamedTuple):
    """Directions of one side of a matrix. ``table``: (direction, direction of the other side)."""

    direction: Array  # (n, S)
    noise: Array  # (n, S)
    memory: Array  # (n, S)
    momentum: Array  # (n, S)
    table: Array
    opened: Array  # how many


class Matrix(NamedTuple):
    """Both sides of a weight matrix: ``forward`` expands features, ``backward`` gradients."""

    forward: Side
    backward: Side


def empty(n: int, n_paths: int, noise: Array) -> Matrix:
    """A matrix before it has acted; ``noise`` (2, n, S) are the white noises it will open."""
    zero = jnp.zeros((n, n_paths), noise.dtype)
    side = lambda white: Side(zero, white, zero, zero, jnp.zeros((n, n), noise.dtype), jnp.zeros((), int))  # noqa: E731
    return Matrix(side(noise[0]), side(noise[1]))


def expand(side: Side, other: Side, vectors: Array, weight: float, tolerance: float) -> tuple[Side, Array]:
    """Coefficients (vector, direction) of ``vectors`` (vector, S), opening directions for what is new in them.

    A direction opens where the rest of a vector has more than ``tolerance`` of its variance. Those beyond the buffer are
    dropped and show as a count larger than it.
    """
    scale = weight * jnp.sum(vectors**2, axis=1)
    known, rest = jnp.zeros((), vectors.dtype), vectors
    for _ in range(2):  # once is unstable: roundings are amplified by what little is left
        more = dot(rest, side.direction, weight)
        known, rest = known + more, rest - more @ side.direction
    fresh, lower, opened = orthonormal(rest, scale, weight, tolerance)
    where = side.opened + jnp.cumsum(opened) - 1
    where = jnp.where(opened, where, len(side.direction))  # out of bounds: dropped
    direction = side.direction.at[where].set(fresh, mode="drop")
    started = jnp.arange(len(other.direction)) < other.opened
    table = side.table.at[where].set(dot(fresh, other.noise, weight) * started, mode="drop")
    coefficients = known.at[:, where].add(lower, mode="drop")
    return side._replace(direction=direction, table=table, opened=side.opened + opened.sum()), coefficients


def orthonormal(vectors: Array, scale: Array, weight: float, tolerance: float) -> tuple[Array, Array, Array]:
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


def act(side: Side, other: Side, coefficients: Array, scales: tuple) -> Array:
    """W or its transpose on vectors given by ``coefficients``: noise, memory and response parts, each with its scale."""
    noise, memory, response = scales
    drawn = noise * side.noise + memory * side.memory
    return coefficients @ drawn + response * (coefficients @ side.table) @ other.direction
