r"""The stationary state of a nonlinear network, and what a solve for it is asked.

The saddle point is not the minimum of a known function of :math:`(\Phi, C)`, so a state's stability is read from the
saddle map: ``stability`` is :math:`1 - \mu` with :math:`\mu` its leading eigenvalue, zero exactly at an instability,
Eq. (posterior.15).
"""

from dataclasses import dataclass, replace
from typing import Any, final

import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import Status
from widefield.theories.posterior.branches import COHERENT, StationaryState, adjacent_correlation, adjacent_trace
from widefield.theories.posterior.nonlinear.saddle_map import SaddleMap, State
from widefield.theories.posterior.problem import odd_lags

SPREAD = 4.0  # standard errors of an adjacent correlation that sampling alone may produce


@dataclass(frozen=True)
class SaddleOptions:
    """``rtol`` bounds residual and grid error in units of the prior's scale, ``sampling_rtol`` the standard error of
    sampled order parameters: draws are added until it is met, or ``n_paths`` of them are taken as they are."""

    rtol: float = 1e-7
    sampling_rtol: float = 1e-2
    max_steps: int = 300
    n_paths: int | None = None
    seed: int = 0
    integration: str = "auto"


@final
@dataclass(frozen=True, eq=False)
class Saddle(StationaryState):
    r"""A saddle point with its free energy, stability and error. Matrices are over nodes (state, sample), state-major.

    ``feature_stderr`` and ``hidden_stderr`` are standard errors, for quadrature the change on a finer grid; both include
    the amplification by the fixed point. ``residual`` is the undamped residual on the finer grid or on fresh draws, in
    units of the prior's scale, and ``deviation`` its root mean square in standard errors (about 1 if these are honest; 0
    for quadrature). ``mu`` is the largest real part of the map's eigenvalues, ``stability`` is 1 − ``mu``. ``ess`` is the
    effective share of the draws, ``rhat`` the annealed ones'.
    """

    conjugate: np.ndarray
    feature_stderr: np.ndarray
    hidden_stderr: np.ndarray
    energy: float
    entropy: float
    free_energy_stderr: float
    deviation: float
    mu: float
    ess: float
    rhat: float
    integration: str
    n_nodes: int
    status: Status
    saddle_map: SaddleMap

    @property
    def converged(self) -> bool:
        return self.status is Status.success

    @property
    def sampled(self) -> bool:
        return self.integration != "quadrature"

    @property
    def order_parameters(self) -> State:
        return State(jnp.asarray(self.feature), jnp.asarray(self.hidden))

    @property
    def branch(self) -> str:
        noise = SPREAD * adjacent_correlation(self.problem, self.hidden_stderr, self.hidden) if self.sampled else 0.0
        coherent = adjacent_correlation(self.problem, self.hidden) > max(COHERENT, noise)
        return "coherent" if coherent else "incoherent"

    def gauge_fixed(self) -> "Saddle":
        """Of the two states ±W, that whose adjacent states are positively correlated."""
        if adjacent_trace(self.problem, self.hidden) >= 0:
            return self
        sign = np.where(odd_lags(self.problem), -1.0, 1.0)
        turned: dict[str, Any] = {name: sign * getattr(self, name) for name in ("feature", "hidden", "conjugate")}
        return replace(self, **turned)
