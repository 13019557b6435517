r"""Averages of four signs of zero-mean Gaussian nodes, and the erf averages that they make.

.. math::
    \langle s_1s_2s_3s_4\rangle = \frac{4}{\pi^2}\int_0^1\!dt\sum_{i<j}
    \frac{\rho_{ij}}{\sqrt{1-t^2\rho_{ij}^2}}\,\arcsin\rho_{kl|ij}(t)

(Plackett's path: all correlations grow together from 0). Since :math:`\mathrm{erf}(h) = \langle\mathrm{sign}(h+z)\rangle_z`
with :math:`\langle z^2\rangle = 1/2`, erf averages are sign averages of C + ½ on the diagonal, one :math:`z` per factor.
Eqs. (finite_width.32), (finite_width.33).
"""

import math

import numpy as np

from widefield.gaussian.closed import product_error
from widefield.gaussian.rules import legendre

PAIRS = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
OTHERS = ((2, 3), (1, 3), (1, 2), (0, 3), (0, 2), (0, 1))  # the complement of each pair
NODES = (40, 64)
EPS = float(np.finfo(float).eps)
CHUNK = 2048  # quadruples at a time


def minor(a, b, c, d):
    """ab − cd with the rounding of both products compensated (Dekker)."""
    first, second = a * b, c * d
    return (first - second) + (product_error(a, b, first) - product_error(c, d, second))


def correlations(S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Correlations of the six pairs and 1 − ρ² to full relative accuracy, both (batch, 6); zero variances give ρ = 0."""
    i, j = np.transpose(PAIRS)
    q, p, c = S[:, i, i], S[:, j, j], S[:, i, j]
    size = q * p
    safe = np.where(size > 0, size, 1.0)
    gap = np.clip(minor(q, p, c, c) / safe, 0.0, 1.0)
    rho = np.clip(c / np.sqrt(safe), -1.0, 1.0)
    return np.where(size > 0, rho, 0.0), np.where(size > 0, gap, 1.0)


def _conditional_angle(r: np.ndarray, gap: np.ndarray, n: int) -> np.ndarray:
    """arcsin ρ_kl|ij of pair number n; ``r`` and ``gap`` have the six pairs on their last axis."""
    number = {pair: m for m, pair in enumerate(PAIRS)}
    at = lambda a, b: r[..., number[min(a, b), max(a, b)]]  # noqa: E731
    (i, j), (k, l) = PAIRS[n], OTHERS[n]
    rij, rest = r[..., n], gap[..., n]
    explained = at(k, i) * at(l, i) + at(k, j) * at(l, j) - rij * (at(k, i) * at(l, j) + at(k, j) * at(l, i))
    left = [np.maximum(rest - (at(m, i) ** 2 + at(m, j) ** 2 - 2 * rij * at(m, i) * at(m, j)), 0.0) for m in (k, l)]
    size = np.sqrt(left[0] * left[1])
    sine = (at(k, l) * rest - explained) / np.where(size > 0, size, 1.0)
    return np.where(size > 0, np.arcsin(np.clip(sine, -1.0, 1.0)), 0.0)


def _path(rho: np.ndarray, gap: np.ndarray, n_nodes: int) -> np.ndarray:
    """The path integral with nodes clustered at its end, t = 1 − (1 − s)^8."""
    x, w = legendre(n_nodes)
    s = 0.5 * (1 - x)  # distance from the end
    left, weight = s**8, 4 * w * s**7
    r = (1 - left)[:, None] * rho[:, None, :]
    gaps = gap[:, None, :] + (left * (2 - left))[:, None] * rho[:, None, :] ** 2
    total = np.zeros(r.shape[:2])
    for n in range(6):
        total += rho[:, n, None] / np.sqrt(gaps[..., n]) * _conditional_angle(r, gaps, n)
    return 4 / math.pi**2 * total @ weight


def sign_average(S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and error estimates of <s1 s2 s3 s4> for covariances (batch, 4, 4).

    Two equal or opposite nodes leave the average of the other two signs. A node of zero variance gives 0.
    Error: the difference between 40 and 64 nodes, and roundings.
    """
    value, error = np.zeros(len(S)), np.zeros(len(S))
    for start in range(0, len(S), CHUNK):
        part = slice(start, start + CHUNK)
        rho, gap = correlations(S[part])
        coarse, fine = (_path(rho, np.where(gap > 0, gap, 1e-300), n) for n in NODES)
        value[part], error[part] = fine, np.abs(fine - coarse) + 32 * EPS
        for n, (k, l) in enumerate(OTHERS):
            m = PAIRS.index((k, l))
            bound = gap[:, n] == 0
            pair = np.sign(rho[:, n]) * 2 / math.pi * np.arctan2(rho[:, m], np.sqrt(gap[:, m]))
            value[part] = np.where(bound, pair, value[part])
            error[part] = np.where(bound, 8 * EPS, error[part])
    dead = (np.einsum("bii->bi", S) == 0).any(axis=1)
    return np.where(dead, 0.0, np.clip(value, -1.0, 1.0)), np.where(dead, 0.0, error)


def erf_moment(C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """<erf erf erf erf> with error estimates."""
    return sign_average(C + 0.5 * np.eye(4))


def erf_gradient(C: np.ndarray) -> np.ndarray:
    r"""<∂_e∂_f(erf erf erf erf)>: closed off the diagonal, and on it by scale invariance, Σ_f S_ef G_ef = 0."""
    S = C + 0.5 * np.eye(4)
    rho, gap = correlations(S)
    G = np.zeros_like(S)
    for n, (i, j) in enumerate(PAIRS):
        delta = np.sqrt(gap[:, n] * S[:, i, i] * S[:, j, j])
        G[:, i, j] = G[:, j, i] = 4 / math.pi**2 * _conditional_angle(rho, gap, n) / delta
    G[:, range(4), range(4)] = -np.einsum("bef,bef->be", S, G) / np.einsum("bee->be", S)
    return G
