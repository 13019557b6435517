r"""Criticality: how kernel, vertex and correction of a very deep network run with depth.

.. math::
    \chi_\parallel = C_W\,\partial_K\langle\sigma^2\rangle_K, \qquad \chi_\perp = C_W\langle\sigma'^2\rangle_K, \qquad
    V/K^2 \to c\,\ell \ \text{ or } \ \frac{C_W^2[\langle\sigma^4\rangle - \langle\sigma^2\rangle^2]}{K^2(1-\chi_\parallel^2)}

Eqs. (finite_width.13), (finite_width.16), from the recursions of `widefield.theories.finite_width.untied.recursion`.
"""

import math
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check, SolveError, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.theories.finite_width.derived.asymptotics import Asymptotics, asymptotics
from widefield.theories.finite_width.expansion import TRUSTED, UNVERIFIED
from widefield.theories.finite_width.untied.fields import PAIR_NAMES
from widefield.theories.finite_width.untied.layers import Layer, Step, Wants, advance_layer, first_layer, steps
from widefield.theories.finite_width.untied.recursion import refuse
from widefield.theories.finite_width.untied.residual import residual
from widefield.theories.prior.core import DepthLimit, find_depth_limit

RANGE = 1e20  # kernels beyond this, or below its inverse, end the flow: there is nothing new to see
NO_POWER_LAW = 0.2  # an exponent that is less certain than this is none
LIMITS = (
    "variance", "correlation", "susceptibility", "variance_depth_scale", "correlation_depth_scale",
    "critical_weight_variance", "phase",
)  # fmt: skip


class Fit(NamedTuple):
    """A limit at infinite depth, and how far the last layers are from it."""

    value: float
    error: float


NONE = Fit(math.nan, math.nan)


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
    flow = _flow(_deepened(network, layers), correlation, rtol, progress)
    values = {name: getattr(limit, name) for name in LIMITS} | _scalars(
        flow.layers, asymptotics(network, limit.variance)
    )
    fields: dict[str, Any] = {name: ((), value) for name, value in values.items()} | _arrays(flow)
    certificate = Certificate(
        "criticality",
        flow.checks | _checks_of_limit(limit, rtol),
        flow.failure,
        steps=len(flow.layers),
        wall_time=time.perf_counter() - start,
        options={"layers": layers, "correlation": correlation, "rtol": rtol},
        notes=flow.notes,
        left_out=() if flow.wants.correction else ("correction",),
    )
    coords = {"pair": PAIR_NAMES, "pair_": PAIR_NAMES}
    return make_solution(fields, certificate, network, coords=coords, throw=throw)


def _checks_of_limit(limit: DepthLimit, rtol: float) -> dict[str, Check]:
    return {"limit_residual": Check(limit.residual, rtol), "limit_error": Check(limit.error, rtol)}


def _check(network: Any, layers: Any, correlation: Any) -> tuple[int, float]:
    if not isinstance(network, Network):
        raise ValueError(f"`network` must be a widefield Network, got {type(network).__name__}.")
    network.refuse_branch("criticality")
    tied = network.weights == "tied" or (network.biases == "tied" and network.bias_variances.any())
    if tied:
        raise ValueError(
            "`network` must have untied weights and biases: criticality covers deep networks. depth_limit holds for tied "
            "ones too, and finite_width has their V and G1 at a given depth."
        )
    if refuse(network.activation) == "jumps":
        raise ValueError(f"`network` has the activation {network.activation}, which jumps: criticality needs <φ'φ'>.")
    checks.reject_tracers(correlation=correlation)
    if isinstance(correlation, bool) or np.ndim(correlation) or not -1 < float(correlation) < 1:
        raise ValueError(f"`correlation` must lie between -1 and 1, both excluded, got {correlation!r}.")
    return checks.integer("layers", layers, 16), float(correlation)


def _deepened(network: Network, n_layers: int) -> Network:
    """The same network with many layers of one width and no readout."""
    given = network.weight_variance, network.input_variance, network.bias_variance
    w, u, b = (float(np.atleast_1d(v)[0]) for v in given)
    return replace(
        network, depth=n_layers, weight_variance=w, input_variance=u, bias_variance=b, readout_variance=None, widths=1.0,
        biases="untied",
    )  # fmt: skip


class Flow(NamedTuple):
    """The layers until the kernel grows or vanishes exponentially, and what the certificate says of them."""

    layers: list[Layer]
    wants: Wants
    checks: dict[str, Check]
    failure: Status | None = None
    notes: tuple[str, ...] = ()


def _flow(network: Network, correlation: float, rtol: float, progress: bool | None) -> Flow:
    x = math.sqrt(2) * np.array([[[1.0, 0.0]], [[correlation, math.sqrt(1 - correlation**2)]]])
    K, between = steps(network, x, (1,) * network.depth)
    wants = Wants(pairs=True, correction=refuse(network.activation) is None, tensor=False, quadruples=None)
    layers = [first_layer(K, wants)]
    try:
        with bar("criticality", network.depth, progress, 0.03 * network.depth) as advance:
            layers += _march(network, layers[0], between, wants, rtol, advance)
    except (OverflowError, SolveError) as error:
        failure = Status.nonfinite if isinstance(error, OverflowError) else Status.inaccurate
        return Flow(layers, wants, {}, failure, (str(error),))
    notes: tuple[str, ...] = ()
    if len(layers) < network.depth:
        notes = (f"the flow ends at layer {len(layers)}: the kernel grows or vanishes exponentially",)
    verdicts = {"error": Check(layers[-1].error, rtol)}
    violation = residual(network.activation, layers, between[: len(layers) - 1], wants)
    if violation is None:
        return Flow(layers, wants, verdicts, notes=(*notes, UNVERIFIED))
    return Flow(layers, wants, {"residual": Check(violation, rtol)} | verdicts, notes=notes)


def _march(network: Network, layer: Layer, between: list[Step], wants: Wants, rtol: float, advance) -> list[Layer]:
    flow: list[Layer] = []
    for step in between:
        layer = advance_layer(network, layer, step, wants, rtol)
        if not 1 / RANGE < layer.kernel[0, 0] < RANGE or not np.isfinite(layer.blocks).all():
            break
        flow.append(layer)
        advance(1)
    return flow


def _scalars(flow: list[Layer], exact: Asymptotics) -> dict[str, Any]:
    """Fits, derived limits and the trusted depth over width."""
    K = np.array([layer.kernel[0, 0] for layer in flow])
    ratio = np.array([layer.blocks[0, 0, 0, 0] for layer in flow]) / K**2
    shift = np.array([layer.correction[0, 0] for layer in flow]) / K
    fits = {
        "kernel_exponent": exponent(K),
        "vertex_exponent": exponent(ratio),
        "vertex_slope": slope(ratio),
        "correction_slope": slope(shift),
    }
    values: dict[str, Any] = {name: fit.value for name, fit in fits.items()}
    values |= {f"{name}_error": fit.error for name, fit in fits.items()}
    values |= {
        "universality": exact.universality,
        "parallel_susceptibility": exact.susceptibility,
        "vertex_slope_exact": exact.vertex_slope,
        "correction_slope_exact": exact.correction_slope,
        "vertex_limit": exact.vertex_limit,
    }
    fit, growth = fits["vertex_slope"], exact.vertex_slope
    if math.isnan(growth) and fit.value > fit.error:
        growth = fit.value
    values["depth_to_width"] = math.inf if growth == 0 else TRUSTED / growth
    return values


def exponent(values: np.ndarray) -> Fit:
    """p of y ~ ℓ^p, ℓ = 0, 1, …, from the last three doublings of ℓ."""
    _, y = _doublings(values)
    if not np.all(y[1:] * y[:-1] > 0):
        return NONE
    return _extrapolate(np.log2(y[1:] / y[:-1]))


def slope(values: np.ndarray) -> Fit:
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


def _arrays(flow: Flow) -> dict[str, Any]:
    pair = ("layer", "sample", "sample_")
    layers, wants = flow.layers, flow.wants
    ratio = np.array([np.max(np.diagonal(v.blocks[..., 0, 0]) / np.diag(v.kernel) ** 2) for v in layers])
    arrays = {
        "kernel": (pair, np.stack([layer.kernel for layer in layers])),
        "vertex_pairs": ((*pair, "pair", "pair_"), np.stack([layer.blocks for layer in layers])),
        "width_needed": (pair[:1], np.ceil(ratio / TRUSTED * (1 - 1e-12))),  # whole numbers survive rounding,
    }
    if wants.correction:
        arrays["correction"] = (pair, np.stack([layer.correction for layer in layers]))
    return arrays
