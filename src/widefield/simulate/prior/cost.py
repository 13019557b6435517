"""What a sampler costs, from counted random numbers and flops; the choice between samplers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.simulate.networks.call import batch_size
from widefield.simulate.networks.cores import in_flight
from widefield.simulate.prior.fields import stored_numbers

METHODS = ("auto", "dense", "weight_free")
NORMAL, FLOP, THIN_FLOP = 1.2e-8, 8e-11, 2.5e-10  # seconds on one core; a thin factorization is bound by memory
STREAM = 5e-5  # seconds to start the random numbers of a network
BATCH_NUMBERS = 2**21  # float64 numbers a batch works on: enough to hide Python, small beside memory
MAX_BATCH = 1024
TANGENT_COPIES = 5  # of the weights, where a tangent kernel is made
DRAWN_INPUT_NUMBERS = 4_000_000  # the dense sampler draws U itself up to this size


@dataclass(frozen=True)
class Plan:
    """A sampler, its estimated ``seconds`` and working ``numbers`` (float64) per network, and why it was taken."""

    method: str
    seconds: float
    numbers: int
    reduce_inputs: bool
    note: str | None = None

    def n_bytes(self, replicates: int) -> int:
        """What the networks take that are worked on at once."""
        return 8 * self.numbers * in_flight(replicates, self.batch(replicates))

    def batch(self, replicates: int) -> int:
        """Networks to simulate together: many for small ones, whose cost would be Python's, and one for large ones."""
        return batch_size(replicates, min(MAX_BATCH, max(1, BATCH_NUMBERS // self.numbers)))


def plan(net: Network, sizes: Sequence[int], task: Task, method: str, wanted: Sequence[str], n_outputs: int) -> Plan:
    """The sampler to use for the inputs of ``task``; shapes are (sample, driven state, D)."""
    shape = task.sequences(net.depth).shape
    checks.choice("method", method, METHODS)
    if "ntk" in wanted and method == "weight_free":
        raise ValueError("`method` must be 'dense' for the quantity 'ntk', which needs the weights, got 'weight_free'.")
    dense, free = _dense(net, sizes, shape, keep="ntk" in wanted), _weight_free(net, sizes, shape)
    chosen = dense
    if free is None and method == "weight_free":
        need = f"(depth - 1) x samples = {(net.depth - 1) * shape[0]} within the width {sizes[0]}"
        chosen = replace(dense, note=f"weight_free with tied weights needs {need}: the weights were drawn")
    elif free is not None and method != "dense" and "ntk" not in wanted:
        chosen = free if method == "weight_free" else min(dense, free, key=lambda p: p.seconds)
    chosen = replace(chosen, numbers=chosen.numbers + stored_numbers(wanted, net, sizes, shape[0], n_outputs))
    return chosen


def _common(net: Network, sizes: Sequence[int], shape: tuple[int, int, int], coordinates: int) -> tuple[float, int]:
    """Seconds and numbers of inputs, biases and activations."""
    n_samples, n_driven, _ = shape
    n_draws = 1 if net.inputs == "tied" else n_driven
    numbers = coordinates * sum(sizes[:n_draws]) + sum(sizes)
    flops = 2 * coordinates * n_samples * sum(sizes[:n_driven])
    seconds = STREAM + NORMAL * (numbers + n_samples * sum(sizes)) + FLOP * flops
    return seconds, coordinates * max(sizes) + 4 * n_samples * max(sizes)


def _dense(net: Network, sizes: Sequence[int], shape: tuple[int, int, int], *, keep: bool) -> Plan:
    n_samples, n_driven, dimension = shape
    reduce = keep or dimension * max(sizes) > DRAWN_INPUT_NUMBERS
    seconds, numbers = _common(net, sizes, shape, min(dimension, n_samples * n_driven) if reduce else dimension)
    weights = [m * n for m, n in pairwise(sizes)]
    drawn = sum(weights[:1]) if net.weights == "tied" else sum(weights)
    kept = TANGENT_COPIES * drawn if keep else max(weights, default=0)
    passes = 1 + 4 * n_samples * keep  # a tangent kernel has one back and one forth for every sample
    seconds += NORMAL * drawn + FLOP * 2 * n_samples * sum(weights) * passes
    return Plan("dense", seconds, numbers + kept, reduce)


def _weight_free(net: Network, sizes: Sequence[int], shape: tuple[int, int, int]) -> Plan | None:
    n_samples, n_driven, dimension = shape
    seconds, numbers = _common(net, sizes, shape, min(dimension, n_samples * n_driven))
    steps = net.depth - 1
    if net.weights == "tied":
        n, rows = sizes[0], steps * n_samples
        if rows > n:
            return None
        seconds += NORMAL * n * rows + 6 * n * (FLOP * rows**2 / 2 + THIN_FLOP * rows * n_samples)
        return Plan("weight_free", seconds, numbers + 2 * n * rows, True)
    for m, n in pairwise(sizes):
        rank = min(n_samples, m)
        seconds += NORMAL * n * rank + 2 * n_samples * rank * (THIN_FLOP * m * (n_samples < m) + FLOP * n)
    return Plan("weight_free", seconds, numbers, True)
