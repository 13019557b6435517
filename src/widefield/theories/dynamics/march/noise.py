r"""What averages are taken over: sample paths of one site, or, in linear networks, coordinates of Gaussian space.

A site's variables are functions of white noises. Nonlinear ones are sampled on S paths, :math:`\langle ab\rangle = \frac1S
\sum_ia_ib_i`. Linear ones stay linear in the noises: they are vectors of coefficients, one coordinate per noise, and
:math:`\langle ab\rangle = \sum_ia_ib_i` is exact. The march is the same for both; the ``weight`` of an average is 1/S or 1.

Paths come in pairs with the same noises of the forward pass and opposite ones of the backward pass, readout included. Where
training has not moved h, gradients then have no correlation with forward noises, nor features with backward ones, in any
sample, as in the theory. Of each pair one half of the noises is stored.
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import ndtri

MAX_SOBOL = 21201  # dimensions that SciPy has direction numbers for
MOST_SOBOL = 2**15  # paths; with more, pseudo-random ones are as good and made on the device


def dot(a: Array, b: Array, weight: float) -> Array:
    """Averages of all products of rows of ``a`` (…, S) and ``b`` (…, S)."""
    return weight * (a.reshape(-1, a.shape[-1]) @ b.reshape(-1, b.shape[-1]).T)


def mirrored(half: Array, parity: float | Array) -> Array:
    """Noises (…, S) of all paths from those of the first of each pair; ``parity`` is 1 forward and -1 backward."""
    return jnp.concatenate([half, parity * half], axis=-1)


def folded(full: Array, parity: float | Array) -> Array:
    """What averages with mirrored noises see of ``full`` (…, S): its products with the first halves are the whole sum."""
    first, second = jnp.split(full, 2, axis=-1)
    return first + parity * second


def sampled_blocks(sizes: list[int], n_paths: int, seed: int, *stream: int, after: int = 0) -> Iterator[Array]:
    """White noises in blocks (size, path): scrambled Sobol points of every stream where affordable, pseudo-random otherwise.

    Those of several streams together are Sobol points too where one begins ``after`` the noises of the others.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=stream)
    n_noises, edges = after + sum(sizes), np.cumsum(sizes)[:-1]
    if n_paths & (n_paths - 1) or n_paths > MOST_SOBOL or n_noises > MAX_SOBOL:
        key = jax.random.key(int(sequence.generate_state(1)[0]))
        yield from jnp.split(jax.random.normal(key, (sum(sizes), n_paths), jnp.float64), edges)
        return
    from scipy.stats import qmc  # a second to import

    points = qmc.Sobol(n_noises, seed=np.random.default_rng(sequence)).random(n_paths)[:, after:]
    for block in np.split(points, edges, axis=1):
        yield jnp.asarray(ndtri(np.clip(block, 2.0**-54, 1 - 2.0**-54)).T)


@jax.jit
def whitened(noise: Array) -> Array:
    """A block (noise, path) with exactly unit variances, no correlations and no means over its paths."""
    noise = noise - noise.mean(axis=1, keepdims=True)
    factor = jnp.linalg.cholesky(noise @ noise.T / noise.shape[1])
    return jax.scipy.linalg.solve_triangular(factor, noise, lower=True)


@partial(jax.jit, static_argnames="n_before", donate_argnames="noise")
def added(noise: Array, more: Array, m: int, n_before: int, size: float) -> Array:
    """``noise`` (matrix, n, S) with ``more`` after the first rows of matrix m, uncorrelated with them and of deviation ``size``."""
    before = noise[m, :n_before] / size
    fresh = whitened(more - dot(more, before, 1 / noise.shape[2]) @ before)
    return jax.lax.dynamic_update_slice(noise, size * fresh[None], (m, n_before, 0))
