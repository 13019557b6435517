"""What a method found: estimates with their errors, and what the certificate says of them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from widefield.answer.certificate import Status


@dataclass(frozen=True)
class Estimate:
    """A mean over batches and its standard error; None where it is exact."""

    value: np.ndarray
    stderr: np.ndarray | None


def over_batches(values: list[np.ndarray]) -> Estimate:
    """Mean and standard error of independent batches; a single one is taken to be exact."""
    if len(values) == 1:
        return Estimate(values[0], None)
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


@dataclass(frozen=True)
class Answer:
    """Curves of all inputs, training first; kernels, responses and alignments, and samples, by name where asked for."""

    prediction: Estimate  # (step, state, sample, output)
    loss: Estimate
    ntk: Estimate | None = None  # (step, channel, channel_, sample, sample_)
    kernels: dict[str, Estimate] = field(default_factory=dict)
    draws: dict[str, np.ndarray] = field(default_factory=dict)  # h (at, state, sample, path), z (at, channel, state, …)
    status: Status = Status.success
    residual: float | None = None
    error: float = 0.0
    n_paths: int | None = None
    notes: tuple[str, ...] = ()
    diagnostics: dict[str, Any] = field(default_factory=dict)
