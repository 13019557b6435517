r"""Rows of every field, filled as training goes by. Arrays have a leading replicate axis."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from widefield.simulate.dynamics import kernels
from widefield.simulate.dynamics.ensemble import Ensemble
from widefield.simulate.dynamics.problem import Problem
from widefield.simulate.dynamics.training import Arrays, Networks, Pass

Named = dict[str, np.ndarray]


def backward_fields(
    problem: Problem, networks: Networks, now: Pass, pulls: dict[int, np.ndarray], *, needed: bool
) -> tuple[Arrays, kernels.Channels]:
    r"""What moves the weights, and :math:`g/\sqrt{N_k}` per readout and output where needed.

    With one readout and one output the first is Δ times the second; otherwise the sum over readouts and outputs is
    sent back in one go.
    """
    slopes, size = networks.slopes(now.h), math.sqrt(problem.model.gain)
    send = lambda c, o: networks.backward(slopes, {problem.supervised[c]: problem.unit_pull(o)})  # noqa: E731
    if len(problem.channels) == 1:
        back = send(0, 0)
        (delta,) = pulls.values()
        return [delta * e for e in back], {(0, 0): [size * e for e in back]} if needed else {}
    force = networks.backward(slopes, pulls)
    return force, {(c, o): [size * e for e in send(c, o)] for c, o in problem.channels} if needed else {}


def needs_fields(ensemble: Ensemble, arrays: Named, t: int) -> bool:
    """Whether row ``t`` needs backward fields per readout and output."""
    return bool({"ntk", "ntk_alignment"} & set(arrays)) or ("gradient_kernel" in arrays and t in ensemble.at)


def fill_outputs(problem: Problem, arrays: Named, t: int, f: np.ndarray) -> None:
    """Losses and predictions of row ``t``; f is (replicate, read state, sample, output)."""
    n = problem.model.n_train
    where = [problem.read.index(c) for c in problem.supervised]
    shown = f if len(problem.supervised) > 1 else f[:, where[0]]
    rows = {"prediction": shown[..., :n, :], "test_prediction": shown[..., n:, :], "state_prediction": f[..., :n, :]}
    for name in rows.keys() & arrays.keys():
        arrays[name][:, t] = rows[name]
    if "loss" in arrays:
        arrays["loss"][:, t] = problem.loss.value(f[:, where, :n], problem.labels).sum(axis=(1, 2))
    if "test_loss" in arrays and problem.test_labels is not None:
        values = problem.loss.value(f[:, where, n:], problem.test_labels)
        arrays["test_loss"][:, t] = values.sum(axis=(1, 2)) * n / problem.n_test


def fill_kernels(
    ensemble: Ensemble, arrays: Named, t: int, now: Pass, fields: kernels.Channels, memory: kernels.Memory
) -> None:
    """Kernels and pre-activations of row ``t``."""
    problem, model = ensemble.problem, ensemble.problem.model
    phi = [x[:, : model.n_train] for x in now.phi]
    memory.keep(t, phi, fields)
    if "alignment" in arrays:
        arrays["alignment"][:, :, t] = kernels.alignment(phi, problem.labels)
    if {"ntk", "ntk_alignment"} & set(arrays):
        kernel = kernels.tangent_kernel(model, phi, fields, problem.supervised)
    if "ntk_alignment" in arrays:
        arrays["ntk_alignment"][:, t] = kernels.tangent_alignment(kernel, problem.labels)
    if "ntk" in arrays:
        row = np.moveaxis(arrays["ntk"], ensemble.layout["ntk"][0].index("step") + 1, 0)[t]
        row[...] = kernel.reshape(row.shape)
    if "preactivation" in arrays:
        _fill_neurons(ensemble, arrays["preactivation"], t, [x[:, : model.n_train] for x in now.h])


def fill_pregradients(ensemble: Ensemble, kept: np.ndarray, t: int, networks: Networks, now: Pass) -> None:
    """z of every readout and output, γ0 N ∂f/∂φ, where row ``t`` is kept."""
    problem, model = ensemble.problem, ensemble.problem.model
    if not len(_places(ensemble, t)):
        return
    view = kept if model.n_outputs > 1 else kept[..., None]
    view = view if len(problem.supervised) > 1 else view[:, None]
    slopes = networks.slopes(now.h)
    for c, o in problem.channels:
        pulls = {problem.supervised[c]: problem.unit_pull(o)}
        z = networks.before_slopes(networks.backward(slopes, pulls), pulls)
        _fill_neurons(ensemble, view[:, c, ..., o], t, [model.richness * model.sizes[-1] * x for x in z])


def _fill_neurons(ensemble: Ensemble, kept: np.ndarray, t: int, h: Arrays) -> None:
    """(replicate, state[, at], neuron, sample) after the last update, or at the chosen steps."""
    for i in _places(ensemble, t):
        kept[:, :, i] = np.stack([x.swapaxes(1, 2) for x in h], axis=1)


def _places(ensemble: Ensemble, t: int) -> Sequence[Any]:
    """Where row ``t`` of what neurons have is kept, if at all."""
    named = "at" in ensemble.layout["preactivation"][0]
    return [int(i) for i in np.flatnonzero(ensemble.at == t)] if named else [...] * (t + 1 == ensemble.problem.n_rows)


def form_kernels(problem: Problem, arrays: Named, memory: kernels.Memory) -> None:
    """Two-time kernels from what was kept."""
    cross = not problem.by_layer
    if memory.features is not None:
        arrays["feature_kernel"][...] = kernels.feature_kernel(problem.model, memory.features, cross=cross)
    if memory.gradients is not None:
        kernel = kernels.gradient_kernel(memory.gradients, cross=cross)
        arrays["gradient_kernel"][...] = kernel.reshape(arrays["gradient_kernel"].shape)


def blank_diverged(ensemble: Ensemble, arrays: Named, lasted: np.ndarray) -> None:
    """Infinite entries from the step on at which a network diverged."""
    n_rows = ensemble.problem.n_rows
    for r in np.flatnonzero(lasted < n_rows):
        late = {"step": np.arange(n_rows) >= lasted[r], "at": ensemble.at >= lasted[r]}
        for name, array in arrays.items():
            dims = ensemble.layout[name][0]
            timed = [i for i, dim in enumerate(dims) if dim.rstrip("_") in late]
            for axis in timed:
                np.moveaxis(array[r], axis, 0)[late[dims[axis].rstrip("_")]] = np.inf
            if not timed:
                array[r] = np.inf
