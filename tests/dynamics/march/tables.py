"""The low-rank march of two hidden layers in plain NumPy, with causal tables or with correlations taken as they come.

Eq. (dynamics.15). Shares nothing with the library.
"""

import numpy as np


class Side:
    """Orthonormal directions of one side of the matrix, the noise and the memory of each, and the frozen table."""

    def __init__(self, paths, rng):
        self.direction, self.noise, self.memory = (np.zeros((0, paths)) for _ in range(3))
        self.table, self.rng = [], rng

    def expand(self, vectors, other, tolerance=1e-7):
        """Coefficients of ``vectors``; a direction that opens draws its noise and freezes what it knows of ``other``."""
        S = vectors.shape[1]
        for vector in vectors:
            rest = vector
            for _ in range(2):
                rest = rest - (self.direction @ rest / S) @ self.direction
            if rest @ rest > tolerance * (vector @ vector):
                self.direction = np.vstack([self.direction, rest / np.sqrt(rest @ rest / S)])
                self.noise = np.vstack([self.noise, self.rng.standard_normal(S)])
                self.memory = np.vstack([self.memory, np.zeros(S)])
                self.table.append(other.noise @ self.direction[-1] / S)
        return vectors @ self.direction.T / S

    def act(self, vectors, coefficients, other, gamma, causal):
        """W or its transpose on ``vectors``: noise, memory and response."""
        known = np.zeros((len(self.direction), len(other.direction)))
        for row, values in zip(known, self.table, strict=True):
            row[: len(values)] = values
        response = coefficients @ known if causal else vectors @ other.noise.T / vectors.shape[1]
        return coefficients @ (self.noise + gamma * self.memory) + response @ other.direction


def solve(phi, slope, kernel, y, *, richness, rate, steps, paths, seed, causal):
    """tr Φ¹, tr G¹ and f at the last row."""
    rng = np.random.default_rng(seed)
    L0 = np.linalg.cholesky(kernel)
    U, v = rng.standard_normal((len(y), paths)), rng.standard_normal(paths)
    forward, backward = Side(paths, rng), Side(paths, rng)
    gamma = richness
    for t in range(steps + 1):
        h1 = L0 @ U
        phi1 = phi(h1)
        up = forward.expand(phi1, backward)
        h2 = forward.act(phi1, up, backward, gamma, causal)
        phi2 = phi(h2)
        if t == 0:  # the readout knows nothing of the first features
            v = v - phi2.T @ np.linalg.lstsq(phi2.T, v, rcond=None)[0]
        f = phi2 @ v / paths / gamma
        g2 = slope(h2) * v
        down = backward.expand(g2, forward)
        g1 = slope(h1) * backward.act(g2, down, forward, gamma, causal)
        delta = (y - f)[:, None]
        U, v = U + rate * gamma * L0.T @ (delta * g1), v + rate * gamma * (delta * phi2).sum(axis=0)
        forward.memory = forward.memory + rate * up.T @ (delta * g2)
        backward.memory = backward.memory + rate * down.T @ (delta * phi1)
    return np.concatenate([[np.sum(phi1**2) / paths, np.sum(g1**2) / paths], f])
