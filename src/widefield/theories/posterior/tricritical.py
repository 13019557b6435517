r"""Where a transition changes its order: the sign of Landau's quartic coefficient at the instability.

.. math::  F = F_0 + a\,m^2 + b\,m^4 + \dots, \qquad a = 0 \text{ at the instability}

Second order where :math:`b > 0`, first order where :math:`b < 0`, all other order parameters eliminated.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from widefield import checks
from widefield.boundary import x64
from widefield.network import Network
from widefield.progress import bar
from widefield.solution import SolveError
from widefield.solvers import continuation
from widefield.task import Task
from widefield.theories.posterior import problem
from widefield.theories.posterior.follow import LinearBranches, NonlinearBranches, branches_of, landau
from widefield.theories.posterior.held import Holder
from widefield.theories.posterior.nonlinear import MAX_DIMENSION
from widefield.theories.posterior.saddle import State
from widefield.theories.posterior.transition import N_FACTORS, instability_of

LINEAR_FACTORS, FACTORS = np.geomspace(1, 1e6, 41), 2.0 ** np.arange(11)  # of the temperature, one after the other
SIZES = (0.1, 0.2, 0.3, 0.4)  # correlations at which the landscape's slope is read
USABLE = 1e-5  # error of a landscape's point, relative to its state, with which its slope still counts
NEAR = np.geomspace(0.4, 2.5, 9)  # label factors around the last instability


@x64
def tricritical(
    network: Network,
    task: Task,
    *,
    temperature: float,
    along: str = "labels",
    rtol: float | None = None,
    max_steps: int = 200,
    progress: bool | None = None,
) -> float | None:
    r"""The temperature at which the transition changes its order, searched from ``temperature`` upwards; None if never.

    Landau's quartic coefficient :math:`b` at the instability changes its sign there, from positive to negative.
    Method: derivatives of the free energy for linear networks; for others the slope of the landscape over the largest
    adjacent correlation, :math:`F'/m = 2a + 4b\,m^2 + 6c\,m^4 + 8d\,m^6`, at four small values.
    Error: ``rtol``, 1e-10 and 1e-4 by default; for nonlinear networks the terms left out of the fit, below 1e-3.
    Limits: temperatures up to a factor 10⁶, or 10³ for nonlinear networks; those by quadrature, so depth times samples
    up to four, in minutes. A landscape that is not reached on the way is a `SolveError`.
    """
    checks.choice("along", along, ("labels",))
    is_linear = network.activation.name == "linear"
    rtol = (
        (1e-10 if is_linear else 1e-4) if rtol is None else checks.tolerance("rtol", rtol, 1e-12 if is_linear else 1e-6)
    )
    max_steps = checks.integer("max_steps", max_steps, 1)
    asked = problem.problem_of(network, task, temperature)
    followed = branches_of(asked, network.activation, along, rtol=rtol if is_linear else None, max_steps=max_steps)
    if followed is None:
        return None
    if followed.sampled:
        raise ValueError(
            f"`task` must leave at most {MAX_DIMENSION} dimensions, depth times samples, for the tricritical point of a "
            f"nonlinear network: draws do not tell the order of a transition."
        )
    factors = LINEAR_FACTORS if isinstance(followed, LinearBranches) else FACTORS
    seconds = 1.0 if isinstance(followed, LinearBranches) else 300.0
    with bar("tricritical", 2 * len(factors), progress, seconds=seconds) as advance:
        quartic: Callable[[float], float]
        if isinstance(followed, LinearBranches):
            quartic = _quartic_linear(followed, advance)
        else:
            quartic = _Quartic(followed, advance)
        bracket = continuation.first_sign_change(quartic, list(float(temperature) * factors))
        return None if bracket is None else continuation.crossing(quartic, *bracket, rtol=rtol)


def _quartic_linear(followed: LinearBranches, advance: Any) -> Callable[[float], float]:
    asked = followed.layout.problem

    def quartic(kappa: float) -> float:
        layout = followed.layout._replace(problem=asked._replace(temperature=np.asarray(kappa)))
        cache: dict[float, Any] = {}
        factors = np.geomspace(1 / followed.reach, followed.reach, N_FACTORS)
        critical = instability_of(followed._replace(layout=layout), factors, cache)
        advance(1)
        return landau(cache[critical]).quartic if critical is not None else -np.inf

    return quartic


class Expansion(NamedTuple):
    """``quadratic`` a and ``quartic`` b of the landscape about no correlation."""

    quadratic: float
    quartic: float


class _Quartic:
    """b at the instability of a nonlinear network, temperature by temperature; remembers where the last one was."""

    def __init__(self, followed: NonlinearBranches, advance: Callable[[int], object]):
        self.followed, self.advance = followed._replace(rtol=1e-6), advance
        self.critical: float | None = None
        self.level = 0

    def __call__(self, kappa: float) -> float:
        asked = self.followed.problem._replace(temperature=np.asarray(kappa))
        here = self.followed._replace(problem=asked)
        cache: dict[float, Any] = {}
        everywhere = np.geomspace(1 / here.reach, here.reach, N_FACTORS)
        critical = None if self.critical is None else instability_of(here, self.critical * NEAR, cache)
        critical = instability_of(here, everywhere, cache) if critical is None else critical
        self.advance(1)
        if critical is None:
            return -np.inf
        self.critical = critical
        found, self.level = expansion(here, critical, cache[critical], self.level)
        if not np.isfinite(found.quartic):
            raise SolveError(
                f"tricritical: the landscape at the instability of temperature {kappa:.6g} was not reached."
            )
        return found.quartic


def expansion(followed: NonlinearBranches, factor: float, phase: Any, level: int = 0) -> tuple[Expansion, int]:
    """The landscape's expansion about an incoherent state, and the grid that it took."""
    asked, rtol, steps = followed.at(factor), followed.options["rtol"], followed.options["max_steps"]
    last = asked.depth - 1
    holder = Holder(asked, followed.activation, (last - 1, last), rtol, steps, level)
    at, vector = holder.start(State(jnp.asarray(phase.found.feature), jnp.asarray(phase.found.hidden)))
    slopes = []
    for size in SIZES:
        point = holder.reach(vector, at, size)
        at, vector = size, point.vector
        slopes.append(point.field / size if point.error <= USABLE else np.nan)
    m = np.square(SIZES)
    a, b, *_ = np.linalg.solve(np.stack([(2 * k + 2) * m**k for k in range(len(m))], axis=1), slopes)
    return Expansion(float(a), float(b)), holder.level
