"""Responses of nonlinear networks by brute force: Jacobians of the single-site equations on given paths.

Eqs. (dynamics.3) to (dynamics.8), with whole (state, step, sample) matrices: paths h and z are those of a march,
whose kernels Φ, G and errors Δ are averaged here; Jacobians are taken path by path by automatic differentiation
and put back into the equations until they no longer change. Shares nothing with the library.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tests.dynamics.oracle import Question, memory_kernel


def responses(phi, network, task, h, z, *, richness, rate, steps, weight_decay=0.0, equal_time=True):
    """A and B (channel, state, state_, step, step_, sample, sample_) of paths h (step, state, sample, path) and
    z (step, channel, state, sample, path); without ``equal_time`` B(t, t) does not act back on the fields.
    """
    q = Question(network, task)
    rates = np.append(np.full(steps, float(rate)), 0.0)
    kappa, kept = memory_kernel(rates, weight_decay)
    feature = np.asarray(phi(jnp.asarray(h)))
    g = np.asarray(jax.jvp(phi, (jnp.asarray(h),), (jnp.ones(h.shape),))[1])[:, None] * z
    delta = _errors(q, richness, rates, weight_decay, feature, z)
    C0, D0 = _learnt(q, kappa, feature, g, delta)
    sources = kept[:, None, None] * np.array([[k <= c for k in range(q.K)] for c, _ in q.channels])
    paths = jnp.asarray(np.moveaxis(h, -1, 0)), jnp.asarray(np.moveaxis(z, -1, 0))
    A, B, change = np.zeros((*h.shape[:-1], *z.shape[:-1])), np.zeros((*z.shape[:-1], *h.shape[:-1])), np.inf
    for _ in range(200):
        C, D = C0 + _through(q, kept, A, 0), D0 + _through(q, kept, B if equal_time else _before(B), 1)
        new = [np.asarray(J) / richness for J in _jacobians(phi, richness, kept, sources, C, D, *paths)]
        new[1] = _one_above(q.K, new[1])
        change = max(np.abs(new[0] - A).max(), np.abs(new[1] - B).max())
        A, B = new
        if change < 1e-13:
            return A.transpose(4, 1, 5, 0, 3, 2, 6), B.transpose(1, 2, 5, 0, 4, 3, 6)
    raise AssertionError(f"Jacobians still change by {change}")


def _errors(q, gamma, rates, decay, feature, z):
    """Δ (channel, step, sample) from how the readout moved: v(t+1) − (1−ηλ)v(t) = γ0 v η Σ Δφ on every path."""
    T, P, last = len(rates), q.P, q.states[-1]
    delta = np.zeros((len(q.channels), T, P))
    for t in range(T - 1):
        seen = feature[t, q.states].reshape(-1, feature.shape[-1])
        for o in range(q.n_out):
            v = z[:, q.channels.index((last, o)), last, 0]
            moved = (v[t + 1] - (1 - rates[t] * decay) * v[t]) / (gamma * q.v * rates[t])
            found, *_ = np.linalg.lstsq(seen.T, moved, rcond=None)
            assert np.abs(found @ seen - moved).max() < 1e-9 * np.abs(moved).max()
            for c, row in zip(q.states, found.reshape(len(q.states), P), strict=True):
                delta[q.channels.index((c, o)), t] = row
    return delta


def _learnt(q, kappa, feature, g, delta):
    """What updates have written into C (t, k, μ, s, c, l, α) and D (t, c, k, μ, s, l, α)."""
    n = feature.shape[-1]
    below, above = np.zeros_like(feature), np.zeros_like(g)
    below[:, 1:], above[:, :, :-1] = feature[:, :-1], g[:, :, 1:]
    up = np.zeros_like(q.mask)
    up[:-1, :-1] = q.mask[1:, 1:]
    Phi = np.einsum("tkmi,slai,kl->tkmsla", below, below, q.mask) / n + q.X[None, :, :, None]
    C = np.einsum("tkmsla,ts,csa->tkmscla", Phi, kappa, delta)
    D = np.einsum("tckmi,sdlai,kl,ts,dsa->tckmsla", above, above, up, kappa, delta, optimize=True) / n
    for i, (c, o) in enumerate(q.channels):
        for j, (l, p) in enumerate(q.channels):
            if o == p:
                D[:, i, c, :, :, l] += q.v * (kappa[:, :, None] * delta[j])[:, None]
    return C, D


def _through(q, kept, response, first):
    """W0 between a response and the field that it drives: A of the states below, B of the pair of states itself."""
    found = np.zeros_like(response)
    if first == 0:
        found[:, 1:, :, :, :, 1:] = response[:, :-1, :, :, :, :-1] * q.mask[1:, None, None, None, 1:, None]
    else:
        found[:, :, :-1, :, :, :-1] = response[:, :, :-1, :, :, :-1] * q.mask[1:, None, None, 1:, None]
    return found * kept.reshape(-1, *[1] * (response.ndim - 1))


def _one_above(K, by_u):
    """B^{k;l} is the Jacobian of g^{k+1} by u^{l+1}."""
    B = np.zeros_like(by_u)
    if K > 1:
        B[:, :, :-1, :, :, :-1] = by_u[:, :, 1:, :, :, 1:]
    return B


def _before(B):
    """B(t, s) with s < t alone."""
    B = B.copy()
    for t in range(len(B)):
        B[t, :, :, :, t] = 0
    return B


@partial(jax.jit, static_argnames="phi")
def _jacobians(phi, gamma, kept, sources, C, D, h, z):
    """Means over paths of ∂φ/∂r and ∂g/∂u at the Gaussians that make h and z; states above a readout have no r."""

    def one(h, z):
        slope = lambda h: jax.jvp(phi, (h,), (jnp.ones_like(h),))[1]  # noqa: E731
        feature, g = phi(h), slope(h)[:, None] * z
        u, r = h - gamma * jnp.tensordot(C, g, 4), z - gamma * jnp.tensordot(D, feature, 3)

        def site(du, dr):
            feature, g = jnp.zeros_like(h), jnp.zeros_like(z)
            for t in range(len(h)):
                now = u[t] + kept[t] * du[t] + gamma * jnp.tensordot(C[t], g, 4)
                feature = feature.at[t].set(phi(now))
                back = r[t] + sources[t][..., None] * dr[t] + gamma * jnp.tensordot(D[t], feature, 3)
                g = g.at[t].set(slope(now)[None] * back)
            return feature, g

        (_, by_r), (by_u, _) = jax.jacfwd(site, argnums=(0, 1))(jnp.zeros_like(h), jnp.zeros_like(z))
        return by_r, by_u

    return [J.mean(axis=0) for J in jax.vmap(one)(h, z)]
