"""`widefield.depth_limit`: fixed points at great depth, the edge of chaos, and the scales on which they are reached."""

import time
from dataclasses import asdict

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.theories.prior.core.fixed_point import find_depth_limit


@x64
def depth_limit(network: Network, *, rtol: float = 1e-10, throw: bool = True) -> Solution:
    r"""Fixed point of the covariance recursion at great depth, and how it is approached.

    .. math::  q^* = w\langle\varphi^2\rangle_{q^*} + b, \qquad \chi = w\langle\varphi'^2\rangle_{q^*}

    Eqs. (prior.8), (prior.9), (prior.10). Fields: ``variance`` :math:`q^*` (infinite where the variance grows without
    bound), ``correlation`` :math:`\rho^*` of two different inputs (NaN where the variance vanishes), ``susceptibility``
    :math:`\chi` (1 at the edge of chaos), ``variance_depth_scale`` and ``correlation_depth_scale`` (states over which a
    deviation falls by e), ``critical_weight_variance`` (the weight variance at which :math:`\chi = 1` for this bias
    variance; NaN where there is none) and ``phase``.

    Method: bracketing from the variance of a unit-power input, then Brent's method; averages in closed form or by
    quadrature.
    Error: within ``rtol`` (1e-10 by default) are the residual :math:`|f(q^*) - q^*|/\max(q^*, 1)`, or, where the variance
    grows without bound, by how much the recursion falls short of growth at variance 1e12, and the error estimates of the
    averages.
    Limits: an input at state 0 only and variances that do not depend on the state. Equal-state statistics are those of
    both deep and recurrent networks.
    """
    start = time.perf_counter()
    network.refuse_branch("depth_limit")
    rtol = checks.tolerance("rtol", rtol, 1e-12)
    values = asdict(find_depth_limit(network))
    certificate = Certificate(
        "depth_limit",
        {name: Check(values.pop(name), rtol) for name in ("residual", "error")},
        wall_time=time.perf_counter() - start,
        options={"rtol": rtol},
        notes=() if np.isfinite(values["variance"]) else ("the variance grows without bound",),
    )
    return make_solution({k: ((), v) for k, v in values.items()}, certificate, network, throw=throw)
