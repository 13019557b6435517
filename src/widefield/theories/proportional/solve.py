"""`widefield.proportional`: training curves of deep linear networks in the proportional limit."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from widefield.answer import legacy
from widefield.answer.boundary import choose_quantities, x64
from widefield.answer.certificate import Certificate
from widefield.answer.solution import Solution, make_solution
from widefield.question.network import Network
from widefield.question.teacher import Teacher
from widefield.question.training import Training
from widefield.theories.proportional.fields import DIMS, available, fields_of
from widefield.theories.proportional.limits import extrapolate
from widefield.theories.proportional.problem import Problem, problem
from widefield.theories.proportional.run import TOLERANCE, Answer, run


@x64
def proportional(
    network: Network,
    teacher: Teacher,
    training: Training,
    *,
    width_ratio: float = np.inf,
    width: float | None = None,
    infinite_depth: bool = False,
    quantities: Iterable[str] | None = None,
    dtype: Any = "float64",
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Loss along gradient descent when width, data and input dimension grow together.

    .. math::
        f(x) = \frac{\sqrt D}{N\gamma_0}\,w^L\prod_{l=1}^{L-1}\frac{W^l}{\sqrt N}\,\frac{W^0}{\sqrt D}\,x, \qquad
        \mathcal L = \frac1{2P}\sum_\mu\Delta_\mu^2, \qquad \theta \leftarrow \theta - N\gamma_0^2\eta\,\nabla\mathcal L,

    with Gaussian inputs and a linear target of unit power. :math:`\nu = N/D` is ``width_ratio``, :math:`\alpha = P/D`
    ``data_ratio`` (the same data at every step) or :math:`\alpha_B = B/D` ``batch_ratio`` (fresh data at every step);
    neither means descent on the population. :math:`\gamma_0` is ``richness``, :math:`\eta` ``rate`` (a number, one per
    step, or a function of the step), :math:`\sigma^2` ``label_noise``; ``centered`` subtracts the initial function.
    Equations 8–15 and Appendices A–G of Bordelon & Pehlevan (2025), as corrected on the theory page.

    ``target_overlap`` :math:`Q_{cc'} = w_c\cdot w_{c'}/D` gives several output channels, ``spectrum`` = (eigenvalues
    :math:`\lambda_k`, target powers :math:`\lambda_kw_k^2`) structured data with ``width`` and ``batch`` as numbers.
    ``flow=True`` extrapolates to small rates at fixed time rate · step, ``infinite_depth=True`` a residual network to infinite
    depth at fixed branch · √depth; both extrapolate the curves and state the error.

    Fields over step: ``test_loss`` and ``train_loss`` :math:`\langle\Delta^2\rangle`, and the parts of the former ``bias``,
    ``width_variance``, ``data_variance`` (the rest is label noise); ``kernel``, the response of the next step's error to
    this step's gradient over the rate (the NTK of lazy networks, depth + 1). Over (step, step\_): ``error_correlation``,
    ``memory_kernel``, and with layer in front ``feature_correlation``, ``gradient_correlation`` :math:`C_h, C_g`,
    ``feature_response``, ``gradient_response`` :math:`R_{hr}, R_{gu}`. Several channels add ``output`` behind.

    Method: one causal march, O(depth·steps³) time, O(depth·steps²) memory; exact in the limit. Beyond 640 steps matrices
    are compressed far from the diagonal as they are made, to some roundings (about steps^2.5; residual networks and
    structured data with finite width or batch keep the dense march).
    Error: ``residual`` puts matrices and curves back into the equations, relative to the terms in their sums. Losses carry
    roundings of the largest one, and a note says where they have become that small. Extrapolations state theirs in ``error``.
    Limits: linear networks. Finite networks scatter by O(1/√D), more near the largest stable rate. Divergence is a status
    with its step; losses from there on are infinite.
    """
    start = time.perf_counter()
    training.refuse("proportional", "batches", "weight_decay", "momentum_time", "temperature", "loss", "initial_scale")
    richness, rate, steps, flow = training.richness, training.rates, training.steps, training.flow
    centered = training.centered
    data_ratio, batch_ratio, batch = teacher.data_ratio, teacher.batch_ratio, teacher.batch
    label_noise, spectrum, target_overlap = teacher.label_noise, teacher.spectrum, teacher.target_overlap
    given = dict(
        width_ratio=width_ratio, data_ratio=data_ratio, batch_ratio=batch_ratio, richness=richness, rate=rate, steps=steps,
        label_noise=label_noise, centered=centered, spectrum=spectrum, width=width, batch=batch,
        target_overlap=target_overlap,
    )  # fmt: skip
    asked = problem(network, **given, dtype=dtype)  # type: ignore[arg-type]
    if infinite_depth and asked.branch is None:
        raise ValueError("`infinite_depth` needs a ResNet: other networks have no limit of infinite depth.")
    wanted, left_out = _quantities(asked, quantities, flow or infinite_depth)
    answer = extrapolate(asked, flow, infinite_depth, progress) if flow or infinite_depth else run(asked, progress)
    options = {"flow": flow, "infinite_depth": infinite_depth} | {k: v for k, v in given.items() if k != "spectrum"}
    certificate = _certificate(answer, options, asked.dtype, left_out, time.perf_counter() - start)
    return _solution(asked, answer, wanted, certificate, network, teacher, training, throw)


def _quantities(asked: Problem, quantities, extrapolated: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sizes = available(asked, extrapolated)
    wanted, left_out = choose_quantities(quantities, sizes)
    if quantities is None:
        left_out = (*left_out, *(name for name in DIMS if name not in sizes))
    return wanted, left_out


def _certificate(answer: Answer, options: dict[str, Any], dtype: str, left_out, seconds: float) -> Certificate:
    shown = {name: value for name, value in options.items() if value is not None and value is not False}
    return legacy.certificate(
        theory="proportional", status=answer.status, residual=answer.residual, tolerance=TOLERANCE[dtype], dtype=dtype, error=answer.error,
        steps=int(options["steps"]), wall_time=seconds, options=shown, notes=answer.notes, left_out=left_out,
        diagnostics=answer.diagnostics,
    )  # fmt: skip


def _solution(
    asked: Problem,
    answer: Answer,
    wanted,
    certificate: Certificate,
    network: Network,
    teacher: Teacher,
    training: Training,
    throw: bool,
) -> Solution:
    fields = {name: (dims, np.asarray(v, asked.dtype)) for name, (dims, v) in fields_of(asked, answer, wanted).items()}
    times = np.concatenate([[0.0], np.cumsum(asked.updates)])
    return make_solution(
        fields,
        certificate,
        network,
        None,
        teacher=teacher,
        training=training,
        coords={"time": ("step", times)},
        throw=throw,
    )
