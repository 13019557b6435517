"""The fixed point of a saddle map on given nodes: Anderson acceleration, and labels grown from weak ones."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array

from widefield.answer.certificate import Status
from widefield.solvers.anderson import AndersonSolver
from widefield.theories.posterior.nonlinear.saddle_map import SaddleMap

MEMORY, DAMPING = 6, 0.3  # the map's eigenvalues reach −5
ON_THE_WAY = 1e-5  # tolerance at weaker labels
MAX_RATIO, MIN_RATIO, MAX_TRIES = 4.0, 1.005, 100  # of successive label sizes


class Converged(NamedTuple):
    """Where an iteration ended, and how."""

    vector: Array
    status: Status
    steps: int


def iterate(m: SaddleMap, start: Array, tolerance: float, max_steps: int) -> Converged:
    """Anderson acceleration from ``start``; a map that is NaN from the start on ends as diverged or nonfinite."""
    accuracy: Any = jnp.asarray(tolerance)  # an array: a number would be compiled in
    solver = AndersonSolver(accuracy, accuracy, memory=MEMORY, damping=DAMPING)
    solution: Any = optx.fixed_point(m, solver, start, max_steps=max_steps, throw=False)
    if solution.result == optx.RESULTS.successful:
        status = Status.success
    elif solution.result == optx.RESULTS.nonlinear_max_steps_reached:
        status = Status.not_converged
    else:
        status = Status.diverged if m.grows else Status.nonfinite
    return Converged(solution.value, status, int(solution.stats["num_steps"]))


def grow_labels(m: SaddleMap, prior: Array, tolerance: float, max_steps: int) -> Converged:
    """Follow the branch from weak labels to the given ones, by secant steps in the logarithm of their size.

    Strong labels leave no density at the prior: the pull on the features falls only once they have grown.
    """
    path: list[tuple[float, Array]] = []
    low, ratio, steps = 1.0, 2.0, 0
    for _ in range(MAX_TRIES):
        goal = min(1.0, path[-1][0] * ratio) if path else 0.5 * low
        part = eqx.tree_at(lambda s: s.problem.labels, m, goal * m.problem.labels)
        point = iterate(part, _secant(path, goal, prior), tolerance if goal == 1 else ON_THE_WAY, max_steps)
        steps += point.steps
        if point.status is Status.success:
            path, ratio = [*path[-1:], (goal, point.vector)], min(ratio**1.5, MAX_RATIO)
            if goal == 1:
                return point._replace(steps=steps)
        elif not path:
            low = goal
        elif (ratio := np.sqrt(ratio)) < MIN_RATIO:
            break
    return Converged(path[-1][1] if path else prior, Status.diverged if m.grows else Status.not_converged, steps)


def _secant(path: list[tuple[float, Array]], goal: float, prior: Array) -> Array:
    """A guess at ``goal`` from the last two points of a path."""
    if len(path) < 2:
        return path[-1][1] if path else prior
    (before, old), (now, new) = path
    return new + (new - old) * np.log(goal / now) / np.log(now / before)
