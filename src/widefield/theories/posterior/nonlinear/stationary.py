r"""The stationary states of nonlinear networks, by branch.

The saddle point is not the minimum of a known function of :math:`(\Phi, C)`, so a state's stability is read from the
saddle map: ``stability`` is :math:`1 - \mu` with :math:`\mu` its leading eigenvalue, zero exactly at an instability,
Eq. (posterior.15).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from widefield.answer.certificate import Status
from widefield.gaussian.kernels import parity_of
from widefield.question.activation import Activation
from widefield.theories.posterior.branches import Advance, adjacent_trace, correlated
from widefield.theories.posterior.nonlinear.constrained_saddle import climb_to_coherent
from widefield.theories.posterior.nonlinear.saddle import Saddle, SaddleOptions, solve_saddle
from widefield.theories.posterior.nonlinear.saddle_map import State
from widefield.theories.posterior.problem import Problem, is_symmetric, odd_lags

CORRELATIONS = (0.7, 0.3, 0.1)  # of adjacent states, from which a coherent state is sought
N_SEARCHES = 1 + len(CORRELATIONS)
SAME = 1e-6  # free energies of one branch that are one state's


@dataclass(frozen=True)
class SaddleSearch:
    """Stationary states of networks with one activation, solved with the same options."""

    activation: Activation
    options: SaddleOptions

    def is_symmetric(self, problem: Problem) -> bool:
        """Whether W → −W is a symmetry that a coherent state breaks."""
        return is_symmetric(problem) and parity_of(self.activation) == -1

    def solve(self, problem: Problem, *, even: bool, start: State | tuple | None = None) -> Saddle:
        """One stationary state, by default from the random network; ``even`` keeps odd lags at zero."""
        return solve_saddle(problem, self.activation, self.options, start=start, sector="even" if even else "full")

    def states(self, problem: Problem, advance: Advance) -> list[Saddle]:
        """States from several starts, the lowest free energy first, those that did not converge last.

        Besides the first, that is one coherent state or, where there is none, the searches that stopped on their way.
        """
        symmetric = self.is_symmetric(problem)
        states = [self.solve(problem, even=symmetric)]
        advance(1)
        if symmetric and problem.depth > 2 and states[0].converged:
            for state in self.coherent_candidates(problem, states[0]):
                advance(1)
                if state.converged and state.branch == "coherent":
                    states = [states[0], state]
                    break
                stopped = state.status is Status.inaccurate and state.branch == "coherent"
                if stopped or state.status is Status.not_converged:
                    states.append(state)
        kept: list[Saddle] = []
        for state in sorted(states, key=lambda state: (not state.converged, state.free_energy)):
            if not any(k.branch == state.branch and abs(k.free_energy - state.free_energy) < SAME for k in kept):
                kept.append(_gauge_fixed(state) if symmetric else state)
        return kept

    def coherent_candidates(self, problem: Problem, near: Saddle) -> Iterator[Saddle]:
        r"""States reached from an incoherent one nearby made coherent by :math:`\rho^{|a-b|}`, then by way of the landscape.

        Anderson's iteration also converges to unstable states, so several beginnings are tried. The landscape is slower
        and surer: unbounded activations leave no density at most guesses.
        """
        for rho in CORRELATIONS:
            start = tuple(correlated(problem, matrix, rho) for matrix in (near.feature, near.hidden))
            yield self.solve(problem, even=False, start=start)
        same = near.problem is problem
        incoherent = near if same else self.solve(problem, even=True, start=near.order_parameters)
        if incoherent.sampled or not incoherent.stability < 0:
            return
        climbed = climb_to_coherent(problem, self.activation, incoherent.order_parameters, self.options.max_steps)
        if climbed is not None:
            yield self.solve(problem, even=False, start=climbed)


def _gauge_fixed(state: Saddle) -> Saddle:
    """Of the two states ±W, that whose adjacent states are positively correlated."""
    if adjacent_trace(state.problem, state.hidden) >= 0:
        return state
    sign = np.where(odd_lags(state.problem), -1.0, 1.0)
    turned: dict[str, Any] = {name: sign * getattr(state, name) for name in ("feature", "hidden", "conjugate")}
    return replace(state, **turned)
