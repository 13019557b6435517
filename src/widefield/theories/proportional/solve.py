"""`widefield.proportional`: training curves of deep linear networks in the proportional limit."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from widefield.answer.boundary import choose_quantities, x64
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.solution import Fields, Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.teacher import Teacher
from widefield.question.training import Training
from widefield.theories.proportional.prediction import predict
from widefield.theories.proportional.problem import MODES_RTOL, pose
from widefield.theories.proportional.training_curves import (
    CURVES,
    DIMS,
    available,
    check_memory,
    check_residual,
    note_on_divergence,
)


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
    rtol: float = 1e-3,
    dtype: Any = "float64",
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Loss along gradient descent when width, data and input dimension grow together.

    .. math::
        f(x) = \frac{\sqrt D}{N\gamma_0}\,w^L\prod_{l=1}^{L-1}\frac{W^l}{\sqrt N}\,\frac{W^0}{\sqrt D}\,x, \qquad
        \mathcal L = \frac1{2P}\sum_\mu\Delta_\mu^2, \qquad \theta \leftarrow \theta - N\gamma_0^2\eta\,\nabla\mathcal L,

    with the random data of ``teacher``. Eqs. (proportional.1) to (proportional.9), after Bordelon & Pehlevan (2025);
    several channels and unequal widths Eqs. (proportional.10), (proportional.11), residual networks
    Eqs. (proportional.13) to (proportional.15).

    Notation: :math:`\nu = N/D` is ``width_ratio``; with a ``spectrum``, Eq. (proportional.12), :math:`N` is ``width``.
    :math:`\gamma_0` is ``training.richness``, :math:`\eta` ``training.rate``, :math:`\sigma^2` ``teacher.label_noise``.
    ``training.flow`` is the limit of small rates at fixed time rate · step, ``infinite_depth=True`` that of a residual
    network of infinite depth at fixed branch · √depth.
    Fields over step: ``test_loss`` and ``train_loss`` :math:`\langle\Delta^2\rangle`, and the parts of the former ``bias``,
    ``width_variance``, ``data_variance`` (the rest is label noise), Eq. (proportional.9); ``kernel``, the response of the
    next step's error to this step's gradient over the rate (the NTK of lazy networks, depth + 1). Over (step, step\_):
    ``error_correlation``, ``memory_kernel``, and with layer in front ``feature_correlation``, ``gradient_correlation``
    :math:`C_h, C_g`, ``feature_response``, ``gradient_response`` :math:`R_{hr}, R_{gu}`. Several channels add ``output``
    behind. Along a flow there are no responses, at infinite depth no fields with a layer.
    Method: one causal march, O(depth·steps³) time, O(depth·steps²) memory; exact in the limit. Beyond 640 steps matrices
    are compressed far from the diagonal (about steps^2.5; not for residual networks and structured data with finite width
    or batch). The two limits are extrapolated from rates η, η/2, … and depths 4, 8, …, as many as ``rtol`` needs
    (η/32, depth 128 at most), Eq. (proportional.17).
    Error: ``residual`` puts matrices and curves back into the equations, relative to the terms in their sums; 1e-10 is
    its limit (1e-3 in float32). ``error`` is that of the extrapolations, relative to the test loss of the same step and to
    the largest entry of other fields; its limit is ``rtol``, 1e-3 by default. Without them it is that of the Gauss rule for
    long spectra (below 1e-10). Losses carry roundings of the largest one; a note says where they have become that small.
    A flow passes over rates at which the march diverges, at most the first three; without three finite ones it has failed.
    Limits: linear networks. Finite networks scatter by O(1/√D), more near the largest stable rate. Divergence is a status
    with its step; losses from there on are infinite.
    """
    start = time.perf_counter()
    problem = pose(network, teacher, training, width_ratio=width_ratio, width=width, dtype=dtype)
    rtol = checks.tolerance("rtol", rtol, MODES_RTOL)
    if checks.flag("infinite_depth", infinite_depth) and network.branch is None:
        raise ValueError("`infinite_depth` needs a ResNet: other networks have no limit of infinite depth.")
    check_memory(problem)
    sizes = available(problem, infinite_depth=infinite_depth)
    wanted, left_out = choose_quantities(quantities, sizes)
    if quantities is None:
        left_out = (*left_out, *(name for name in DIMS if name not in sizes))
    prediction = predict(problem, wanted, infinite_depth=infinite_depth, rtol=rtol, progress=progress)
    stop, notes = prediction.diverged_at, prediction.notes
    measured = {"residual": check_residual(prediction.residual, problem.dtype), "error": Check(prediction.error, rtol)}
    diagnostics = {"marches": prediction.n_marches} if prediction.n_marches > 1 else {}
    if stop is not None:  # rows that are lost come first
        measured = {"diverged_rows": Check(training.steps + 1 - stop, 0, Status.diverged)} | measured
        diagnostics["diverged_at_step"] = stop
        notes += (note_on_divergence(stop),)
    elif prediction.error > rtol:
        notes += ("more marches would not help or not fit: take more steps at a smaller rate, or raise rtol",)
    options = {"width_ratio": width_ratio, "width": width, "infinite_depth": infinite_depth, "rtol": rtol}
    certificate = Certificate(
        theory="proportional", steps=training.steps, dtype=problem.dtype, wall_time=time.perf_counter() - start,
        checks=measured, failure=None if stop is None else Status.diverged, notes=notes, left_out=left_out,
        diagnostics=diagnostics, options={k: v for k, v in options.items() if v is not None and v is not False},
    )  # fmt: skip
    fields: Fields = {}
    for name in wanted:
        channels = () if teacher.n_outputs == 1 else ("output",) if name in CURVES else ("output", "output_")
        array, dims = prediction.arrays[name], (*DIMS[name], *channels)
        fields = {**fields, name: (dims, np.asarray(array.reshape(array.shape[: len(dims)]), problem.dtype))}
    coords = {"time": ("step", training.times)}
    return make_solution(fields, certificate, network, teacher=teacher, training=training, coords=coords, throw=throw)
