"""One march and its verdict: did it stay finite, and do its matrices solve the equations."""

from dataclasses import dataclass

import jax
import numpy as np

from widefield.answer.boundary import describe_bytes, memory_budget
from widefield.answer.certificate import Check, Status
from widefield.answer.progress import bar
from widefield.theories.proportional.march.causal import State
from widefield.theories.proportional.march.compressed import marched
from widefield.theories.proportional.problem import Problem
from widefield.theories.proportional.verification import residual

TOLERANCE = {"float64": 1e-10, "float32": 1e-3}  # right marches have 1e-13 at most, whatever their length
DIVERGED = 1e8  # a loss this many times the first one has diverged
ROUNDING = 100  # roundings of the largest loss in every later one, about
SECONDS = 2e-10  # per number read
CURVES = ("test_loss", "train_loss", "bias", "width_variance", "data_variance")


@dataclass(frozen=True)
class TrainingCurves:
    """Losses (row, channel) by name, the kernel (row, channel, channel), the matrices behind them, and how far they hold.

    ``diverged_at`` is the step from which on they are infinite; ``residual`` is over the rows before.
    """

    curves: dict[str, np.ndarray]
    kernel: np.ndarray
    state: State
    residual: float
    diverged_at: int | None = None
    notes: tuple[str, ...] = ()


def train(problem: Problem, progress: bool | None = None) -> TrainingCurves:
    """March, and put the result back into the equations."""
    check_memory(problem)
    shape, state = problem.shape, None
    seconds = SECONDS * n_matrices(problem) * shape.n_steps**3 / 3 * shape.n_channels**2
    with bar(f"{problem.training.steps} steps", 100, progress, seconds) as advance:
        done = 0
        for rows, state in marched(problem.parameters, shape):
            jax.block_until_ready(state)
            share = int(100 * (rows / shape.n_steps) ** 3)
            advance(share - done)
            done = share
    assert state is not None
    return judge(problem, state)


def judge(problem: Problem, state: State) -> TrainingCurves:
    """Curves of a finished march, and whether its matrices solve the equations."""
    n, c = problem.n_rows, len(problem.overlap)
    losses = np.array(state.inputs.losses, dtype=float).reshape(n + 1, c, 5)[:n]
    memory = np.asarray(state.inputs.memory)
    below = [memory[(t + 1) * c : (t + 2) * c, t * c : (t + 1) * c] for t in range(n)]
    kernel = np.stack(below) / problem.rates[:n, None, None]
    stop = diverged_at(losses[..., 0])
    notes = _note_on_digits(losses[:stop, :, :2], problem.dtype)
    if stop is not None:
        losses[stop:], kernel[stop:] = np.inf, np.inf
    curves = {name: losses[..., i] for i, name in enumerate(CURVES)}
    return TrainingCurves(curves, kernel, state, residual(problem, state, n if stop is None else stop), stop, notes)


def check_residual(value: float, dtype: str = "float64") -> Check:
    """A residual beside its tolerance."""
    return Check(value, TOLERANCE[dtype], Status.inaccurate)


def note_on_divergence(step: int) -> str:
    """Where a loss left all bounds."""
    return f"the test loss passes {DIVERGED:g} times its first value at step {step}; later entries are infinite"


def _note_on_digits(losses: np.ndarray, dtype: str) -> tuple[str, ...]:
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


def n_matrices(problem: Problem) -> float:
    """Square matrices that a march keeps."""
    per_layer = 6 if problem.network.branch is None else 16
    modes = 0 if problem.modes is None or not problem.shape.noisy else len(problem.modes.weight)
    return per_layer * problem.network.depth + 9 + modes


def memory_of(problem: Problem) -> float:
    """Bytes of a march; while a buffer grows the smaller one is still there."""
    side = problem.shape.n_steps * len(problem.overlap)
    return np.dtype(problem.dtype).itemsize * side**2 * n_matrices(problem) * 1.8


def check_memory(problem: Problem, at_once: int = 1) -> None:
    """Refuse marches whose matrices do not fit, before any is allocated."""
    need, side = at_once * memory_of(problem), problem.shape.n_steps * len(problem.overlap)
    if need > memory_budget():
        raise MemoryError(
            f"The march needs about {describe_bytes(need)} for {side} × {side} matrices at depth {problem.network.depth}, "
            f"but only {describe_bytes(memory_budget())} may be used. Ask for fewer steps, or a larger rate and fewer of "
            "them."
        )
