r"""Where a transition changes its order: the sign of Landau's quartic coefficient at the instability.

.. math::  F = F_0 + a\,m^2 + b\,m^4 + \dots, \qquad a = 0 \text{ at the instability}

Second order where :math:`b > 0`, first order where :math:`b < 0`, all other order parameters eliminated.
"""

from typing import Any

import numpy as np

from widefield import checks
from widefield.boundary import x64
from widefield.network import Network
from widefield.solvers import continuation
from widefield.task import Task
from widefield.theories.posterior import problem
from widefield.theories.posterior.follow import landau, linear_branches
from widefield.theories.posterior.transition import N_FACTORS, instability_of

FACTORS = np.geomspace(1, 1e6, 41)  # of the temperature, one after the other


@x64
def tricritical(
    network: Network,
    task: Task,
    *,
    temperature: float,
    along: str = "labels",
    rtol: float = 1e-10,
    max_steps: int = 200,
) -> float | None:
    r"""The temperature at which the transition changes its order, searched from ``temperature`` upwards; None if never.

    Landau's quartic coefficient :math:`b` at the instability, from derivatives of the free energy, changes its sign there.
    Limits: linear networks, temperatures up to a factor 10⁶. For others `transition` says the order at a temperature.
    """
    checks.choice("along", along, ("labels",))
    if not network.activation.known_as("linear"):
        raise ValueError(
            f"`network` must be linear for its tricritical point, got activation {network.activation}; ask `transition` "
            "for the order at single temperatures."
        )
    asked = problem.problem_of(network, task, temperature)
    followed = linear_branches(asked, along, tolerance=0.01 * rtol, max_steps=max_steps)
    if followed is None:
        return None

    def quartic(kappa: float) -> float:
        layout = followed.layout._replace(problem=asked._replace(temperature=np.asarray(kappa)))
        cache: dict[float, Any] = {}
        factors = np.geomspace(1 / followed.reach, followed.reach, N_FACTORS)
        critical = instability_of(followed._replace(layout=layout), factors, cache)
        return landau(cache[critical]).quartic if critical is not None else -np.inf

    bracket = continuation.first_sign_change(quartic, list(float(temperature) * FACTORS))
    return None if bracket is None else continuation.crossing(quartic, *bracket, rtol=rtol)
