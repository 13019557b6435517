"""Algorithm 1 of Bordelon & Pehlevan (2022) with Jacobians, plainly but without waste: NumPy, whole arrays over paths.

As corrected on the theory page (1/γ0 in line 12, the equal-time part of B). Shares nothing with the library. Causality is
used: no product with what is known to vanish. Sweeps use the same noises, so that they converge.
"""

import numpy as np


def tanh(h: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """φ, φ', φ''."""
    f = np.tanh(h)
    return f, 1 - f**2, -2 * f * (1 - f**2)


def sites(gamma: float, n_samples: int, u: np.ndarray, r: np.ndarray, C: np.ndarray, D: np.ndarray):
    """φ(h) and g (n, S) of paths with the Gaussians u, r (n, S), and the mean Jacobians ∂φ/∂r, ∂g/∂u (n, n).

    Tangents are (source, row, S), the sources u and r of a step side by side: products stay contiguous.
    """
    (n, S), P = u.shape, n_samples
    feature, g = np.zeros((n, S)), np.zeros((n, S))
    d_feature, d_g = np.zeros((2 * n, n, S)), np.zeros((2 * n, n, S))
    samples = np.arange(P)
    for start in range(0, n, P):
        now, past, upto, sources = (
            slice(start, start + P),
            slice(0, start),
            slice(0, start + P),
            slice(0, 2 * start + 2 * P),
        )
        h, z = u[now] + gamma * C[now, past] @ g[past], r[now]
        dh = gamma * (C[now, past] @ d_g[sources, past])
        dh[2 * start + samples, samples] += 1
        phi, slope, bend = tanh(h)
        feature[now], d_feature[sources, now] = phi, slope * dh
        z = z + gamma * D[now, upto] @ feature[upto]
        dz = gamma * (D[now, upto] @ d_feature[sources, upto])
        dz[2 * start + P + samples, samples] += 1
        g[now], d_g[sources, now] = slope * z, bend * z * dh + slope * dz
    split = lambda tangent: tangent.mean(axis=2).reshape(n // P, 2, P, n)  # noqa: E731
    return feature, g, split(d_feature)[:, 1].reshape(n, n).T, split(d_g)[:, 0].reshape(n, n).T


def root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def solve(
    depth: int, kernel: np.ndarray, y: np.ndarray, *, richness: float, rate: float, steps: int, paths: int, seed: int,
    damping: float = 0.5, tolerance: float = 3e-4, max_sweeps: int = 60,
) -> tuple[np.ndarray, int]:  # fmt: skip
    """Predictions (row, sample) and the number of sweeps until none changes by more than ``tolerance``."""
    T, P = steps + 1, len(y)
    n, step = T * P, np.repeat(np.arange(T), P)
    strict, causal = step[:, None] > step[None, :], step[:, None] >= step[None, :]
    white = np.random.default_rng(seed).standard_normal((depth, 2, n, paths))
    phi, G = [np.tile(kernel, (T, T))] * (depth + 1), [np.ones((n, n))] * (depth + 2)
    A, B = [np.zeros((n, n))] * (depth + 1), [np.zeros((n, n))] * (depth + 1)
    f = np.zeros(n)
    mix = lambda old, new: damping * old + (1 - damping) * new  # noqa: E731
    for sweep in range(1, max_sweeps + 1):
        learn = rate * strict * (np.tile(y, T) - f)
        for l in range(1, depth + 1):
            u, r = root(phi[l - 1]) @ white[l - 1, 0], root(G[l + 1]) @ white[l - 1, 1]
            C, D = strict * A[l - 1] + learn * phi[l - 1], B[l] + learn * G[l + 1]
            feature, g, by_r, by_u = sites(richness, P, u, r, C, D)
            phi[l], G[l] = mix(phi[l], feature @ feature.T / paths), mix(G[l], g @ g.T / paths)
            A[l], B[l - 1] = mix(A[l], by_r / richness * strict), mix(B[l - 1], by_u / richness * causal)
        new = (learn * phi[depth] + A[depth]).sum(axis=1)
        change, f = np.abs(new - f).max(), new
        if change <= tolerance:
            return f.reshape(T, P), sweep
    raise RuntimeError(f"Algorithm 1 has not converged: it still changes by {change:.1e}")
