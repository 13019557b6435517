"""The layer recursion as fields of a solution."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from widefield.answer.certificate import Check, SolveError, Status
from widefield.answer.progress import bar
from widefield.theories.finite_width import expansion
from widefield.theories.finite_width.expansion import AbstractExpansion, Quantity, Question, ReadoutMoments, Result
from widefield.theories.finite_width.untied import recursion
from widefield.theories.finite_width.untied.fields import DIMS, PAIR_NAMES, field_of, relative_variance
from widefield.theories.finite_width.untied.layers import Layer, Wants, feeding_widths, march_layers, steps
from widefield.theories.finite_width.untied.residual import residual

NEEDS_CORRECTION = ("correction", "covariance")
NEEDS_TENSOR = ("vertex", "connected")
NEEDS_PAIRS = ("kurtosis", "ratio", "neuron_correlation", "kernel_variance", "vertex_pairs")


class UntiedExpansion(AbstractExpansion):
    """Fresh parameters at every layer, Eqs. (finite_width.2), (finite_width.3), (finite_width.4)."""

    def available(self, question: Question) -> tuple[dict[str, Quantity], tuple[str, ...]]:
        quantities = expansion.quantities_of(DIMS, _lengths(question))
        notes: tuple[str, ...] = ()
        if question.quadruples is None:
            del quantities["vertex_quadruples"]
        if recursion.refuse(question.network.activation):
            quantities = {name: q for name, q in quantities.items() if name not in NEEDS_CORRECTION}
            notes = (f"no correction: its averages are not known for the kinks of {question.network.activation}",)
        n_quartets = _n_quartets(question, test=False)
        if n_quartets > expansion.MAX_QUARTETS:
            why = f"vertex would take {n_quartets} four-point averages per layer: ask for it, or for quadruples"
            quantities |= {name: quantities[name]._replace(expensive=why) for name in NEEDS_TENSOR}
        return quantities, notes

    def n_quartets(self, question: Question, *, alone: bool) -> int:
        return _n_quartets(question, test=True)

    def predicted_states(self, question: Question) -> tuple[int, ...]:
        last = (question.network.depth - 1,)
        return last if question.task.supervised_states(question.network.depth) == last else ()

    def solve(self, question: Question, names: tuple[str, ...], *, readout: bool) -> Result:
        x, back = _different(question, test=readout)
        samples = back[: question.task.n_samples]
        wants = _wants(question, names, samples, readout=readout)
        result, layers = _march(question, x, wants)
        n = feeding_widths(question.network, question.network.sizes(question.width))
        result = replace(result, coords=_coords(question, names))
        if not layers:
            nothing = expansion.not_a_number({name: DIMS[name] for name in names}, _lengths(question))
            return replace(result, fields=nothing)
        fields = {name: (DIMS[name], field_of(name, layers, n, samples)) for name in names}
        notes, diagnostics = _trust(question, layers, n, samples)
        outputs = _readout(layers[-1], back) if readout else None
        notes = (*notes, *result.notes)
        return replace(result, fields=fields, notes=notes, diagnostics=diagnostics, readout=outputs)


def _lengths(question: Question) -> dict[str, int]:
    network = question.network
    n_layers = network.depth + (network.readout_variance is not None)
    n_quadruples = 0 if question.quadruples is None else len(question.quadruples)
    return {"pair": 3, "layer": n_layers, "quadruple": n_quadruples, "sample": question.task.n_samples}


def _different(question: Question, *, test: bool) -> tuple[np.ndarray, np.ndarray]:
    """Different inputs, and which of them each point is."""
    x = question.points(test=test).sequences(question.network.depth)
    flat = x.reshape(len(x), -1) + 0.0  # no negative zeros
    _, first, back = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return x[first[order]], np.argsort(order)[back.reshape(-1)]


def _n_quartets(question: Question, *, test: bool) -> int:
    return math.comb(len(_different(question, test=test)[0]) + 3, 4)


def _wants(question: Question, names: tuple[str, ...], samples: np.ndarray, *, readout: bool) -> Wants:
    asked = set(names)
    chosen = question.quadruples if "vertex_quadruples" in asked else None
    return Wants(
        pairs=bool(asked & set(NEEDS_PAIRS)),
        correction=bool(asked & set(NEEDS_CORRECTION)) or readout,
        tensor=bool(asked & set(NEEDS_TENSOR)) or readout,
        quadruples=None if chosen is None else samples[chosen],
    )


def _march(question: Question, x: np.ndarray, wants: Wants) -> tuple[Result, list[Layer]]:
    """The layers, none where something failed, and what the certificate says of them."""
    network, rtol = question.network, question.rtol
    sizes = network.sizes(question.width)
    seconds = 1e-6 * len(x) ** 2 * network.depth * (1 + wants.tensor * len(x) ** 2)
    try:
        with bar("finite width", network.depth, question.progress, seconds) as advance:
            layers = march_layers(network, x, sizes, wants, rtol, advance)
    except (OverflowError, SolveError) as error:
        failure = Status.nonfinite if isinstance(error, OverflowError) else Status.inaccurate
        return Result({}, failure=failure, notes=(str(error),)), []
    checks = {"error": Check(layers[-1].error, rtol)}
    violation = residual(network.activation, layers, steps(network, x, sizes)[1], wants)
    if violation is None:
        return Result({}, checks, notes=(expansion.UNVERIFIED,)), layers
    return Result({}, {"residual": Check(violation, rtol)} | checks), layers


def _coords(question: Question, names: tuple[str, ...]) -> dict[str, Any]:
    coords: dict[str, Any] = {}
    if "vertex_pairs" in names:
        coords |= {"pair": PAIR_NAMES, "pair_": PAIR_NAMES}
    if "vertex_quadruples" in names and question.quadruples is not None:
        coords["quadruple"] = ["({},{})({},{})".format(*row) for row in question.quadruples]
    return coords


def _trust(question: Question, layers: list[Layer], n: np.ndarray, samples: np.ndarray):
    """How far down the expansion can be trusted: known where V was made on pairs."""
    if not layers[0].blocks.size:
        return (), {}
    ratio = np.asarray([relative_variance(layer)[samples].max() for layer in layers]) / n
    return expansion.judge(ratio, question.width * ratio.max() / expansion.TRUSTED)


def _readout(layer: Layer, back: np.ndarray) -> ReadoutMoments:
    both = np.ix_(back, back)
    vertex = recursion.unfold(layer.matrix, len(layer.kernel))[np.ix_(back, back, back, back)]
    return ReadoutMoments(layer.kernel[both], layer.correction[both], vertex)
