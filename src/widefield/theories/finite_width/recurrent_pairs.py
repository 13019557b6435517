r"""Nodes, pairs of nodes and the response of the covariance: the leading order of the 1/n theory with tied weights.

A node p = (a, α) is a state of a sample, p⁻ = (a−1, α). Given the other neurons, one neuron's nodes are Gaussian with

.. math::  \hat C_{pq} = B_{pq} + M_{pq}\frac{w}{n}\sum_i\varphi(h_i^{p^-})\varphi(h_i^{q^-}),

a random matrix that fluctuates about the solution C = m(C) of the prior. Pairs are unordered. Only pairs of two states
after the first fluctuate: they and the pairs of outputs (untied, w → v) are the *rows*.
Theory page: finite_width_recurrent, "Exact starting point" and "Expansion".
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from widefield.gaussian import expectation
from widefield.gaussian.closed import _kink_slope
from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.prior.solve import prior

ALMOST = 32 * float(np.finfo(float).eps)


@dataclass(frozen=True)
class Nodes:
    """Different nodes of all hidden states.

    ``of`` (state, sample) is the node of a state of a sample; ``previous`` the node one state earlier, −1 at state 0;
    ``C`` the covariance at infinite width; ``live`` marks nodes whose covariances fluctuate.
    """

    of: np.ndarray
    state: np.ndarray
    previous: np.ndarray
    C: np.ndarray
    live: np.ndarray


@dataclass(frozen=True)
class Rows:
    """The fluctuating pairs, later states after earlier ones, outputs last.

    Row P averages φ(``x``)φ(``y``) with ``weight`` M_P w; ``of`` (node, node\\_) is the row of a pair of hidden nodes and
    ``output`` (sample, sample\\_) that of a pair of outputs, −1 where the pair does not fluctuate.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    of: np.ndarray
    output: np.ndarray

    def __len__(self) -> int:
        return len(self.x)


def find_nodes(network: Network, task: Task) -> Nodes:
    """The nodes of a network on a task; samples that coincide at a state (duplicate inputs) are one node there."""
    depth, n = network.depth, task.n_samples
    hidden = prior(network, task, quantities=("hidden",), progress=False).hidden.values
    of = np.zeros((depth, n), int)
    first: list[tuple[int, int]] = []
    for a in range(depth):
        own: list[int] = []
        for alpha in range(n):
            q = hidden[a, a, alpha, alpha]
            for node in own:
                beta = first[node][1]
                p, c = hidden[a, a, beta, beta], hidden[a, a, alpha, beta]
                if abs(q - c) <= ALMOST * q and abs(p - c) <= ALMOST * q:
                    of[a, alpha] = node
                    break
            else:
                of[a, alpha] = len(first)
                own.append(len(first))
                first.append((a, alpha))
    state, sample = np.transpose(first)
    C = hidden[state[:, None], state, sample[:, None], sample]
    C = 0.5 * (C + C.T)
    previous = np.array([of[a - 1, alpha] if a else -1 for a, alpha in first])
    return Nodes(of, state, previous, C, (state > 0) & (np.diag(C) > 0))


def find_rows(network: Network, nodes: Nodes) -> Rows:
    """All fluctuating pairs, in an order in which each depends on earlier ones only."""
    live = np.flatnonzero(nodes.live)
    pairs = [(p, q) for p in live for q in live if p <= q]
    pairs.sort(key=lambda pair: max(nodes.state[pair[0]], nodes.state[pair[1]]))
    same = lambda p, q: network.weights == "tied" or nodes.state[p] == nodes.state[q]  # noqa: E731
    w = np.concatenate([[0.0], network.weight_variances])
    x, y = ([int(nodes.previous[pair[k]]) for pair in pairs] for k in (0, 1))
    weight = [w[nodes.state[p]] * same(p, q) for p, q in pairs]
    of = np.full(nodes.C.shape, -1)
    for row, (p, q) in enumerate(pairs):
        of[p, q] = of[q, p] = row
    last = nodes.of[-1]
    output = np.full((len(last), len(last)), -1)
    if network.readout_variance is not None:
        ends = np.unique(last)
        known = {}
        for i, p in enumerate(ends):
            for q in ends[i:]:
                known[p, q] = known[q, p] = len(x)
                x.append(int(p))
                y.append(int(q))
                weight.append(network.readout_variance)
        output = np.array([[known[p, q] for q in last] for p in last])
    return Rows(np.array(x, int), np.array(y, int), np.array(weight, float), of, output)


@dataclass(frozen=True)
class Response:
    """First and second derivatives of m, and what they make.

    ``mean`` <φφ> of every row; ``D`` (row, node pair) = ∂m_P/∂C_E with all pairs E of hidden nodes as columns (numbered
    by ``column``); ``R`` = (1 − D)⁻¹ (row, row\\_); ``second`` (row, 6) = ∂²m_P over {xx·xx, xx·xy, xx·yy, xy·xy, xy·yy,
    yy·yy}; ``error`` the largest error estimate of an average, relative to its scale.
    """

    mean: np.ndarray
    D: np.ndarray
    R: np.ndarray
    second: np.ndarray
    column: np.ndarray
    error: float


def respond(activation: Activation, nodes: Nodes, rows: Rows) -> Response:
    """D, R and m'' by Price's theorem, closed or by Hermite series; one triangular solve."""
    P = len(nodes.C)
    column = np.zeros((P, P), int)
    upper = np.triu_indices(P)
    column[upper] = column.T[upper] = np.arange(len(upper[0]))
    x, y, w = rows.x, rows.y, rows.weight
    average = _Averages(activation, nodes.C, x, y)
    mean, slope = average((0, 0)), average((1, 1))
    left, right = average((2, 0)), average((0, 2))
    D, index = np.zeros((len(rows), len(upper[0]))), np.arange(len(rows))
    np.add.at(D, (index, column[x, y]), w * slope)
    np.add.at(D, (index, column[x, x]), 0.5 * w * left)
    np.add.at(D, (index, column[y, y]), 0.5 * w * right)
    inner = np.zeros((len(rows), len(rows)))
    p, q = np.nonzero(np.triu(rows.of >= 0))
    inner[:, rows.of[p, q]] = D[:, column[p, q]]
    R = scipy.linalg.solve_triangular(np.eye(len(rows)) - inner, np.eye(len(rows)), lower=True, unit_diagonal=True)
    return Response(mean, D, R, w[:, None] * _second(activation, nodes, rows, average), column, average.error)


class _Averages:
    """Averages <φ^(i)(x)φ^(j)(y)> over the rows, with the largest relative error met."""

    def __init__(self, activation: Activation, C: np.ndarray, x: np.ndarray, y: np.ndarray):
        self.activation = activation
        q, p = C[x, x], C[y, y]
        limit = np.sqrt(q * p)
        self.q, self.p, self.c = q, p, np.where(x == y, q, np.clip(C[x, y], -limit, limit))
        self.error = 0.0

    def __call__(self, orders: tuple[int, int], chosen: np.ndarray | None = None) -> np.ndarray:
        chosen = np.ones(len(self.q), bool) if chosen is None else chosen
        if max(orders) > 1 and _kink_slope(self.activation) is not None:  # a dead node has φ = 0 and does not fluctuate
            chosen = chosen & (self.q > 0) & (self.p > 0)
        value = np.zeros(len(self.q))
        if chosen.any():
            n_chosen = int(chosen.sum())
            more = 2 ** max(int(n_chosen - 1).bit_length(), 6) - n_chosen  # few shapes to compile
            q, p, c = (np.pad(v[chosen], (0, more), mode="edge") for v in (self.q, self.p, self.c))
            found = expectation(self.activation, q, p, c, orders)
            value[chosen] = found.value[:n_chosen]
            self.error = max(self.error, float(np.max(found.error / (np.abs(found.value) + 1.0))))
        return value


def _second(activation: Activation, nodes: Nodes, rows: Rows, average: _Averages) -> np.ndarray:
    """∂²<φφ>, over the six products of {xx, xy, yy}; zero where nothing fluctuates."""
    x_lives, y_lives, one = nodes.live[rows.x], nodes.live[rows.y], rows.x == rows.y
    used = rows.weight != 0
    second = np.zeros((len(rows), 6))
    kinked = _kink_slope(activation) is not None
    if kinked:  # <φ²> of one node is linear in its variance
        _refuse_degenerate(average, used & ~one & (x_lives | y_lives))
        used = used & ~one
    for number, orders, factor, chosen in (
        (0, (4, 0), 0.25, x_lives), (1, (3, 1), 0.5, x_lives & y_lives), (2, (2, 2), 0.25, x_lives & y_lives),
        (3, (2, 2), 1.0, x_lives & y_lives), (4, (1, 3), 0.5, x_lives & y_lives), (5, (0, 4), 0.25, y_lives),
    ):  # fmt: skip
        second[:, number] = factor * average(orders, used & chosen)
    # One node: all six products are the same one, counted as often as in the quadratic form.
    second[one, 0] = second[one] @ np.array([1.0, 2.0, 2.0, 1.0, 2.0, 1.0])
    second[one, 1:] = 0.0
    return second


def _refuse_degenerate(average: _Averages, chosen: np.ndarray) -> None:
    if np.any(chosen & (average.q > 0) & (average.p > 0) & (np.abs(average.c) >= np.sqrt(average.q * average.p))):
        raise ValueError(
            f"`network` must not make two states of {average.activation} exactly parallel or opposite: the curvature of "
            "<φφ> is infinite there. Perturb the inputs, or add a bias."
        )


def curvature(V: np.ndarray, nodes: Nodes, rows: Rows, second: np.ndarray) -> np.ndarray:
    """½ m'':V of every row."""
    wide = np.zeros((len(V) + 1, len(V) + 1))  # row −1: no fluctuation
    wide[:-1, :-1] = V
    xx, xy, yy = rows.of[rows.x, rows.x], rows.of[rows.x, rows.y], rows.of[rows.y, rows.y]
    products = ((xx, xx, 1), (xx, xy, 2), (xx, yy, 2), (xy, xy, 1), (xy, yy, 2), (yy, yy, 1))
    return 0.5 * sum(k * second[:, m] * wide[e, f] for m, (e, f, k) in enumerate(products))  # type: ignore[return-value]
