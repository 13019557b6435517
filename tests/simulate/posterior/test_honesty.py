"""Standard errors over chains are honest: deviations from exact integrals, in units of them, follow Student's law."""

from functools import cache

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import widefield as wf

from ..students import agrees

CHAINS = 4  # of one simulation, as a user would run it
SCALAR = wf.Task(np.ones((1, 1)), np.array([1.5]), x_test=2 * np.ones((1, 1)))


def weighted(log_density, quantities, limits):
    """Averages of ``quantities`` of the integration variables over the density."""
    values = [
        scipy.integrate.nquad(lambda *z, q=q: q(*z) * np.exp(log_density(*z)), limits, opts={"epsabs": 1e-9})[0]
        for q in (lambda *z: 1.0, *quantities)
    ]
    return np.array(values[1:]) / values[0]


def likelihood(phi, n, v, kappa, y):
    """ln p(y | features) of one label, V integrated out; phi is the mean of squared features."""
    return -n / 2 * y**2 / (v * phi + kappa) - np.log(v * phi + kappa) / 2


def linear_layer(n, k, v, kappa, y):
    """One layer, linear: the kernel is k chi²_n/n, every average a one-dimensional integral."""
    prior = lambda p: scipy.stats.chi2.logpdf(n * p / k, n)  # noqa: E731
    quantities = (lambda p: p, lambda p: v * p / (v * p + kappa) * y, lambda p: y**2 / (v * p + kappa) / 2)
    return weighted(lambda p: prior(p) + likelihood(p, n, v, kappa, y), quantities, [(0, 60 * k)])


def single_neurons(w, v, kappa, y):
    """Width 1, three states that share one weight: a two-dimensional integral over U and W."""

    def phi(u, x):
        h = u
        for _ in range(2):
            h = np.sqrt(w) * x * np.tanh(h)
        return np.tanh(h) ** 2, h**2

    density = lambda u, x: -(u**2 + x**2) / 2 + likelihood(phi(u, x)[0], 1, v, kappa, y)  # noqa: E731
    f = lambda u, x: v * phi(u, x)[0] / (v * phi(u, x)[0] + kappa) * y  # noqa: E731
    quantities = (lambda u, x: phi(u, x)[1], f, lambda u, x: y**2 / (v * phi(u, x)[0] + kappa) / 2)
    return weighted(density, quantities, [(0, 7), (0, 7)])  # even in both


@cache
def sampled(kind):
    """Chains (chain, quantity): kernel, prediction and energy at the last state."""
    options = {"seed": 1, "quantities": ("hidden", "prediction", "energy"), "throw": False}
    if kind == "linear":
        net = wf.RNN(1, "linear", input_variance=1.3, readout_variance=0.7)
        options |= {"temperature": 0.5, "width": 4, "replicates": 400, "draws": 60, "warmup": 60}
    elif kind == "langevin":
        net = wf.RNN(1, "linear", input_variance=1.3, readout_variance=0.7)
        options |= {"temperature": 0.5, "width": 4, "replicates": 400, "draws": 60, "warmup": 60}
        options |= {"sampler": "sgld", "rate": 0.005, "updates": 100}
    else:
        net = wf.RNN(3, "tanh", weight_variance=4.0, readout_variance=0.7)
        options |= {"temperature": 0.5, "width": 1, "replicates": 400, "draws": 120, "warmup": 100}
    s = wf.simulate.posterior(net, SCALAR, **options)
    last = s.hidden.values[:, -1, -1, 0, 0], s.prediction.values[:, -1, 0, 0], s.energy.values
    return np.stack(last, axis=1)


def exact(kind):
    return single_neurons(4.0, 0.7, 0.5, 1.5) if kind == "neurons" else linear_layer(4, 1.3, 0.7, 0.5, 1.5)


@pytest.mark.parametrize("kind", ["linear", "langevin", "neurons"])
def test_deviations_from_exact_integrals_follow_students_law(kind):
    """A hundred simulations of four chains each: their scores have no offset, and the spread that they claim."""
    chains = sampled(kind).reshape(-1, CHAINS, 3)
    deviation, variance = chains.mean(axis=1) - exact(kind), chains.var(axis=1, ddof=1) / CHAINS
    z, n = deviation / np.sqrt(variance), len(chains)
    for values in z.T:
        assert scipy.stats.kstest(values, scipy.stats.t(CHAINS - 1).cdf).pvalue > 1e-6
    ratio = (deviation**2).mean(axis=0) / variance.mean(axis=0)
    low, high = (scipy.stats.f.ppf(p, n, n * (CHAINS - 1)) for p in (1e-6, 1 - 1e-6))
    assert ((ratio > low) & (ratio < high)).all()
    assert (ratio / 0.6**2 > high).all(), "standard errors too small by 0.6 are seen"


def test_the_mean_of_all_chains_is_exact_within_its_error():
    for kind in ("linear", "langevin", "neurons"):
        assert agrees(exact(kind), sampled(kind))
        assert not agrees(1.1 * exact(kind), sampled(kind)), "10 % is seen"
