"""The fields of regressions: kernels of the training inputs factored, kernels of test inputs read block by block."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from widefield.gaussian import AbstractKernel
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.solvers.symmetric import AbstractMatrix, HostMatrix
from widefield.theories.prior import core
from widefield.theories.prior.plan import REGRESSION, Plan, Regressions
from widefield.theories.prior.regression import Factor, Regression, regress, regress_in_single

Fields = dict[str, tuple[tuple[str, ...], np.ndarray]]


@dataclass
class Source:
    """What predictions are made from; ``x``, ``q`` and ``kernel`` are in double precision."""

    network: Network
    task: Task
    plan: Plan
    regressions: Regressions
    kernel: AbstractKernel
    q: np.ndarray
    x: np.ndarray
    rtol: float
    progress: bool | None
    error: float = 0.0
    residual: float = 0.0
    sensitivity: float = 0.0
    steps: int = 0

    @property
    def labels(self) -> np.ndarray:
        """(supervised state · sample, output)."""
        y = self.task.labels().astype(float)
        return y.transpose(1, 0, 2).reshape(-1, y.shape[2])

    def weighted(self, rows: range, weights: np.ndarray, states: tuple[int, ...], tangent: bool) -> np.ndarray:
        """Kernels of ``rows`` at ``states`` towards the training inputs, times weights (supervised · sample, column)."""
        n = self.task.n_samples
        sums, error = core.weighted_rows(
            self.network, self.kernel, self.q, self.x, rows, range(n),
            weights.reshape(len(self.plan.supervised), n, -1), states, self.plan.supervised,
            tangent=tangent, rtol=self.rtol, progress=self.progress,
        )  # fmt: skip
        self.error = float(np.maximum(self.error, error))
        return sums

    def product(self, weights: np.ndarray, tangent: bool) -> np.ndarray:
        """The training kernel times weights, its tiles made again."""
        sums = self.weighted(range(self.task.n_samples), weights, self.plan.supervised, tangent)
        return sums.reshape(weights.shape)


def predict(source: Source, kernel: str, matrix: AbstractMatrix, arrays: dict[str, np.ndarray]) -> Fields:
    """All fields that the plan asks of one ``kernel``, which is lost; raises `LinAlgError` where it is singular."""
    wanted = source.plan.names
    noises, times = source.regressions.noises, source.regressions.times
    times = times if kernel == "tangent" else np.asarray([np.inf])
    covariances: list[np.ndarray] = []
    visit: Callable[[Factor], None] = lambda factor: None  # noqa: E731
    if kernel == "readout" and "test_covariance" in wanted:
        visit = lambda factor: covariances.append(_covariance(factor, arrays))  # noqa: E731
    single, exact = matrix.eps > 1e-10, False
    if single:
        product = partial(source.product, tangent=kernel == "tangent")
        exact = kernel == "readout" and "log_evidence" in wanted
        solved = regress_in_single(matrix, product, source.labels, noises, source.rtol, exact)
    else:
        solved = regress(matrix, source.labels, noises, times, source.rtol, visit)
    source.residual = float(np.maximum(source.residual, solved.residual))  # unlike max, keeps a NaN
    source.steps = max(source.steps, solved.steps)
    if not single:
        source.sensitivity = max(source.sensitivity, solved.sensitivity)
    elif exact:  # the evidence is read from the factor itself, which is not refined
        source.error = max(source.error, solved.sensitivity)
    found: dict[str, np.ndarray] = {}
    if kernel == "readout":
        found["log_evidence"] = solved.log_evidence
        found |= {"test_covariance": np.stack(covariances)} if covariances else {}
    name = "test_prediction" if kernel == "readout" else "ntk_prediction"
    if name in wanted:
        found[name] = _mean(source, kernel, solved, arrays)
    return {name: _labeled(source, name, found[name]) for name in wanted if name in found}


def _mean(source: Source, kernel: str, solved: Regression, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Predictions (noise, time, state, test, output)."""
    n_noises, n_times, n, n_outputs = solved.weights.shape
    flat = solved.weights.transpose(2, 0, 1, 3).reshape(n, -1)
    n_train, tests = source.task.n_samples, source.task.n_test
    several = len(source.plan.supervised) > 1
    states = tuple(range(source.network.depth)) if several or kernel == "readout" else source.plan.supervised
    rows = arrays.get(f"{kernel} of tests")
    if rows is not None and rows.dtype == flat.dtype:
        sums = np.einsum("abij,bjw->aiw", rows, flat.reshape(len(source.plan.supervised), n_train, -1), optimize=True)
    else:
        sums = source.weighted(range(n_train, n_train + tests), flat, states, kernel == "tangent")
    split = sums.reshape(len(states), tests, n_noises, n_times, n_outputs)
    return split.transpose(2, 3, 0, 1, 4)


def _covariance(factor: Factor, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """K_** − K_*D(K + noise)⁻¹K_D*."""
    rows = arrays["readout of tests"]
    depth, _, n_test, _ = rows.shape
    whitened = factor.whiten(rows.transpose(1, 3, 0, 2).reshape(-1, depth * n_test))
    explained = (whitened.T @ whitened).reshape(depth, n_test, depth, n_test)
    return arrays["test_covariance"] - explained.transpose(0, 2, 1, 3)


def _labeled(source: Source, name: str, value: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Dims and values, without the axes of what was asked as a number."""
    dims = ("noise", *(("time",) if name.endswith("_prediction") else ()), *REGRESSION[name])
    dropped = {"noise", "time"} - set(source.regressions.dims)
    if name == "test_prediction":
        dropped.add("time")
    if name == "ntk_prediction" and len(source.plan.supervised) == 1:
        dropped.add("state")
    axes = tuple(i for i, dim in enumerate(dims) if dim in dropped)
    return tuple(dim for dim in dims if dim not in dropped), value.squeeze(axes)


def host_matrix(array: np.ndarray) -> HostMatrix:
    """The training kernel over (supervised state, sample), in the memory of ``array`` (state, state\\_, sample, sample\\_)."""
    s, _, n, _ = array.shape
    return HostMatrix(array.transpose(0, 2, 1, 3).reshape(s * n, s * n))
