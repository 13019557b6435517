r"""Whitened data: deep linear networks in the one dimension of the labels, at any number of samples.

Rotations of the samples, :math:`x \to Ox, y \to Oy`, leave a linear network and its squared loss as they are. Where
:math:`K^x \propto 1` the rotation that turns :math:`y` into one axis leaves all other samples without labels and
orthogonal to it: they move nothing and their outputs stay zero. One of them stands for all, Eq. (dynamics.24), and the march of
two samples, the labels' direction and one across it, does the work. Test inputs may lie anywhere. Error: K^x ∝ 1 is
required to a rounding.
"""

from dataclasses import replace

import numpy as np

from widefield.question.task import Task
from widefield.theories.dynamics.curves import Estimate, TrainingCurves
from widefield.theories.dynamics.methods import flow, paths
from widefield.theories.dynamics.problem import Inputs, Problem
from widefield.theories.dynamics.request import Request


def covers(problem: Problem, request: Request) -> bool:
    """White inputs at every state."""
    return request.method == "full" and problem.white and not request.responses


def solve(problem: Problem, request: Request) -> TrainingCurves:
    """By the march of two samples, or its limit, with all samples put back."""
    y = problem.labels.ravel()
    along = y / np.linalg.norm(y)
    asked = request
    if "preactivation" in request.fields:
        asked = replace(request, fields=tuple({*request.fields, "feature_kernel"}))
    task = _rotated(problem.task, along)
    small = replace(problem, task=task, inputs=Inputs(problem.network, task))
    curves = (flow if problem.training.flow else paths).solve(small, asked)
    kernels = {name: _spread(name, value, along) for name, value in curves.kernels.items()}

    def outputs(v: np.ndarray) -> np.ndarray:
        """(step, state, sample, output): the first sample's, along the labels; test samples follow."""
        return np.concatenate([_combined(v[:, :, :1], 0.0, along[:, None]), v[:, :, 2:]], axis=2)

    return replace(
        curves, prediction=curves.prediction.each(outputs),
        kernels=kernels, draws=_draws(curves, request, along), diagnostics=curves.diagnostics | {"solver": "whitened"},
    )  # fmt: skip


def _rotated(task: Task, along: np.ndarray) -> Task:
    """The task of two samples: ``along`` the labels, and one unlabeled direction across them."""
    across = np.eye(len(along))[np.argmin(np.abs(along))]
    across = across - (across @ along) * along
    basis = np.stack([along, across / np.linalg.norm(across)])
    assert task.y is not None
    labels = np.tensordot(basis, task.y, axes=1)
    labels[1] = 0.0
    return replace(task, x=np.tensordot(basis, task.x, axes=1), y=labels)


def _kernel(value: np.ndarray, along: np.ndarray) -> np.ndarray:
    """(…, sample, sample_) from its entries along and across the labels."""
    return _combined(value[..., :1, :1], value[..., 1:, 1:], np.outer(along, along))


def _combined(on: np.ndarray, off: np.ndarray | float, line: np.ndarray) -> np.ndarray:
    """on·line + off·(1 − line), infinite after a divergence."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(on), on * line + off * (np.eye(*line.shape) - line), np.inf)


def _spread(name: str, estimate: Estimate, along: np.ndarray) -> Estimate:
    n = len(along)
    if name in ("ntk", "feature_kernel"):
        return estimate.each(lambda v: _kernel(v, along))
    if name == "gradient_kernel":  # backward fields are those of any sample
        return estimate.each(lambda v: np.broadcast_to(v[..., :1, :1], (*v.shape[:-2], n, n)))

    def cosine(value: np.ndarray) -> np.ndarray:
        """With the labels of all samples, of which n − 1 are across: from that with one across."""
        with np.errstate(invalid="ignore", divide="ignore"):  # infinite after a divergence, zero without features
            ratio = np.maximum(1 / value**2 - 1, 0.0)
            return np.where(np.isfinite(value), 1 / np.sqrt(1 + (n - 1) * ratio), np.inf)

    return estimate.each(cosine)


def _draws(curves: TrainingCurves, request: Request, along: np.ndarray) -> dict[str, np.ndarray]:
    """h and z of random neurons: along the labels as drawn, Gaussian across them with the covariance of that direction."""
    last = slice(None) if request.at_chosen else slice(-1, None)
    draws = {}
    if "pregradient" in request.fields and "pregradient" in curves.draws:
        z = curves.draws["pregradient"][last][..., :1, :]
        draws["pregradient"] = np.broadcast_to(z, (*z.shape[:-2], len(along), z.shape[-1]))
    if "preactivation" in request.fields and "preactivation" in curves.draws and "feature_kernel" in curves.kernels:
        h = curves.draws["preactivation"][last][..., 0, :]  # (at, state, path)
        across = curves.kernels["feature_kernel"].value[:, :, last, last, 1, 1]
        if across.shape[1] == 1:  # layers, which are independent
            across = across * np.eye(len(across))[:, :, None, None]
        across = across.transpose(2, 0, 3, 1)
        noise = _gaussian(across.reshape(h.shape[0] * h.shape[1], -1), len(along), h.shape[-1], request.seed)
        noise = noise - along[:, None] * np.einsum("n,anp->ap", along, noise)[:, None]
        draws["preactivation"] = along[:, None] * h[:, :, None] + noise.reshape(*h.shape[:2], len(along), -1)
    return draws


def _gaussian(covariance: np.ndarray, n: int, n_paths: int, seed: int) -> np.ndarray:
    """(variable, sample, path): independent draws with this covariance of variables."""
    values, vectors = np.linalg.eigh(covariance)
    keep = values > 1e-14 * max(values[-1], 1e-300)
    root = vectors[:, keep] * np.sqrt(values[keep])
    white = np.random.default_rng([seed, 1]).standard_normal((root.shape[1], n, n_paths))
    return np.einsum("ab,bnp->anp", root, white)
