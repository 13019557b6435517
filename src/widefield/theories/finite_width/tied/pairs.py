r"""Nodes, pairs of nodes and the response of the covariance: the leading order of the 1/n theory with tied weights.

A node p = (a, α) is a state of a sample, p⁻ = (a−1, α). Given the other neurons, one neuron's nodes are Gaussian with

.. math::  \hat C_{pq} = B_{pq} + M_{pq}\frac{w}{n}\sum_i\varphi(h_i^{p^-})\varphi(h_i^{q^-}),

a random matrix that fluctuates about the solution C = m(C) of the prior, Eqs. (finite_width.20), (finite_width.21).
Pairs are unordered. Only pairs of two states after the first fluctuate: they and the pairs of outputs (untied, w → v) are
the *rows*.
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from widefield.answer.certificate import SolveError, Status
from widefield.gaussian import expectation
from widefield.gaussian.closed import kink_slope
from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.prior.core import hidden_covariance

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
    ``output`` (node, node\\_) that of a pair of outputs read at these nodes, −1 where there is none.
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
    matrices = hidden_covariance(network, task.sequences(depth))
    if matrices.failure is Status.nonfinite:
        raise OverflowError("the covariance at infinite width overflows")
    if matrices.failure is not None:
        raise SolveError("; ".join(matrices.notes))
    hidden = matrices.arrays["hidden"]
    of = np.zeros((depth, n), int)
    first: list[tuple[int, int]] = []
    for a in range(depth):
        K = hidden[a, a]
        q = np.diag(K)[:, None]
        same = (np.abs(q - K) <= ALMOST * q) & (np.abs(q.T - K) <= ALMOST * q)
        for alpha, beta in enumerate(np.argmax(same, axis=1)):  # the first sample that it coincides with
            of[a, alpha] = of[a, beta] if beta < alpha else len(first)
            if beta == alpha:
                first.append((a, alpha))
    state, sample = np.transpose(first)
    C = hidden[state[:, None], state, sample[:, None], sample]
    C = 0.5 * (C + C.T)
    previous = np.array([of[a - 1, alpha] if a else -1 for a, alpha in first])
    return Nodes(of, state, previous, C, (state > 0) & (np.diag(C) > 0))


def find_rows(network: Network, nodes: Nodes, read: np.ndarray) -> Rows:
    """All fluctuating pairs, in an order in which each depends on earlier ones only.

    ``read`` (state, sample) marks the states of samples whose outputs are rows.
    """
    live, state = np.flatnonzero(nodes.live), nodes.state
    p, q = (live[i] for i in np.triu_indices(len(live)))
    order = np.argsort(np.maximum(state[p], state[q]), kind="stable")
    p, q = p[order], q[order]
    same = (state[p] == state[q]) | (network.weights == "tied")
    weight = np.concatenate([[0.0], network.weight_variances])[state[p]] * same
    x, y = nodes.previous[p], nodes.previous[q]
    of, output = np.full(nodes.C.shape, -1), np.full(nodes.C.shape, -1)
    of[p, q] = of[q, p] = np.arange(len(p))
    if network.readout_variance is not None:
        ends = np.unique(nodes.of[read])
        left, right = (ends[i] for i in np.triu_indices(len(ends)))
        output[left, right] = output[right, left] = len(x) + np.arange(len(left))
        x, y = np.append(x, left), np.append(y, right)
        weight = np.append(weight, np.full(len(left), network.readout_variance))
    return Rows(x, y, weight, of, output)


@dataclass(frozen=True)
class Response:
    """First and second derivatives of m, and what they make.

    ``mean`` <φφ> of every row; ``D`` (row, node pair) = ∂m_P/∂C_E with all pairs E of hidden nodes as columns (numbered
    by ``column``), ``rest`` = 1 − D between rows and ``R`` its inverse (row, row\\_); ``second`` (row, 6) = ∂²m_P over
    {xx·xx, xx·xy, xx·yy, xy·xy, xy·yy, yy·yy}; ``error`` the largest error estimate of an average, relative to its scale.
    """

    mean: np.ndarray
    D: np.ndarray
    rest: np.ndarray
    R: np.ndarray
    second: np.ndarray
    column: np.ndarray
    error: float


def respond(activation: Activation, nodes: Nodes, rows: Rows) -> Response:
    """D, R and m'' by Price's theorem, closed or by Hermite series; one triangular solve."""
    P, n = len(nodes.C), len(rows)
    column = np.zeros((P, P), int)
    upper = np.triu_indices(P)
    column[upper] = column.T[upper] = np.arange(len(upper[0]))
    x, y, w = rows.x, rows.y, rows.weight
    (mean, slope, left, right), errors = zip(
        *(_average(activation, nodes, rows, o, np.ones(n, bool)) for o in ((0, 0), (1, 1), (2, 0), (0, 2))), strict=True
    )
    D, index = np.zeros((n, len(upper[0]))), np.arange(n)
    np.add.at(D, (index, column[x, y]), w * slope)
    np.add.at(D, (index, column[x, x]), 0.5 * w * left)
    np.add.at(D, (index, column[y, y]), 0.5 * w * right)
    rest = np.eye(n)
    p, q = np.nonzero(np.triu(rows.of >= 0))
    rest[:, rows.of[p, q]] -= D[:, column[p, q]]
    R = scipy.linalg.solve_triangular(rest, np.eye(n), lower=True, unit_diagonal=True)
    second, error = _second(activation, nodes, rows)
    return Response(mean, D, rest, R, w[:, None] * second, column, max(*errors, error))


def _average(
    activation: Activation, nodes: Nodes, rows: Rows, orders: tuple[int, int], chosen: np.ndarray
) -> tuple[np.ndarray, float]:
    """<φ^(i)(x)φ^(j)(y)> of the chosen rows (zero elsewhere), and the largest relative error."""
    q, p, c = _covariances(nodes, rows)
    if max(orders) > 1 and kink_slope(activation) is not None:  # a dead node has φ = 0 and does not fluctuate
        chosen = chosen & (q > 0) & (p > 0)
    value, n_chosen = np.zeros(len(q)), int(chosen.sum())
    if not n_chosen:
        return value, 0.0
    more = 2 ** max(int(n_chosen - 1).bit_length(), 6) - n_chosen  # few shapes to compile
    q, p, c = (np.pad(v[chosen], (0, more), mode="edge") for v in (q, p, c))
    average = expectation(activation, q, p, c, orders)
    value[chosen] = average.value[:n_chosen]
    return value, float(np.max(average.error / (np.abs(average.value) + 1.0)))


def _covariances(nodes: Nodes, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The variances of φ's arguments in every row, and their covariance."""
    x, y = rows.x, rows.y
    q, p = nodes.C[x, x], nodes.C[y, y]
    limit = np.sqrt(q * p)
    return q, p, np.where(x == y, q, np.clip(nodes.C[x, y], -limit, limit))


def _second(activation: Activation, nodes: Nodes, rows: Rows) -> tuple[np.ndarray, float]:
    """∂²<φφ>, over the six products of {xx, xy, yy}, zero where nothing fluctuates; and the largest relative error."""
    x_lives, y_lives, one = nodes.live[rows.x], nodes.live[rows.y], rows.x == rows.y
    both, used = x_lives & y_lives, rows.weight != 0
    if kink_slope(activation) is not None:  # <φ²> of one node is linear in its variance
        q, p, c = _covariances(nodes, rows)
        if np.any(used & ~one & (x_lives | y_lives) & (q > 0) & (p > 0) & (np.abs(c) >= np.sqrt(q * p))):
            raise ValueError(
                f"`network` must not make two states of {activation} exactly parallel or opposite: the curvature of "
                "<φφ> is infinite there. Perturb the inputs, or add a bias."
            )
        used = used & ~one
    second, errors = np.zeros((len(rows), 6)), []
    for number, orders, factor, chosen in (
        (0, (4, 0), 0.25, x_lives), (1, (3, 1), 0.5, both), (2, (2, 2), 0.25, both),
        (3, (2, 2), 1.0, both), (4, (1, 3), 0.5, both), (5, (0, 4), 0.25, y_lives),
    ):  # fmt: skip
        value, error = _average(activation, nodes, rows, orders, used & chosen)
        second[:, number] = factor * value
        errors.append(error)
    # One node: all six products are the same one, counted as often as in the quadratic form.
    second[one, 0] = second[one] @ np.array([1.0, 2.0, 2.0, 1.0, 2.0, 1.0])
    second[one, 1:] = 0.0
    return second, max(errors)


def curvature(V: np.ndarray, rows: Rows, second: np.ndarray) -> np.ndarray:
    """½ m'':V of every row."""
    wide = np.pad(V, (0, 1))  # row −1: no fluctuation
    xx, xy, yy = rows.of[rows.x, rows.x], rows.of[rows.x, rows.y], rows.of[rows.y, rows.y]
    products = ((xx, xx, 1), (xx, xy, 2), (xx, yy, 2), (xy, xy, 1), (xy, yy, 2), (yy, yy, 1))
    return 0.5 * sum(k * second[:, m] * wide[e, f] for m, (e, f, k) in enumerate(products))  # type: ignore[return-value]
