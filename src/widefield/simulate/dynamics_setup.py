r"""What `simulate.dynamics` is asked: networks, protocol and fields, checked."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.simulate.drive import coordinates
from widefield.simulate.dynamics_loss import Loss, loss_of
from widefield.simulate.dynamics_train import Model, Step
from widefield.simulate.proportional_setup import flag, rates_of

NAME = "simulate.dynamics"
LIGHT = ("loss", "test_loss", "prediction", "test_prediction", "state_prediction")
ON_REQUEST = ("forward_response", "backward_response")
Layout = dict[str, tuple[tuple[str, ...], tuple[int, ...]]]  # dims and shape of one replicate's share


@dataclass(frozen=True)
class Question:
    """Labels are (readout, sample, output), readouts in the order of states; ``read`` are all states that have outputs."""

    model: Model
    supervised: tuple[int, ...]
    read: tuple[int, ...]
    labels: np.ndarray
    test_labels: np.ndarray | None
    loss: Loss

    @property
    def channels(self) -> list[tuple[int, int]]:
        """(readout, output) pairs: each has backward fields of its own."""
        return [(c, o) for c in range(len(self.supervised)) for o in range(self.model.n_outputs)]

    def pulls(self, f: np.ndarray) -> dict[int, np.ndarray]:
        """Δ of the training inputs (replicate, sample, output) at each supervised state."""
        where = [self.read.index(c) for c in self.supervised]
        delta = self.loss.pull(f[:, where, : self.model.n_train], self.labels)
        return {c: delta[:, i] for i, c in enumerate(self.supervised)}

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


@dataclass(frozen=True)
class Protocol:
    """How the networks are trained; ``rates`` has one entry per update."""

    rates: np.ndarray
    weight_decay: float
    momentum_time: float | None
    temperature: float
    initial_scale: tuple[float, ...]  # of input weights, hidden weights and readout
    centered: bool

    def step(self, t: int) -> Step:
        """Update number ``t``."""
        rate = float(self.rates[t])
        share = None if self.momentum_time is None else rate / self.momentum_time
        return Step(rate, 1 - rate * self.weight_decay, share, math.sqrt(2 * rate * self.temperature))

    def options(self) -> dict[str, Any]:
        """What the certificate tells of the protocol."""
        names = ("weight_decay", "momentum_time", "temperature", "centered")
        constant = len(set(self.rates)) == 1
        rate = float(self.rates[0]) if constant else self.rates
        scales = self.initial_scale
        scale = scales[0] if len(set(scales)) == 1 else list(scales)
        told = {name: getattr(self, name) for name in names}
        return {"rate": rate, "steps": len(self.rates), **told, "initial_scale": scale}


def question_of(net: Network, task: Task, width: int, richness: float, loss: Any) -> Question:
    """The networks and their labels, once the arguments are known to make sense."""
    _check(net, task)
    sizes, labels = net.sizes(width), task.labels()
    supervised = task.supervised_states(net.depth)
    order = np.argsort(supervised)
    x = task.sequences(net.depth, test=True)
    _check_widths(net, sizes, x.shape[1], supervised)
    model = Model(
        net=net,
        sizes=sizes,
        inputs=coordinates(x, reduce=True),
        n_train=task.n_samples,
        n_outputs=labels.shape[-1],
        richness=checks.nonnegative("richness", richness, positive=True),
    )
    given = {"y": labels} | ({} if task.y_test is None else {"y_test": _axes(task.y_test)})
    chosen = loss_of(loss, given)
    by_readout = {name: np.swapaxes(y, 0, 1)[order] for name, y in given.items()}
    read = tuple(range(net.depth)) if len(set(sizes)) == 1 else supervised
    return Question(model, tuple(sorted(supervised)), read, by_readout["y"], by_readout.get("y_test"), chosen)


def protocol_of(
    net: Network,
    rate: Any,
    steps: Any,
    flow: Any,
    weight_decay: Any,
    momentum_time: Any,
    temperature: Any,
    scale: Any,
    centered: Any,
) -> Protocol:
    """The checked protocol."""
    if flag("flow", flow):
        raise ValueError(
            "`flow` must be False in simulate.dynamics: networks train in steps; lower the `rate` instead."
        )
    rates = rates_of(rate, checks.integer("steps", steps, 1))
    if momentum_time is not None:
        momentum_time = checks.nonnegative("momentum_time", momentum_time, positive=True)
        if rates.max() > momentum_time:
            raise ValueError(f"`momentum_time` must be at least the rate {rates.max():g}, got {momentum_time!r}.")
    return Protocol(
        rates=rates,
        weight_decay=checks.nonnegative("weight_decay", weight_decay),
        momentum_time=momentum_time,
        temperature=checks.nonnegative("temperature", temperature),
        initial_scale=_scales_of(net, scale),
        centered=flag("centered", centered),
    )


def _scales_of(net: Network, scale: Any) -> tuple[float, ...]:
    """One scale per weight matrix: input weights, hidden weights (one where tied) and readout."""
    n_hidden = net.depth - 1 if net.weights == "untied" else min(net.depth - 1, 1)
    if np.ndim(scale) != 1:
        return (checks.nonnegative("initial_scale", scale, positive=True),) * (n_hidden + 2)
    if len(scale) != n_hidden + 2 or net.bias_variances.any():
        allowed = "one number with biases" if net.bias_variances.any() else f"a number or {n_hidden + 2} of them"
        raise ValueError(f"`initial_scale` must be {allowed} (input, hidden, readout) in {NAME}, got {scale!r}.")
    return tuple(checks.nonnegative("initial_scale", value, positive=True) for value in scale)


def steps_of(at: Any, steps: int) -> np.ndarray:
    """The steps at which two-time kernels are kept, in order: all, or those named (negative ones from the end)."""
    if at is None:
        return np.arange(steps + 1)
    given = np.atleast_1d(np.asarray(at))
    whole = given.ndim == 1 and given.size > 0 and given.dtype.kind in "iu"
    if not whole or (given < -steps - 1).any() or (given > steps).any():
        raise ValueError(f"`at` must be steps from 0 to {steps}, negative ones from the end, got {at!r}.")
    return np.unique(given % (steps + 1))


def layout_of(question: Question, n_rows: int, at: np.ndarray, *, named: bool) -> Layout:
    """Dims and shapes of every field, the most wanted first; ``named`` steps are a dim of their own."""
    model, several = question.model, len(question.supervised) > 1
    P, K, O, C = model.n_train, len(model.sizes), model.n_outputs, len(question.supervised)
    read = (("step", *["state"] * several), (n_rows, *[K] * several))
    fields: Layout = {"loss": (("step",), (n_rows,))}
    if question.test_labels is not None:
        fields["test_loss"] = fields["loss"]
    fields["prediction"] = _joined(read, (("sample", "output"), (P, O)))
    if question.n_test:
        fields["test_prediction"] = _joined(read, (("test", "output"), (question.n_test, O)))
    if question.equal_widths and K > 1:
        fields["state_prediction"] = (("step", "state", "sample", "output"), (n_rows, K, P, O))
    readouts = (("readout", "readout_") * several, (C, C) * several)
    pair = (("sample", "sample_"), (P, P))
    outputs = (("output", "output_") * (O > 1), (O, O) * (O > 1))
    readout, output = (("readout",) * several, (C,) * several), (("output",) * (O > 1), (O,) * (O > 1))
    fields["ntk"] = _joined(readouts, (("step",), (n_rows,)), pair, outputs)
    fields["ntk_alignment"] = fields["loss"]
    word = "at" if named else "step"
    layers = (("layer",), (K,)) if question.by_layer else (("state", "state_"), (K, K))
    fields["alignment"] = _joined((layers[0][:1], (K,)), fields["loss"])
    if question.equal_widths:
        last = (("at",) * named, (len(at),) * named)
        neurons = (("neuron", "sample"), (model.sizes[0], P))
        fields["preactivation"] = _joined((layers[0][:1], (K,)), last, neurons)
        fields["pregradient"] = _joined(readout, fields["preactivation"], output)
    times = ((word, word + "_"), (len(at), len(at)))
    fields["feature_kernel"] = _joined(layers, times, pair)
    fields["gradient_kernel"] = _joined(readouts, layers, times, pair, outputs)
    fields |= dict.fromkeys(ON_REQUEST, _joined(readout, layers, times, pair, output))
    return fields


def _joined(*parts: tuple[tuple[str, ...], tuple[int, ...]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Dims and shapes one after the other."""
    return sum((dims for dims, _ in parts), ()), sum((shape for _, shape in parts), ())


def _check(net: Any, task: Any) -> None:
    if not isinstance(net, Network):
        raise ValueError(f"`network` must be a widefield.Network (DNN or RNN), got {type(net).__name__}.")
    net.refuse_branch(NAME)
    if net.readout_variance is None:
        raise ValueError(f"`readout_variance` must be a number in {NAME}: the outputs are read out by trained weights.")
    if net.readout_bias_variance:
        raise ValueError(
            f"`readout_bias_variance` must be 0 in {NAME}: the readout has no bias, got {net.readout_bias_variance:g}."
        )
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a widefield.Task, got {type(task).__name__}.")


def _check_widths(net: Network, sizes: tuple[int, ...], n_driven: int, supervised: tuple[int, ...]) -> None:
    """Shared parameters need states of one width."""
    if net.inputs == "tied" and len(set(sizes[:n_driven])) > 1:
        raise ValueError(f"`inputs` must be 'untied': {n_driven} driven states of unequal widths {sizes} share no U.")
    if len(supervised) > 1 and len(set(sizes)) > 1:
        raise ValueError(f"`widths` must all be equal where several states share one readout, got sizes {sizes}.")
    if sizes[supervised[0]] != sizes[-1]:
        raise ValueError(
            f"`widths` must give the supervised state {supervised[0]} the width of the last, got sizes {sizes}."
        )


def _axes(y: np.ndarray) -> np.ndarray:
    """Labels as (sample, readout, output)."""
    return y[:, None, None] if y.ndim == 1 else y[:, None, :] if y.ndim == 2 else y
