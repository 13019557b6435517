"""`widefield.finite_width`: how far a network of given width is from its infinitely wide limit."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.finite_width.derived import regression
from widefield.theories.finite_width.expansion import MAX_QUARTETS, AbstractExpansion, Question, Result, choose
from widefield.theories.finite_width.tied.solve import TiedExpansion
from widefield.theories.finite_width.untied.recursion import refuse
from widefield.theories.finite_width.untied.solve import UntiedExpansion


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

    Eq. (finite_width.1). Layers are 1 … depth + 1, the last one the readout (absent with ``readout_variance=None``);
    :math:`n` is the number of neurons that feed the layer, ``network.sizes(width)``. Fields over (layer, sample, …):

    - ``kernel`` K, ``correction`` G, ``covariance`` = K + G/n; ``vertex`` V over four samples and ``connected`` = V/n, by
      default up to some thousand different averages; ``kernel_variance`` = V_{(12)(12)}/n, the variance over networks of a
      kernel entry; ``ratio`` (layer,), the largest V_{(11)(11)}/(nK²): the expansion is in this number, which grows with
      depth over width. Beyond 0.3 a note says so; the certificate's diagnostics hold ``trusted_layers`` and the
      ``width_needed`` for all of them;
    - with untied parameters (Eqs. (finite_width.2), (finite_width.3), (finite_width.4)) also ``vertex_pairs`` (layer,
      sample, sample\_, pair, pair\_), V over {11, 12, 22} × {11, 12, 22} of all pairs; with ``quadruples`` (rows of four
      sample indices) ``vertex_quadruples`` (layer, quadruple); ``kurtosis`` = 3V_{(11)(11)}/(nK²), the excess kurtosis of
      an output; ``neuron_correlation`` = V_{(11)(11)}/(2nK²), the correlation of the squares of two neurons;
    - with tied ones (Eqs. (finite_width.23), (finite_width.24), (finite_width.26), (finite_width.27)) also, over (state,
      state\_, sample, sample\_), ``pair_kernel`` C, ``pair_correction`` G1, ``pair_mean`` H1 = n(E[hh] − C) and
      ``pair_variance`` Vh = n Var(Σ hh/n); on request ``pair_vertex`` (pair, pair\_), V over all pairs of hidden nodes;
    - with labels the Bayesian regression at order 1/n (Eqs. (finite_width.17), (finite_width.18), (finite_width.19)), labels
      with ``noise`` variance at any supervised states: ``log_evidence`` and, with test inputs, ``test_prediction`` (state,
      test, output) and ``test_covariance`` (state, state\_, test, test\_, output, output\_), without noise, all at this width,
      and the coefficient of 1/n of each as ``…_correction``. ``state`` are the states where it predicts: with untied parameters
      and labels at the last state that one, else all. By default up to some thousand four-point averages.

    ``quantities`` names the fields wanted; nothing is computed for the others.

    Method: closed-form averages or Hermite series. Everything on pairs of samples costs O(depth·P²), ``vertex`` and a
    regression need C(P+3, 4) four-point averages per layer; tied parameters C(depth·P+3, 4), 0.1 ms each for relu and erf.
    Error: averages are good to ``rtol`` of their scale (1e-8 by default). The residual, within ``rtol`` too, re-evaluates the
    equations of some pairs by quadrature, and the linear solve of a regression.
    Limits: first order in 1/n. Activations with jumps are refused; with kinks other than relu, leaky relu and abs there is
    no ``correction``. Tied parameters and readouts at other states than the last need equal widths; the expansion for tied
    relu weights is in 5a²/n. A regression needs the log likelihood to vary little between networks: its variance
    ``evidence_variance`` stands in the diagnostics, and beyond 0.3 a note says so.
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
    """The solution that ``expansion`` gives to ``question``."""
    start = time.perf_counter()
    network, task, width = question.network, question.task, question.width
    noise = checks.nonnegative("noise", noise)
    names, left_out, notes = _plan(expansion, question, quantities)
    wanted = tuple(name for name in names if name in regression.DIMS)
    result = _solve(expansion, question, tuple(name for name in names if name not in wanted), wanted, noise)
    certificate = Certificate(
        "finite_width",
        result.checks,
        result.failure,
        steps=network.depth,
        wall_time=time.perf_counter() - start,
        options={"width": width, "noise": noise, "quantities": list(names), "rtol": question.rtol},
        notes=(*task.notes, *notes, *result.notes),
        left_out=left_out,
        diagnostics=result.diagnostics,
    )
    return make_solution(result.fields, certificate, network, task, coords=result.coords, throw=throw)


def _solve(
    expansion: AbstractExpansion, question: Question, names: tuple[str, ...], wanted: tuple[str, ...], noise: float
) -> Result:
    """Fields ``names`` of the expansion and ``wanted`` ones of the regression; nothing is computed twice or in vain."""
    if not wanted:
        return expansion.solve(question, names, readout=False)
    source = _source(expansion, question)
    parts = [source.solve(question, names if source is expansion else (), readout=True)]
    states = source.predicted_states(question)
    parts.append(regression.regress(question, states, parts[0], wanted, noise))
    if names and source is not expansion:
        parts.insert(0, expansion.solve(question, names, readout=False))
    return _joined(parts)


def _source(expansion: AbstractExpansion, question: Question) -> AbstractExpansion:
    """The expansion that makes the moments for a regression: that of tied parameters reads out every state."""
    return expansion if expansion.predicted_states(question) else TiedExpansion()


def _joined(parts: list[Result]) -> Result:
    """One result: the first failure, of each check the largest value."""
    verdicts: dict[str, Check] = {}
    for name, check in (item for part in parts for item in part.checks.items()):
        worst = verdicts.get(name, check)
        verdicts[name] = worst if worst.value >= check.value or np.isnan(worst.value) else check
    return Result(
        fields={name: value for part in parts for name, value in part.fields.items()},
        checks=verdicts,
        failure=next((part.failure for part in parts if part.failure), None),
        coords={name: value for part in parts for name, value in part.coords.items()},
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        diagnostics={name: value for part in reversed(parts) for name, value in part.diagnostics.items()},
    )


def _plan(
    expansion: AbstractExpansion, question: Question, quantities: Iterable[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of the fields to make, those left out, and why some are not available."""
    network, task = question.network, question.task
    if isinstance(quantities, Iterable):
        quantities = (quantities,) if isinstance(quantities, str) else tuple(quantities)
    available, notes = expansion.available(question)
    against = regression.reason_against(network, task)
    if not against:
        source = _source(expansion, question)
        expensive = _cost(source.n_quartets(question, alone=source is not expansion))
        available |= regression.available(question, source.predicted_states(question), expensive)
    elif isinstance(quantities, tuple) and any(name in regression.DIMS for name in quantities):
        raise ValueError(against)
    elif task.y is not None and network.readout_variance is not None:
        notes = (*notes, f"no regression: {against}")
    kept, left_out, reasons = choose(quantities, available)
    return kept, left_out, (*notes, *reasons)


def _cost(n_quartets: int) -> str:
    """Why a regression is not made by default; empty if it is."""
    if n_quartets <= MAX_QUARTETS:
        return ""
    return f"the regression would take {n_quartets} four-point averages: ask for its fields"


def _question(network: Any, task: Any, width: Any, quadruples: Any, rtol: Any, progress: bool | None) -> Question:
    if not isinstance(network, Network):
        raise ValueError(
            f"`network` must be a widefield Network such as widefield.DNN(...), got {type(network).__name__}."
        )
    network.refuse_branch("finite_width")
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a widefield.Task, got {type(task).__name__}.")
    _refuse_tracer(width)
    if refuse(network.activation) == "jumps":
        raise ValueError(
            f"`network` has the activation {network.activation}, which jumps: finite_width needs the derivative of "
            "<φφ> in the variances, which is infinite there."
        )
    task.sequences(network.depth)
    task.supervised_states(network.depth)
    width = checks.integer("width", width, 1)
    rtol = checks.tolerance("rtol", rtol, 1e-11)
    return Question(network, task, width, rtol, progress, _quadruples(quadruples, task.n_samples))


def _refuse_tracer(width: Any) -> None:
    try:
        checks.reject_tracers(width=width)
    except ValueError:
        raise ValueError(
            "`width` is a JAX tracer: finite_width computes in NumPy and has no core that jit, grad or vmap could trace. "
            "Call it in a loop; of its fields the kernel alone has a traceable core, widefield.theories.prior.core."
        ) from None


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
    checks.reject_tracers(quadruples=quadruples)
    index = np.asarray(quadruples)
    if index.ndim != 2 or index.shape[1] != 4 or not len(index) or index.dtype.kind not in "iu":
        raise ValueError(f"`quadruples` must be rows of four sample indices, got an array of shape {index.shape}.")
    if np.any(index < 0) or np.any(index >= n_samples):
        raise ValueError(
            f"`quadruples` must hold sample indices 0 … {n_samples - 1}, got {index.min()} … {index.max()}."
        )
    return index
