"""One call for any pair average: picks the road, and never returns a value without an error estimate."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from widefield import checks
from widefield.activation import Activation, as_activation
from widefield.boundary import x64
from widefield.gaussian import closed, kernels, quadrature
from widefield.solution import SolveError

EPS = float(np.finfo(float).eps)
# Closed forms in which a rounding of the variances is magnified by the variances.
MAGNIFIED = ("exp", "rbf", "sin", "cos", "erf", "gelu")


@dataclass(frozen=True)
class Expectation:
    """``value`` with its ``error`` estimate (absolute, entry by entry), and the ``method`` that made it."""

    value: np.ndarray
    error: np.ndarray
    method: str


@x64
def expectation(
    activation: str | Activation,
    variance: Any,
    variance_: Any,
    covariance: Any,
    orders: tuple[int, int] = (0, 0),
    *,
    method: str = "auto",
    rtol: float = 1e-10,
) -> Expectation:
    r"""Average :math:`\langle\varphi^{(i)}(a)\varphi^{(j)}(b)\rangle` over zero-mean Gaussian pairs.

    ``variance``, ``variance_`` and ``covariance`` (:math:`\langle a^2\rangle, \langle b^2\rangle, \langle ab\rangle`)
    broadcast against one another. By Price's theorem the derivatives of :math:`\langle\varphi\varphi\rangle` are
    averages too: with respect to the covariance ``orders=(1, 1)``, to a variance half of ``orders=(2, 0)``.

    Method: closed form where there is one; otherwise a Hermite series where its tail bound meets ``rtol``, and
    two-dimensional quadrature for the other pairs. ``method`` insists on ``"closed"``, ``"series"`` or
    ``"quadrature"``.
    Error: relative to :math:`\sqrt{\langle\varphi^{(i)}(a)^2\rangle\langle\varphi^{(j)}(b)^2\rangle}` at most
    ``rtol``, or `SolveError`; a value that overflows or is infinite raises `OverflowError`.
    Limits: a kinked activation has a delta function in its second derivative, one that jumps in its first. A jump
    that is not declared in ``breaks`` is refused, except that within 1e-9 of ρ = ±1 it cannot be seen.
    """
    activation = as_activation(activation)
    checks.choice("method", method, ("auto", "closed", "series", "quadrature"))
    rtol = checks.tolerance("rtol", rtol, 1e-13)
    orders = _orders(orders)
    q, p, c = _pairs(variance, variance_, covariance)
    shape = q.shape
    q, p, c = (np.ravel(v) for v in (q, p, c))
    if method == "closed" or (method == "auto" and closed.has_closed_form(activation, orders)):
        value, error, used = *_closed(activation, orders, q, p, c), "closed"
    else:
        value, error, used = _numerical(activation, orders, q, p, c, method, rtol)
    if not (np.isfinite(value).all() and np.isfinite(error).all()):
        bad = int(np.flatnonzero(~(np.isfinite(value) & np.isfinite(error)))[0])
        raise OverflowError(
            f"<{activation}^({orders[0]}) {activation}^({orders[1]})> is {value[bad]} at variance {q[bad]:g}, "
            f"variance_ {p[bad]:g}, covariance {c[bad]:g}: it overflows or is infinite there. Lower the variance."
        )
    return Expectation(value.reshape(shape), error.reshape(shape), used)


def _orders(orders: Any) -> tuple[int, int]:
    try:
        i, j = orders
    except (TypeError, ValueError):
        raise ValueError(f"`orders` must be two derivative orders such as (1, 1), got {orders!r}.") from None
    return checks.integer("orders[0]", i, 0), checks.integer("orders[1]", j, 0)


def _pairs(variance: Any, variance_: Any, covariance: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    named = {"variance": variance, "variance_": variance_, "covariance": covariance}
    arrays = {k: checks.real_array(k, v, range(9), "real numbers")[0] for k, v in named.items()}
    for name in ("variance", "variance_"):
        if np.any(arrays[name] < 0):
            raise ValueError(f"`{name}` must be non-negative, got {arrays[name].min()}.")
    try:
        q, p, c = np.broadcast_arrays(*arrays.values())
    except ValueError:
        raise ValueError(
            f"`covariance` and the variances must broadcast, got {[a.shape for a in arrays.values()]}."
        ) from None
    limit = np.sqrt(q) * np.sqrt(p)
    if np.any(np.abs(c) > limit * (1 + 8 * EPS)):
        bad = int(np.argmax(np.abs(c) - limit))
        raise ValueError(
            f"`covariance` must lie within ±√(variance·variance_) = ±{limit.flat[bad]:g}, got {c.flat[bad]:g}."
        )
    return q, p, c


@partial(jax.jit, static_argnums=(0, 1))
def _closed_moment(activation, orders, q, p, c):
    return closed.moment(activation, orders, q, p, c, exact=True) + 0 * c


def _closed(activation: Activation, orders: tuple[int, int], q, p, c) -> tuple[np.ndarray, np.ndarray]:
    """Value, and an error of some roundings of the natural scale (more where an exponential magnifies them)."""
    if not closed.has_closed_form(activation, orders):
        raise ValueError(f"`method` must not be 'closed': {activation} has no closed form at orders {orders}.")
    value = np.asarray(_closed_moment(activation, orders, q, p, c))
    magnified = 1 + (q + p if activation.name in MAGNIFIED else 0.0)
    own = _norm(activation, orders[0], q) * _norm(activation, orders[1], p)
    return value, 64 * EPS * magnified * np.maximum(np.abs(value), np.where(np.isfinite(own), own, 0.0))


def _norm(activation: Activation, order: int, q: np.ndarray) -> np.ndarray:
    """√<φ^(k)²>, infinite for the second derivative of a kink."""
    if activation.breaks and order > 1:
        return np.full_like(q, np.inf)
    return np.sqrt(np.asarray(_closed_moment(activation, (order, order), q, q, q)))


def _numerical(activation: Activation, orders: tuple[int, int], q, p, c, method: str, rtol: float):
    value, error, scale = np.zeros_like(c), np.full_like(c, np.inf), np.ones_like(c)
    smooth_orders = orders in ((0, 0), (1, 1))
    if method == "series" and not smooth_orders:
        raise ValueError(f"`method` must not be 'series' for orders {orders}: only (0, 0) and (1, 1) have one.")
    if method != "quadrature" and smooth_orders:
        value, error, scale = _series(activation, orders, q, p, c)
    rest = error > rtol * scale
    used = "series"
    if rest.any() and method != "series":
        value[rest], error[rest] = quadrature.average(activation, orders, q[rest], p[rest], c[rest])
        scale = _scales(activation, orders, q, p, value)
        used = "quadrature" if rest.all() else "series and quadrature"
    _check_accuracy(activation, value, error, scale, rtol, q, p, c)
    return value, error, used


def _series(activation: Activation, orders: tuple[int, int], q, p, c):
    level = max(-8, math.ceil(math.log2(max(q.max(), p.max(), 1e-300))))
    kernel = kernels.series_kernel(activation, level, "float64", False)
    value, slope, error, row, column = _series_pairs(kernel, q, p, c)
    name = "slope" if orders == (1, 1) else "value"
    scale = np.sqrt(np.asarray(row[f"{name}_norm"]) * np.asarray(column[f"{name}_norm"]))
    known = np.isfinite(error)
    error = np.where(known, (np.where(known, error, 0) + 64 * EPS + kernels.RESOLVED) * scale, np.inf)
    return np.array(slope if orders == (1, 1) else value), error, scale


@jax.jit
def _series_pairs(kernel, q, p, c):
    row, column = kernel.table(q), kernel.table(p)
    return *kernel.pair(row, column, c, True), row, column


def _scales(activation: Activation, orders: tuple[int, int], q, p, value) -> np.ndarray:
    """√(<f²><g²>) where both are finite; infinite where a delta function makes them so."""
    if any(quadrature.factor(activation, order).deltas for order in orders):
        return np.full_like(value, np.inf)
    norms = []
    for order, v in zip(orders, (q, p), strict=True):
        unique, back = np.unique(v, return_inverse=True)
        norms.append(quadrature.average(activation, (order, order), unique, unique, unique)[0][back])
    return np.sqrt(norms[0] * norms[1])


def _check_accuracy(activation, value, error, scale, rtol, q, p, c) -> None:
    excess = error - rtol * scale
    worst = int(np.argmax(excess))
    if np.isfinite(value).all() and not excess[worst] <= 0:
        raise SolveError(
            f"The average of {activation} is known only to {error[worst]:.1e} (scale {scale[worst]:.1e}, asked "
            f"rtol={rtol:g}) at variance {q[worst]:g}, variance_ {p[worst]:g}, covariance {c[worst]:g}. Name every "
            "point where the function or its derivative jumps in Activation(breaks=...), or raise rtol."
        )
