r"""The 1/n theory of networks whose weights, biases or inputs are tied across states.

.. math::
    n\,\mathrm{Cov}(\hat C_P, \hat C_Q) \to V = R\kappa R^T, \qquad
    n(\mathbb E\hat C_P - C_P) \to G_1 = R[\tfrac12 m'':V + T]

Eqs. (finite_width.23), (finite_width.24), and, for the averages :math:`\tfrac1n\sum_ih_ih_i` that a simulation shows,
their shift :math:`H_1` and their variance :math:`V_h`, Eqs. (finite_width.26), (finite_width.27). With untied parameters V
and :math:`G_1` are those of the layer recursion. Equal widths only. First order in 1/n.
"""

import math
from dataclasses import dataclass

import numpy as np

from widefield.answer.boundary import describe_bytes, memory_budget, x64
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.finite_width.tied.neuron_noise import noise
from widefield.theories.finite_width.tied.pairs import (
    Nodes,
    Response,
    Rows,
    curvature,
    find_nodes,
    find_rows,
    respond,
)

COPIES = 16  # matrices over pairs of rows in memory at once


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
    _guard(len(rows), len(nodes.C))
    response = respond(network.activation, nodes, rows)
    reuse = _reuses(network, nodes, rows)
    kappa, T, error = noise(network.activation, nodes, rows, response, reuse=reuse, progress=progress)
    R = response.R
    V = R @ kappa @ R.T
    V = 0.5 * (V + V.T)
    G1 = R @ (curvature(V, nodes, rows, response.second) + T)
    H1 = on_nodes(G1, rows) + _shift(nodes, rows, response)
    Vh = _variance(V, nodes, rows, response)
    return Fluctuations(nodes, rows, response, kappa, T, V, G1, H1, Vh, max(error, response.error))


def _reuses(network: Network, nodes: Nodes, rows: Rows) -> bool:
    """Whether one neuron's noise at different states is correlated, so that T need not vanish.

    Pairs of outputs read at different states join these states even where nothing else is tied.
    """
    different = nodes.state[:, None] != nodes.state
    joined = np.any((nodes.state[rows.x] != nodes.state[rows.y]) & (rows.weight != 0))
    return network.weights == "tied" or bool(joined or np.any(nodes.C[different] != 0))


def on_nodes(values: np.ndarray, rows: Rows) -> np.ndarray:
    """A quantity of the rows as a matrix over hidden nodes, zero where nothing fluctuates."""
    return np.append(values, 0.0)[np.where(rows.of >= 0, rows.of, len(values))]


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


def _guard(n_rows: int, n_nodes: int) -> None:
    n_averages = min(n_rows**2 // 2, math.comb(n_nodes + 3, 4))
    need = 8 * (COPIES * n_rows**2 + n_rows * n_nodes * (n_nodes + 1) // 2 + 40 * n_averages)
    if need > memory_budget():
        raise MemoryError(
            f"`task` has {n_nodes} different states and samples, which make {n_rows} fluctuating pairs and need "
            f"{describe_bytes(need)}; only {describe_bytes(memory_budget())} may be used. Use fewer samples or states."
        )


def by_state(matrix: np.ndarray, nodes: Nodes) -> np.ndarray:
    """A matrix over nodes as (state, state_, sample, sample_)."""
    return matrix[nodes.of[:, None, :, None], nodes.of[None, :, None, :]]
