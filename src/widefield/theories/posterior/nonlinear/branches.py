"""The branches of a nonlinear network: fixed points of the saddle map."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from widefield.answer.certificate import Check, Status
from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.posterior.branches import (
    Advance,
    Branches,
    ConditionalFeatures,
    GrowthLaw,
    Judged,
    LandscapePoint,
    Options,
    adjacent_correlation,
)  # fmt: skip
from widefield.theories.posterior.nonlinear import order_branch, saddle_map, stationary
from widefield.theories.posterior.nonlinear.constrained_saddle import constrained_saddle
from widefield.theories.posterior.nonlinear.order_branch import LostError, OrderBranch
from widefield.theories.posterior.nonlinear.saddle import DEVIATION, MAX_DIMENSION, Saddle, SaddleOptions
from widefield.theories.posterior.nonlinear.stationary import SaddleSearch
from widefield.theories.posterior.nonlinear.test_inputs import features_of_test_inputs
from widefield.theories.posterior.problem import Problem, input_kernels_of_test, scaled

# of each question: the default, and the smallest that can be met
RTOLS = {
    "posterior": (1e-7, 1e-9), "transition": (1e-7, 1e-12), "tricritical": (1e-4, 1e-12), "landscape": (1e-6, 1e-9),
}  # fmt: skip
SAMPLED_RTOLS = {"posterior": 1e-2, "transition": 5e-2}
USABLE = 1e-3  # error of an order parameter, relative to it, with which a branch is still followed
USABLE_SAMPLED = 0.2  # the same for sampled branches
N_REPLICAS = 8  # independent sets of draws behind a sampled instability
SLOPE = 0.02  # relative distance over which a sampled eigenvalue is differentiated
SOFT = 1e-6  # a map eigenvalue this close to 1 is marginal
PATHS = 1 << 16  # draws of a sampled branch
SOLVED = 1e-7  # to which states on given draws are solved
SOLVED_STATES = (Status.success, Status.inaccurate)


@final
@dataclass(frozen=True, eq=False)
class NonlinearBranches(Branches[Saddle]):
    """Anderson iteration of the saddle map on grids, or on draws beyond four dimensions."""

    temperature_span: ClassVar[tuple[float, int]] = 1e3, 21
    quartic_share: ClassVar[float] = 0.01  # the coefficient has an error of its own

    problem: Problem
    search: SaddleSearch
    along: str
    rtol: float
    judged_by_rtol: bool = True  # whether a state's error is compared; else the number of draws was given
    sampled: bool = False
    crossing_rtol: float = 1e-8
    reach: float = 100.0
    seconds: float = 10.0
    n_searches: int = stationary.N_SEARCHES

    @classmethod
    def for_states(cls, problem: Problem, activation: Activation, options: Options) -> "NonlinearBranches":
        """For single states: draws beyond four dimensions, more of them until they are good enough."""
        rtol = options.relative_tolerance(RTOLS)
        sampling = rtol if options.rtol is not None else SAMPLED_RTOLS.get(options.question, rtol)
        solver = SaddleOptions(rtol, sampling, options.max_steps, options.paths, options.seed, options.integration)
        judged = options.paths is None or options.rtol is not None
        return cls(problem, SaddleSearch(activation, solver), options.along, rtol, judged)

    @classmethod
    def for_branches(cls, problem: Problem, activation: Activation, options: Options) -> "NonlinearBranches":
        """For whole branches: one grid family, or the same draws at every factor."""
        rtol = options.relative_tolerance(RTOLS)
        prior = saddle_map.prior_state(problem, activation)
        dimension = saddle_map.range_of(np.asarray(prior.hidden)).embed.shape[1]
        if options.paths is None and dimension <= MAX_DIMENSION:
            solved = rtol if options.question == "transition" else SOLVED
            solver = SaddleOptions(solved, max_steps=options.max_steps, integration="quadrature")
            return cls(problem, SaddleSearch(activation, solver), options.along, rtol)
        rtol = SAMPLED_RTOLS["transition"] if options.rtol is None else rtol
        solver = SaddleOptions(SOLVED, 1e-2, options.max_steps, options.paths or PATHS, options.seed, "importance")
        search = SaddleSearch(activation, solver)
        return cls(problem, search, options.along, rtol, False, sampled=True, crossing_rtol=1e-5)

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return self.search.is_symmetric(self.problem)

    def stationary_states(self, advance: Advance) -> list[Saddle]:
        return self.search.states(self.problem, advance)

    def converged(self, state: Saddle) -> bool:
        return state.converged

    def judge(self, state: Saddle) -> Judged:
        limit = self.search.options.sampling_rtol if state.sampled else self.rtol
        checks: dict[str, Check] = {}
        told = {"integration": state.integration, "nodes": state.n_nodes, "map_eigenvalue": state.mu}
        if self.judged_by_rtol or not state.sampled:
            checks = {"residual": Check(state.residual, limit), "error": Check(state.error, limit)}
        else:  # the draws are what they are, and the standard errors say what they are worth
            told |= {"fresh_residual": state.residual}
        if state.sampled:
            checks["fresh_deviation"] = Check(state.deviation, DEVIATION)
            told |= {"effective_share": state.ess, "r_hat": state.rhat}
        failure = None if state.status in SOLVED_STATES else state.status
        errors = (state.feature_stderr, state.hidden_stderr) if state.sampled else (None, None)
        return Judged(state.conjugate, state.energy, state.entropy, checks, failure, told, SOFT, *errors)

    def test_features(self, state: Saddle, network: Network, task: Task) -> ConditionalFeatures:
        kernels = input_kernels_of_test(network, task)
        features = features_of_test_inputs(self.problem, network.activation, state, *kernels)
        return ConditionalFeatures(features.cross, features.cross_stderr if state.sampled else None)

    def reached(self, state: Saddle) -> bool:
        return state.status in SOLVED_STATES

    def at(self, factor: float) -> Problem:
        return scaled(self.problem, self.along, factor)

    def incoherent(self, factor: float, start: Saddle | None = None) -> Saddle:
        """From a state nearby, or else by growing the labels."""
        near = None if start is None else start.order_parameters
        state = self.search.solve(self.at(factor), even=True, start=near)
        return state if start is None or self.reached(state) else self.search.solve(self.at(factor), even=True)

    def coherent_candidates(self, factor: float, start: Saddle) -> Iterator[Saddle]:
        problem = self.at(factor)
        if start.branch == "coherent":
            yield self.search.solve(problem, even=False, start=start.order_parameters)
        else:
            yield from self.search.coherent_candidates(problem, start)

    def on_coherent_branch(self, state: Saddle) -> bool:
        """Close to a transition errors are amplified beyond ``rtol``; what counts is their size against the order."""
        limit = USABLE_SAMPLED if self.sampled else USABLE
        small = state.error <= limit * adjacent_correlation(state.problem, state.hidden)
        usable = state.converged or (self.reached(state) and small)
        return state.branch == "coherent" and usable and state.stability > 0

    def growth_law(self, critical: float, state: Saddle) -> GrowthLaw[Saddle]:
        """From the coherent branch as it leaves the incoherent one, by order parameter.

        First order where it leaves towards the side on which the incoherent state is stable; then also its other points.
        """
        if self.sampled:
            return GrowthLaw(None)
        try:
            growth, branch = self._growth(critical, state)
        except LostError:
            return GrowthLaw(None, lost=("the coherent branch was lost where it leaves the incoherent one",))

        def guess(factor: float, near: Saddle) -> Saddle | None:
            """A state of the branch by order parameter next to a factor, as a start; None where none is known."""
            found = branch.near(float(np.log(factor)), self.side)
            return None if found is None else replace(near, **{k: np.asarray(v) for k, v in found._asdict().items()})

        if self.side * growth.rate > 0:
            return GrowthLaw("second", 0.5, growth.ratio / np.sqrt(abs(growth.rate)), guess=guess)
        free = lambda factor: self.incoherent(factor, state).free_energy  # noqa: E731
        spinodal, equal = order_branch.first_order_points(branch, critical, self.side, free)
        lost = () if equal is not None else ("the coherent branch was lost before its end or its equal free energy",)
        return GrowthLaw("first", spinodal=spinodal, equal_free_energy=equal, guess=guess, lost=lost)

    def at_temperature(self, temperature: float) -> "NonlinearBranches":
        return replace(self, problem=self.problem._replace(temperature=np.asarray(temperature)))

    def quartic(self, critical: float, state: Saddle) -> tuple[float, float]:
        """Positive where the branch leaves towards its own phase; NaN where it is lost."""
        try:
            growth, _ = self._growth(critical, state)
        except LostError:
            return np.nan, np.inf
        return self.side * growth.rate, growth.error

    def _growth(self, critical: float, state: Saddle) -> tuple[order_branch.Growth, OrderBranch]:
        limits = self.search.options.rtol, self.search.options.max_steps
        branch = order_branch.leaving_branch(
            self.problem, self.search.activation, self.along, *limits, critical, state.order_parameters
        )
        size = lambda point: adjacent_correlation(self.problem, np.asarray(point.hidden))  # noqa: E731
        return order_branch.growth(branch, critical, self.power, size)

    def replicas(self, critical: float, state: Saddle) -> np.ndarray:
        r"""Each set's own root is one Newton step from that of the first, :math:`f_s = f(1 - \lambda_s(f)/\lambda')` with
        :math:`\lambda = 1 - \mu` and its slope in :math:`\ln f`; a set that does not converge is NaN."""
        if not self.sampled:
            return np.array([critical])

        def softest(factor: float, more: int) -> float:
            options = replace(self.search.options, seed=self.search.options.seed + 7919 * more)
            other = replace(self, search=replace(self.search, options=options)).incoherent(factor, state)
            return other.stability if other.converged else np.nan

        slope = (softest(critical * (1 + SLOPE), 0) - softest(critical * (1 - SLOPE), 0)) / (2 * SLOPE)
        others = [critical * (1 - softest(critical, k) / slope) for k in range(1, N_REPLICAS)]
        return np.array([critical, *others])

    def landscape(self, pair: tuple[int, int], values: np.ndarray, advance: Advance) -> list[LandscapePoint | None]:
        """All values, outwards from the free state that the search begins with."""
        activation, max_steps = self.search.activation, self.search.options.max_steps
        solver = constrained_saddle(self.problem, activation, pair, self.rtol, max_steps)
        free = replace(self.search, options=SaddleOptions(max_steps=max_steps, integration="quadrature"))
        begin, origin = solver.on_vector(free.solve(self.problem, even=self.symmetric).order_parameters)
        first = int(np.searchsorted(values, begin))
        points: dict[int, LandscapePoint] = {}
        for path in (range(first, len(values)), range(first - 1, -1, -1)):
            at, vector = begin, origin
            for i in path:
                point, solver = solver.reach(vector, at, float(values[i]))
                advance(1)
                if not point.reached:
                    break
                found, stable = point.state, point.status is not Status.saddle
                points[i] = LandscapePoint(
                    np.asarray(found.hidden), np.asarray(found.feature), point.free_energy, point.last, point.residual,
                    point.error, stable,
                )  # fmt: skip
                at, vector = float(values[i]), point.vector
        return [points.get(i) for i in range(len(values))]
