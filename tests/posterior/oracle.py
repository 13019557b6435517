"""The free energy of linear networks once more, in plain NumPy loops and with SciPy's optimizer: shares no code.

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


def quartic_sign(kappa, amplitude="1e-4", digits=50):
    """(F(a) − F(0))/a⁴ at the instability of T = 5 with H12 = a held and all else relaxed, in high precision.

    Zero at the tricritical temperature. Newton's method with differences, unit variances and unit input.
    """
    import mpmath as mp

    with mp.workdps(digits):
        kappa, s = mp.mpf(kappa), mp.mpf(3) / 2
        strength = (s - 1) * (s**4 + kappa) ** 2 / s**4
        free = [(0, 0), (1, 1), (2, 2), (3, 3), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3)]

        def F(x, a):
            H = mp.zeros(4)
            for (i, j), value in zip([(0, 1), *free], [a, *x], strict=True):
                H[i, j] = H[j, i] = value
            K = mp.eye(4)
            K[1:4, 1:4] = H[0:3, 0:3]
            label = strength / (H[3, 3] + kappa)
            inverse = K**-1
            trace = sum(H[i, j] * inverse[j, i] for i in range(4) for j in range(4))
            return (label + trace - mp.log(mp.det(H)) + mp.log(mp.det(K))) / 2

        def relaxed(a):
            mode = [a / s ** mp.mpf("1.5") * (i + 1) * s ** (i + mp.mpf("1.5")) for i in range(3)]
            x = [s, s**2, s**3, s**4, mode[1], mode[2], mp.mpf(0), mp.mpf(0), mp.mpf(0)]
            h, n = mp.mpf(10) ** (-digits // 5), len(x)

            def at(*shifts):
                y = list(x)
                for i, sign in shifts:
                    y[i] += sign * h
                return F(y, a)

            for _ in range(8):
                middle = at()
                up, down = [at((i, 1)) for i in range(n)], [at((i, -1)) for i in range(n)]
                gradient = mp.matrix([(u - d) / (2 * h) for u, d in zip(up, down, strict=True)])
                hessian = mp.zeros(n)
                for i in range(n):
                    hessian[i, i] = (up[i] + down[i] - 2 * middle) / h**2
                    for j in range(i):
                        both = at((i, 1), (j, 1)) + at((i, -1), (j, -1))
                        hessian[i, j] = (both - up[i] - down[i] - up[j] - down[j] + 2 * middle) / (2 * h**2)
                        hessian[j, i] = hessian[i, j]
                step = mp.lu_solve(hessian, -gradient)
                x = [value + step[i] for i, value in enumerate(x)]
            return F(x, a)

        a = mp.mpf(amplitude)
        return float((relaxed(a) - relaxed(mp.mpf(0))) / a**4)


def eigenvalues(spectrum):
    """The complex eigenvalues of a `weight_outliers` solution."""
    return spectrum.eigenvalue_real.values + 1j * spectrum.eigenvalue_imag.values


def incoherent_curve(T, kappa):
    """λ(s) of the incoherent branch up to where adjacent states become unstable: the largest λ, its s, and that end."""
    end = (T - 2) / (T - 3)
    curve = lambda s: (s - 1) * (s ** (T - 1) + kappa) ** 2 / s ** (T - 1)  # noqa: E731
    s = np.linspace(1, end, 20001)
    i = int(np.argmax(curve(s)))
    if i == len(s) - 1:
        return curve(end), end, end
    found = scipy.optimize.minimize_scalar(lambda s: -curve(s), bounds=(s[i - 1], s[i + 1]), options={"xatol": 1e-12})
    return (curve(found.x), found.x, end) if curve(found.x) > curve(end) else (curve(end), end, end)


def coherent_kernel(s):
    """The coherent kernel at T = 4, unit variances and input."""
    a, b = np.sqrt(2 * s * (s - 1) * (s - 2)), 2 * s * (s - 1)
    H = np.array([[s, a, 0], [a, b, 2 * s * a], [0, 2 * s * a, 4 * s * (s - 1) ** 2]])
    H[0, 2] = H[2, 0] = a * H[1, 2] / b
    return H


def coherent_spinodal(kappa):
    """The smallest λ of the coherent branch at T = 4 beyond the tricritical point, and its s."""
    curve = lambda s: (4 * s * (s - 1) ** 2 + kappa) ** 2 / (4 * s * (s - 1))  # noqa: E731
    found = scipy.optimize.minimize_scalar(lambda t: curve(2 + np.exp(t)), bounds=(-10, 20), options={"xatol": 1e-10})
    return curve(2 + np.exp(found.x)), 2 + np.exp(found.x)
