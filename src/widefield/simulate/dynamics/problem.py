r"""What `simulate.dynamics` is asked, checked: the networks, their labels and their training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.training import Training
from widefield.simulate.dynamics.losses import Loss, loss_of
from widefield.simulate.dynamics.training import Model, Networks, Step
from widefield.simulate.networks.call import check_shared_inputs
from widefield.simulate.networks.weights import coordinates

NAME = "simulate.dynamics"


@dataclass(frozen=True)
class Problem:
    """Labels are (readout, sample, output), readouts in the order of states; ``read`` are all states that have outputs.

    ``initial_scales`` has one entry per weight matrix: input weights, hidden weights and readout.
    """

    model: Model
    training: Training
    initial_scales: tuple[float, ...]
    supervised: tuple[int, ...]
    read: tuple[int, ...]
    labels: np.ndarray
    test_labels: np.ndarray | None
    loss: Loss

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

    def pulls(self, f: np.ndarray) -> dict[int, np.ndarray]:
        """Δ of the training inputs (replicate, sample, output) at each supervised state."""
        where = [self.read.index(c) for c in self.supervised]
        delta = self.loss.pull(f[:, where, : self.model.n_train], self.labels)
        return {c: delta[:, i] for i, c in enumerate(self.supervised)}

    def unit_pull(self, output: int) -> np.ndarray:
        """Δ = 1 of every training input at one output, (sample, output)."""
        return np.tile(np.eye(self.model.n_outputs)[output], (self.model.n_train, 1))

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


def problem_of(net: Network, task: Task, training: Training, width: int) -> Problem:
    """The networks, their labels and their training, once they are known to make sense together."""
    _check_training(training)
    if net.readout_variance is None:
        raise ValueError(f"`readout_variance` must be a number in {NAME}: the outputs are read out by trained weights.")
    if net.readout_bias_variance:
        raise ValueError(
            f"`readout_bias_variance` must be 0 in {NAME}: the readout has no bias, got {net.readout_bias_variance:g}."
        )
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
