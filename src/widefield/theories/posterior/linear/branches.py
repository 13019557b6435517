"""The branches of a linear network: minima of its free energy."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.answer.certificate import Check, Status
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.solvers import continuation, definite
from widefield.theories.posterior.branches import (
    Advance,
    Branches,
    GrowthLaw,
    Instability,
    Judged,
    LandscapePoint,
    Options,
    adjacent_correlation,
    fold_factor,
)  # fmt: skip
from widefield.theories.posterior.linear import free_energy as linear
from widefield.theories.posterior.linear import stationary
from widefield.theories.posterior.linear.saddle_residual import linear_saddle
from widefield.theories.posterior.linear.stationary import LinearState
from widefield.theories.posterior.problem import (
    Array,
    Problem,
    correlation,
    correlation_forms,
    energy,
    input_kernels_of_test,
    is_symmetric,
    scaled,
    shifted,
)
from widefield.theories.posterior.start import Start

RESTARTS, MARGINAL = 3, 1e-4  # of a search for a far coherent state; stability of one that is no end of its branch
STIFFNESS, ROUNDS = 20.0, 60  # of the spring that holds a correlation, and how often its field is corrected
# of each question: the default, and the smallest that can be met
RTOLS = {
    "transition": (1e-10, 1e-12), "tricritical": (1e-10, 1e-12), "posterior": (1e-10, 1e-13), "landscape": (1e-8, 1e-11),
}  # fmt: skip
STEP = 1e-3  # relative distance over which the softest eigenvalue is differentiated
SHARE = {"posterior": 0.1}  # of rtol, to which gradients are driven; for transitions 0.01
ENDED = 0.05  # of the stability where a branch is begun: what is left where it ends
CLOSE = 1e-7  # relative distance over which the end of a branch is corrected
MERGED = 1e-3  # relative distance of instability and spinodal next to a tricritical point
BEYOND = 1.02  # of the instability: where the coherent branch is begun
COARSE, WIDTH, BACK = (
    0.97,
    0.01,
    0.995,
)  # its steps towards its end, how closely that is met by them, and the steps then


@final
@dataclass(frozen=True, eq=False)
class LinearBranches(Branches[LinearState]):
    """Minimization over positive definite kernels, by descent from known points."""

    temperature_span: ClassVar[tuple[float, int]] = 1e6, 41
    quartic_share: ClassVar[float] = 1.0

    problem: Problem
    layout: linear.Layout  # coordinates, which belong to the random network and so to every factor
    along: str
    rtol: float
    tolerance: float
    max_steps: int
    symmetric: bool
    seconds: float
    sampled: bool = False
    reach: float = 1e4
    crossing_rtol: float = 1e-13
    n_searches: int = stationary.N_SEARCHES

    @classmethod
    def make(cls, problem: Problem, options: Options) -> "LinearBranches":
        rtol, layout = options.relative_tolerance(RTOLS), linear.layout_of(problem)
        tolerance = SHARE.get(options.question, 0.01) * rtol
        limits, seconds = (rtol, tolerance, options.max_steps), 2e-6 * len(problem.input_kernel) ** 3
        return cls(problem, layout, options.along, *limits, is_symmetric(problem), seconds)

    def stationary_states(self, advance: Advance, start: Start | None = None) -> list[LinearState]:
        return stationary.stationary_points(self.layout, self.tolerance, self.max_steps, advance, start)

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
            "error": Check(state.error, self.rtol, Status.not_converged),
            "residual": Check(residual, self.rtol),
        }
        failure = None if finite else Status.nonfinite
        return Judged(conjugate, cost, state.free_energy - cost, judged, failure, {}, -stationary.UNSTABLE)

    def test_features(self, state: LinearState, network: Network, task: Task) -> tuple[np.ndarray, np.ndarray | None]:
        r""":math:`H_{*,\rm tr} = K_{*,\rm tr}K_{\rm tr}^{-1}H_{\rm tr}`, Eq. (posterior.10): the random network's law given
        the training neurons, forward in the states because K of a state needs H of the one before."""
        inputs, _ = input_kernels_of_test(network, task)
        J = state.layout.inverse  # so that K is inverted on the range of the random network's kernel
        K = J @ np.asarray(state.layout.covariance(linear.kernel(state.layout, state.point))) @ J.swapaxes(-1, -2)
        inverse = stationary.expand(state.layout, J.swapaxes(-1, -2) @ np.linalg.inv(K) @ J)
        H = np.zeros_like(inputs)
        for _ in range(network.depth):  # each pass makes one state more final
            K = inputs + shifted(self.problem, H)
            H = K @ inverse @ state.hidden
        return H, None

    def reached(self, state: LinearState) -> bool:
        return bool(state.residual <= self.rtol and np.isfinite(state.stability))

    def at(self, factor: float) -> linear.Layout:
        """The coordinates of the problem at another factor."""
        return self.layout._replace(problem=scaled(self.problem, self.along, factor))

    def incoherent(self, factor: float, start: LinearState | None = None) -> LinearState:
        point = np.eye(self.layout.root.shape[-1])[None] if start is None else start.point
        return self._descend(factor, point, even=True)

    def coherent_candidates(self, factor: float, start: LinearState) -> Iterator[LinearState]:
        """From an unstable incoherent point the search begins along its softest direction; strong labels leave the coherent
        one so far away that it is sought from a correlated kernel where this stops on its way."""
        state = self._descend(factor, start.displaced(0.1) if start.branch == "incoherent" else start.point, even=False)
        yield state
        point = stationary.coherent_start(self.at(factor))
        for _ in range(RESTARTS):
            if start.branch == "coherent" or self.reached(state):
                return
            state = self._descend(factor, point, even=False)
            yield state
            point = state.point

    def on_coherent_branch(self, state: LinearState) -> bool:
        """Next to its end a gradient may be small beside the branch: there it must be smaller."""
        limit = self.rtol if state.stability > MARGINAL else self.tolerance
        return state.residual <= limit and state.branch == "coherent"

    def coherent(self, factor: float, start: LinearState) -> LinearState | None:
        """The coherent state that is reached from ``start``, None where there is none."""
        return next(filter(self.on_coherent_branch, self.coherent_candidates(factor, start)), None)

    def _descend(self, factor: float, start: np.ndarray, *, even: bool) -> LinearState:
        layout = self.at(factor)
        minimum = stationary.minimum_below(layout, start, even=even, tolerance=self.tolerance, max_steps=self.max_steps)
        return stationary.state_at(layout, minimum)

    def at_temperature(self, temperature: float) -> "LinearBranches":
        problem = self.problem._replace(temperature=np.asarray(temperature))
        return replace(self, problem=problem, layout=self.layout._replace(problem=problem))

    def quartic(self, critical: float, state: LinearState) -> tuple[float, float]:
        return landau(state)[0], 0.0

    def growth_law(self, instability: Instability[LinearState]) -> GrowthLaw[LinearState]:
        """From Landau's expansion at the instability; the coherent branch of a first-order one is followed to its end."""
        critical, state = instability.factor, instability.state
        assert critical is not None and state is not None
        if instability.folded:
            return self._coexistence(critical, state, instability)
        quartic, correlation = landau(state)
        if quartic <= 0:
            return self._coexistence(critical, state, instability)
        near = [self.incoherent(critical * (1 + s * STEP) ** (1 / self.power), state).stability for s in (-2, -1, 1, 2)]
        slope = (near[0] - 8 * near[1] + 8 * near[2] - near[3]) / (12 * STEP)
        prefactor = correlation * np.sqrt(abs(slope) / (4 * quartic))
        return GrowthLaw("second", 0.5, float(prefactor))

    def _coexistence(
        self, critical: float, state: LinearState, instability: Instability[LinearState]
    ) -> GrowthLaw[LinearState]:
        """Spinodal and equal-free-energy point of a first-order transition."""
        beyond = critical * BEYOND**self.side
        start = self.coherent(beyond, self.incoherent(beyond, state))
        if start is None:
            return GrowthLaw("first", lost=("the coherent branch beyond the instability was not reached",))
        limit = 1e-3**self.side
        end = continuation.branch_end(self.coherent, beyond, start, COARSE**self.side, limit=limit, rtol=WIDTH)
        if end is not None:  # which lies within half the width, where the branch is followed once more
            near = end[0] * float(np.exp(0.5 * self.side * WIDTH))
            end = continuation.branch_end(self.coherent, near, end[1], BACK**self.side, limit=limit)
        if end is None or end[1].stability > ENDED * start.stability:
            return GrowthLaw("first", lost=("the coherent branch was not followed to its end",))

        spinodal, last = end

        def stability(factor: float) -> float:
            state = self.coherent(factor, last)
            return np.nan if state is None else state.stability

        read_off, _ = fold_factor(spinodal, self.side, stability)
        spinodal = read_off if abs(np.log(read_off / spinodal)) < CLOSE else spinodal

        def excess(factor: float, near: LinearState | None) -> tuple[float, LinearState]:
            assert near is not None
            coherent = self.coherent(factor, near) or near
            return self.incoherent(factor, instability.near(factor)).free_energy - coherent.free_energy, coherent

        inside = spinodal * (1 + self.side * 1e-9)
        first = continuation.Sample(inside, *excess(inside, last))
        if first.number >= 0 and abs(np.log(spinodal / critical)) < MERGED:  # the three cannot be told apart
            merged = self.side * min(self.side * spinodal, self.side * critical)
            return GrowthLaw("first", spinodal=merged, equal_free_energy=merged)
        equal = continuation.crossing(excess, first, continuation.Sample(beyond, *excess(beyond, start)))
        if equal is None:
            lost = ("the free energies of the two branches were not followed to their crossing",)
            return GrowthLaw("first", spinodal=spinodal, lost=lost)
        return GrowthLaw("first", spinodal=spinodal, equal_free_energy=equal.value)

    def landscape(self, pair: tuple[int, int], values: np.ndarray, advance: Advance) -> list[LandscapePoint | None]:
        """All values, outwards from the one closest to zero."""
        layout = linear.joint_layout(self.problem)
        root = layout.root
        forms = tuple(root.swapaxes(-1, -2) @ form @ root for form in correlation_forms(self.problem, *pair))
        middle = int(np.argmin(np.abs(values)))
        points: dict[int, LandscapePoint] = {}
        for path in (range(middle, len(values)), range(middle - 1, -1, -1)):
            S, field = np.eye(root.shape[-1])[None], np.zeros(())
            for i in path:
                constraint = Constraint(forms, np.asarray(values[i]), field)
                S, field, off, free = constrained_minimum(S, layout, constraint, self.rtol, self.max_steps)
                kernel = np.asarray(linear.kernel(layout, np.asarray(S))[0])
                points[i] = LandscapePoint(kernel, kernel, float(free), float(field), float(off), float(off))
                advance(1)
        return [points[i] for i in range(len(values))]


def landau(state: LinearState) -> tuple[float, float]:
    r"""Landau's quartic coefficient b at an incoherent point, and the adjacent correlation per unit of the amplitude.

    .. math::  F = F_0 + \tfrac12\lambda a^2 + b\,a^4, \qquad
               b = \tfrac1{24}F''''[e,e,e,e] - \tfrac12\langle c, H^{-1}c\rangle, \qquad c = \tfrac12F'''[e,e,\cdot]

    Eq. (posterior.14) along the softest direction :math:`e`, even modes eliminated. Method: derivatives by JAX; H⁻¹c by
    conjugate gradients among the even lags, where H is positive.
    """
    assert isinstance(state.layout, linear.Joint)
    _, direction = definite.smallest_eigenvalue(linear.free_energy, state.point, (state.layout,), rtol=1e-12)
    quartic = float(_quartic(state.point, linear.mirrored(state.layout), direction))
    L = np.linalg.cholesky(state.point)
    moved = linear.kernel(state.layout, L @ direction @ np.swapaxes(L, -1, -2))
    scale = np.diag(np.diagonal(state.hidden))
    return quartic, adjacent_correlation(state.problem, np.asarray(moved)[0], scale)


@jax.jit
def _quartic(S: jax.Array, layout: linear.Joint, e: jax.Array) -> jax.Array:
    gradient = lambda E: definite.gradient_at(linear.free_energy, S, E, (layout,))  # noqa: E731
    slope = lambda f: lambda a: jax.jvp(f, (a,), (1.0,))[1]  # noqa: E731
    second, third = jax.jvp(slope(slope(lambda a: gradient(a * e))), (0.0,), (1.0,))
    even = lambda E: linear.unbroken(0.5 * (E + jnp.swapaxes(E, -1, -2)), layout)  # noqa: E731
    c = even(0.5 * second)
    product = lambda E: even(jax.jvp(gradient, (jnp.zeros_like(S),), (E,))[1])  # noqa: E731
    response, _ = jax.scipy.sparse.linalg.cg(product, c, tol=1e-13, maxiter=1000)
    return jnp.sum(e * third) / 24 - 0.5 * jnp.sum(c * response)


class Constraint(NamedTuple):
    """The correlation as three linear forms of S, its target, and the field that holds it there, up to a stiff spring."""

    forms: tuple[Float[Array, "1 rank rank"], ...]
    target: Float[Array, ""]
    multiplier: Float[Array, ""]


def lagrangian(S: Array, layout: linear.Joint, constraint: Constraint) -> tuple[Array, Array]:
    """Augmented Lagrangian of the free energy at a given correlation, and its gradient."""
    value, gradient = linear.free_energy(S, layout)
    m, slope = correlation(S, constraint.forms)
    off = m - constraint.target
    value = value - constraint.multiplier * off + 0.5 * STIFFNESS * off**2
    return value, gradient + (STIFFNESS * off - constraint.multiplier) * slope


@jax.jit
def constrained_minimum(S: Array, layout: linear.Joint, constraint: Constraint, tolerance: Array, max_steps: int):
    """Point, field, violation and free energy at the target, by updating the multiplier until the correlation is there."""

    def go_on(c):
        _, _, off, gradient, n = c
        return ((jnp.abs(off) > tolerance) | (gradient > tolerance)) & (n < ROUNDS)

    def body(c):
        S, multiplier, _, _, n = c
        at = constraint._replace(multiplier=multiplier)
        minimum = definite.minimize(lagrangian, S, (layout, at), tolerance=0.1 * tolerance, max_steps=max_steps)
        off = correlation(minimum.point, at.forms)[0] - constraint.target
        return minimum.point, multiplier - STIFFNESS * off, off, minimum.gradient, n + 1

    big = jnp.asarray(jnp.inf)
    S, multiplier, off, gradient, _ = jax.lax.while_loop(go_on, body, (S, constraint.multiplier, big, big, 0))
    return S, multiplier, jnp.maximum(jnp.abs(off), gradient), linear.free_energy(S, layout)[0]
