r"""The 1/n expansion of deep networks with untied weights, layer by layer and without inverse kernels.

Eqs. (finite_width.2), (finite_width.3), (finite_width.4), with Gaussian derivatives in place of inverse metrics:
:math:`D_{12} = \partial F_{12}/\partial(K_{11}, K_{12}, K_{22})` by Price's theorem, Eq. (finite_width.5).
:math:`V_{(12)(34)}` needs :math:`V` on {11, 12, 22} × {33, 34, 44} alone: a 3×3 *block*, closed under the recursion.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from widefield.answer.progress import bar
from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.theories.finite_width.untied.averages import (
    Advance,
    Averages,
    averages_of,
    is_fast,
    of_three_or_four,
    quartets,
    sets_of_four,
)

Array = np.ndarray


class Wants(NamedTuple):
    """What to march: V on pairs, G1 (which needs it), the full V, V on chosen quadruples (quadruple, 4) of sample indices."""

    pairs: bool
    correction: bool
    tensor: bool = False
    quadruples: Array | None = None

    @property
    def vertex(self) -> bool:
        return self.pairs or self.tensor or self.quadruples is not None


class Layer(NamedTuple):
    """K, G1 (sample, sample) and V as pair blocks (sample, sample, 3, 3), matrix (pair, pair), blocks of quadruples."""

    kernel: Array
    correction: Array
    blocks: Array
    matrix: Array
    chosen: Array
    error: float


class Step(NamedTuple):
    """Parameters between one layer and the next: C_W, C_b with the inputs that arrive, n/n₋."""

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
    return sources[0], [Step(float(w), s, r) for w, s, r in zip(weights, sources[1:], ratios, strict=False)]


def feeding_widths(network: Network, width: int) -> Array:
    """n_{ℓ−1} of every layer ℓ; infinite for the first, whose outputs are exactly Gaussian."""
    n_layers = network.depth + (network.readout_variance is not None)
    return np.asarray([np.inf, *network.sizes(width)][:n_layers])


class Sources(NamedTuple):
    """One-neuron covariances that need sets of four samples: pairs ``left`` and ``right``, their sets, and what each is."""

    left: tuple[Array, Array]
    right: tuple[Array, Array]
    sets: Array
    entry: Array

    @classmethod
    def of(cls, left: tuple[Array, Array], right: tuple[Array, Array], n: int) -> "Sources":
        parts = (*(v[..., :, None] for v in left), *(v[..., None, :] for v in right))
        return cls(left, right, *sets_of_four(np.stack(np.broadcast_arrays(*parts), axis=-1), n))


def march(
    title: str, activation: Activation, K: Array, made: list[Step], wants: Wants, rtol: float, progress: bool | None
) -> Iterator[Layer]:
    """The layers one after the other, beginning with the first, which is Gaussian: nothing fluctuates."""
    n = len(K)
    every = np.triu_indices(n)
    tensor = Sources.of(every, every, n) if wants.tensor else None
    chosen, n_chosen = None, 0
    if wants.quadruples is not None:
        n_chosen = len(wants.quadruples)
        a, b, c, d = wants.quadruples.T
        left, right = ((np.stack([p, p, q], axis=-1), np.stack([p, q, q], axis=-1)) for p, q in ((a, b), (c, d)))
        chosen = Sources.of(left, right, n)
    n_hard = sum(int(of_three_or_four(part.sets).sum()) for part in (tensor, chosen) if part is not None)
    n_pairs = len(every[0]) if wants.tensor else 0
    blocks = np.zeros((n, n, 3, 3) if wants.pairs else (0, 0, 3, 3))
    layer = Layer(_within(K), np.zeros((n, n)), blocks, np.zeros((n_pairs,) * 2), np.zeros((n_chosen, 3, 3)), 0.0)
    by_pair = 0.05 if activation.breaks and not is_fast(activation) else 5e-6
    each = 5e-3 + by_pair * n**2 + n_hard * (1e-4 if is_fast(activation) else 0.1)  # seconds
    with bar(title, len(made) * (1 + n_hard), progress, len(made) * each) as advance:
        yield layer
        for step in made:
            with np.errstate(over="ignore", invalid="ignore"):
                layer = _next_layer(activation, layer, step, wants, tensor, chosen, rtol, advance)
            advance(1)
            yield layer


def _next_layer(
    activation: Activation,
    layer: Layer,
    step: Step,
    wants: Wants,
    tensor: Sources | None,
    chosen: Sources | None,
    rtol: float,
    advance: Advance,
) -> Layer:
    """One step of all recursions."""
    K, w, ratio = layer.kernel, step.weight, step.ratio
    averages = averages_of(activation, K, rtol, vertex=wants.vertex, hessian=wants.correction)
    after, errors = layer._replace(kernel=_within(step.source + w * averages.value)), [averages.error, layer.error]

    def source(part: Sources) -> Array:
        moment, error = quartets(activation, part.sets, K, averages, rtol, advance)
        errors.append(error)
        return moment[part.entry] - averages.value[part.left][..., :, None] * averages.value[part.right][..., None, :]

    if wants.correction:
        correction = next_correction(layer.correction, layer.blocks, averages, w, ratio)
        after = after._replace(correction=correction)
    if wants.pairs:
        left = transport(averages, *np.indices(K.shape))
        after = after._replace(blocks=next_block(layer.blocks, pair_source(averages), left, left, w, ratio))
    if tensor is not None:
        after = after._replace(matrix=_next_matrix(layer.matrix, source(tensor), averages, w, ratio))
    if chosen is not None:
        one, two = (transport(averages, i[:, 1], j[:, 1]) for i, j in (chosen.left, chosen.right))
        after = after._replace(chosen=next_block(layer.chosen, source(chosen), one, two, w, ratio))
    return after._replace(error=max(errors))


def _within(K: Array) -> Array:
    """Symmetric, and no covariance beyond its variances by a rounding."""
    K = 0.5 * (K + K.T)
    root = np.sqrt(np.diag(K))
    limit = root[:, None] * root[None, :]
    result = np.clip(K, -limit, limit)
    result[np.diag_indices(len(K))] = np.diag(K)
    return result


# Blocks: V over {11, 12, 22} × {33, 34, 44}, shape (..., 3, 3).


def transport(averages: Averages, i: Array | int, j: Array | int) -> Array:
    """∂(F_ii, F_ij, F_jj)/∂(K_ii, K_ij, K_jj), shape (..., 3, 3)."""
    itself = averages.gradient.sum(axis=0).diagonal()
    zero = np.zeros(np.broadcast_shapes(np.shape(i), np.shape(j)))
    rows = [
        [itself[i] + zero, zero, zero],
        [averages.gradient[k][i, j] for k in range(3)],
        [zero, zero, itself[j] + zero],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def next_block(block: Array, source: Array, left: Array, right: Array, weight: float, ratio: float) -> Array:
    """V' on blocks, from V, the one-neuron covariance ``source`` and the transports of the two pairs."""
    return weight**2 * (source + ratio * left @ block @ right.swapaxes(-1, -2))


def pair_source(averages: Averages) -> Array:
    """Cov(σσ, σσ) of one neuron over {11, 12, 22}², for all pairs of samples: (sample, sample, 3, 3)."""
    cubic, square, value = averages.cubic, averages.square, averages.value
    assert cubic is not None and square is not None
    fourth, second, one = np.diag(square), np.diag(value), np.ones_like(value)
    rows = [
        [fourth[:, None] * one, cubic, square],
        [cubic, square, cubic.T],
        [square, cubic.T, fourth[None, :] * one],
    ]
    moment = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    mean = np.stack([second[:, None] * one, value, second[None, :] * one], axis=-1)
    return moment - mean[..., :, None] * mean[..., None, :]


def next_correction(correction: Array, block: Array, averages: Averages, weight: float, ratio: float) -> Array:
    """G1' of all pairs from G1 and V on pairs."""
    assert averages.hessian is not None
    diagonal = np.diag(correction)
    left, middle, right = averages.gradient
    drift = left * diagonal[:, None] + middle * correction + right * diagonal[None, :]
    return weight * ratio * (drift + 0.5 * np.einsum("abij,ijab->ij", averages.hessian, block))


# The full tensor, as a matrix over unordered pairs i ≤ j.


def _next_matrix(V: Array, source: Array, averages: Averages, weight: float, ratio: float) -> Array:
    """V' over unordered pairs (pair, pair)."""
    i, j = np.triu_indices(len(averages.value))
    position = _positions(len(averages.value))
    parts = position[i, i], position[i, j], position[j, j]
    weights = [averages.gradient[k][i, j] for k in range(3)]
    along = sum(w[:, None] * V[p] for w, p in zip(weights, parts, strict=True))
    both = sum(w[None, :] * along[:, p] for w, p in zip(weights, parts, strict=True))
    return weight**2 * (source + ratio * both)


def unfold(V: Array, n: int) -> Array:
    """(pair, pair) to (sample, sample, sample, sample)."""
    position = _positions(n)
    return V[position[:, :, None, None], position[None, None, :, :]]


def _positions(n: int) -> Array:
    """Of every pair of samples among the unordered ones."""
    position = np.empty((n, n), dtype=int)
    i, j = np.triu_indices(n)
    position[i, j] = position[j, i] = np.arange(len(i))
    return position
