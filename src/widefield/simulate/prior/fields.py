r"""What is measured in a batch of networks as their states go by."""

from collections.abc import Iterable, Sequence

import numpy as np

from widefield.question.network import Network
from widefield.question.task import Task
from widefield.simulate.networks.call import Layout
from widefield.simulate.networks.streams import READOUT, normals, streams

Readout = tuple[np.ndarray, np.ndarray]
State = tuple[int, np.ndarray, np.ndarray]


def layout(net: Network, sizes: Sequence[int], task: Task, n_outputs: int) -> Layout:
    """Dims and shape of one network's share of every available quantity, the most wanted first."""
    s, p = net.depth, task.n_samples
    block, cross = (("sample", "sample_"), (p, p)), (("state", "state_", "sample", "sample_"), (s, s, p, p))
    several = len(task.supervised_states(net.depth)) > 1
    fields: Layout = {"output": block}
    if len(set(sizes)) == 1:
        fields["draw"] = (("state", "sample", "output"), (s, p, n_outputs))
        fields |= dict.fromkeys(("hidden", "feature", "readout"), cross)
    else:
        fields["draw"] = (("sample", "output"), (p, n_outputs))
        diagonal = (("state", "sample", "sample_"), (s, p, p))
        fields |= dict.fromkeys(("hidden_diagonal", "feature_diagonal"), diagonal)
    if not several:
        fields["ntk"] = block
    elif len(set(sizes)) == 1:
        fields["ntk"] = cross
    return fields


def stored_numbers(wanted: Sequence[str], net: Network, sizes: Sequence[int], n_samples: int, n_outputs: int) -> int:
    """Numbers of one network that `measure` keeps until all of its states are known, its readout, what a kernel takes."""
    n_kept, n_readouts = len(_grams(net, wanted)), bool({"draw", "ntk"} & {*wanted}) * n_outputs
    numbers = n_kept * (n_samples * sum(sizes) + 2 * (net.depth * n_samples) ** 2) + n_readouts * sizes[-1]
    return numbers + (n_samples * sum(sizes) if n_kept else 0)


def draw_readout(net: Network, seed: int, replicates: range, n_last: int, n_outputs: int) -> Readout | None:
    r"""Standard normal :math:`V` (replicate, neuron, output) and :math:`\xi^{\rm out}` (replicate, 1, output)."""
    if net.readout_variance is None:
        return None
    rngs = streams(seed, replicates, READOUT)
    return normals(rngs, n_last, n_outputs), normals(rngs, 1, n_outputs)


def measure(
    arrays: dict[str, np.ndarray], block: slice, trajectory: Iterable[State], net: Network, readout: Readout | None
) -> None:
    """Fill ``block`` of every result in ``arrays`` from the states (index, pre-activations, features) of a batch."""
    source = "hidden" if net.readout_variance is None else "feature"
    kept: dict[str, list[np.ndarray]] = {name: [] for name in _grams(net, arrays)}
    for a, hidden, feature in trajectory:
        for name, value in (("hidden", hidden), ("feature", feature)):
            if name in kept:
                kept[name].append(value)
            if f"{name}_diagonal" in arrays:
                arrays[f"{name}_diagonal"][block, a] = _gram(value)
        last = a == net.depth - 1
        if "draw" in arrays and (last or arrays["draw"].ndim == 4):
            where = (block, a) if arrays["draw"].ndim == 4 else (block,)
            arrays["draw"][where] = _outputs(net, hidden, feature, readout, arrays["draw"].shape[-1])
        if last and "output" in arrays:
            arrays["output"][block] = _output_covariance(net, _gram(hidden if source == "hidden" else feature))
    grams = {name: _cross_gram(values) for name, values in kept.items()}
    for name in grams.keys() & arrays.keys():
        arrays[name][block] = grams[name]
    if "readout" in arrays:
        arrays["readout"][block] = _output_covariance(net, grams[source])


def _grams(net: Network, wanted: Iterable[str]) -> set[str]:
    """Which averages over all pairs of states the results need."""
    source = "hidden" if net.readout_variance is None else "feature"
    return {source if name == "readout" else name for name in wanted} & {"hidden", "feature"}


def _gram(rows: np.ndarray) -> np.ndarray:
    return (rows @ rows.swapaxes(1, 2)) / rows.shape[2]


def _cross_gram(states: list[np.ndarray]) -> np.ndarray:
    """Averages over neurons as (replicate, state, state_, sample, sample_)."""
    n_batch, n_samples, n = states[0].shape
    gram = _gram(np.stack(states, axis=1).reshape(n_batch, -1, n))
    return gram.reshape(n_batch, len(states), n_samples, len(states), n_samples).swapaxes(2, 3)


def _output_covariance(net: Network, gram: np.ndarray) -> np.ndarray:
    """Covariance of the outputs given the hidden states."""
    if net.readout_variance is None or net.readout_bias_variance is None:
        return gram
    return net.readout_variance * gram + net.readout_bias_variance


def _outputs(
    net: Network, hidden: np.ndarray, feature: np.ndarray, readout: Readout | None, n_outputs: int
) -> np.ndarray:
    if readout is None or net.readout_variance is None or net.readout_bias_variance is None:
        return hidden[:, :, :n_outputs]
    weights, bias = readout
    scale = np.sqrt(net.readout_variance / feature.shape[2])
    return scale * (feature @ weights) + np.sqrt(net.readout_bias_variance) * bias
