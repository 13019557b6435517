"""Bayesian regression with the Gaussian process of a random network, Eqs. (prior.6), (prior.7)."""

from typing import NamedTuple

import numpy as np
import scipy.linalg


class Regression(NamedTuple):
    """Fields by name, and the residual of the linear solve relative to its scale."""

    fields: dict[str, np.ndarray]
    residual: float


def condition(
    K: np.ndarray, K_test: np.ndarray | None, K_tests: np.ndarray | None, labels: np.ndarray, noise: float
) -> Regression:
    r"""Predictive mean, covariance and log evidence.

    .. math::  \mu = K_{*D}(K_{DD} + \sigma^2)^{-1}y, \qquad
               \Sigma = K_{**} - K_{*D}(K_{DD} + \sigma^2)^{-1}K_{D*}

    Notation: ``K`` is K_DD over (supervised state, sample), ``K_test`` is K_*D, ``K_tests`` is K_**, ``noise`` is σ². All
    outputs share the kernel.
    Error: raises `numpy.linalg.LinAlgError` where K_DD + noise is not positive definite; nothing is added to it.
    """
    s, _, n, _ = K.shape
    eps = float(np.finfo(K.dtype).eps)
    K, labels = K.astype(float, copy=False), labels.astype(float)
    matrix = np.array(K.transpose(0, 2, 1, 3)).reshape(s * n, s * n)
    matrix[np.diag_indices(s * n)] += noise
    y = labels.transpose(1, 0, 2).reshape(s * n, -1)
    factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True)
    del matrix
    # The factor of a singular matrix can pass by rounding (of the kernel's own ``eps``); its pivots cannot.
    pivots = np.diag(factor) ** 2
    if pivots.min() <= 4 * len(factor) * eps * pivots.max():
        raise np.linalg.LinAlgError(f"smallest pivot {pivots.min():.1e} against {pivots.max():.1e}")
    whitened = scipy.linalg.solve_triangular(factor, y, lower=True)
    log_determinant = 2 * np.sum(np.log(np.diag(factor)))
    n_outputs = y.shape[1]
    evidence = -0.5 * (np.sum(whitened**2) + n_outputs * (log_determinant + s * n * np.log(2 * np.pi)))
    fields = {"log_evidence": np.asarray(evidence)}
    # The residual: |(K + noise)α − y| relative to |K + noise||α| + |y|.
    parts = scipy.linalg.solve_triangular(factor, whitened, lower=True, trans="T").reshape(s, n, -1)
    left = np.einsum("stij,tjo->sio", K, parts, optimize=True) + noise * parts
    scale = (np.linalg.norm(K) + noise) * np.linalg.norm(parts) + np.linalg.norm(y)
    residual = float(np.linalg.norm(left - y.reshape(s, n, -1)) / (scale or 1.0))
    if K_test is None:
        return Regression(fields, residual)
    depth, _, n_test, _ = K_test.shape
    flat = K_test.transpose(0, 2, 1, 3).reshape(depth * n_test, s * n)
    projected = scipy.linalg.solve_triangular(factor, flat.T, lower=True)
    fields["test_prediction"] = (projected.T @ whitened).reshape(depth, n_test, n_outputs)
    if K_tests is not None:
        explained = (projected.T @ projected).reshape(depth, n_test, depth, n_test)
        fields["test_covariance"] = K_tests - explained.transpose(0, 2, 1, 3)
    return Regression(fields, residual)
