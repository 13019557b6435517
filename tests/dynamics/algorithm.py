"""Algorithm 1 of Bordelon & Pehlevan (2022), plainly: whole paths, Jacobians by automatic differentiation, damped iteration.

Corrected: 1/γ0 in line 12, and the equal-time part of B. Shares nothing with the library.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


def _path(phi, gamma, T, u, r, toward_h, toward_z):
    """One site's φ(h) and g from its Gaussians (T·P,); ``toward_h``, ``toward_z`` are the memory matrices."""
    P = len(u) // T
    slope = jax.grad(phi)
    rows = lambda t: slice(t * P, (t + 1) * P)  # noqa: E731
    feature, g = jnp.zeros_like(u), jnp.zeros_like(u)
    for t in range(T):
        h = u[rows(t)] + gamma * toward_h[rows(t)] @ g
        feature = feature.at[rows(t)].set(phi(h))
        z = r[rows(t)] + gamma * toward_z[rows(t)] @ feature
        g = g.at[rows(t)].set(jax.vmap(slope)(h) * z)
    return feature, g


@partial(jax.jit, static_argnames=("phi", "T"))
def _average(phi, gamma, T, white_u, white_r, cov_u, cov_r, toward_h, toward_z):
    """Φ, G and the mean Jacobians ∂φ/∂r, ∂g/∂u over paths with the given covariances."""
    root = lambda C: (lambda e, V: (V * jnp.sqrt(jnp.maximum(e, 0.0))[None]) @ V.T)(*jnp.linalg.eigh(C))  # noqa: E731
    u, r = white_u @ root(cov_u).T, white_r @ root(cov_r).T
    site = lambda u, r: _path(phi, gamma, T, u, r, toward_h, toward_z)  # noqa: E731
    feature, g = jax.vmap(site)(u, r)
    (_, by_r), (by_u, _) = jax.vmap(jax.jacfwd(site, argnums=(0, 1)))(u, r)
    return feature.T @ feature / len(u), g.T @ g / len(u), by_r.mean(axis=0), by_u.mean(axis=0)


def solve(phi, depth, kernel, y, *, richness, rate, steps, paths, seed, sweeps=30, damping=0.7, equal_time=True,
          responses=False):  # fmt: skip
    """Predictions (row, sample) and the Φ of every layer (layer, row, sample, row, sample), and the last change.

    ``responses`` adds A and B of the layers 0 to ``depth`` in the same layout.
    """
    T, P = steps + 1, len(y)
    n, step = T * P, np.repeat(np.arange(T), P)
    strict, causal = step[:, None] > step[None, :], step[:, None] >= step[None, :]
    rng = np.random.default_rng(seed)
    white = rng.standard_normal((depth, 2, paths, n))
    kernel = np.tile(kernel, (T, T))
    feature, G = [kernel] * (depth + 1), [np.ones((n, n))] * (depth + 2)
    A, B = [np.zeros((n, n))] * (depth + 1), [np.zeros((n, n))] * (depth + 1)
    f = np.zeros(n)
    change = np.inf
    for _ in range(sweeps):
        before, delta = f, np.tile(y, T) - f
        learn = rate * strict * delta
        for l in range(1, depth + 1):
            toward_h, toward_z = strict * A[l - 1] + learn * feature[l - 1], B[l] + learn * G[l + 1]
            found = _average(
                phi, richness, T, *white[l - 1], feature[l - 1], G[l + 1], toward_h, toward_z
            )  # line 12 divides by γ0
            new = (*found[:2], found[2] / richness * strict, found[3] / richness * (causal if equal_time else strict))
            mix = lambda old, to: (1 - damping) * old + damping * np.asarray(to)  # noqa: E731
            feature[l], G[l], A[l], B[l - 1] = (
                mix(*v) for v in zip((feature[l], G[l], A[l], B[l - 1]), new, strict=True)
            )
        f = (learn * feature[depth] + A[depth]).sum(axis=1)
        change = np.abs(f - before).max()
    shown = lambda matrices: np.stack([C.reshape(T, P, T, P) for C in matrices])  # noqa: E731
    found = f.reshape(T, P), shown(feature[1:]), change
    return (*found, shown(A), shown(B)) if responses else found
