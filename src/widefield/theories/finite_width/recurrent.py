r"""The 1/n theory of networks whose weights, biases or inputs are tied across states.

.. math::
    (a)\quad n\,\mathrm{Cov}(\hat C_P, \hat C_Q) \to V = R\kappa R^T, \qquad
    (b)\quad n(\mathbb E\hat C_P - C_P) \to G_1 = R[\tfrac12 m'':V + T]

and, for the averages :math:`\tfrac1n\sum_ih_ih_i` that a simulation shows, (c) their shift :math:`H_1` and (d) their
variance :math:`V_h`. With untied parameters V and :math:`G_1` are those of the layer recursion.
Theory page: finite_width_recurrent. Equal widths only. First order in 1/n.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from widefield.answer import legacy
from widefield.answer.boundary import choose_quantities, describe_bytes, memory_budget, x64
from widefield.answer.certificate import SolveError, Status
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.finite_width import recurrent_relu
from widefield.theories.finite_width.recurrent_noise import noise
from widefield.theories.finite_width.recurrent_pairs import (
    Nodes,
    Response,
    Rows,
    curvature,
    find_nodes,
    find_rows,
    respond,
)
from widefield.theories.finite_width.recurrent_verify import residual

STATES = ("state", "state_", "sample", "sample_")
LAYER = ("layer", "sample", "sample_")
DIMS: dict[str, tuple[str, ...]] = {
    "kernel": LAYER, "correction": LAYER, "covariance": LAYER, "pair_mean": STATES, "pair_variance": STATES,
    "pair_kernel": STATES, "pair_correction": STATES, "kernel_variance": LAYER, "ratio": LAYER[:1],
    "vertex": (*LAYER, "sample__", "sample___"), "connected": (*LAYER, "sample__", "sample___"),
    "pair_vertex": ("pair", "pair_"),
}  # fmt: skip
ON_REQUEST = ("pair_vertex",)
COPIES = 16  # matrices over pairs of rows held at once
TRUSTED = 0.3  # of V/(nK²)


@dataclass(frozen=True)
class Expansion:
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


def expand(network: Network, task: Task, progress: bool | None = False) -> Expansion:
    """κ, R, V, G1, T, H1 and the diagonal of Vh, equations (a) to (d)."""
    nodes = find_nodes(network, task)
    rows = find_rows(network, nodes)
    _guard(len(rows), len(nodes.C))
    response = respond(network.activation, nodes, rows)
    reuse = _reuses(network, nodes)
    kappa, T, error = noise(network.activation, nodes, rows, response, reuse=reuse, progress=progress)
    R = response.R
    V = R @ kappa @ R.T
    V = 0.5 * (V + V.T)
    G1 = R @ (curvature(V, nodes, rows, response.second) + T)
    H1 = on_nodes(G1, rows) + _shift(nodes, rows, response)
    Vh = _variance(V, nodes, rows, response)
    return Expansion(nodes, rows, response, kappa, T, V, G1, H1, Vh, max(error, response.error))


def _reuses(network: Network, nodes: Nodes) -> bool:
    """Whether one neuron's noise at different states is correlated, so that T need not vanish."""
    different = nodes.state[:, None] != nodes.state
    return network.weights == "tied" or bool(np.any(nodes.C[different] != 0))


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
    own = np.diag(V).copy()
    Z = response.R @ response.D  # Σ_Q R_PQ χ_PQ = Σ_F K_PF Z_PF
    e, f = np.triu_indices(len(C))
    for p, r in zip(*np.nonzero(np.triu(rows.of >= 0)), strict=True):
        row = rows.of[p, r]
        own[row] += 2 * np.sum(Z[row] * (C[p, e] * C[r, f] + C[p, f] * C[r, e]))
    return on_nodes(own, rows) + q[:, None] * q + C**2


def _guard(n_rows: int, n_nodes: int) -> None:
    n_averages = min(n_rows**2 // 2, math.comb(n_nodes + 3, 4))
    need = 8 * (COPIES * n_rows**2 + n_rows * n_nodes * (n_nodes + 1) // 2 + 40 * n_averages)
    if need > memory_budget():
        raise MemoryError(
            f"`task` has {n_nodes} different states and samples, which make {n_rows} fluctuating pairs and need "
            f"{describe_bytes(need)}; only {describe_bytes(memory_budget())} may be used. Use fewer samples or states."
        )


@x64
def solve_recurrent(
    network: Network,
    task: Task,
    *,
    width: int,
    quantities: Iterable[str] | None = None,
    quadruples: Any = None,
    rtol: float = 1e-8,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Kernel, fluctuations and first corrections of a network of ``width`` n with any tying of its parameters.

    Fields over (layer, sample, …), layers 1 … depth + 1, the last one the readout (absent with
    ``readout_variance=None``): ``kernel`` C at equal states, ``correction`` G1, ``covariance`` = C + G1/n, ``vertex`` V,
    ``connected`` = V/n, ``kernel_variance`` = V/n of each entry, ``ratio`` the largest V/(nC²). Fields over (state, state\_, sample, sample\_):
    ``pair_kernel`` C, ``pair_correction`` G1, ``pair_mean`` H1 = n(E[hh] − C), ``pair_variance``
    Vh = n Var(Σ hh/n). On request ``pair_vertex`` (pair, pair\_), V over all pairs of hidden nodes, the pairs of nodes
    (state, sample) as coordinate.

    Equations (a)–(d) of the theory page finite_width_recurrent.
    Cost: C(AN+3, 4) four-point averages for A transitions and N samples, 0.1 ms each for relu and erf.
    Error: the largest estimate of an average, relative to its scale, stands in the certificate; the residual puts C, V
    and G1 of some pairs back into their equations, with averages by quadrature.
    Limits: first order in 1/n; for tied relu weights the expansion is in 5a²/n. Notes say where it is not trustworthy.
    """
    start = time.perf_counter()
    n = _check(network, task, width, quadruples)
    rtol = checks.tolerance("rtol", rtol, 1e-12)
    names, left_out = _plan(network, task, quantities)
    try:
        found = expand(network, task, progress)
    except SolveError as error:
        fields, coords, facts = _nothing(network, task, names, error)
    else:
        fields, coords, facts = _results(network, task, found, names, n, rtol)
    certificate = legacy.certificate(
        theory="finite_width",
        tolerance=rtol,
        steps=network.depth,
        wall_time=time.perf_counter() - start,
        options={"width": n, "quantities": list(names)},
        left_out=left_out,
        **facts | {"notes": (*task.notes, *facts["notes"])},
    )
    return make_solution(fields, certificate, network, task, coords=coords, throw=throw)


def _results(network: Network, task: Task, found: Expansion, names: tuple[str, ...], n: int, rtol: float):
    """Fields, coordinates and what the certificate says of them."""
    layers = _layers(network, found)
    fields = {name: (DIMS[name], _field(name, found, layers, n)) for name in names}
    finite = all(np.isfinite(value).all() for _, value in fields.values())
    left_over = residual(network, task, found) if finite else None
    honest = found.error <= rtol and (left_over is None or left_over <= rtol)
    notes, diagnostics = _trust(network, task, found, layers, n)
    if finite and left_over is None:
        notes += ("no residual: the averages are beyond the reach of the quadrature that would check them",)
    facts: dict[str, Any] = {"residual": left_over, "error": found.error, "notes": notes, "diagnostics": diagnostics}
    facts["status"] = Status.nonfinite if not finite else Status.success if honest else Status.inaccurate
    return fields, _coords(names, found), facts


def _nothing(network: Network, task: Task, names: tuple[str, ...], error: SolveError):
    """NaN where the averages or the covariances below them are not known."""
    lengths = _lengths(network, task)
    shapes = {name: tuple(lengths[dim.rstrip("_")] for dim in DIMS[name]) for name in names}
    fields = {name: (DIMS[name], np.full(shape, np.nan)) for name, shape in shapes.items()}
    status = Status.inaccurate if error.solution is None else error.solution.status
    return fields, {}, {"status": status, "notes": (f"the averages of the expansion are not known: {error}",)}


def _check(network: Network, task: Task, width: int, quadruples: Any) -> int:
    n = checks.integer("width", width, 1)
    if len(set(network.relative_widths)) > 1:
        raise ValueError("`widths` must all be equal where parameters are tied across states.")
    if quadruples is not None:
        raise ValueError("`quadruples` is not available where parameters are tied; ask for `vertex` or `pair_vertex`.")
    task.sequences(network.depth)
    return n


def _plan(network: Network, task: Task, quantities: Iterable[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    lengths = _lengths(network, task)
    sizes = {name: 8 * int(np.prod([lengths[d.rstrip("_")] for d in dims])) for name, dims in DIMS.items()}
    if quantities is not None:
        return choose_quantities(quantities, sizes)
    kept, left_out = choose_quantities(None, {name: size for name, size in sizes.items() if name not in ON_REQUEST})
    return kept, (*left_out, *ON_REQUEST)


def _lengths(network: Network, task: Task) -> dict[str, int]:
    n_nodes = network.depth * task.n_samples
    n_layers = network.depth + (network.readout_variance is not None)
    return {"layer": n_layers, "state": network.depth, "sample": task.n_samples, "pair": n_nodes * (n_nodes + 1) // 2}


def _layers(network: Network, found: Expansion) -> list[tuple[np.ndarray, np.ndarray]]:
    """Kernel and rows (sample, sample_) of every layer."""
    layers = [(found.nodes.C[np.ix_(p, p)], found.rows.of[np.ix_(p, p)]) for p in found.nodes.of]
    if network.readout_variance is not None:
        rows = found.rows.output
        kernel = network.readout_variance * found.response.mean[rows] + float(network.readout_bias_variance or 0.0)
        layers.append((kernel, rows))
    return layers


def _field(name: str, found: Expansion, layers: list[tuple[np.ndarray, np.ndarray]], n: int) -> np.ndarray:
    """One field from the expansion."""
    G1 = np.append(found.G1, 0.0)  # entry −1: no fluctuation
    V = np.pad(found.V, (0, 1))
    pairs = {"pair_mean": found.H1, "pair_variance": found.Vh, "pair_kernel": found.nodes.C}
    if name in pairs:
        return by_state(pairs[name], found.nodes)
    match name:
        case "kernel":
            return np.stack([kernel for kernel, _ in layers])
        case "correction":
            return np.stack([G1[rows] for _, rows in layers])
        case "covariance":
            return np.stack([kernel + G1[rows] / n for kernel, rows in layers])
        case "kernel_variance":
            return np.stack([V[rows, rows] / n for _, rows in layers])
        case "ratio":
            return np.array([_ratio(V, *layer) / n for layer in layers])
        case "pair_correction":
            return by_state(on_nodes(found.G1, found.rows), found.nodes)
        case "pair_vertex":
            p, q = np.triu_indices(found.nodes.of.size)
            rows = found.rows.of[found.nodes.of.reshape(-1)[p], found.nodes.of.reshape(-1)[q]]
            return V[np.ix_(rows, rows)]
    tensor = np.stack([V[rows[:, :, None, None], rows] for _, rows in layers])
    return tensor if name == "vertex" else tensor / n


def by_state(matrix: np.ndarray, nodes: Nodes) -> np.ndarray:
    """A matrix over nodes as (state, state_, sample, sample_)."""
    depth, n = nodes.of.shape
    flat = nodes.of.reshape(-1)
    return matrix[np.ix_(flat, flat)].reshape(depth, n, depth, n).transpose(0, 2, 1, 3)


def _ratio(V: np.ndarray, kernel: np.ndarray, rows: np.ndarray) -> float:
    own, K = np.diag(rows), np.diag(kernel)
    return float(np.max(V[own, own] / np.where(K > 0, K, 1.0) ** 2))


def _coords(names: tuple[str, ...], found: Expansion) -> dict[str, Any]:
    if "pair_vertex" not in names:
        return {}
    depth, n = found.nodes.of.shape
    label = [f"({a},{i})" for a in range(depth) for i in range(n)]
    pairs = [label[p] + label[q] for p, q in zip(*np.triu_indices(depth * n), strict=True)]
    return {"pair": pairs, "pair_": pairs}


def _trust(network: Network, task: Task, found: Expansion, layers, n: int) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Notes where the first order cannot be trusted."""
    V = np.pad(found.V, (0, 1))
    ratio = np.array([_ratio(V, *layer) for layer in layers])
    notes = []
    trusted = int(np.argmax(ratio / n > TRUSTED)) if np.any(ratio / n > TRUSTED) else len(ratio)
    if trusted < len(ratio):
        notes.append(
            f"V/(nK²) is {ratio.max() / n:.2g}, more than {TRUSTED}: the expansion in 1/n is not trustworthy beyond layer "
            f"{trusted}; a width of {int(np.ceil(ratio.max() / TRUSTED))} would do"
        )
    diagnostics: dict[str, Any] = {"trusted_layers": trusted, "width_needed": int(np.ceil(ratio.max() / TRUSTED))}
    if network.activation.known_as("relu") and network.weights == "tied" and network.depth > 1:
        fraction = recurrent_relu.unstable_fraction(float(network.weight_variances[0]), n)
        diagnostics["unstable_fraction"] = fraction
        notes += recurrent_relu.remarks(network, fraction, task.sequences(network.depth).shape[1])
    return tuple(notes), diagnostics
