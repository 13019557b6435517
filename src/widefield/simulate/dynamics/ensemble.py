r"""The networks of one simulation: which fields they give, and what they take in time and memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from widefield.answer import boundary
from widefield.simulate.dynamics.problem import Problem
from widefield.simulate.networks.call import Layout, Names, Shape, joined, n_bytes
from widefield.simulate.networks.trained import FLOW_COPIES

LIGHT = ("loss", "test_loss", "prediction", "test_prediction", "state_prediction")
ON_REQUEST = ("forward_response", "backward_response")
BATCH_NUMBERS = 2**17  # parameters that train together: they stay in the processor's cache
DEFAULT_BYTES = 2**27  # what kernels and pre-activations may take unless asked for by name
FLOP, PASS, NORMAL = 5e-11, 1e-9, 1.2e-8  # seconds per operation, per parameter and update, per random number


@dataclass(frozen=True)
class Ensemble:
    """The networks of one simulation; ``at`` are the steps at which two-time kernels are kept."""

    problem: Problem
    at: np.ndarray
    layout: Layout
    replicates: int
    seed: int

    @property
    def batch(self) -> int:
        """Networks that train together."""
        return max(1, min(self.replicates, BATCH_NUMBERS // self.problem.model.n_parameters))

    @property
    def seconds(self) -> float:
        """A rough estimate of one training of all networks."""
        model = self.problem.model
        n_uses = len(model.sizes) if model.net.weights == "tied" else 1
        noise = NORMAL if self.problem.training.temperature else 0.0
        per_row = model.n_parameters * (6 * FLOP * model.inputs.shape[1] * n_uses + PASS + noise)
        return self.replicates * self.problem.n_rows * per_row

    def n_bytes(self) -> dict[str, int]:
        """What each field takes, with the room that it needs on the way."""
        model = self.problem.model
        kept = 8 * self.batch * len(self.at) * model.n_train * sum(model.sizes)
        room = {"feature_kernel": kept, "gradient_kernel": kept * len(self.problem.channels)}
        copies = FLOW_COPIES if self.problem.training.flow else 1
        return {name: copies * n + room.get(name, 0) for name, n in n_bytes(self.layout, self.replicates).items()}

    def choose(self, quantities: Iterable[str] | None) -> tuple[Names, Names]:
        """The asked fields, or all that are small; refuses what does not fit in memory."""
        sizes, budget = self.n_bytes(), boundary.memory_budget()
        copies = 1 if self.problem.training.momentum_time is None else 2
        need = 8 * self.batch * self.problem.model.n_parameters * copies
        if need > budget:
            raise MemoryError(
                f"`width` {self.problem.model.sizes[-1]} needs {boundary.describe_bytes(need)} for the weights of one "
                f"network, but only {boundary.describe_bytes(budget)} may be used."
            )
        if quantities is not None:
            return boundary.choose_quantities(quantities, sizes, budget - need)
        light = {name: size for name, size in sizes.items() if name in LIGHT}
        heavy = {name: size for name, size in sizes.items() if name not in (*LIGHT, *ON_REQUEST)}
        kept, lost = boundary.choose_quantities(None, light, budget - need)
        more, left_out = boundary.choose_quantities(None, heavy, min(DEFAULT_BYTES, budget - need))
        return (*kept, *more), (*lost, *left_out)


def steps_of(at: Any, steps: int) -> np.ndarray:
    """The steps at which two-time kernels are kept, in order: all, or those named (negative ones from the end)."""
    if at is None:
        return np.arange(steps + 1)
    given = np.atleast_1d(np.asarray(at))
    whole = given.ndim == 1 and given.size > 0 and given.dtype.kind in "iu"
    if not whole or (given < -steps - 1).any() or (given > steps).any():
        raise ValueError(f"`at` must be steps from 0 to {steps}, negative ones from the end, got {at!r}.")
    return np.unique(given % (steps + 1))


def layout_of(problem: Problem, at: np.ndarray, *, named: bool) -> Layout:
    """Dims and shapes of every field, the most wanted first; ``named`` steps are a dim of their own."""
    model, several, step = problem.model, len(problem.supervised) > 1, (("step",), (problem.n_rows,))
    P, K, O, C = model.n_train, len(model.sizes), model.n_outputs, len(problem.supervised)
    read = joined(step, _if(several, ("state",), (K,)))
    fields: Layout = {"loss": step}
    if problem.test_labels is not None:
        fields["test_loss"] = step
    fields["prediction"] = joined(read, (("sample", "output"), (P, O)))
    if problem.n_test:
        fields["test_prediction"] = joined(read, (("test", "output"), (problem.n_test, O)))
    if problem.equal_widths and K > 1:
        fields["state_prediction"] = joined(step, (("state", "sample", "output"), (K, P, O)))
    layers = (("layer",), (K,)) if problem.by_layer else (("state", "state_"), (K, K))
    readout, readouts = (_if(several, *c) for c in ((("readout",), (C,)), (("readout", "readout_"), (C, C))))
    output, outputs = (_if(O > 1, *c) for c in ((("output",), (O,)), (("output", "output_"), (O, O))))
    pair, word = (("sample", "sample_"), (P, P)), "at" if named else "step"
    times = ((word, word + "_"), (len(at), len(at)))
    fields["ntk"] = joined(readouts, step, pair, outputs)
    fields["ntk_alignment"] = step
    fields["alignment"] = joined((layers[0][:1], (K,)), step)
    if problem.equal_widths:
        neurons = (("neuron", "sample"), (model.sizes[0], P))
        fields["preactivation"] = joined((layers[0][:1], (K,)), _if(named, ("at",), (len(at),)), neurons)
        fields["pregradient"] = joined(readout, fields["preactivation"], output)
    fields["feature_kernel"] = joined(layers, times, pair)
    fields["gradient_kernel"] = joined(readouts, layers, times, pair, outputs)
    if not problem.training.flow:  # to a source at one step: there is none in a flow
        fields |= dict.fromkeys(ON_REQUEST, joined(readout, layers, times, pair, output))
    return fields


def _if(there: bool, dims: tuple[str, ...], shape: tuple[int, ...]) -> Shape:
    return (dims, shape) if there else ((), ())
