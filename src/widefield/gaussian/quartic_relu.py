r"""Four-node averages of relu by integration by parts, down to orthant probabilities.

With :math:`\theta` the step and :math:`x_+ = x\theta(x)`, Stein's lemma :math:`\langle xg\rangle = \sum_j C_{xj}\langle\partial_jg\rangle`
gives, one after the other,

.. math::
    \langle\theta_a\theta_b c_+\rangle &= \sum_{j=a,b,c} C_{cj}\langle\delta_j\theta\theta\rangle, \\
    \langle\theta_e\theta_f k_+l_+\rangle &= C_{kl}\langle\theta\theta\theta\theta\rangle
        + \sum_{j=e,f,k} C_{kj}\langle\delta_j\theta\theta l_+\rangle, \\
    \langle x_+y_+z_+\rangle &= C_{xy}\langle\theta_x\theta_yz_+\rangle + C_{xz}\langle\theta_x\theta_zy_+\rangle
        + C_{xx}\langle\delta_xy_+z_+\rangle ,

a delta function meaning the other nodes conditioned on that one being zero. The value follows from its own
derivatives, :math:`\langle\varphi\varphi\varphi\varphi\rangle = \tfrac14\sum_{ef}C_{ef}G_{ef}` (degree two in C).
Two nodes may coincide: :math:`\delta\theta = \tfrac12\delta`, and a node of zero variance counts half, agree there.
Three coinciding nodes have formulas of their own; opposite nodes and nodes of zero variance make everything zero.
Eq. (finite_width.34).
"""

import math
from itertools import combinations

import numpy as np

from widefield.gaussian.quartic_sign import EPS, OTHERS, PAIRS, correlations, minor, sign_average

ALMOST = 8 * EPS  # nodes whose difference has less than this share of their variance are the same node
CLOSE = 1e-2  # 1 − ρ² below which the order of conditioning matters


def _given(S: np.ndarray, j: int) -> np.ndarray:
    """Covariance conditioned on node j being zero; row and column j vanish."""
    q = S[:, j, j]
    safe = np.where(q > 0, q, 1.0)[:, None, None]
    product = minor(S, np.broadcast_to(safe, S.shape), S[:, :, j, None], S[:, None, j, :])
    result = np.where(q[:, None, None] > 0, product / safe, S)
    result[:, j] = result[:, :, j] = 0.0
    diagonal = np.einsum("bii->bi", result)
    result[:, range(S.shape[1]), range(S.shape[1])] = np.maximum(diagonal, 0.0)
    return result


def _density(q: np.ndarray) -> np.ndarray:
    """Density at zero of a Gaussian of variance q; zero variance never contributes."""
    return np.where(q > 0, 1 / np.sqrt(2 * math.pi * np.where(q > 0, q, 1.0)), 0.0)


def _angle(S: np.ndarray, a: int, b: int) -> tuple[np.ndarray, np.ndarray]:
    """arcsin ρ_ab and √(C_aa C_bb − C_ab²)."""
    delta = np.sqrt(np.maximum(minor(S[:, a, a], S[:, b, b], S[:, a, b], S[:, a, b]), 0.0))
    return np.arctan2(S[:, a, b], delta), delta


def _quadrant(S: np.ndarray, a: int, b: int) -> np.ndarray:
    """<θ_a θ_b>."""
    return 0.25 + _angle(S, a, b)[0] / (2 * math.pi)


def _pair(S: np.ndarray, a: int, b: int) -> np.ndarray:
    """<a_+ b_+>."""
    angle, delta = _angle(S, a, b)
    return (delta + S[:, a, b] * (0.5 * math.pi + angle)) / (2 * math.pi)


def _given_both(first: np.ndarray, second: np.ndarray, i: int, j: int, gap: np.ndarray) -> np.ndarray:
    """Covariance given nodes i and j from that given i and that given j.

    A node that nearly coincides with one of the others must come first: its conditioning is compensated for roundings.
    """
    rest = [m for m in range(4) if m not in (i, j)]
    nearest = [gap[:, m, rest].min(axis=1) for m in (i, j)]
    result = _given(first, j)
    other = (nearest[1] < nearest[0]) & (nearest[1] < CLOSE)
    if other.any():
        result[other] = _given(second[other], i)
    return result


def _distinct(C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """<∂_e∂_f(++++)> where no three nodes coincide, with the error of the orthant probabilities."""
    rho, gaps = correlations(C)
    signs, error = sign_average(C)
    P = (1 + 2 / math.pi * np.arctan2(rho, np.sqrt(gaps)).sum(axis=1) + signs) / 16  # <θθθθ>
    gap = np.ones_like(C)  # 1 − ρ² of all pairs
    for n, (i, j) in enumerate(PAIRS):
        gap[:, i, j] = gap[:, j, i] = gaps[:, n]
    given = [_given(C, j) for j in range(4)]
    both = {(i, j): _given_both(given[i], given[j], i, j, gap) for i, j in PAIRS}
    quadrant = {pair: _quadrant(both[pair], *rest) for pair, rest in zip(PAIRS, OTHERS, strict=True)}
    density = [_density(C[:, j, j]) for j in range(4)]
    inner = [[_density(S[:, m, m]) for m in range(4)] for S in given]

    def single(j: int, l: int) -> np.ndarray:
        """<θ_a θ_b l_+> given j, first equation above."""
        rest = (m for m in range(4) if m != j)
        return sum(given[j][:, l, m] * inner[j][m] * quadrant[min(j, m), max(j, m)] for m in rest)  # type: ignore[return-value]

    singles = {(j, l): single(j, l) for j in range(4) for l in range(4) if j != l}
    G = np.zeros_like(C)
    for (e, f), (k, l) in zip(PAIRS, OTHERS, strict=True):
        deltas = sum(C[:, k, j] * density[j] * singles[j, l] for j in (e, f, k))
        G[:, e, f] = G[:, f, e] = C[:, k, l] * P + deltas
    for e in range(4):
        x, y, z = (m for m in range(4) if m != e)
        S = given[e]
        delta = S[:, x, x] * inner[e][x] * _pair(both[min(e, x), max(e, x)], y, z)
        G[:, e, e] = density[e] * (S[:, x, y] * singles[e, z] + S[:, x, z] * singles[e, y] + delta)
    return G, error / 16


def _threefold(C: np.ndarray, y: int) -> np.ndarray:
    """The same where the three nodes other than y coincide."""
    x = 0 if y else 1
    s, density = _given(C, y)[:, x, x], _density(C[:, y, y])
    side = C[:, x, x] * _quadrant(C, x, y) + C[:, x, y] * density * np.sqrt(s / (2 * math.pi))  # <x_+² θ_y>
    G = np.broadcast_to(_pair(C, x, y)[:, None, None], C.shape).copy()
    G[:, y, :] = G[:, :, y] = side[:, None]
    G[:, range(4), range(4)] = 0.0
    G[:, y, y] = density * s**1.5 * math.sqrt(2 / math.pi)
    return G


def snap(C: np.ndarray, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariances in which nodes equal (``sign`` 1) or opposite (−1) to rounding are exactly so, and which pairs are."""
    C = C.copy()
    same = np.zeros((len(C), 6), bool)
    for n, (i, j) in enumerate(PAIRS):
        q, p = C[:, i, i], C[:, j, j]
        same[:, n] = (q > 0) & (p > 0) & (q + p - 2 * sign * C[:, i, j] <= ALMOST * (q + p))
        rows = np.flatnonzero(same[:, n])
        C[rows, j] = sign * C[rows, i]
        C[rows, :, j] = sign * C[rows, :, i]
        C[rows, j, j] = q[rows]
    return C, same


def relu_gradient(C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """<∂_e∂_f(x_+ y_+ z_+ u_+)>, (batch, 4, 4), and the error of the orthant probabilities in it."""
    opposite = snap(C, -1)[1].any(axis=1)
    dead = opposite | (np.einsum("bii->bi", C) <= 0).any(axis=1)
    C, same = snap(C, 1)
    G, error = _distinct(C)
    for nodes in combinations(range(4), 3):
        y = next(m for m in range(4) if m not in nodes)
        rows = same[:, [PAIRS.index(p) for p in combinations(nodes, 2)]].all(axis=1)
        if rows.any():
            G[rows], error[rows] = _threefold(C[rows], y), EPS
    G[dead], error[dead] = 0.0, 0.0
    return G, error


def kinked(C: np.ndarray, slope: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, errors and gradients for x_+ − slope·(−x)_+ (leaky relu; abs at −1): a sum of relu averages over signs."""
    error, gradient = np.zeros(len(C)), np.zeros_like(C)
    for code in range(8 if slope else 1):
        sign = np.array([1.0, *(1 - 2.0 * (code >> n & 1) for n in range(3))])
        n_down = int(np.sum(sign < 0))
        weight = (-slope) ** n_down + ((-slope) ** (4 - n_down) if slope else 0.0)  # all signs flipped: the same
        flip = sign[:, None] * sign
        G, more = relu_gradient(C * flip)
        gradient += weight * flip * G
        error += abs(weight) * more
    size = np.abs(C).max(axis=(1, 2))
    value = 0.25 * np.einsum("bef,bef->b", C, gradient)
    return value, size**2 * (6 * error + 256 * EPS * (1 + slope**4)), gradient
