"""The recursion once more, entry by entry in plain loops and with quadrature of its own: shares no code with widefield."""

import numpy as np
from scipy.special import erf

FUNCTIONS = {
    "relu": (lambda x: np.maximum(x, 0.0), lambda x: (x > 0).astype(float)),
    "erf": (erf, lambda x: 2 / np.sqrt(np.pi) * np.exp(-(x**2))),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "quadratic": (np.square, lambda x: 2 * x),
}


def pair_average(f, q, p, c):
    """<f(a) f(b)> in polar coordinates: the half-lines a = 0 and b = 0, where relu is not smooth, are panel edges."""
    if q <= 0 or p <= 0:
        return float(f(np.zeros(1))[0]) ** 2
    rho = np.clip(c / np.sqrt(q * p), -1, 1)
    tau = np.sqrt(max(0.0, 1 - rho**2))
    kinks = [np.pi / 2, 3 * np.pi / 2, *(np.mod(np.arctan2(-rho, tau) + k * np.pi, 2 * np.pi) for k in (0, 1))]
    edges = np.unique(np.concatenate([np.linspace(0, 2 * np.pi, 9), kinks]))
    x, w = np.polynomial.legendre.leggauss(20)
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    angle, weight = (middle[:, None] + half[:, None] * x).ravel(), (half[:, None] * w).ravel()
    x, w = np.polynomial.legendre.leggauss(24)
    radii = np.linspace(0, 10, 17)
    half, middle = np.diff(radii) / 2, (radii[1:] + radii[:-1]) / 2
    r, wr = (middle[:, None] + half[:, None] * x).ravel(), (half[:, None] * w).ravel()
    a = np.sqrt(q) * r[:, None] * np.cos(angle)
    b = np.sqrt(p) * r[:, None] * (rho * np.cos(angle) + tau * np.sin(angle))
    return float(np.sum((wr * r * np.exp(-(r**2) / 2))[:, None] * weight * f(a) * f(b)) / (2 * np.pi))


def covariances(net, x):
    """C and <φφ> over (state, state_, sample, sample_), straight from the equation."""
    depth, n = net.depth, len(x)
    x = x[:, None] if x.ndim == 2 else x
    f, g = FUNCTIONS[net.activation.name]
    shape = (depth, depth, n, n)
    C, F, G, theta, tangent = (np.zeros(shape) for _ in range(5))
    tied = {name: getattr(net, name) == "tied" for name in ("weights", "biases", "inputs")}

    def mask(name, a, b):
        return 1.0 if tied[name] or a == b else 0.0

    w = [0.0, *net.weight_variances]
    for total in range(2 * depth - 1):
        for a in range(depth):
            b = total - a
            if not 0 <= b < depth:
                continue
            for i in range(n):
                for j in range(n):
                    C[a, b, i, j] = mask("biases", a, b) * net.bias_variances[a]
                    if a < x.shape[1] and b < x.shape[1]:
                        C[a, b, i, j] += (
                            mask("inputs", a, b) * net.input_variances[a] * (x[i, a] @ x[j, b]) / x.shape[-1]
                        )
                    theta[a, b, i, j] = C[a, b, i, j]
                    if a and b:
                        m = mask("weights", a, b) * w[a]
                        C[a, b, i, j] += m * F[a - 1, b - 1, i, j]
                        theta[a, b, i, j] = C[a, b, i, j] + m * G[a - 1, b - 1, i, j] * theta[a - 1, b - 1, i, j]
        for a in range(depth):
            b = total - a
            if 0 <= b < depth:
                for i in range(n):
                    for j in range(n):
                        # Variances of later states are not known yet on this anti-diagonal: they are on equal states.
                        q, p = _variance(net, x, a, i), _variance(net, x, b, j)
                        F[a, b, i, j] = pair_average(f, q, p, C[a, b, i, j])
                        G[a, b, i, j] = pair_average(g, q, p, C[a, b, i, j])
                        v = net.readout_variance
                        tangent[a, b, i, j] = (
                            v * F[a, b, i, j] + net.readout_bias_variance + v * G[a, b, i, j] * theta[a, b, i, j]
                        )
    return C, F, tangent


_cache: dict = {}


def _variance(net, x, a, i):
    key = (net, x.tobytes(), a, i)
    if key not in _cache:
        q = net.bias_variances[a] + (
            net.input_variances[a] * (x[i, a] @ x[i, a]) / x.shape[-1] if a < x.shape[1] else 0.0
        )
        if a:
            before = _variance(net, x, a - 1, i)
            q += net.weight_variances[a - 1] * pair_average(FUNCTIONS[net.activation.name][0], before, before, before)
        _cache[key] = q
    return _cache[key]
