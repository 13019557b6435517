r"""Whether the matrices that are returned solve the equations, seen through random vectors.

Each equation is put back as a whole, with NumPy, and applied to a few random vectors: O(T²) instead of O(T³), and a wrong
entry shows in its row (Freivalds). The transformations of `march.rows` are built here anew.

A row's mismatch is compared with what its sums are made of, not with what is left of them: where training has converged
:math:`C_v = P\,C\,P^T` vanishes by cancellation. Hence every vector carries a size, and a product :math:`Ax` has the size
:math:`\sqrt{\sum_s A_{ts}^2x_s^2}` of sums of random sign, as rounding errors are (Higham & Mary 2019). Rows may also be
small after a decay; what feeds them is known to a fraction of the largest entries (`march.compressed`), so that `FLOOR`
times the largest row so far counts as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from widefield.theories.proportional.march.causal import State, has_sources
from widefield.theories.proportional.march.layers import Hidden, Pair
from widefield.theories.proportional.march.residual_layers import Stack
from widefield.theories.proportional.problem import Problem

N_PROBES = 3
FLOOR = 0.01  # with the tolerance 1e-10, 1e-12 of the largest row: what compression may leave out of a few factors
Matrix = Any  # NumPy where a JAX array stood


@dataclass(frozen=True)
class Vector:
    """Columns of numbers, and how large the terms were that they are sums of."""

    value: np.ndarray
    size: np.ndarray

    __array_ufunc__ = None  # so that matrix @ vector and number * vector come here

    @staticmethod
    def of(value: np.ndarray) -> "Vector":
        """Numbers that are given."""
        return Vector(value, np.abs(value))

    def __rmatmul__(self, matrix: Matrix) -> "Vector":
        value = matrix @ self.value
        size = np.sqrt(np.square(matrix, dtype=float) @ np.square(self.size))
        return Vector(value, np.maximum(np.abs(value), size))

    def __rmul__(self, factor: Matrix) -> "Vector":
        return Vector(factor * self.value, np.abs(factor) * self.size)

    def __add__(self, other: "Vector") -> "Vector":
        return Vector(self.value + other.value, self.size + other.size)

    def __sub__(self, other: "Vector") -> "Vector":
        return self + -1.0 * other

    def __getitem__(self, rows: slice) -> "Vector":
        return Vector(self.value[rows], self.size[rows])


Equation = tuple[Vector, list[Vector]]
Probe = tuple[Vector, Vector]


class Time:
    """Operations on functions of the first ``n`` (step, channel)."""

    def __init__(self, problem: Problem, n: int):
        self.problem, self.n, self.channels = problem, n, len(problem.overlap)
        self.step = np.arange(n) // self.channels
        self.ones = np.tile(np.eye(self.channels), (n // self.channels, 1))  # the constant function of every channel

    def memory(self, C: Matrix) -> np.ndarray:
        """η C at earlier steps only."""
        rates = np.repeat(self.problem.rates, self.channels)[: self.n]
        return np.where(self.step[:, None] > self.step[None, :], C, 0.0) * rates

    def gradient(self, d: Matrix, first: float = 1.0, rest: float | None = None) -> Matrix:
        """g = d(0) + γ d(t), or with other factors."""
        rest = self.problem.training.richness if rest is None else rest
        later = (self.step > 0)[:, None]
        constant = first * self.ones @ d[: self.channels]
        return constant + (rest * later * d if isinstance(d, Vector) else np.where(later, rest * d, 0.0))  # not 0 · inf

    def response(self, C_h: Matrix):
        """η γ C_h at earlier steps on g, as an action on the backward variables."""
        return lambda d: self.problem.training.richness * self.memory(C_h) @ self.gradient(d)

    def readout(self) -> tuple[np.ndarray, np.ndarray]:
        """The last layer's B and the covariance of its source."""
        return self.memory(self.ones @ self.ones.T), np.diag((self.step == 0).astype(float))

    def initial(self, d: Matrix) -> Matrix:
        """What the input layer sees of the backward variables, over γ."""
        return self.gradient(d, 0.0 if self.problem.training.centered else 1 / self.problem.training.richness, 1.0)


def congruent(transform, C: Matrix) -> Matrix:
    """T C Tᵀ of a symmetric C."""
    return transform(transform(C).T).T


def residual(problem: Problem, state: State, n_rows: int) -> float:
    """The largest mismatch of a row, relative to the terms that meet in it, over the first ``n_rows`` steps."""
    if not n_rows:
        return np.nan  # nothing is left to check
    time = Time(problem, n_rows * len(problem.overlap))
    numbers = np.random.default_rng(0).standard_normal((2, time.n, N_PROBES))
    probe = (Vector.of(numbers[0]), Vector.of(numbers[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        worst = [mismatch(*one).max(initial=0.0) for one in _equations(time, in_numpy(state, time.n), probe)]
    return float(np.max(worst))  # NaN stays


def mismatch(left: Vector, terms: list[Vector]) -> np.ndarray:
    """What is left of every row of an equation, relative to the size of its terms."""
    whole = sum(terms, -1.0 * left)
    gap, size = np.abs(whole.value).max(axis=1), whole.size.max(axis=1)
    scale = size + FLOOR * np.maximum.accumulate(size)
    scale[~np.isfinite(scale)] = np.nan  # nothing is small beside infinity
    return np.divide(gap, scale, out=np.zeros_like(gap), where=scale != 0)


def in_numpy(state: State, n: int) -> Any:
    """The first ``n`` rows and columns; matrices over two sources as (…, n, source, n)."""
    stacked = isinstance(state.layers, Stack)

    def cut(path: tuple, leaf: Matrix) -> np.ndarray:
        name, array = path[-1].name, np.asarray(leaf)
        if has_sources(path):
            array = array.reshape(*array.shape[:-1], 2, array.shape[-1] // 2)
        if stacked and path[0].name == "layers":
            return array[:, :n, ..., :n]
        if name in ("mean", "mean_error", "mean_field", "losses", "noise"):
            return array[:n]
        fresh = name == "train" and array.shape[0] != array.shape[1]  # at every step: no second time
        return array[:n] if fresh else array[:n, ..., :n]

    return jax.tree_util.tree_map_with_path(cut, state)


def layers_of(state: Any) -> list[Hidden]:
    """The layers, those of a stack one by one."""
    layers = state.layers
    if not isinstance(layers, Stack):
        return list(layers)
    parts = zip(*layers.pair, layers.feature, layers.gradient, strict=True)
    return [Hidden(Pair(forward, backward), feature, gradient) for forward, backward, feature, gradient in parts]


def _equations(time: Time, state: Any, probe: Probe) -> Iterator[Equation]:
    problem, inputs = time.problem, state.inputs
    layers, first = state.layers, layers_of(state)[0]
    a, u = problem.network.relative_widths, probe[0]
    K = a[0] / a[-1] * (first.pair.backward[:, 0] + time.memory(congruent(time.gradient, first.gradient)))
    yield inputs.memory @ u, [K @ u]
    yield inputs.initial @ u, [a[0] / a[-1] ** 2 / problem.width * congruent(time.initial, first.gradient) @ u]
    yield from _isotropic(time, inputs, probe) if problem.modes is None else _structured(time, inputs, probe)
    yield from (_residual if isinstance(layers, Stack) else _plain)(time, inputs, layers, probe)
    yield from _losses(time, inputs)


def _losses(time: Time, inputs) -> Iterator[Equation]:
    """The curves are the diagonals, and the parts of the test loss add up."""
    problem = time.problem
    column = lambda values: Vector.of(values[:, None])  # noqa: E731
    test, train, bias, width, data = map(column, inputs.losses.T)
    if problem.modes is None:
        squared = ((inputs.mean_error @ problem.overlap) * inputs.mean_error).sum(axis=1)
    else:
        squared = np.square(inputs.mean) @ problem.modes.power
    yield bias, [column(squared)]
    yield test, [column(np.diagonal(inputs.test))]
    yield train, [column(np.diagonal(inputs.train)) if np.isfinite(problem.data) else test]
    yield test, [bias, width, data, column(np.full(time.n, problem.teacher.label_noise))]


def _solved(pair: Any, A, B, probe: Probe) -> Iterator[Equation]:
    """P = (1, 0) + A Q and Q = (0, 1) + B P; ``A`` and ``B`` act on vectors."""
    u, r = probe
    h, g = (side[:, 0] @ u + side[:, 1] @ r for side in pair)
    yield h, [u, A(g)]
    yield g, [r, B(h)]


def _correlated(C: Matrix, solution: Matrix, C_u, C_r, u: Vector, *more: Vector) -> Iterator[Equation]:
    """C = P diag(C_u, C_r) Pᵀ + more, where ``more`` has met ``u`` already."""
    parts = [solution[:, i] @ (S @ (solution[:, i].T @ u)) for i, S in enumerate((C_u, C_r))]
    yield C @ u, [*parts, *more]


def _first_response(time: Time, inputs):
    """A¹, as an action on vectors, from the response of h⁰ to the initial weights."""
    problem = time.problem
    if problem.modes is None:
        response = (inputs.field if np.isfinite(problem.data) else inputs.error)[:, 0]
    elif inputs.transfer.size:
        response = -np.einsum("k,tks->ts", problem.modes.weight, inputs.transfer)
    else:
        response = np.zeros_like(inputs.memory)
    scale, later = 1 / (problem.width * problem.network.relative_widths[-1]), time.response(inputs.feature)
    return lambda g: scale * response @ time.initial(g) + later(g)


def _plain(time: Time, inputs, layers, probe: Probe) -> Iterator[Equation]:
    a = time.problem.network.relative_widths
    A, C_u = _first_response(time, inputs), inputs.feature
    for l, layer in enumerate(layers):
        B, C_r = time.readout()
        if l + 1 < len(layers):
            above, ratio = layers[l + 1], a[l + 1] / a[l]
            B = ratio * (above.pair.backward[:, 0] + time.memory(congruent(time.gradient, above.gradient)))
            C_r = ratio * above.gradient
        yield from _solved(layer.pair, A, lambda h, B=B: B @ h, probe)
        yield from _correlated(layer.feature, layer.pair.forward, C_u, C_r, probe[0])
        yield from _correlated(layer.gradient, layer.pair.backward, C_u, C_r, probe[0])
        responds, later = layer.pair.forward[:, 1], time.response(layer.feature)
        A, C_u = (lambda g, R=responds, later=later: R @ g + later(g)), layer.feature


def _residual(time: Time, inputs, layers: Any, probe: Probe) -> Iterator[Equation]:
    """The embedding of Eqs. (proportional.14), (proportional.15): Γ and Ω of every layer, and the pairs that join two."""
    depth, u, b2 = len(layers.feature), probe[0], time.problem.branch**2
    pairs, links, returns = (
        [Pair(*both) for both in zip(*pair, strict=True)] for pair in (layers.pair, layers.ahead, layers.back)
    )
    B_last, C_last = time.readout()
    C_g = [time.memory(congruent(time.gradient, layers.gradient[l])) for l in range(1, depth)]
    B = [b2 * (pair.backward[:, 0] + C) for pair, C in zip(pairs[1:], C_g, strict=True)]
    Omega = [*(back.backward[:, 0] + M for back, M in zip(returns, B, strict=True)), B_last]
    C_r = [*layers.returned[:-1], C_last]
    Gamma = _first_response(time, inputs)
    yield layers.driven[0] @ u, [inputs.feature @ u]
    for l, pair in enumerate(pairs):
        yield from _solved(pair, Gamma, lambda h, M=Omega[l]: M @ h, probe)
        yield from _correlated(layers.feature[l], pair.forward, layers.driven[l], C_r[l], u)
        yield from _correlated(layers.gradient[l], pair.backward, layers.driven[l], C_r[l], u)
        if l + 1 == depth:
            return
        ahead, back, above, feature = links[l], returns[l], layers.gradient[l + 1], layers.feature[l]
        later = time.response(feature)
        A = lambda g, R=pair.forward[:, 1], later=later: b2 * (R @ g + later(g))  # noqa: E731
        yield from _solved(ahead, Gamma, lambda h, B=B[l]: B @ h, probe)
        yield from _solved(back, A, lambda h, M=Omega[l + 1]: M @ h, probe)
        yield from _correlated(layers.driven[l + 1], ahead.forward, layers.driven[l], b2 * above, u, b2 * feature @ u)
        yield from _correlated(layers.returned[l], back.backward, b2 * feature, C_r[l + 1], u, b2 * above @ u)
        Gamma = lambda g, R=ahead.forward[:, 1], A=A: R @ g + A(g)  # noqa: E731


def _isotropic(time: Time, inputs, probe: Probe) -> Iterator[Equation]:
    """v = w* − r − K h⁰ and h⁰ = R_Δ v + u: responses and correlations."""
    problem, ones, (r, u) = time.problem, time.ones, probe
    v, h, mean_h = inputs.error, inputs.field, inputs.mean_field
    if np.isfinite(problem.data):
        R, C_u = inputs.propagator, inputs.train / problem.data
        yield R @ u, [u, v[:, 1] / problem.data @ (R @ u)]
        yield inputs.train @ u, [R @ (inputs.test @ (R.T @ u))]
        yield h[:, 0] @ r + h[:, 1] @ u, [u, R @ (v[:, 0] @ r + v[:, 1] @ u)]
    else:
        h, mean_h = v + np.stack([np.zeros((time.n,) * 2), np.eye(time.n)], axis=1), inputs.mean_error
        C_u = np.where(time.step[:, None] == time.step[None, :], inputs.test, 0.0) / problem.batch
    yield v[:, 0] @ r + v[:, 1] @ u, [-1.0 * r, -inputs.memory @ (h[:, 0] @ r + h[:, 1] @ u)]
    yield Vector.of(inputs.mean_error), [Vector.of(ones), -inputs.memory @ Vector.of(mean_h)]
    mean = lambda m: m @ (problem.overlap @ (m.T @ u))  # noqa: E731
    noise = problem.teacher.label_noise * ones @ (ones.T @ u)
    yield from _correlated(inputs.test, v, inputs.initial, C_u, u, mean(inputs.mean_error), noise)
    yield from _correlated(inputs.feature, h, inputs.initial, C_u, u, mean(mean_h))


def _structured(time: Time, inputs, probe: Probe) -> Iterator[Equation]:
    """H_k = 1 − λ_k K H_k of every mode, and the sums over modes."""
    modes, u = time.problem.modes, probe[0]
    assert modes is not None
    mean, one = Vector.of(inputs.mean), np.ones((time.n, 1))
    yield mean, [Vector.of(np.ones_like(inputs.mean)), -modes.target * (inputs.memory @ mean)]
    noise = time.problem.teacher.label_noise * one @ (one.T @ u)
    test, field = [(inputs.mean * modes.power * f) @ (inputs.mean.T @ u) for f in (1.0, modes.target)]
    if inputs.transfer.size:
        E = (np.diagonal(inputs.test) / time.problem.batch)[:, None]
        for k, (node, weight) in enumerate(zip(modes.covariance, modes.weight, strict=True)):
            H = inputs.transfer[:, k]
            yield H @ u, [u, -node * (inputs.memory @ (H @ u))]
            width = H @ (inputs.initial @ (H.T @ u))
            lost = E * (u - H.T @ u)
            test = test + weight * width + weight / node * (lost - H @ lost)
            field = field + weight * node * width + weight * H @ (E * (H.T @ u))
    yield inputs.test @ u, [test, noise]
    yield inputs.feature @ u, [field]
