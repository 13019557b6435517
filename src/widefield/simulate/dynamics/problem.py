r"""What `simulate.dynamics` is asked, checked: networks, labels, training, the fields they give and what these take."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from widefield.answer import boundary
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.training import Training
from widefield.simulate.dynamics.losses import Loss, loss_of
from widefield.simulate.dynamics.training import Model, Networks, Step
from widefield.simulate.networks.call import (
    Layout,
    Names,
    Shape,
    check_shared_inputs,
    choose,
    joined,
    n_bytes,
    peak_bytes,
    refuse_memory,
    require,
)
from widefield.simulate.networks.cores import in_flight
from widefield.simulate.networks.trained import FLOW_COPIES
from widefield.simulate.networks.weights import coordinates

NAME = "simulate.dynamics"
LIGHT = ("loss", "test_loss", "prediction", "test_prediction", "state_prediction")
ON_REQUEST = ("forward_response", "backward_response")
BATCH_NUMBERS = 2**17  # parameters that train together: they stay in the processor's cache
DEFAULT_BYTES = 2**27  # what kernels and pre-activations may take unless asked for by name
FLOP, PASS, NORMAL = 5e-11, 1e-9, 1.2e-8  # seconds per operation, per parameter and update, per random number
CALLS = 2e-4  # seconds of Python per state


@dataclass(frozen=True)
class Problem:
    """Labels are (readout, sample, output), readouts in the order of states; ``read`` are all states that have outputs.

    ``initial_scales`` has one entry per weight matrix: input weights, hidden weights and readout. Two-time kernels are
    kept at the steps ``chosen``, which are a dim of their own, or at all.
    """

    model: Model
    training: Training
    initial_scales: tuple[float, ...]
    supervised: tuple[int, ...]
    read: tuple[int, ...]
    labels: np.ndarray
    test_labels: np.ndarray | None
    loss: Loss
    chosen: np.ndarray | None
    width: int
    replicates: int
    seed: int

    @property
    def channels(self) -> list[tuple[int, int]]:
        """(readout, output) pairs: each has backward fields of its own."""
        return [(c, o) for c in range(len(self.supervised)) for o in range(self.model.n_outputs)]

    @property
    def n_rows(self) -> int:
        """One row before each update and one after the last."""
        return self.training.steps + 1

    @cached_property
    def at(self) -> np.ndarray:
        """The steps at which two-time kernels are kept, in order."""
        return np.arange(self.n_rows) if self.chosen is None else self.chosen

    @property
    def n_at(self) -> int:
        """How many they are."""
        return self.n_rows if self.chosen is None else len(self.chosen)

    @property
    def n_test(self) -> int:
        """Number of test inputs."""
        return self.model.inputs.shape[1] - self.model.n_train

    @property
    def by_layer(self) -> bool:
        """Kernels of each layer with itself: a plain deep network, or widths that allow no others."""
        plain = self.model.net.kind == "DNN" and len(self.model.inputs) == 1 and len(self.supervised) == 1
        return plain or not self.equal_widths

    @property
    def equal_widths(self) -> bool:
        """Whether averages over the neurons of two states exist."""
        return len(set(self.model.sizes)) == 1

    @property
    def batch(self) -> int:
        """Networks that train together."""
        return batch_of(self.replicates, self.model)

    def seconds(self, wanted: Names) -> float:
        """A rough estimate of one training of all networks."""
        model, noise = self.model, NORMAL if self.training.temperature else 0.0
        n_uses = len(model.sizes) if model.net.weights == "tied" else 1
        per_row = model.n_parameters * (6 * FLOP * model.inputs.shape[1] * n_uses + PASS + noise)
        n_runs = 1
        if {*ON_REQUEST} & {*wanted}:
            n_runs += self.n_at * len(model.sizes) * model.n_train * (1 + len(self.channels))
        n_batches = -(-self.replicates // self.batch)
        return n_runs * self.n_rows * (self.replicates * per_row + n_batches * len(model.sizes) * CALLS)

    def pulls(self, f: np.ndarray) -> dict[int, np.ndarray]:
        """Δ of the training inputs (replicate, sample, output) at each supervised state."""
        where = [self.read.index(c) for c in self.supervised]
        delta = self.loss.pull(f[:, where, : self.model.n_train], self.labels)
        return {c: delta[:, i] for i, c in enumerate(self.supervised)}

    def unit_pull(self, channel: tuple[int, int]) -> dict[int, np.ndarray]:
        """Δ = 1 of every training input at one readout and output, (sample, output)."""
        c, o = channel
        return {self.supervised[c]: np.tile(np.eye(self.model.n_outputs)[o], (self.model.n_train, 1))}

    def step(self, t: int, divisor: int = 1) -> Step:
        """Update number ``t``, or one of the ``divisor`` smaller ones that take its place."""
        training = self.training
        rate = float(training.rates[t]) / divisor
        share = None if training.momentum_time is None else rate / training.momentum_time
        return Step(rate, 1 - rate * training.weight_decay, share, math.sqrt(2 * rate * training.temperature))

    def descend(self, networks: Networks, origin: np.ndarray | float, step: Step) -> None:
        """One update of ``networks``, whose outputs count from ``origin``."""
        now = networks.forward()
        pulls = self.pulls(networks.outputs(now.phi, self.read) - origin)
        networks.update(now.phi, networks.backward(networks.slopes(now.h), pulls), pulls, step)

    @cached_property
    def layout(self) -> Layout:
        """Dims and shapes of every field, the most wanted first."""
        model, several, step = self.model, len(self.supervised) > 1, (("step",), (self.n_rows,))
        P, K, O, C, T = model.n_train, len(model.sizes), model.n_outputs, len(self.supervised), self.n_at
        read = joined(step, _if(several, ("state",), (K,)))
        fields: Layout = {"loss": step}
        if self.test_labels is not None:
            fields["test_loss"] = step
        fields["prediction"] = joined(read, (("sample", "output"), (P, O)))
        if self.n_test:
            fields["test_prediction"] = joined(read, (("test", "output"), (self.n_test, O)))
        if self.equal_widths and K > 1:
            fields["state_prediction"] = joined(step, (("state", "sample", "output"), (K, P, O)))
        layer = (("layer",) if self.by_layer else ("state",), (K,))
        layers = layer if self.by_layer else (("state", "state_"), (K, K))
        readout, readouts = _if(several, ("readout",), (C,)), _if(several, ("readout", "readout_"), (C, C))
        output, outputs = _if(O > 1, ("output",), (O,)), _if(O > 1, ("output", "output_"), (O, O))
        pair, times = (
            (("sample", "sample_"), (P, P)),
            (("step", "step_") if self.chosen is None else ("at", "at_"), (T, T)),
        )
        fields["ntk"] = joined(readouts, step, pair, outputs)
        fields["ntk_alignment"] = step
        fields["alignment"] = joined(layer, step)
        if self.equal_widths:
            neurons = (("neuron", "sample"), (model.sizes[0], P))
            fields["preactivation"] = joined(layer, _if(self.chosen is not None, ("at",), (T,)), neurons)
            fields["pregradient"] = joined(readout, fields["preactivation"], output)
        fields["feature_kernel"] = joined(layers, times, pair)
        fields["gradient_kernel"] = joined(readouts, layers, times, pair, outputs)
        if not self.training.flow:  # to a source at one step: there is none in a flow
            fields |= dict.fromkeys(ON_REQUEST, joined(readout, layers, times, pair, output))
        return fields

    def choose(self, quantities: Iterable[str] | None) -> tuple[Names, Names]:
        """The asked fields, or all that are small; refuses what does not fit in memory."""
        model, copies = self.model, FLOW_COPIES if self.training.flow else 1
        room = {name: self._kept_bytes(model, self.replicates, (name,)) for name in self.layout}
        sizes = {name: copies * n + room[name] for name, n in n_bytes(self.layout, self.replicates).items()}
        if quantities is not None:
            wanted, left_out = choose(quantities, sizes)
        else:
            numbers = model.n_parameters * (1 if self.training.momentum_time is None else 2)
            need = 8 * in_flight(self.replicates, self.batch) * numbers
            light = {name: size for name, size in sizes.items() if name in LIGHT}
            heavy = {name: size for name, size in sizes.items() if name not in (*LIGHT, *ON_REQUEST)}
            kept, lost = choose(None, light, need)
            budget = max(0, min(DEFAULT_BYTES, boundary.memory_budget() - need))
            more, left = boundary.choose_quantities(None, heavy, budget)
            wanted, left_out = (*kept, *more), (*lost, *left)

        def need_of(width: int, replicates: int) -> int:
            smaller = replace(model, sizes=model.net.sizes(width))
            working = self._kept_bytes(smaller, replicates, wanted) + self._working_bytes(smaller, replicates)
            return peak_bytes(self.layout, wanted, replicates, working, copies)

        what = (
            f"{self.n_rows} rows, {self.batch} networks at a time of {model.n_parameters} weights: {', '.join(wanted)}"
        )
        refuse_memory(NAME, need_of, {"width": self.width, "replicates": self.replicates}, what)
        return wanted, left_out

    def _kept_bytes(self, model: Model, replicates: int, names: Sequence[str]) -> int:
        """What a batch keeps on the way to two-time kernels, and these once more."""
        batch, total = in_flight(replicates, batch_of(replicates, model)), 0
        for name, fields in (("feature_kernel", 1), ("gradient_kernel", len(self.channels))):
            if name in names:
                total += fields * self.n_at * model.n_train * sum(model.sizes) + math.prod(self.layout[name][1])
        return 8 * batch * total

    def _working_bytes(self, model: Model, replicates: int) -> int:
        """What a batch takes to train: parameters, a pass forward and backward, tangent kernels."""
        velocities = 0 if self.training.momentum_time is None else 2
        n_all, n = model.inputs.shape[1], model.n_train
        passed = (2 * n_all + (3 + len(self.channels)) * n) * sum(model.sizes) + 3 * n_all * max(model.sizes)
        kernels = 3 * (len(self.channels) * n) ** 2
        each = (1 + velocities) * model.n_parameters + passed + kernels
        return 8 * in_flight(replicates, batch_of(replicates, model)) * each


def batch_of(replicates: int, model: Model) -> int:
    """Networks that train together."""
    return max(1, min(replicates, BATCH_NUMBERS // model.n_parameters))


def problem_of(
    net: Network, task: Task, training: Training, *, width: int, at: Any, replicates: int, seed: int
) -> Problem:
    """The networks, their labels and their training, once they are known to make sense together."""
    _check_training(training)
    if net.readout_variance is None:
        raise ValueError(f"`readout_variance` must be a number in {NAME}: the outputs are read out by trained weights.")
    require(NAME, net, readout_bias_variance=0)
    sizes, labels = net.sizes(width), task.labels()
    supervised = task.supervised_states(net.depth)
    x = task.sequences(net.depth, test=True)
    check_shared_inputs(net, sizes, x.shape[1])
    equal_widths = len(set(sizes)) == 1
    if len(supervised) > 1 and not equal_widths:
        raise ValueError(f"`widths` must all be equal where several states share one readout, got sizes {sizes}.")
    if sizes[supervised[0]] != sizes[-1]:
        raise ValueError(
            f"`widths` must give the supervised state {supervised[0]} the width of the last, got sizes {sizes}."
        )
    given, y_test = {"y": labels}, task.y_test
    if y_test is not None:
        given["y_test"] = y_test if y_test.ndim == 3 else y_test.reshape(len(y_test), 1, -1)
    by_readout = {name: np.swapaxes(y, 0, 1)[np.argsort(supervised)] for name, y in given.items()}
    return Problem(
        model=Model(net, sizes, coordinates(x, reduce=True), task.n_samples, labels.shape[-1], training.richness),
        training=training,
        initial_scales=_scales_of(net, training.initial_scale),
        supervised=tuple(sorted(supervised)),
        read=tuple(range(net.depth)) if equal_widths else supervised,
        labels=by_readout["y"],
        test_labels=by_readout.get("y_test"),
        loss=loss_of(training.loss, given),
        chosen=None if at is None else _steps_of(at, training.steps),
        width=width,
        replicates=replicates,
        seed=seed,
    )


def _check_training(training: Training) -> None:
    if not isinstance(training, Training):
        raise ValueError(f"`training` must be a widefield.Training, got {type(training).__name__}.")
    training.refuse(NAME, "batches")
    checks.nonnegative("richness", training.richness, positive=True)
    tau = training.momentum_time
    if tau is not None and training.rates.max() > tau:
        raise ValueError(f"`momentum_time` must be at least the rate {training.rates.max():g}, got {tau!r}.")
    if training.flow and training.temperature:
        raise ValueError("`flow` extrapolates smooth curves: use a small rate with `temperature`.")


def _scales_of(net: Network, scale: float | Sequence[float]) -> tuple[float, ...]:
    """One scale per weight matrix: input weights, hidden weights (one where tied) and readout."""
    n_hidden = net.depth - 1 if net.weights == "untied" else min(net.depth - 1, 1)
    if not isinstance(scale, Sequence):
        return (scale,) * (n_hidden + 2)
    if len(scale) != n_hidden + 2 or net.bias_variances.any():
        allowed = "one number with biases" if net.bias_variances.any() else f"a number or {n_hidden + 2} of them"
        raise ValueError(f"`initial_scale` must be {allowed} (input, hidden, readout) in {NAME}, got {scale!r}.")
    return tuple(scale)


def _steps_of(at: Any, steps: int) -> np.ndarray:
    """Chosen steps in order, negative ones from the end."""
    try:
        given = np.zeros(0) if isinstance(at, np.ma.MaskedArray) else np.atleast_1d(np.asarray(at))
    except (ValueError, TypeError):  # ragged, or a tracer
        given = np.zeros(0)
    whole = given.ndim == 1 and given.size > 0 and given.dtype.kind in "iu"
    if not whole or (given < -steps - 1).any() or (given > steps).any():
        raise ValueError(f"`at` must be steps from 0 to {steps}, negative ones from the end, got {at!r}.")
    return np.unique(given % (steps + 1))


def _if(there: bool, dims: tuple[str, ...], shape: tuple[int, ...]) -> Shape:
    return (dims, shape) if there else ((), ())
