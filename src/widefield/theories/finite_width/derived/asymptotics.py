r"""Great depth in closed form: universality classes and the limits of V and G1.

Scale invariant, :math:`\sigma(z) = a_\pm z`, no bias: :math:`V/K^2 \to (3A_4/A_2^2 - 1)\ell` at any weight variance, with
:math:`A_k = (a_+^k + a_-^k)/2`, and :math:`G_1 = 0` for one input.
Vanishing, :math:`\sigma = \sigma_1z + \tfrac12\sigma_2z^2 + \tfrac16\sigma_3z^3`, at :math:`C_W\sigma_1^2 = 1`:
:math:`K' = K + a_1K^2` with :math:`a_1 = \sigma_3/\sigma_1 + \tfrac34(\sigma_2/\sigma_1)^2 < 0`, hence
:math:`K \to 1/|a_1|\ell`, and from :math:`V' = 2K^2 + (1+2a_1K)^2V`, :math:`G_1' = (1+2a_1K)G_1 + a_1V`

.. math::  V/K^2\ell \to \tfrac23, \qquad G_1/K\ell \to -\tfrac13.

Eqs. (finite_width.14), (finite_width.15), (finite_width.16). Below criticality such a network becomes linear (slope 2). Where :math:`0 < K^* < \infty` and
:math:`|\chi_\parallel| < 1`, V saturates.
"""

import math
from typing import NamedTuple

import numpy as np

from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.theories.finite_width.untied import recursion
from widefield.theories.finite_width.untied.pair_averages import evaluate

EDGE = 1e-9  # of a susceptibility around one


class Asymptotics(NamedTuple):
    """Class, χ∥ at the limit, lim V/K²ℓ, lim G1/Kℓ and, where V/K² saturates, its limit; NaN where not known."""

    universality: str
    susceptibility: float
    vertex_slope: float
    correction_slope: float
    vertex_limit: float


def asymptotics(network: Network, variance: float) -> Asymptotics:
    """Limits of a network whose variance tends to ``variance`` (zero and infinity included)."""
    phi, w = network.activation, float(np.atleast_1d(network.weight_variance)[0])
    biased = bool(network.bias_variances.any())
    slopes = scale_slopes(phi)
    if slopes is not None and (not biased or not math.isfinite(variance)):
        return _scale_invariant(slopes, w, biased)
    if not math.isfinite(variance):
        return Asymptotics("unbounded", math.nan, math.nan, math.nan, math.nan)
    if variance == 0:
        return _vanishing(phi, w)
    return _finite(phi, w, variance)


def scale_slopes(phi: Activation) -> tuple[float, float] | None:
    """Slopes above and below zero of a function that is linear on either side, None for others."""
    z = np.array([0.01, 0.3, 1.0, 7.0])
    above, below = evaluate(phi, 0, z)[0] / z, evaluate(phi, 0, -z)[0] / -z
    flat = all(np.ptp(v) <= 1e-12 * max(abs(v[0]), 1e-300) for v in (above, below))
    return (float(above[0]), float(below[0])) if flat else None


def _scale_invariant(slopes: tuple[float, float], w: float, biased: bool) -> Asymptotics:
    A2, A4 = ((slopes[0] ** k + slopes[1] ** k) / 2 for k in (2, 4))
    growth = 3 * A4 / A2**2 - 1 if w * A2 > 0 else math.nan
    if biased and abs(w * A2 - 1) <= EDGE:  # K grows by the bias at every layer: V = growth Σ K²
        growth /= 3
    return Asymptotics("unbounded" if biased else "scale invariant", w * A2, growth, 0.0, math.nan)


def _vanishing(phi: Activation, w: float) -> Asymptotics:
    if 0.0 in phi.breaks:
        return Asymptotics("vanishing", math.nan, math.nan, math.nan, math.nan)
    first, second, third = (float(v[0]) for v in evaluate(phi, 3, np.zeros(1))[1:])
    chi = w * first**2
    if abs(chi - 1) > EDGE:
        known = (2.0, 0.0) if 0 < chi < 1 else (math.nan, math.nan)
    else:
        bend = third / first + 0.75 * (second / first) ** 2
        known = (2 / 3, -1 / 3) if bend < 0 else (math.nan, math.nan)
    return Asymptotics("vanishing", chi, *known, math.nan)


def _finite(phi: Activation, w: float, variance: float) -> Asymptotics:
    averages = recursion.averages_of(phi, np.full((1, 1), variance), 1e-8, hessian=False)
    chi = w * float(averages.gradient.sum(axis=0)[0, 0])
    if abs(chi) >= 1 - EDGE:
        return Asymptotics("finite", chi, math.nan, math.nan, math.nan)
    assert averages.fourth is not None
    source = w**2 * float(averages.fourth.square[0, 0] - averages.value[0, 0] ** 2)
    return Asymptotics("finite", chi, 0.0, 0.0, source / (variance**2 * (1 - chi**2)))
