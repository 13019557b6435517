"""Following a branch of solutions along a parameter: where a sign changes, and where a branch ends."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.optimize


def follow(solve: Callable[[float, Any], Any], values: Iterable[float], start: Any) -> list[Any]:
    """``solve(value, start)`` at each value from the solution before it; None from where the branch ends."""
    found: list[Any] = []
    for value in values:
        solution = None if start is None else solve(value, start)
        found.append(solution)
        start = solution
    return found


def first_sign_change(function: Callable[[float], float], values: Sequence[float]) -> tuple[float, float] | None:
    """The first two neighbours of ``values`` between which a function that is positive at first turns negative."""
    if function(values[0]) < 0:
        return None
    for before, after in itertools.pairwise(values):
        if function(after) < 0:
            return before, after
    return None


def crossing(function: Callable[[float], float], before: float, after: float, *, rtol: float = 1e-13) -> float:
    """Where a function of a positive parameter changes its sign, to a relative accuracy."""
    log = scipy.optimize.brentq(
        lambda t: function(float(np.exp(t))), np.log(before), np.log(after), xtol=rtol, rtol=1e-14
    )
    return float(np.exp(log))


def branch_end(
    solve: Callable[[float, Any], Any], value: float, start: Any, step: float, *, limit: float, rtol: float = 1e-10
) -> tuple[float, Any] | None:
    """The last value at which a branch exists, going from ``value`` by factors ``step``, and its solution there.

    Halves the interval until it is ``rtol`` wide. None where the branch still exists at the factor ``limit``.
    """
    alive, solution = value, start
    while True:
        ahead = alive * step
        if (ahead / value > limit) == (limit > 1):
            return None
        found = solve(ahead, solution)
        if found is None:
            break
        alive, solution = ahead, found
    lost = alive * step
    while abs(np.log(lost / alive)) > rtol:
        middle = float(np.sqrt(lost * alive))
        found = solve(middle, solution)
        if found is None:
            lost = middle
        else:
            alive, solution = middle, found
    return float(np.sqrt(lost * alive)), solution
