"""Regression with the kernels of a random network: weights of the samples, Eqs. (prior.6), (prior.7), (prior.11)."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from widefield.solvers.conjugate import conjugate_gradients
from widefield.solvers.symmetric import AbstractMatrix, Cholesky, Spectral

MANY = 20  # noises: from there on one eigendecomposition costs less than so many factors
MAX_STEPS = 200  # of the iteration that mends a factor of single precision
Factor = Cholesky | Spectral
Product = Callable[[np.ndarray], np.ndarray]


class Regression(NamedTuple):
    """``weights`` (noise, time, sample, output) of the samples, ``log_evidence`` (noise,), the worst residual, and how far a
    rounding of the kernel may move what is solved at an infinite time: its ``eps`` times the ratio of the factor's pivots."""

    weights: np.ndarray
    log_evidence: np.ndarray
    residual: float
    sensitivity: float
    steps: int = 0


def needs_spectrum(noises: np.ndarray, times: np.ndarray) -> bool:
    """Whether eigenvalues are needed, or cheaper than a factor for each noise."""
    return bool(np.isfinite(times).any()) or len(noises) >= MANY


def factors(matrix: AbstractMatrix, noises: np.ndarray, spectral: bool) -> Iterator[Factor]:
    """K + noise for each noise in turn; the factor before is lost."""
    if spectral:
        values, vectors = matrix.spectrum()
        yield from (Spectral(values, vectors, noise) for noise in noises)
    else:
        yield from (Cholesky(matrix, matrix.factor(noise)) for noise in noises)


def regress(
    matrix: AbstractMatrix,
    y: np.ndarray,
    noises: np.ndarray,
    times: np.ndarray,
    rtol: float,
    visit: Callable[[Factor], None] = lambda factor: None,
) -> Regression:
    r"""Weights a of the samples, which predict :math:`K_{*D}a`, and the log evidence.

    .. math::  a = (K + \sigma^2)^{-1}\left(1 - e^{-(K + \sigma^2)t}\right)y

    Notation: ``matrix`` is K over (supervised state, sample), ``noises`` are σ², ``times`` are t, infinite ones included.
    ``visit`` sees every factor while it lives.
    Error: raises `numpy.linalg.LinAlgError` where K + noise is not positive definite; nothing is added to it.
    """
    weights, evidence, residuals, sensitivity = [], [], [], 0.0
    for noise, factor in zip(noises, factors(matrix, noises, needs_spectrum(noises, times)), strict=True):
        _check_pivots(factor.pivots, matrix, times, rtol)
        at = np.stack([_at_time(factor, y, time) for time in times])
        weights.append(at)
        evidence.append(_log_evidence(factor, y, at[-1]) if np.isinf(times[-1]) else np.nan)
        residuals += [_residual(matrix, factor, noise, a, y, time) for a, time in zip(at, times, strict=True)]
        if np.isinf(times).any():
            sensitivity = max(sensitivity, _sensitivity(matrix, factor))
        visit(factor)
    return Regression(np.stack(weights), np.asarray(evidence), float(np.max(residuals)), sensitivity)


def regress_in_single(
    matrix: AbstractMatrix,
    product: Product,
    y: np.ndarray,
    noises: np.ndarray,
    rtol: float,
    exact: bool,
) -> Regression:
    """The same at infinite time with a factor in single precision, which preconditions conjugate gradients in double.

    ``product`` multiplies by K in double precision. Where the factor is there for the iteration alone, its diagonal may be
    raised; the evidence needs it ``exact``.
    """
    weights, found, residuals, sensitivity, steps = [], [], [], 0.0, 0
    for noise in noises:
        factor, raised = None, noise
        while factor is None:
            try:
                factor = Cholesky(matrix, matrix.factor(raised))
                _check_pivots(factor.pivots, matrix, np.asarray([np.inf]), rtol)
            except np.linalg.LinAlgError:
                if exact or raised > noise:
                    raise
                factor, raised = None, noise + 8 * matrix.n * matrix.eps * _largest(matrix)
        single = lambda r, f=factor: f.solve(r.astype(np.float32)).astype(float)  # noqa: E731
        full = lambda v, s=noise: product(v) + s * v  # noqa: E731
        solved = conjugate_gradients(full, single, y, rtol, MAX_STEPS)
        weights.append(solved.x[None])
        residuals.append(solved.residual)
        steps = max(steps, solved.steps)
        found.append(_log_evidence(factor, y, solved.x) if exact else np.nan)
        sensitivity = max(sensitivity, _sensitivity(matrix, factor))
    return Regression(np.stack(weights), np.asarray(found), float(np.max(residuals)), sensitivity, steps)


def _sensitivity(matrix: AbstractMatrix, factor: Factor) -> float:
    return matrix.eps * float(factor.pivots.max() / factor.pivots.min())


def _largest(matrix: AbstractMatrix) -> float:
    return float(np.max(matrix.diagonal[: matrix.n]))


def _check_pivots(pivots: np.ndarray, matrix: AbstractMatrix, times: np.ndarray, rtol: float) -> None:
    """The factor of a singular matrix can pass by rounding (of the kernel's own ``eps``); its pivots cannot.

    A finite time may be too short for what is not resolved to matter.
    """
    floor = 4 * matrix.n * matrix.eps * pivots.max()
    if not pivots.min() > floor and not floor * times.max() <= rtol:
        raise np.linalg.LinAlgError(f"smallest pivot {pivots.min():.1e} against {pivots.max():.1e}")


def _at_time(factor: Factor, y: np.ndarray, time: float) -> np.ndarray:
    if isinstance(factor, Cholesky) or np.isinf(time):
        return factor.solve(y)
    shift = factor.pivots * time
    gain = np.where(shift == 0, 1.0, -np.expm1(-shift) / np.where(shift == 0, 1, shift))
    return factor.apply(time * gain, y)


def _log_evidence(factor: Factor, y: np.ndarray, weights: np.ndarray) -> float:
    n, n_outputs = y.shape
    return -0.5 * (np.sum(y * weights) + n_outputs * (factor.log_determinant + n * np.log(2 * np.pi)))


def _residual(
    matrix: AbstractMatrix, factor: Factor, noise: float, weights: np.ndarray, y: np.ndarray, time: float
) -> float:
    """(K + noise)a less what is learned of y, all of it at an infinite time, relative to |K + noise||a| + |y|."""
    left = factor.apply(np.exp(-factor.pivots * time), y) if isinstance(factor, Spectral) and np.isfinite(time) else 0.0
    off = matrix.multiply(weights) + noise * weights - (y - left)
    scale = (matrix.norm + noise) * np.linalg.norm(weights) + np.linalg.norm(y)
    return float(np.linalg.norm(off) / (scale or 1.0))
