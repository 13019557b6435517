"""Curves and kernels as the fields of a Solution: their names, dims, sizes and shapes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.boundary import choose_quantities, memory_budget
from widefield.question import checks
from widefield.theories.dynamics import losses, responses
from widefield.theories.dynamics.answer import Answer, Estimate
from widefield.theories.dynamics.observables import DRAWN, is_simple
from widefield.theories.dynamics.problem import Problem

KERNELS = ("feature_kernel", "gradient_kernel")
TWO_TIMES = (*KERNELS, *responses.NAMES)
Dims = tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Which fields to make and at which steps kernels are kept."""

    wanted: tuple[str, ...]
    left_out: tuple[str, ...]
    at: tuple[int, ...]
    chosen: bool  # whether the user chose the steps


def plan(problem: Problem, method: str, flow: bool, at: Any, quantities: Iterable[str] | None, n_paths: int) -> Plan:
    """Names within the memory that is free; kernels at all steps unless ``at`` chooses some."""
    n_rows, chosen = len(problem.rates), at is not None
    curves_only = flow or method == "lazy"
    if chosen and curves_only:
        raise ValueError("`at` chooses steps of two-time kernels, which flow and method='lazy' do not have.")
    steps = _steps(at, n_rows)
    if isinstance(quantities, Iterable):
        quantities = (quantities,) if isinstance(quantities, str) else tuple(quantities)
    asked = set(quantities) if isinstance(quantities, tuple) else set()
    sizes = _curve_sizes(problem, method in ("lazy", "perturbative"))
    if not curves_only:
        sizes |= _path_sizes(problem, len(steps), n_paths, asked, chosen)
    if method == "perturbative":
        sizes = {name: size for name, size in sizes.items() if name not in (*DRAWN, *responses.NAMES)}
    wanted, left_out = choose_quantities(quantities, sizes, budget=memory_budget() // 2)
    if quantities is None:
        left_out = (
            *left_out,
            *(name for name in (*KERNELS, *DRAWN, "alignment", "ntk_alignment") if name not in sizes),
        )
    keeps = set(wanted) & {*TWO_TIMES, *DRAWN}
    if keeps <= set(DRAWN) and not chosen:
        steps = (n_rows - 1,)
    return Plan(wanted, left_out, steps if keeps else (), chosen)


def _curve_sizes(problem: Problem, static: bool) -> dict[str, int]:
    """Bytes of what has one entry per step, the most wanted first."""
    n_rows, n, depth = len(problem.rates), problem.task.n_samples, problem.network.depth
    channels = len(problem.readouts) * problem.shape.n_outputs
    curve = 8 * n_rows * (n + problem.task.n_test) * depth * problem.shape.n_outputs
    sizes = {"loss": 8 * n_rows, "prediction": curve}
    if problem.task.n_test:
        sizes["test_prediction"] = curve
    if problem.task.y_test is not None:
        sizes["test_loss"] = 8 * n_rows
    if depth > 1 and problem.responses and not static:
        sizes["state_prediction"] = curve
    sizes["ntk"] = 8 * n_rows * channels**2 * n**2
    return sizes


def _path_sizes(problem: Problem, n_steps: int, n_paths: int, asked: set[str], chosen: bool) -> dict[str, int]:
    """Bytes of what is made of paths. Responses are made on request alone."""
    n, depth, simple = problem.task.n_samples, problem.network.depth, is_simple(problem)
    channels = len(problem.readouts) * problem.shape.n_outputs
    two_times = 8 * depth * (1 if simple else depth) * n_steps**2 * n**2 * (2 if problem.exact else 12)  # of 8 batches
    samples = 8 * n_steps * depth * (n + problem.task.n_test) * n_paths * (2 + 2 * channels)
    drawn = 8 * depth * n * n_paths * 8 * (n_steps if chosen else 1)
    sizes = {"alignment": 8 * len(problem.rates) * depth, "ntk_alignment": 8 * len(problem.rates) * channels**2 * n**2}
    sizes |= {"feature_kernel": two_times + samples, "gradient_kernel": channels**2 * two_times + samples}
    sizes |= {"preactivation": drawn, "pregradient": drawn * channels}
    if asked & set(responses.NAMES):
        responses.refuse(problem)
        sizes |= responses.sizes(problem, simple, n_steps, n_paths)
    return sizes


def _steps(at: Any, n_rows: int) -> tuple[int, ...]:
    if at is None:
        return tuple(range(n_rows))
    checks.reject_tracers(at=at)
    steps = np.atleast_1d(np.asarray(at))
    if (
        steps.ndim != 1
        or steps.dtype.kind not in "iu"
        or not len(steps)
        or steps.min() < -n_rows
        or steps.max() >= n_rows
    ):
        raise ValueError(f"`at` must be steps between 0 and {n_rows - 1}, got {at!r}.")
    return tuple(sorted({int(step) % n_rows for step in steps}))


def coordinates(problem: Problem, planned: Plan, named: dict[str, tuple[Dims, np.ndarray]]) -> dict[str, Any]:
    """Time beside step, the kept steps, and the states of readouts, where the ``named`` fields have such dims."""
    dims = {dim for sizes, _ in named.values() for dim in sizes}
    labels = {"at": planned.at, "readout": problem.readouts}
    found: dict[str, Any] = {dim: list(labels[dim.rstrip("_")]) for dim in dims if dim.rstrip("_") in labels}
    if "step" in dims:
        found["time"] = ("step", np.concatenate([[0.0], np.cumsum(problem.rates[:-1])]))
    return found


def fields_of(problem: Problem, answer: Answer, planned: Plan) -> dict[str, tuple[Dims, np.ndarray]]:
    """Named (dims, array) pairs, with ``<name>_stderr`` beside what was sampled."""
    found: dict[str, tuple[Dims, np.ndarray]] = {}
    for name in planned.wanted:
        made = _make(problem, answer, planned, name)
        if made is None:
            continue
        dims, estimate = made
        found[name] = (dims, estimate.value)
        if estimate.stderr is not None:
            found[f"{name}_stderr"] = (dims, estimate.stderr)
    return found


def _make(problem: Problem, answer: Answer, planned: Plan, name: str) -> tuple[Dims, Estimate] | None:
    n = problem.task.n_samples
    if name == "loss":
        return ("step",), answer.loss
    if name in ("prediction", "test_prediction", "state_prediction"):
        return _prediction(problem, answer, name)
    if name == "test_loss":
        return ("step",), test_loss(problem, _each(answer.prediction, lambda v: v[:, :, n:]))
    if name == "ntk":
        return None if answer.ntk is None else _ntk(problem, answer.ntk)
    if name in DRAWN:
        return _drawn(problem, planned, name, answer.draws[name]) if name in answer.draws else None
    estimate = answer.kernels.get(name)
    if estimate is None:
        return None
    if name == "alignment":
        return ("layer" if is_simple(problem) else "state", "step"), _each(estimate, np.transpose)
    if name == "ntk_alignment":
        return ("step",), estimate
    return (_response if name in responses.NAMES else _kernel)(problem, planned, name, estimate)


def _each(estimate: Estimate, change) -> Estimate:
    return Estimate(change(estimate.value), None if estimate.stderr is None else change(estimate.stderr))


def _prediction(problem: Problem, answer: Answer, name: str) -> tuple[Dims, Estimate]:
    n, several = problem.task.n_samples, len(problem.readouts) > 1
    samples = slice(n, None) if name == "test_prediction" else slice(0, n)
    axis = "test" if name == "test_prediction" else "sample"
    if name == "state_prediction" or several:
        return ("step", "state", axis, "output"), _each(answer.prediction, lambda v: v[:, :, samples])
    state = problem.readouts[0]
    return ("step", axis, "output"), _each(answer.prediction, lambda v: v[:, state, samples])


def test_loss(problem: Problem, prediction: Estimate) -> Estimate:
    """The loss of held-out samples, scaled to as many as were trained on; its error as if outputs erred all together."""
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


def _ntk(problem: Problem, ntk: Estimate) -> tuple[Dims, Estimate]:
    n = problem.task.n_samples
    split = lambda v: _channels(problem, v[..., :n, :n], (1, 2))  # noqa: E731
    _, front, back = split(ntk.value)
    return (*front, "step", "sample", "sample_", *back), _each(ntk, lambda v: split(v)[0])


def _kernel(problem: Problem, planned: Plan, name: str, estimate: Estimate) -> tuple[Dims, Estimate]:
    times: Dims = ("at", "at_") if planned.chosen else ("step", "step_")
    simple = is_simple(problem)
    first: Dims = ("layer",) if simple else ("state", "state_")
    inner: Dims = (*first, *times, "sample", "sample_")
    same = lambda v, axis: v.take(0, axis=axis + 1) if simple else v  # noqa: E731
    if name == "feature_kernel":
        return inner, _each(estimate, lambda v: same(v, 0))
    split = lambda v: _channels(problem, same(v, 2), (0, 1))  # noqa: E731
    _, front, back = split(estimate.value)
    return (*front, *inner, *back), _each(estimate, lambda v: split(v)[0])


def _response(problem: Problem, planned: Plan, name: str, estimate: Estimate) -> tuple[Dims, Estimate]:
    """(channel, state, state_, at, at_, sample, sample_) with the channel split: readout in front, output behind."""
    times: Dims = ("at", "at_") if planned.chosen else ("step", "step_")
    simple = is_simple(problem)
    first: Dims = ("layer",) if simple else ("state", "state_")
    split = lambda v: _channel(problem, v[:, :, 0] if simple else v, 0)  # noqa: E731
    _, front, back = split(estimate.value)
    return (*front, *first, *times, "sample", "sample_", *back), _each(estimate, lambda v: split(v)[0])


def _drawn(problem: Problem, planned: Plan, name: str, value: np.ndarray) -> tuple[Dims, Estimate]:
    """Samples (layer or state[, at], path, sample), those of z with their readout in front and output behind."""
    dims: Dims = ("layer" if is_simple(problem) else "state", "at", "path", "sample")
    front: Dims = ()
    back: Dims = ()
    if name == "pregradient":
        value, front, back = _channel(problem, np.moveaxis(value, 1, 0), 0)
        lead, tail = len(front), len(back)
        value = np.moveaxis(value, (lead, lead + 1), (lead + 1, lead))
        value = value.swapaxes(-1 - tail, -2 - tail)
    else:
        value = value.swapaxes(0, 1).swapaxes(-1, -2)
    if not planned.chosen:
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
