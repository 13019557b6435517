"""Langevin training at long times where features do not learn: a random network with other variances (Appendix K.2)."""

from dataclasses import replace

import numpy as np

from widefield.question import checks
from widefield.question.network import Network
from widefield.theories.dynamics.problem import check_network


def equilibrium_network(network: Network, *, rate: float, weight_decay: float, temperature: float) -> Network:
    r"""The random network whose kernels are those of Langevin training at long times and small richness.

    .. math:: \langle\theta^2\rangle = \frac{2\eta T}{1-(1-\eta\lambda)^2}, \qquad
              \langle\theta(t)\theta(s)\rangle = \langle\theta^2\rangle(1-\eta\lambda)^{|t-s|}

    Sec. K.2 of Bordelon & Pehlevan (2022): equal-time kernels are those of the prior with all variances multiplied by
    :math:`\langle\theta^2\rangle`, which is :math:`T/\lambda` (the paper's 1/λ) for a small rate. Notation: :math:`\eta` is
    ``rate``, :math:`\lambda` ``weight_decay``, :math:`T` ``temperature``, as in `widefield.dynamics`.

    Limits: richness → 0 after width → ∞; at finite richness training moves kernels away from it.
    """
    check_network(network)
    eta = checks.nonnegative("rate", rate, positive=True)
    decay = checks.nonnegative("weight_decay", weight_decay, positive=True)
    if eta * decay >= 2:
        raise ValueError(
            f"`weight_decay` times `rate` must be below 2, where weights have a stationary law, got {eta * decay:g}."
        )
    size = 2 * eta * checks.nonnegative("temperature", temperature, positive=True) / (1 - (1 - eta * decay) ** 2)
    names = ("weight_variance", "input_variance", "readout_variance", "bias_variance")
    return replace(network, **{name: _scaled(getattr(network, name), size) for name in names})


def _scaled(variance, size: float):
    """One variance or one per state, times ``size``."""
    if variance is None:
        return None
    return tuple(float(v) * size for v in variance) if np.ndim(variance) else float(variance) * size
