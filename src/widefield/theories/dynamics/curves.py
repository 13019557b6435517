"""What every method returns: curves and kernels along training with their errors, and the numbers they are judged by."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from widefield.answer.certificate import Check, Status, derive_status

MOST_CORRECTION = 0.5  # a term of order richness² beyond this share of the leading one makes an expansion inaccurate
N_BATCHES = 8  # of paths
LIMIT = float(stats.t.ppf(0.975, N_BATCHES - 1))  # of a mean over them, in standard errors
ORTHONORMAL = 1e-6  # directions further from an orthonormal set than this make the result inaccurate


@dataclass(frozen=True)
class Estimate:
    """A mean over batches and its standard error; None where it is exact."""

    value: np.ndarray
    stderr: np.ndarray | None = None

    def each(self, change: Callable[[np.ndarray], np.ndarray]) -> "Estimate":
        """``change`` applied to the value and to its error."""
        return Estimate(change(self.value), None if self.stderr is None else change(self.stderr))


@dataclass(frozen=True)
class TrainingCurves:
    """Curves of all inputs, training first; kernels, responses and alignments, and samples, by name where they were made."""

    prediction: Estimate  # (step, state, sample, output)
    loss: Estimate
    kernels: dict[str, Estimate] = field(default_factory=dict)
    draws: dict[str, np.ndarray] = field(default_factory=dict)  # h (at, state, sample, path), z (at, channel, state, …)
    residual: float = 0.0
    error: float = np.inf  # of the outputs, relative to their size
    rtol: float = 0.0  # what is asked of it
    n_paths: int | None = None
    paths_needed: float = 0.0  # to resolve the kinks of the activation
    correction: float | None = None  # the last term that an expansion keeps, relative to its leading one
    failure: Status | None = None  # what the method itself saw go wrong
    diverged_at: int | None = None  # implies the failure and its note
    notes: tuple[str, ...] = ()
    diagnostics: dict[str, Any] = field(default_factory=dict)

    @property
    def checks(self) -> dict[str, Check]:
        """What success rests on."""
        checks = {}
        if self.diverged_at is not None:
            checks["diverged_rows"] = Check(len(self.loss.value) - self.diverged_at, 0, Status.diverged)
        checks["residual"] = Check(self.residual, ORTHONORMAL)
        if self.paths_needed:
            checks["paths needed"] = Check(self.paths_needed, self.n_paths or 0)
        checks["error"] = Check(self.error, self.rtol, Status.not_converged)
        if self.correction is not None:
            checks["expansion"] = Check(self.correction, MOST_CORRECTION)
        return checks

    @property
    def status(self) -> Status:
        """How the method ended."""
        return derive_status(self.checks, self.failure)


def divergence(step: int | None, rate: str = "") -> dict[str, Any]:
    """What curves say of a run that diverges at ``step``, and nothing where it does not."""
    if step is None:
        return {}
    note = f"the loss diverges at step {step}{rate}; later entries are infinite"
    return {"failure": Status.diverged, "diverged_at": step, "notes": (note,)}


def over_batches(values: list[np.ndarray]) -> Estimate:
    """Mean and standard error of independent batches; a single one is taken to be exact."""
    if len(values) == 1:
        return Estimate(values[0])
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.mean(values, axis=0)
        error = np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
    return Estimate(np.where(np.isnan(mean), np.inf, mean), np.where(np.isnan(error), np.inf, error))


def widened(estimate: Estimate, share: float, n_rows: int = 1) -> Estimate:
    """``share`` of the largest entry added to the standard errors, in quadrature; separately in each of ``n_rows`` rows."""
    if estimate.stderr is None:
        return estimate
    largest = np.abs(estimate.value).reshape(n_rows, -1).max(axis=1)
    floor = share * largest.reshape(n_rows, *(1,) * (estimate.value.ndim - 1))
    return Estimate(estimate.value, np.hypot(estimate.stderr, floor))


def relative_error(prediction: Estimate, readouts: tuple[int, ...], bias: Any = 0.0, least: float = 1e-300) -> float:
    """Two-sided 95 % limit of how far outputs of the ``readouts`` are off, with their ``bias``, relative to their `size`.

    Both are root mean squares at the step where they are largest. Student's limit is that of one direction of outputs; a
    norm over several scatters less.
    """
    outputs, states = prediction.value, list(readouts)
    if not np.isfinite(outputs).all():
        return np.inf
    chance = 0.0 if prediction.stderr is None else LIMIT * size(prediction.stderr[:, states], 0.0)
    bias = np.broadcast_to(bias, outputs.shape)[:, states]
    return (chance + size(bias, 0.0)) / size(outputs[:, states], least)


def size(outputs: np.ndarray, least: float) -> float:
    """Root mean square of outputs (step, …) at the step where it is largest; ``least`` where they are zero."""
    return max(float(np.sqrt(np.mean(outputs**2, axis=tuple(range(1, outputs.ndim))).max(initial=0.0))), least)


def to_the_end(rows: list | tuple, n: int) -> np.ndarray:
    """``n`` rows: those after a divergence are infinite."""
    values = np.asarray(rows) if len(rows) else np.zeros((0,))
    return np.concatenate([values, np.full((n - len(values), *values.shape[1:]), np.inf)])
