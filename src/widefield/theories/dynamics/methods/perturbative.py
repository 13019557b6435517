r"""Leading order in the squared richness, Eq. (dynamics.28): :math:`f_0 + \gamma_0^2f_2` of outputs, and of every kernel likewise.

Deep linear networks have closed forms, Eqs. (dynamics.30), (dynamics.31), on the grid of steps, with the sums of Eq. (dynamics.29) over
the static errors, in units in which all variances are one: nothing is sampled or marched, and the error is that of the static
limit. Cost T P². Test inputs are rows whose errors are zero.

All others, recurrent ones among them, are measured: all quantities are even in the richness. The march is run at small ones, with the same paths at each, and the
polynomial in their squares through the results gives both orders. Averages over finitely many paths are not even, which
would leave an error of 1/richness: those are run with either sign, as if all backward noises had changed theirs. Outputs
and the tangent kernel take the order zero from the static limit, which is exact. Error: the standard error over batches, and
what the outputs change by without the largest richness.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from widefield.theories.dynamics.curves import Estimate, TrainingCurves, over_batches, relative_error, size
from widefield.theories.dynamics.march.batch import Batch
from widefield.theories.dynamics.memory import FIRST_PATHS
from widefield.theories.dynamics.methods import lazy, paths
from widefield.theories.dynamics.problem import Problem, squared
from widefield.theories.dynamics.request import AVERAGED, Request

# Richnesses, times the size of the labels, at which the orders are measured: the expansion is in this product. Smaller ones
# would lose digits to the directions that the march drops.
EXACT, SAMPLED = (0.05, 0.1, 0.15, 0.2, 0.25), (0.05, -0.05, 0.1, -0.1, 0.15, -0.15)


def covers(problem: Problem, request: Request) -> bool:
    """Any network."""
    return request.method == "perturbative"


def solve(problem: Problem, request: Request) -> TrainingCurves:
    """In closed form, or with four times the paths, unless their number is chosen and no tolerance is."""
    if has_closed_form(problem):
        return _closed_form(problem, request)
    curves = _orders(problem, request)
    adaptive = request.rtol is not None or request.paths is None
    while adaptive and curves.failure is None and curves.error > curves.rtol and curves.n_paths is not None:
        if not paths.may_have(problem, request, 4 * curves.n_paths):
            break
        curves = _orders(problem, replace(request, paths=4 * curves.n_paths))
    return paths.with_note(curves)


def _orders(problem: Problem, request: Request) -> TrainingCurves:
    """With the paths that are asked for, or those that directions need."""
    scale = max(1.0, float(np.linalg.norm(problem.labels)))
    richnesses = np.array([point / scale for point in (EXACT if problem.exact else SAMPLED)])
    at = [replace(problem, richness=float(richness)) for richness in richnesses]
    every = lambda n: (n, [paths.all_batches(each, request, n) for each in at])  # noqa: E731
    n_paths, levels = (
        every(None)
        if problem.exact
        else paths.with_enough_paths(problem, request, every, request.paths or FIRST_PATHS, request.paths is not None)
    )
    static = lazy.solve(problem, replace(request, fields=(), at=()))
    marched = [paths.gather(problem, level, request, n_paths) for level in levels]
    failed = [one for one in (static, *marched) if one.failure is not None or not one.checks["residual"].met]
    if failed:
        return failed[0]
    zeroth, second = _weights(richnesses)

    def to_second_order(get: Callable[[Batch], np.ndarray], known: Estimate | None = None) -> list[np.ndarray]:
        """Of every batch."""
        values = [np.stack([get(one) for one in same]) for same in zip(*levels, strict=True)]
        first = [np.tensordot(zeroth, v, axes=1) if known is None else known.value for v in values]
        orders = zip(first, values, strict=True)
        return [a + problem.richness**2 * np.tensordot(second, v, axes=1) for a, v in orders]

    asked = [name for name in AVERAGED if name in request.fields]
    of = lambda name: lambda one: one.averages[name]  # noqa: E731
    kernels = {name: over_batches(to_second_order(of(name))) for name in asked}
    outputs = to_second_order(lambda one: one.prediction, static.prediction)
    prediction = over_batches(outputs)
    loss = replace(over_batches([problem.losses(one) for one in outputs]), value=problem.losses(prediction.value))
    fewer = np.abs(richnesses) < np.abs(richnesses).max()
    values = [one.prediction.value for one in marched]
    kept = [value for value, keep in zip(values, fewer, strict=True) if keep]
    change = np.tensordot(second, values, axes=1) - np.tensordot(_weights(richnesses[fewer])[1], kept, axes=1)
    cut = problem.richness**2 * np.abs(change)  # what outputs change by without the largest richness
    sampled = relative_error(prediction, problem.readouts, cut, problem.least_output)
    if request.ntk:
        kernels["ntk"] = over_batches(to_second_order(lambda one: np.asarray(one.ntk), static.kernels["ntk"]))
    return replace(
        marched[-1], prediction=prediction, loss=loss, draws={}, kernels=kernels,
        error=float(np.max([static.error, sampled])), correction=_correction(problem, static, prediction, kernels),
    )  # fmt: skip


def _correction(problem: Problem, static: TrainingCurves, prediction: Estimate, kernels: dict[str, Estimate]) -> float:
    """The size of the term of order γ0² relative to the static one: outputs of readouts, and the tangent kernel if asked for."""
    read = list(problem.readouts)
    first = static.prediction.value[:, read]
    shares = [size(prediction.value[:, read] - first, 0.0) / size(first, problem.least_output)]
    if "ntk" in kernels:
        tangent = static.kernels["ntk"].value
        shares.append(size(kernels["ntk"].value - tangent, 0.0) / size(tangent, np.finfo(float).tiny))
    return float(np.max(shares))


def _weights(richnesses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What gives the orders 0 and 2 of the even polynomial through values at the richnesses."""
    squares = (richnesses / richnesses.max()) ** 2
    inverse = np.linalg.pinv(np.vander(squares, len(set(squares)), increasing=True))
    return inverse[0], inverse[1] / richnesses.max() ** 2


def has_closed_form(problem: Problem) -> bool:
    """A deep linear network without biases, driven at the first state and read out at the last, one output, squared loss."""
    network = problem.network
    plain = problem.exact and problem.by_layer and problem.readouts == (network.depth - 1,)
    if not plain or problem.loss is not squared:
        return False
    return not np.any(network.bias_variances) and problem.labels.shape[2] == 1 and _gain(problem) > 0


def _closed_form(problem: Problem, request: Request) -> TrainingCurves:
    """The static limit and its corrections."""
    static = lazy.solve(problem, replace(request, fields=(), at=()))
    if static.failure is not None:
        return static
    n, square = problem.task.n_samples, problem.richness**2
    wrong = problem.labels[0, :, 0] - static.prediction.value[:, -1, :n, 0]
    x = problem.task.sequences(problem.network.depth, test=True)[:, 0]
    K = x @ x[:n].T / x.shape[1]
    kicks = problem.rates[:, None] * _gain(problem) * wrong  # unit variances: labels / gain, rate · gain²
    a = kicks @ K.T
    c = _before(a)
    m = _before(a[:, :n, None] * c[:, None, :n])
    sums = Sums(a, c, _before(kicks), m, _before(np.sum(kicks * c[:, :n], axis=1)), kicks, K)
    f2 = _outputs(problem, sums)
    prediction = static.prediction.value.copy()
    prediction[:, -1, :, 0] += square * f2
    tangent, second, kernels = static.kernels["ntk"].value, _tangent(problem, sums), _kernels(problem, sums, request)
    if "ntk_alignment" in request.fields:
        kernels["ntk_alignment"] = Estimate(_cosine(problem, tangent[:, 0, 0], second))
    outputs = Estimate(prediction)
    if request.ntk:
        kernels["ntk"] = Estimate(tangent + square * second[:, None, None])
    return replace(
        static, prediction=outputs, diagnostics={"solver": "closed form"}, kernels=kernels,
        loss=Estimate(problem.losses(prediction)),
        correction=_correction(problem, static, outputs, kernels),
    )  # fmt: skip


class Sums(NamedTuple):
    """a and c (row, input) of Eq. (dynamics.29) of training and test inputs, b (row, sample), m (row, sample, sample), q (row,), and ηΔ."""

    moved: np.ndarray
    c: np.ndarray
    b: np.ndarray
    m: np.ndarray
    q: np.ndarray
    kicks: np.ndarray
    input_kernel: np.ndarray  # (input, sample)

    def features(self, depth: int, layer: int, at: np.ndarray) -> np.ndarray:
        """Φ^{layer,2} (at, at_, sample, sample_)."""
        k = np.arange(1, layer + 1)
        m, c = self.m[at], self.c[at, : self.m.shape[1]]
        mixed = m[:, None] + m[None].swapaxes(2, 3)
        return np.sum(k * (depth + 1 - k)) * mixed + np.sum(k**2) * np.einsum("tp,sq->tspq", c, c)

    def gradients(self, depth: int, layer: int, at: np.ndarray) -> np.ndarray:
        """G^{layer,2} (at, at_), the same for all samples."""
        k = np.arange(layer, depth + 1)
        q = self.q[at]
        return (
            np.sum(k * (depth + 1 - k)) * (q[:, None] + q)
            + np.sum((depth + 1 - k) ** 2) * self.b[at] @ self.c[at, : self.m.shape[1]].T
        )


def _before(rows: np.ndarray) -> np.ndarray:
    """Sums over all earlier rows."""
    return np.cumsum(rows, axis=0) - rows


def _gain(problem: Problem) -> float:
    """Outputs in units of those of a network whose variances are one."""
    network = problem.network
    return float(np.sqrt(network.input_variances[0] * np.prod(network.weight_variances) * network.readout_variance))


def _outputs(problem: Problem, sums: Sums) -> np.ndarray:
    """f2 (row, input)."""
    L, n, gain = problem.network.depth, problem.task.n_samples, _gain(problem)
    a, c, K = sums.moved, sums.c, sums.input_kernel
    l = np.arange(1, L + 1)
    mixed = np.cumsum(l * (L + 1 - l)).sum()  # Σ_ℓ Σ_{k≤ℓ}
    squares = np.cumsum(l**2).sum()
    along, across = np.empty_like(a), np.empty_like(a)  # m b and (ηΔ) m, with an input that may be a test input
    into, out = np.zeros_like(K), np.zeros_like(K)  # m of inputs with samples, and its transpose
    for t in range(len(a)):
        along[t], across[t] = into @ sums.b[t], out @ sums.kicks[t]
        into, out = into + np.outer(a[t], c[t, :n]), out + np.outer(c[t], a[t, :n])
    later = along + _before(across)
    source = np.sum(l**2 * (L + 1 - l)) * _before(a * sums.q[:, None])
    source += mixed * later + squares * c * sums.q[:, None]
    f2, learned = np.empty_like(source), np.zeros(source.shape[1])
    for t, rate in enumerate(problem.rates):
        f2[t] = learned + source[t]
        learned = learned - (L + 1) * rate * gain**2 * K @ f2[t, :n]
    return gain * f2


def _tangent(problem: Problem, sums: Sums) -> np.ndarray:
    """Second order (row, sample, sample_) of the tangent kernel Σ G^{ℓ+1} Φ^ℓ at equal times."""
    L, K = problem.network.depth, sums.input_kernel[: problem.task.n_samples]
    total = np.zeros((len(sums.q), *K.shape))
    for t in range(len(total)):
        row = np.array([t])
        for l in range(1, L + 1):
            total[t] += sums.features(L, l, row)[0, 0] + sums.gradients(L, l, row)[0, 0] * K
    return _gain(problem) ** 2 * total


def _kernels(problem: Problem, sums: Sums, request: Request) -> dict[str, Estimate]:
    """Two-time kernels at the chosen steps and the alignment of every layer, of training samples."""
    network, n, at, square = problem.network, problem.task.n_samples, np.asarray(request.at, int), problem.richness**2
    L, K, w = network.depth, sums.input_kernel[:n], network.weight_variances
    kernels: dict[str, Estimate] = {}
    layers = range(1, L + 1)
    if "feature_kernel" in request.fields:
        below = [network.input_variances[0] * np.prod(w[: l - 1]) for l in layers]
        rows = [below[l - 1] * (K + square * sums.features(L, l, at)) for l in layers]
        kernels["feature_kernel"] = Estimate(np.stack(rows)[:, None])
    if "gradient_kernel" in request.fields:
        above = [network.readout_variance * np.prod(w[l - 1 :]) for l in layers]
        one = lambda l: np.multiply.outer(1 + square * sums.gradients(L, l, at), np.ones((n, n)))  # noqa: E731
        kernels["gradient_kernel"] = Estimate(np.stack([above[l - 1] * one(l) for l in layers])[None, None, :, None])
    if "alignment" in request.fields:
        steps = [np.array([t]) for t in range(len(sums.q))]
        change = [np.stack([sums.features(L, l, t)[0, 0] for t in steps]) for l in layers]
        cosines = [_cosine(problem, np.broadcast_to(K, one.shape), one) for one in change]
        kernels["alignment"] = Estimate(np.stack(cosines, axis=1))
    return kernels


def _cosine(problem: Problem, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosine (row,) of first + γ0² second with the kernel of the labels, to order γ0²."""
    y = problem.labels[0, :, 0]
    along = lambda kernel: np.einsum("tpq,p,q->t", kernel, y, y)  # noqa: E731
    size = np.sqrt(np.sum(first**2, axis=(1, 2)))
    slope = along(second) - along(first) * np.sum(first * second, axis=(1, 2)) / size**2
    return (along(first) + problem.richness**2 * slope) / (size * np.sum(y**2))
