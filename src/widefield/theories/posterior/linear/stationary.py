"""The stationary points of a linear network's free energy, by branch.

The incoherent point is the minimum among the kernels without odd lags; its stability is that of the whole space.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np

from widefield.solvers import definite
from widefield.theories.posterior.branches import Advance, StationaryState, adjacent_trace, correlated
from widefield.theories.posterior.linear import free_energy as linear
from widefield.theories.posterior.problem import Problem, by_state, is_symmetric
from widefield.theories.posterior.start import Start

N_SEARCHES = 6
UNSTABLE = -1e-8  # Hessian eigenvalues above this count as zero: flat directions are allowed
RIGID = 1.0  # stability where all inputs are zero, so that nothing can move
DENSE = 500  # unknowns up to which eigenvalues are exact
CONVERGED = 1e-6  # gradient above which a point is listed last
BASIN = 0.25  # of the smallest Hessian eigenvalue: closer than this a descent ends in the same minimum
NEAR = 0.2  # of its square: the gradient at which that can be told


@final
@dataclass(frozen=True, eq=False)
class LinearState(StationaryState):
    """One stationary point: its ``layout`` and coordinates ``point``, and the ``softest`` direction of its Hessian.

    ``residual`` is the largest entry of the gradient where H is the identity, in units of the largest of the terms that it
    adds; features are the states themselves.
    """

    layout: linear.Layout
    point: np.ndarray
    softest: np.ndarray

    def displaced(self, amount: float) -> np.ndarray:
        """Coordinates next to the point, along its softest direction."""
        return np.asarray(definite.displaced(self.point, amount * self.softest))


def stationary_points(
    layout: linear.Layout, tolerance: float, max_steps: int, advance: Advance, given: Start | None = None
) -> list[LinearState]:
    """Stationary points from several starts, one of them ``given``, the lowest free energy first; minima and the incoherent
    point.

    A descent that comes so close to a known minimum that it can only end there is stopped: its stability and its last
    steps are known. ``advance`` is told of each of at most ``N_SEARCHES`` searches.
    """
    problem, joint = layout.problem, isinstance(layout, linear.Joint)
    symmetric = is_symmetric(problem)
    descend = partial(_descend, layout, tolerance, max_steps)
    states: tuple[LinearState, ...] = ()
    given_first = [(*found, 0) for found in _from(layout, given)]
    for start, even, told in (*given_first, *((_start(layout, 0.0, g), symmetric, 2) for g in (1.0, _growth(problem)))):
        new = descend(start, states, even=even)
        states += new
        for point in new:
            if symmetric and point.stability < UNSTABLE:
                states += descend(point.displaced(0.3), states, even=False)
        advance(told)
    if joint and problem.depth > 1:
        for start in (_start(layout, 0.5, 1.0), coherent_start(layout)):
            states += descend(start, states, even=False)
            advance(1)
    return _distinct([_gauge_fixed(point) for point in states] if symmetric else list(states), tolerance)


def _descend(
    layout: linear.Layout,
    tolerance: float,
    max_steps: int,
    start: np.ndarray,
    known: tuple[LinearState, ...],
    *,
    even: bool,
) -> tuple[LinearState, ...]:
    """The stationary point below ``start``; nothing where it is the point of one that is ``known``."""
    minima = [state for state in known if state.residual <= tolerance and state.stability > 0]
    used = 0
    if minima:
        target = max(NEAR * min(state.stability for state in minima) ** 2, tolerance)
        near = minimum_below(layout, start, even=even, tolerance=target, max_steps=max_steps)
        start, used = np.asarray(near.point), int(near.steps)
        if any(_distance(start, state) <= BASIN * min(state.stability, 1.0) for state in minima):
            return ()
    left = max(1, max_steps - used)
    minimum = minimum_below(layout, start, even=even, tolerance=tolerance, max_steps=left)
    if any(state.residual < CONVERGED and _distance(np.asarray(minimum.point), state) <= 1e-9 for state in known):
        return ()
    return (state_at(layout, minimum._replace(steps=int(minimum.steps) + used)),)


def minimum_below(
    layout: linear.Layout, start: np.ndarray, *, even: bool, tolerance: float, max_steps: int
) -> definite.Minimum:
    """Where the descent from ``start`` ends; ``even`` keeps odd lags at zero."""
    sector = linear.mirrored(layout) if even and isinstance(layout, linear.Joint) else layout
    return definite.minimize(
        linear.free_energy, start, (sector,), project=linear.unbroken, tolerance=tolerance, max_steps=max_steps
    )


def state_at(layout: linear.Layout, minimum: definite.Minimum) -> LinearState:
    """The state at the end of a descent, with its stability."""
    point, stability, softest = np.asarray(minimum.point), np.nan, np.zeros(minimum.point.shape)
    if np.isfinite(point).all():
        stability, softest = definite.smallest_eigenvalue(linear.free_energy, point, (layout,), dense=DENSE)
        stability = stability if softest.size else RIGID
    mask = np.kron(linear.joined_states(layout.problem), np.ones((layout.problem.n_samples,) * 2))
    kernel = mask * expand(layout, linear.kernel(layout, point))
    gradient, steps = float(minimum.gradient) / linear.size_of_terms(point, layout), int(minimum.steps)
    known = (layout.problem, kernel, kernel, float(minimum.value), gradient, gradient, stability, steps)
    return LinearState(*known, layout, point, softest)


def expand(layout: linear.Layout, blocks: np.ndarray) -> np.ndarray:
    """Blocks of a layout as one (node, node_) matrix."""
    if isinstance(layout, linear.Joint):
        return blocks[0]
    depth, n = blocks.shape[:2]
    full = np.zeros((depth, n, depth, n))
    full[np.arange(depth), :, np.arange(depth)] = blocks
    return full.reshape(depth * n, depth * n)


def _distance(point: np.ndarray, state: LinearState) -> float:
    """How far a point is from a state, in the units that the state sets."""
    if not (np.isfinite(point).all() and np.isfinite(state.point).all()):
        return np.inf
    inverse = np.linalg.inv(np.linalg.cholesky(state.point))
    off = inverse @ point @ np.swapaxes(inverse, -1, -2) - np.eye(point.shape[-1])
    return float(np.linalg.norm(off))


def _start(layout: linear.Layout, rho: float, growth: float) -> np.ndarray:
    """Coordinates of a kernel whose states are correlated by ρ^{|a−b|} and grow by a factor each."""
    problem = layout.problem
    if rho == 0 and growth == 1:
        return np.broadcast_to(np.eye(layout.root.shape[-1]), (len(layout.root), *2 * layout.root.shape[-1:])).copy()
    states, H0 = np.arange(problem.depth), linear.random_kernel(problem)
    H = correlated(problem, H0, rho, growth)
    if rho == 0 and isinstance(layout, linear.Joint):  # keep what the inputs join
        scale = np.repeat(growth ** ((states + 1) / 2), problem.n_samples)
        H = scale[:, None] * H0 * scale
    S = layout.inverse @ _parts(layout, H) @ np.swapaxes(layout.inverse, -1, -2)
    return 0.5 * (S + np.swapaxes(S, -1, -2))


def _from(layout: linear.Layout, given: Start | None) -> list[tuple[np.ndarray, bool]]:
    """Coordinates of the kernel that is given, and whether it has no odd lags; none where it is singular in them."""
    if given is None:
        return []
    S = layout.inverse @ _parts(layout, given.hidden) @ np.swapaxes(layout.inverse, -1, -2)
    S, even = 0.5 * (S + np.swapaxes(S, -1, -2)), is_symmetric(layout.problem) and not given.coherent
    if even and isinstance(layout, linear.Joint):
        S = np.asarray(linear.unbroken(S, linear.mirrored(layout)))
    return [(S, even)] if np.isfinite(definite.root_on_host(S)).all() else []


def _parts(layout: linear.Layout, H: np.ndarray) -> np.ndarray:
    """The blocks of a (node, node_) matrix that a layout has coordinates for."""
    states = np.arange(layout.problem.depth)
    return H[None] if isinstance(layout, linear.Joint) else by_state(layout.problem, H)[states, :, states]


def coherent_start(layout: linear.Layout) -> np.ndarray:
    """Coordinates of a strongly correlated kernel of about the right size."""
    return _start(layout, 0.9, _growth(layout.problem))


def _growth(problem: Problem) -> float:
    """The factor s per state by which labels alone stretch the random kernel, Eq. (posterior.12) at κ = 0: (s − 1)s^L = λ."""
    S = problem.supervised
    power = problem.readout * np.trace(linear.random_kernel(problem)[np.ix_(S, S)])
    L = S[-1] // problem.n_samples + 1
    strength = float(np.sum(problem.labels**2) / power) if power > 0 else 0.0
    s = (1 + strength) ** (1 / (L + 1))
    for _ in range(60):
        s -= ((s - 1) * s**L - strength) / (s**L + L * (s - 1) * s ** (L - 1))
    return float(s)


def _gauge_fixed(state: LinearState) -> LinearState:
    """Of the two points ±W, that whose adjacent states are positively correlated."""
    if adjacent_trace(state.problem, state.hidden) >= 0:
        return state
    assert isinstance(state.layout, linear.Joint)
    mirror = np.asarray(linear.mirrored(state.layout).mirror)
    sign = linear.parity(state.problem)
    point = mirror @ state.point @ np.swapaxes(mirror, -1, -2)
    turn = np.linalg.solve(np.linalg.cholesky(point), mirror @ np.linalg.cholesky(state.point))
    softest = turn @ state.softest @ np.swapaxes(turn, -1, -2)
    hidden = sign[:, None] * state.hidden * sign
    return replace(state, point=point, hidden=hidden, feature=hidden, softest=softest)


def is_converged(state: LinearState, tolerance: float) -> bool:
    return state.residual <= max(CONVERGED, tolerance)


def _distinct(points: list[LinearState], tolerance: float) -> list[LinearState]:
    """Without repetitions, by free energy; what did not converge comes last."""
    rank = lambda p: (not is_converged(p, tolerance), round(p.free_energy, 9), -adjacent_trace(p.problem, p.hidden))  # noqa: E731
    close = lambda p, q: abs(p.free_energy - q.free_energy) < 1e-8 * (1 + abs(q.free_energy))  # noqa: E731
    kept: list[LinearState] = []
    for point in sorted(points, key=rank):
        if not any(point.branch == other.branch and close(point, other) for other in kept):
            kept.append(point)
    return kept
