r"""Where a transition changes its order: the sign of Landau's quartic coefficient at the instability.

.. math::  F = F_0 + a\,m^2 + b\,m^4 + \dots, \qquad a = 0 \text{ at the instability}

Second order where :math:`b > 0`, first order where :math:`b < 0`, all other order parameters eliminated. Where there is no
free energy to expand, :math:`b` has the sign of :math:`c` in :math:`\lambda/\lambda_c = 1 + c\,m^2 + \dots` along the
coherent branch, which leaves towards its own phase or away from it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import SolveError
from widefield.answer.progress import bar
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.solvers import continuation
from widefield.theories.posterior import ordered, problem
from widefield.theories.posterior.follow import Branches, branches_of
from widefield.theories.posterior.transition import N_FACTORS, instability_of

LINEAR = np.geomspace(1, 1e6, 41)  # factors of the temperature, one after the other
NONLINEAR = np.geomspace(1, 1e3, 21)
MARGIN = 1.02  # around where the next instability is sought


@x64
def tricritical(
    network: Network,
    task: Task,
    *,
    temperature: float,
    along: str = "labels",
    rtol: float | None = None,
    max_steps: int = 300,
    progress: bool | None = None,
) -> float | None:
    r"""The temperature at which the transition changes its order, searched from ``temperature`` upwards; None if never.

    Linear networks: Landau's quartic coefficient at the instability, from derivatives of the free energy, changes its sign
    there. Others: the coherent branch leaves the incoherent one to the other side, :math:`c` of the module's second formula
    from order parameters up to 0.15.

    Error: ``rtol``, by default 1e-10 for linear networks and 1e-6 for others, whose :math:`c` adds about 1e-5.
    Limits: temperatures up to a factor 10⁶ (linear) or 10³; depth times samples at most 4 for nonlinear networks. A
    search that loses a nonlinear network's branch raises `SolveError`.
    """
    checks.choice("along", along, ("labels",))
    max_steps = checks.integer("max_steps", max_steps, 1)
    asked = problem.problem_of(network, task, temperature)
    linear = network.activation.known_as("linear")
    rtol = checks.tolerance("rtol", (1e-10 if linear else 1e-6) if rtol is None else rtol, 1e-12)
    followed = branches_of(asked, network.activation, along, rtol=rtol if linear else None, max_steps=max_steps)
    if followed is None:
        return None
    if followed.sampled:
        raise ValueError(
            "`network` must be linear, or its depth times samples at most 4 dimensions, for a tricritical point; ask "
            "`transition` for the instability."
        )
    factors = LINEAR if linear else NONLINEAR
    with bar("temperatures", len(factors), progress, seconds=1.0 if linear else 60.0) as advance:
        quartic = _Quartic(followed, advance)
        bracket = continuation.first_sign_change(quartic, list(float(temperature) * factors))
        return None if bracket is None else continuation.crossing(quartic, *bracket, rtol=rtol)


class _Quartic:
    """A number with the sign of b as a function of the temperature; each instability is sought from the one before."""

    def __init__(self, followed: Branches, advance: Callable[[int], None]):
        self.followed, self.advance = followed, advance
        self.last: tuple[float, float, Any] | None = None  # temperature, factor and incoherent point

    def __call__(self, temperature: float) -> float:
        followed = self.followed.hotter(temperature)
        found = self._near(followed, temperature) or _instability(followed)
        self.advance(1)
        if found is None and self.last is None:
            return -np.inf
        try:
            if found is None:
                raise ordered.LostError
            self.last = temperature, *found
            return followed.quartic(*found)
        except ordered.LostError:
            raise SolveError(f"The branch is lost at temperature {temperature:g}: change `temperature`.") from None

    def _near(self, followed: Any, temperature: float) -> tuple[float, Any] | None:
        """From the last instability, which moves by less than the temperature."""
        if self.last is None:
            return None
        before, factor, point = self.last
        share = temperature / before
        return _instability(followed, factor * min(1.0, share) / MARGIN, factor * max(1.0, share) * MARGIN, point)


def _instability(followed: Any, *around: Any) -> tuple[float, Any] | None:
    """The factor of the instability and the point there; ``around``: two factors and a point near the first."""
    low, high, start = around or (1 / followed.reach, followed.reach, None)
    cache: dict[float, Any] = {}
    factor = instability_of(followed, np.geomspace(low, high, 4 if around else N_FACTORS), cache, start)
    return None if factor is None else (factor, cache[factor])
