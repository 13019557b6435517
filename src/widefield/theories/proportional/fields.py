"""Curves and matrices of a march as the fields of a Solution."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from widefield.theories.proportional.march.causal import State
from widefield.theories.proportional.march.residual_layers import Stack
from widefield.theories.proportional.problem import Problem
from widefield.theories.proportional.training_curves import CURVES, TrainingCurves
from widefield.theories.proportional.verification import Time, by_source, congruent

PAIR = ("step", "step_")
LAYERS = ("layer", *PAIR)
RESPONSES = ("feature_response", "gradient_response")
DIMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*CURVES, "kernel"), ("step",)),
    **dict.fromkeys(("error_correlation", "memory_kernel"), PAIR),
    **dict.fromkeys(("feature_correlation", "gradient_correlation", *RESPONSES), LAYERS),
}


def available(problem: Problem, *, infinite_depth: bool = False) -> dict[str, int]:
    """Bytes of every quantity that can be returned.

    Responses to one step vanish along a flow, layers cannot be counted at infinite depth, and without richness the
    feature response is infinite.
    """
    lengths = {"step": problem.n_rows, "step_": problem.n_rows, "layer": problem.network.depth}
    without = {"feature_response"} if problem.training.richness == 0 else set()
    without |= set(RESPONSES) if problem.training.flow else set()
    without |= {name for name, dims in DIMS.items() if infinite_depth and "layer" in dims}
    names = [name for name in DIMS if name not in without]
    factor = {name: len(problem.overlap) ** (1 if name in CURVES else 2) for name in names}
    return {name: 8 * factor[name] * int(np.prod([lengths[dim] for dim in DIMS[name]])) for name in names}


def arrays_of(problem: Problem, training: TrainingCurves, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Arrays by name, with the channel behind (twice except in losses), infinite from the step of a divergence on."""
    return {name: _array(problem, training, name) for name in names}


def every(arrays: dict[str, np.ndarray], stride: int) -> dict[str, np.ndarray]:
    """The rows (and columns) at every ``stride``-th step."""
    cut = {name: tuple(slice(None, None, stride if "step" in dim else 1) for dim in DIMS[name]) for name in arrays}
    return {name: value[cut[name]] for name, value in arrays.items()}


def labeled(arrays: dict[str, np.ndarray], dtype: str) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Named (dims, array) pairs; several channels add output (and output_) behind."""
    fields: dict[str, tuple[tuple[str, ...], Any]] = {}
    for name, value in arrays.items():
        channels = ("output",) if name in CURVES else ("output", "output_")
        several = value.shape[-1] > 1
        dims = (*DIMS[name], *channels) if several else DIMS[name]
        fields[name] = (dims, np.asarray(value.reshape(value.shape[: len(dims)]), dtype))
    return fields


def _array(problem: Problem, training: TrainingCurves, name: str) -> np.ndarray:
    if name in CURVES:
        return training.curves[name]
    return training.kernel if name == "kernel" else _two_times(problem, training, name)


def _two_times(problem: Problem, training: TrainingCurves, name: str) -> np.ndarray:
    """(…, step, step_, channel, channel_)."""
    n, c = problem.n_rows, len(problem.overlap)
    time, inputs = Time(problem, n * c), training.state.inputs
    cut = lambda matrix: np.array(matrix)[: n * c, : n * c]  # noqa: E731
    if name == "error_correlation":
        value = cut(inputs.test) - problem.teacher.label_noise * time.ones @ time.ones.T
    elif name == "memory_kernel":
        value = cut(inputs.memory) / np.repeat(problem.rates, c)[: n * c]
    else:
        layers = enumerate(_layers(training.state))
        value = np.stack([_of_layer(time, problem, cut, parts, l, name) for l, parts in layers])
    value = value.reshape(*value.shape[:-2], n, c, n, c).swapaxes(-3, -2)
    if training.diverged_at is not None:
        value[..., training.diverged_at :, :, :, :] = np.inf
        if "correlation" in name:
            value[..., :, training.diverged_at :, :, :] = np.inf
    return value


def _of_layer(time: Time, problem: Problem, cut, parts, layer: int, name: str) -> np.ndarray:
    P, Q = by_source(parts[0]), by_source(parts[1])
    feature, gradient = parts[2:]
    if name == "feature_correlation":
        return cut(feature)
    if name == "gradient_correlation":
        return congruent(time.gradient, cut(gradient))
    if name == "gradient_response":
        return (problem.branch if layer else 1.0) * time.gradient(cut(Q[:, 0]))
    response = cut(P[:, 1])
    later = np.where(time.step > 0, response, 0.0) / problem.training.richness
    first = response[:, : time.channels] - later @ time.ones
    full = later + np.concatenate([first, np.zeros((time.n, time.n - time.channels))], axis=1)
    return (problem.branch if layer + 1 < problem.network.depth else 1.0) * full


def _layers(state: State) -> list[tuple]:
    layers = state.layers
    if isinstance(layers, Stack):
        stacked = (layers.pair.forward, layers.pair.backward, layers.feature, layers.gradient)
        return [tuple(array[l] for array in stacked) for l in range(len(layers.feature))]
    return [(layer.pair.forward, layer.pair.backward, layer.feature, layer.gradient) for layer in layers]
