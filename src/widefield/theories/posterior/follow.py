r"""Branches of stationary points as functions of a factor on the labels or on the temperature."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import Status
from widefield.question.activation import Activation
from widefield.solvers import definite
from widefield.theories.posterior import branches, linear, ordered, phases, saddle
from widefield.theories.posterior.branches import Stationary
from widefield.theories.posterior.nonlinear import MAX_DIMENSION
from widefield.theories.posterior.phases import Phase
from widefield.theories.posterior.problem import Problem
from widefield.theories.posterior.saddle import State

ALONG = ("labels", "temperature")
STEP = 1e-3  # relative distance over which the softest eigenvalue is differentiated
USABLE = 1e-3  # error of an order parameter, relative to it, with which a branch is still followed
USABLE_SAMPLED = 0.2  # the same for sampled branches
N_REPLICATES = 8  # independent sets of draws behind a sampled instability
SLOPE = 0.02  # relative distance over which a sampled eigenvalue is differentiated
PATHS = 1 << 16  # draws of a sampled branch


class LinearBranches(NamedTuple):
    """Follows the incoherent and the coherent branch of one problem; ``along`` names what the factor multiplies."""

    layout: linear.Joint
    along: str
    tolerance: float
    max_steps: int
    sampled: bool = False
    reach: float = 1e4  # factors that are searched, up and down
    rtol: float = 1e-13  # of a crossing

    def at(self, factor: float) -> linear.Joint:
        """The coordinates of the problem at another factor: the random network, and so they, stay the same."""
        problem = self.layout.problem
        changed = {self.along: getattr(problem, self.along) * factor}
        return self.layout._replace(problem=problem._replace(**changed))

    def incoherent(self, factor: float, start: Stationary | None = None) -> Stationary:
        """The minimum among kernels without odd lags, from the random network or a point nearby."""
        point = np.eye(self.layout.root.shape[-1])[None] if start is None else start.point
        return self._descend(factor, point, even=True)

    def coherent(self, factor: float, start: Stationary) -> Stationary | None:
        """The minimum that a search without constraint reaches from ``start``, if it is coherent.

        From an unstable incoherent point the search begins along its most unstable direction.
        """
        point = branches.displaced(start, 0.1) if start.branch == "incoherent" else start.point
        found = self._descend(factor, point, even=False)
        return found if found.gradient <= self.tolerance and found.branch == "coherent" else None

    def hotter(self, temperature: float) -> "LinearBranches":
        """The same at another temperature."""
        problem = self.layout.problem._replace(temperature=np.asarray(temperature))
        return self._replace(layout=self.layout._replace(problem=problem))

    def quartic(self, critical: float, point: Stationary) -> float:
        """Landau's coefficient at the instability."""
        return landau(point).quartic

    def seed(self, factor: float, near: Stationary, branch: None) -> None:
        """Nothing is known beforehand."""
        return

    def growth_law(self, critical: float, point: Stationary) -> dict[str, Any]:
        """Order, exponent and prefactor from Landau's expansion at the instability."""
        found, power = landau(point), powers(self.along)
        near = [self.incoherent(critical * (1 + s * STEP) ** (1 / power), point).stability for s in (-2, -1, 1, 2)]
        slope = (near[0] - 8 * near[1] + 8 * near[2] - near[3]) / (12 * STEP)
        if found.quartic <= 0:
            return {"order": "first"}
        prefactor = found.correlation * np.sqrt(abs(slope) / (4 * found.quartic))
        return {"order": "second", "exponent": 0.5, "prefactor": float(prefactor)}

    def _descend(self, factor: float, start: np.ndarray, *, even: bool) -> Stationary:
        return branches.descend(self.at(factor), start, even=even, tolerance=self.tolerance, max_steps=self.max_steps)


def powers(along: str) -> int:
    """λ is the varied quantity, but the square of the labels."""
    return 2 if along == "labels" else 1


class NonlinearBranches(NamedTuple):
    """The same for a nonlinear network, whose states come from the saddle-point map.

    ``sampled`` ones use the same draws at every factor, so that a branch is a smooth function of it.
    """

    problem: Problem
    activation: Activation
    along: str
    options: dict[str, Any]
    sampled: bool = False
    reach: float = 100.0
    rtol: float = 1e-8

    def at(self, factor: float) -> Problem:
        return self.problem._replace(**{self.along: getattr(self.problem, self.along) * factor})

    def incoherent(self, factor: float, start: Phase | None = None) -> Phase:
        """The state without odd lags, from a state nearby or else by growing the labels; NaN stability if none."""
        solve = partial(phases.solve_phase, self.at(factor), self.activation, even=True, **self.options)
        found = solve(start=start)
        reached = found.found.status in (Status.success, Status.inaccurate)
        return found if reached or start is None else solve()

    def coherent(self, factor: float, start: Phase) -> Phase | None:
        """The state reached from ``start``, if it is coherent; an incoherent start is made coherent first.

        Anderson's iteration also converges to unstable states, so several beginnings are tried.
        """
        problem = self.at(factor)
        if start.branch == "coherent":
            tries: Iterator[Phase | None] = iter(
                [phases.solve_phase(problem, self.activation, even=False, start=start, **self.options)]
            )
        else:
            tries = self._from_incoherent(Phase(problem, start.found))
        return next((f for f in tries if f is not None and f.branch == "coherent" and self._usable(f)), None)

    def _from_incoherent(self, near: Phase) -> Iterator[Phase | None]:
        for rho in phases.STARTS:
            yield phases.coherent_from(near, self.activation, rho, **self.options)
        there = phases.solve_phase(near.problem, self.activation, even=True, start=near, **self.options)
        yield phases.coherent_by_walk(there, self.activation, **self.options)

    def _usable(self, found: Phase) -> bool:
        """Close to a transition errors are amplified beyond ``rtol``; what counts is their size against the order."""
        limit = USABLE_SAMPLED if self.sampled else USABLE
        small = found.found.error <= limit * branches.adjacent_correlation(found.problem, found.kernel)
        reached = found.converged or (found.found.status is Status.inaccurate and small)
        return reached and found.stability > 0

    def growth_law(self, critical: float, point: Phase) -> dict[str, Any]:
        """Order and prefactor from the coherent branch as it leaves the incoherent one, by order parameter.

        First order where it leaves towards the side on which the incoherent state is stable; then also its other points.
        """
        try:
            branch = self.leaving(critical, point)
            grown, ratio = self.growth(branch, critical)
        except ordered.LostError:
            return {"order": None}
        if self._side * grown > 0:
            law = {"order": "second", "exponent": 0.5, "prefactor": ratio / np.sqrt(abs(grown))}
            return law | {"ordered": branch}
        free = lambda factor: self.incoherent(factor, point).free_energy  # noqa: E731
        points = ordered.first_order_points(branch, critical, self._side, free)
        return {"order": "first", "ordered": branch} | points

    def hotter(self, temperature: float) -> "NonlinearBranches":
        """The same at another temperature."""
        return self._replace(problem=self.problem._replace(temperature=np.asarray(temperature)))

    def quartic(self, critical: float, point: Phase) -> float:
        """A number with the sign of Landau's coefficient: positive where the branch leaves towards its own phase."""
        return self._side * self.growth(self.leaving(critical, point), critical)[0]

    def leaving(self, critical: float, point: Phase) -> ordered.OrderedBranch:
        """The coherent branch by its order parameter, from the incoherent point at the instability."""
        state = State(jnp.asarray(point.found.feature), jnp.asarray(point.found.hidden))
        limits = self.options["rtol"], self.options["max_steps"]
        branch = ordered.OrderedBranch(self.problem, self.activation, self.along, *limits)
        branch.leave(np.log(critical), state)
        return branch

    def growth(self, branch: ordered.OrderedBranch, critical: float) -> tuple[float, float]:
        """a of λ/λ_c = 1 + a m² + …, and the largest correlation between adjacent states in units of m."""
        return ordered.expansion(branch, np.log(critical), powers(self.along), self._size)

    def seed(self, factor: float, near: Phase, branch: ordered.OrderedBranch | None) -> Phase | None:
        """A state of the branch by order parameter next to a factor, as a start; None where none is known."""
        state = None if branch is None else branch.near(np.log(factor), self._side)
        if state is None:
            return None
        parts: Any = {"feature": np.asarray(state.feature), "hidden": np.asarray(state.hidden)}
        return near._replace(found=replace(near.found, **parts))

    @property
    def _side(self) -> int:
        """The side of the instability on which networks are coherent."""
        return 1 if self.along == "labels" else -1

    def _size(self, state: State) -> float:
        return branches.adjacent_correlation(self.problem, np.asarray(state.hidden))


Branches = LinearBranches | NonlinearBranches


def branches_of(
    problem: Problem,
    activation: Activation,
    along: str,
    *,
    rtol: float | None,
    max_steps: int,
    paths: int | None = None,
    seed: int = 0,
) -> Branches | None:
    """Branches to follow; None where the problem has no symmetry that a transition could break."""
    if activation.known_as("linear"):
        return linear_branches(problem, along, tolerance=0.01 * (rtol or 1e-10), max_steps=max_steps)
    if not phases.has_symmetry(problem, activation):
        return None
    options = {"rtol": rtol or 1e-7, "max_steps": max_steps, "method": "quadrature"}
    if paths is None and dimension_of(problem, activation) <= MAX_DIMENSION:
        return NonlinearBranches(problem, activation, along, options)
    options |= {"method": "importance", "n_paths": paths or PATHS, "seed": seed}
    return NonlinearBranches(problem, activation, along, options, sampled=True, rtol=1e-5)


def dimension_of(problem: Problem, activation: Activation) -> int:
    """Of the states of one neuron: depth times samples, less where inputs repeat."""
    prior = saddle.prior_state(problem, activation)
    return saddle.range_of(np.asarray(prior.hidden)).embed.shape[1]


def replicated(followed: NonlinearBranches, critical: float, point: Phase) -> tuple[float, float]:
    r"""Mean and standard error of the instability over independent sets of draws.

    Each set's own root is one Newton step from that of the first, :math:`f_s = f(1 - \lambda_s(f)/\lambda')` with
    :math:`\lambda = 1 - \mu` and its slope in :math:`\ln f`; a set that does not converge is NaN.
    """

    def softest(factor: float, more: int) -> float:
        options = followed.options | {"seed": followed.options["seed"] + 7919 * more}
        found = followed._replace(options=options).incoherent(factor, point)
        return found.stability if found.converged else np.nan

    slope = (softest(critical * (1 + SLOPE), 0) - softest(critical * (1 - SLOPE), 0)) / (2 * SLOPE)
    roots = [critical] + [critical * (1 - softest(critical, k) / slope) for k in range(1, N_REPLICATES)]
    return float(np.mean(roots)), float(np.std(roots, ddof=1) / np.sqrt(len(roots)))


def linear_branches(problem: Problem, along: str, *, tolerance: float, max_steps: int) -> LinearBranches | None:
    """Those of a linear network."""
    layout = linear.layout_of(problem)
    if not (isinstance(layout, linear.Joint) and branches.is_symmetric(problem)):
        return None
    return LinearBranches(layout, along, tolerance, max_steps)


class Landau(NamedTuple):
    r"""The free energy near the incoherent point, :math:`F_0 + \tfrac12\lambda a^2 + b\,a^4`, even modes eliminated.

    ``softest`` is :math:`\lambda`, ``quartic`` is :math:`b`; ``correlation`` is the largest adjacent-state correlation
    per unit of the amplitude :math:`a`.
    """

    softest: float
    quartic: float
    correlation: float


def landau(found: Stationary) -> Landau:
    r"""Landau coefficients along the softest direction :math:`e` of an incoherent point.

    .. math::  b = \tfrac1{24}F''''[e,e,e,e] - \tfrac12\langle c, H^{-1}c\rangle, \qquad c = \tfrac12F'''[e,e,\cdot]

    Method: derivatives by JAX; :math:`H^{-1}c` by conjugate gradients among the even lags, where H is positive.
    """
    softest, direction = definite.smallest_eigenvalue(linear.free_energy, found.point, (found.layout,), rtol=1e-12)
    quartic = float(_quartic(jnp.asarray(found.point), linear.mirrored(found.layout), jnp.asarray(direction)))  # type: ignore[arg-type]
    L = np.linalg.cholesky(found.point)
    moved = linear.kernel(found.layout, L @ direction @ np.swapaxes(L, -1, -2))
    scale = np.diag(np.diagonal(found.kernel))
    return Landau(softest, quartic, branches.adjacent_correlation(found.problem, np.asarray(moved)[0], scale))


@jax.jit
def _quartic(S, layout, e):
    value = lambda E: linear.free_energy(definite.displaced(S, E), layout)[0]  # noqa: E731
    along = lambda a: value(a * e)  # noqa: E731
    fourth = along
    for _ in range(4):
        fourth = jax.grad(fourth)
    gradient = lambda a: jax.grad(value)(a * e)  # noqa: E731
    second = jax.jacfwd(jax.jacfwd(gradient))(0.0)
    even = lambda E: linear.unbroken(0.5 * (E + jnp.swapaxes(E, -1, -2)), layout)  # noqa: E731
    c = even(0.5 * second)
    product = lambda E: even(jax.jvp(jax.grad(value), (jnp.zeros_like(S),), (E,))[1])  # noqa: E731
    answer, _ = jax.scipy.sparse.linalg.cg(product, c, tol=1e-13, maxiter=1000)
    return fourth(0.0) / 24 - 0.5 * jnp.sum(c * answer)
