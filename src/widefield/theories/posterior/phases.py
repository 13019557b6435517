r"""The stationary states of nonlinear networks, by branch: what `branches` is for linear ones.

The saddle point is not the minimum of a known function of :math:`(\Phi, C)`, so a state's stability is read from the
saddle map: ``stability`` is :math:`1 - \mu` with :math:`\mu` its leading eigenvalue, zero exactly at an instability.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import Status
from widefield.gaussian.kernels import parity_of
from widefield.question.activation import Activation
from widefield.theories.posterior import saddle
from widefield.theories.posterior.branches import COHERENT, adjacent_correlation, is_symmetric, symmetric_root
from widefield.theories.posterior.held import walk_to_coherent
from widefield.theories.posterior.nonlinear import Saddle, solve_saddle
from widefield.theories.posterior.problem import Problem, by_state
from widefield.theories.posterior.saddle import State

STARTS = (0.7, 0.3, 0.1)  # correlations of adjacent states from which a coherent state is sought
N_SEARCHES = 1 + len(STARTS)
SPREAD = 4.0  # standard errors of an adjacent correlation that sampling alone may produce


class Phase(NamedTuple):
    """A stationary state with the names that linear ones have."""

    problem: Problem
    found: Saddle

    @property
    def kernel(self) -> np.ndarray:
        return self.found.hidden

    @property
    def free_energy(self) -> float:
        return self.found.free_energy

    @property
    def stability(self) -> float:
        return 1 - self.found.mu

    @property
    def gradient(self) -> float:
        return self.found.residual

    @property
    def converged(self) -> bool:
        return self.found.status is Status.success

    @property
    def branch(self) -> str:
        noise = adjacent_correlation(self.problem, self.found.hidden_stderr, self.found.hidden)
        limit = COHERENT if self.found.method == "quadrature" else SPREAD * noise
        coherent = adjacent_correlation(self.problem, self.kernel) > max(COHERENT, limit)
        return "coherent" if coherent else "incoherent"


def has_symmetry(problem: Problem, activation: Activation) -> bool:
    """Whether W → −W is a symmetry that a coherent state breaks."""
    return is_symmetric(problem) and saddle.has_sign_symmetry(problem, parity_of(activation))


def solve_phase(
    problem: Problem, activation: Activation, *, even: bool, start: Phase | None = None, **options
) -> Phase:
    """One stationary state, by default from the random network; ``even`` keeps odd lags at zero."""
    state = None if start is None else (start.found.feature, start.found.hidden)
    found = solve_saddle(problem, activation, start=state, sector="even" if even else "full", **options)
    return Phase(problem, found)


def stationary_phases(
    problem: Problem, activation: Activation, *, advance: Callable[[int], object] = lambda n: None, **options: Any
) -> list[Phase]:
    """States found from several starts, the lowest free energy first, those that did not converge last."""
    symmetric = has_symmetry(problem, activation)
    first = solve_phase(problem, activation, even=symmetric, **options)
    advance(1)
    found = [first]
    if symmetric and problem.depth > 2 and first.converged:
        for rho in STARTS:
            other = coherent_from(first, activation, rho, **options)
            advance(1)
            if other.converged and other.branch == "coherent":
                found.append(other)
                break
        else:
            walked = coherent_by_walk(first, activation, **options)
            found += [walked] if walked is not None and walked.converged and walked.branch == "coherent" else []
    order = sorted(found, key=lambda phase: (not phase.converged, phase.free_energy))
    kept: list[Phase] = []
    for phase in order:
        if not any(p.branch == phase.branch and abs(p.free_energy - phase.free_energy) < 1e-6 for p in kept):
            kept.append(_gauge_fixed(phase) if symmetric else phase)
    return kept


def coherent_from(phase: Phase, activation: Activation, rho: float, **options: Any) -> Phase:
    r"""The state reached from an incoherent one whose states are correlated by :math:`\rho^{|a-b|}`."""
    parts: dict[str, Any] = {
        name: _correlated(phase.problem, getattr(phase.found, name), rho) for name in ("feature", "hidden")
    }
    start = phase._replace(found=replace(phase.found, **parts))
    return solve_phase(phase.problem, activation, even=False, start=start, **options)


def coherent_by_walk(phase: Phase, activation: Activation, **options: Any) -> Phase | None:
    """The coherent state next to an unstable incoherent one, by way of the landscape; None where there is none.

    Slower than `coherent_from` and surer: unbounded activations leave no density at most guesses.
    """
    if not (phase.found.method == "quadrature" and phase.stability < 0):
        return None
    asked, state = phase.problem, State(jnp.asarray(phase.found.feature), jnp.asarray(phase.found.hidden))
    reached = walk_to_coherent(asked, activation, state, options.get("max_steps", 300))
    if reached is None:
        return None
    found: Any = replace(phase.found, feature=np.asarray(reached.feature), hidden=np.asarray(reached.hidden))
    return solve_phase(asked, activation, even=False, start=phase._replace(found=found), **options)


def _correlated(problem: Problem, matrix: np.ndarray, rho: float) -> np.ndarray:
    """Equal-state blocks as they are, others the product of their roots times ρ^{|a−b|}."""
    blocks = by_state(problem, matrix)
    states = np.arange(problem.depth)
    roots = np.stack([symmetric_root(blocks[a, :, a]) for a in states])
    lags = rho ** np.abs(states[:, None] - states)
    return np.einsum("apq,brq,ab->apbr", roots, roots, lags).reshape(matrix.shape)


def _gauge_fixed(phase: Phase) -> Phase:
    """Of the two states ±W, that whose adjacent states are positively correlated."""
    blocks = by_state(phase.problem, phase.kernel)
    if sum(np.trace(blocks[a, :, a + 1]) for a in range(phase.problem.depth - 1)) >= 0:
        return phase
    sign = np.where(saddle.odd_lags(phase.problem), -1.0, 1.0)
    flipped: dict[str, Any] = {
        name: sign * getattr(phase.found, name) for name in ("feature", "hidden", "conjugate", "covariance")
    }
    return phase._replace(found=replace(phase.found, **flipped))
