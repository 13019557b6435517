"""The free energy of linear networks once more, in plain NumPy loops and with SciPy's optimiser: shares no code.

Also the closed forms for one sample, an input at the first state and a label at the last (T = depth + 1).
"""

import numpy as np
import scipy.optimize


def covariance(net, x, H):
    """K(H) over (state, sample), entry by entry; H may be of the training nodes alone."""
    depth, n = net.depth, len(x)
    x = x[:, None] if x.ndim == 2 else x
    K = np.zeros((depth, n, depth, n))
    for a in range(depth):
        for b in range(depth):
            if (net.inputs == "tied" or a == b) and max(a, b) < x.shape[1]:
                K[a, :, b] += net.input_variances[a] * x[:, a] @ x[:, b].T / x.shape[-1]
            if a and b and (net.weights == "tied" or a == b):
                K[a, :, b] += net.weight_variances[a - 1] * H.reshape(K.shape)[a - 1, :, b - 1]
    return K.reshape(depth * n, depth * n)


def random_kernel(net, x):
    H = np.zeros((net.depth * len(x),) * 2)
    for _ in range(net.depth):
        H = covariance(net, x, H)
    return H


def free_energy(net, task, kappa, H, inside):
    """F(H) − rank/2 on the range spanned by the columns of ``inside``."""
    states = task.supervised_states(net.depth)
    S = np.concatenate([s * task.n_samples + np.arange(task.n_samples) for s in states])
    y = np.moveaxis(task.labels(), 1, 0).reshape(len(S), -1)
    noisy = net.readout_variance * H[np.ix_(S, S)] + kappa * np.eye(len(S))
    small, K = inside.T @ H @ inside, inside.T @ covariance(net, task.x, H) @ inside
    entropy = np.trace(np.linalg.solve(K, small)) - len(K) - np.linalg.slogdet(small)[1] + np.linalg.slogdet(K)[1]
    return 0.5 * np.sum(y * np.linalg.solve(noisy, y)) + 0.5 * entropy


def minimum(net, task, kappa, starts, seed=0):
    """The lowest minimum found from random starts: free energy and kernel, by BFGS over Cholesky factors."""
    H0 = random_kernel(net, task.x)
    values, vectors = np.linalg.eigh(H0)
    keep = values > 1e-10 * values[-1]
    basis, root = vectors[:, keep], vectors[:, keep] * np.sqrt(values[keep])
    r = root.shape[1]
    rows, columns = np.tril_indices(r)
    rng = np.random.default_rng(seed)

    def kernel(c):
        L = np.zeros((r, r))
        L[rows, columns] = c
        return root @ L @ L.T @ root.T

    best = None
    for k in range(starts):
        c = np.eye(r)[rows, columns] + (0.5 * rng.normal(size=len(rows)) if k else 0)
        found = scipy.optimize.minimize(
            lambda c: free_energy(net, task, kappa, kernel(c), basis), c, method="BFGS", options={"gtol": 1e-7}
        )
        best = found if best is None or found.fun < best.fun else best
    return best.fun, kernel(best.x)


def stretch(strength, kappa, n_states):
    """s of the incoherent branch: s − 1 = λ s^L/(s^L + κ̂)²; the smallest root."""
    grid = np.linspace(1, 1 + strength + 1, 200001)
    off = grid - 1 - strength * grid**n_states / (grid**n_states + kappa) ** 2
    i = int(np.argmax(off > 0))
    f = lambda s: s - 1 - strength * s**n_states / (s**n_states + kappa) ** 2  # noqa: E731
    return scipy.optimize.brentq(f, grid[i - 1], grid[i], xtol=1e-15)


def coherent_stretch(strength, kappa):
    """s > 2 of the coherent branch at T = 4: λ = (4s(s−1)² + κ̂)²/(4s(s−1))."""
    f = lambda s: (4 * s * (s - 1) ** 2 + kappa) ** 2 / (4 * s * (s - 1)) - strength  # noqa: E731
    return scipy.optimize.brentq(f, 2, 2 + strength, xtol=1e-15)


def instability(T, kappa=0.0):
    s = (T - 2) / (T - 3)
    return (s - 1) * (s ** (T - 1) + kappa) ** 2 / s ** (T - 1)
