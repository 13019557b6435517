"""The layer recursion as fields of a solution."""

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from widefield.answer.certificate import SolveError
from widefield.theories.finite_width import expansion
from widefield.theories.finite_width.expansion import (
    AbstractExpansion,
    Quantity,
    Question,
    ReadoutMoments,
    Result,
    Work,
)
from widefield.theories.finite_width.untied.averages import refuse
from widefield.theories.finite_width.untied.recursion import Layer, Wants, feeding_widths, march, steps, unfold
from widefield.theories.finite_width.untied.residual import residual

PAIR = ("layer", "sample", "sample_")
DIMS: dict[str, tuple[str, ...]] = {
    "kernel": PAIR,
    "correction": PAIR,
    "covariance": PAIR,
    "kurtosis": PAIR[:2],
    "ratio": PAIR[:1],
    "neuron_correlation": PAIR[:2],
    "kernel_variance": PAIR,
    "vertex_quadruples": ("layer", "quadruple"),
    "vertex_pairs": (*PAIR, "pair", "pair_"),
    "vertex": (*PAIR, "sample__", "sample___"),
    "connected": (*PAIR, "sample__", "sample___"),
}
PAIR_NAMES = ["11", "12", "22"]
NEEDS_CORRECTION = ("correction", "covariance")
NEEDS_TENSOR = ("vertex", "connected")
NEEDS_PAIRS = (*NEEDS_CORRECTION, "kurtosis", "ratio", "neuron_correlation", "kernel_variance", "vertex_pairs")


class UntiedExpansion(AbstractExpansion):
    """Fresh parameters at every layer, Eqs. (finite_width.2), (finite_width.3), (finite_width.4)."""

    def available(self, question: Question) -> tuple[dict[str, Quantity], tuple[str, ...]]:
        n_quadruples = 0 if question.quadruples is None else len(question.quadruples)
        quantities = expansion.quantities_of(DIMS, question.lengths | {"pair": 3, "quadruple": n_quadruples})
        notes: tuple[str, ...] = ()
        if question.quadruples is None:
            del quantities["vertex_quadruples"]
        if refuse(question.network.activation):
            quantities = {name: q for name, q in quantities.items() if name not in NEEDS_CORRECTION}
            notes = (f"no correction: its averages are not known for the kinks of {question.network.activation}",)
        n_quartets = math.comb(len(question.inputs[0]) + 3, 4)
        if n_quartets > expansion.MAX_QUARTETS:
            why = f"vertex would take {n_quartets} four-point averages per layer: ask for it, or for quadruples"
            quantities |= {name: quantities[name]._replace(expensive=why) for name in NEEDS_TENSOR}
        return quantities, notes

    def n_quartets(self, question: Question, *, alone: bool) -> int:
        return math.comb(len(question.inputs_and_tests[0]) + 3, 4)

    def predicted_states(self, question: Question) -> tuple[int, ...]:
        last = (question.network.depth - 1,)
        return last if question.task.supervised_states(question.network.depth) == last else ()

    def work(self, question: Question, names: Collection[str], n_points: int, *, readout: bool) -> Work:
        """As measured: layers are kept, beside the averages of one of them and the sets of four."""
        n, n_layers, kinks = n_points, question.lengths["layer"], bool(question.network.activation.breaks)
        pairs, correction, tensor = _needs(names, readout)
        chosen = 0 if question.quadruples is None or "vertex_quadruples" not in names else len(question.quadruples)
        quartets = tensor * math.comb(n + 1, 2) ** 2 + 9 * chosen
        chunk = 2_000_000 * bool(quartets)  # sets of four at a time
        kept = n_layers * (n**2 * (1 + correction + 9 * pairs) + quartets)
        averages = n**2 * ((20, 35, 62) if kinks else (15, 60, 110))[pairs + correction]
        averages += 8 * 4 ** math.ceil(math.log2(max(n, 4))) if kinks else (3000, 15_000)[pairs] * n  # padded; nodes
        return Work(8 * kept, 8 * max(averages + chunk + 8 * quartets, 18 * quartets - kept), 32 * n**4 * readout)

    def solve(self, question: Question, names: tuple[str, ...], *, readout: bool) -> Result:
        network, rtol = question.network, question.rtol
        x, back = question.inputs_and_tests if readout else question.inputs
        samples = back[: question.task.n_samples]
        coords: dict[str, Any] = {dim: PAIR_NAMES for dim in ("pair", "pair_") if "vertex_pairs" in names}
        rows = None
        if "vertex_quadruples" in names and question.quadruples is not None:
            coords["quadruple"] = ["({},{})({},{})".format(*row) for row in question.quadruples]
            rows = samples[question.quadruples]
            rows = np.concatenate([rows, np.repeat(np.unique(rows)[:, None], 4, axis=1)])  # V of one sample: the ratio
        wants = Wants(*_needs(names, readout), rows)
        K, made = steps(network, x, network.sizes(question.width))
        layers: list[Layer] = []
        try:
            for layer in march("finite width", network.activation, K, made, wants, rtol, question.progress):
                layers.append(layer)
                if not all(np.isfinite(part).all() for part in layer):
                    raise OverflowError(f"Kernel, vertex or correction overflow at layer {len(layers)}.")
        except (OverflowError, SolveError) as error:
            return Result({}, failure=expansion.failure_of(error), coords=coords, notes=(str(error),))
        checks, notes = expansion.verdict(residual(network.activation, layers, made, wants), layers[-1].error, rtol)
        n = feeding_widths(network, question.width)
        each = {name: [_entry(name, *layer, samples) for layer in zip(layers, n, strict=True)] for name in names}
        fields = {name: np.stack(values) for name, values in each.items()}
        if rows is not None:
            fields["vertex_quadruples"] = fields["vertex_quadruples"][:, : len(coords["quadruple"])]
        trust: tuple[str, ...] = ()
        diagnostics: dict[str, Any] = {}
        if wants.vertex:
            ratio = np.asarray([_largest_variance(layer, samples, wants) for layer in layers]) / n
            trusted, trust, diagnostics = expansion.judge(ratio, question.width)
            checks |= trusted
        moments = _readout(layers[-1], back) if readout else None
        return Result(fields, checks, None, coords, (*trust, *notes), diagnostics, moments)


def _needs(names: Collection[str], readout: bool) -> tuple[bool, bool, bool]:
    """Whether V on pairs, G1 and the full V are made for fields and the moments of a regression."""
    tensor, correction, pairs = (
        not set(names).isdisjoint(needs) for needs in (NEEDS_TENSOR, NEEDS_CORRECTION, NEEDS_PAIRS)
    )
    return pairs or tensor or readout, correction or readout, tensor or readout


def relative_variance(layer: Layer) -> np.ndarray:
    """V_{(11)(11)}/K² of every sample; zero for an output that is always zero."""
    K = np.diag(layer.kernel)
    return np.diagonal(layer.blocks[..., 0, 0]) / np.where(K > 0, K, 1) ** 2


def _largest_variance(layer: Layer, samples: np.ndarray, wants: Wants) -> float:
    """The largest V_{(11)(11)}/K² of the samples whose V is known."""
    if wants.pairs or wants.quadruples is None:
        return relative_variance(layer)[samples].max()
    same = np.flatnonzero((wants.quadruples == wants.quadruples[:, :1]).all(axis=1))
    K = np.diag(layer.kernel)[wants.quadruples[same, 0]]
    return np.max(layer.chosen[same, 1, 1] / np.where(K > 0, K, 1) ** 2)


def _entry(name: str, layer: Layer, n: float, back: np.ndarray) -> np.ndarray:
    """A field at one layer, fed by ``n`` neurons, Eq. (finite_width.7); ``back`` is the different input of each sample."""
    both = np.ix_(back, back)
    match name:
        case "kernel":
            return layer.kernel[both]
        case "correction":
            return layer.correction[both]
        case "covariance":
            return (layer.kernel + layer.correction / n)[both]
        case "kernel_variance":
            return layer.blocks[..., 1, 1][both] / n
        case "vertex_pairs":
            return layer.blocks[both]
        case "vertex_quadruples":
            return layer.chosen[:, 1, 1]
        case "vertex" | "connected":
            V = unfold(layer.matrix, len(layer.kernel))[np.ix_(back, back, back, back)]
            return V if name == "vertex" else V / n
    relative = (relative_variance(layer) / n)[back]
    return np.max(relative) if name == "ratio" else {"kurtosis": 3.0, "neuron_correlation": 0.5}[name] * relative


def _readout(layer: Layer, back: np.ndarray) -> ReadoutMoments:
    both = np.ix_(back, back)
    vertex = unfold(layer.matrix, len(layer.kernel))[np.ix_(back, back, back, back)]
    return ReadoutMoments(layer.kernel[both], layer.correction[both], vertex)
