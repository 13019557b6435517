r"""The stationary points of a linear network's free energy, by branch.

With tied weights, an input that drives states of one parity and labels on states of one parity, :math:`W \to -W` is a
symmetry. The *incoherent* point has no odd lags; it is stationary at every label strength, so a vanishing gradient says
nothing. It is found as the minimum within the kernels without odd lags, and its stability is that of the whole space.
*Coherent* points have correlations between adjacent states.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from widefield.solvers import definite
from widefield.theories.posterior import linear
from widefield.theories.posterior.problem import Problem, by_state

COHERENT = 1e-6  # adjacent-state correlation from which a branch is called coherent
N_SEARCHES = 6
UNSTABLE = -1e-8  # Hessian eigenvalues above this count as zero: flat directions are allowed


class Stationary(NamedTuple):
    """One stationary point: coordinates, kernel (node, node_), free energy, and how good and how stable it is."""

    layout: linear.Layout
    point: np.ndarray
    kernel: np.ndarray
    free_energy: float
    gradient: float
    stability: float
    steps: int

    @property
    def problem(self) -> Problem:
        return self.layout.problem

    @property
    def branch(self) -> str:
        return "coherent" if adjacent_correlation(self.problem, self.kernel) > COHERENT else "incoherent"


def is_symmetric(problem: Problem) -> bool:
    """Whether W → −W is a symmetry: inputs and labels join no states of odd distance, weights are tied."""
    labels = linear.all_labels(problem)
    sign = linear.parity(problem)
    odd = sign[:, None] * sign < 0
    tied = np.any(problem.weight != np.diag(np.diagonal(problem.weight)))
    return bool(tied and not np.any(problem.drive[odd]) and not np.any((labels @ labels.T)[odd]))


def adjacent_correlation(problem: Problem, kernel: np.ndarray, scale: np.ndarray | None = None) -> float:
    """The largest correlation between adjacent states, over all pairs of samples: the order parameter.

    ``scale`` is the kernel that has the variances, the same one by default.
    """
    deviation = np.sqrt(np.maximum(np.diagonal(kernel if scale is None else scale), 0))
    deviation = np.where(deviation > 0, deviation, np.inf)
    blocks = by_state(problem, kernel / deviation / deviation[:, None])
    return float(max((np.abs(blocks[a, :, a + 1]).max() for a in range(problem.depth - 1)), default=0.0))


def stationary_points(
    problem: Problem, *, tolerance: float, max_steps: int, advance: Callable[[int], object] = lambda n: None
) -> list[Stationary]:
    """Stationary points found from several starts, the lowest free energy first; minima and the incoherent point.

    ``advance`` is told of each of at most ``N_SEARCHES`` searches.
    """
    layout = linear.layout_of(problem)
    search = partial(descend, layout, tolerance=tolerance, max_steps=max_steps)
    symmetric = isinstance(layout, linear.Joint) and is_symmetric(problem)
    found = []
    for start in (_start(layout, 0.0, 1.0), _start(layout, 0.0, _growth(problem))):
        point = search(start, even=symmetric)
        found.append(point)
        if symmetric and point.stability < UNSTABLE:
            found.append(search(displaced(point, 0.3), even=False))
        advance(2)
    if isinstance(layout, linear.Joint) and problem.depth > 1:
        for rho, growth in ((0.5, 1.0), (0.9, _growth(problem))):
            found.append(search(_start(layout, rho, growth), even=False))
            advance(1)
    if symmetric:
        found = [_gauge_fixed(point) for point in found]
    return _distinct(found)


def descend(layout: linear.Layout, start: np.ndarray, *, even: bool, tolerance: float, max_steps: int) -> Stationary:
    """The stationary point below ``start``; ``even`` keeps odd lags at zero."""
    sector = linear.mirrored(layout) if even and isinstance(layout, linear.Joint) else layout
    found = definite.minimise(
        linear.free_energy, start, (sector,), project=linear.unbroken, tolerance=tolerance, max_steps=max_steps
    )
    point, stability = np.asarray(found.point), np.nan
    if np.isfinite(point).all():
        stability = definite.smallest_eigenvalue(linear.free_energy, point, (layout,))[0]
    mask = np.kron(linear.joined_states(layout.problem), np.ones((layout.problem.n_samples,) * 2))
    kernel = mask * expand(layout, linear.kernel(layout, point))
    return Stationary(layout, point, kernel, float(found.value), float(found.gradient), stability, int(found.steps))


def expand(layout: linear.Layout, blocks: np.ndarray) -> np.ndarray:
    """Blocks of a layout as one (node, node_) matrix."""
    if isinstance(layout, linear.Joint):
        return blocks[0]
    depth, n = blocks.shape[:2]
    full = np.zeros((depth, n, depth, n))
    full[np.arange(depth), :, np.arange(depth)] = blocks
    return full.reshape(depth * n, depth * n)


def displaced(found: Stationary, amount: float) -> np.ndarray:
    """A start next to a saddle, along its most unstable direction."""
    _, direction = definite.smallest_eigenvalue(linear.free_energy, found.point, (found.layout,))
    return np.asarray(definite.displaced(found.point, amount * direction))


def _start(layout: linear.Layout, rho: float, growth: float) -> np.ndarray:
    r"""Coordinates of :math:`H_{ab} = s^{(a+b)/2+1}\,R_a\,\rho^{|a-b|}R_b` with :math:`R_a` the root of a random block."""
    problem = layout.problem
    if rho == 0 and growth == 1:
        return np.broadcast_to(np.eye(layout.root.shape[-1]), (len(layout.root), *2 * layout.root.shape[-1:])).copy()
    blocks = by_state(problem, linear.random_kernel(problem))
    states = np.arange(problem.depth)
    roots = np.stack([symmetric_root(blocks[a, :, a]) * growth ** ((a + 1) / 2) for a in states])
    lags = np.where(states[:, None] == states, 1.0, rho ** np.abs(states[:, None] - states))
    H = np.einsum("apq,brq,ab->apbr", roots, roots, lags).reshape(problem.drive.shape)
    if rho == 0 and isinstance(layout, linear.Joint):  # keep what the inputs join
        scale = np.repeat(growth ** ((states + 1) / 2), problem.n_samples)
        H = scale[:, None] * linear.random_kernel(problem) * scale
    parts = H[None] if isinstance(layout, linear.Joint) else by_state(problem, H)[states, :, states]
    S = layout.inverse @ parts @ np.swapaxes(layout.inverse, -1, -2)
    return 0.5 * (S + np.swapaxes(S, -1, -2))


def symmetric_root(A: np.ndarray) -> np.ndarray:
    """The symmetric root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(A)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def _growth(problem: Problem) -> float:
    """The factor s per state by which labels alone stretch the random kernel: (s − 1)s^L = λ, no temperature."""
    S = problem.supervised
    power = problem.readout * np.trace(linear.random_kernel(problem)[np.ix_(S, S)])
    L = S[-1] // problem.n_samples + 1
    strength = float(np.sum(problem.labels**2) / power) if power > 0 else 0.0
    s = (1 + strength) ** (1 / (L + 1))
    for _ in range(60):
        s -= ((s - 1) * s**L - strength) / (s**L + L * (s - 1) * s ** (L - 1))
    return float(s)


def _gauge_fixed(found: Stationary) -> Stationary:
    """Of the two points ±W, that whose adjacent states are positively correlated."""
    blocks = by_state(found.problem, found.kernel)
    if sum(np.trace(blocks[a, :, a + 1]) for a in range(found.problem.depth - 1)) >= 0:
        return found
    assert isinstance(found.layout, linear.Joint)
    mirror = np.asarray(linear.mirrored(found.layout).mirror)
    sign = linear.parity(found.problem)
    point = mirror @ found.point @ np.swapaxes(mirror, -1, -2)
    return found._replace(point=point, kernel=sign[:, None] * found.kernel * sign)


def _distinct(points: list[Stationary]) -> list[Stationary]:
    """Without repetitions, by free energy; what did not converge comes last."""
    trace = lambda p: sum(np.trace(by_state(p.problem, p.kernel)[a, :, a + 1]) for a in range(p.problem.depth - 1))  # noqa: E731
    order = sorted(points, key=lambda p: (not p.gradient < 1e-6, round(p.free_energy, 9), -trace(p)))
    kept: list[Stationary] = []
    for point in order:
        twin = any(
            abs(point.free_energy - other.free_energy) < 1e-8 * (1 + abs(other.free_energy))
            and point.branch == other.branch
            for other in kept
        )
        if not twin:
            kept.append(point)
    return kept
