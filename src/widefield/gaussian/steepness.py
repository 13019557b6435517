r"""Where a user's function varies fast: panels on which it is a polynomial, found by a deterministic scan.

The named activations change on the scale of 1, and their breaks are known. Of a user's function nothing is known: two sets
of nodes that both miss a narrow feature agree with each other. So the axis is cut into shells ±[2^k, 2^(k+1)], every side of
a shell is looked at in 2^14 points, and panels are halved until the polynomial of degree 15 through 16 Gauss–Legendre nodes
meets the function at all the points within. A panel that stays rough down to 2^-26 of its shell holds a jump or a kink.
Limits: a feature that is narrower than `NARROWEST` of its distance from the origin, or lower than 1e-11 of the function
around it, is not seen.
"""

import math
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

from widefield.answer.certificate import SolveError
from widefield.gaussian import rules
from widefield.question.activation import NAMED, Activation

POINTS = 2**14  # on each side of a shell
PROBES = (64, 1024, POINTS)
NARROWEST = 1 / POINTS
NODES = 16
TOLERANCE = 1e-11  # of the largest value around, within a factor of 64 in x
FLOOR = 2.0**-26  # of a shell: the width at which a panel is given up as rough
MAX_PANELS = 240  # of one order
EPS = float(np.finfo(float).eps)
DEPTH = 24  # shells below the reach; what lies within the last one has no weight


class Steepness(NamedTuple):
    """``edges`` of panels that resolve the function, none where the usual ones do; ``rough`` is a point where none do."""

    edges: tuple[float, ...] = ()
    rough: float | None = None


def level_of(largest: float) -> int:
    """The power of two that a variance stays below. Levels keep shapes, and so compiled code, from call to call."""
    return max(-8, math.ceil(math.log2(max(largest, 1e-300))))


@lru_cache
def derivative(function, order: int):
    """The ``order``-th derivative of a scalar JAX function, on NumPy arrays and always in float64."""
    for _ in range(order):
        function = jax.grad(function)
    compiled = jax.jit(jax.vmap(function))

    def derived(x: np.ndarray) -> np.ndarray:
        padded = np.zeros(_room(np.size(x)))
        padded[: np.size(x)] = np.ravel(x)
        with jax.enable_x64(True):
            return np.asarray(compiled(padded))[: np.size(x)].reshape(np.shape(x))

    return derived


def _room(size: int) -> int:
    """The length that arrays of this size are padded to, at most an eighth more where it matters: each length compiles."""
    step = 1 << max(0, size.bit_length() - 4)
    return max(4096, -(-size // step) * step)


def usual_levels(deviation: float) -> int:
    """Halvings towards a center, down to a fraction of the 1/deviation on which a smooth function changes."""
    return 2 * math.ceil((math.log2(max(deviation, 1.0)) + 4) / 2)


@lru_cache
def check_function(activation: Activation) -> None:
    """Refuse a user's function that is not a real number for every real number."""
    if _is_known(activation):
        return
    x = np.linspace(-2.03, 2.01, 6).reshape(3, 2)
    with jax.enable_x64(True):
        together = np.asarray(activation.function(x))
    if together.dtype.kind != "f":
        raise ValueError(
            f"`activation` must return real floating-point numbers, but {activation} gives {together.dtype}."
        )
    alone = derivative(activation.function, 0)(x)
    if np.isnan(together).any() or not np.isfinite(alone).any():
        raise ValueError(f"`activation` must be finite, but {activation} gives {together.ravel()} at {x.ravel()}.")
    if not np.allclose(together, alone, rtol=1e-6, atol=1e-300):
        raise ValueError(
            f"`activation` must act entry by entry, but {activation} gives {together.ravel()} for an array and "
            f"{alone.ravel()} for its entries."
        )


@lru_cache(maxsize=512)
def steepness(activation: Activation, order: int, level: int) -> Steepness:
    """What the scan finds of φ^(order) for variances up to 2^level; named activations are not scanned.

    A jump of a lower derivative counts as rough: φ^(order) has a delta function there that nobody declared.
    """
    if _is_known(activation):
        return Steepness()
    lower = steepness(activation, order - 1, level).rough if order else None
    if lower is not None:
        return Steepness(rough=lower)
    function, deviation = derivative(activation.function, order), 2.0 ** (level / 2)
    top = math.ceil(math.log2(rules.REACH * deviation))
    shells = [_shell(activation, order, k) for k in range(top - DEPTH, top)]
    for shell in reversed(shells):
        if shell.rough is not None:
            return shell
    inner, scale = 2.0 ** (top - DEPTH), max(_scale(activation, order, k) for k in range(top - DEPTH, top - 3))
    if 0.0 not in activation.breaks and _misfit(function, -inner, inner, PROBES[0])[0] > TOLERANCE * scale:
        return Steepness(rough=0.0)
    edges = np.unique([-inner, 0.0, inner, *(x for shell in shells for x in shell.edges)])
    if len(edges) > MAX_PANELS:
        return Steepness(rough=float(edges[np.argmin(np.diff(edges))]))
    if _usual_panels_do(function, activation.breaks, deviation, edges):
        return Steepness()
    for k in range(top - DEPTH, top):  # shells that one panel on either side can replace
        ends = 2.0 ** (k + 1), -(2.0 ** (k + 1))
        if len(_shell(activation, order, k).edges) > 4 or any(b and abs(b) < ends[0] for b in activation.breaks):
            break
        if any(_misfit(function, min(0.0, x), max(0.0, x), POINTS)[0] > TOLERANCE * scale for x in ends):
            break
        inner = ends[0]
    return Steepness(tuple(float(x) for x in edges if x == 0 or abs(x) >= inner))


def _is_known(activation: Activation) -> bool:
    """Whether this is one of the library's own functions, or made by the library from one (a power, say)."""
    made: Any = activation.function
    ours = isinstance(made, partial) and made.func.__module__.startswith("widefield.") and made.args
    return activation.is_named or bool(ours and any(made.args[0] is known.function for known in NAMED.values()))


@lru_cache(maxsize=4096)
def _shell(activation: Activation, order: int, k: int) -> Steepness:
    """All edges within ±[2^k, 2^(k+1)], the ends included."""
    function, scale = derivative(activation.function, order), _scale(activation, order, k)
    edges, rough = [], None
    for left, right in ((2.0**k, 2.0 ** (k + 1)), (-(2.0 ** (k + 1)), -(2.0**k))):
        ends = [left, *(b for b in activation.breaks if left < b < right), right]
        pending = list(pairwise(ends))
        edges += ends
        while pending and rough is None:
            a, b = pending.pop(0)
            # As many probes to a length as in the whole shell.
            n_probes = next(n for n in PROBES if n >= POINTS * (b - a) / 2.0**k)
            misfit, largest = _misfit(function, a, b, n_probes)
            scale = max(scale, largest)  # what is high and narrow is not met at once
            if misfit <= TOLERANCE * scale:
                continue
            middle = 0.5 * (a + b)
            if b - a <= FLOOR * 2.0**k or len(edges) > MAX_PANELS:
                rough = middle
            edges.append(middle)
            pending += [(a, middle), (middle, b)]
    return Steepness(tuple(edges), rough)


@lru_cache(maxsize=8192)
def _scale(activation: Activation, order: int, k: int) -> float:
    """The largest value within ±[2^(k−5), 2^(k+1)]."""
    distance = np.geomspace(2.0 ** (k - 5), 2.0 ** (k + 1), (PROBES[1] + NODES) // 2)
    x = np.concatenate([distance, -distance])
    values = np.abs(_values(derivative(activation.function, order), x))
    if order == 0 and np.isnan(values).any():
        raise ValueError(
            f"`activation` must be finite, but {activation} is NaN at x = {x[np.argmax(np.isnan(values))]:g}."
        )
    return float(np.max(values, where=np.isfinite(values), initial=0.0))


def _values(function, x: np.ndarray) -> np.ndarray:
    """A function at some points, padded to one of two sizes: each is compiled once."""
    size = PROBES[1] + NODES if x.size <= PROBES[1] + NODES else POINTS + NODES
    flat = np.pad(x.ravel(), (0, -x.size % size), mode="edge").reshape(-1, size)
    return np.concatenate([function(row) for row in flat])[: x.size].reshape(x.shape)


def _misfit(function, left: float, right: float, n_probes: int) -> tuple[float, float]:
    """Largest distance of a function from the polynomial through its values at the nodes of a panel, and largest value."""
    half, middle = 0.5 * (right - left), 0.5 * (left + right)
    probes, fit = _fit(n_probes)
    values = _values(function, middle + half * probes)
    off = np.abs(values[NODES:] - fit @ values[:NODES])
    # Where the function is steep it knows x to a rounding only.
    rounding = 64 * EPS * max(abs(left), abs(right)) * np.ptp(values[:NODES]) / (right - left)
    finite = np.isfinite(off)
    worst, largest = (np.max(v, where=finite, initial=0.0) for v in (off - rounding, np.abs(values[NODES:])))
    return float(worst), float(largest)


@lru_cache
def _fit(n_probes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and even probes of [−1, 1], and the matrix from values at the nodes to the polynomial at the probes."""
    probes = (2 * np.arange(n_probes) + 1) / n_probes - 1
    return np.concatenate([rules.legendre(NODES)[0], probes]), _interpolation(probes)


def _interpolation(t: np.ndarray) -> np.ndarray:
    nodes, weight = rules.legendre(NODES)
    project = weight[:, None] * np.polynomial.legendre.legvander(nodes, NODES - 1) * (np.arange(NODES) + 0.5)
    return np.polynomial.legendre.legvander(t, NODES - 1) @ project.T


def _usual_panels_do(function, breaks: tuple[float, ...], deviation: float, edges: np.ndarray) -> bool:
    """Whether the panels made for ordinary functions meet this one at the nodes of the panels that resolve it."""
    nodes = rules.legendre(NODES)[0]
    centers = np.asarray(breaks or (0.0,)) / deviation
    usual = deviation * np.unique(rules.edges(centers, rules.REACH, usual_levels(deviation)))
    left, right = usual[:-1, None], usual[1:, None]
    values = _values(function, 0.5 * (left + right) + 0.5 * (right - left) * nodes)
    x = (0.5 * (edges[:-1] + edges[1:])[:, None] + 0.5 * np.diff(edges)[:, None] * nodes).ravel()
    x = x[(x > usual[0]) & (x < usual[-1])]
    panel = np.searchsorted(usual, x) - 1
    t = (2 * x - usual[panel] - usual[panel + 1]) / (usual[panel + 1] - usual[panel])
    exact = _values(function, x)
    off = np.abs(exact - np.einsum("xn,xn->x", _interpolation(t), values[panel]))
    by_size = np.argsort(np.abs(x))
    scale = np.empty_like(x)
    scale[by_size] = np.maximum.accumulate(np.where(np.isfinite(exact), np.abs(exact), 0.0)[by_size])
    return bool(np.all((off <= 2 * TOLERANCE * scale) | ~np.isfinite(off)))


def note_of(activation: Activation) -> tuple[str, ...]:
    """What a certificate says of averages of a user's function."""
    if _is_known(activation):
        return ()
    return (f"features of {activation} narrower than {NARROWEST:.0e} of their distance from 0 are not seen",)


def refuse_rough(activation: Activation, order: int, level: int) -> tuple[float, ...]:
    """The edges that φ^(order) needs; raises where it is rough."""
    found = steepness(activation, order, level)
    if found.rough is not None:
        raise SolveError(
            f"The function {activation} jumps, bends or oscillates too fast near x = {found.rough:.6g}, which averages of its "
            f"derivative of order {order} cannot resolve. Name every point where the function or its derivative jumps in "
            "Activation(breaks=...), or lower the variances."
        )
    return found.edges
