r"""The 1/n theory of networks whose weights, biases or inputs are tied across states.

.. math::
    n\,\mathrm{Cov}(\hat C_P, \hat C_Q) \to V = R\kappa R^T, \qquad
    n(\mathbb E\hat C_P - C_P) \to G_1 = R[\tfrac12 m'':V + T]

Eqs. (finite_width.22) to (finite_width.25), and, for the averages :math:`\tfrac1n\sum_ih_ih_i` that a simulation shows, their
shift :math:`H_1` and their variance :math:`V_h`, Eqs. (finite_width.26), (finite_width.27). κ is the noise of one neuron; in T
the noise of Q acts, through its own response, on the covariance of the states that make P. Equal widths only.
"""

from dataclasses import dataclass

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.progress import bar
from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.finite_width.tied.pairs import Nodes, Response, Rows, curvature, find_nodes, find_rows, respond
from widefield.theories.finite_width.untied.averages import fourth_moments, is_fast, sets_of_four


@dataclass(frozen=True)
class Fluctuations:
    """All that the expansion gives, on ``rows`` (V, G1) and on pairs of hidden ``nodes`` (H1, Vh)."""

    nodes: Nodes
    rows: Rows
    response: Response
    kappa: np.ndarray
    T: np.ndarray
    V: np.ndarray
    G1: np.ndarray
    H1: np.ndarray
    Vh: np.ndarray
    error: float


@x64
@np.errstate(invalid="ignore")  # what is not finite is a status of the solution
def expand(
    network: Network, task: Task, *, read: np.ndarray | None = None, progress: bool | None = False
) -> Fluctuations:
    """κ, R, V, G1, T, H1 and the diagonal of Vh; ``read`` (state, sample) marks outputs, by default those of the last state.

    Raises `SolveError` where an average is not known, `OverflowError` where a covariance is infinite.
    """
    nodes = find_nodes(network, task)
    if read is None:
        read = np.broadcast_to(np.arange(network.depth)[:, None] == network.depth - 1, nodes.of.shape)
    rows = find_rows(network, nodes, read)
    response = respond(network.activation, nodes, rows)
    # T needs one neuron's noise to be correlated between states: outputs read at different states join these, too.
    joined = np.any((nodes.state[rows.x] != nodes.state[rows.y]) & (rows.weight != 0))
    related = np.any(nodes.C[nodes.state[:, None] != nodes.state] != 0)
    reuse = network.weights == "tied" or bool(joined or related)
    kappa, T, error = _noise(network.activation, nodes, rows, response, reuse, progress)
    R = response.R
    V = R @ kappa @ R.T
    V = 0.5 * (V + V.T)
    G1 = R @ (curvature(V, rows, response.second) + T)
    H1 = on_nodes(G1, rows) + _shift(nodes, rows, response)
    Vh = _variance(V, nodes, rows, response)
    return Fluctuations(nodes, rows, response, kappa, T, V, G1, H1, Vh, max(error, response.error))


def on_nodes(values: np.ndarray, rows: Rows) -> np.ndarray:
    """A quantity of the rows as a matrix over hidden nodes, zero where nothing fluctuates."""
    return np.append(values, 0.0)[np.where(rows.of >= 0, rows.of, len(values))]


def by_state(matrix: np.ndarray, nodes: Nodes) -> np.ndarray:
    """A matrix over nodes as (state, state_, sample, sample_)."""
    return matrix[nodes.of[:, None, :, None], nodes.of[None, :, None, :]]


# Noise of one neuron.


def _noise(
    activation: Activation, nodes: Nodes, rows: Rows, response: Response, reuse: bool, progress: bool | None
) -> tuple[np.ndarray, np.ndarray, float]:
    """κ (row, row\\_), T (row,; zero unless ``reuse``), and the largest relative error of a four-point average."""
    active = np.flatnonzero(rows.weight != 0)
    kappa, T = np.zeros((len(rows), len(rows))), np.zeros(len(rows))
    if not len(active):
        return kappa, T, 0.0
    x, y, w, mean = rows.x[active], rows.y[active], rows.weight[active], response.mean[active]
    pairs = np.stack([x, y], axis=-1)
    both = np.broadcast_to(pairs[:, None], (len(x), *pairs.shape)), np.broadcast_to(pairs, (len(x), *pairs.shape))
    four, index = sets_of_four(np.concatenate(both, axis=-1), len(nodes.C))
    C = nodes.C[four[:, :, None], four[:, None, :]]
    seconds = (2e-4 if is_fast(activation) else 0.1) * len(C)
    with bar("four-point averages", len(C), progress, seconds) as advance:
        value, error, gradient = fourth_moments(activation, C, advance, gradient=reuse)
    if reuse:
        T[active] = w * _reuse(rows, response.R, active, four, index, gradient)
        T -= (response.R - np.eye(len(rows))) @ (rows.weight * response.mean)
    block = value[index] - mean[:, None] * mean
    joined = [nodes.C[a[:, None], b] != 0 for a in (x, y) for b in (x, y)]
    block = np.where(np.any(joined, axis=0), block, 0.0)  # independent nodes
    kappa[np.ix_(active, active)] = w[:, None] * w * block
    fourth = np.zeros(len(nodes.C))
    same = (four == four[:, :1]).all(axis=1)
    fourth[four[same, 0]] = value[same]
    scale = np.maximum(fourth[four].max(axis=1), np.abs(value))
    return kappa, T, float(np.max(error[scale > 0] / scale[scale > 0], initial=0.0))


def _reuse(rows: Rows, R: np.ndarray, active, four, index, gradient) -> np.ndarray:
    """Σ_{Q,E} w_Q ∂<φφφφ>/∂C_E R_EQ of the active rows, ½ Σ_ef G_ef over ordered pairs of the four nodes."""
    wide = np.vstack([R[:, active], np.zeros(len(active))])  # row −1: no response
    total = np.zeros(len(active))
    columns, w = np.arange(len(active)), rows.weight[active]
    for e in range(4):
        for f in range(e, 4):
            pair = rows.of[four[:, e], four[:, f]]
            part = gradient[:, e, f][index] * wide[pair[index], columns]
            total += (1.0 if e < f else 0.5) * part @ w
    return total


# What a simulation shows.


def _shift(nodes: Nodes, rows: Rows, response: Response) -> np.ndarray:
    r"""H1 − G1: Σ ∂Cov_C(h_p h_q, f_Q)/∂C_E R_EQ.

    With Cov_C(hh, f_Q) = Σ_F D_QF (C_pe C_qf + C_pf C_qe), F = (e, f), and Z = RD only the two factors C respond.
    """
    Z = np.vstack([response.R @ response.D, np.zeros(response.D.shape[1])])
    P = len(nodes.C)
    Y = np.zeros((P, P))
    for e in range(P):
        Y += Z[rows.of[:, e][:, None], response.column[e]] * (1.0 + (np.arange(P) == e))
    shift = Y @ nodes.C
    return shift + shift.T


def _variance(V: np.ndarray, nodes: Nodes, rows: Rows, response: Response) -> np.ndarray:
    """Diagonal of V + Rχᵀ + χRᵀ + CC + CC over pairs of hidden nodes."""
    C = nodes.C
    q = np.diag(C)
    diagonal = np.diag(V).copy()
    Z = response.R @ response.D  # Σ_Q R_PQ χ_PQ = Σ_F K_PF Z_PF
    e, f = np.triu_indices(len(C))
    for p, r in zip(*np.nonzero(np.triu(rows.of >= 0)), strict=True):
        row = rows.of[p, r]
        diagonal[row] += 2 * np.sum(Z[row] * (C[p, e] * C[r, f] + C[p, f] * C[r, e]))
    return on_nodes(diagonal, rows) + q[:, None] * q + C**2
