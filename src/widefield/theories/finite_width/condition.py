r"""Bayesian regression under a random covariance, to first order in its fluctuations.

Given the covariance :math:`\hat G` of the last layer the outputs are independent Gaussians. With
:math:`\hat G = K + \Delta`, :math:`\mathbb E\Delta = G_1/n`, :math:`\mathrm{Cov}(\Delta,\Delta) = V/n` and the likelihood
:math:`L(\hat G) = \prod_i N(y_i;0,\hat G_{DD}+\sigma^2)`, any function A of the covariance has the posterior average

.. math::
    \frac{\mathbb E[AL]}{\mathbb E[L]} = A + \tfrac1n\left[A'\!\cdot G_1 + \tfrac12A''\!:V + A'\!\cdot V\cdot(\ln L)'\right],
    \qquad \ln\mathbb E L = \ln L + \tfrac1n\left[(\ln L)'\!\cdot G_1
    + \tfrac12\left((\ln L)'' + (\ln L)'(\ln L)'\right)\!:V\right]

the last term of the first line being what the labels teach about the kernel. In the language of Roberts, Yaida & Hanin
this is the quartic action of Eqs. 4.97–4.109 conditioned on the labels, without its inverse kernels.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg

EPS = float(np.finfo(float).eps)
Array = np.ndarray


class Regression(NamedTuple):
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


class _Point(NamedTuple):
    """At K: S = (K_DD + σ²)⁻¹, α = S y, B = K_*D S, J = (−B, 1), and the residual of the solve."""

    S: Array
    alpha: Array
    B: Array
    J: Array
    n: int
    residual: float


def condition(K: Array, G1: Array, V: Array, labels: Array, noise: float) -> Regression:
    """Outputs at test points given ``labels`` (sample, output); K, G1 and V over training then test points.

    Error: raises `numpy.linalg.LinAlgError` where K_DD + noise is singular; nothing is added to it.
    """
    at, log_determinant = _solve(K, labels, noise)
    n, n_outputs = labels.shape
    mean, covariance = K[n:, :n] @ at.alpha, K[n:, n:] - K[n:, :n] @ at.B.T
    evidence = -0.5 * (np.sum(labels * at.alpha) + n_outputs * (log_determinant + n * np.log(2 * np.pi)))
    own = first(at, G1)
    shifts = [own.mean, own.covariance, own.score]
    cross = np.zeros((*mean.shape, *mean.shape))
    spread = 0.0
    for sign, M in _modes(V):
        one, two = first(at, M), second(at, M)
        for k, (slope, bend) in enumerate(zip(one, two, strict=True)):
            shifts[k] = shifts[k] + sign * (0.5 * bend + slope * one.score * (1.0 if k < 2 else 0.5))
        cross += sign * np.multiply.outer(one.mean, one.mean)
        spread += sign * one.score**2
    own_part = np.multiply.outer(shifts[1], np.eye(n_outputs))
    corrections = shifts[0], own_part + cross.transpose(0, 2, 1, 3), float(shifts[2])
    return Regression(mean, covariance, float(evidence), *corrections, float(spread), at.residual)


def _solve(K: Array, labels: Array, noise: float) -> tuple[_Point, float]:
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
    return _Point(S, alpha, B, np.hstack([-B, np.eye(len(B))]), n, residual), float(np.sum(np.log(pivots)))


class Derivative(NamedTuple):
    """Of the predictive mean (test, output), the predictive covariance (test, test\\_) and ln L."""

    mean: Array
    covariance: Array
    score: Array


def first(at: _Point, M: Array) -> Derivative:
    """First derivatives in the direction ``M`` of the covariance."""
    inner = M[: at.n, : at.n]
    score = 0.5 * np.sum(at.alpha * (inner @ at.alpha)) - 0.5 * at.alpha.shape[1] * np.sum(at.S * inner)
    return Derivative(at.J @ M[:, : at.n] @ at.alpha, at.J @ M @ at.J.T, score)


def second(at: _Point, M: Array) -> Derivative:
    """Second derivatives in the direction ``M``."""
    inner = M[: at.n, : at.n]
    N = at.J @ M[:, : at.n]
    pulled = inner @ at.alpha
    SM = at.S @ inner
    score = -np.sum(pulled * (at.S @ pulled)) + 0.5 * at.alpha.shape[1] * np.sum(SM * SM.T)
    return Derivative(-2 * N @ at.S @ pulled, -2 * N @ at.S @ N.T, score)


def _modes(V: Array):
    """V as a sum of ± M⊗M over symmetric matrices M."""
    n = len(V)
    values, vectors = np.linalg.eigh(V.reshape(n * n, n * n))
    for value, vector in zip(values, vectors.T, strict=True):
        if abs(value) > EPS * abs(values).max():
            yield np.sign(value), np.sqrt(abs(value)) * vector.reshape(n, n)
