r"""Fixed points of the covariance recursion at great depth, and how they are approached.

.. math::  q^* = w\langle\varphi^2\rangle_{q^*} + b, \qquad \chi = w\langle\varphi'^2\rangle_{q^*}

Eqs. (prior.8), (prior.9), (prior.10). Notation: :math:`w`, :math:`b` are weight and bias variance.
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
import scipy.optimize

from widefield.gaussian import closed, quadrature
from widefield.question.activation import Activation
from widefield.question.network import Network

LARGEST, SMALLEST, TINY = 1e12, 1e-12, 1e-60
CRITICAL = 1e-9  # of a susceptibility around one
EPS = float(np.finfo(float).eps)
_closed = jax.jit(partial(closed.moment, exact=True), static_argnums=(0, 1))


@dataclass(frozen=True)
class DepthLimit:
    """The fixed point ``variance`` with what holds there, and the numbers that it can be trusted by.

    ``residual`` is |f(q*) − q*|/max(q*, 1) for f(q) = w<φ²> + b, and, where the variance is infinite, by how much f falls
    short of growth at the largest variance tried; ``error`` the largest error estimate of an average at the fixed point.
    """

    variance: float
    correlation: float
    susceptibility: float
    variance_depth_scale: float
    correlation_depth_scale: float
    critical_weight_variance: float
    phase: str
    residual: float
    error: float


def find_depth_limit(network: Network) -> DepthLimit:
    """The limit that a network approaches from the variance of its first state, for an input of unit power."""
    for name in ("weight_variance", "bias_variance"):
        if len({*np.atleast_1d(getattr(network, name))}) > 1:
            raise ValueError(
                f"`{name}` must be the same at every state for a depth limit, got {getattr(network, name)}."
            )
    if np.size(network.weight_variance) == 0:
        raise ValueError("`weight_variance` must be a number for a depth limit, got none.")
    phi, w, b = network.activation, float(np.atleast_1d(network.weight_variance)[0]), float(network.bias_variances[0])
    q0 = float(network.input_variances[0]) + b
    q = fixed_variance(phi, w, b, q0)
    *numbers, phase = _stability(phi, w, b, q)
    rho, chi, scale_q, scale_rho = numbers
    critical = critical_weight_variance(phi, b, q0)
    if math.isfinite(q):
        residual = abs(_next(phi, w, b, q) - q) / max(q, 1.0)
    else:
        after = _next(phi, w, b, LARGEST)
        residual = max(0.0, 1 - after / LARGEST) if math.isfinite(after) else 0.0
    errors = []  # of w<φ²> relative to max(q, 1), and of w<φ'²> relative to max(χ, 1)
    at = q if math.isfinite(q) else LARGEST
    for orders, scale in (((0, 0), max(at, 1.0)), ((1, 1), 1.0)):
        value, error = _estimate(phi, orders, at, at)
        errors.append(w * error / max(scale, w * abs(value)) if math.isfinite(value) else 0.0)
    return DepthLimit(q, rho, chi, scale_q, scale_rho, critical, phase, residual, max(errors))


def _estimate(phi: Activation, orders: tuple[int, int], q: float, c: float) -> tuple[float, float]:
    """<φ^(i)φ^(j)> of two nodes of equal variance, and its error; at zero variance the limit from above."""
    q, c = (q, c) if q > 0 else (TINY, TINY)
    arrays = np.asarray([q]), np.asarray([q]), np.asarray([c])
    if closed.has_closed_form(phi, orders):
        exact = float(_closed(phi, orders, *arrays)[0])
        return exact, 64 * EPS * abs(exact)
    value, error = quadrature.average(phi, orders, *arrays)
    return float(value[0]), float(error[0])


def _average(phi: Activation, orders: tuple[int, int], q: float, c: float) -> float:
    return _estimate(phi, orders, q, c)[0]


def _next(phi: Activation, w: float, b: float, q: float) -> float:
    with np.errstate(over="ignore"):
        return w * _average(phi, (0, 0), q, q) + b


def fixed_variance(phi: Activation, w: float, b: float, q: float) -> float:
    """The fixed point reached from ``q``: the first one in the direction in which the recursion moves."""
    change = _next(phi, w, b, q) - q
    if abs(change) <= 1e-14 * q:
        return q
    factor = 1.25 if change > 0 else 0.8
    while True:
        new = q * factor
        if new > LARGEST or new < SMALLEST:
            return math.inf if new > 1 else 0.0
        moved = _next(phi, w, b, new) - new
        if not math.isfinite(moved):
            return math.inf
        if (moved > 0) != (change > 0):
            break
        q = new
    return scipy.optimize.brentq(lambda v: _next(phi, w, b, v) - v, *sorted((q, new)), xtol=1e-300, rtol=1e-14)


def _stability(phi: Activation, w: float, b: float, q: float) -> tuple[float, float, float, float, str]:
    """Correlation, susceptibility, depth scales of variance and correlation, and phase at the fixed point."""
    if not math.isfinite(q):
        chi = w * _average(phi, (1, 1), LARGEST, LARGEST)
        return math.nan, chi, math.inf, math.nan, "unbounded"
    chi = w * _average(phi, (1, 1), q, q)
    phase = "critical" if abs(chi - 1) <= CRITICAL else "ordered" if chi < 1 else "chaotic"
    if q == 0:  # all nodes vanish alike: correlations keep changing ever more slowly, or not at all
        return math.nan, chi, _scale(chi), math.inf, "ordered" if phase == "chaotic" else phase
    along = chi + w * _average(phi, (2, 0), q, q)
    rho = _fixed_correlation(phi, w, b, q) if chi > 1 + CRITICAL else 1.0
    slope = chi if rho == 1.0 else w * _average(phi, (1, 1), q, rho * q)
    return rho, chi, _scale(along), _scale(slope), phase


def _fixed_correlation(phi: Activation, w: float, b: float, q: float) -> float:
    """The stable correlation below one of the chaotic phase."""

    def change(rho: float) -> float:
        return (w * _average(phi, (0, 0), q, rho * q) + b) / q - rho

    low = 0.0 if change(0.0) >= 0 else -1.0
    if change(low) == 0.0:
        return low
    high = 1.0
    for _ in range(60):  # the other root is ρ = 1 itself: step inside it
        high = 1 - (1 - high if high < 1 else 1e-12) * 2
        if change(high) < 0:
            return scipy.optimize.brentq(change, low, high, xtol=1e-14)
    return 1.0


def _scale(slope: float) -> float:
    slope = abs(slope)
    if slope == 0:
        return 0.0
    return math.inf if abs(slope - 1) <= 1e-12 else abs(1 / math.log(slope))


def critical_weight_variance(phi: Activation, b: float, q0: float) -> float:
    """The weight variance at which the susceptibility of the fixed point is one; NaN where there is none."""

    at_zero = _average(phi, (1, 1), 0.0, 0.0)
    if b == 0 and at_zero > 0 and fixed_variance(phi, 0.99 / at_zero, b, q0) == 0:
        return 1 / at_zero  # without bias the transition is where the fixed point at zero loses its stability

    def excess(w: float) -> float:
        q = fixed_variance(phi, w, b, q0)
        return w * _average(phi, (1, 1), min(q, LARGEST), min(q, LARGEST)) - 1

    grid = np.geomspace(0.05, 50.0, 25)
    values = [excess(w) for w in grid]
    for low, high, before, after in zip(grid, grid[1:], values, values[1:], strict=False):
        if before <= 0 < after:
            root = scipy.optimize.brentq(excess, low, high, xtol=1e-12)
            return root if abs(excess(root)) < 1e-6 else math.nan  # Brent also stops where a fixed point vanishes
    return math.nan
