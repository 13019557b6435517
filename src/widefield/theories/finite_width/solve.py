"""`widefield.finite_width`: how far a network of given width is from its infinitely wide limit."""

import math
import time
from bisect import bisect
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import numpy as np

from widefield.answer.boundary import memory_budget, names_of, require_memory, x64
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.finite_width.derived import regression
from widefield.theories.finite_width.expansion import (
    MAX_QUARTETS,
    AbstractExpansion,
    Quantity,
    Question,
    Result,
)
from widefield.theories.finite_width.tied.solve import TiedExpansion
from widefield.theories.finite_width.untied.averages import refuse
from widefield.theories.finite_width.untied.solve import UntiedExpansion

MAX_WIDTH = 10**15  # whole numbers that floats still tell apart
BASE = 20_000_000  # bytes that any call takes


@x64
def finite_width(
    network: Network,
    task: Task,
    *,
    width: int,
    noise: float = 0.0,
    quantities: Iterable[str] | None = None,
    quadruples: Any = None,
    rtol: float = 1e-8,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Kernel, four-point vertex and first correction of a random network of finite ``width``.

    .. math::  \mathbb{E}\,z_1z_2 = K_{12} + \tfrac1n G_{12} + O(n^{-2}), \qquad
               \mathrm{Cov}(\hat G_{12}, \hat G_{34}) = \tfrac1n V_{(12)(34)} + O(n^{-2})

    Eq. (finite_width.1). Layers are 1 … depth + 1, the last one the readout (absent with ``readout_variance=None``), :math:`n`
    the number of neurons that feed the layer, ``network.sizes(width)``. Fields over (layer, sample, …), all that are cheap or
    those named in ``quantities`` (nothing is computed for the others):

    - ``kernel`` K, ``correction`` G, ``covariance`` = K + G/n; ``vertex`` V over four samples and ``connected`` = V/n, by
      default up to some thousand different averages; ``kernel_variance`` = V_{(12)(12)}/n, the variance over networks of a
      kernel entry; ``ratio`` (layer,), the largest V_{(11)(11)}/(nK²): the expansion is in this number, which grows with
      depth over width. Beyond 0.3 (check ``expansion``) the status is ``inaccurate``, at any of the fields but ``kernel``; the
      certificate's diagnostics hold ``trusted_layers`` and the ``width_needed`` for all of them;
    - untied parameters (Eqs. (finite_width.2), (finite_width.3), (finite_width.4)): ``vertex_pairs`` (layer, sample,
      sample\_, pair, pair\_), V over {11, 12, 22} of all pairs; with ``quadruples`` (rows of four sample indices)
      ``vertex_quadruples`` (layer, quadruple); ``kurtosis`` = 3V_{(11)(11)}/(nK²), the excess kurtosis of an output;
      ``neuron_correlation`` = V_{(11)(11)}/(2nK²), the correlation of the squares of two neurons;
    - tied ones (Eqs. (finite_width.23), (finite_width.24), (finite_width.26), (finite_width.27)), over (state, state\_,
      sample, sample\_): ``pair_kernel`` C, ``pair_correction`` G1, ``pair_mean`` H1 = n(E[hh] − C) and ``pair_variance``
      Vh = n Var(Σ hh/n); on request ``pair_vertex`` (pair, pair\_), V over all pairs of hidden nodes;
    - labels, of ``noise`` variance and at any supervised states, give the Bayesian regression at order 1/n (Eqs.
      (finite_width.17), (finite_width.18), (finite_width.19)): ``log_evidence`` and, with test inputs, ``test_prediction``
      (state, test, output) and ``test_covariance`` (state, state\_, test, test\_, output, output\_), without noise, all at this
      width, and the coefficient of 1/n of each as ``…_correction``. ``state`` are the states where it predicts: with untied
      parameters and labels at the last state that one, else all.

    Method: closed-form averages or Hermite series. Everything on pairs of samples costs O(depth·P²), ``vertex`` and a
    regression C(P+3, 4) four-point averages per layer; tied parameters C(depth·P+3, 4), 0.1 ms each for relu and erf.
    Error: averages are good to ``rtol`` of their scale (1e-8 by default). The residual, within ``rtol`` too, re-evaluates the
    equations of some pairs by quadrature, and the linear solve of a regression. At ``ratio`` 0.3 the first order of a variance is
    off by 10 to 35 %, that of a mean by up to 4 %. Memory is predicted, and refused above 80 % of what is free.
    Limits: first order in 1/n. Activations with jumps are refused; with kinks other than relu, leaky relu and abs there is
    no ``correction``. Tied parameters and readouts at other states than the last need equal widths; the expansion for tied
    relu weights is in 5a²/n. A regression needs the log likelihood to vary little between networks: beyond a variance
    ``evidence_variance`` of 0.3 it is ``inaccurate`` too. ``throw=False`` returns the numbers in both cases.
    """
    question = _question(network, task, width, quadruples, rtol, progress)
    expansion = UntiedExpansion() if is_untied(network, task) else TiedExpansion()
    return solve_with(expansion, question, noise=noise, quantities=quantities, throw=throw)


def solve_with(
    expansion: AbstractExpansion,
    question: Question,
    *,
    noise: float = 0.0,
    quantities: Iterable[str] | None = None,
    throw: bool = True,
) -> Solution:
    """The solution that ``expansion`` gives to ``question``; that of tied parameters can read out every state."""
    start = time.perf_counter()
    network, task, width = question.network, question.task, question.width
    noise, quantities = checks.nonnegative("noise", noise), names_of(quantities)
    source = expansion if expansion.predicted_states(question) else TiedExpansion()  # of the moments for a regression
    made, left_out, notes = _plan(expansion, source, question, quantities)
    names = tuple(made)
    fields = tuple(name for name in names if name not in regression.DIMS)
    wanted = tuple(name for name in names if name in regression.DIMS)
    parts: list[Result] = []  # nothing is computed twice or in vain
    if fields and not (wanted and source is expansion):
        parts.append(expansion.solve(question, fields, readout=False))
    if wanted:
        moments = source.solve(question, fields if source is expansion else (), readout=True)
        states = source.predicted_states(question)
        parts += [moments, regression.regress(question, states, moments, wanted, noise)]
    diagnostics = {name: value for part in reversed(parts) for name, value in part.diagnostics.items()}
    widths = [part.diagnostics["width_needed"] for part in parts if "width_needed" in part.diagnostics]
    certificate = Certificate(
        "finite_width",
        _worst(parts),
        next((part.failure for part in parts if part.failure), None),
        steps=network.depth,
        wall_time=time.perf_counter() - start,
        options={"width": width, "noise": noise, "quantities": list(names), "rtol": question.rtol},
        notes=tuple(dict.fromkeys([*task.notes, *notes, *(note for part in parts for note in part.notes)])),
        left_out=left_out,
        diagnostics=diagnostics | ({"width_needed": max(widths)} if widths else {}),
    )
    values = {name: value for part in parts for name, value in part.fields.items()}
    arrays = {name: (q.dims, values[name] if name in values else np.full(q.shape, np.nan)) for name, q in made.items()}
    coords = {name: value for part in parts for name, value in part.coords.items()}
    return make_solution(arrays, certificate, network, task, coords=coords, throw=throw)


def _worst(parts: list[Result]) -> dict[str, Check]:
    """Of each check the largest value."""
    verdicts: dict[str, Check] = {}
    for name, check in (item for part in parts for item in part.checks.items()):
        worst = verdicts.get(name, check)
        verdicts[name] = worst if worst.value >= check.value or np.isnan(worst.value) else check
    return verdicts


def _plan(
    expansion: AbstractExpansion, source: AbstractExpansion, question: Question, quantities: tuple[str, ...] | None
) -> tuple[dict[str, Quantity], tuple[str, ...], tuple[str, ...]]:
    """The fields to make, names left out, and why some are not available or not made."""
    network, task = question.network, question.task
    available, notes = expansion.available(question)
    against = regression.reason_against(network, task)
    if not against:
        count = source.n_quartets(question, alone=source is not expansion)
        why = f"the regression would take {count} four-point averages: ask for its fields"
        states = source.predicted_states(question)
        available |= regression.available(question, states, why if count > MAX_QUARTETS else "")
    elif quantities is not None and any(name in regression.DIMS for name in quantities):
        raise ValueError(against)
    elif task.y is not None and network.readout_variance is not None:
        notes = (*notes, f"no regression: {against}")
    peak = partial(_peak, expansion, source, question, available)
    if quantities is not None:
        if not quantities:
            raise ValueError(f"`quantities` must name at least one of {', '.join(available)}.")
        for name in quantities:
            checks.choice("quantities", name, available)
        _refuse(peak, question, quantities)
        return {name: available[name] for name in quantities}, (), notes
    expensive = [name for name, q in available.items() if q.expensive]
    budget = memory_budget()
    kept: list[str] = []
    for name in available:
        if name not in expensive and peak([*kept, name], question.task.n_samples) <= budget:
            kept.append(name)
    if not kept:
        _refuse(peak, question, ("kernel",))
    left_out = [name for name in available if name not in kept and name not in expensive]
    reasons = dict.fromkeys(available[name].expensive for name in expensive)
    notes = (*notes, *(reason for reason in reasons if reason != "on request"))
    return {name: available[name] for name in kept}, (*left_out, *expensive), notes


def _peak(
    expansion: AbstractExpansion,
    source: AbstractExpansion,
    question: Question,
    available: dict[str, Quantity],
    names: Collection[str],
    n_samples: int,
) -> float:
    """Bytes that are taken at most for the fields ``names``, if ``n_samples`` of the training samples are given."""
    fields = [name for name in names if name not in regression.DIMS]
    share, readout = n_samples / question.task.n_samples, len(fields) < len(names)
    values = sum(2 * available[name].size * share ** available[name].growth for name in names)
    if readout:
        points = math.ceil(share * len(question.inputs_and_tests[0]))
        work = source.work(question, fields if source is expansion else (), points, readout=True)
    else:
        work = expansion.work(question, fields, math.ceil(share * len(question.inputs[0])), readout=False)
    return BASE + 5 * share * question.task.x.nbytes + work.kept + max(work.passing, values + work.after)


def _refuse(peak: Callable[..., float], question: Question, names: tuple[str, ...]) -> None:
    """Refuse fields that do not fit, and say how many samples would."""
    n_samples, budget = question.task.n_samples, float(memory_budget())
    if peak(names, n_samples) <= budget:
        return
    fit = bisect(range(1, n_samples), budget, key=lambda n: peak(names, n))
    remedy = "Ask for fewer quantities or `quadruples`, or a smaller depth"
    require_memory(
        peak(names, n_samples),
        f"`quantities` {', '.join(names)} of {n_samples} samples",
        f"{remedy}, or give {fit} samples." if fit else f"{remedy}.",
    )


def _question(network: Any, task: Any, width: Any, quadruples: Any, rtol: Any, progress: bool | None) -> Question:
    network.refuse_branch("finite_width")
    if refuse(network.activation) == "jumps":
        raise ValueError(
            f"`network` has the activation {network.activation}, which jumps: finite_width needs the derivative of "
            "<φφ> in the variances, which is infinite there."
        )
    task.sequences(network.depth)
    task.supervised_states(network.depth)
    if checks.integer("width", width, 1) > MAX_WIDTH:
        raise ValueError(f"`width` must be an integer of at most {MAX_WIDTH:.0e}, got {str(width)[:30]}.")
    rtol = checks.tolerance("rtol", rtol, 1e-11)
    return Question(network, task, int(width), rtol, progress, _quadruples(quadruples, task.n_samples))


def is_untied(network: Network, task: Task) -> bool:
    """Whether, given a layer, the next one is Gaussian with fresh parameters."""
    if network.depth == 1:
        return True
    n_driven = task.sequences(network.depth).shape[1]
    biases = network.biases == "untied" or not network.bias_variances.any()
    inputs = network.inputs == "untied" or n_driven == 1 or not network.input_variances.any()
    return network.weights == "untied" and biases and inputs


def _quadruples(quadruples: Any, n_samples: int) -> np.ndarray | None:
    if quadruples is None:
        return None
    index = np.asarray(quadruples)
    if index.ndim != 2 or index.shape[1] != 4 or not len(index) or index.dtype.kind not in "iu":
        given = f"an array of {index.dtype} and shape {index.shape}" if index.ndim else f"{quadruples!r:.100}"
        raise ValueError(f"`quadruples` must be rows of four sample indices, got {given}.")
    if np.any(index < 0) or np.any(index >= n_samples):
        raise ValueError(
            f"`quadruples` must hold sample indices 0 … {n_samples - 1}, got {index.min()} … {index.max()}."
        )
    return index
