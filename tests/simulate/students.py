"""Student tests with Bonferroni, one-sample and two-sample. They share no code with the library."""

import numpy as np
import scipy.stats

ALPHA = 1e-6


def agrees(theory, samples, *, alpha=ALPHA) -> bool:
    """Independent ``samples`` (axis 0) against ``theory``, every entry."""
    samples = np.asarray(samples)
    theory = np.broadcast_to(theory, samples.shape[1:])
    n = len(samples)
    stderr = samples.std(axis=0, ddof=1) / np.sqrt(n)
    limit = scipy.stats.t.isf(alpha / (2 * theory.size), df=n - 1)
    return bool(np.all(np.abs(samples.mean(axis=0) - theory) <= limit * stderr))


def same_mean(samples, others, *, alpha=ALPHA) -> bool:
    """Welch's test of two independent sets of samples (axis 0), every entry."""
    test = scipy.stats.ttest_ind(samples, others, axis=0, equal_var=False)
    return bool(np.all(test.pvalue >= alpha / np.size(test.pvalue)))


def same_moments(samples, others) -> bool:
    """The first two moments of two sets of samples agree."""
    return same_mean(samples, others) and same_mean(np.square(samples), np.square(others))


def honest(exact, samples, *, of=4, claimed=1.0) -> bool:
    """Whether standard errors over ``of`` independent samples are, on average, the distance of their mean from ``exact``.

    Whatever the law of the samples: the square of the distance less the square of the error has mean zero. ``claimed``
    multiplies the errors.
    """
    groups = np.asarray(samples)[: len(samples) // of * of].reshape(-1, of, *np.shape(samples)[1:])
    distance, variance = groups.mean(axis=1) - exact, groups.var(axis=1, ddof=1) / of
    return agrees(np.zeros(groups.shape[2:]), distance**2 - claimed**2 * variance)
