"""Curves and kernels as the fields of a Solution: their names, dims and shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widefield.theories.dynamics import losses
from widefield.theories.dynamics.curves import Estimate, TrainingCurves
from widefield.theories.dynamics.march import responses
from widefield.theories.dynamics.march.observables import DRAWN
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.request import Request

Dims = tuple[str, ...]
Field = tuple[Dims, Estimate]


def coordinates(problem: Problem, request: Request, named: dict[str, tuple[Dims, np.ndarray]]) -> dict[str, Any]:
    """Time beside step, the kept steps, and the states of readouts, where the ``named`` fields have such dims."""
    dims = {dim for sizes, _ in named.values() for dim in sizes}
    labels = {"at": request.at, "readout": problem.readouts}
    coords: dict[str, Any] = {dim: list(labels[dim.rstrip("_")]) for dim in dims if dim.rstrip("_") in labels}
    if "step" in dims:
        coords["time"] = ("step", problem.training.times)
    return coords


def fields_of(problem: Problem, curves: TrainingCurves, request: Request) -> dict[str, tuple[Dims, np.ndarray]]:
    """Named (dims, array) pairs, with ``<name>_stderr`` beside what was sampled."""
    arrays: dict[str, tuple[Dims, np.ndarray]] = {}
    for name in request.fields:
        field = _make(problem, curves, request, name)
        if field is None:
            continue
        dims, estimate = field
        arrays[name] = (dims, estimate.value)
        if estimate.stderr is not None:
            arrays[f"{name}_stderr"] = (dims, estimate.stderr)
    return arrays


def _make(problem: Problem, curves: TrainingCurves, request: Request, name: str) -> Field | None:
    n = problem.task.n_samples
    if name == "loss":
        return ("step",), curves.loss
    if name in ("prediction", "test_prediction", "state_prediction"):
        return _prediction(problem, curves, name)
    if name == "test_loss":
        return ("step",), test_loss(problem, curves.prediction.each(lambda v: v[:, :, n:]))
    if name == "ntk":
        return None if curves.ntk is None else _ntk(problem, curves.ntk)
    if name in DRAWN:
        return _drawn(problem, request, name, curves.draws[name]) if name in curves.draws else None
    estimate = curves.kernels.get(name)
    if estimate is None:
        return None
    if name == "alignment":
        return ("layer" if problem.by_layer else "state", "step"), estimate.each(np.transpose)
    if name == "ntk_alignment":
        return ("step",), estimate
    return (_response if name in responses.NAMES else _kernel)(problem, request, name, estimate)


def _prediction(problem: Problem, curves: TrainingCurves, name: str) -> Field:
    n, several = problem.task.n_samples, len(problem.readouts) > 1
    samples = slice(n, None) if name == "test_prediction" else slice(0, n)
    axis = "test" if name == "test_prediction" else "sample"
    if name == "state_prediction" or several:
        return ("step", "state", axis, "output"), curves.prediction.each(lambda v: v[:, :, samples])
    state = problem.readouts[0]
    return ("step", axis, "output"), curves.prediction.each(lambda v: v[:, state, samples])


def test_loss(problem: Problem, prediction: Estimate) -> Estimate:
    """The loss of test samples, scaled to as many as were trained on; its error as if outputs erred all together."""
    task = problem.task
    assert task.y_test is not None
    states = task.supervised_states(problem.network.depth)
    y = task.y_test if task.y_test.ndim == 3 else task.y_test.reshape(len(task.y_test), 1, -1)
    labels = jnp.asarray(np.moveaxis(y, 1, 0)[np.argsort(states)])
    read = prediction.value[:, list(problem.readouts)]
    both = jax.value_and_grad(lambda f: losses.total(problem.loss, f, labels))
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


def _channels(problem: Problem, value: np.ndarray, axes: tuple[int, int]) -> tuple[np.ndarray, Dims, Dims]:
    """Split a pair of channel axes into readouts (moved to the front) and outputs (to the end), where there are several."""
    n_read, n_out = len(problem.readouts), problem.shape.n_outputs
    value = np.moveaxis(value, axes, (0, 1))
    rest = value.shape[2:]
    value = value.reshape(n_read, n_out, n_read, n_out, *rest)
    value = np.moveaxis(value, (1, 3), (-2, -1))
    front: Dims = ("readout", "readout_") if n_read > 1 else ()
    back: Dims = ("output", "output_") if n_out > 1 else ()
    if not front:
        value = value[0, 0]
    if not back:
        value = value[..., 0, 0]
    return value, front, back


def _ntk(problem: Problem, ntk: Estimate) -> Field:
    n = problem.task.n_samples
    split = lambda v: _channels(problem, v[..., :n, :n], (1, 2))  # noqa: E731
    _, front, back = split(ntk.value)
    return (*front, "step", "sample", "sample_", *back), ntk.each(lambda v: split(v)[0])


def _kernel(problem: Problem, request: Request, name: str, estimate: Estimate) -> Field:
    times: Dims = ("at", "at_") if request.at_chosen else ("step", "step_")
    simple = problem.by_layer
    first: Dims = ("layer",) if simple else ("state", "state_")
    inner: Dims = (*first, *times, "sample", "sample_")
    same = lambda v, axis: v.take(0, axis=axis + 1) if simple else v  # noqa: E731
    if name == "feature_kernel":
        return inner, estimate.each(lambda v: same(v, 0))
    split = lambda v: _channels(problem, same(v, 2), (0, 1))  # noqa: E731
    _, front, back = split(estimate.value)
    return (*front, *inner, *back), estimate.each(lambda v: split(v)[0])


def _response(problem: Problem, request: Request, name: str, estimate: Estimate) -> Field:
    """(channel, state, state_, at, at_, sample, sample_) with the channel split: readout in front, output behind."""
    times: Dims = ("at", "at_") if request.at_chosen else ("step", "step_")
    simple = problem.by_layer
    first: Dims = ("layer",) if simple else ("state", "state_")
    split = lambda v: _channel(problem, v[:, :, 0] if simple else v, 0)  # noqa: E731
    _, front, back = split(estimate.value)
    return (*front, *first, *times, "sample", "sample_", *back), estimate.each(lambda v: split(v)[0])


def _drawn(problem: Problem, request: Request, name: str, value: np.ndarray) -> Field:
    """Samples (layer or state[, at], path, sample), those of z with their readout in front and output behind."""
    dims: Dims = ("layer" if problem.by_layer else "state", "at", "path", "sample")
    front: Dims = ()
    back: Dims = ()
    if name == "pregradient":
        value, front, back = _channel(problem, np.moveaxis(value, 1, 0), 0)
        lead, tail = len(front), len(back)
        value = np.moveaxis(value, (lead, lead + 1), (lead + 1, lead))
        value = value.swapaxes(-1 - tail, -2 - tail)
    else:
        value = value.swapaxes(0, 1).swapaxes(-1, -2)
    if not request.at_chosen:
        value, dims = value.take(-1, axis=len(front) + 1), (dims[0], *dims[2:])
    return (*front, *dims, *back), Estimate(value, None)


def _channel(problem: Problem, value: np.ndarray, axis: int) -> tuple[np.ndarray, Dims, Dims]:
    """Split one channel axis: readout to the front, output to the end, where there are several."""
    n_read, n_out = len(problem.readouts), problem.shape.n_outputs
    value = np.moveaxis(value, axis, 0)
    value = np.moveaxis(value.reshape(n_read, n_out, *value.shape[1:]), 1, -1)
    front: Dims = ("readout",) if n_read > 1 else ()
    back: Dims = ("output",) if n_out > 1 else ()
    value = value if front else value[0]
    return value if back else value[..., 0], front, back
