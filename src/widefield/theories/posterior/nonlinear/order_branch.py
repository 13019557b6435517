r"""The coherent branch of a nonlinear network as a function of its order parameter m instead of the labels' size.

The factor on the labels or the temperature, its logarithm, is one more unknown beside :math:`(\Phi, C)`. Where the branch
ends, two states merge as functions of the factor and every iteration slows down; as functions of m nothing happens there
but :math:`df/dm = 0`. How it leaves the incoherent branch is Eq. (posterior.19). Method: Newton's, each point from its
neighbor, judged on a finer grid (`constrained_saddle`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import equinox as eqx
import numpy as np
import scipy.optimize

from widefield.question.activation import Activation
from widefield.solvers.linearization import linearize
from widefield.theories.posterior.nonlinear import moments
from widefield.theories.posterior.nonlinear.constrained_saddle import (
    ConstrainedMap,
    ConstrainedSaddle,
    Point,
    constrained_saddle,
)  # fmt: skip
from widefield.theories.posterior.nonlinear.saddle_map import SaddleMap, State
from widefield.theories.posterior.problem import Array, Problem, correlation, library, odd_lags, scaled

SMALL = (0.05, 0.1, 0.15)  # order parameters at which growth is measured
LARGE = (*np.arange(4, 20) / 20, 0.97)  # those among which the end of a branch is sought
ROOT = 1e-7  # accuracy of an order parameter at a point of the transition
USABLE = 1e-5  # error, relative to the state, with which a point still counts


class FactorMap(ConstrainedMap):
    """The last entry is the factor's logarithm, which rests where the correlation is ``target``."""

    along: str = eqx.field(static=True)

    def scaled(self, log_factor: Array) -> SaddleMap:
        return eqx.tree_at(
            lambda m: m.problem, self.map, scaled(self.map.problem, self.along, library(log_factor).exp(log_factor))
        )

    def at(self, vector: Array) -> tuple[SaddleMap, State, moments.Density, Array]:
        m, state = self.scaled(vector[-1]), self.map.unpack(vector[:-1])
        return m, state, m.density(state), correlation(state.feature, self.forms)[0]


class OrderPoint(NamedTuple):
    """A state of the branch: ``order`` m, the factor's logarithm and its slope in m."""

    order: float
    log_factor: float
    slope: float
    free_energy: float
    state: State
    vector: Array

    @property
    def factor(self) -> float:
        return float(np.exp(self.log_factor))


class LostError(Exception):
    """The branch was not reached."""


@dataclass(frozen=True, eq=False)
class OrderBranch:
    """Points of the branch by order parameter; each new one from the nearest that is known."""

    solver: ConstrainedSaddle
    points: tuple[OrderPoint, ...] = ()

    def known(self, order: float) -> OrderPoint:
        """The nearest known point."""
        return min(self.points, key=lambda point: abs(point.order - order))

    def at(self, order: float) -> OrderPoint:
        """The point at ``order``."""
        return self.through(order).known(order)

    def through(self, *orders: float) -> "OrderBranch":
        """The branch with the points at these orders, one after the other, among those that are known."""
        branch = self
        for order in orders:
            near = branch.known(order)
            if near.order != order:
                branch = branch._with(order, *branch.solver.reach(near.vector, near.order, order))
        return branch

    def near(self, log_factor: float, side: int) -> State | None:
        """The state next to a factor among the large order parameters, where the branch is stable."""
        branch, met = self, []
        try:
            for m in LARGE[::2]:
                branch = branch.through(float(m))
                met.append(branch.known(float(m)))
                if met[-1].slope * side > 0 and side * (met[-1].log_factor - log_factor) >= 0:
                    break
        except LostError:
            pass
        stable = [point for point in met if point.slope * side > 0]
        return min(stable, key=lambda point: abs(point.log_factor - log_factor)).state if stable else None

    def _with(self, order: float, point: Point, solver: ConstrainedSaddle) -> "OrderBranch":
        if not point.reached or not point.error <= USABLE:
            raise LostError
        jacobian = linearize(solver.map_at(order), point.vector)
        slope = float(jacobian.solve(np.eye(len(point.vector))[-1:])[0, -1])
        new = OrderPoint(order, point.last, slope, point.free_energy, point.state, point.vector)
        return replace(self, solver=solver, points=(*self.points, new))


def leaving_branch(
    problem: Problem, activation: Activation, along: str, rtol: float, max_steps: int, critical: float, state: State
) -> OrderBranch:
    """The branch with its first point, from the incoherent state at the instability along the map's odd direction."""
    pair = problem.depth - 2, problem.depth - 1
    solver = constrained_saddle(problem, activation, pair, rtol, max_steps, partial(FactorMap, along=along))
    _, vector = solver.on_vector(state, float(np.log(critical)))
    m = solver.map_at(0.0)
    assert isinstance(m, FactorMap)
    jacobian = linearize(m.scaled(vector[-1]), vector[:-1])
    assert jacobian.matrix is not None, "at most four dimensions"
    odd = np.flatnonzero(np.tile(odd_lags(m.map.problem)[m.map.rows, m.map.columns], 2))
    values, vectors = np.linalg.eig(jacobian.matrix[np.ix_(odd, odd)])
    direction = np.zeros(len(vector))
    direction[odd] = vectors[:, int(np.argmin(np.abs(values - 1)))].real
    tiny, _ = solver.on_vector(m.map.unpack((vector + 1e-4 * direction)[:-1]))
    start = vector + direction * SMALL[0] / (tiny / 1e-4)
    return OrderBranch(solver)._with(SMALL[0], *solver.solve(start, SMALL[0]))


class Growth(NamedTuple):
    """``rate`` a of (f/f_c)^p = 1 + a m² + … with its ``error``, and the ``ratio`` of another measure of the order to m."""

    rate: float
    error: float
    ratio: float


def growth(
    branch: OrderBranch, critical: float, power: int, size: Callable[[State], float]
) -> tuple[Growth, OrderBranch]:
    """How the branch leaves, at m² = 0 by a parabola through `SMALL`, and the branch with these points.

    Error: by how much the last point changes the rate.
    """
    branch = branch.through(*SMALL)
    points = [branch.known(m) for m in SMALL]
    squares = np.square(SMALL)
    rates = [np.expm1(power * (point.log_factor - np.log(critical))) / m**2 for m, point in zip(SMALL, points)]
    ratios = [size(point.state) / m for m, point in zip(SMALL, points)]
    at_zero = np.linalg.inv(np.vander(squares, increasing=True))[0]
    line = np.linalg.inv(np.vander(squares[:2], increasing=True))[0]
    rate = float(at_zero @ rates)
    return Growth(rate, abs(rate - float(line @ rates[:2])), float(at_zero @ ratios)), branch


def first_order_points(
    branch: OrderBranch, critical: float, side: int, incoherent: Callable[[float], float]
) -> tuple[float | None, float | None]:
    """Spinodal and equal-free-energy point: where the factor turns back, and where F is that of ``incoherent(f)``.

    Both are the instability ``critical`` where the branch turns back before the smallest order parameter, so close to a
    tricritical point that they cannot be told apart; None where they are not reached.
    """
    turning = lambda point: side * point.slope  # noqa: E731
    excess = lambda point: incoherent(point.factor) - point.free_energy  # noqa: E731
    if turning(branch.at(SMALL[0])) > 0:
        return critical, critical
    end, equal = None, None
    try:
        end, branch = _root(branch, turning, (*SMALL, *LARGE))
        if end is not None:
            equal, branch = _root(branch, excess, (end.order, *(m for m in LARGE if m > end.order)))
    except LostError:
        pass
    return None if end is None else end.factor, None if equal is None else equal.factor


def _root(
    branch: OrderBranch, number: Callable[[OrderPoint], float], orders: Iterable[float]
) -> tuple[OrderPoint | None, OrderBranch]:
    """The first point where a number that begins negative vanishes, None where it never does; and the branch so far."""
    before = None
    for order in orders:
        branch = branch.through(order)
        if number(branch.known(order)) > 0:
            if before is None:
                break
            m = float(scipy.optimize.brentq(lambda m, known=branch: number(known.at(m)), before, order, xtol=ROOT))
            branch = branch.through(m)
            return branch.known(m), branch
        before = order
    return None, branch
