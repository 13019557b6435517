"""One finite network of width N with explicit weights, trained by `jax.grad`. Shares nothing with the library."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Weights(NamedTuple):
    """W (matrix, N, N), U (input direction, N), v (N,), all of unit variance at the start."""

    W: jax.Array
    U: jax.Array
    v: jax.Array


class Setting(NamedTuple):
    """``inputs`` (state, sample, direction) with inner products X; ``labels`` (readout, sample)."""

    inputs: jax.Array
    labels: jax.Array
    richness: float
    decay: float = 0.0


@partial(jax.jit, static_argnames=("phi", "matrices"))
def features(phi, matrices, setting, weights):
    """φ (state, sample, N); ``matrices`` says which weight matrix leads into state 1, 2, …"""
    rows = []
    for k, x in enumerate(setting.inputs):
        h = x @ weights.U
        if k:
            h = h + rows[-1] @ weights.W[matrices[k - 1]].T / jnp.sqrt(len(weights.v))
        rows.append(phi(h))
    return jnp.stack(rows)


def outputs(phi, matrices, setting, weights):
    """f (state, sample)."""
    return features(phi, matrices, setting, weights) @ weights.v / (setting.richness * len(weights.v))


@partial(jax.jit, static_argnames=("phi", "matrices", "readouts"))
def update(phi, matrices, readouts, setting, weights, rate):
    """One step of descent at the raw rate η γ0² N on ½Σ(f − y)²; also f before it."""

    def loss(weights):
        f = outputs(phi, matrices, setting, weights)
        return 0.5 * jnp.sum((f[jnp.asarray(readouts)] - setting.labels) ** 2), f

    slope, f = jax.grad(loss, has_aux=True)(weights)
    raw = rate * setting.richness**2 * len(weights.v)
    keep = 1 - rate * setting.decay
    return jax.tree.map(lambda w, s: keep * w - raw * s, weights, slope), f
