"""One march: did it stay finite, do its matrices solve the equations, and both as the fields of a Solution."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from widefield.answer.boundary import memory_budget
from widefield.answer.certificate import Check, Status
from widefield.answer.progress import bar
from widefield.theories.proportional.march.causal import State
from widefield.theories.proportional.march.compressed import marched
from widefield.theories.proportional.problem import Problem, refuse_memory
from widefield.theories.proportional.verification import Time, congruent, in_numpy, layers_of, residual

TOLERANCE = {"float64": 1e-10, "float32": 1e-3}  # right marches have 1e-13 at most, whatever their length
DIVERGED = 1e8  # a loss this many times the first one has diverged
ROUNDING = 100  # roundings of the largest loss in every later one, about
COMPILED, CHECKED = 1.2e8, 25  # bytes of compilations; square matrices while the equations are checked
SECONDS = 2e-10  # per number read
CURVES = ("test_loss", "train_loss", "bias", "width_variance", "data_variance")
PAIR = ("step", "step_")
RESPONSES = ("feature_response", "gradient_response")
DIMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*CURVES, "kernel"), ("step",)),
    **dict.fromkeys(("error_correlation", "memory_kernel"), PAIR),
    **dict.fromkeys(("feature_correlation", "gradient_correlation", *RESPONSES), ("layer", *PAIR)),
}


@dataclass(frozen=True)
class TrainingCurves:
    """Arrays by name, with the channel behind (twice except in losses), and what the certificate rests on.

    They are infinite from the step ``diverged_at`` on; ``residual`` is over the rows before. ``n_marches`` were combined.
    """

    arrays: dict[str, np.ndarray]
    residual: float
    error: float
    diverged_at: int | None = None
    notes: tuple[str, ...] = ()
    n_marches: int = 1


def train(problem: Problem, progress: bool | None = None, names: Iterable[str] = ()) -> TrainingCurves:
    """March, and put the result back into the equations; losses in any case, other arrays by ``names``."""
    check_memory(problem, names)
    shape, state, done = problem.shape, None, 0
    with bar(f"{problem.training.steps} steps", 100, progress, march_seconds(problem)) as advance:
        for rows, state in marched(problem.parameters, shape):
            jax.block_until_ready(state)
            share = int(100 * (rows / shape.n_steps) ** 3)
            advance(share - done)
            done = share
    assert state is not None
    return judge(problem, state, names)


def judge(problem: Problem, state: State, names: Iterable[str] = ()) -> TrainingCurves:
    """Arrays of a finished march, and whether its matrices solve the equations."""
    n, c = problem.n_rows, len(problem.overlap)
    losses = np.array(state.inputs.losses, dtype=float).reshape(n + 1, c, 5)[:n]
    stop = diverged_at(losses[..., 0])
    largest = np.max(losses[:stop, :, :2], initial=0.0)
    notes: tuple[str, ...] = ()
    error = ROUNDING * np.finfo(problem.dtype).eps * largest
    if np.any(losses[:stop, :, :2] < 100 * error):
        notes = (
            f"losses carry roundings of terms of order {largest:.1g}: below about {error:.0e} they have no digits left",
        )
    if stop is not None:
        losses[stop:] = np.inf
    arrays = {name: losses[..., i] for i, name in enumerate(CURVES)}
    arrays |= {name: _matrix(problem, state, name, stop) for name in names if name not in CURVES}
    rest = residual(problem, state, n if stop is None else stop)
    return TrainingCurves(arrays, rest, problem.modes_error, stop, notes)


def _matrix(problem: Problem, state: State, name: str, stop: int | None) -> np.ndarray:
    n, c = problem.n_rows, len(problem.overlap)
    if name == "kernel":
        memory = np.asarray(state.inputs.memory)
        below = [memory[(t + 1) * c : (t + 2) * c, t * c : (t + 1) * c] for t in range(n)]
        kernel = np.stack(below) / problem.rates[:n, None, None]
        kernel[n if stop is None else stop :] = np.inf
        return kernel
    time, rows = Time(problem, n * c), in_numpy(state, n * c)
    if name == "error_correlation":
        value = rows.inputs.test - problem.teacher.label_noise * time.ones @ time.ones.T
    elif name == "memory_kernel":
        value = rows.inputs.memory / np.repeat(problem.rates, c)[: n * c]
    else:
        value = np.stack([_of_layer(time, layer, l, name) for l, layer in enumerate(layers_of(rows))])
    value = value.reshape(*value.shape[:-2], n, c, n, c).swapaxes(-3, -2)
    if stop is not None:
        value[..., stop:, :, :, :] = np.inf
        if "correlation" in name:
            value[..., :, stop:, :, :] = np.inf
    return value


def _of_layer(time: Time, layer: Any, l: int, name: str) -> np.ndarray:
    problem = time.problem
    if name == "feature_correlation":
        return layer.feature
    if name == "gradient_correlation":
        return congruent(time.gradient, layer.gradient)
    if name == "gradient_response":
        return (problem.branch if l else 1.0) * time.gradient(layer.pair.backward[:, 0])
    response = layer.pair.forward[:, 1]
    later = np.where(time.step > 0, response, 0.0) / problem.training.richness
    first = response[:, : time.channels] - later @ time.ones
    full = later + np.concatenate([first, np.zeros((time.n, time.n - time.channels))], axis=1)
    return (problem.branch if l + 1 < problem.network.depth else 1.0) * full


def available(problem: Problem, *, infinite_depth: bool = False) -> dict[str, int]:
    """Bytes of every quantity that can be returned.

    Responses to one step vanish along a flow, layers cannot be counted at infinite depth, and without richness the
    feature response is infinite.
    """
    lengths = {"step": problem.n_rows, "step_": problem.n_rows, "layer": problem.network.depth}
    without = {"feature_response"} if problem.training.richness == 0 else set()
    without |= set(RESPONSES) if problem.training.flow else set()
    without |= {name for name, dims in DIMS.items() if infinite_depth and "layer" in dims}
    factor = {name: len(problem.overlap) ** (1 if name in CURVES else 2) for name in DIMS if name not in without}
    return {name: 8 * factor[name] * int(np.prod([lengths[dim] for dim in DIMS[name]])) for name in factor}


def check_residual(value: float, dtype: str = "float64") -> Check:
    """A residual beside its tolerance."""
    return Check(value, TOLERANCE[dtype], Status.inaccurate)


def note_on_divergence(step: int) -> str:
    """Where a loss left all bounds."""
    return f"the test loss passes {DIVERGED:g} times its first value at step {step}; later entries are infinite"


def diverged_at(test_loss: np.ndarray) -> int | None:
    """The first step at which the loss (row, channel) is beyond all use, or None."""
    bad = ~(test_loss <= DIVERGED * test_loss[0]).all(axis=1)
    return int(np.argmax(bad)) if bad.any() else None


def n_matrices(problem: Problem) -> float:
    """Square matrices that a march keeps."""
    per_layer = 6 if problem.network.branch is None else 16
    modes = 0 if problem.modes is None or not problem.shape.noisy else len(problem.modes.weight)
    return per_layer * problem.network.depth + 9 + modes


def march_seconds(problem: Problem) -> float:
    """How long a dense march takes, about."""
    return SECONDS * n_matrices(problem) * problem.shape.n_steps**3 / 3 * problem.shape.n_channels**2


def memory_of(problem: Problem, names: Iterable[str] = ()) -> float:
    """Bytes of a march, its check and the arrays ``names``; while a buffer grows the smaller one is still there."""
    side = problem.shape.n_steps * problem.shape.n_channels
    fields = available(problem)
    matrices = np.dtype(problem.dtype).itemsize * side**2 * (1.8 * n_matrices(problem) + CHECKED)
    return COMPILED + matrices + sum(fields.get(name, 0) for name in names)


def fits(problem: Problem, names: Iterable[str] = ()) -> bool:
    """Whether a march is not too large."""
    return memory_of(problem, names) <= memory_budget()


def check_memory(problem: Problem, names: Iterable[str] = (), at_once: int = 1) -> None:
    """Refuse marches whose matrices do not fit, before any is allocated."""
    steps = problem.training.steps
    what = f"{int(n_matrices(problem))} matrices over {steps} steps at depth {problem.network.depth}"
    refuse_memory(at_once * memory_of(problem, names), what, steps, "steps", power=2)
