r"""Draws of one neuron's states by annealing from the Gaussian: for densities that no single proposal covers.

Eq. (posterior.20), sequential Monte Carlo (Del Moral, Doucet & Jasra 2006): β grows so that weights keep 60 % of their
effective share, particles are resampled within their batch and moved by Hamiltonian Monte Carlo with their own covariance
as inverse mass. Batches never exchange particles: their scatter is the sampling error, and its ratio to the scatter within
is the nested R̂ of Margossian et al. (2022). The normalizer comes from the weights.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from widefield.question.activation import Activation
from widefield.theories.posterior.nonlinear.moments import Density, Nodes, make_nodes

SHARE, MOVES, LAST_MOVES, LEAPS, ACCEPT = 0.6, 3, 16, 8, 0.8


def anneal(
    activation: Activation, density: Density, n_particles: int, seed: int, n_batches: int
) -> tuple[Nodes, float]:
    """Draws from the density, ``n_particles`` in each batch, as nodes, and their R̂.

    At their own density all weights are equal, nearby ones are reached by reweighting.
    """
    key = jax.random.key(seed)
    key, first = jax.random.split(key)
    z = jax.random.normal(first, (n_batches, n_particles, density.factor.shape[1]), density.factor.dtype)
    log_normalizer, beta, step = jnp.zeros(n_batches, z.dtype), 0.0, 0.3
    while beta < 1:
        key, resample, move = jax.random.split(key, 3)
        gain = _tilts(activation, density, z)
        after = _next_beta(np.asarray(gain), beta)
        log_w = (after - beta) * gain
        log_normalizer += jax.scipy.special.logsumexp(log_w, axis=1) - np.log(n_particles)
        z = _resample(resample, z, log_w)
        beta = after
        z, step, rhat = _move(activation, density, z, move, beta, step, LAST_MOVES if beta == 1 else MOVES)
    z = z.reshape(-1, z.shape[-1])
    gauss = -0.5 * jnp.sum(z * z, axis=-1) - 0.5 * z.shape[-1] * jnp.log(2 * jnp.pi)
    log_density = gauss + _tilts(activation, density, z) - jnp.repeat(log_normalizer, n_particles)
    return make_nodes(np.asarray(z), np.asarray(-log_density) - np.log(len(z)), "fixed", n_batches), float(rhat)


@eqx.filter_jit
def _tilts(activation: Activation, density: Density, z: Array) -> Array:
    phi = activation.function(z @ density.factor.T)
    return jnp.sum(phi * (phi @ density.conjugate), axis=-1)


def _next_beta(gain: np.ndarray, beta: float) -> float:
    """The largest β at which the weights keep their share, by bisection."""

    def share(after: float) -> float:
        log_w = (after - beta) * gain.ravel()
        w = np.exp(log_w - log_w.max())
        return w.sum() ** 2 / (w * w).sum() / w.size

    if share(1.0) >= SHARE:
        return 1.0
    low, high = beta, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if share(middle) >= SHARE else (low, middle)
    return max(low, beta + 1e-6)


@jax.jit
def _resample(key: Array, z: Array, log_w: Array) -> Array:
    """Systematic resampling within each batch."""

    def one(key, z, log_w):
        edges = jnp.cumsum(jax.nn.softmax(log_w))
        n = len(log_w)
        at = (jnp.arange(n) + jax.random.uniform(key)) / n
        return z[jnp.clip(jnp.searchsorted(edges, at), 0, n - 1)]

    return jax.vmap(one)(jax.random.split(key, len(z)), z, log_w)


@eqx.filter_jit
def _move(activation: Activation, density: Density, z: Array, key: Array, beta, step, n_moves: int):
    """Hamiltonian moves of all particles; returns them with the adapted step and the nested R̂, the largest of
    √(1 + variance of the batches' means / variance within)."""
    flat = z.reshape(-1, z.shape[-1])
    spread = jnp.linalg.cholesky(flat.T @ flat / len(flat) + 1e-6 * jnp.eye(z.shape[-1], dtype=z.dtype))

    def log_density(y):
        x = y @ spread.T
        return -0.5 * jnp.sum(x * x, axis=-1) + beta * _tilts(activation, density, x)

    slope = jax.grad(lambda y: jnp.sum(log_density(y)))

    def leap(carry, _):
        y, p, size = carry
        p = p + 0.5 * size * slope(y)
        y = y + size * p
        return (y, p + 0.5 * size * slope(y), size), None

    def move(carry, key):
        y, size = carry
        kick, jitter, accept = jax.random.split(key, 3)
        p = jax.random.normal(kick, y.shape, y.dtype)
        length = size * jax.random.uniform(jitter, (len(y), 1), y.dtype, 0.5, 1.5)
        (new, q, _), _ = jax.lax.scan(leap, (y, p, length), None, length=LEAPS)
        log_ratio = log_density(new) - log_density(y) - 0.5 * jnp.sum(q * q - p * p, axis=-1)
        ratio = jnp.where(jnp.isnan(log_ratio), 0.0, jnp.exp(jnp.minimum(log_ratio, 0)))
        y = jnp.where((jax.random.uniform(accept, ratio.shape, y.dtype) < ratio)[:, None], new, y)
        return (y, size * jnp.exp(0.5 * (jnp.mean(ratio) - ACCEPT))), None

    start = jax.scipy.linalg.solve_triangular(spread, flat.T, lower=True).T
    (y, step), _ = jax.lax.scan(move, (start, jnp.asarray(step, z.dtype)), jax.random.split(key, n_moves))
    z = (y @ spread.T).reshape(z.shape)
    values = jnp.concatenate([z**2, _tilts(activation, density, z)[..., None]], -1)
    within = jnp.mean(jnp.var(values, axis=1), axis=0)
    between = jnp.var(jnp.mean(values, axis=1), axis=0, ddof=1)
    return z, step, jnp.max(jnp.sqrt(1 + between / jnp.where(within > 0, within, 1)))
