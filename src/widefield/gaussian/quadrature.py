r"""Pair averages by two-dimensional quadrature, one pair at a time: slower, and exact where a series is not.

.. math::  \langle f(a)g(b)\rangle = \int\!dz\,\gamma(z)\,f(\sqrt q z)\;G(\rho\sqrt{q'}z,\,q'(1-\rho^2)), \qquad
           G(m, v) = \int\!dz\,\gamma(z)\,g(m + \sqrt v z)

Method: Gauss–Legendre on panels that end at the breaks and shrink towards them (and towards the origin, where a
saturating function is steep at high variance) down to the scale on which the outer integrand can change.
Error: the difference between two node counts, plus what lies beyond the reach.
A break where the derivative of lower order jumps adds a delta function, integrated in closed form.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from widefield.gaussian import closed, rules
from widefield.gaussian.steepness import check_function, derivative, level_of, refuse_rough, usual_levels
from widefield.question.activation import Activation

REACH = 10.0
NODES = (10, 16)
LARGEST_TABLE = 2**22  # values of an inner integral at a time
EPS = float(np.finfo(float).eps)


class Factor(NamedTuple):
    """A function with its breaks, the delta functions that sit on them, and panels for where it varies fast."""

    function: Callable[[np.ndarray], np.ndarray]
    breaks: tuple[float, ...]
    deltas: tuple[tuple[float, float], ...]
    steep: np.ndarray = np.empty(0)


@lru_cache
def factor(activation: Activation, order: int) -> Factor:
    """φ^(order) of an activation; raises where a jump of φ^(order−2) would need the derivative of a delta function."""
    check_function(activation)
    jumps = [[_jump(activation, k, x) for x in activation.breaks] for k in range(order)]  # of the lower derivatives
    if any(map(any, jumps[:-1])):
        raise ValueError(
            f"`orders` must be at most {order - 1} for the activation {activation}: it jumps at one of its breaks "
            f"{activation.breaks}, so that the derivative of order {order} holds the derivative of a delta function."
        )
    deltas = tuple((x, jump) for x, jump in zip(activation.breaks, jumps[-1], strict=True) if jump) if order else ()
    return Factor(derivative(activation.function, order), activation.breaks, deltas)


def _jump(activation: Activation, order: int, x: float) -> float:
    """By how much φ^(order) jumps at x; zero where that is rounding."""
    near = 1e-300 if x == 0 else abs(x) * np.finfo(float).eps
    right, left = derivative(activation.function, order)(np.asarray([x + near, x - near]))
    jump = float(right - left)
    return jump if abs(jump) > 1e-12 else 0.0


def _correlation(q: float, p: float, c: float) -> tuple[float, float]:
    """ρ and √(1 − ρ²), the latter from exact arithmetic on the three numbers; ρ = 0 where a variance vanishes."""
    if q == 0 or p == 0:
        return 0.0, 1.0
    product = Fraction(q) * Fraction(p)
    rest = max(product - Fraction(c) ** 2, Fraction(0)) / product
    return min(1.0, max(-1.0, c / (math.sqrt(q) * math.sqrt(p)))), math.sqrt(float(rest))


def _conditional(g: Factor, mean: np.ndarray, deviation: float, n_nodes: int, levels: int) -> np.ndarray:
    """G(m, v) for an array of means."""
    if deviation == 0:
        return g.function(mean)
    centers = (np.asarray(g.breaks or (0.0,)) - mean[:, None]) / deviation
    first, last = (np.searchsorted(g.steep, mean + side * REACH * deviation) for side in (-1, 1))
    within = first[:, None] + np.arange(int(np.max(last - first)))  # the rest lies beyond reach of every mean
    steep = np.append(g.steep, np.inf)[np.minimum(within, len(g.steep))]
    edges = _with(rules.edges(centers, REACH, levels), (steep - mean[:, None]) / deviation)
    means = np.array_split(mean, max(1, len(mean) * edges.shape[-1] * n_nodes // LARGEST_TABLE))
    result, start = [], 0
    for part in means:
        z, weight = rules.panels(edges[start : start + len(part)], n_nodes)
        result.append(np.sum(weight * g.function(part[:, None] + deviation * z), axis=-1))
        start += len(part)
    return np.concatenate(result)


def _with(edges: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Panel edges with some more that lie within reach."""
    return np.sort(np.concatenate([edges, np.clip(more, -REACH, REACH)], axis=-1), axis=-1) if more.size else edges


def _smooth_part(f: Factor, g: Factor, levels: tuple[int, int], n_nodes: int, q, p, rho, tau) -> np.ndarray:
    """<f(a) g(b)> for one pair without delta functions, its absolute size, and what may lie beyond the reach."""
    a, b = math.sqrt(q), math.sqrt(p)
    centers = [x / a for x in f.breaks if a > 0] + [x / (b * rho) for x in g.breaks if b * rho != 0]
    edges = rules.edges(np.sort(np.asarray(centers or [0.0])), REACH, levels[0])
    steep = [f.steep / a if a > 0 else f.steep[:0], g.steep / (b * rho) if b * rho != 0 else g.steep[:0]]
    z, weight = rules.panels(_with(edges, np.concatenate(steep)), n_nodes)
    values = f.function(a * z)
    inner = _conditional(g, rho * b * z, b * tau, n_nodes, levels[1])
    edge = np.abs(values[[0, -1]]).max() * math.exp(-0.5 * REACH**2) * np.abs(g.function(b * z[[0, -1]])).max()
    size = np.sqrt(np.sum(weight * values**2) * np.sum(weight * g.function(b * z) ** 2))
    return np.asarray([np.sum(weight * values * inner), size, edge])


def _density(x: float, q: float) -> float:
    """Density at x of a Gaussian of variance q."""
    if q == 0:
        return math.inf if x == 0 else 0.0
    return math.exp(-0.5 * x * x / q) / math.sqrt(2 * math.pi * q)


def _spikes(f: Factor, g: Factor, level: int, n_nodes: int, q, p, rho, tau) -> np.ndarray:
    """What the delta functions at the breaks add, and a size whose roundings bound theirs."""
    a, b = math.sqrt(q), math.sqrt(p)
    total = size = 0.0
    for one, other, s, t in ((f, g, a, b), (g, f, b, a)):
        for x, jump in one.deltas:
            mean, weight = rho * t * x / s, jump * _density(x, s * s)
            near = other.function(mean + t * tau * np.linspace(-4, 4, 9))
            total += weight * float(_conditional(other, np.asarray([mean]), t * tau, n_nodes, level)[0])
            # The density rounds with its exponent, the mean against the width of the conditional density.
            magnified = 1 + (x / s) ** 2 + abs(mean) / max(t * tau, EPS)
            size += abs(weight) * float(np.abs(near).max()) * magnified
    for x, jump in f.deltas:
        for y, other_jump in g.deltas:
            term = jump * other_jump * _density(x, q) * _density(y - rho * b * x / a, p * tau * tau)
            total += term
            # ρx against y is known to a rounding, which counts on the scale √(1 − ρ²).
            size += abs(term) * (1 + abs(x * y) / max(p * tau * tau, EPS**2))
    return np.asarray([total, size])


def average(activation: Activation, orders: tuple[int, int], q, p, c) -> tuple[np.ndarray, np.ndarray]:
    """Values and error estimates of <φ^(i)(a) φ^(j)(b)> for one-dimensional arrays of pairs."""
    largest = max(float(np.max(q)), float(np.max(p)), 1e-300)
    f, g = (
        factor(activation, k)._replace(steep=np.asarray(refuse_rough(activation, k, level_of(largest)))) for k in orders
    )
    inner = usual_levels(
        1.0 if closed.kink_slope(activation) is not None else math.sqrt(largest)
    )  # a kink has no scale
    value, error = np.empty(len(q)), np.empty(len(q))
    for i, triple in enumerate(zip(q, p, c, strict=True)):
        pair = (float(q[i]), float(p[i]), *_correlation(*map(float, triple)))
        # Near ρ = ±1 the outer integrand sees the kink of the other factor on the scale √(1 − ρ²).
        near_kink = 34 if pair[-1] < 1e-3 else max(16, inner)
        outer = near_kink if activation.breaks and pair[-1] <= 0.1 else inner
        coarse, fine = (_smooth_part(f, g, (outer, inner), n, *pair) for n in NODES)
        spikes, more = (_spikes(f, g, inner, n, *pair) for n in reversed(NODES))
        value[i] = fine[0] + spikes[0]
        error[i] = abs(fine[0] - coarse[0]) + abs(spikes[0] - more[0]) + fine[2] + 32 * EPS * (fine[1] + spikes[1])
    return value, error
