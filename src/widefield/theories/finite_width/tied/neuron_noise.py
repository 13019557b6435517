r"""Noise of one neuron and the weight-reuse term: κ and T of the 1/n theory with tied weights.

.. math::
    \kappa_{PQ} = M_PM_Qw^2[\langle\varphi\varphi\varphi\varphi\rangle - \langle\varphi\varphi\rangle\langle\varphi\varphi\rangle],
    \qquad T_P = \sum_{Q,E}\frac{\partial\kappa_{PQ}}{\partial C_E}R_{EQ}

In T the noise of Q acts, through its own response, on the covariance of the states that make P. It vanishes where
weights are untied and no two states share biases or inputs. Eqs. (finite_width.22), (finite_width.25).
"""

import numpy as np

from widefield.answer.progress import bar
from widefield.gaussian.closed import kink_slope
from widefield.gaussian.quartic import fourth_moment, fourth_moment_and_gradient
from widefield.question.activation import Activation
from widefield.theories.finite_width.tied.pairs import Nodes, Response, Rows

CHUNK = 8192  # quadruples at a time
SLOW = 32  # the same where each is a four-dimensional sum
CLOSED = ("linear", "exp", "erf", "sin", "cos", "rbf")


def quadruples(rows: Rows, n_nodes: int, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different sets of four nodes that two active rows average, and which one each pair of rows has."""
    x, y = rows.x[active], rows.y[active]
    n = len(active)
    four = np.empty((n, n, 4), np.int64)
    four[..., 0], four[..., 1] = x[:, None], y[:, None]
    four[..., 2], four[..., 3] = x, y
    four.sort(axis=-1)
    code = ((four[..., 0] * n_nodes + four[..., 1]) * n_nodes + four[..., 2]) * n_nodes + four[..., 3]
    _, first, index = np.unique(code.reshape(-1), return_index=True, return_inverse=True)
    return four.reshape(-1, 4)[first], index.reshape(n, n)


def noise(
    activation: Activation, nodes: Nodes, rows: Rows, response: Response, *, reuse: bool, progress: bool | None = False
) -> tuple[np.ndarray, np.ndarray, float]:
    """κ (row, row\\_), T (row,; zero unless ``reuse``), and the largest relative error of a four-point average."""
    active = np.flatnonzero(rows.weight != 0)
    kappa, T = np.zeros((len(rows), len(rows))), np.zeros(len(rows))
    if not len(active):
        return kappa, T, 0.0
    four, index = quadruples(rows, len(nodes.C), active)
    C = nodes.C[four[:, :, None], four[:, None, :]]
    w, mean = rows.weight[active], response.mean[active]
    value, error, gradient = _averages(activation, C, reuse, progress)
    if reuse:
        T = _reuse(rows, response.R, active, four, index, gradient)
        T -= (response.R - np.eye(len(rows))) @ (rows.weight * response.mean)
    block = value[index] - mean[:, None] * mean
    x, y = rows.x[active], rows.y[active]
    joined = [nodes.C[a[:, None], b] != 0 for a in (x, y) for b in (x, y)]
    block = np.where(np.any(joined, axis=0), block, 0.0)  # independent nodes
    kappa[np.ix_(active, active)] = w[:, None] * w * block
    return kappa, T, _relative(value, error, four, len(nodes.C))


def _averages(
    activation: Activation, C: np.ndarray, reuse: bool, progress: bool | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """<φφφφ>, its errors and, for ``reuse``, its gradients, some quadruples at a time."""
    value, error, gradient = np.empty(len(C)), np.empty(len(C)), np.empty(C.shape if reuse else 0)
    named = activation.is_named and activation.name in CLOSED
    fast = named or kink_slope(activation) is not None
    size = CHUNK if fast else SLOW
    with bar("four-point averages", len(C), progress, (2e-4 if fast else 0.1) * len(C)) as advance:
        for start in range(0, len(C), size):
            part = slice(start, start + size)
            if reuse:
                value[part], error[part], gradient[part] = fourth_moment_and_gradient(activation, C[part])
            else:
                value[part], error[part] = fourth_moment(activation, C[part])
            advance(len(C[part]))
    return value, error, gradient


def _relative(value: np.ndarray, error: np.ndarray, four: np.ndarray, n_nodes: int) -> float:
    """The largest error relative to the largest <φ⁴> of the four nodes."""
    fourth = np.zeros(n_nodes)
    same = (four == four[:, :1]).all(axis=1)
    fourth[four[same, 0]] = value[same]
    scale = np.maximum(fourth[four].max(axis=1), np.abs(value))
    return float(np.max(error[scale > 0] / scale[scale > 0], initial=0.0))


def _reuse(rows: Rows, R: np.ndarray, active, four, index, gradient) -> np.ndarray:
    """Σ_{Q,E} w_P w_Q ∂<φφφφ>/∂C_E R_EQ, ½ Σ_ef G_ef over ordered pairs of the four nodes."""
    wide = np.vstack([R[:, active], np.zeros(len(active))])  # row −1: no response
    total = np.zeros(len(active))
    columns = np.arange(len(active))
    w = rows.weight[active]
    for e in range(4):
        for f in range(e, 4):
            pair = rows.of[four[:, e], four[:, f]]
            part = gradient[:, e, f][index] * wide[pair[index], columns]
            total += (1.0 if e < f else 0.5) * part @ w
    T = np.zeros(len(rows))
    T[active] = w * total
    return T
