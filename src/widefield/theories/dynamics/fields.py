"""Curves and kernels as the fields of a Solution: their names, dims and shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widefield.theories.dynamics.curves import Estimate, TrainingCurves
from widefield.theories.dynamics.memory import DRAWN
from widefield.theories.dynamics.problem import Problem, total_loss
from widefield.theories.dynamics.request import Request

Dims = tuple[str, ...]
Field = tuple[Dims, Estimate]
SPLIT = {"feature_kernel": 0, "gradient_kernel": 2, "forward_response": 1, "backward_response": 1}  # channel axes


def coordinates(problem: Problem, request: Request, named: dict[str, tuple[Dims, np.ndarray]]) -> dict[str, Any]:
    """Time beside step, the kept steps, and the states of readouts, where the ``named`` fields have such dims."""
    dims = {dim for sizes, _ in named.values() for dim in sizes}
    labels = {"at": request.at, "readout": problem.readouts}
    coords: dict[str, Any] = {dim: list(labels[dim.rstrip("_")]) for dim in dims if dim.rstrip("_") in labels}
    if "step" in dims:
        coords["time"] = ("step", problem.training.times)
    return coords


def fields_of(problem: Problem, curves: TrainingCurves, request: Request) -> dict[str, tuple[Dims, np.ndarray]]:
    """Named (dims, array) pairs, with ``<name>_stderr`` beside what was sampled; a divergence leaves kernels out."""
    made = {*curves.kernels, *curves.draws}
    arrays: dict[str, tuple[Dims, np.ndarray]] = {}
    for name in request.fields:
        if name not in made and not name.endswith(("loss", "prediction")):
            continue
        dims, estimate = _field(problem, curves, request, name)
        arrays[name] = (dims, estimate.value)
        if estimate.stderr is not None:
            arrays[f"{name}_stderr"] = (dims, estimate.stderr)
    return arrays


def _field(problem: Problem, curves: TrainingCurves, request: Request, name: str) -> Field:
    n, states = problem.task.n_samples, ("layer",) if problem.by_layer else ("state", "state_")
    if name == "loss":
        return ("step",), curves.loss
    if name == "test_loss":
        return ("step",), test_loss(problem, curves.prediction.each(lambda v: v[:, :, n:]))
    if name.endswith("prediction"):
        samples, axis = (slice(n, None), "test") if name == "test_prediction" else (slice(n), "sample")
        if name == "state_prediction" or len(problem.readouts) > 1:
            return ("step", "state", axis, "output"), curves.prediction.each(lambda v: v[:, :, samples])
        return ("step", axis, "output"), curves.prediction.each(lambda v: v[:, problem.readouts[0], samples])
    if name in DRAWN:
        value = np.moveaxis(curves.draws[name], 0, -3).swapaxes(-2, -1)  # ([channel,] state, at, path, sample)
        dims = ("at", "path", "sample") if request.at_chosen else ("path", "sample")
        drawn = Estimate(value if request.at_chosen else value[..., -1, :, :])
        return _split(problem, drawn, int(name == "pregradient"), (states[0], *dims))
    estimate = curves.kernels[name]
    if name == "ntk":
        ntk = estimate.each(lambda v: np.moveaxis(v, 0, 2))
        return _split(problem, ntk, 2, ("step", "sample", "sample_"))
    if name == "ntk_alignment":
        return ("step",), estimate
    if name == "alignment":
        return (states[0], "step"), estimate.each(np.transpose)
    times = ("at", "at_") if request.at_chosen else ("step", "step_")
    if problem.by_layer:
        estimate = estimate.each(lambda v: v.take(0, axis=SPLIT[name] + 1))
    return _split(problem, estimate, SPLIT[name], (*states, *times, "sample", "sample_"))


def _split(problem: Problem, estimate: Estimate, n_channels: int, dims: Dims) -> Field:
    """Split the leading channel axes into readouts (in front) and outputs (behind), where there are several."""
    n_read, n_out = len(problem.readouts), problem.shape.n_outputs

    def split(value: np.ndarray) -> np.ndarray:
        value = value.reshape((n_read, n_out) * n_channels + value.shape[n_channels:])
        value = np.moveaxis(value, range(1, 2 * n_channels, 2), range(-n_channels, 0))
        value = value if n_read > 1 else value[(0,) * n_channels]
        return value if n_out > 1 else value.reshape(*value.shape[: value.ndim - n_channels])

    front = ("readout", "readout_")[: n_channels if n_read > 1 else 0]
    back = ("output", "output_")[: n_channels if n_out > 1 else 0]
    return (*front, *dims, *back), estimate.each(split)


def test_loss(problem: Problem, prediction: Estimate) -> Estimate:
    """The loss of test samples, scaled to as many as were trained on; its error as if outputs erred all together."""
    task = problem.task
    assert task.y_test is not None
    states = task.supervised_states(problem.network.depth)
    y = task.y_test if task.y_test.ndim == 3 else task.y_test.reshape(len(task.y_test), 1, -1)
    labels = jnp.asarray(np.moveaxis(y, 1, 0)[np.argsort(states)])
    read = prediction.value[:, list(problem.readouts)]
    both = jax.value_and_grad(lambda f: total_loss(problem.loss, f, labels))
    rows = [both(jnp.asarray(row)) if np.isfinite(row).all() else (np.inf, np.inf) for row in read]
    size = task.n_samples / task.n_test
    value = size * np.array([float(value) for value, _ in rows])
    if prediction.stderr is None:
        return Estimate(value, None)
    spread = prediction.stderr[:, list(problem.readouts)]
    error = [
        np.sum(np.abs(slope) * e) if np.isfinite(v) else np.inf for (v, slope), e in zip(rows, spread, strict=True)
    ]
    return Estimate(value, size * np.array(error))
