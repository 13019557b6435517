"""What happens at great depth: fixed points, the edge of chaos, and the scales on which they are reached."""

import math
import time
from functools import partial

import jax
import numpy as np
import scipy.optimize

from widefield.answer import legacy
from widefield.answer.boundary import x64
from widefield.answer.certificate import Status
from widefield.answer.solution import Solution, make_solution
from widefield.gaussian import closed, quadrature
from widefield.question.activation import Activation
from widefield.question.network import Network

LARGEST, SMALLEST, TINY = 1e12, 1e-12, 1e-60
TOLERANCE = 1e-10
_closed = jax.jit(partial(closed.moment, exact=True), static_argnums=(0, 1))


@x64
def depth_limit(network: Network, *, throw: bool = True) -> Solution:
    r"""Fixed point of the covariance recursion at great depth, and how it is approached.

    .. math::  q^* = w\langle\varphi^2\rangle_{q^*} + b, \qquad \chi = w\langle\varphi'^2\rangle_{q^*}

    Fields: ``variance`` :math:`q^*` (infinite where the variance grows without bound), ``correlation`` :math:`\rho^*`
    of two different inputs (NaN where the variance vanishes), ``susceptibility`` :math:`\chi` (1 at the edge of chaos), ``variance_depth_scale`` and
    ``correlation_depth_scale`` (states over which a deviation falls by e), ``critical_weight_variance`` (the weight
    variance at which :math:`\chi = 1` for this bias variance; NaN where there is none) and ``phase``.

    Method: bracketing from the variance of a unit-power input, then Brent's method; averages in closed form or by
    quadrature. Error: the residual is :math:`|f(q^*) - q^*|/\max(q^*, 1)`.
    Limits: an input at state 0 only and variances that do not depend on the state. Equal-state statistics are those of
    both deep and recurrent networks.
    """
    start = time.perf_counter()
    if not isinstance(network, Network):
        raise ValueError(f"`network` must be a widefield Network, got {type(network).__name__}.")
    network.refuse_branch("depth_limit")
    if np.size(network.weight_variance) == 0:
        raise ValueError("`weight_variance` must be a number for a depth limit, got none.")
    for name in ("weight_variance", "bias_variance"):
        if len({*np.atleast_1d(getattr(network, name))}) > 1:
            raise ValueError(
                f"`{name}` must be the same at every state for a depth limit, got {getattr(network, name)}."
            )
    w, b = float(np.atleast_1d(network.weight_variance)[0]), float(network.bias_variances[0])
    phi, q0 = network.activation, float(network.input_variances[0]) + b
    q = fixed_variance(phi, w, b, q0)
    values = {"variance": q} | _around(phi, w, b, q)
    values["critical_weight_variance"] = critical_weight_variance(phi, b, q0)
    gap = abs(_next(phi, w, b, q) - q) / max(q, 1.0) if math.isfinite(q) else None
    status = Status.success if gap is None or gap <= TOLERANCE else Status.inaccurate
    notes = () if math.isfinite(q) else ("the variance grows without bound",)
    elapsed = time.perf_counter() - start
    certificate = legacy.certificate("depth_limit", status, gap, TOLERANCE, wall_time=elapsed, notes=notes)
    return make_solution({k: ((), v) for k, v in values.items()}, certificate, network, None, throw=throw)


def _average(phi: Activation, orders: tuple[int, int], q: float, c: float) -> float:
    """<φ^(i)φ^(j)> of two nodes of equal variance; at zero variance the limit from above."""
    q, c = (q, c) if q > 0 else (TINY, TINY)
    arrays = np.asarray([q]), np.asarray([q]), np.asarray([c])
    if closed.has_closed_form(phi, orders):
        return float(_closed(phi, orders, *arrays)[0])
    return float(quadrature.average(phi, orders, *arrays)[0][0])


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


def _around(phi: Activation, w: float, b: float, q: float) -> dict[str, float | str]:
    """Susceptibilities, correlation and depth scales at the fixed point."""
    if not math.isfinite(q):
        chi = w * _average(phi, (1, 1), LARGEST, LARGEST)
        return {"correlation": math.nan, "susceptibility": chi, "variance_depth_scale": math.inf,
                "correlation_depth_scale": math.nan, "phase": "unbounded"}  # fmt: skip
    chi = w * _average(phi, (1, 1), q, q)
    along = chi + w * _average(phi, (2, 0), q, q) if q > 0 else chi
    if q == 0:  # all nodes vanish alike: correlations keep changing ever more slowly, or not at all
        phase = "critical" if abs(chi - 1) <= 1e-9 else "ordered"
        return {"correlation": math.nan, "susceptibility": chi, "variance_depth_scale": _scale(along),
                "correlation_depth_scale": math.inf, "phase": phase}  # fmt: skip
    rho = _fixed_correlation(phi, w, b, q) if chi > 1 + 1e-9 else 1.0
    slope = chi if rho == 1.0 else w * _average(phi, (1, 1), q, rho * q)
    phase = "critical" if abs(chi - 1) <= 1e-9 else "ordered" if chi < 1 else "chaotic"
    return {"correlation": rho, "susceptibility": chi, "variance_depth_scale": _scale(along),
            "correlation_depth_scale": _scale(slope), "phase": phase}  # fmt: skip


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
    """The weight variance at which the susceptibility of the fixed point is one; NaN where none is found."""

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
