"""Errors of sampled answers are honest: what seeds scatter is what `<field>_stderr` says, and where the truth lies."""

import numpy as np
import pytest
import scipy.stats

import widefield as wf
from tests.dynamics.question import predict
from widefield.theories.dynamics.curves import N_BATCHES

SEEDS, RARE = 16, 1e-4
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(3, 6)), np.array([1.0, -1.0, 0.5])
CASES = {
    "deep": (wf.DNN(2, "tanh"), wf.Task(X, Y)),
    "recurrent": (wf.RNN(2, "tanh"), wf.Task(RNG.normal(size=(3, 2, 6)), Y)),
}


def ask(name, **options):
    network, task = CASES[name]
    options = {"quantities": ("loss", "prediction"), "throw": False, "progress": False} | options
    return predict(network, task, rate=0.15, steps=8, richness=1.5, **options)


@pytest.fixture(scope="module", params=CASES)
def runs(request):
    """Sixteen seeds with few paths, and one with sixteen times as many."""
    return [ask(request.param, paths=256, seed=s) for s in range(SEEDS)], ask(request.param, paths=4096, seed=99)


@pytest.mark.parametrize("field", ["loss", "prediction"])
def test_standard_errors_are_what_seeds_scatter(runs, field):
    """Of every entry after the first step: variance over seeds beside the mean squared error (F), and the mean beside the truth."""
    some, best = runs
    value, error = (np.stack([one.data[name].values[1:] for one in some]) for name in (field, f"{field}_stderr"))
    told, dof = np.mean(error**2, axis=0), SEEDS * (N_BATCHES - 1)
    ratio, rare = np.var(value, axis=0, ddof=1) / told, RARE / told.size
    low, high = scipy.stats.f.ppf([rare, 1 - rare], SEEDS - 1, dof)
    assert np.all(ratio > low) and np.all(ratio < high)
    assert not np.all(9 * ratio < high), "errors a third as large would be seen"
    sum_of_both = np.hypot(np.sqrt(told / SEEDS), best.data[f"{field}_stderr"].values[1:])
    away = np.abs(value.mean(axis=0) - best.data[field].values[1:]) / sum_of_both
    assert np.all(away < scipy.stats.t.isf(rare / 2, N_BATCHES - 1))


def test_the_error_of_the_certificate_covers_the_truth(runs):
    """In nearly all runs, as 95 % say (fewer than 11 of 16 has a chance of 1e-4); a third of it would not."""
    some, best = runs
    truth = best.prediction.values
    norm = lambda f: np.sqrt(np.mean(f**2, axis=(1, 2)).max())  # noqa: E731
    ratio = np.array([norm(one.prediction.values - truth) / norm(truth) / one.certificate.error for one in some])
    least = scipy.stats.binom.ppf(RARE, SEEDS, 0.95)
    assert np.sum(ratio <= 1) >= least > np.sum(ratio <= 1 / 3)
