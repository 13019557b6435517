"""Weight-space sampling against laws that are known exactly, and against closed forms of linear networks."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

import widefield as wf
from widefield.simulate.networks.forward import preactivations
from widefield.simulate.networks.streams import streams
from widefield.simulate.posterior import hmc
from widefield.simulate.posterior.initial_weights import prior_weights
from widefield.simulate.posterior.law import label_factor, law_of, potential, supervised_features

from ..students import agrees, same_mean

X = np.random.default_rng(0).standard_normal((2, 3))
SCALAR = wf.Task(np.ones((1, 1)), np.array([1.5]))


# --- the kernel leaves the joint law of weights and labels invariant (Geweke 2004)


def statistics(parameters, law):
    """Functions of weights and labels whose means tell a wrong kernel: sizes, overlaps, energies."""
    h = jnp.concatenate(preactivations(parameters, law.inputs, law.scales, law.activation, law.sizes))
    gram = h @ h.T / law.width
    phi = supervised_features(parameters, law)
    y = law.labels.reshape(len(phi), -1)
    kernel = phi @ phi.T / law.width
    rows = [jnp.diag(gram), gram[0] ** 2, jnp.diag(kernel) ** 2, (y**2).sum(1), (kernel * (y @ y.T)).ravel()]
    return jnp.concatenate([*rows, potential(parameters, law)[None]])


def drawn_labels(parameters, law, key):
    factor = label_factor(supervised_features(parameters, law), law)
    flat = factor @ jax.random.normal(key, (len(factor), law.labels.shape[2])) / jnp.sqrt(law.width)
    return replace(law, labels=flat.reshape(law.labels.shape))


def joint_statistics(net, seed, *, cycles, distortion=1.0, n_chains=4000, width=5):
    """Statistics of weights and labels after ``cycles`` of a transition given the labels, then labels anew."""
    task = wf.Task(X, np.zeros((2, 1, 2)), supervised=(-1,))
    law = law_of(net, task, 0.5, width)
    with jax.enable_x64(True):
        start = [prior_weights(net, law, rng) for rng in streams(seed, range(n_chains), 0)]
        start = jax.tree.map(lambda *rows: np.stack(rows), *start)
        keys = jax.random.split(jax.random.key(seed), n_chains)
        return np.asarray(cycle(start, keys, cycles, distortion, law))


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, None, None, None))
def cycle(position, key, cycles, distortion, law):
    def turn(i, state):
        position, law = state
        move, draw = jax.random.split(jax.random.fold_in(key, i))
        believed = replace(law, temperature=distortion * law.temperature)
        position, _, _ = hmc.transition(position, move, 0.4, believed)
        return position, drawn_labels(position, law, draw)

    law = jax.tree.map(jnp.asarray, law)
    first = position, drawn_labels(position, law, key)
    return statistics(*jax.lax.fori_loop(0, cycles, turn, first))


@pytest.mark.parametrize(
    ("kind", "activation"),
    [(wf.RNN, "linear"), (wf.RNN, "erf"), pytest.param(wf.DNN, "linear", marks=pytest.mark.full)],
)
def test_transitions_leave_the_joint_law_of_weights_and_labels_invariant(kind, activation):
    net = kind(3, activation, weight_variance=1.4, input_variance=1.3, readout_variance=2.0)
    before = joint_statistics(net, 1, cycles=0)
    assert same_mean(before, joint_statistics(net, 2, cycles=4))
    wrong = joint_statistics(net, 2, cycles=4, distortion=2.0)
    assert not same_mean(before, wrong), "a kernel for another temperature must be seen"


# --- depth 1, linear, one sample: the kernel is k χ²_N/N, so every average is a one-dimensional integral


def one_dimensional(n, k, v, kappa, y, *, determinant=1.0):
    """Posterior means of the kernel, of the prediction over the label, and of the energy."""

    def weight(phi):
        prior = scipy.stats.chi2.logpdf(n * phi / k, n)
        return np.exp(prior - n / 2 * y**2 / (v * phi + kappa) - determinant / 2 * np.log(v * phi + kappa) + 5)

    quantities = (lambda p: 1.0, lambda p: p, lambda p: v * p / (v * p + kappa), lambda p: y**2 / (v * p + kappa) / 2)
    values = [scipy.integrate.quad(lambda p, q=q: q(p) * weight(p), 0, 60 * k, limit=400)[0] for q in quantities]
    return np.array(values[1:]) / values[0]


def measured(solution, y):
    kernel, f = solution.hidden.values.reshape(-1), solution.prediction.values.reshape(-1)
    return np.stack([kernel, f / y, solution.energy.values], axis=1)


SHALLOW = wf.RNN(1, "linear", input_variance=1.3, readout_variance=0.7)
EXACT = {"n": 4, "k": 1.3, "v": 0.7, "kappa": 0.5, "y": 1.5}
RUN = {"temperature": 0.5, "width": 4, "seed": 3}


def test_depth_one_is_the_one_dimensional_integral():
    samples = measured(wf.simulate.posterior(SHALLOW, SCALAR, **RUN, replicates=48, draws=400, warmup=50), 1.5)
    assert agrees(one_dimensional(**EXACT), samples)
    assert not agrees(one_dimensional(**EXACT, determinant=0.0), samples), "the determinant is seen at width 4"
    assert not agrees(one_dimensional(**{**EXACT, "kappa": 0.55}), samples), "10 % in the temperature is seen"


@pytest.mark.parametrize("precondition", [True, pytest.param(False, marks=pytest.mark.full)])
def test_langevin_dynamics_has_the_same_law_up_to_its_rate(precondition):
    """Plain dynamics: the readout relaxes at K/G = 2.9 per unit time, the inputs thirty times more slowly."""
    exact = one_dimensional(**EXACT)
    options = {"sampler": "sgld", "precondition": precondition, "replicates": 128, "warmup": 20}
    unit, slower, largest, watched = (1.0, 1, 0.1, 1) if precondition else (1 / 2.86, 10, 0.2, 0)
    fine, coarse = (
        measured(
            wf.simulate.posterior(SHALLOW, SCALAR, **RUN, **options, draws=n, rate=rate * unit, updates=m * slower), 1.5
        )
        for rate, m, n in ((0.02, 40, 100), (largest, 6, 400))
    )
    bias, coarse_bias = np.abs(fine.mean(0) - exact), np.abs(coarse.mean(0) - exact)
    assert agrees(exact, fine)
    assert not agrees(exact, coarse), "a large step has a visible bias"
    assert bias[watched] < 0.5 * coarse_bias[watched]


@pytest.mark.full
def test_hot_networks_have_the_moments_of_the_prior():
    net = wf.RNN(3, "linear", weight_variance=1.4, input_variance=1.3)
    task = wf.Task(np.ones((1, 1)), np.ones(1))
    samples = wf.simulate.posterior(net, task, temperature=1e7, width=6, replicates=200, draws=300, warmup=50, seed=5)
    hidden = samples.hidden.values[..., 0, 0]
    exact = 1.3 * np.array([[1, np.nan, 1.4 / 6], [np.nan, 1.4, np.nan], [1.4 / 6, np.nan, 1.4**2 * (1 + 2 / 36)]])
    even = np.isfinite(exact)
    assert agrees(exact[even], hidden[:, even])
    assert not agrees(1.3 * 1.4**2, hidden[:, 2, 2]), "the law of untied weights is seen to differ"
    assert samples.certificate.diagnostics["acceptance"] > 0.999


# --- linear, depth 3, one sample, label at the last state


def section_seven(lam, kappa, width, seed, kind=wf.RNN, **options):
    net = kind(3, "linear", weight_variance=1.5, input_variance=0.8, readout_variance=0.5)
    unit = 0.5 * 1.5**2 * 0.8
    task = wf.Task(np.ones((1, 1)), np.array([np.sqrt(lam * unit)]))
    run = {"temperature": kappa * unit, "width": width, "seed": seed, "quantities": ("hidden", "squared_correlation")}
    solution = wf.simulate.posterior(net, task, **run, **options)
    scale = np.sqrt(1.5) ** np.arange(3)
    kernel = solution.hidden.values[..., 0, 0] / (0.8 * scale[:, None] * scale)
    return kernel, solution.squared_correlation.values[..., 0, 0]


def incoherent_size(lam, kappa):
    return scipy.optimize.brentq(lambda s: s - 1 - lam * s**3 / (s**3 + kappa) ** 2, 1.0, 2.0)


def coherent_kernel(lam, kappa):
    s = scipy.optimize.brentq(lambda s: (4 * s * (s - 1) ** 2 + kappa) ** 2 / (4 * s * (s - 1)) - lam, 2.0, 9.0)
    h22, h12 = 2 * s * (s - 1), np.sqrt(2 * s * (s - 1) * (s - 2))
    h23 = 2 * s * h12
    h13 = h12 * h23 / h22
    return np.array([[s, h12, h13], [h12, h22, h23], [h13, h23, 4 * s * (s - 1) ** 2]])


def check_fluctuations(lam, width, **options):
    s = incoherent_size(lam, 1.0)
    (narrow, rho), (wide, rho_) = (section_seven(lam, 1.0, n, n, **options) for n in (width, 2 * width))
    sizes = np.einsum("raa->ra", 2 * wide - narrow)
    assert agrees(s ** np.arange(1, 4), sizes)
    adjacent = 2 * 2 * width * rho_[:, [0, 1], [1, 2]] - width * rho[:, [0, 1], [1, 2]]
    assert agrees([1 / (s * (2 - s)), 2 / (2 - s)], adjacent)
    assert not agrees([1.0, 1.0], adjacent), "fluctuations of untied weights must be seen to be smaller"


def check_coherence(lam, width, **options):
    start = coherent_kernel(lam, 1.0) * 0.8 * np.sqrt(1.5) ** np.add.outer(np.arange(3), np.arange(3))
    options |= {"start": start[:, :, None, None]}
    (narrow, _), (wide, _) = (section_seven(lam, 1.0, n, n, **options) for n in (width, 2 * width))
    samples = 2 * wide - narrow
    assert agrees(coherent_kernel(lam, 1.0), samples)
    s = scipy.optimize.brentq(lambda s: s - 1 - lam * s**3 / (s**3 + 1) ** 2, 1.0, 9.0)
    assert not agrees(np.diag(s ** np.arange(1, 4)), samples), "the deep network's solution must be rejected"
    assert not agrees(s ** np.arange(1, 4), np.einsum("raa->ra", samples)), "by its sizes alone"


def test_incoherent_states_fluctuate_as_predicted():
    check_fluctuations(2.0, 48, replicates=16, draws=250, warmup=100)


def test_coherent_states_have_the_kernel_of_the_theory():
    check_coherence(24.0, 64, replicates=12, draws=200, warmup=60)


def test_deep_networks_are_not_coherent():
    kernel, rho = section_seven(24.0, 1.0, 64, 1, wf.DNN, replicates=12, draws=100, warmup=60)
    s = scipy.optimize.brentq(lambda s: s - 1 - 24.0 * s**3 / (s**3 + 1) ** 2, 1.0, 9.0)
    assert agrees([1.0, 1.0], 64 * rho[:, [0, 1], [1, 2]], alpha=1e-9)
    assert np.all(rho[:, [0, 1], [1, 2]] < 3 / 64)
    np.testing.assert_allclose(np.einsum("raa->a", kernel) / 12, s ** np.arange(1, 4), rtol=0.1)


@pytest.mark.full
def test_incoherent_states_fluctuate_as_predicted_closer_to_the_transition():
    check_fluctuations(4.0, 200, replicates=16, draws=600, warmup=150)


@pytest.mark.full
def test_coherent_states_of_wide_networks():
    check_coherence(20.0, 200, replicates=16, draws=500, warmup=100)


@pytest.mark.full
def test_networks_of_width_one_thousand_on_both_sides():
    check_fluctuations(2.0, 500, replicates=24, draws=160, warmup=50)
    check_coherence(24.0, 500, replicates=16, draws=100, warmup=40)


@pytest.mark.full
def test_chains_from_the_prior_find_the_coherent_state():
    kernel, _ = section_seven(24.0, 1.0, 200, 7, replicates=8, draws=400, warmup=400)
    np.testing.assert_allclose(kernel.mean(0), coherent_kernel(24.0, 1.0), rtol=0.05)
