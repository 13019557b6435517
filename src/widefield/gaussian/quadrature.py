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

import jax
import numpy as np

from widefield.gaussian import rules
from widefield.question.activation import Activation

REACH = 10.0
NODES = (10, 16)
EPS = float(np.finfo(float).eps)


class Factor(NamedTuple):
    """One factor of the average: a function with its breaks, and the delta functions that sit on them."""

    function: Callable[[np.ndarray], np.ndarray]
    breaks: tuple[float, ...]
    deltas: tuple[tuple[float, float], ...]


def derivative(function: Callable, order: int) -> Callable[[np.ndarray], np.ndarray]:
    """The ``order``-th derivative of a scalar JAX function, on NumPy arrays and always in float64."""
    for _ in range(order):
        function = jax.grad(function)
    compiled = jax.jit(jax.vmap(function))

    def derived(x: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(compiled(np.ravel(x))).reshape(np.shape(x))

    return derived


@lru_cache
def factor(activation: Activation, order: int) -> Factor:
    """φ^(order) of an activation; raises where a jump of φ^(order−2) would need the derivative of a delta function."""
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


def _levels(scale: float) -> int:
    """Halvings towards a center, down to a fraction of the 1/scale on which a smooth function changes."""
    return 2 * math.ceil((math.log2(max(scale, 1.0)) + 4) / 2)


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
    z, weight = rules.panels(rules.edges(centers, REACH, levels), n_nodes)
    return np.sum(weight * g.function(mean[:, None] + deviation * z), axis=-1)


def _smooth_part(f: Factor, g: Factor, levels: tuple[int, int], n_nodes: int, q, p, rho, tau) -> np.ndarray:
    """<f(a) g(b)> for one pair without delta functions, its absolute size, and what may lie beyond the reach."""
    a, b = math.sqrt(q), math.sqrt(p)
    centers = [x / a for x in f.breaks if a > 0] + [x / (b * rho) for x in g.breaks if b * rho != 0]
    z, weight = rules.panels(rules.edges(np.sort(np.asarray(centers or [0.0])), REACH, levels[0]), n_nodes)
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
    f, g = factor(activation, orders[0]), factor(activation, orders[1])
    inner = _levels(math.sqrt(max(float(np.max(q)), float(np.max(p)), 1e-300)))
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
