"""The 1/n theory against ensembles of finite networks, 1/n² removed by extrapolation; G1 without T must be rejected."""

import numpy as np
import pytest
import scipy.stats

import widefield as wf
from widefield.theories.finite_width.tied.fluctuations import by_state, expand, on_nodes

NARROW = 24


def agrees(theory, samples, *, alpha=1e-6) -> bool:
    """Student test of independent ``samples`` against ``theory``, Bonferroni over its entries; exact where constant."""
    n = len(samples)
    stderr = samples.std(axis=0, ddof=1) / np.sqrt(n)
    limit = scipy.stats.t.isf(alpha / (2 * theory.size), df=n - 1)
    return bool(np.all(np.abs(samples.mean(axis=0) - theory) <= limit * stderr + 1e-9))


def ensemble(network, task, replicates, seed):
    """hh and φφ of networks of width 24 and 48, (replicate, state, state_, sample, sample_)."""
    runs = {}
    for n in (NARROW, 2 * NARROW):
        run = wf.simulate.prior(
            network, task, width=n, replicates=replicates, seed=seed + n, quantities=("hidden", "feature"),
            method="weight_free", progress=False,
        )  # fmt: skip
        runs[n] = run.hidden.values, run.feature.values
    return runs


def extrapolated(runs, which, transform):
    wide, narrow = (transform(n, runs[n][which]) for n in (2 * NARROW, NARROW))
    return 2 * wide - narrow


def check(network, task, replicates, seed):
    """H1 and Vh of hh; G1 through φφ one state earlier, with T and without."""
    moments = expand(network, task)
    runs = ensemble(network, task, replicates, seed)
    C, H1, Vh = (by_state(matrix, moments.nodes) for matrix in (moments.nodes.C, moments.H1, moments.Vh))
    assert agrees(H1, extrapolated(runs, 0, lambda n, hh: n * (hh - C)))
    assert agrees(
        Vh, extrapolated(runs, 0, lambda n, hh: n * (hh - hh.mean(axis=0)) ** 2 * replicates / (replicates - 1))
    )
    w, mean = (of_pairs(values, moments) for values in (moments.rows.weight, moments.response.mean))
    shift = extrapolated(runs, 1, lambda n, ff: n * w * (ff[:, :-1, :-1] - mean))
    assert agrees(of_pairs(moments.G1, moments), shift)
    return of_pairs(moments.G1 - moments.response.R @ moments.T, moments), shift


def of_pairs(values, moments):
    """A quantity of the rows over pairs of states after the first."""
    return by_state(on_nodes(values, moments.rows), moments.nodes)[1:, 1:]


@pytest.mark.parametrize("activation", ["linear", "erf", "relu"])
def test_tied_networks(activation):
    network = wf.RNN(4, activation, weight_variance=1.3, bias_variance=0.3)
    without_reuse, shift = check(network, wf.Task(np.ones((1, 4))), 40_000, 1)
    assert not agrees(without_reuse, shift), "the weight-reuse term must be seen"


@pytest.mark.full
@pytest.mark.parametrize("activation", ["linear", "erf", "relu", "tanh"])
@pytest.mark.parametrize("biases", ["tied", "untied"])
def test_tied_networks_with_two_sequences(activation, biases):
    x = np.random.default_rng(2).normal(size=(2, 2, 3))
    network = wf.RNN(4, activation, weight_variance=1.3, bias_variance=0.2, biases=biases)
    without_reuse, shift = check(network, wf.Task(x), 100_000, 3)
    assert not agrees(without_reuse, shift)


@pytest.mark.full
def test_untied_weights_with_tied_biases():
    """Layers that share biases: noise of different layers is correlated, and T does not vanish."""
    network = wf.RNN(4, "relu", weight_variance=1.3, bias_variance=1.0, weights="untied")
    assert np.abs(expand(network, wf.Task(np.ones((1, 4)))).T).max() > 1e-2
    without_reuse, shift = check(network, wf.Task(np.ones((1, 4))), 300_000, 4)
    assert not agrees(without_reuse, shift, alpha=1e-3)


@pytest.mark.full
def test_exact_linear_against_networks():
    """Mean and covariance of hh at width 8, where the leading order alone is far off."""
    from widefield.theories.finite_width.tied.exact_linear import exact_linear

    network, n, replicates = wf.RNN(4, "linear", weight_variance=0.9, bias_variance=0.3), 8, 200_000
    task = wf.Task(np.ones((1, 4)))
    exact = exact_linear(network, task, n)
    run = wf.simulate.prior(
        network, task, width=n, replicates=replicates, seed=5, quantities=("hidden",), progress=False
    )
    a, b, i, j = exact.pairs.T
    hh = run.hidden.values[:, a, b, i, j]
    assert agrees(exact.mean, hh)
    centered = hh - hh.mean(axis=0)
    products = centered[:, :, None] * centered[:, None, :] * replicates / (replicates - 1)
    assert agrees(exact.covariance, products)
    leading = exact.covariance_coefficients[1] / n
    assert not agrees(leading, products)
