"""`widefield.dynamics`: how outputs and kernels of a wide network move under gradient descent."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Status
from widefield.answer.solution import Solution, make_solution
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.training import Training
from widefield.theories.dynamics import fields
from widefield.theories.dynamics.curves import Estimate, TrainingCurves
from widefield.theories.dynamics.march.batch import TooFewPaths
from widefield.theories.dynamics.methods import ORDER
from widefield.theories.dynamics.problem import Problem, problem
from widefield.theories.dynamics.request import Request, make_request


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
        h^k = \sqrt wW\varphi(h^{k-1})/\sqrt N + \sqrt uUx^k/\sqrt D, \qquad f = \sqrt v\,V\cdot\varphi(h)/(\gamma_0N),
        \qquad \theta \leftarrow \theta - \eta\gamma_0^2N\,\nabla\tfrac12\textstyle\sum|f-y|^2

    Eqs. (dynamics.1), (dynamics.2), with the closed equations (dynamics.3) to (dynamics.9) at infinite width: Eqs. 1–9 of
    Bordelon & Pehlevan (2022), corrected, with the weight mask that makes recurrent and deep networks one theory.
    Notation: :math:`\gamma_0` is the training's ``richness``, :math:`\eta` its ``rate``, which multiplies the gradient of
    the *sum* over samples. Exact for finite steps; ``flow=True`` is their limit at fixed time rate · step.

    Every protocol of `widefield.Training` but ``batches``; biases train where the network has them; test inputs train nothing.
    ``method``: ``"lazy"`` static kernels; ``"independent"`` without responses (A = B = 0); ``"perturbative"`` to
    leading order in the squared richness, outputs and kernels.

    Fields: ``loss`` ½Σ over training samples, ``test_loss`` (step), ``prediction``, ``test_prediction`` (step, sample,
    output), ``ntk`` (step, sample, sample\_), ``feature_kernel``, ``gradient_kernel`` (layer, step, step\_, sample,
    sample\_) or, where states are tied or several are driven or read out, (state, state\_, …), at the steps ``at``;
    ``alignment`` (layer, step) and ``ntk_alignment`` (step), cosines with the kernel of the labels;
    ``state_prediction`` (step, state, sample, output), outputs of every state (full and lazy); ``preactivation`` and
    ``pregradient`` (layer, path, sample), h and z at the end or at ``at`` (full and independent descent). On request, along
    full descent, ``forward_response`` and ``backward_response``, A and B with η inside, with the dims of ``feature_kernel``.

    Method: one causal pass in low-rank form; exact coordinates for linear networks, quadrature for two layers with few inputs,
    otherwise 8 batches of Sobol paths each, in pairs of opposite backward noises: ``paths`` of them, or 1024 and four times as
    many until ``rtol`` is met. Cost depth·paths·P·steps·(number of directions).
    Error: ``<field>_stderr`` over batches, one standard error. The certificate's ``error`` is that of the outputs of readouts, relative to their
    root mean square at the step where it is largest: of sampled outputs a 95 % limit of the root mean square of what they are off,
    with ``rtol`` also the bias; the change from a coarser quadrature; along a flow also the last change of the extrapolation, of every field. It is at most ``rtol``, by default 0.1
    for sampled paths and 1e-3 otherwise, or the status is ``not_converged``. ``residual``, below 1e-6, is the loss of
    orthonormality of the directions in which weights are known. ``expansion``, of the perturbative method, is its term of order
    richness² relative to the static one: beyond 0.5 the status is ``inaccurate``, below it the terms left out are not known.
    Limits: infinite width; single networks scatter by 1/√width. Divergence is a status with its step.
    """
    start = time.perf_counter()
    question = problem(network, task, training, responses=method != "independent")
    request = make_request(
        question, method=method, paths=paths, at=at, quantities=quantities, rtol=rtol, seed=seed, progress=progress
    )
    curves = solve(question, request)
    named = fields.fields_of(question, curves, request)
    options = {"method": method, "paths": curves.n_paths, "at": None if at is None else request.at, "rtol": curves.rtol}
    stop = {} if curves.diverged_at is None else {"diverged_at_step": curves.diverged_at}
    certificate = Certificate(
        "dynamics", curves.checks, curves.failure, steps=training.steps, seed=None if curves.n_paths is None else seed,
        wall_time=time.perf_counter() - start, options={k: v for k, v in options.items() if v is not None},
        notes=(*task.notes, *curves.notes), left_out=request.left_out, diagnostics=curves.diagnostics | stop,
    )  # fmt: skip
    coords = fields.coordinates(question, request, named)
    return make_solution(named, certificate, network, task, coords=coords, throw=throw, training=training)


def solve(question: Problem, request: Request) -> TrainingCurves:
    """By the first method that covers the question and is good enough."""
    try:
        for method in ORDER:
            curves = method.solve(question, request) if method.covers(question, request) else None
            if curves is not None:
                return curves
    except TooFewPaths as why:
        if why.step is None:
            raise
        # no numbers: at some step more directions opened than the paths can tell apart
        task, n_rows, n_states = question.task, len(question.rates), question.network.depth
        nothing = np.full((n_rows, n_states, task.n_samples + task.n_test, question.shape.n_outputs), np.nan)
        return TrainingCurves(
            Estimate(nothing), Estimate(np.full(n_rows, np.nan)), rtol=request.limit(sampled=True), failure=Status.not_converged,
            n_paths=request.paths, notes=(f"stopped at step {why.step}: {why}",),
        )  # fmt: skip
    raise AssertionError("the march covers every question that the others do not")
