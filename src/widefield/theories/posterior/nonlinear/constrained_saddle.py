r"""The saddle point of a nonlinear network with one correlation of its features held at a value.

Eqs. (posterior.17), (posterior.18): the field :math:`\eta` that holds it is one more unknown, the constraint one more
equation. Method: Newton's, whose Jacobian also says what a finer grid changes and whether anything else is unstable: its
determinant is :math:`\det(1-J)\,dm/d\eta`, positive at a minimum and, because both factors change their sign there,
where the held correlation alone is unstable.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.answer.certificate import Status
from widefield.gaussian.kernels import parity_of
from widefield.question.activation import Activation
from widefield.solvers.linearization import linearize
from widefield.solvers.newton import evaluate, fixed_point, unit_of
from widefield.theories.posterior.nonlinear import moments, saddle_map
from widefield.theories.posterior.nonlinear.saddle import MAX_DIMENSION, levels_of
from widefield.theories.posterior.nonlinear.saddle_map import SaddleMap, State
from widefield.theories.posterior.problem import Array, Problem, correlation, correlation_forms

REACHED = (Status.success, Status.saddle, Status.inaccurate)  # the point was reached, whatever it is worth
ON_THE_WAY, CLIMB = 1e-4, np.arange(1, 20) / 20  # accuracy and correlations of a climb
HALVINGS = 8  # of the way to a value that is not reached
Forms = tuple[Array, Array, Array]


class ConstrainedMap(eqx.Module):
    """A `SaddleMap` with one more unknown as last entry of its vector; it rests where the correlation is ``target``."""

    map: SaddleMap
    forms: Forms
    target: Float[Array, ""]

    @abstractmethod
    def at(self, vector: Array) -> tuple[SaddleMap, State, moments.Density, Array]:
        """The map, the state, its density and its correlation."""

    def free_energy(self, vector: Array) -> Array:
        m, state, density, _ = self.at(vector)
        return saddle_map.free_energy_at(m, state, density)

    def __call__(self, vector: Array, args: None = None) -> Array:
        m, state, density, order = self.at(vector)
        return jnp.append(m.image(state, density), vector[-1] + self.target - order)


class FieldMap(ConstrainedMap):
    """The last entry is the field that holds the correlation."""

    def at(self, vector: Array) -> tuple[SaddleMap, State, moments.Density, Array]:
        state = self.map.unpack(vector[:-1])
        order, slope = correlation(state.feature, self.forms)
        density = self.map.density(state)
        return self.map, state, density._replace(conjugate=density.conjugate + vector[-1] * slope), order


@eqx.filter_jit
def _free_energy(constrained: ConstrainedMap, vector: Array) -> Array:
    return constrained.free_energy(vector)


class Point(NamedTuple):
    """A constrained saddle point: the ``vector`` of its map, and what a finer grid says about it."""

    vector: np.ndarray
    state: State
    free_energy: float
    residual: float
    error: float
    status: Status

    @property
    def reached(self) -> bool:
        return self.status in REACHED

    @property
    def last(self) -> float:
        """The unknown beside the state: the field, or what takes its place."""
        return float(self.vector[-1])


@dataclass(frozen=True, eq=False)
class ConstrainedSaddle:
    """Solves for constrained saddle points on a pair of ``nodes``, grids to solve on and finer ones to judge on.

    ``make`` says what the last entry of a vector is. Where a point needs finer grids, the solver with these comes back
    beside it and serves for its neighbors.
    """

    frame: SaddleMap
    forms: Forms
    make: Callable[[SaddleMap, Forms, Array], ConstrainedMap]
    rtol: float
    max_steps: int
    levels: tuple[Callable[[], moments.Nodes], ...]
    level: int
    nodes: tuple[moments.Nodes, moments.Nodes]

    def on_vector(self, state: State, last: float = 0.0) -> tuple[float, Array]:
        """A free stationary state as a constrained point: its correlation and its vector."""
        state = State(*map(np.asarray, state))
        return float(correlation(state.feature, self.forms)[0]), np.append(self.frame.pack(state), last)

    def map_at(self, target: float, finer: bool = False) -> ConstrainedMap:
        """The map on the present grid, or on the finer one."""
        return self.make(self.frame.on(self.nodes[finer]), self.forms, np.asarray(target))

    def reach(self, vector: Array, begin: float, target: float) -> tuple[Point, "ConstrainedSaddle"]:
        """The point at ``target`` from that at ``begin``, by shorter steps where a long one fails."""
        solver, at, step = self, begin, target - begin
        for _ in range(2**HALVINGS):
            ahead = target if abs(target - at) <= 1.0001 * abs(step) else at + step
            point, solver = solver.solve(vector, ahead)
            if not point.reached:
                step *= 0.5
                if abs(step) < abs(target - begin) / 2**HALVINGS:
                    break
                continue
            at, vector = ahead, point.vector
            if at == target:
                break
        return point, solver

    def solve(self, vector: Array, target: float) -> tuple[Point, "ConstrainedSaddle"]:
        """Newton's method on one grid, judged on the next finer one, and on finer ones where they differ."""
        here, there = self.map_at(target), self.map_at(target, finer=True)
        solved = fixed_point(here, vector, 0.01 * self.rtol, self.max_steps)
        vector, unit = solved.vector, unit_of(solved.vector)
        gap = np.asarray(evaluate(there, vector)) - vector
        if not solved.converged or not np.isfinite(gap).all():
            finite = solved.finite and (np.isfinite(gap).all() or not solved.converged)
            error, status = np.inf, Status.not_converged if finite else Status.nonfinite
        else:
            error, status = float(np.abs(solved.jacobian.solve(gap[None])).max()) / unit, Status.inaccurate
            if error <= self.rtol:
                unstable = solved.jacobian.orientation() < 0 and linearize(here, vector).orientation() < 0
                status = Status.saddle if unstable else Status.success
            elif self.level + 2 < len(self.levels):
                nodes = self.nodes[1], self.levels[self.level + 2]()
                return replace(self, level=self.level + 1, nodes=nodes).solve(vector, target)
        free, residual = float(_free_energy(there, vector)), float(np.abs(gap).max()) / unit
        return Point(vector, self.frame.unpack(vector[:-1]), free, residual, error, status), self


def constrained_saddle(
    problem: Problem,
    activation: Activation,
    pair: tuple[int, int],
    rtol: float,
    max_steps: int,
    make: Callable[[SaddleMap, Forms, Array], ConstrainedMap] = FieldMap,
) -> ConstrainedSaddle:
    """A solver for the correlation of a pair of states, on the coarsest grids."""
    prior = saddle_map.prior_state(problem, activation)
    frame = saddle_map.saddle_map(problem, activation, None, prior, np.ones(problem.input_kernel.shape, bool))
    if frame.dimension > MAX_DIMENSION:
        raise ValueError(
            f"`task` must leave at most {MAX_DIMENSION} dimensions, depth times samples, for the landscape of a "
            f"nonlinear network, got {frame.dimension}."
        )
    levels = tuple(levels_of(frame, parity_of(activation) != 0))
    nodes = levels[0](), levels[1]()
    return ConstrainedSaddle(frame, correlation_forms(problem, *pair), make, rtol, max_steps, levels, 0, nodes)


def climb_to_coherent(problem: Problem, activation: Activation, state: State, max_steps: int) -> State | None:
    """From an unstable incoherent state up the correlation of the last two states, to where its field vanishes."""
    pair = problem.depth - 2, problem.depth - 1
    solver = constrained_saddle(problem, activation, pair, ON_THE_WAY, max_steps)
    at, vector = solver.on_vector(state)
    pulled = False
    for size in CLIMB:
        point, solver = solver.reach(vector, at, float(size))
        if not point.reached:
            return None
        if pulled and point.last >= 0:
            return point.state
        pulled, at, vector = point.last < 0, float(size), point.vector
    return None
