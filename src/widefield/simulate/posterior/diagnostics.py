"""Whether Markov chains agree, and how much they are worth. Plain NumPy, for any sampler."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from widefield.answer.certificate import Check, Status

MIN_DRAWS = 8  # of a chain, for its halves to be compared
R_HAT_LIMIT = 1.05
MIN_EFFECTIVE = 5  # independent draws per chain


def judge(
    traces: dict[str, Float[np.ndarray, "chain draw"]], knobs: str = "`draws` and `warmup`"
) -> tuple[dict[str, Check], dict[str, Any], list[str]]:
    """Checks, diagnostics and advice, to raise ``knobs``, from the scalars ``traces`` of all chains.

    ``"r_hat"``, the largest of `split_r_hat`, must not exceed `R_HAT_LIMIT`; it is infinite where chains cannot be
    compared. ``"needed_over_effective_draws"`` is the number that is needed, `MIN_EFFECTIVE` per chain, over the smallest of
    `effective_draws`: at most one.
    """
    n_chains, n_draws = next(iter(traces.values())).shape
    if n_chains < 2 or n_draws < MIN_DRAWS:
        advice = f"chains cannot be compared: use `replicates` of 2 or more and `draws` >= {MIN_DRAWS}"
        return {"r_hat": Check(math.inf, R_HAT_LIMIT, Status.not_converged)}, {}, [advice]
    if not all(np.isfinite(values).all() for values in traces.values()):
        return {"r_hat": Check(math.nan, R_HAT_LIMIT, Status.not_converged)}, {}, []
    r_hat = {name: split_r_hat(values) for name, values in traces.items()}
    effective = {name: effective_draws(values) for name, values in traces.items()}
    worst = max(r_hat, key=lambda name: r_hat[name])
    needed = MIN_EFFECTIVE * n_chains / min(effective.values())
    checks = {
        "r_hat": Check(r_hat[worst], R_HAT_LIMIT, Status.not_converged),
        "needed_over_effective_draws": Check(needed, 1, Status.not_converged),
    }
    advice = (
        f"chains disagree: split R-hat of the {worst} is {r_hat[worst]:.3g}, above {R_HAT_LIMIT}"
        if not checks["r_hat"].met
        else f"chains hold {min(effective.values()):.3g} independent draws, fewer than {MIN_EFFECTIVE} each"
    )
    remedy = f": raise {knobs}, or `start` from a kernel such as the theory's"
    failed = not all(check.met for check in checks.values())
    return checks, {"r_hat": r_hat, "effective_draws": effective}, [advice + remedy] if failed else []


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
    between the chains; the sum stops where a pair of neighbors turns negative and pairs never grow (Geyer 1992).
    """
    m, n = draws.shape
    spectrum = np.fft.rfft(draws - draws.mean(axis=1, keepdims=True), 2 * n)
    covariance = (np.fft.irfft(np.abs(spectrum) ** 2, 2 * n)[:, :n] / n).mean(axis=0)  # biased, of all lags
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
