r"""Bayesian regression with a random network of finite width, to first order in the fluctuations of its covariance.

Given the covariance :math:`\hat G = K + \Delta` of the outputs these are independent Gaussians; averages over :math:`\Delta`,
with mean :math:`G_1/n` and covariance :math:`V/n`, are weighted with the likelihood L of the labels. Eqs. (finite_width.17),
(finite_width.18), (finite_width.19).
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.linalg

from widefield.answer.certificate import Check, Status
from widefield.answer.progress import bar
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.finite_width.expansion import TRUSTED, Quantity, Question, Result, quantities_of
from widefield.theories.finite_width.untied.averages import refuse

EPS = float(np.finfo(float).eps)
Array = np.ndarray
MEAN = ("state", "test", "output")
COVARIANCE = ("state", "state_", "test", "test_", "output", "output_")
DIMS: dict[str, tuple[str, ...]] = {
    "test_prediction": MEAN,
    "test_prediction_correction": MEAN,
    "test_covariance": COVARIANCE,
    "test_covariance_correction": COVARIANCE,
    "log_evidence": (),
    "log_evidence_correction": (),
}


def reason_against(network: Network, task: Task) -> str | None:
    """Why there can be no regression, as the end of a message; None if there can be."""
    if task.y is None:
        return "`task` must have labels `y` for a regression, got none."
    if network.readout_variance is None:
        return "`network` must have a readout for a regression, got readout_variance=None."
    if refuse(network.activation):
        return (
            f"`network` must not have the kinks of {network.activation} for a regression: its correction is not known."
        )
    last = network.depth - 1
    if task.supervised_states(network.depth) != (last,) and len(set(network.relative_widths)) > 1:
        return "`widths` must all be equal for a regression with labels at other states than the last."
    return None


def available(question: Question, states: tuple[int, ...], expensive: str) -> dict[str, Quantity]:
    """Fields of a regression that predicts at ``states``."""
    names = {name: dims for name, dims in DIMS.items() if question.task.n_test or not name.startswith("test")}
    lengths = {"state": len(states), "test": question.task.n_test, "output": question.task.labels().shape[2]}
    return {name: q._replace(expensive=expensive) for name, q in quantities_of(names, lengths).items()}


def regress(
    question: Question, states: tuple[int, ...], source: Result, names: tuple[str, ...], noise: float
) -> Result:
    """The fields ``names``, predicted at ``states``, from the moments of ``source``; none where it failed."""
    task, n = question.task, question.network.sizes(question.width)[-1]
    coords = {dim: list(states) for dim in ("state", "state_") if any(dim in DIMS[name] for name in names)}
    known = all(check.met for name, check in source.checks.items() if name != "expansion")
    if source.readout is None or source.failure or not known:
        return Result({}, coords=coords)
    labels = task.labels()
    shape = len(states), task.n_test, labels.shape[2]
    outputs = labels.transpose(1, 0, 2).reshape(-1, shape[2])
    try:
        posterior = condition(*source.readout, outputs, noise, progress=question.progress)
    except np.linalg.LinAlgError as error:
        note = f"the training kernel plus noise={noise:g} is not positive definite ({error})"
        return Result({}, failure=Status.not_psd, coords=coords, notes=(note,))
    spread = posterior.spread / n
    notes: tuple[str, ...] = ()
    needed = max(1, math.ceil(question.width * spread / TRUSTED))
    if spread > TRUSTED:
        notes = (
            f"beyond the reach of the expansion: the log likelihood varies between networks by {spread:.2g}, more than "
            f"{TRUSTED:g}; width {needed}, more noise or fewer labels would do",
        )
    covariance = posterior.covariance_correction
    split = (*shape[:2], *shape[:2], shape[2], shape[2])
    by_state = lambda v: v.reshape(split).transpose(0, 2, 1, 3, 4, 5)  # noqa: E731
    values = {
        "test_prediction": (posterior.mean + posterior.mean_correction / n).reshape(shape),
        "test_prediction_correction": posterior.mean_correction.reshape(shape),
        "test_covariance": by_state(np.multiply.outer(posterior.covariance, np.eye(shape[2])) + covariance / n),
        "test_covariance_correction": by_state(covariance),
        "log_evidence": posterior.evidence + posterior.evidence_correction / n,
        "log_evidence_correction": posterior.evidence_correction,
    }
    return Result(
        {name: values[name] for name in names},
        {"residual": Check(posterior.residual, question.rtol), "evidence_variance": Check(spread, TRUSTED)},
        coords=coords,
        notes=notes,
        diagnostics={"evidence_variance": spread, "width_needed": needed},
    )


class Posterior(NamedTuple):
    """Infinite width and the coefficients of 1/n.

    ``mean`` (test, output), ``covariance`` (test, test\\_), ``evidence``, their corrections ``mean_correction`` (test,
    output), ``covariance_correction`` (test, test\\_, output, output\\_), ``evidence_correction``; ``spread`` is n times the
    variance of ln L over networks; ``residual`` that of the linear solve.
    """

    mean: Array
    covariance: Array
    evidence: float
    mean_correction: Array
    covariance_correction: Array
    evidence_correction: float
    spread: float
    residual: float


def condition(
    K: Array, G1: Array, V: Array, labels: Array, noise: float, *, progress: bool | None = False
) -> Posterior:
    """Outputs at test points given ``labels`` (sample, output); K, G1 and V over training then test points.

    Error: raises `numpy.linalg.LinAlgError` where K_DD + noise is singular; nothing is added to it.
    """
    at, log_determinant, residual = _solve(K, labels, noise)
    n, n_outputs = labels.shape
    mean, covariance = K[n:, :n] @ at.alpha, K[n:, n:] - K[n:, :n] @ at.B.T
    evidence = -0.5 * (np.sum(labels * at.alpha) + n_outputs * (log_determinant + n * np.log(2 * np.pi)))
    shifts: list[Array] = list(_first(at, G1))
    between = np.zeros((*mean.shape, *mean.shape))
    spread = 0.0
    n_modes = math.comb(len(K) + 1, 2)
    with bar("regression", n_modes, progress, 1e-9 * n_modes**3 + 1e-4 * n_modes) as advance:
        for sign, M in _modes(V):
            one, two = _first(at, M), _second(at, M)
            for k, (slope, bend) in enumerate(zip(one, two, strict=True)):
                shifts[k] = shifts[k] + sign * (0.5 * bend + slope * one.score * (1.0 if k < 2 else 0.5))
            between += sign * np.multiply.outer(one.mean, one.mean)
            spread += float(sign * one.score**2)
            advance(1)
    within = np.multiply.outer(shifts[1], np.eye(n_outputs))
    corrections = shifts[0], within + between.transpose(0, 2, 1, 3), float(shifts[2])
    return Posterior(mean, covariance, float(evidence), *corrections, float(spread), residual)


class Point(NamedTuple):
    """At K: S = (K_DD + σ²)⁻¹, α = S y, B = K_*D S, J = (−B, 1)."""

    S: Array
    alpha: Array
    B: Array
    J: Array


def _solve(K: Array, labels: Array, noise: float) -> tuple[Point, float, float]:
    """Also ln det(K_DD + σ²) and the residual of the solve."""
    n = len(labels)
    matrix = K[:n, :n] + noise * np.eye(n)
    factor = scipy.linalg.cholesky(matrix, lower=True)
    pivots = np.diag(factor) ** 2
    if pivots.min() <= 4 * n * EPS * pivots.max():  # a singular matrix can pass by rounding; its pivots cannot
        raise np.linalg.LinAlgError(f"smallest pivot {pivots.min():.1e} against {pivots.max():.1e}")
    S = scipy.linalg.cho_solve((factor, True), np.eye(n))
    S = 0.5 * (S + S.T)
    alpha = scipy.linalg.cho_solve((factor, True), labels)
    scale = np.linalg.norm(matrix, 2) * np.linalg.norm(alpha) + np.linalg.norm(labels)
    residual = float(np.linalg.norm(matrix @ alpha - labels) / (scale if scale else 1.0))
    B = scipy.linalg.cho_solve((factor, True), K[:n, n:]).T
    return Point(S, alpha, B, np.hstack([-B, np.eye(len(B))])), float(np.sum(np.log(pivots))), residual


class Derivative(NamedTuple):
    """Of the predictive mean (test, output), the predictive covariance (test, test\\_) and ln L."""

    mean: Array
    covariance: Array
    score: Array


def _first(at: Point, M: Array) -> Derivative:
    """First derivatives in the direction ``M`` of the covariance."""
    n, n_outputs = at.alpha.shape
    inner = M[:n, :n]
    score = 0.5 * np.sum(at.alpha * (inner @ at.alpha)) - 0.5 * n_outputs * np.sum(at.S * inner)
    return Derivative(at.J @ M[:, :n] @ at.alpha, at.J @ M @ at.J.T, score)


def _second(at: Point, M: Array) -> Derivative:
    """Second derivatives in the direction ``M``."""
    n, n_outputs = at.alpha.shape
    inner, N = M[:n, :n], at.J @ M[:, :n]
    pulled, SM = inner @ at.alpha, at.S @ inner
    score = -np.sum(pulled * (at.S @ pulled)) + 0.5 * n_outputs * np.sum(SM * SM.T)
    return Derivative(-2 * N @ at.S @ pulled, -2 * N @ at.S @ N.T, score)


def _modes(V: Array) -> Iterator[tuple[float, Array]]:
    """V as a sum of ± M⊗M over symmetric matrices M."""
    i, j = np.triu_indices(len(V))
    weight = np.where(i == j, 1.0, np.sqrt(2.0))  # of unordered pairs
    values, vectors = np.linalg.eigh(weight[:, None] * weight * V[i[:, None], j[:, None], i, j])
    M = np.zeros(V.shape[:2])
    for value, vector in zip(values, (vectors / weight[:, None]).T, strict=True):
        M[i, j] = M[j, i] = np.sqrt(abs(value)) * vector
        if abs(value) > EPS * abs(values).max():
            yield np.sign(value), M
