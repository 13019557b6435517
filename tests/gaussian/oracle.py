r"""A slow, independent reference for :math:`\langle \varphi^{(i)}(a)\,\varphi^{(j)}(b)\rangle`, to some 25 digits.

Nothing here is shared with the library. The floats ``q``, ``q_`` and ``c`` are taken as exact numbers, so the
determinant :math:`q q' - c^2` is exact near correlation ±1.

Method. Given :math:`a`, the other variable is Gaussian with mean :math:`m = c a / q` and variance
:math:`s^2 = q' - c^2 / q`, so that the value is the one-dimensional integral of :math:`\varphi^{(i)}(a)\,G_j(m, s)`
with :math:`G_j(m, s) = \langle \varphi^{(j)}(m + s w)\rangle`.

- waves, exponential, powers: textbook moments (characteristic function, Isserlis), no integral;
- piecewise linear: :math:`G_j` is closed; Gauss–Legendre panels split at the kinks and graded at the smoothed ones;
- erf, gelu: :math:`G_j` is closed; trapezoid rule, whose error for these entire functions is known in advance;
- tanh, sigmoid, softplus, silu: both integrals by the trapezoid rule with error :math:`e^{-2\pi d/h}`, where
  :math:`d` is the distance of the nearest pole; the inner one on a lattice shared by all outer points, in fixed point.

``fine=True`` repeats the calculation with finer steps: the two must agree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np

mp = mpmath.MPContext()
mp.dps = 45
BITS = 150  # of the fixed-point lattice sums
REACH = 11.7  # standard deviations kept: the rest weighs 1e-30
DIGITS = 70  # natural logarithm of the trapezoid rule's error


# The families of functions. Each has `derivative(k, x)`; those with a closed Gaussian mean have `mean(k, m, s)`.


@dataclass(frozen=True)
class Wave:
    """amplitude · sin(frequency · x + phase)."""

    amplitude: object
    frequency: object
    phase: object


@dataclass(frozen=True)
class Exponential:
    """exp(x)."""


@dataclass(frozen=True)
class Power:
    """x**power."""

    power: int


@dataclass(frozen=True)
class Ramp:
    """offset + slope · x + Σ weight · relu(x − point) + Σ height · step(x − point)."""

    offset: float = 0.0
    slope: float = 0.0
    bends: tuple = ()
    jumps: tuple = ()

    def deltas(self, k):
        """The delta functions ``(point, weight)`` in the ``k``-th derivative."""
        if k > 2 or (k == 2 and self.jumps):
            raise ValueError("derivatives of delta functions are not defined here")
        return {0: (), 1: self.jumps, 2: self.bends}[k]

    def mean(self, k, m, s):
        """Mean of the ``k``-th derivative without its delta functions."""
        if k == 2:
            return mp.zero
        line = self.offset + self.slope * m if k == 0 else mp.mpf(self.slope)
        bends = sum((w * _smooth_relu(k, m - t, s) for t, w in self.bends), mp.zero)
        jumps = sum((h * _smooth_relu(1, m - t, s) for t, h in self.jumps), mp.zero) if k == 0 else 0
        return line + bends + jumps

    def full_mean(self, k, m, s):
        """Mean of the ``k``-th derivative, delta functions included (``s`` must not vanish if there are any)."""
        return self.mean(k, m, s) + sum((w * _density((m - t) / s) / s for t, w in self.deltas(k)), mp.zero)

    def points(self):
        return [mp.mpf(t) for t, _ in self.bends + self.jumps]


@dataclass(frozen=True)
class Erf:
    """The error function."""

    def mean(self, k, m, s):
        t = mp.sqrt(1 + 2 * s * s)
        u = m / t
        if k == 0:
            return mp.erf(u)
        return 2 / mp.sqrt(mp.pi) * (-1) ** (k - 1) * mp.hermite(k - 1, u) * mp.exp(-u * u) / t**k

    def derivative(self, k, x):
        return self.mean(k, x, mp.zero)

    growth = 1  # |f(x + iy)| grows as exp(growth · y²)


@dataclass(frozen=True)
class Gelu:
    """x Φ(x), with Φ the normal distribution function."""

    def mean(self, k, m, s):
        t = mp.sqrt(1 + s * s)
        u = m / t
        return t ** (1 - k) * _smooth_relu(k, u, mp.one) - t ** (-1 - k) * _density(u, k)

    def derivative(self, k, x):
        return self.mean(k, x, mp.zero)

    growth = 0.5


@dataclass(frozen=True)
class Sigmoidal:
    """tanh, sigmoid, softplus or silu at ``x − shift``: meromorphic, nearest singularity at ``distance``."""

    name: str
    shift: float = 0.0

    @property
    def distance(self):
        return mp.pi / 2 if self.name == "tanh" else mp.pi

    def derivative(self, k, x):
        x = x - self.shift
        if self.name == "tanh":
            return 2 ** (k + 1) * _sigmoid(k, 2 * x) - (k == 0)
        if self.name == "sigmoid":
            return _sigmoid(k, x)
        if self.name == "softplus":
            return max(x, mp.zero) + mp.log1p(mp.exp(-abs(x))) if k == 0 else _sigmoid(k - 1, x)
        return x * _sigmoid(k, x) + (k * _sigmoid(k - 1, x) if k else 0)


FUNCTIONS = {
    "linear": Power(1),
    "quadratic": Power(2),
    "monomial(3)": Power(3),
    "monomial(6)": Power(6),
    "exp": Exponential(),
    "sin": Wave(1, 1, 0),
    "cos": Wave(1, 1, mp.pi / 2),
    "rbf": Wave(mp.sqrt(2), mp.sqrt(2), mp.pi / 4),
    "relu": Ramp(bends=((0.0, 1),)),
    "leaky_relu": Ramp(slope=0.01, bends=((0.0, 1 - mp.mpf(0.01)),)),
    "leaky_relu(0.2)": Ramp(slope=0.2, bends=((0.0, 1 - mp.mpf(0.2)),)),
    "abs": Ramp(slope=-1.0, bends=((0.0, 2),)),
    "erf": Erf(),
    "gelu": Gelu(),
    "tanh": Sigmoidal("tanh"),
    "sigmoid": Sigmoidal("sigmoid"),
    "softplus": Sigmoidal("softplus"),
    "silu": Sigmoidal("silu"),
    "user: clipped ramp": Ramp(offset=-1.0, bends=((-1.0, 1), (1.0, -1))),
    "user: step": Ramp(offset=-1.0, jumps=((0.3, 2),)),
    "user: shifted relu": Ramp(bends=((0.5, 1),)),
    "user: shifted tanh": Sigmoidal("tanh", 0.7),
    "user: sin(3x)": Wave(1, 3, 0),
}


def _density(u, k=0):
    """The ``k``-th derivative of the standard normal density."""
    base = mp.exp(-u * u / 2) / mp.sqrt(2 * mp.pi)
    return base if k == 0 else (-1) ** k * mp.hermite(k, u / mp.sqrt(2)) * base / mp.sqrt(2) ** k


def _smooth_relu(k, m, s):
    """The ``k``-th derivative in ``m`` of the mean of relu(m + s w); at ``s = 0`` a step is ½ at its jump."""
    if s == 0:
        return max(m, mp.zero) if k == 0 else (mp.sign(m) + 1) / 2
    u = m / s
    if k == 0:
        return m * mp.ncdf(u) + s * _density(u)
    return mp.ncdf(u) if k == 1 else _density(u, k - 2) / s ** (k - 1)


@cache
def _sigmoid_polynomial(k):
    """Coefficients in σ, lowest first, of the ``k``-th derivative of the sigmoid: d/dx P(σ) = P'(σ) (σ − σ²)."""
    if k == 0:
        return (0, 1)
    slope = [n * a for n, a in enumerate(_sigmoid_polynomial(k - 1))][1:]
    return tuple(a - b for a, b in zip([0, *slope, 0], [0, 0, *slope], strict=True))


def _sigmoid(k, x):
    sigma, total = 1 / (1 + mp.exp(-x)), mp.zero
    for coefficient in reversed(_sigmoid_polynomial(k)):
        total = total * sigma + coefficient
    return total


# One entry.


@cache
def expectation(name: str, orders: tuple[int, int], q: float, q_: float, c: float, fine: bool = False):
    """The exact value as an mpf; raises ZeroDivisionError where it is infinite."""
    f, (i, j) = FUNCTIONS[name], orders
    q, q_, c = mp.mpf(q), mp.mpf(q_), mp.mpf(c)
    if q * q_ < c * c:
        raise ValueError("the covariance matrix is not positive semi-definite")
    if q == 0 and q_ != 0:
        i, j, q, q_ = j, i, q_, q
    if isinstance(f, Wave):
        return _waves(f, i, j, q, q_, c)
    if isinstance(f, Exponential):
        return mp.exp((q + q_) / 2 + c)
    if isinstance(f, Power):
        return _powers(f.power, i, j, q, q_, c)
    if isinstance(f, Ramp):
        return _ramps(f, i, j, q, q_, c, fine)
    if isinstance(f, Sigmoidal):
        return _sigmoidals(f, i, j, q, q_, c, fine)
    return _entire(f, i, j, q, q_, c, fine)


def scale(name: str, orders: tuple[int, int], q: float, q_: float):
    """√(⟨φ⁽ⁱ⁾(a)²⟩⟨φ⁽ʲ⁾(b)²⟩), or None where a delta function makes it infinite."""
    f = FUNCTIONS[name]
    if isinstance(f, Ramp) and any(f.deltas(k) for k in orders):
        return None
    first, second = ((k, k) for k in orders)
    return mp.sqrt(expectation(name, first, q, q, q) * expectation(name, second, q_, q_, q_))


def _waves(f, i, j, q, q_, c):
    w, p, p_ = mp.mpf(f.frequency), f.phase + i * mp.pi / 2, f.phase + j * mp.pi / 2
    apart = mp.exp(-(w**2) * (q + q_ - 2 * c) / 2) * mp.cos(p - p_)
    together = mp.exp(-(w**2) * (q + q_ + 2 * c) / 2) * mp.cos(p + p_)
    return f.amplitude**2 * w ** (i + j) * (apart - together) / 2


def _powers(p, i, j, q, q_, c):
    """Isserlis: ⟨aⁿ bᵐ⟩ sums over the number ``k`` of pairs that join the two."""
    n, m = p - i, p - j
    if n < 0 or m < 0:
        return mp.zero
    total = mp.zero
    for k in range(min(n, m) + 1):
        if (n - k) % 2 == 0 and (m - k) % 2 == 0:
            ways = mp.binomial(n, k) * mp.binomial(m, k) * mp.factorial(k) * mp.fac2(n - k - 1) * mp.fac2(m - k - 1)
            total += ways * c**k * q ** ((n - k) // 2) * q_ ** ((m - k) // 2)
    return total * mp.ff(p, i) * mp.ff(p, j)


def _conditional(q, q_, c):
    """Slope of the mean of ``b`` given ``a``, and its standard deviation."""
    return (c / q, mp.sqrt(q_ - c * c / q)) if q * q_ != c * c else (c / q, mp.zero)


# Piecewise linear functions.


def _ramps(f, i, j, q, q_, c, fine):
    if q == 0:
        return f.full_mean(i, mp.zero, mp.zero) * f.full_mean(j, mp.zero, mp.zero)
    if q_ != 0 and f.deltas(j):
        i, j, q, q_ = j, i, q_, q  # a delta function is integrated first
    slope, s = _conditional(q, q_, c)
    if s == 0 and f.deltas(j):
        raise ZeroDivisionError("two delta functions of the same variable")
    root = mp.sqrt(q)
    total = mp.zero
    for t, w in f.deltas(i):
        total += w * _density(t / root) / root * f.full_mean(j, slope * mp.mpf(t), s)
    if i == 2:
        return total

    def integrand(z):
        value = f.mean(i, root * z, mp.zero)
        return value and value * _density(z) * f.full_mean(j, slope * root * z, s)

    return total + _legendre(integrand, _panels(f, slope * root, s, root, fine))


def _panels(f, slope, s, root, fine):
    """Break points in z: panels of two deviations, the kinks of f, and graded steps around the smoothed kinks of G."""
    edges = [mp.mpf(n) for n in range(-12, 13, 2)] + [t / root for t in f.points()]
    if slope != 0:
        width = s / abs(slope)
        reach = [3 * width * n for n in range(-4, 5)] if width < 1 else [mp.zero]
        edges += [t / slope + r for t in f.points() for r in reach]
    edges = sorted({e for e in edges if abs(e) <= 12})
    return sorted(edges + [(a + b) / 2 for a, b in pairwise(edges)]) if fine else edges


@cache
def _nodes():
    rule = mpmath.calculus.quadrature.GaussLegendre(mp)
    return rule.calc_nodes(4, mp.prec)


def _legendre(function: Callable, edges):
    total = mp.zero
    for a, b in pairwise(edges):
        half, mid = (b - a) / 2, (a + b) / 2
        total += half * mp.fsum(w * function(mid + half * x) for x, w in _nodes())
    return total


# Smooth functions: the trapezoid rule.


def _trapezoid(step):
    """Points of the standard normal variable and their weights."""
    n = int(mp.ceil(REACH / step))
    z = [step * k for k in range(-n, n + 1)]
    return z, [step * _density(x) for x in z]


def _entire(f, i, j, q, q_, c, fine):
    """erf and gelu. On the line Im z = y the integrand grows as exp(y²/2 + growth (q + ρ² q') y²): h follows."""
    if q == 0:
        return f.derivative(i, q) * f.derivative(j, q)
    slope, s = _conditional(q, q_, c)
    spread = 1 + 2 * f.growth * (q + slope * c)
    step = 2 * mp.pi / mp.sqrt(2 * DIGITS * spread) / (2 if fine else 1)
    root = mp.sqrt(q)
    z, weights = _trapezoid(step)
    return mp.fsum(
        w * f.derivative(i, root * x) * f.mean(j, slope * root * x, s) for x, w in zip(z, weights, strict=True)
    )


def _step(distance, fine):
    """Trapezoid step for a function of a standard normal variable, analytic for |Im z| < distance."""
    y = min(mp.mpf("0.9") * distance, mp.sqrt(2 * DIGITS))
    return 2 * mp.pi * y / (DIGITS + y * y / 2) / (2 if fine else 1)


def _sigmoidals(f, i, j, q, q_, c, fine):
    if q == 0:
        return f.derivative(i, q) * f.derivative(j, q)
    if q_ == 0 or abs(c) < mp.mpf("1e-7") * mp.sqrt(q * q_):  # Price's theorem: a Taylor series in c
        return sum(c**n / mp.factorial(n) * _mean(f, i + n, q) * _mean(f, j + n, q_) for n in range(1 if c == 0 else 5))
    if q < q_:
        i, j, q, q_ = j, i, q_, q  # the longer sum outside, the shorter inside
    slope, s = _conditional(q, q_, c)
    root = mp.sqrt(q)
    z, weights = _trapezoid(_step(f.distance / max(root, abs(slope) * root), fine))
    smoothed = _smoothed(f, j, [slope * root * x for x in z], s, fine)
    return mp.fsum(w * f.derivative(i, root * x) * g for x, w, g in zip(z, weights, smoothed, strict=True))


@cache
def _mean(f, k, q):
    if q == 0:
        return f.derivative(k, q)
    root = mp.sqrt(q)
    z, weights = _trapezoid(_step(f.distance / root, False))
    return mp.fsum(w * f.derivative(k, root * x) for x, w in zip(z, weights, strict=True))


def _smoothed(f, k, centers, s, fine):
    """⟨f⁽ᵏ⁾(m + s w)⟩ at every center m."""
    if s < mp.mpf("1e-4"):  # heat equation: a Taylor series in s²/2, its fifth term below 1e-37
        return [
            mp.fsum((s * s / 2) ** n / mp.factorial(n) * f.derivative(k + 2 * n, m) for n in range(1 if s == 0 else 5))
            for m in centers
        ]
    return _lattice(f, k, centers, s, s * _step(f.distance / s, fine))


def _lattice(f, k, centers, s, step):
    """The trapezoid rule on the points ``step · n``, in integers: function values are shared by all centers."""
    nearest = np.array([int(mp.nint(m / step)) for m in centers])
    rest = [m - int(n) * step for m, n in zip(centers, nearest, strict=True)]
    reach = int(mp.ceil(REACH * s / step))
    values = {int(n): None for n in np.unique(nearest[:, None] + np.arange(-reach, reach + 1))}
    first = min(values)
    table = np.zeros(max(values) - first + 1, dtype=object)
    for n in values:
        table[n - first] = _integer(f.derivative(k, n * step))
    start = np.array([_integer(mp.exp(-r * r / (2 * s * s))) for r in rest], dtype=object)
    total = np.zeros(len(centers), dtype=object)
    for sign in (1, -1):
        ratio = np.array([_integer(mp.exp(sign * r * step / (s * s))) for r in rest], dtype=object)
        weight = start
        for n in range(reach + 1):
            envelope = _integer(mp.exp(-((n * step / s) ** 2) / 2) * (1 if n else mp.mpf("0.5")))
            total = total + ((weight * table[nearest + (sign * n - first)]) >> BITS) * envelope
            weight = (weight * ratio) >> BITS
    unit = step / s / mp.sqrt(2 * mp.pi)
    return [mp.ldexp(mp.mpf(int(t)), -2 * BITS) * unit for t in total]


def _integer(x):
    return int(mp.nint(mp.ldexp(x, BITS)))
