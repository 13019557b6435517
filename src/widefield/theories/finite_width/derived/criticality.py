r"""Criticality: how kernel, vertex and correction of a very deep network run with depth.

The susceptibilities :math:`\chi_\parallel`, :math:`\chi_\perp` of Eq. (finite_width.13), and the flow of the layer recursion.
"""

import math
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from widefield.answer.boundary import memory_budget, require_memory, x64
from widefield.answer.certificate import Certificate, Check, SolveError
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.theories.finite_width.expansion import (
    TRUSTED,
    failure_of,
    verdict,
)
from widefield.theories.finite_width.untied.averages import averages_of, refuse
from widefield.theories.finite_width.untied.pair_averages import evaluate
from widefield.theories.finite_width.untied.recursion import Layer, Wants, march, steps
from widefield.theories.finite_width.untied.residual import residual
from widefield.theories.finite_width.untied.solve import PAIR, PAIR_NAMES, relative_variance
from widefield.theories.prior.core import find_depth_limit

RANGE = 1e20  # kernels beyond this, or below its inverse, end the flow: there is nothing new to see
NO_POWER_LAW = 0.2  # an exponent that is less certain than this is none
LAYER_BYTES = 12_000  # that a layer takes, with the fields made of it
EDGE = 1e-9  # of a susceptibility around one
LIMITS = (
    "variance", "correlation", "susceptibility", "variance_depth_scale", "correlation_depth_scale",
    "critical_weight_variance", "phase",
)  # fmt: skip


@x64
def criticality(
    network: Network,
    *,
    layers: int = 256,
    correlation: float = 0.5,
    rtol: float = 1e-8,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Where a network stands with respect to criticality, and the flow of K, V and G1 over many ``layers``.

    At criticality :math:`\chi_\parallel = \chi_\perp = 1` and everything runs with powers of the depth; elsewhere
    exponentially. Scalar fields:

    - those of `widefield.depth_limit` (``variance`` :math:`K^*`, ``susceptibility`` :math:`\chi_\perp`, ``phase``,
      ``critical_weight_variance`` at this bias, the two depth scales), and ``parallel_susceptibility`` :math:`\chi_\parallel`;
    - ``universality``: ``"scale invariant"`` (relu and its like without biases), ``"vanishing"`` (:math:`K^* = 0`),
      ``"finite"`` (:math:`K^* > 0`) or ``"unbounded"``;
    - fitted to the flow, each with an ``…_error``: ``kernel_exponent`` (:math:`K \sim \ell^p`), ``vertex_exponent``
      (:math:`V/K^2 \sim \ell^p`), ``vertex_slope`` (limit of :math:`V/K^2\ell`), ``correction_slope`` (of
      :math:`G_1/K\ell`); NaN where there is no power law within the flow. Derived, NaN where unknown:
      ``vertex_slope_exact``, ``correction_slope_exact``, and ``vertex_limit`` for :math:`V/K^2` that saturates;
    - ``depth_to_width``: the :math:`\ell/n` at which :math:`V/nK^2` reaches 0.3 and the expansion stops being trustworthy;
      infinite where :math:`V/K^2` saturates.

    Fields over layer: ``kernel`` and ``correction`` (layer, sample, sample\_), ``vertex_pairs`` (layer, sample,
    sample\_, pair, pair\_), ``width_needed`` (layer), the width at which :math:`V/nK^2 = 0.3`. The two samples have unit
    power and the given ``correlation`` at the input; equal widths.

    Method: the layer recursion; limits from doublings of the depth, freed of 1/ℓ and ln ℓ/ℓ.
    Error: averages, the residual of the recursions by quadrature and that of the fixed point are within ``rtol`` (1e-8 by
    default); the error of a fitted limit is what the extrapolation changes, and a limit whose error exceeds a fifth of
    max(limit, 1) is given as NaN.
    Limits: untied parameters, an input at state 0 only, variances that do not depend on the state.
    """
    start = time.perf_counter()
    layers, correlation = _check(network, layers, correlation)
    rtol = checks.tolerance("rtol", rtol, 1e-11)
    limit = find_depth_limit(network)
    given = network.weight_variance, network.input_variance, network.bias_variance
    w, u, b = (float(np.atleast_1d(v)[0]) for v in given)
    deep = replace(
        network, depth=layers, weight_variance=w, input_variance=u, bias_variance=b, readout_variance=None, widths=1.0,
        biases="untied",
    )  # fmt: skip
    flow, verdicts, failure, notes = _follow(deep, correlation, rtol, progress)
    verdicts |= {"limit_residual": Check(limit.residual, rtol), "limit_error": Check(limit.error, rtol)}
    exact = asymptotics(network, limit.variance)
    values = {name: getattr(limit, name) for name in LIMITS} | _fits(flow, exact["vertex_slope_exact"]) | exact
    needed = np.array([relative_variance(layer).max() for layer in flow]) / TRUSTED
    fields: dict[str, Any] = {name: ((), value) for name, value in values.items()} | {
        "kernel": (PAIR, np.stack([layer.kernel for layer in flow])),
        "vertex_pairs": ((*PAIR, "pair", "pair_"), np.stack([layer.blocks for layer in flow])),
        "width_needed": (PAIR[:1], np.ceil(needed * (1 - 1e-12))),  # whole numbers survive rounding
        "correction": (PAIR, np.stack([layer.correction for layer in flow])),
    }
    left_out = () if refuse(network.activation) is None else ("correction",)
    if left_out:  # nothing is known of it, its limit included
        del fields["correction"]
        fields |= {name: ((), math.nan) for name in ("correction_slope", "correction_slope_error")}
    certificate = Certificate(
        "criticality",
        verdicts,
        failure,
        steps=len(flow),
        wall_time=time.perf_counter() - start,
        options={"layers": layers, "correlation": correlation, "rtol": rtol},
        notes=notes,
        left_out=left_out,
    )
    coords = {"pair": PAIR_NAMES, "pair_": PAIR_NAMES}
    return make_solution(fields, certificate, network, coords=coords, throw=throw)


def _check(network: Any, layers: Any, correlation: Any) -> tuple[int, float]:
    network.refuse_branch("criticality")
    tied = network.weights == "tied" or (network.biases == "tied" and network.bias_variances.any())
    if tied:
        raise ValueError(
            "`network` must have untied weights and biases: criticality covers deep networks. depth_limit holds for tied "
            "ones too, and finite_width has their V and G1 at a given depth."
        )
    if refuse(network.activation) == "jumps":
        raise ValueError(f"`network` has the activation {network.activation}, which jumps: criticality needs <φ'φ'>.")
    number = not isinstance(correlation, str) and np.asarray(correlation, object).ndim == 0
    if not number or np.asarray(correlation).dtype.kind not in "fiu" or not -1 < float(correlation) < 1:
        raise ValueError(f"`correlation` must lie between -1 and 1, both excluded, got {correlation!r:.100}.")
    layers = checks.integer("layers", layers, 16)
    fit = int(memory_budget() / LAYER_BYTES)
    require_memory(LAYER_BYTES * layers, f"{layers:.6g} `layers`", f"At most {fit} layers would fit.")
    return layers, float(correlation)


def _follow(network: Network, correlation: float, rtol: float, progress: bool | None):
    """The layers until the kernel grows or vanishes exponentially; checks, a failure and notes on them."""
    x = math.sqrt(2) * np.array([[[1.0, 0.0]], [[correlation, math.sqrt(1 - correlation**2)]]])
    K, made = steps(network, x, (1,) * network.depth)
    wants = Wants(pairs=True, correction=refuse(network.activation) is None)
    flow: list[Layer] = []
    notes: tuple[str, ...] = ()
    try:
        for layer in march("criticality", network.activation, K, made, wants, rtol, progress):
            if flow and not (1 / RANGE < layer.kernel[0, 0] < RANGE and np.isfinite(layer.blocks).all()):
                notes = (f"the flow ends at layer {len(flow)}: the kernel grows or vanishes exponentially",)
                break
            flow.append(layer)
    except (OverflowError, SolveError) as error:
        return flow, {}, failure_of(error), (str(error),)
    violation = residual(network.activation, flow, made[: len(flow) - 1], wants)
    verdicts, more = verdict(violation, flow[-1].error, rtol)
    return flow, verdicts, None, (*notes, *more)


# Limits fitted to the flow.


class Fit(NamedTuple):
    """A limit at infinite depth, and how far the last layers are from it."""

    value: float
    error: float


NONE = Fit(math.nan, math.nan)


def _fits(flow: list[Layer], growth: float) -> dict[str, float]:
    """Exponents and slopes, and the trusted depth over width; ``growth`` of V/K²ℓ where it is known."""
    K = np.array([layer.kernel[0, 0] for layer in flow])
    ratio = np.array([layer.blocks[0, 0, 0, 0] for layer in flow]) / K**2
    shift = np.array([layer.correction[0, 0] for layer in flow]) / K
    fits = {
        "kernel_exponent": _exponent(K),
        "vertex_exponent": _exponent(ratio),
        "vertex_slope": _slope(ratio),
        "correction_slope": _slope(shift),
    }
    values = {name: fit.value for name, fit in fits.items()} | {f"{name}_error": f.error for name, f in fits.items()}
    fit = fits["vertex_slope"]
    if math.isnan(growth) and fit.value > fit.error:
        growth = fit.value
    return values | {"depth_to_width": math.inf if growth == 0 else TRUSTED / growth}


def _exponent(values: np.ndarray) -> Fit:
    """p of y ~ ℓ^p, ℓ = 0, 1, …, from the last three doublings of ℓ."""
    _, y = _doublings(values)
    if not np.all(y[1:] * y[:-1] > 0):
        return NONE
    return _extrapolate(np.log2(y[1:] / y[:-1]))


def _slope(values: np.ndarray) -> Fit:
    """Limit of y/ℓ, from the last three doublings of ℓ."""
    depth, y = _doublings(values)
    return _extrapolate((y / depth)[1:]) if depth[0] > 0 else NONE


def _extrapolate(values: np.ndarray) -> Fit:
    """Three values at doubled depths, freed of 1/ℓ and ln ℓ/ℓ; the error is what the extrapolation changes."""
    early, middle, late = (float(v) for v in values)
    value = 4 * late - 4 * middle + early
    fit = Fit(value, max(abs(value - (2 * late - middle)), abs(value - late), 1e-12))
    return fit if fit.error <= NO_POWER_LAW * max(abs(value), 1.0) else NONE


def _doublings(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ℓ/8, ℓ/4, ℓ/2 and ℓ, for the last ℓ that is a multiple of eight, and y there."""
    depth = (len(values) - 1) // 8 * np.array([1, 2, 4, 8])
    return (depth, values[depth]) if depth[0] else (depth, np.full(4, math.nan))


# Great depth in closed form, Eqs. (finite_width.14), (finite_width.15), (finite_width.16).


def asymptotics(network: Network, variance: float) -> dict[str, Any]:
    """Class, χ∥, lim V/K²ℓ, lim G1/Kℓ and what V/K² saturates at, for a variance that tends to ``variance`` (0 and ∞ too).

    NaN where a limit is not known.
    """
    phi, w = network.activation, float(np.atleast_1d(network.weight_variance)[0])
    biased = bool(network.bias_variances.any())
    slopes = _scale_slopes(phi)
    if slopes is not None and (not biased or not math.isfinite(variance)):
        A2, A4 = ((slopes[0] ** k + slopes[1] ** k) / 2 for k in (2, 4))
        growth = 3 * A4 / A2**2 - 1 if w * A2 > 0 else math.nan
        if biased and abs(w * A2 - 1) <= EDGE:  # K grows by the bias at every layer: V = growth Σ K²
            growth /= 3
        return _limits("unbounded" if biased else "scale invariant", w * A2, growth, 0.0)
    if not math.isfinite(variance):
        return _limits("unbounded")
    if variance == 0:
        return _vanishing(phi, w)
    averages = averages_of(phi, np.full((1, 1), variance), 1e-8, hessian=False)
    chi = w * float(averages.gradient.sum(axis=0)[0, 0])
    if abs(chi) >= 1 - EDGE:
        return _limits("finite", chi)
    assert averages.square is not None
    source = w**2 * float(averages.square[0, 0] - averages.value[0, 0] ** 2)
    return _limits("finite", chi, 0.0, 0.0, source / (variance**2 * (1 - chi**2)))


def _limits(
    universality: str, chi=math.nan, vertex=math.nan, correction=math.nan, saturated=math.nan
) -> dict[str, Any]:
    return {
        "universality": universality,
        "parallel_susceptibility": chi,
        "vertex_slope_exact": vertex,
        "correction_slope_exact": correction,
        "vertex_limit": saturated,
    }


def _scale_slopes(phi: Activation) -> tuple[float, float] | None:
    """Slopes above and below zero of a function that is linear on either side, None for others."""
    z = np.array([0.01, 0.3, 1.0, 7.0])
    above, below = evaluate(phi, 0, z)[0] / z, evaluate(phi, 0, -z)[0] / -z
    flat = all(np.ptp(v) <= 1e-12 * max(abs(v[0]), 1e-300) for v in (above, below))
    return (float(above[0]), float(below[0])) if flat else None


def _vanishing(phi: Activation, w: float) -> dict[str, Any]:
    """σ = σ₁z + ½σ₂z² + …; below criticality such a network becomes linear, with slope 2."""
    if 0.0 in phi.breaks:
        return _limits("vanishing")
    first, second, third = (float(v[0]) for v in evaluate(phi, 3, np.zeros(1))[1:])
    chi = w * first**2
    if abs(chi - 1) > EDGE:
        return _limits("vanishing", chi, 2.0, 0.0) if 0 < chi < 1 else _limits("vanishing", chi)
    bend = third / first + 0.75 * (second / first) ** 2
    return _limits("vanishing", chi, 2 / 3, -1 / 3) if bend < 0 else _limits("vanishing", chi)
