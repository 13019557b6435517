r"""Linear networks exactly at every width: mean and covariance of :math:`\tfrac1n\sum_ih_ih_i` as polynomials in 1/n.

With :math:`h^a = \sum_{i\le a}W^{a}\cdots W^{i+1}u^i` and Gaussian sources :math:`\langle u^iu^j\rangle = B_{ij}` per neuron,
everything reduces to averages of traces of words in the weights, which integration by parts shortens, Eq. (finite_width.29).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task

Word = tuple[int, ...]  # +k for the weights of label k, −k for their transpose, read as a cyclic product
MAX_LETTERS = 24


@dataclass(frozen=True)
class ExactLinear:
    r"""Exact moments of a linear network of width n.

    ``pairs`` (pair, 4) are state, state\_, sample, sample\_ of each pair of nodes; ``mean`` (pair,) and ``covariance``
    (pair, pair\_) those of :math:`\tfrac1n\sum_ih_ih_i`, ``*_coefficients`` (order, …) their expansion in 1/n.
    """

    pairs: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    mean_coefficients: np.ndarray
    covariance_coefficients: np.ndarray


def _flip(word: Word) -> Word:
    return tuple(-k for k in reversed(word))


def _canonical(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Cyclic rotations and transposes of a word have the same trace."""
    turns = lambda word: (w[i:] + w[:i] for w in (word, _flip(word)) for i in range(len(word)))  # noqa: E731
    return tuple(sorted(min(turns(word), default=()) for word in words))


@cache
def _traces(words: tuple[Word, ...]) -> dict[int, int]:
    """E Π tr(word) for weights of variance 1/n, as {power of n: coefficient}."""
    n_empty = sum(not word for word in words)
    words = tuple(word for word in words if word)
    if not words:
        return {n_empty: 1}
    (letter, *rest), others = words[0], words[1:]
    tail, shorter = tuple(rest), []
    for i, other in enumerate(tail):
        A, B = tail[:i], tail[i + 1 :]
        if other == -letter:
            shorter.append((A, B, *others))
        elif other == letter:
            shorter.append((_flip(A) + B, *others))
    for m, word in enumerate(others):
        left = others[:m] + others[m + 1 :]
        for i, other in enumerate(word):
            if abs(other) == abs(letter):
                joined = (_flip(tail) if other == letter else tail) + word[i + 1 :] + word[:i]
                shorter.append((joined, *left))
    total: dict[int, int] = {}
    for part in shorter:
        for power, coefficient in _traces(_canonical(part)).items():
            total[power + n_empty - 1] = total.get(power + n_empty - 1, 0) + coefficient
    return total


def sources(network: Network, task: Task) -> np.ndarray:
    """B, the covariance of biases and inputs, (state, state_, sample, sample_)."""
    depth = network.depth
    x = task.sequences(depth)
    x = np.pad(x, ((0, 0), (0, depth - x.shape[1]), (0, 0)))
    overlap = np.einsum("iad,jbd->abij", x, x) / x.shape[-1]
    same = np.eye(depth)
    masks = {name: np.ones_like(same) if getattr(network, name) == "tied" else same for name in ("biases", "inputs")}
    bias = (network.bias_variances[:, None] * masks["biases"])[:, :, None, None]
    return bias + (network.input_variances[:, None] * masks["inputs"])[:, :, None, None] * overlap


def exact_linear(network: Network, task: Task, width: int) -> ExactLinear:
    r"""Mean and covariance of :math:`\tfrac1n\sum_ih_ih_i` over all pairs of nodes, exact at any ``width``.

    Error: roundings; the traces are counted in whole numbers.
    Limits: linear activation, equal widths, few states (words of up to 24 letters, four times the number of
    transitions).
    """
    n = checks.integer("width", width, 1)
    if not network.activation.known_as("linear"):
        raise ValueError(f"`network` must be linear, got the activation {network.activation}.")
    if len(set(network.relative_widths)) > 1:
        raise ValueError("`widths` must all be equal.")
    if 4 * (network.depth - 1) > MAX_LETTERS:
        raise ValueError(f"`depth` must be at most {MAX_LETTERS // 4 + 1} for the loop equations, got {network.depth}.")
    B = sources(network, task)
    label = [(a, i) for a in range(network.depth) for i in range(task.n_samples)]
    pairs = [(*label[p], *label[q]) for p in range(len(label)) for q in range(p, len(label))]
    terms = [_terms(network, *pair) for pair in pairs]
    orders = 2 * network.depth + 2
    mean = np.zeros((orders, len(pairs)))
    covariance = np.zeros((orders, len(pairs), len(pairs)))
    for P, left in enumerate(terms):
        for word, weight, (i, j, alpha, beta) in left:
            _collect(mean[:, P], weight * B[i, j, alpha, beta], (word,), 1)
        for Q, right in enumerate(terms[: P + 1]):
            _covariance(covariance[:, P, Q], B, left, right)
            covariance[:, Q, P] = covariance[:, P, Q]
    powers = float(n) ** -np.arange(orders)
    swapped = np.array([(a, b, i, j) for a, i, b, j in pairs])
    return ExactLinear(swapped, powers @ mean, np.einsum("k,kpq->pq", powers, covariance), mean, covariance)


def _terms(network: Network, a: int, alpha: int, b: int, beta: int):
    """h^a·h^b = Σ_ij u^i (W^{a…i})ᵀ W^{b…j} u^j: the words with their weights and sources."""
    root = np.sqrt(network.weight_variances)
    word = lambda top, bottom: tuple(1 if network.weights == "tied" else s for s in range(top, bottom, -1))  # noqa: E731
    scale = lambda top, bottom: float(np.prod(root[bottom:top][::-1]))  # noqa: E731
    every = [(i, j) for i in range(a + 1) for j in range(b + 1)]
    terms = [(_flip(word(a, i)) + word(b, j), scale(a, i) * scale(b, j), (i, j, alpha, beta)) for i, j in every]
    return [term for term in terms if term[1]]


def _collect(target: np.ndarray, factor: float, words: tuple[Word, ...], normal: int) -> None:
    """Add factor · E Π tr(word) / n^normal to the coefficients of 1/n."""
    if factor:
        for power, coefficient in _traces(_canonical(words)).items():
            target[normal - power] += factor * coefficient


def _covariance(target: np.ndarray, B: np.ndarray, left, right) -> None:
    """Wick over the sources, minus the product of the means."""
    for word, weight, (i, j, alpha, beta) in left:
        for word_, weight_, (k, l, gamma, delta) in right:
            w = weight * weight_
            direct = w * B[i, j, alpha, beta] * B[k, l, gamma, delta]
            if direct:
                _collect(target, direct, (word, word_), 2)
                for power, first in _traces(_canonical((word,))).items():
                    for power_, second in _traces(_canonical((word_,))).items():
                        target[2 - power - power_] -= direct * first * second
            _collect(target, w * B[i, k, alpha, gamma] * B[j, l, beta, delta], (word + _flip(word_),), 2)
            _collect(target, w * B[i, l, alpha, delta] * B[j, k, beta, gamma], (word + word_,), 2)
