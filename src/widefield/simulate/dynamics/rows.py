r"""Rows of every field, filled as training goes by."""

import math

import numpy as np

from widefield.simulate.dynamics import kernels
from widefield.simulate.dynamics.problem import Problem
from widefield.simulate.dynamics.training import Arrays, Networks, Pass


class Rows:
    """The rows of one batch of networks: its share of all ``arrays``, which have a leading replicate axis.

    Activations and backward fields at the steps ``problem.at`` are kept until the two-time kernels are formed, per state
    (replicate, at, sample, neuron).
    """

    def __init__(self, problem: Problem, n_networks: int, arrays: dict[str, np.ndarray]):
        self.problem, self.arrays = problem, arrays
        model = problem.model
        room = lambda: [np.zeros((n_networks, len(problem.at), model.n_train, n)) for n in model.sizes]  # noqa: E731
        self.features = room() if "feature_kernel" in arrays else []
        self.gradients = {c: room() for c in problem.channels} if "gradient_kernel" in arrays else {}

    def fill_outputs(self, t: int, f: np.ndarray) -> None:
        """Losses and predictions of row ``t``; f is (replicate, read state, sample, output)."""
        problem, arrays, n = self.problem, self.arrays, self.problem.model.n_train
        where = [problem.read.index(c) for c in problem.supervised]
        shown = f if len(where) > 1 else f[:, where[0]]
        rows = {"prediction": shown[..., :n, :], "test_prediction": shown[..., n:, :]}
        rows["state_prediction"] = f[..., :n, :]
        for name in rows.keys() & arrays.keys():
            arrays[name][:, t] = rows[name]
        if "loss" in arrays:
            arrays["loss"][:, t] = problem.loss.value(f[:, where, :n], problem.labels).sum(axis=(1, 2))
        if "test_loss" in arrays and problem.test_labels is not None:
            values = problem.loss.value(f[:, where, n:], problem.test_labels)
            arrays["test_loss"][:, t] = values.sum(axis=(1, 2)) * n / problem.n_test

    def fill_kernels(self, t: int, networks: Networks, now: Pass, pulls: dict[int, np.ndarray]) -> Arrays:
        r"""Everything else of row ``t``. Returns the backward fields that move the weights.

        With one readout and one output they are Δ times those of the kernels; otherwise the sum over readouts and outputs
        is sent back in one go.
        """
        problem, model, arrays = self.problem, self.problem.model, self.arrays
        slopes, size = networks.slopes(now.h), math.sqrt(model.gain)
        tangent = {"ntk", "ntk_alignment"} & set(arrays)
        needed = bool(tangent) or ("gradient_kernel" in arrays and t in self.problem.at)
        if len(problem.channels) == 1:
            back = networks.backward(slopes, problem.unit_pull((0, 0)))
            (delta,) = pulls.values()
            force, fields = [delta * e for e in back], {(0, 0): [size * e for e in back]} if needed else {}
        else:
            force = networks.backward(slopes, pulls)
            sent = {c: networks.backward(slopes, problem.unit_pull(c)) for c in (problem.channels if needed else [])}
            fields = {c: [size * e for e in states] for c, states in sent.items()}
        phi = [x[:, : model.n_train] for x in now.phi]
        for i in np.flatnonzero(self.problem.at == t):
            channels = [(states, fields[channel]) for channel, states in self.gradients.items()]
            for states, new in [*([(self.features, phi)] if self.features else []), *channels]:
                for kept, value in zip(states, new, strict=True):
                    kept[:, i] = value
        if "alignment" in arrays:
            arrays["alignment"][:, :, t] = kernels.alignment(phi, problem.labels)
        if tangent:
            kernel = kernels.tangent_kernel(model, phi, fields, problem.supervised)
            if "ntk_alignment" in arrays:
                arrays["ntk_alignment"][:, t] = kernels.tangent_alignment(kernel, problem.labels)
            if "ntk" in arrays:
                row = np.moveaxis(arrays["ntk"], self.problem.layout["ntk"][0].index("step") + 1, 0)[t]
                row[...] = kernel.reshape(row.shape)
        self._fill_neurons(t, networks, now, slopes)
        return force

    def _fill_neurons(self, t: int, networks: Networks, now: Pass, slopes: Arrays) -> None:
        """h, and z = γ0 N ∂f/∂φ of every readout and output, after the last update or at the chosen steps."""
        problem, model, arrays = self.problem, self.problem.model, self.arrays
        if not {"preactivation", "pregradient"} & set(arrays):
            return
        last = [...] * (t + 1 == problem.n_rows)
        for i in [int(i) for i in np.flatnonzero(problem.at == t)] if problem.chosen is not None else last:
            if "preactivation" in arrays:
                h = [x[:, : model.n_train].swapaxes(1, 2) for x in now.h]
                arrays["preactivation"][:, :, i] = np.stack(h, axis=1)
            if "pregradient" in arrays:
                view = arrays["pregradient"] if model.n_outputs > 1 else arrays["pregradient"][..., None]
                view = view if len(problem.supervised) > 1 else view[:, None]
                for c, o in problem.channels:
                    pulls = problem.unit_pull((c, o))
                    z = networks.before_slopes(networks.backward(slopes, pulls), pulls)
                    scale = model.richness * model.sizes[-1]
                    view[:, c, ..., o][:, :, i] = np.stack([(scale * x).swapaxes(1, 2) for x in z], axis=1)

    def finish(self, lasted: np.ndarray) -> None:
        """Two-time kernels from what was kept; infinite entries from the step on at which a network diverged."""
        problem, arrays, n_rows = self.problem, self.arrays, self.problem.n_rows
        if self.features:
            arrays["feature_kernel"][...] = kernels.feature_kernel(
                problem.model, self.features, cross=not problem.by_layer
            )
        if self.gradients:
            kernel = kernels.gradient_kernel(self.gradients, cross=not problem.by_layer)
            arrays["gradient_kernel"][...] = kernel.reshape(arrays["gradient_kernel"].shape)
        for r in np.flatnonzero(lasted < n_rows):
            late = {"step": np.arange(n_rows) >= lasted[r], "at": self.problem.at >= lasted[r]}
            for name, array in arrays.items():
                dims = [dim.rstrip("_") for dim in self.problem.layout[name][0]]
                timed = [i for i, dim in enumerate(dims) if dim in late]
                for axis in timed:
                    np.moveaxis(array[r], axis, 0)[late[dims[axis]]] = np.inf
                if not timed:
                    array[r] = np.inf
