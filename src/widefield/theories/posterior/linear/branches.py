"""The branches of a linear network: minima of its free energy."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from widefield.answer.certificate import Check, Status
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.solvers import continuation
from widefield.theories.posterior.branches import (
    Advance,
    Branches,
    ConditionalFeatures,
    GrowthLaw,
    Judged,
    LandscapePoint,
    Options,
)  # fmt: skip
from widefield.theories.posterior.linear import free_energy as linear
from widefield.theories.posterior.linear import stationary
from widefield.theories.posterior.linear.landau import landau
from widefield.theories.posterior.linear.landscape import landscape_points
from widefield.theories.posterior.linear.saddle_residual import linear_saddle
from widefield.theories.posterior.linear.stationary import LinearState
from widefield.theories.posterior.linear.test_inputs import kernel_with_test_inputs
from widefield.theories.posterior.problem import Problem, energy, scaled

# of each question: the default, and the smallest that can be met
RTOLS = {name: (1e-10, 1e-12) for name in ("transition", "tricritical")} | {
    "posterior": (1e-10, 1e-13), "landscape": (1e-8, 1e-11),
}  # fmt: skip
STEP = 1e-3  # relative distance over which the softest eigenvalue is differentiated
SHARE = {"posterior": 0.1}  # of rtol, to which gradients are driven; for transitions 0.01
BEYOND, BACK = 1.02, 0.995  # of the instability: where the coherent branch is begun, and its steps towards its end


@final
@dataclass(frozen=True, eq=False)
class LinearBranches(Branches[LinearState]):
    """Minimization over positive definite kernels, by descent from known points."""

    temperature_span: ClassVar[tuple[float, int]] = 1e6, 41

    problem: Problem
    layout: linear.Layout  # coordinates, which belong to the random network and so to every factor
    along: str
    rtol: float
    tolerance: float
    max_steps: int
    sampled: bool = False
    reach: float = 1e4
    crossing_rtol: float = 1e-13
    n_searches: int = stationary.N_SEARCHES

    @classmethod
    def make(cls, problem: Problem, options: Options) -> "LinearBranches":
        rtol = options.relative_tolerance(RTOLS)
        tolerance = SHARE.get(options.question, 0.01) * rtol
        return cls(problem, linear.layout_of(problem), options.along, rtol, tolerance, options.max_steps)

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return 2e-6 * len(self.problem.input_kernel) ** 3

    @property
    def quartic_rtol(self) -> float:
        return self.rtol

    @property
    def symmetric(self) -> bool:
        return isinstance(self.layout, linear.Joint) and stationary.is_symmetric(self.problem)

    def stationary_states(self, advance: Advance) -> list[LinearState]:
        return stationary.stationary_points(
            self.layout, tolerance=self.tolerance, max_steps=self.max_steps, advance=advance
        )

    def converged(self, state: LinearState) -> bool:
        return stationary.is_converged(state, self.tolerance)

    def judge(self, state: LinearState) -> Judged:
        rank = state.layout.root.shape[0] * state.point.shape[-1]
        finite = np.isfinite(state.free_energy) and np.isfinite(state.hidden).all()
        conjugate, residual = np.full(state.hidden.shape, np.nan), np.inf
        if finite:
            conjugate, residual = linear_saddle(self.problem, state.hidden, rank)
        cost = float(energy(self.problem, state.hidden)) if finite else np.nan
        judged = {
            "error": Check(state.error, self.tolerance, Status.not_converged),
            "residual": Check(residual, self.rtol),
        }
        failure = None if finite else Status.nonfinite
        return Judged(conjugate, cost, state.free_energy - cost, judged, failure, {}, -stationary.UNSTABLE)

    def test_features(self, state: LinearState, network: Network, task: Task) -> ConditionalFeatures:
        return ConditionalFeatures(kernel_with_test_inputs(state, network, task))

    def reached(self, state: LinearState) -> bool:
        return bool(state.residual <= self.rtol and np.isfinite(state.stability))

    def at(self, factor: float) -> linear.Layout:
        """The coordinates of the problem at another factor."""
        return self.layout._replace(problem=scaled(self.problem, self.along, factor))

    def incoherent(self, factor: float, start: LinearState | None = None) -> LinearState:
        point = np.eye(self.layout.root.shape[-1])[None] if start is None else start.point
        return self._descend(factor, point, even=True)

    def coherent_candidates(self, factor: float, start: LinearState) -> Iterator[LinearState]:
        """From an unstable incoherent point the search begins along its softest direction."""
        point = start.displaced(0.1) if start.branch == "incoherent" else start.point
        yield self._descend(factor, point, even=False)

    def on_coherent_branch(self, state: LinearState) -> bool:
        return state.residual <= self.tolerance and state.branch == "coherent"

    def _descend(self, factor: float, start: np.ndarray, *, even: bool) -> LinearState:
        layout = self.at(factor)
        minimum = stationary.minimum_below(layout, start, even=even, tolerance=self.tolerance, max_steps=self.max_steps)
        return stationary.state_at(layout, minimum)

    def at_temperature(self, temperature: float) -> "LinearBranches":
        problem = self.problem._replace(temperature=np.asarray(temperature))
        return replace(self, problem=problem, layout=self.layout._replace(problem=problem))

    def quartic(self, critical: float, state: LinearState) -> tuple[float, float]:
        return landau(state).quartic, 0.0

    def replicas(self, critical: float, state: LinearState) -> np.ndarray:
        return np.array([critical])

    def growth_law(self, critical: float, state: LinearState) -> GrowthLaw[LinearState]:
        """From Landau's expansion at the instability; the coherent branch of a first-order one is followed to its end."""
        expansion = landau(state)
        if expansion.quartic <= 0:
            return self._coexistence(critical, state)
        near = [self.incoherent(critical * (1 + s * STEP) ** (1 / self.power), state).stability for s in (-2, -1, 1, 2)]
        slope = (near[0] - 8 * near[1] + 8 * near[2] - near[3]) / (12 * STEP)
        prefactor = expansion.correlation * np.sqrt(abs(slope) / (4 * expansion.quartic))
        return GrowthLaw("second", 0.5, float(prefactor))

    def _coexistence(self, critical: float, state: LinearState) -> GrowthLaw[LinearState]:
        """Spinodal and equal-free-energy point of a first-order transition."""
        beyond = critical * BEYOND**self.side
        start = self.coherent(beyond, self.incoherent(beyond, state))
        if start is None:
            return GrowthLaw("first", lost=("the coherent branch beyond the instability was not reached",))
        end = continuation.branch_end(self.coherent, beyond, start, BACK**self.side, limit=1e-3**self.side)
        if end is None:
            return GrowthLaw("first", lost=("the coherent branch was not followed to its end",))

        def excess(factor: float, near: LinearState | None) -> tuple[float, LinearState]:
            assert near is not None
            coherent = self.coherent(factor, near) or near
            return self.incoherent(factor, state).free_energy - coherent.free_energy, coherent

        inside = end[0] * (1 + self.side * 1e-9)
        first = continuation.Sample(inside, *excess(inside, end[1]))
        if first.number >= 0:  # so close to a tricritical point that the three cannot be told apart
            merged = self.side * min(self.side * end[0], self.side * critical)
            return GrowthLaw("first", spinodal=merged, equal_free_energy=merged)
        equal = continuation.crossing(excess, first, continuation.Sample(beyond, *excess(beyond, start)))
        lost = (
            () if equal is not None else ("the free energies of the two branches were not followed to their crossing",)
        )
        return GrowthLaw("first", spinodal=end[0], equal_free_energy=None if equal is None else equal.value, lost=lost)

    def landscape(self, pair: tuple[int, int], values: np.ndarray, advance: Advance) -> list[LandscapePoint | None]:
        return landscape_points(self.problem, pair, values, self.rtol, self.max_steps, advance)
