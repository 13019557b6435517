"""The nonlinear saddle point by SciPy's adaptive integration and root finder; shares no code with the library."""

import numpy as np
from scipy import integrate, optimize


def moments_1d(phi, k, pull):
    """<φ²>, <h²>, ln Z of exp(−h²/2k + pull·φ²), by adaptive quadrature split at zero."""
    top = 36 * np.sqrt(k)

    def integral(f):
        exponent = lambda h: -h * h / (2 * k) + pull * phi(h) ** 2  # noqa: E731
        density = lambda h: f(h) * np.exp(exponent(h)) / np.sqrt(2 * np.pi * k)  # noqa: E731
        return sum(integrate.quad(density, a, b, limit=400, epsabs=1e-13)[0] for a, b in ((-top, 0), (0, top)))

    Z = integral(lambda h: 1.0)
    return integral(lambda h: phi(h) ** 2) / Z, integral(lambda h: h * h) / Z, np.log(Z)


def depth_one(phi, k, y, v, kappa, bracket=(0.5, 20.0)):
    """Φ, C and F of a network of one state: Φ̃ = (v/2) y²/(vΦ + κ)²."""
    pull = lambda f: 0.5 * v * y**2 / (v * f + kappa) ** 2  # noqa: E731
    f = optimize.brentq(lambda f: moments_1d(phi, k, pull(f))[0] - f, *bracket, xtol=1e-13)
    feature, hidden, log_z = moments_1d(phi, k, pull(f))
    return feature, hidden, 0.5 * y**2 / (v * f + kappa) + pull(f) * f - log_z


def depth_two(phi, k, w, y, v, kappa, start, n=1601, reach=14.0):
    """(Φ11, Φ12, Φ22, C22) of an RNN of two states, input at the first, label at the second; plain Simpson sums.

    K = diag(k, wΦ11); Φ̃22 = (v/2)(y/(vΦ22 + κ))², Φ̃11 = (w/2)(C22 − K22)/K22².
    """
    h = np.linspace(-reach, reach, n)
    x, z = np.meshgrid(h, h, indexing="ij")
    weight = np.outer(*[integrate.simpson(np.eye(n), x=h, axis=1)] * 2)

    def image(state):
        f11, _, f22, c22 = state
        K22 = w * f11
        p22, p11 = 0.5 * v * (y / (v * f22 + kappa)) ** 2, 0.5 * w * (c22 - K22) / K22**2
        log_p = -x * x / (2 * k) - z * z / (2 * K22) + p11 * phi(x) ** 2 + p22 * phi(z) ** 2
        p = weight * np.exp(log_p - log_p.max())
        p /= p.sum()
        return np.array(
            [(p * phi(x) ** 2).sum(), (p * phi(x) * phi(z)).sum(), (p * phi(z) ** 2).sum(), (p * z * z).sum()]
        )

    solution = optimize.root(lambda s: image(s) - s, start, tol=1e-12)
    assert solution.success or np.abs(image(solution.x) - solution.x).max() < 1e-9, solution
    return solution.x
