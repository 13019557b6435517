r"""The expansion with tied weights put back into its equations, with averages by quadrature, on a few pairs of nodes.

.. math::  C = B + w\langle\varphi\varphi\rangle, \qquad (1-D)V(1-D)^T = \kappa, \qquad (1-D)G_1 = \tfrac12m'':V + T

Eqs. (finite_width.21), (finite_width.23), (finite_width.24). D, m'' and κ come from a two-dimensional rule that shares no code
with the averages of the solve (but for the curvature of relu). T is evaluated anew at the first states where it appears.
"""

import contextlib

import numpy as np

from widefield.gaussian.closed import kink_slope
from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.finite_width.tied.exact_linear import sources
from widefield.theories.finite_width.tied.fluctuations import Fluctuations
from widefield.theories.finite_width.tied.pairs import curvature
from widefield.theories.finite_width.untied.averages import Averages
from widefield.theories.finite_width.untied.pair_averages import pair_quadrature
from widefield.theories.finite_width.untied.recursion import Wants, pair_source, transport
from widefield.theories.finite_width.untied.residual import OutOfReach, by_quadrature

NEGLIGIBLE = 1e-6  # of a kernel: fluctuations below are known to roundings of the kernel
STEP = 0.01  # of a variance, for difference quotients of sixth order


def residual(network: Network, task: Task, moments: Fluctuations) -> float | None:
    """Largest violation of the equations, relative to their scales; None where no average could be evaluated again."""
    if not np.any(moments.rows.weight):
        return 0.0
    B = sources(network, task)
    parts: list[float] = []
    for u, v in _choose(moments):
        with contextlib.suppress(OutOfReach):
            parts += _pair(network.activation, B, moments, u, v)
    if not parts:
        return None
    return float(np.max([_solve(moments), *parts, *_reuse(network.activation, moments)]))


def _choose(moments: Fluctuations) -> list[tuple[int, int]]:
    """Nodes (x, y) of the first and the last row, of the least correlated one and of that with the largest G1."""
    rows, C = moments.rows, moments.nodes.C
    active = np.flatnonzero(rows.weight)
    x, y = rows.x[active], rows.y[active]
    size = np.sqrt(C[x, x] * C[y, y])
    cosine = np.abs(C[x, y]) / np.where(size > 0, size, 1.0)
    at = [0, len(active) - 1, int(np.argmin(cosine)), int(np.argmax(np.abs(moments.G1[active])))]
    return sorted({(int(x[i]), int(y[i])) for i in at if size[i] > 0})


def _solve(moments: Fluctuations) -> float:
    """(1 − D)R = 1 and the equations of V and G1 on all rows, with the averages of the solve."""
    left, R = moments.response.rest, moments.response.R
    off = np.max(np.abs(left @ R - np.eye(len(R)))) / np.max(np.abs(left) @ np.abs(R))
    noise = left @ moments.V @ left.T - moments.kappa
    scale = np.abs(left) @ np.abs(moments.V) @ np.abs(left.T)
    bend = curvature(moments.V, moments.rows, moments.response.second) + moments.T
    drift = np.abs(left @ moments.G1 - bend) / max(np.max(np.abs(left) @ np.abs(moments.G1) + np.abs(bend)), 1e-300)
    return float(np.max([off, np.max(np.abs(noise)) / max(np.max(scale), 1e-300), np.max(drift)]))


def _pair(activation: Activation, B: np.ndarray, moments: Fluctuations, u: int, v: int) -> list[float]:
    """C, V and G1 of all rows that average φ(u)², φ(u)φ(v) or φ(v)²."""
    rows, V, G1 = moments.rows, moments.V, moments.G1
    fresh = by_quadrature(activation, moments.nodes.C[np.ix_([u, v], [u, v])], Wants(pairs=True, correction=True))
    pairs = [(u, u), (u, v), (v, v)]
    index: list[int] = []
    places: list[int] = []
    for place, (a, b) in enumerate(pairs[: 1 if u == v else 3]):
        same = np.flatnonzero(((rows.x == a) & (rows.y == b)) | ((rows.x == b) & (rows.y == a)))
        index, places = [*index, *same], [*places, *[place] * len(same)]
    w = rows.weight[index]
    transported = transport(fresh, 0, 1)
    left = np.zeros((len(index), len(rows) + 1))  # the last column: no fluctuation
    for k, (row, place) in enumerate(zip(index, places, strict=True)):
        left[k, row] += 1.0
        for slope, (a, b) in zip(transported[place], pairs, strict=True):
            left[k, rows.of[a, b]] -= rows.weight[row] * slope
    left = left[:, :-1]
    value = np.array([fresh.value[0, 0], fresh.value[0, 1], fresh.value[1, 1]])
    off = _means(B, moments, index, w * value[places])
    # κ is a difference of moments, whose rounding is as much as it can be known to.
    kappa = np.multiply.outer(w, w) * pair_source(fresh)[0, 1][np.ix_(places, places)]
    fourth = np.diag(fresh.square)  # type: ignore[arg-type]
    floor = w * np.sqrt(np.array([fourth[0], np.sqrt(fourth[0] * fourth[1]), fourth[1]])[places])
    size = np.sqrt(np.maximum(np.diag(V)[index], 0))  # zero may be a rounding below
    off.append(_largest(left @ V @ left.T - kappa, np.maximum(np.outer(size, size), np.outer(floor, floor))))
    bend = _bend(activation, fresh, moments, u, v)
    if bend is not None:
        made = left @ G1 - w * bend[places] - moments.T[index]
        off.append(_largest(made, size + np.abs(G1[index]) + NEGLIGIBLE * floor))
    return off


def _largest(off: np.ndarray, scale: np.ndarray) -> float:
    return float(np.max(np.abs(off) / np.where(scale > 0, scale, 1.0)))


def _means(B: np.ndarray, moments: Fluctuations, index: list[int], made: np.ndarray) -> list[float]:
    """C_P − B_P − w<φφ> of hidden rows."""
    nodes, off = moments.nodes, []
    for row, value in zip(index, made, strict=True):
        for p, q in np.argwhere(np.triu(moments.rows.of == row)):
            (a, i), (b, j) = (np.argwhere(nodes.of == node)[0] for node in (p, q))
            scale = np.sqrt(nodes.C[p, p] * nodes.C[q, q])
            off.append(float(abs(nodes.C[p, q] - B[a, b, i, j] - value) / (scale if scale else 1.0)))
    return off


def _bend(activation: Activation, fresh: Averages, moments: Fluctuations, u: int, v: int) -> np.ndarray | None:
    """½ m'':V over w of the rows φ(u)², φ(u)φ(v), φ(v)²; None where the curvature of a kink is not known."""
    if u == v and kink_slope(activation) is not None:  # <φ²> is linear in the variance
        return np.zeros(3)
    if fresh.hessian is None:
        return None
    wide = np.pad(moments.V, (0, 1))
    rows = [moments.rows.of[a, b] for a, b in ((u, u), (u, v), (v, v))]
    block = wide[np.ix_(rows, rows)]
    first = fresh.hessian[:, :, 0, 0].sum() * block[0, 0]
    last = fresh.hessian[:, :, 1, 1].sum() * block[2, 2]
    return 0.5 * np.array([first, np.sum(fresh.hessian[:, :, 0, 1] * block), last])


def _reuse(activation: Activation, moments: Fluctuations) -> list[float]:
    """T of <φ(p)²> with p at state 1: only the noise of the variance of p acts back, T = ww' dCov(φ(p)², φ(q)²)/dC_pp, q = p⁻."""
    rows, nodes = moments.rows, moments.nodes
    chosen = [r for r in range(len(rows)) if rows.x[r] == rows.y[r] and nodes.state[rows.x[r]] == 1 and rows.weight[r]]
    off = []
    for row in chosen[:2]:
        p = rows.x[row]
        q, variance = nodes.previous[p], rows.of[p, p]
        a, b, c = nodes.C[p, p], nodes.C[q, q], nodes.C[p, q]
        if variance < 0 or c**2 > 0.9 * a * b:
            continue
        w = rows.weight[row] * rows.weight[variance]
        scale = np.sqrt(max(moments.V[row, row], 0)) + abs(moments.T[row]) + NEGLIGIBLE * a
        off.append(float(abs(moments.T[row] - w * _slope(activation, a, b, c)) / scale))
    return off


def _slope(activation: Activation, a: float, b: float, c: float) -> float:
    """d/da of Cov(φ(p)², φ(q)²) by differences of sixth order."""

    def covariance(k: int) -> float:
        both, one = (pair_quadrature(activation, (2, m), (1 + k * STEP) * a, b, c)[0] for m in (2, 0))
        return both - one * pair_quadrature(activation, (2, 0), b, b, c)[0]

    near, middle, far = (covariance(k) - covariance(-k) for k in (1, 2, 3))
    return (45 * near - 9 * middle + far) / (60 * STEP * a)
