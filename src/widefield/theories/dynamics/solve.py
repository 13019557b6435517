"""`widefield.dynamics`: how outputs and kernels of a wide network move under gradient descent."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from widefield.answer import legacy
from widefield.answer.boundary import x64
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.training import Training
from widefield.theories.dynamics import ensemble, fields, perturbation, two_layer, whitened
from widefield.theories.dynamics.answer import Answer
from widefield.theories.dynamics.problem import Problem, problem
from widefield.theories.dynamics.run import TooFewPaths

METHODS = ("full", "lazy", "independent", "perturbative")


@x64
def dynamics(
    network: Network,
    task: Task,
    training: Training,
    *,
    method: str = "full",
    paths: int | None = None,
    at: Any = None,
    quantities: Iterable[str] | None = None,
    rtol: float | None = None,
    seed: int = 0,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Loss, predictions and kernels of an infinitely wide network along gradient descent, from lazy to rich.

    .. math::
        h^k = \sqrt wW\varphi(h^{k-1})/\sqrt N + \sqrt uUx^k/\sqrt D, \qquad f = \sqrt v\,v\cdot\varphi(h)/(\gamma_0N),
        \qquad \theta \leftarrow \theta - \eta\gamma_0^2N\,\nabla\tfrac12\textstyle\sum|f-y|^2

    Eqs. 1–9 of Bordelon & Pehlevan (2022) as corrected on the theory page, with the weight mask that makes recurrent and
    deep networks one theory. :math:`\gamma_0` is ``richness``, :math:`\eta` ``rate`` (a number, one per step, or a
    function of the step). Exact for finite steps; ``flow=True`` extrapolates to small ones at fixed time rate · step.

    Protocols: ``weight_decay`` θ ← (1 − rate·λ)θ, ``momentum_time`` τ, ``temperature`` T (Langevin
    noise √(2·rate·T) on every weight), biases trained where the network has them, several
    outputs and readouts, held-out inputs, ``loss`` ``"squared"``, ``"logistic"``, ``"cross_entropy"`` or a function of one
    sample's outputs and label; ``initial_scale`` scales the initial weights without being a multiplier, one number or
    one per weight matrix (input, hidden, readout; Appendix D.8).
    ``method``: ``"lazy"`` static tangent kernel; ``"independent"`` without responses (A = B = 0); ``"perturbative"`` to
    leading order in the squared richness, outputs and kernels.

    Fields: ``loss`` ½Σ over training samples, ``test_loss`` (step), ``prediction``, ``test_prediction`` (step, sample,
    output), ``ntk`` (step, sample, sample\_), ``feature_kernel``, ``gradient_kernel`` (layer, step, step\_, sample,
    sample\_) or, where states are tied or several are driven or read out, (state, state\_, …), at the steps ``at``;
    ``alignment`` (layer, step) and ``ntk_alignment`` (step), cosines with the kernel of the labels; ``preactivation`` and
    ``pregradient`` (layer, path, sample), h and z at the end or at ``at``; ``state_prediction`` (step, state, sample, output),
    outputs of every state. On request ``forward_response`` and ``backward_response``, A and B with η inside, with the dims of
    ``feature_kernel``; where activations have kinks these may take more paths, or are ``inaccurate`` with too few.

    Method: one causal pass in low-rank form; exact coordinates for linear networks, otherwise 8 batches of ``paths``
    Sobol paths each, in pairs of opposite backward noises, raised until predictions are good to ``rtol`` where that is
    given. Cost depth·paths·P·steps·(number of directions).
    Error: ``<field>_stderr`` over batches, plus a bias of order 1/paths. The certificate's ``error`` is the largest one of an
    output of a readout, relative to their root mean square at the step where it is largest: the standard error, with
    ``rtol`` also the bias, which a quarter of the paths shows, and with ``flow`` the last change of the extrapolation; if
    ``rtol`` is not met with 131072 paths or 8 halvings of the rate, the status is ``not_converged``. ``residual`` is the loss
    of orthonormality of the directions in which weights are known.
    Limits: infinite width; single networks scatter by 1/√width. Divergence is a status with its step.
    """
    start = time.perf_counter()
    training.refuse("dynamics", "batches")
    richness, rate, steps, flow, loss = training.richness, training.rates, training.steps, training.flow, training.loss
    weight_decay, momentum_time, temperature = training.weight_decay, training.momentum_time, training.temperature
    initial_scale = training.initial_scale
    checks.choice("method", method, METHODS)
    _check_flags(flow=flow, throw=throw, **({} if progress is None else {"progress": progress}))
    asked = problem(
        network, task, richness=richness, rate=rate, steps=steps, loss=loss, weight_decay=weight_decay,
        momentum_time=momentum_time, initial_scale=initial_scale, responses=method != "independent",
        temperature=temperature,
    )  # fmt: skip
    _check_method(asked, method, flow)
    rtol = None if rtol is None else checks.tolerance("rtol", rtol, 1e-6)
    paths = None if paths is None else 2 * -(-checks.integer("paths", paths, 64) // 2)  # they come in pairs
    planned = fields.plan(asked, method, flow, at, quantities, paths or ensemble.FIRST_PATHS)
    sampling = ensemble.Sampling(paths, rtol, checks.integer("seed", seed, 0), progress)
    try:
        answer = _solve(asked, planned, method, flow, sampling)
    except TooFewPaths as why:
        if why.step is None:
            raise
        answer = ensemble.unfinished(asked, why, paths)
    named = fields.fields_of(asked, answer, planned)
    shown = {
        "richness": richness, "rate": rate, "steps": steps, "method": method, "loss": loss, "flow": flow,
        "weight_decay": weight_decay, "momentum_time": momentum_time, "temperature": temperature, "initial_scale": np.asarray(asked.initial_scale).tolist(),
        "paths": answer.n_paths,
    }  # fmt: skip
    certificate = legacy.certificate(
        theory="dynamics", status=answer.status, residual=answer.residual, tolerance=ensemble.ORTHONORMAL, error=answer.error,
        steps=int(steps), seed=None if answer.n_paths is None else seed, wall_time=time.perf_counter() - start,
        options={k: v for k, v in shown.items() if v is not None and v is not False}, notes=(*task.notes, *answer.notes),
        left_out=planned.left_out, diagnostics=answer.diagnostics,
    )  # fmt: skip
    return make_solution(
        named,
        certificate,
        network,
        task,
        coords=fields.coordinates(asked, planned, named),
        throw=throw,
        training=training,
    )


def _solve(asked: Problem, planned: fields.Plan, method: str, flow: bool, sampling: ensemble.Sampling) -> Answer:
    options = ensemble.Options(
        sampling, bool({"ntk", "ntk_alignment"} & set(planned.wanted)), planned.at, planned.wanted
    )
    if method == "lazy":
        return ensemble.static(asked)
    if method == "perturbative":
        return perturbation.perturbative(asked, options)
    if method == "full" and two_layer.applies(asked, options):
        found = two_layer.solve(asked, options, flow)
        if found is not None:
            return found
    if method == "full" and whitened.applies(asked, options):
        return whitened.solve(asked, options, flow, planned.chosen)
    return ensemble.flow(asked, options) if flow else ensemble.full(asked, options)


def _check_flags(**flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"`{name}` must be True or False, got {value!r}.")


def _check_method(asked: Problem, method: str, flow: bool) -> None:
    """What an approximation does not cover."""
    if method != "full" and 1 < len(asked.readouts) < asked.network.depth:
        raise ValueError(f"`method`={method!r} needs labels at one state or at all of them: others are not predicted.")
    if flow and asked.temperature:
        raise ValueError("`flow` extrapolates smooth curves: use a small rate with `temperature`.")
    if method in ("lazy", "perturbative"):
        if asked.weight_decay or np.any(np.asarray(asked.initial_scale) != 1) or asked.temperature or flow:
            raise ValueError(
                f"`method`={method!r} is for plain descent: without weight_decay, temperature, initial_scale or flow."
            )
        if method == "perturbative" and asked.momentum_time is not None:
            raise ValueError("`method`='perturbative' is for descent without momentum_time.")
        if len(set(asked.network.relative_widths)) > 1:
            raise ValueError(f"`method`={method!r} needs equal `widths`.")
