"""Chain diagnostics against autoregressive processes, whose autocorrelation is known."""

import numpy as np
import pytest
import scipy.signal

import widefield as wf
from widefield.simulate.posterior.diagnostics import MIN_DRAWS, MIN_EFFECTIVE, effective_draws, judge, split_r_hat


def autoregressive(memory, n_chains, n_draws, seed, offset=0.0):
    """Stationary unit-variance AR(1) chains; their integrated time is (1 + memory)/(1 - memory)."""
    rng = np.random.default_rng(seed)
    noise = np.sqrt(1 - memory**2) * rng.standard_normal((n_chains, n_draws))
    noise[:, 0] = rng.standard_normal(n_chains)
    chains = scipy.signal.lfilter([1.0], [1.0, -memory], noise, axis=1)
    return chains + offset * np.arange(n_chains)[:, None]


@pytest.mark.parametrize("memory", [-0.5, 0.0, 0.6, 0.9])
def test_effective_draws_of_an_autoregressive_process(memory):
    draws = autoregressive(memory, 8, 20_000, seed=1)
    exact = draws.size * (1 - memory) / (1 + memory)
    assert effective_draws(draws) == pytest.approx(exact, rel=0.1)


def test_effective_draws_predict_the_error_of_the_mean():
    means = [autoregressive(0.8, 4, 500, seed=s).mean() for s in range(400)]
    draws = autoregressive(0.8, 4, 500, seed=1000)
    assert np.var(means) == pytest.approx(1 / effective_draws(draws), rel=0.35)


def test_r_hat_of_agreeing_and_disagreeing_chains():
    n = 4000
    assert split_r_hat(autoregressive(0.5, 8, n, seed=2)) < 1.01
    apart = autoregressive(0.5, 8, n, seed=2, offset=1.0)
    spread = np.var(np.repeat(np.arange(8.0), 2), ddof=1)
    assert split_r_hat(apart) == pytest.approx(np.sqrt(1 + spread), rel=0.05)
    assert effective_draws(apart) < 40
    drifting = autoregressive(0.5, 8, n, seed=2) + np.linspace(0, 3, n)
    assert split_r_hat(drifting) > 1.2, "a common drift is seen by the halves"


def test_chains_that_do_not_move():
    assert split_r_hat(np.ones((3, 20))) == 1.0
    assert split_r_hat(np.arange(3.0)[:, None] * np.ones((3, 20))) == np.inf


def test_what_chains_are_judged_by():
    good, slow = autoregressive(0.5, 4, 400, seed=3), autoregressive(0.99, 4, 60, seed=3)
    checks, diagnostics, advice = judge({"energy": good, "size": good[::-1]})
    assert (
        all(check.met for check in checks.values()) and not advice and set(diagnostics["r_hat"]) == {"energy", "size"}
    )
    checks, diagnostics, advice = judge({"energy": good, "size": slow})
    assert (
        not checks["r_hat"].met and checks["r_hat"].value == max(diagnostics["r_hat"].values()) and "size" in advice[0]
    )
    few = min(diagnostics["effective_draws"].values())
    assert checks["needed_over_effective_draws"].value == pytest.approx(4 * MIN_EFFECTIVE / few)
    assert all(check.otherwise is wf.Status.not_converged for check in checks.values())


@pytest.mark.parametrize("traces", [np.zeros((1, 50)), np.zeros((4, MIN_DRAWS - 1)), np.full((4, 50), np.nan)])
def test_chains_that_cannot_be_judged_are_no_success(traces):
    checks, _, _ = judge({"energy": traces})
    assert not checks["r_hat"].met
