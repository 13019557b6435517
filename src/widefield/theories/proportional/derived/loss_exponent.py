r"""`widefield.loss_exponent`: how fast the loss of a power-law task falls."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.teacher import Teacher
from widefield.question.training import Training
from widefield.theories.proportional.problem import check_training, pose
from widefield.theories.proportional.training_curves import check_residual, note_on_divergence, train

EXACT_MODES = 2000  # beyond, eigenvalues are gathered in bins that are this fine:
BIN = 1.02
LAST_MODE = 1e14


@x64
def loss_exponent(
    network: Network,
    training: Training,
    *,
    source: float,
    capacity: float,
    rtol: float = 0.1,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""The local exponent of the loss of a power-law task, against two formulas.

    .. math::  \lambda_k = k^{-a}, \qquad \lambda_kw_k^2 \propto k^{-a\beta-1}, \qquad \mathcal L(t) \sim t^{-\chi}

    Eqs. (proportional.20), (proportional.21). Eq. 21 of Bordelon & Pehlevan (2025) prints :math:`2\beta/(1+\beta)` for every
    depth, which is the case of one hidden layer.

    Notation: :math:`\beta` is ``source``, :math:`a` ``capacity``; width and batch are infinite, and then an initial function
    that could be centered is absent.

    Fields: ``test_loss`` (step), ``exponent`` (octave): minus the slope of ln loss in ln step over each octave of steps, the
    last one ending at ``training.steps`` (coordinate ``octave_end``); ``exponent_error``, the change from the octave before;
    ``depth_exponent`` :math:`(L+1)\beta/(1+L\beta)` (or :math:`\beta` from 1 on), ``printed_exponent``
    :math:`2\beta/(1+\beta)`, ``lazy_exponent`` :math:`\beta`.

    Method: one march of `widefield.proportional`; the spectrum is infinite (binned beyond 2000 modes).
    Error: ``error`` in the certificate is ``exponent_error`` over the last exponent; its limit is ``rtol``, 0.1 by default.
    Take more steps where it is larger. ``residual`` is that of the march.
    Limits: evidence goes as far as the steps do; corrections of the initial weights fall slowly, large richness makes them
    small.
    """
    start = time.perf_counter()
    check_training(replace(training, centered=True), "loss_exponent")
    training.refuse("loss_exponent", "flow")
    beta = checks.nonnegative("source", source, positive=True)
    a = checks.nonnegative("capacity", capacity, positive=True)
    if not 1 < a <= 20:
        raise ValueError(
            f"`capacity` must exceed 1, or the spectrum has no finite trace, and be at most 20, got {a:g}."
        )
    if not 1e-6 <= beta <= 1e6:
        raise ValueError(f"`source` must lie between 1e-6 and 1e6, got {beta:g}.")
    checks.integer("steps", training.steps, 16)
    rtol = checks.tolerance("rtol", rtol, 1e-10)
    teacher = Teacher(spectrum=power_law(a, beta))
    curves = train(pose(network, teacher, replace(training, centered=True), theory="loss_exponent"), progress)
    loss = curves.arrays["test_loss"][:, 0]
    ends = [len(loss) - 1]  # of octaves, the latest last
    while ends[0] // 2 >= 4:
        ends.insert(0, ends[0] // 2)
    with np.errstate(invalid="ignore"):  # a diverged run has no slope
        slopes = np.asarray([-np.log(loss[b] / loss[a]) / np.log(b / a) for a, b in pairwise(ends)])
    change, stop, notes = abs(slopes[-1] - slopes[-2]), curves.diverged_at, curves.notes
    balanced = {L: (L + 1) * beta / (1 + L * beta) if beta < 1 else beta for L in (1, network.depth)}  # norm balance
    fields = {
        "test_loss": (("step",), loss), "exponent": (("octave",), slopes), "exponent_error": ((), change),
        "depth_exponent": ((), balanced[network.depth]), "printed_exponent": ((), balanced[1]),
        "lazy_exponent": ((), beta),
    }  # fmt: skip
    certificate = Certificate(
        theory="loss_exponent", steps=training.steps, wall_time=time.perf_counter() - start,
        checks={"residual": check_residual(curves.residual), "error": Check(change / abs(slopes[-1]), rtol)},
        failure=None if stop is None else Status.diverged,
        notes=notes if stop is None else (*notes, note_on_divergence(stop)),
        diagnostics={} if stop is None else {"diverged_at_step": stop},
        options={"source": beta, "capacity": a, "rtol": rtol},
    )  # fmt: skip
    coords = {"octave_end": ("octave", np.asarray(ends[1:]))}
    return make_solution(fields, certificate, network, teacher=teacher, training=training, coords=coords, throw=throw)


def power_law(capacity: float, source: float) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and target powers of infinitely many modes, the late ones in narrow bins; powers sum to 1."""
    k = np.arange(1.0, EXACT_MODES + 1)
    edges = np.geomspace(EXACT_MODES + 0.5, LAST_MODE, int(np.log(LAST_MODE / EXACT_MODES) / np.log(BIN)))
    integral = lambda p: (edges[:-1] ** (1 - p) - edges[1:] ** (1 - p)) / (p - 1)  # noqa: E731
    decay = capacity * source + 1
    powers = np.concatenate([k**-decay, integral(decay)])
    middle = np.sqrt(edges[:-1] * edges[1:])
    return np.concatenate([k, middle]) ** -capacity, powers / powers.sum()
