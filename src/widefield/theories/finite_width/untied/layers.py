"""The layers from the inputs to the readout, for the quantities that are wanted."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from widefield.question.network import Network
from widefield.theories.finite_width.untied import recursion
from widefield.theories.finite_width.untied.fourth_moments import quartets

Array = np.ndarray


class Wants(NamedTuple):
    """What to march: V and G1 on pairs, the full V, V on chosen quadruples (quadruple, 4) of sample indices."""

    pairs: bool
    correction: bool
    tensor: bool
    quadruples: Array | None

    @property
    def vertex(self) -> bool:
        return self.pairs or self.correction or self.tensor or self.quadruples is not None


class Layer(NamedTuple):
    """K, G1 (sample, sample) and V as pair blocks (sample, sample, 3, 3), matrix (pair, pair), blocks of quadruples."""

    kernel: Array
    correction: Array
    blocks: Array
    matrix: Array
    chosen: Array
    error: float


class Step(NamedTuple):
    """Parameters between one layer and the next."""

    weight: float
    source: Array
    ratio: float


def steps(network: Network, x: Array, sizes: tuple[int, ...]) -> tuple[Array, list[Step]]:
    """The first kernel, and what makes each following layer; ``x`` is (sample, driven state, D)."""
    overlaps = np.einsum("iad,jad->aij", x, x) / x.shape[-1]
    zero = np.zeros_like(overlaps[0])
    padded = [*overlaps, *[zero] * (network.depth - len(overlaps))]
    sources = [b + u * o for b, u, o in zip(network.bias_variances, network.input_variances, padded, strict=True)]
    weights = list(network.weight_variances)
    if network.readout_variance is not None:
        weights.append(network.readout_variance)
        sources.append(network.readout_bias_variance + zero)
    ratios = [0.0, *(n / before for n, before in zip(sizes[1:], sizes, strict=False))]
    made = [Step(float(w), s, r) for w, s, r in zip(weights, sources[1:], ratios, strict=False)]
    return sources[0], made


def feeding_widths(network: Network, sizes: tuple[int, ...]) -> Array:
    """n_{ℓ−1} of every layer ℓ; infinite for the first, whose outputs are exactly Gaussian."""
    n_layers = network.depth + (network.readout_variance is not None)
    return np.asarray([np.inf, *sizes][:n_layers])


def first_layer(K: Array, wants: Wants) -> Layer:
    """The Gaussian first layer: nothing fluctuates."""
    n = len(K)
    n_pairs = n * (n + 1) // 2 if wants.tensor else 0
    n_chosen = 0 if wants.quadruples is None else len(wants.quadruples)
    blocks = np.zeros((n, n, 3, 3) if wants.pairs or wants.correction else (0, 0, 3, 3))
    return Layer(_within(K), np.zeros((n, n)), blocks, np.zeros((n_pairs, n_pairs)), np.zeros((n_chosen, 3, 3)), 0.0)


def march_layers(
    network: Network, x: Array, sizes: tuple[int, ...], wants: Wants, rtol: float, advance: Callable
) -> list[Layer]:
    """All layers, the first included."""
    K, between = steps(network, x, sizes)
    layers = [first_layer(K, wants)]
    for step in between:
        with np.errstate(over="ignore", invalid="ignore"):
            layers.append(advance_layer(network, layers[-1], step, wants, rtol))
        if not all(np.isfinite(part).all() for part in layers[-1]):
            raise OverflowError(f"Kernel, vertex or correction overflow at layer {len(layers)}.")
        advance(1)
    return layers


def advance_layer(network: Network, layer: Layer, step: Step, wants: Wants, rtol: float) -> Layer:
    """One step of all recursions."""
    K, w, ratio = layer.kernel, step.weight, step.ratio
    averages = recursion.averages_of(network.activation, K, rtol, vertex=wants.vertex, hessian=wants.correction)

    def quartic(sets: Array) -> tuple[Array, float]:
        assert averages.fourth is not None
        return quartets(network.activation, sets, K, averages.fourth, rtol)

    after, errors = layer._replace(kernel=_within(step.source + w * averages.value)), [averages.error, layer.error]
    if wants.correction:
        correction = recursion.next_correction(layer.correction, layer.blocks, averages, w, ratio)
        after = after._replace(correction=correction)
    if wants.pairs or wants.correction:
        left = recursion.transport(averages, *np.indices(K.shape))
        source = recursion.pair_source(averages)
        after = after._replace(blocks=recursion.next_block(layer.blocks, source, left, left, w, ratio))
    if wants.tensor:
        i, j = recursion.sample_pairs(len(K))
        rows, columns = (i[:, None], j[:, None]), (i[None, :], j[None, :])
        source, error = recursion.quartet_source(averages, rows, columns, quartic)
        after = after._replace(matrix=recursion.next_matrix(layer.matrix, source, averages, w, ratio))
        errors.append(error)
    if wants.quadruples is not None:
        a, b, c, d = wants.quadruples.T
        rows, columns = _three_pairs(a, b, 2), _three_pairs(c, d, 1)
        source, error = recursion.quartet_source(averages, rows, columns, quartic)
        sides = recursion.transport(averages, a, b), recursion.transport(averages, c, d)
        after = after._replace(chosen=recursion.next_block(layer.chosen, source, *sides, w, ratio))
        errors.append(error)
    return after._replace(error=max(errors))


def _three_pairs(a: Array, b: Array, axis: int) -> tuple[Array, Array]:
    """First and second samples of the pairs aa, ab, bb along ``axis`` of a block."""
    first, second = np.stack([a, a, b], axis=-1), np.stack([a, b, b], axis=-1)
    return np.expand_dims(first, axis), np.expand_dims(second, axis)


def _within(K: Array) -> Array:
    """Symmetric, and no covariance beyond its variances by a rounding."""
    K = 0.5 * (K + K.T)
    root = np.sqrt(np.diag(K))
    limit = root[:, None] * root[None, :]
    result = np.clip(K, -limit, limit)
    result[np.diag_indices(len(K))] = np.diag(K)
    return result
