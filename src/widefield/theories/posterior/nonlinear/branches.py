"""The branches of a nonlinear network: fixed points of the saddle map."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, final

import numpy as np

from widefield.answer.boundary import memory_budget, require_memory
from widefield.answer.certificate import Check, Status
from widefield.gaussian.kernels import parity_of
from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.posterior.branches import (
    Advance,
    Branches,
    GrowthLaw,
    Instability,
    Judged,
    LandscapePoint,
    Options,
    adjacent_correlation,
    correlated,
)  # fmt: skip
from widefield.theories.posterior.nonlinear import moments, order_branch, saddle_map
from widefield.theories.posterior.nonlinear.constrained_saddle import climb_to_coherent, constrained_saddle
from widefield.theories.posterior.nonlinear.order_branch import LostError, OrderBranch
from widefield.theories.posterior.nonlinear.saddle import DEVIATION, MAX_DIMENSION, solve_saddle
from widefield.theories.posterior.nonlinear.saddle_map import State
from widefield.theories.posterior.nonlinear.stationary import Saddle, SaddleOptions, features_of_test_inputs
from widefield.theories.posterior.problem import Problem, input_kernels_of_test, is_symmetric, scaled
from widefield.theories.posterior.start import Start

# of each question: the default, and the smallest that can be met
RTOLS = {
    "posterior": (1e-7, 1e-9), "transition": (1e-7, 1e-12), "tricritical": (1e-4, 1e-12), "landscape": (1e-6, 1e-9),
}  # fmt: skip
SAMPLED_RTOLS = {"posterior": 1e-2, "transition": 5e-2}
USABLE = 1e-3  # error of an order parameter, relative to it, with which a branch is still followed
USABLE_SAMPLED = 0.4  # the same for sampled branches, whose errors are 95 % limits
N_REPLICAS = 8  # independent sets of draws behind a sampled instability
SLOPE = 0.02  # relative distance over which a sampled eigenvalue is differentiated
SOFT = 1e-6  # a map eigenvalue this close to 1 is marginal
PATHS = 1 << 16  # draws of a sampled branch
SOLVED = 1e-7  # to which states on given draws are solved
CORRELATIONS = (0.7, 0.3, 0.1)  # of adjacent states, from which a coherent state is sought
SAME = 1e-6  # free energies of one branch that are one state's
SOLVED_STATES = (Status.success, Status.inaccurate)


def require_nodes(problem: Problem, options: Options) -> None:
    """Refuse more nodes than fit before any is made: they, and sums over each of their chunks."""
    n, paths = len(problem.input_kernel), options.paths
    room = max(moments.capacity(n), 0 if paths is None else 1 << (paths - 1).bit_length())
    sampled = n > MAX_DIMENSION or paths is not None or options.integration in ("importance", "annealed")
    per_node = (12 if sampled else 7) * (n + 1) + 4 * n**2 / moments.CHUNK
    fits = "Use fewer samples or a smaller depth."
    if paths is not None:
        fits = f"About {int(memory_budget() / (8 * per_node))} paths would fit."
    require_memory(8 * (room * per_node + 150 * n**2), f"The averages over {room} nodes of {n} dimensions", fits)


@final
@dataclass(frozen=True, eq=False)
class NonlinearBranches(Branches[Saddle]):
    """Anderson iteration of the saddle map on grids, or on draws beyond four dimensions."""

    temperature_span: ClassVar[tuple[float, int]] = 1e3, 21
    quartic_share: ClassVar[float] = 0.01  # the coefficient has an error of its own

    problem: Problem
    activation: Activation
    options: SaddleOptions
    along: str
    rtol: float
    judged_by_rtol: bool = True  # whether a state's error is compared; else the number of draws was given
    sampled: bool = False
    crossing_rtol: float = 1e-8
    reach: float = 100.0
    seconds: float = 10.0
    n_searches: int = 1 + len(CORRELATIONS)

    @classmethod
    def for_states(cls, problem: Problem, activation: Activation, options: Options) -> "NonlinearBranches":
        """For single states: draws beyond four dimensions, more of them until they are good enough."""
        require_nodes(problem, options)
        rtol = options.relative_tolerance(RTOLS)
        sampling = rtol if options.rtol is not None else SAMPLED_RTOLS.get(options.question, rtol)
        solver = SaddleOptions(rtol, sampling, options.max_steps, options.paths, options.seed, options.integration)
        judged = options.paths is None or options.rtol is not None
        return cls(problem, activation, solver, options.along, rtol, judged)

    @classmethod
    def for_branches(cls, problem: Problem, activation: Activation, options: Options) -> "NonlinearBranches":
        """For whole branches: one grid family, or the same draws at every factor."""
        require_nodes(problem, options)
        rtol = options.relative_tolerance(RTOLS)
        prior = saddle_map.prior_state(problem, activation)
        dimension = saddle_map.range_of(np.asarray(prior.hidden)).embed.shape[1]
        if options.paths is None and dimension <= MAX_DIMENSION:
            solved = rtol if options.question == "transition" else SOLVED
            solver = SaddleOptions(solved, max_steps=options.max_steps, integration="quadrature")
            return cls(problem, activation, solver, options.along, rtol)
        rtol = SAMPLED_RTOLS["transition"] if options.rtol is None else rtol
        solver = SaddleOptions(SOLVED, 1e-2, options.max_steps, options.paths or PATHS, options.seed, "importance")
        return cls(problem, activation, solver, options.along, rtol, False, sampled=True, crossing_rtol=1e-5)

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return is_symmetric(self.problem) and parity_of(self.activation) == -1

    def solve(self, problem: Problem, *, even: bool, start: State | tuple | None = None) -> Saddle:
        """One stationary state, by default from the random network; ``even`` keeps odd lags at zero."""
        return solve_saddle(problem, self.activation, self.options, start=start, sector="even" if even else "full")

    def stationary_states(self, advance: Advance, start: Start | None = None) -> list[Saddle]:
        """The first state and one coherent one or, where there is none, the searches that stopped on their way."""
        kernels = None if start is None else State(start.feature, start.hidden)
        broken = kernels if self.symmetric and start is not None and start.coherent else None
        first = self._first(kernels if broken is None else None)
        advance(1)
        states = [first]
        if self.symmetric and self.problem.depth > 2 and first.converged:
            near = () if broken is None else (broken,)
            given = (self.solve(self.problem, even=False, start=kernels) for kernels in near)
            for state in chain(given, self.coherent_candidates(1.0, first)):
                advance(1)
                if state.converged and state.branch == "coherent":
                    states = [first, state]
                    break
                stopped = state.status is Status.inaccurate and state.branch == "coherent"
                if stopped or state.status is Status.not_converged:
                    states.append(state)
        kept: list[Saddle] = []
        for state in sorted(states, key=lambda state: (not state.converged, state.free_energy)):
            if not any(k.branch == state.branch and abs(k.free_energy - state.free_energy) < SAME for k in kept):
                kept.append(state.gauge_fixed() if self.symmetric else state)
        return kept

    def _first(self, start: State | None) -> Saddle:
        """From the random network or, where that leads to a minimum, from ``start``."""
        if start is not None:
            state = self.solve(self.problem, even=self.symmetric, start=start)
            if state.converged and (self.symmetric or state.stability > 0):
                return state
        return self.solve(self.problem, even=self.symmetric)

    def converged(self, state: Saddle) -> bool:
        return state.converged

    def judge(self, state: Saddle) -> Judged:
        limit = self.options.sampling_rtol if state.sampled else self.rtol
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

    def test_features(self, state: Saddle, network: Network, task: Task) -> tuple[np.ndarray, np.ndarray | None]:
        kernels = input_kernels_of_test(network, task)
        features = features_of_test_inputs(self.problem, network.activation, state, *kernels)
        return features.cross, features.cross_stderr if state.sampled else None

    def reached(self, state: Saddle) -> bool:
        return state.status in SOLVED_STATES

    def at(self, factor: float) -> Problem:
        return self.problem if factor == 1 else scaled(self.problem, self.along, factor)

    def incoherent(self, factor: float, start: Saddle | None = None) -> Saddle:
        """From a state nearby, or else by growing the labels."""
        near = None if start is None else start.order_parameters
        state = self.solve(self.at(factor), even=True, start=near)
        return state if start is None or self.reached(state) else self.solve(self.at(factor), even=True)

    def coherent_candidates(self, factor: float, start: Saddle) -> Iterator[Saddle]:
        r"""From a coherent state nearby, or an incoherent one made coherent by :math:`\rho^{|a-b|}`, then by the landscape.

        Anderson's iteration also converges to unstable states, so several beginnings are tried. The landscape is slower
        and surer: unbounded activations leave no density at most guesses.
        """
        problem = self.at(factor)
        if start.branch == "coherent":
            yield self.solve(problem, even=False, start=start.order_parameters)
            return
        for rho in CORRELATIONS:
            near = tuple(correlated(problem, matrix, rho) for matrix in (start.feature, start.hidden))
            yield self.solve(problem, even=False, start=near)
        same = start.problem is problem
        incoherent = start if same else self.solve(problem, even=True, start=start.order_parameters)
        if incoherent.sampled or not incoherent.stability < 0:
            return
        climbed = climb_to_coherent(problem, self.activation, incoherent.order_parameters, self.options.max_steps)
        if climbed is not None:
            yield self.solve(problem, even=False, start=climbed)

    def on_coherent_branch(self, state: Saddle) -> bool:
        """Close to a transition errors are amplified beyond ``rtol``; what counts is their size against the order."""
        limit = USABLE_SAMPLED if self.sampled else USABLE
        small = state.error <= limit * adjacent_correlation(state.problem, state.hidden)
        usable = state.converged or (self.reached(state) and small)
        return state.branch == "coherent" and usable and state.stability > 0

    def growth_law(self, instability: Instability[Saddle]) -> GrowthLaw[Saddle]:
        """From the coherent branch as it leaves the incoherent one, by order parameter.

        First order where it leaves towards the side on which the incoherent state is stable; then also its other points.
        """
        critical, state = instability.factor, instability.state
        assert critical is not None and state is not None
        if instability.folded:
            return GrowthLaw(
                "first", lost=("the coherent branch beside a fold of the incoherent one was not followed",)
            )
        if self.sampled:
            return GrowthLaw(None)
        try:
            growth, branch = self._growth(critical, state)
        except LostError:
            return GrowthLaw(None, lost=("the coherent branch was lost where it leaves the incoherent one",))

        def guess(factor: float, near: Saddle) -> Saddle | None:
            """A state of the branch by order parameter next to a factor, as a start; None where none is known."""
            found = branch.near(float(np.log(factor)), self.side)
            if found is None:
                return None
            return replace(near, feature=np.asarray(found.feature), hidden=np.asarray(found.hidden))

        if self.side * growth.rate > 0:
            return GrowthLaw("second", 0.5, growth.ratio / np.sqrt(abs(growth.rate)), guess=guess)
        free = lambda factor: self.incoherent(factor, instability.near(factor)).free_energy  # noqa: E731
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
        limits = self.options.rtol, self.options.max_steps
        branch = order_branch.leaving_branch(
            self.problem, self.activation, self.along, *limits, critical, state.order_parameters
        )
        size = lambda point: adjacent_correlation(self.problem, np.asarray(point.hidden))  # noqa: E731
        return order_branch.growth(branch, critical, self.power, size)

    def replicas(self, critical: float, state: Saddle) -> np.ndarray:
        r"""Each set's own root is one Newton step from that of the first, :math:`f_s = f(1 - \lambda_s(f)/\lambda')` with
        :math:`\lambda = 1 - \mu` and its slope in :math:`\ln f`; a set that does not converge is NaN."""
        if not self.sampled:
            return np.array([critical])

        def softest(factor: float, more: int) -> float:
            options = replace(self.options, seed=self.options.seed + 7919 * more)
            other = replace(self, options=options).incoherent(factor, state)
            return other.stability if other.converged else np.nan

        slope = (softest(critical * (1 + SLOPE), 0) - softest(critical * (1 - SLOPE), 0)) / (2 * SLOPE)
        others = [critical * (1 - softest(critical, k) / slope) for k in range(1, N_REPLICAS)]
        return np.array([critical, *others])

    def landscape(self, pair: tuple[int, int], values: np.ndarray, advance: Advance) -> list[LandscapePoint | None]:
        """All values, outwards from the free state that the search begins with."""
        max_steps = self.options.max_steps
        solver = constrained_saddle(self.problem, self.activation, pair, self.rtol, max_steps)
        free = replace(self, options=SaddleOptions(max_steps=max_steps, integration="quadrature"))
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
