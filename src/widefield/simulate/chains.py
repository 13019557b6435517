"""Whether Markov chains agree, and how much they are worth. Plain NumPy, for any sampler."""

import numpy as np
from jaxtyping import Float

MIN_DRAWS = 8


def split_r_hat(draws: Float[np.ndarray, "chain draw"]) -> float:
    r"""Potential scale reduction of chains cut in halves: 1 when all halves agree, larger when they do not.

    .. math::  \hat R^2 = \frac{n-1}{n} + \frac{B}{W}

    Notation: :math:`B` is the variance of the means of the halves, :math:`W` the mean of their variances, :math:`n`
    their length (Gelman et al., *Bayesian Data Analysis*, Section 11.4). *Limits*: chains that are all stuck in one of
    two phases look converged.
    """
    half = draws.shape[1] // 2
    parts = np.concatenate([draws[:, :half], draws[:, -half:]])
    within, between = parts.var(axis=1, ddof=1).mean(), parts.mean(axis=1).var(ddof=1)
    if within == 0:
        return 1.0 if between == 0 else np.inf
    return float(np.sqrt((half - 1) / half + between / within))


def effective_draws(draws: Float[np.ndarray, "chain draw"]) -> float:
    r"""Number of independent draws with the same standard error of the mean.

    .. math::  n_{\rm eff} = \frac{mn}{1 + 2\sum_t \rho_t}

    Method: autocorrelations :math:`\rho_t` of all :math:`m` chains about their own means, corrected for differences
    between the chains; the sum stops where a pair of neighbours turns negative and pairs never grow (Geyer 1992).
    """
    m, n = draws.shape
    covariance = _autocovariance(draws).mean(axis=0)
    within = covariance[0] * n / (n - 1)
    total = within * (n - 1) / n + (draws.mean(axis=1).var(ddof=1) if m > 1 else 0.0)
    if total == 0:
        return float(m * n)
    rho = 1 - (within - covariance * n / (n - 1)) / total
    rho[0] = 1.0
    pairs = rho[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    stop = int(np.argmax(pairs < 0)) if (pairs < 0).any() else len(pairs)
    time = -1 + 2 * np.minimum.accumulate(pairs[:stop]).sum()
    return float(m * n / max(time, 1 / np.log10(max(m * n, 10))))


def _autocovariance(draws: Float[np.ndarray, "chain draw"]) -> Float[np.ndarray, "chain lag"]:
    """Biased autocovariances of each chain, by Fourier transform."""
    n = draws.shape[1]
    spectrum = np.fft.rfft(draws - draws.mean(axis=1, keepdims=True), 2 * n)
    return np.fft.irfft(np.abs(spectrum) ** 2, 2 * n)[:, :n] / n
