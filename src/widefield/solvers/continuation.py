"""Following a branch of solutions along a positive parameter: where a number changes its sign, where a branch ends.

``evaluate(value, start)`` gives a number, NaN where nothing was reached, and the solution that it was read from;
``start`` is a solution nearby, which is how each evaluation profits from the one before.
"""

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

import numpy as np

S = TypeVar("S")
Evaluate = Callable[[float, S | None], tuple[float, S]]
PATIENCE = 3  # losses in a row after which a search is given up
MAX_EVALUATIONS = 200


class Sample(NamedTuple, Generic[S]):
    """A ``number`` and the ``solution`` that it was read from, at one ``value`` of the parameter."""

    value: float
    number: float
    solution: S


class Scan(NamedTuple, Generic[S]):
    """What a search met, in its order; it ends at the first negative number, or where the branch is lost."""

    samples: tuple[Sample[S], ...]

    @property
    def lost(self) -> int:
        """Values at which nothing was reached."""
        return sum(not np.isfinite(sample.number) for sample in self.samples)

    @property
    def bracket(self) -> tuple[Sample[S], Sample[S]] | None:
        """The last two samples where a positive number is followed by a negative one."""
        if len(self.samples) < 2:
            return None
        before, after = self.samples[-2:]
        return (before, after) if before.number >= 0 > after.number else None


def scan(evaluate: Evaluate[S], values: Iterable[float], start: S | None = None) -> Scan[S]:
    """Evaluate at one value after the other until the number is negative; `PATIENCE` losses in a row end the search."""
    samples: list[Sample[S]] = []
    for value in values:
        number, solution = evaluate(value, start)
        samples.append(Sample(value, number, solution))
        start = solution
        if number < 0 or (len(samples) >= PATIENCE and all(np.isnan(s.number) for s in samples[-PATIENCE:])):
            break
    return Scan(tuple(samples))


def crossing(evaluate: Evaluate[S], before: Sample[S], after: Sample[S], *, rtol: float = 1e-13) -> Sample[S] | None:
    """The sample where a number changes its sign, to ``rtol`` in the value; None where the branch is lost on the way.

    Method: Chandrupatla (1997), bisection or inverse quadratic interpolation in the logarithm of the value, each from
    the solution of the last evaluation.
    """
    near, far = before, after
    other, share = far, 0.5
    for _ in range(MAX_EVALUATIONS):
        x, y = np.log(near.value), np.log(far.value)
        value = float(np.exp(x + share * (y - x)))
        new = Sample(value, *evaluate(value, near.solution))
        if not np.isfinite(new.number):
            return None
        if (new.number < 0) == (near.number < 0):
            other, near = near, new
        else:
            other, far, near = far, near, new
        best = near if abs(near.number) < abs(far.number) else far
        width = abs(np.log(far.value / near.value))
        if best.number == 0 or width <= 2 * rtol:
            return best
        share = float(np.clip(_share(near, far, other), rtol / width, 1 - rtol / width))
    return None


def _share(near: Sample, far: Sample, other: Sample) -> float:
    """Where between ``near`` and ``far`` to look next: interpolated where that is safe, otherwise half way."""
    x, y, z = (np.log(sample.value) for sample in (near, far, other))
    f, g, h = near.number, far.number, other.number
    if z == y or h in (f, g):
        return 0.5
    position, height = (x - y) / (z - y), (f - g) / (h - g)
    if not (0 <= position <= 1 and 1 - np.sqrt(1 - position) < height < np.sqrt(position)):
        return 0.5
    return f / (g - f) * h / (g - h) + (z - x) / (y - x) * f / (h - f) * g / (h - g)


def trace(solve: Callable[[float, S], S | None], values: Iterable[float], start: S | None) -> list[S | None]:
    """``solve(value, start)`` at each value from the solution before it; None from where the branch ends."""
    solutions: list[S | None] = []
    for value in values:
        start = None if start is None else solve(value, start)
        solutions.append(start)
    return solutions


def branch_end(
    solve: Callable[[float, S], S | None], value: float, start: S, step: float, *, limit: float, rtol: float = 1e-10
) -> tuple[float, S] | None:
    """The last value at which a branch exists, going from ``value`` by factors ``step``, and its solution there.

    Halves the interval until it is ``rtol`` wide. None where the branch still exists at the factor ``limit``.
    """
    alive, solution = value, start
    while True:
        ahead = alive * step
        if (ahead / value > limit) == (limit > 1):
            return None
        there = solve(ahead, solution)
        if there is None:
            break
        alive, solution = ahead, there
    lost = alive * step
    while abs(np.log(lost / alive)) > rtol:
        middle = float(np.sqrt(lost * alive))
        there = solve(middle, solution)
        if there is None:
            lost = middle
        else:
            alive, solution = middle, there
    return float(np.sqrt(lost * alive)), solution
