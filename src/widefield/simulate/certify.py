"""How far a simulation can be trusted: overflow, and the standard error of its means."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from widefield.answer import legacy
from widefield.answer.certificate import Certificate, Status


def certify(
    theory: str,
    arrays: dict[str, np.ndarray],
    start: float,
    *,
    seed: int | None,
    options: dict[str, Any],
    notes: Sequence[str],
    left_out: tuple[str, ...],
) -> Certificate:
    """The certificate of ``arrays``, each with a leading replicate axis, whose making began at ``start``."""
    n_bad = _n_nonfinite(arrays)
    errors = {} if n_bad else {name: relative_error(v) for name, v in arrays.items() if name != "draw"}
    listed = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    measured = f"standard error of the mean over replicates, relative to the largest entry: {listed}"
    overflowed = f"values overflowed in {n_bad} of {options['replicates']} networks"
    return legacy.certificate(
        theory=theory,
        status=Status.nonfinite if n_bad else Status.success,
        residual=None,  # a simulation solves no equation
        tolerance=None,
        error=max(errors.values(), default=None),
        seed=seed,
        wall_time=time.perf_counter() - start,
        options=options,
        notes=(*notes, *([overflowed] if n_bad else []), *([measured] if errors else [])),
        left_out=left_out,
    )


def relative_error(values: np.ndarray) -> float:
    """Largest standard error of the mean over replicates, in units of the largest mean; infinite for one replicate."""
    n = len(values)
    if n == 1:
        return math.inf
    mean = values.mean(axis=0)
    squares = np.zeros_like(mean)
    for block in blocks(n, max(1, 10**6 // mean.size)):
        squares += np.square(values[block] - mean).sum(axis=0)
    largest = np.abs(mean).max()
    return float(np.sqrt(squares.max() / (n * (n - 1))) / largest) if largest else 0.0


def blocks(total: int, size: int) -> Iterator[slice]:
    """Slices of at most ``size`` that cover ``total``."""
    return (slice(first, min(first + size, total)) for first in range(0, total, size))


def _n_nonfinite(arrays: dict[str, np.ndarray]) -> int:
    """Number of replicates with a value that is not finite."""
    bad = np.zeros(len(next(iter(arrays.values()))), dtype=bool)
    for values in arrays.values():
        for block in blocks(len(values), max(1, 10**6 // values[0].size)):
            bad[block] |= ~np.isfinite(values[block]).reshape(block.stop - block.start, -1).all(axis=1)
    return int(bad.sum())
