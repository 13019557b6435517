"""One call for any pair average: picks the road, and never returns a value without an error estimate."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import SolveError
from widefield.gaussian import bulk, closed, quadrature
from widefield.question import checks
from widefield.question.activation import Activation, as_activation

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

    Method: closed form where there is one; otherwise, for any ``orders``, a Hermite series where its tail bound meets
    ``rtol``, and two-dimensional quadrature for the other pairs (high variance near ρ = ±1, delta functions).
    ``method`` insists on ``"closed"``, ``"series"`` or ``"quadrature"``. A kernel matrix costs least with variances of
    shape (P, 1) and (1, P), or their full broadcast: each variance is expanded once.
    Error: relative to :math:`\sqrt{\langle\varphi^{(i)}(a)^2\rangle\langle\varphi^{(j)}(b)^2\rangle}` at most
    ``rtol``, or `SolveError`; a value that overflows or is infinite raises `OverflowError`.
    Limits: a kinked activation has a delta function in its second derivative, one that jumps in its first; derivatives
    of delta functions are known for relu, leaky relu and abs alone. A jump of :math:`\varphi` or
    :math:`\varphi'` that is not declared in ``breaks`` is refused at orders 0 and 1, except that within 1e-9 of ρ = ±1
    it cannot be seen; at higher orders its delta functions are missing.
    """
    activation = as_activation(activation)
    checks.choice("method", method, ("auto", "closed", "series", "quadrature"))
    rtol = checks.tolerance("rtol", rtol, 1e-13)
    orders = _orders(orders)
    q, p, c = _pairs(variance, variance_, covariance)
    if method == "closed" or (method == "auto" and closed.has_closed_form(activation, orders)):
        value, error, used = *_closed(activation, orders, q, p, c), "closed"
    else:
        value, error, used = _numerical(activation, orders, q, p, c, method, rtol)
    if not (np.isfinite(value).all() and np.isfinite(error).all()):
        bad = np.unravel_index(np.argmin(np.isfinite(value) & np.isfinite(error)), value.shape)
        raise OverflowError(
            f"<{activation}^({orders[0]}) {activation}^({orders[1]})> is {value[bad]} at variance {q[bad]:g}, "
            f"variance_ {p[bad]:g}, covariance {c[bad]:g}: it overflows or is infinite there. Lower the variance."
        )
    return Expectation(np.asarray(value), np.asarray(error), used)


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
    scale = _norm(activation, orders[0], q) * _norm(activation, orders[1], p)
    return value, 64 * EPS * magnified * np.maximum(np.abs(value), np.where(np.isfinite(scale), scale, 0.0))


def _norm(activation: Activation, order: int, q: np.ndarray) -> np.ndarray:
    """√<φ^(k)²>, infinite for the second derivative of a kink."""
    if activation.breaks and order > 1:
        return np.full_like(q, np.inf)
    return np.sqrt(np.asarray(_closed_moment(activation, (order, order), q, q, q)))


def _numerical(activation: Activation, orders: tuple[int, int], q, p, c, method: str, rtol: float):
    singular = any(quadrature.factor(activation, order).deltas for order in orders)
    if method == "quadrature" or singular:
        value, error, scale = np.zeros_like(c), np.full_like(c, np.inf), np.ones_like(c)
    else:
        value, error, scale = bulk.average(activation, orders, q, p, c)
    rest = error > rtol * scale
    used = "series"
    if rest.any() and method != "series":
        pairs = q[rest], p[rest], c[rest]
        value[rest], error[rest] = quadrature.average(activation, orders, *pairs)
        scale[rest] = _scales(activation, orders, *pairs[:2])
        used = "quadrature" if rest.all() else "series and quadrature"
    _check_accuracy(activation, rtol, *(v.reshape(-1) for v in (value, error, scale, q, p, c)))
    return value, error, used


def _scales(activation: Activation, orders: tuple[int, int], q, p) -> np.ndarray:
    """√(<f²><g²>) where both are finite; infinite where a delta function makes them so."""
    if any(quadrature.factor(activation, order).deltas for order in orders):
        return np.full_like(q, np.inf)
    norms = []
    for order, v in zip(orders, (q, p), strict=True):
        unique, back = np.unique(v, return_inverse=True)
        norms.append(quadrature.average(activation, (order, order), unique, unique, unique)[0][back])
    return np.sqrt(norms[0] * norms[1])


def _check_accuracy(activation, rtol, value, error, scale, q, p, c) -> None:
    excess = error - rtol * scale
    worst = int(np.argmax(excess))
    if np.isfinite(value).all() and not excess[worst] <= 0:
        raise SolveError(
            f"The average of {activation} is known only to {error[worst]:.1e} (scale {scale[worst]:.1e}, asked "
            f"rtol={rtol:g}) at variance {q[worst]:g}, variance_ {p[worst]:g}, covariance {c[worst]:g}. Name every "
            "point where the function or its derivative jumps in Activation(breaks=...), or raise rtol."
        )
