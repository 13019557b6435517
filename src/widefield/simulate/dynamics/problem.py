r"""What `simulate.dynamics` is asked, checked: networks, labels, training, the fields they give and what these take."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from widefield.simulate.networks.call import Layout, Names, Shape, check_shared_inputs, joined, n_bytes, require
from widefield.simulate.networks.trained import FLOW_COPIES
from widefield.simulate.networks.weights import coordinates

NAME = "simulate.dynamics"
LIGHT = ("loss", "test_loss", "prediction", "test_prediction", "state_prediction")
ON_REQUEST = ("forward_response", "backward_response")
BATCH_NUMBERS = 2**17  # parameters that train together: they stay in the processor's cache
DEFAULT_BYTES = 2**27  # what kernels and pre-activations may take unless asked for by name
FLOP, PASS, NORMAL = 5e-11, 1e-9, 1.2e-8  # seconds per operation, per parameter and update, per random number


@dataclass(frozen=True)
class Problem:
    """Labels are (readout, sample, output), readouts in the order of states; ``read`` are all states that have outputs.

    ``initial_scales`` has one entry per weight matrix: input weights, hidden weights and readout. ``at`` are the steps at
    which two-time kernels are kept, ``at_is_named`` where they are a dim of their own.
    """

    model: Model
    training: Training
    initial_scales: tuple[float, ...]
    supervised: tuple[int, ...]
    read: tuple[int, ...]
    labels: np.ndarray
    test_labels: np.ndarray | None
    loss: Loss
    at: np.ndarray
    at_is_named: bool
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
        return max(1, min(self.replicates, BATCH_NUMBERS // self.model.n_parameters))

    @property
    def seconds(self) -> float:
        """A rough estimate of one training of all networks."""
        model, noise = self.model, NORMAL if self.training.temperature else 0.0
        n_uses = len(model.sizes) if model.net.weights == "tied" else 1
        per_row = model.n_parameters * (6 * FLOP * model.inputs.shape[1] * n_uses + PASS + noise)
        return self.replicates * self.n_rows * per_row

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
        P, K, O, C, T = model.n_train, len(model.sizes), model.n_outputs, len(self.supervised), len(self.at)
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
            (("at", "at_") if self.at_is_named else ("step", "step_"), (T, T)),
        )
        fields["ntk"] = joined(readouts, step, pair, outputs)
        fields["ntk_alignment"] = step
        fields["alignment"] = joined(layer, step)
        if self.equal_widths:
            neurons = (("neuron", "sample"), (model.sizes[0], P))
            fields["preactivation"] = joined(layer, _if(self.at_is_named, ("at",), (T,)), neurons)
            fields["pregradient"] = joined(readout, fields["preactivation"], output)
        fields["feature_kernel"] = joined(layers, times, pair)
        fields["gradient_kernel"] = joined(readouts, layers, times, pair, outputs)
        if not self.training.flow:  # to a source at one step: there is none in a flow
            fields |= dict.fromkeys(ON_REQUEST, joined(readout, layers, times, pair, output))
        return fields

    def choose(self, quantities: Iterable[str] | None) -> tuple[Names, Names]:
        """The asked fields, or all that are small; refuses what does not fit in memory."""
        model, budget = self.model, boundary.memory_budget()
        kept = 8 * self.batch * len(self.at) * model.n_train * sum(model.sizes)  # on the way to two-time kernels
        room = {"feature_kernel": kept, "gradient_kernel": kept * len(self.channels)}
        copies = FLOW_COPIES if self.training.flow else 1
        sizes = {name: copies * n + room.get(name, 0) for name, n in n_bytes(self.layout, self.replicates).items()}
        need = 8 * self.batch * model.n_parameters * (1 if self.training.momentum_time is None else 2)
        if need > budget:
            raise MemoryError(
                f"`width` {model.sizes[-1]} needs {boundary.describe_bytes(need)} for the weights of one "
                f"network, but only {boundary.describe_bytes(budget)} may be used."
            )
        if quantities is not None:
            return boundary.choose_quantities(quantities, sizes, budget - need)
        light = {name: size for name, size in sizes.items() if name in LIGHT}
        heavy = {name: size for name, size in sizes.items() if name not in (*LIGHT, *ON_REQUEST)}
        kept_light, lost = boundary.choose_quantities(None, light, budget - need)
        more, left_out = boundary.choose_quantities(None, heavy, min(DEFAULT_BYTES, budget - need))
        return (*kept_light, *more), (*lost, *left_out)


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
        at=_steps_of(at, training.steps),
        at_is_named=at is not None,
        replicates=int(replicates),
        seed=int(seed),
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
    """The steps at which two-time kernels are kept, in order: all, or those named (negative ones from the end)."""
    if at is None:
        return np.arange(steps + 1)
    given = np.atleast_1d(np.asarray(at))
    whole = given.ndim == 1 and given.size > 0 and given.dtype.kind in "iu"
    if not whole or (given < -steps - 1).any() or (given > steps).any():
        raise ValueError(f"`at` must be steps from 0 to {steps}, negative ones from the end, got {at!r}.")
    return np.unique(given % (steps + 1))


def _if(there: bool, dims: tuple[str, ...], shape: tuple[int, ...]) -> Shape:
    return (dims, shape) if there else ((), ())
