r"""Closed forms of :math:`\langle\varphi(a)\varphi(b)\rangle` for a zero-mean Gaussian pair.

Notation: :math:`q = \langle a^2\rangle`, :math:`q' = \langle b^2\rangle`, :math:`c = \langle ab\rangle`,
:math:`\rho = c/\sqrt{qq'}`, :math:`\Delta = \sqrt{qq' - c^2}`. Derivatives follow from Price's theorem,
:math:`\partial_c\langle\varphi\varphi\rangle = \langle\varphi'\varphi'\rangle` and
:math:`\partial_q\langle\varphi\varphi\rangle = \tfrac12\langle\varphi''\varphi\rangle`.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from widefield.gaussian.arcsine import arc, arcsine, opening
from widefield.question.activation import Activation


def product_error(a, b, product):
    """ab − product, exactly, by Veltkamp's split of a float into two halves whose products are exact."""

    def split(x):
        big = x * (2.0**27 + 1 if x.dtype == jnp.float64 else 2.0**12 + 1)
        high = big - (big - x)
        return high, x - high

    (ah, al), (bh, bl) = split(a), split(b)
    return ((ah * bh - product) + ah * bl + al * bh) + al * bl


def _difference(q, p, c, n):
    """qq' − n c² with the rounding of both products compensated (Dekker); n is a power of two."""
    big, square = q * p, n * (c * c)
    return (big - square) + (product_error(q, p, big) - n * product_error(c, c, c * c))


@jax.custom_jvp
def determinant(q, p, c):
    r""":math:`qq' - c^2` to full relative accuracy, never negative."""
    q, p, c = jnp.broadcast_arrays(q, p, c)
    return jnp.maximum(_difference(q, p, c, 1), 0)


@determinant.defjvp
def _determinant_jvp(primals, tangents):
    (q, p, c), (dq, dp, dc) = primals, tangents
    return determinant(q, p, c), p * dq + q * dp - 2 * c * dc


def _once(x):
    """Keep what is computed per node from being computed again for every pair of a fused block."""
    return jax.lax.optimization_barrier(x)


def correlation(q, p, c, exact: bool = False):
    """The correlation and its distance to ±1; zero where a variance vanishes.

    ``exact`` takes the three numbers as exact. Otherwise a distance of a few rounding errors counts as none, so that
    duplicate inputs stay duplicates through a deep recursion.
    """
    inverse_q, inverse_p = (_once(jnp.where(v > 0, 1 / jnp.sqrt(jnp.where(v > 0, v, 1)), 0)) for v in (q, p))
    rho = c * inverse_q * inverse_p
    if exact:
        rho = jnp.clip(rho, -1, 1)
        gap = determinant(q, p, c) * inverse_q**2 * inverse_p**2 / (1 + jnp.abs(rho))
        return rho, jnp.where((q > 0) & (p > 0), jnp.clip(gap, 0, 1), 1)
    gap = 1 - jnp.abs(rho)
    return rho, jnp.where(gap > 4 * jnp.finfo(rho.dtype).eps, gap, 0)


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def relu_value(q, p, c, exact=False):
    r""":math:`\frac{\sqrt{qq'}}{2\pi}(\sin\theta + (\pi-\theta)\cos\theta)`, Eq. 49 of Segadlo et al."""
    rho, gap = correlation(q, p, c, exact)
    return _once(jnp.sqrt(q) / (2 * math.pi)) * _once(jnp.sqrt(p)) * arc(rho, gap)


@relu_value.defjvp
def _relu_value_jvp(exact, primals, tangents):
    q, p, c = primals
    dq, dp, dc = tangents
    slope = 0.5 * (relu_curve(q, p, c) * dq + relu_curve(p, q, c) * dp)
    return relu_value(q, p, c, exact), slope + relu_slope(q, p, c, exact) * dc


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def relu_slope(q, p, c, exact=False):
    r""":math:`\langle\theta(a)\theta(b)\rangle = (\pi-\theta)/2\pi`; a node of zero variance counts half."""
    return opening(*correlation(q, p, c, exact)) / (2 * math.pi)


@relu_slope.defjvp
def _relu_slope_jvp(exact, primals, tangents):
    q, p, c = primals
    dq, dp, dc = tangents
    rho, gap = correlation(q, p, c, exact)
    shift = dc - 0.5 * c * (dq / jnp.where(q > 0, q, 1) + dp / jnp.where(p > 0, p, 1))  # √(qq') dρ
    delta = jnp.sqrt(q) * jnp.sqrt(p) * jnp.sqrt(gap * (1 + jnp.abs(rho)))
    # At ρ = ±1 the slope is infinite, but a pair that is equal for every parameter has dρ = 0: no contribution.
    return relu_slope(q, p, c, exact), jnp.where(delta > 0, shift / (2 * math.pi * jnp.where(delta > 0, delta, 1)), 0)


def relu_curve(q, p, c):
    r""":math:`\langle\delta(a)\,b_+\rangle = \Delta/2\pi q`."""
    return jnp.where(q > 0, jnp.sqrt(determinant(q, p, c)) / (2 * math.pi * jnp.where(q > 0, q, 1)), 0)


def _kinked(slope: float, orders: tuple[int, int], q, p, c, exact):
    """slope·x below zero and x above; relu at 0, abs at −1: x·slope + (1 − slope)·relu."""
    if orders[0] < orders[1]:
        return _kinked(slope, orders[::-1], p, q, c, exact)
    jump, odd = (1 - slope) ** 2, 0.5 * (1 - slope**2)
    singular = lambda: 1 / (2 * math.pi * jnp.sqrt(determinant(q, p, c)))  # noqa: E731
    match orders:
        case (0, 0):
            return slope * c + jump * relu_value(q, p, c, exact)
        case (1, 0):
            rho, gap = correlation(q, p, c, exact)
            return odd * (jnp.sqrt(p) * jnp.where(rho < 0, gap, 1 + rho) / math.sqrt(2 * math.pi))
        case (1, 1):
            return slope + jump * relu_slope(q, p, c, exact)
        case (2, 0):
            return jump * relu_curve(q, p, c)
        case (2, 1):
            return odd * (1 / jnp.sqrt(2 * math.pi * q) + 0 * (p + c))
        case (2, 2):
            return jump * singular()
        case (3, 0):
            return odd * (-c / q / jnp.sqrt(2 * math.pi * q) + 0 * p)
        case (3, 1):
            return jump * (-c / q * singular())
        case (4, 0):
            return jump * (-_difference(q, p, c, 2) / q**2 * singular())
    return None


def _erf(q, p, c):
    return 2 / math.pi * arcsine(c * _once(2 / jnp.sqrt(1 + 2 * q)) * _once(1 / jnp.sqrt(1 + 2 * p)))


def _erf_slope(exact: bool, q, p, c):
    r""":math:`\frac{4}{\pi}\left[(1+2q)(1+2q') - 4c^2\right]^{-1/2}`."""
    return 4 / math.pi / jnp.sqrt(1 + 2 * (q + p) + 4 * (determinant(q, p, c) if exact else q * p - c * c))


def _gelu(q, p, c):
    """Stein's lemma on <a b Φ(a) Φ(b)>, with <Φ(a)Φ(b)> = 1/4 + asin(s)/2π."""
    A, B = 1 + q, 1 + p
    delta = determinant(q, p, c)
    rest = (delta + c * c * (1 / A + 1 / B)) / jnp.sqrt(A + p + delta)
    return c / 4 + (c * arcsine(c / (jnp.sqrt(A) * jnp.sqrt(B))) + rest) / (2 * math.pi)


@jax.custom_jvp
def _sine(q, p, c):
    size = jnp.abs(c)
    return jnp.where(c < 0, 0.5, -0.5) * jnp.exp(size - 0.5 * (q + p)) * jnp.expm1(-2 * size)


@jax.custom_jvp
def _cosine(q, p, c):
    mean = 0.5 * (q + p)
    return 0.5 * (jnp.exp(c - mean) + jnp.exp(-c - mean))


@_sine.defjvp
def _sine_jvp(primals, tangents):
    (q, p, c), (dq, dp, dc) = primals, tangents
    return _sine(q, p, c), _cosine(q, p, c) * dc - 0.5 * _sine(q, p, c) * (dq + dp)


@_cosine.defjvp
def _cosine_jvp(primals, tangents):
    (q, p, c), (dq, dp, dc) = primals, tangents
    return _cosine(q, p, c), _sine(q, p, c) * dc - 0.5 * _cosine(q, p, c) * (dq + dp)


def _rbf(q, p, c, i=0, j=0):
    """Derivatives shift the phase of the sine by π/2 each, so that sums and differences of phases are whole quarters."""
    cosine = (1.0, 0.0, -1.0, 0.0)
    near, far = cosine[(i - j) % 4], cosine[(i + j - 1) % 4]
    return math.sqrt(2.0) ** (i + j) * (near * jnp.exp(2 * c - q - p) + far * jnp.exp(-2 * c - q - p))


def _monomial(power: int, q, p, c):
    """Sum over the Hermite components of x^power."""
    total = jnp.zeros_like(c + q + p)
    for k in range(power % 2, power + 1, 2):
        m = (power - k) // 2
        weight = math.factorial(power) ** 2 / (math.factorial(k) * (2**m * math.factorial(m)) ** 2)
        total = total + weight * (q * p) ** m * c**k
    return total


_SMOOTH: dict[str, Callable] = {
    "linear": lambda q, p, c: c + 0 * (q + p),
    "erf": _erf,
    "gelu": _gelu,
    "sin": _sine,
    "cos": _cosine,
    "rbf": _rbf,
    "exp": lambda q, p, c: jnp.exp(0.5 * (q + p) + c),
    "quadratic": lambda q, p, c: q * p + 2 * c * c,
}


def value_function(activation: Activation) -> Callable | None:
    """The smooth closed form of an activation as a function of (q, q', c), if there is one."""
    if not activation.is_named:
        return None
    if activation.name == "monomial":
        return partial(_monomial, int(activation.parameters[0]))
    return _SMOOTH.get(activation.name)


def kink_slope(activation: Activation) -> float | None:
    """Slope below zero of relu, leaky relu or abs; None for others."""
    if not activation.is_named:
        return None
    return {"relu": 0.0, "abs": -1.0, "leaky_relu": (activation.parameters or (0.0,))[0]}.get(activation.name)


_KINKED = ((0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (4, 0))
_WITH_PARITY = ("linear", "erf", "sin", "cos", "quadratic", "monomial")


def has_closed_form(activation: Activation, orders: tuple[int, int] = (0, 0)) -> bool:
    """Whether <φ^(i)(a) φ^(j)(b)> is known in closed form."""
    if kink_slope(activation) is not None:
        return (max(orders), min(orders)) in _KINKED
    if sum(orders) % 2:
        return activation.is_named and activation.name in ("exp", "rbf", *_WITH_PARITY)
    return value_function(activation) is not None


def moment(activation: Activation, orders: tuple[int, int], q, p, c, exact: bool = False):
    r""":math:`\langle\varphi^{(i)}(a)\varphi^{(j)}(b)\rangle` in closed form, where `has_closed_form`."""
    slope = kink_slope(activation)
    if slope is not None:
        return _kinked(slope, orders, q, p, c, exact)
    value, (i, j) = value_function(activation), orders
    assert value is not None, f"{activation} has no closed form"
    if activation.name == "exp":
        return value(q, p, c)
    if activation.name == "rbf":
        return _rbf(q, p, c, i, j)
    if (i + j) % 2:  # odd against even
        return jnp.zeros_like(q + p + c)
    if activation.name == "erf" and min(orders) > 0:
        value, (i, j) = partial(_erf_slope, exact), (i - 1, j - 1)
    for _ in range(min(i, j)):
        value = _derivative(value, 2)
    for _ in range(abs(i - j) // 2):
        value = _derivative(value, 0 if i > j else 1, 2.0)
    return value(q, p, c)


def _derivative(function: Callable, argument: int, factor: float = 1.0) -> Callable:
    """Elementwise derivative with respect to one of (q, q', c), times ``factor``."""

    def derived(*args):
        points = jnp.broadcast_arrays(*args)
        along = [jnp.zeros_like(a) for a in points]
        along[argument] = jnp.full_like(points[argument], factor)
        return jax.jvp(function, tuple(points), tuple(along))[1]

    return derived
