r"""`widefield.loss_exponent`: how fast the loss of a power-law task falls.

.. math::  \lambda_k = k^{-a}, \qquad \lambda_kw_k^2 \propto k^{-a\beta-1}, \qquad \mathcal L(t) \sim t^{-\chi}

Lazy networks have :math:`\chi = \beta`. In the rich regime and for :math:`\beta < 1` norm balance gives
:math:`\chi = (L+1)\beta/(1+L\beta)`; Eqs. 21 and 99 of Bordelon & Pehlevan (2025) print :math:`2\beta/(1+\beta)` for
every depth, which is the case L = 1.
"""

import time
from itertools import pairwise

import numpy as np

from widefield.answer import legacy
from widefield.answer.boundary import x64
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.training import Training
from widefield.theories.proportional.problem import problem
from widefield.theories.proportional.run import TOLERANCE, run

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
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""The local exponent of the loss of a power-law task, against the two formulas.

    ``source`` is :math:`\beta`, ``capacity`` :math:`a`; infinite width and batch, centred.

    Fields: ``test_loss`` (step), ``exponent`` (octave): minus the slope of ln loss in ln step over each octave of steps, the
    last one ending at ``steps`` (coordinate ``octave_end``); ``exponent_error``, the change from the octave before;
    ``depth_exponent`` :math:`(L+1)\beta/(1+L\beta)` (or :math:`\beta` from 1 on), ``printed_exponent``
    :math:`2\beta/(1+\beta)`, ``lazy_exponent`` :math:`\beta`.

    Limits: evidence goes as far as the steps do; corrections of the initial weights fall slowly, large richness makes them
    small. The spectrum is infinite (binned beyond 2000 modes).
    """
    start = time.perf_counter()
    training.refuse(
        "loss_exponent", "batches", "weight_decay", "momentum_time", "temperature", "loss", "initial_scale", "flow"
    )
    richness, rate, steps = training.richness, training.rates, training.steps
    beta = checks.nonnegative("source", source, positive=True)
    a = checks.nonnegative("capacity", capacity, positive=True)
    if a <= 1:
        raise ValueError(f"`capacity` must exceed 1, or the spectrum has no finite trace, got {capacity!r}.")
    checks.integer("steps", steps, 16)
    asked = problem(
        network, width_ratio=np.inf, data_ratio=None, batch_ratio=None, richness=richness, rate=rate, steps=steps,
        label_noise=0.0, centered=True, spectrum=power_law(a, beta), width=None, batch=None, target_overlap=None,
    )  # fmt: skip
    answer = run(asked, progress)
    loss = answer.curves["test_loss"][:, 0]
    ends, slopes = octaves(loss)
    depth = network.depth
    fields = {
        "test_loss": (("step",), loss), "exponent": (("octave",), slopes),
        "exponent_error": ((), abs(slopes[-1] - slopes[-2])),
        "depth_exponent": ((), (depth + 1) * beta / (1 + depth * beta) if beta < 1 else beta),
        "printed_exponent": ((), 2 * beta / (1 + beta) if beta < 1 else beta), "lazy_exponent": ((), beta),
    }  # fmt: skip
    certificate = legacy.certificate(
        theory="loss_exponent", status=answer.status, residual=answer.residual, tolerance=TOLERANCE["float64"], error=answer.error,
        steps=steps, wall_time=time.perf_counter() - start, notes=answer.notes, diagnostics=answer.diagnostics,
        options={"source": beta, "capacity": a, "rate": rate, "steps": steps, "richness": richness},
    )  # fmt: skip
    return make_solution(
        fields, certificate, network, None, coords={"octave_end": ("octave", ends)}, throw=throw, training=training
    )


def power_law(capacity: float, source: float) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and target powers of infinitely many modes, the late ones in narrow bins; powers sum to 1."""
    k = np.arange(1.0, EXACT_MODES + 1)
    edges = np.geomspace(EXACT_MODES + 0.5, LAST_MODE, int(np.log(LAST_MODE / EXACT_MODES) / np.log(BIN)))
    integral = lambda p: (edges[:-1] ** (1 - p) - edges[1:] ** (1 - p)) / (p - 1)  # noqa: E731
    decay = capacity * source + 1
    powers = np.concatenate([k**-decay, integral(decay)])
    middle = np.sqrt(edges[:-1] * edges[1:])
    return np.concatenate([k, middle]) ** -capacity, powers / powers.sum()


def octaves(loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minus the slope of ln loss against ln step between T/2 and T, T/4 and T/2 …, the latest last; and where they end."""
    last = len(loss) - 1
    ends = [last]
    while ends[-1] // 2 >= 4:
        ends.append(ends[-1] // 2)
    ends = ends[::-1]
    with np.errstate(invalid="ignore"):  # a diverged run has no slope
        slopes = [-np.log(loss[b] / loss[a]) / np.log(b / a) for a, b in pairwise(ends)]
    return np.asarray(ends[1:]), np.asarray(slopes)
