"""The expansion with tied weights as fields of a solution."""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from widefield.answer.certificate import Check, SolveError, Status
from widefield.question.network import Network
from widefield.theories.finite_width import expansion
from widefield.theories.finite_width.expansion import (
    AbstractExpansion,
    Quantity,
    Question,
    ReadoutMoments,
    Result,
    Work,
)
from widefield.theories.finite_width.tied import relu_growth
from widefield.theories.finite_width.tied.fluctuations import Fluctuations, by_state, expand, on_nodes
from widefield.theories.finite_width.tied.residual import residual

STATES = ("state", "state_", "sample", "sample_")
LAYER = ("layer", "sample", "sample_")
DIMS: dict[str, tuple[str, ...]] = {
    "kernel": LAYER, "correction": LAYER, "covariance": LAYER, "pair_mean": STATES, "pair_variance": STATES,
    "pair_kernel": STATES, "pair_correction": STATES, "kernel_variance": LAYER, "ratio": LAYER[:1],
    "vertex": (*LAYER, "sample__", "sample___"), "connected": (*LAYER, "sample__", "sample___"),
    "pair_vertex": ("pair", "pair_"),
}  # fmt: skip
LayerRows = list[tuple[np.ndarray, np.ndarray]]  # kernel and rows (sample, sample_) of every layer


class TiedExpansion(AbstractExpansion):
    """Parameters that are used at several states, Eqs. (finite_width.20) to (finite_width.27); untied ones too."""

    def available(self, question: Question) -> tuple[dict[str, Quantity], tuple[str, ...]]:
        if len(set(question.network.relative_widths)) > 1:
            raise ValueError("`widths` must all be equal where parameters are tied across states.")
        if question.quadruples is not None:
            raise ValueError(
                "`quadruples` is not available where parameters are tied; ask for `vertex` or `pair_vertex`."
            )
        n_nodes = question.network.depth * question.task.n_samples
        lengths = question.lengths | {"pair": n_nodes * (n_nodes + 1) // 2}
        quantities = expansion.quantities_of(DIMS, lengths)
        quantities["pair_vertex"] = quantities["pair_vertex"]._replace(expensive="on request")
        return quantities, ()

    def n_quartets(self, question: Question, *, alone: bool) -> int:
        n_points = question.task.n_samples + question.task.n_test
        return math.comb(question.network.depth * n_points + 3, 4) if alone or question.task.n_test else 0

    def predicted_states(self, question: Question) -> tuple[int, ...]:
        return tuple(range(question.network.depth))

    def work(self, question: Question, names: Collection[str], n_points: int, *, readout: bool) -> Work:
        """As measured: matrices over pairs of rows, the response to all pairs of nodes, and four-point averages."""
        n_nodes, n_live = question.network.depth * n_points, (question.network.depth - 1) * n_points
        n_read = n_nodes if readout else n_points
        n_rows = math.comb(n_live + 1, 2) + (question.network.readout_variance is not None) * math.comb(n_read + 1, 2)
        n_averages = min(n_rows**2 // 2, math.comb(n_nodes + 3, 4))
        kept = 4 * n_rows**2 + n_rows * math.comb(n_nodes + 1, 2)
        return Work(8 * kept, 8 * (12 * n_rows**2 + 20 * n_averages), 32 * n_read**4 * readout)

    def solve(self, question: Question, names: tuple[str, ...], *, readout: bool) -> Result:
        network, points, n_train = question.network, question.points(test=readout), question.task.n_samples
        read = None
        if readout:  # outputs (state, point) that a regression reads, and those of the last layer
            read = np.zeros((network.depth, points.n_samples), bool)
            read[[*question.task.supervised_states(network.depth), network.depth - 1]] = True
            read[:, n_train:] = True
        try:
            moments = expand(network, points, read=read, progress=question.progress)
        except (SolveError, OverflowError) as error:
            note = f"the averages of the expansion are not known: {error}"
            return Result({}, failure=expansion.failure_of(error), notes=(note,))
        train = replace(moments, nodes=replace(moments.nodes, of=moments.nodes.of[:, :n_train]))
        layers = _layers(network, train)
        fields = {name: _field(name, train, layers, question.width) for name in names}
        trusted, notes, diagnostics = _trust(question, moments, layers)
        coords = {}
        if "pair_vertex" in names:
            label = [f"({a},{i})" for a in range(network.depth) for i in range(n_train)]
            pairs = [label[p] + label[q] for p, q in zip(*np.triu_indices(len(label)), strict=True)]
            coords = {"pair": pairs, "pair_": pairs}
        result = Result(fields, coords=coords, notes=notes, diagnostics=diagnostics)
        if not (np.isfinite(moments.V).all() and np.isfinite(moments.G1).all()):
            return replace(result, failure=Status.nonfinite)
        checks, more = expansion.verdict(residual(network, points, moments), moments.error, question.rtol)
        outputs = _readout(question, moments) if readout else None
        return replace(result, checks=checks | trusted, notes=(*notes, *more), readout=outputs)


def _layers(network: Network, moments: Fluctuations) -> LayerRows:
    nodes, rows = moments.nodes, moments.rows
    layers = [(nodes.C[np.ix_(p, p)], rows.of[np.ix_(p, p)]) for p in nodes.of]
    if network.readout_variance is not None:
        outputs = rows.output[np.ix_(nodes.of[-1], nodes.of[-1])]
        layers.append((_output_kernel(network, moments, outputs), outputs))
    return layers


def _output_kernel(network: Network, moments: Fluctuations, rows: np.ndarray) -> np.ndarray:
    return network.readout_variance * moments.response.mean[rows] + float(network.readout_bias_variance or 0.0)


def _field(name: str, moments: Fluctuations, layers: LayerRows, n: int) -> np.ndarray:
    """One field from the expansion."""
    G1 = np.append(moments.G1, 0.0)  # entry −1: no fluctuation
    V = np.pad(moments.V, (0, 1))
    match name:
        case "pair_mean" | "pair_variance" | "pair_kernel":
            pairs = {"pair_mean": moments.H1, "pair_variance": moments.Vh, "pair_kernel": moments.nodes.C}
            return by_state(pairs[name], moments.nodes)
        case "pair_correction":
            return by_state(on_nodes(moments.G1, moments.rows), moments.nodes)
        case "pair_vertex":
            flat = moments.nodes.of.reshape(-1)
            p, q = np.triu_indices(len(flat))
            rows = moments.rows.of[flat[p], flat[q]]
            return V[np.ix_(rows, rows)]
        case "kernel":
            return np.stack([kernel for kernel, _ in layers])
        case "correction":
            return np.stack([G1[rows] for _, rows in layers])
        case "covariance":
            return np.stack([kernel + G1[rows] / n for kernel, rows in layers])
        case "kernel_variance":
            return np.stack([V[rows, rows] / n for _, rows in layers])
        case "ratio":
            return _ratio(moments, layers) / n
    tensor = np.stack([V[rows[:, :, None, None], rows] for _, rows in layers])
    return tensor if name == "vertex" else tensor / n


def _ratio(moments: Fluctuations, layers: LayerRows) -> np.ndarray:
    """The largest V/K² of every layer."""
    V = np.append(np.diag(moments.V), 0.0)
    diagonals = [(np.diag(kernel), np.diag(rows)) for kernel, rows in layers]
    return np.array([np.max(V[rows] / np.where(K > 0, K, 1.0) ** 2) for K, rows in diagonals])


def _readout(question: Question, moments: Fluctuations) -> ReadoutMoments:
    """Moments of the outputs of training inputs at supervised states, then of test inputs at all states."""
    n, of = question.task.n_samples, moments.nodes.of
    supervised = list(question.task.supervised_states(question.network.depth))
    outputs = np.concatenate([of[supervised, :n].ravel(), of[:, n:].ravel()])
    rows = moments.rows.output[np.ix_(outputs, outputs)]
    vertex = moments.V[rows[:, :, None, None], rows]
    return ReadoutMoments(_output_kernel(question.network, moments, rows), moments.G1[rows], vertex)


def _trust(
    question: Question, moments: Fluctuations, layers: LayerRows
) -> tuple[dict[str, Check], tuple[str, ...], dict[str, Any]]:
    """Whether the first order can be trusted, notes where it cannot, and diagnostics."""
    network, n = question.network, question.width
    ratio = _ratio(moments, layers)
    if not np.isfinite(ratio).all():
        return {}, (), {}
    trusted, notes, diagnostics = expansion.judge(ratio / n, n)
    if network.activation.known_as("relu") and network.weights == "tied" and network.depth > 1:
        fraction = relu_growth.unstable_fraction(float(network.weight_variances[0]), n)
        diagnostics["unstable_fraction"] = fraction
        n_driven = question.task.sequences(network.depth).shape[1]
        notes = (*notes, *relu_growth.remarks(network, fraction, n_driven))
    return trusted, notes, diagnostics
