"""How far a simulation can be trusted: which networks were lost, and the standard errors of its means."""

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from widefield.answer.certificate import Certificate, Check, Status
from widefield.simulate.networks.fields import blocks

CHUNK = 10**6  # numbers looked at together
SINGLE = "draw"  # a field of single neurons of mean zero: no relative error


def certify(
    simulator: str,
    arrays: Mapping[str, np.ndarray],
    began: float,
    *,
    seed: int | None,
    options: Mapping[str, Any],
    notes: Iterable[str] = (),
    left_out: tuple[str, ...] = (),
    checks: Mapping[str, Check] | None = None,
    diagnostics: Mapping[str, Any] | None = None,
    steps: int = 0,
) -> Certificate:
    """The certificate of ``arrays``, each with a leading replicate axis, whose making began at ``began``.

    A simulation solves no equation: success rests on ``"lost"``, the number of networks whose values are not finite, which
    must be zero, and on what a simulator adds to ``checks`` (there ``"lost"`` may also name another status). Standard
    errors of the mean over replicates, relative to the largest entry of each field, stand in the diagnostics.
    """
    n_lost = count_nonfinite(arrays)
    judged = {"lost": Check(n_lost, 0, Status.nonfinite)} | dict(checks or {})
    n_networks = len(next(iter(arrays.values())))
    overflowed = n_lost and judged["lost"].otherwise is Status.nonfinite
    told = {} if n_lost else {"relative_standard_error": _errors(arrays)}
    return Certificate(
        simulator,
        judged,
        steps=steps,
        seed=seed,
        wall_time=time.perf_counter() - began,
        options=dict(options),
        notes=(*notes, *([f"values overflowed in {n_lost} of {n_networks} networks"] if overflowed else [])),
        left_out=left_out,
        diagnostics=told | dict(diagnostics or {}),
    )


def relative_error(values: np.ndarray) -> float:
    """Largest standard error of the mean over replicates, in units of the largest mean; infinite for one replicate."""
    n = len(values)
    if n == 1:
        return math.inf
    mean = values.mean(axis=0)
    squares = np.zeros_like(mean)
    for block in blocks(n, max(1, CHUNK // mean.size)):
        squares += np.square(values[block] - mean).sum(axis=0)
    largest = np.abs(mean).max()
    return float(np.sqrt(squares.max() / (n * (n - 1))) / largest) if largest else 0.0


def count_nonfinite(arrays: Mapping[str, np.ndarray]) -> int:
    """Number of replicates with a value that is not finite."""
    bad = np.zeros(len(next(iter(arrays.values()))), dtype=bool)
    for values in arrays.values():
        for block in blocks(len(values), max(1, CHUNK // values[0].size)):
            bad[block] |= ~np.isfinite(values[block]).reshape(block.stop - block.start, -1).all(axis=1)
    return int(bad.sum())


def _errors(arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Relative standard errors by field, to three digits."""
    return {name: float(f"{relative_error(values):.3g}") for name, values in arrays.items() if name != SINGLE}
