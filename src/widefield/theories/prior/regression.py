"""Bayesian regression with the Gaussian process of a random network, Eqs. 36–37 of Segadlo et al."""

import numpy as np
import scipy.linalg


def condition(
    K: np.ndarray, cross: np.ndarray | None, prior: np.ndarray | None, labels: np.ndarray, noise: float
) -> dict[str, np.ndarray]:
    r"""Predictive mean, covariance and log evidence.

    .. math::  \mu = K_{*D}(K_{DD} + \sigma^2)^{-1}y, \qquad
               \Sigma = K_{**} - K_{*D}(K_{DD} + \sigma^2)^{-1}K_{D*}

    Notation: ``K`` is K_DD over (supervised state, sample), ``cross`` is K_*D, ``prior`` is K_** (the printed lower
    right block of Eq. 37, K_DD, is a misprint), ``noise`` is σ². All outputs share the kernel.
    Error: raises `numpy.linalg.LinAlgError` where K_DD + noise is not positive definite; nothing is added to it.
    """
    s, _, n, _ = K.shape
    eps = float(np.finfo(K.dtype).eps)
    K, labels = K.astype(float), labels.astype(float)
    matrix = K.transpose(0, 2, 1, 3).reshape(s * n, s * n) + noise * np.eye(s * n)
    y = labels.transpose(1, 0, 2).reshape(s * n, -1)
    factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True)
    _refuse_singular(factor, eps)
    whitened = scipy.linalg.solve_triangular(factor, y, lower=True)
    log_determinant = 2 * np.sum(np.log(np.diag(factor)))
    n_outputs = y.shape[1]
    evidence = -0.5 * (np.sum(whitened**2) + n_outputs * (log_determinant + s * n * np.log(2 * np.pi)))
    result = {"log_evidence": np.asarray(evidence)}
    if cross is None:
        return result
    depth, _, n_test, _ = cross.shape
    flat = cross.transpose(0, 2, 1, 3).reshape(depth * n_test, s * n)
    projected = scipy.linalg.solve_triangular(factor, flat.T, lower=True)
    result["test_prediction"] = (projected.T @ whitened).reshape(depth, n_test, n_outputs)
    if prior is not None:
        explained = (projected.T @ projected).reshape(depth, n_test, depth, n_test)
        result["test_covariance"] = prior - explained.transpose(0, 2, 1, 3)
    return result


def _refuse_singular(factor: np.ndarray, eps: float) -> None:
    """A Cholesky factor of a singular matrix can pass by rounding (of the kernel's own ``eps``); its pivots cannot."""
    pivots = np.diag(factor) ** 2
    if pivots.min() <= 4 * len(factor) * eps * pivots.max():
        raise np.linalg.LinAlgError(f"smallest pivot {pivots.min():.1e} against {pivots.max():.1e}")
