"""Curves and matrices of a march as the fields of a Solution."""

from typing import Any

import numpy as np

from widefield.theories.proportional.problem import Problem
from widefield.theories.proportional.residual import Stack
from widefield.theories.proportional.run import CURVES, Answer
from widefield.theories.proportional.verify import Time, by_source, congruent

PAIR = ("step", "step_")
LAYERS = ("layer", *PAIR)
DIMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*CURVES, "kernel"), ("step",)),
    **dict.fromkeys(("error_correlation", "memory_kernel"), PAIR),
    **dict.fromkeys(("feature_correlation", "gradient_correlation", "feature_response", "gradient_response"), LAYERS),
}


def available(problem: Problem, curves_only: bool) -> dict[str, int]:
    """Bytes of every quantity that can be returned."""
    lengths = {"step": problem.n_rows, "step_": problem.n_rows, "layer": problem.depth}
    names = (*CURVES, "kernel") if curves_only else tuple(DIMS)
    if problem.richness == 0:
        names = tuple(name for name in names if name != "feature_response")  # it grows as 1/richness
    factor = {name: len(problem.overlap) ** (1 if name in CURVES else 2) for name in names}
    return {name: 8 * factor[name] * int(np.prod([lengths[dim] for dim in DIMS[name]])) for name in names}


def fields_of(problem: Problem, answer: Answer, names: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Named (dims, array) pairs; several channels add output (and output_) behind."""
    several = len(problem.overlap) > 1
    fields: dict[str, tuple[tuple[str, ...], Any]] = {}
    for name in names:
        channels: tuple[str, ...] = ("output",) if name in CURVES else ("output", "output_")
        if name in CURVES:
            value = answer.curves[name]
        else:
            value = answer.kernel if name == "kernel" else _two_times(problem, answer, name)
        fields[name] = (
            ((*DIMS[name], *channels), value) if several else (DIMS[name], np.squeeze(value, _last(channels)))
        )
    return fields


def _last(channels: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(range(-len(channels), 0))


def _two_times(problem: Problem, answer: Answer, name: str) -> np.ndarray:
    """(…, step, step_, channel, channel_), infinite from the step of a divergence on."""
    assert answer.state is not None
    n, c = problem.n_rows, len(problem.overlap)
    time = Time(problem, n * c)
    cut = lambda matrix: np.array(matrix)[: n * c, : n * c]  # noqa: E731
    if name == "error_correlation":
        value = cut(answer.state.inputs.test) - problem.label_noise * time.ones @ time.ones.T
    elif name == "memory_kernel":
        value = cut(answer.state.inputs.memory) / np.repeat(problem.rates, c)[: n * c]
    else:
        value = np.stack(
            [_of_layer(time, problem, cut, parts, l, name) for l, parts in enumerate(_layers(answer.state))]
        )
    stop = answer.diagnostics.get("diverged_at_step", n)
    value = value.reshape(*value.shape[:-2], n, c, n, c).swapaxes(-3, -2)
    value[..., stop:, :, :, :] = np.inf
    if "correlation" in name:
        value[..., :, stop:, :, :] = np.inf
    return value


def _of_layer(time: Time, problem: Problem, cut, parts, layer: int, name: str) -> np.ndarray:
    P, Q = by_source(parts[0]), by_source(parts[1])
    feature, gradient = parts[2:]
    inner = 1.0 if problem.branch is None else problem.branch
    if name == "feature_correlation":
        return cut(feature)
    if name == "gradient_correlation":
        return congruent(time.gradient, cut(gradient))
    if name == "gradient_response":
        return (inner if layer else 1.0) * time.gradient(cut(Q[:, 0]))
    response = cut(P[:, 1])
    later = np.where(time.step > 0, response, 0.0) / problem.richness
    own = response[:, : time.channels] - later @ time.ones
    full = later + np.concatenate([own, np.zeros((time.n, time.n - time.channels))], axis=1)
    return (inner if layer + 1 < problem.depth else 1.0) * full


def _layers(state) -> list[tuple]:
    layers = state.layers
    if isinstance(layers, Stack):
        stacked = (layers.pair.forward, layers.pair.backward, layers.feature, layers.gradient)
        return [tuple(array[l] for array in stacked) for l in range(len(layers.feature))]
    return [(layer.pair.forward, layer.pair.backward, layer.feature, layer.gradient) for layer in layers]
