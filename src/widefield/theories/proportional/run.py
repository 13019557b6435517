"""One march with its verdict: did it stay finite, and do its matrices solve the equations."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from widefield.answer.boundary import describe_bytes, memory_budget
from widefield.answer.certificate import Status
from widefield.answer.progress import bar
from widefield.theories.proportional.long import parts
from widefield.theories.proportional.march import State
from widefield.theories.proportional.problem import Problem
from widefield.theories.proportional.verify import residual

TOLERANCE = {"float64": 1e-10, "float32": 1e-3}  # right runs have 1e-13 at most, whatever their length
DIVERGED = 1e8  # a loss this many times the first one has diverged
ROUNDING = 100  # roundings of the largest loss in every later one, about
SECONDS = 2e-10  # per number read
CURVES = ("test_loss", "train_loss", "bias", "width_variance", "data_variance")


@dataclass(frozen=True)
class Answer:
    """Curves (row, channel) by name, the matrices behind them where there are any, and what the certificate says."""

    curves: dict[str, np.ndarray]
    kernel: np.ndarray
    state: State | None
    status: Status
    residual: float | None
    error: float
    notes: tuple[str, ...] = ()
    diagnostics: dict[str, Any] = field(default_factory=dict)


def run(problem: Problem, progress: bool | None = None) -> Answer:
    """March, and put the result back into the equations."""
    check_memory(problem)
    shape, parameters, state = problem.shape, problem.parameters, None
    seconds = SECONDS * matrices(problem) * shape.n_steps**3 / 3 * shape.n_channels**2
    with bar(f"{shape.n_steps - 2} steps", 100, progress, seconds) as advance:
        done = 0
        for rows, state in parts(parameters, shape):
            jax.block_until_ready(state)
            share = int(100 * (rows / shape.n_steps) ** 3)
            advance(share - done)
            done = share
    assert state is not None
    return judge(problem, state)


def judge(problem: Problem, state: State) -> Answer:
    """Curves and status of a finished march."""
    n, c = problem.n_rows, len(problem.overlap)
    losses = np.array(state.inputs.losses, dtype=float).reshape(n + 1, c, 5)[:n]
    kernel = np.asarray(state.inputs.memory)
    kernel = (
        np.stack([kernel[t * c + c : t * c + 2 * c, t * c : t * c + c] for t in range(n)])
        / problem.rates[:n, None, None]
    )
    step = diverged_at(losses[..., 0])
    notes = _on_digits(losses[:step, :, :2], problem.dtype)
    diagnostics: dict[str, Any] = {}
    status = Status.success
    if step is not None:
        losses[step:], kernel[step:] = np.inf, np.inf
        status, diagnostics = Status.diverged, {"diverged_at_step": step}
        notes += (
            f"the test loss passes {DIVERGED:g} times its first value at step {step}; later entries are infinite",
        )
    valid = n if step is None else step
    found = residual(problem, state, valid)
    if status is Status.success and not found <= TOLERANCE[problem.dtype]:
        status = Status.inaccurate
    curves = {name: losses[..., i] for i, name in enumerate(CURVES)}
    return Answer(curves, kernel, state, status, found, problem.modes_error, notes, diagnostics)


def _on_digits(losses: np.ndarray, dtype: str) -> tuple[str, ...]:
    """Whether some losses have become so small that cancellation leaves them less than two digits."""
    largest = np.max(losses, initial=0.0)
    error = ROUNDING * np.finfo(dtype).eps * largest
    if not np.any(losses < 100 * error):
        return ()
    return (
        f"losses carry roundings of terms of order {largest:.1g}: below about {error:.0e} they have no digits left",
    )


def diverged_at(test_loss: np.ndarray) -> int | None:
    """The first step at which the loss is beyond all use, or None."""
    bad = ~(test_loss <= DIVERGED * test_loss[0]).all(axis=1)
    return int(np.argmax(bad)) if bad.any() else None


def matrices(problem: Problem) -> float:
    """Square matrices that a march keeps."""
    per_layer = 6 if problem.branch is None else 16
    modes = 0 if problem.modes is None or not problem.shape.noisy else len(problem.modes.weight)
    return per_layer * problem.depth + 9 + modes


def check_memory(problem: Problem) -> None:
    """Refuse a march whose matrices do not fit, before any is allocated."""
    side = problem.shape.n_steps * len(problem.overlap)
    need = (
        np.dtype(problem.dtype).itemsize * side**2 * matrices(problem) * 1.8
    )  # while a buffer grows the smaller one is still there
    if need > memory_budget():
        raise MemoryError(
            f"The march needs about {describe_bytes(need)} for {side} × {side} matrices at depth {problem.depth}, but only "
            f"{describe_bytes(memory_budget())} may be used. Ask for fewer steps, or a larger rate and fewer of them."
        )
