"""Effective couplings and averages at order 1/n: against each other, the recursion, and exact moments."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.scipy.special import erf

import widefield as wf
from widefield.theories.finite_width import couplings, finite_width, neuron_average, neuron_covariance

from ..simulate.students import agrees

X = np.random.default_rng(5).normal(size=(3, 4))
NET = wf.DNN(3, "erf", weight_variance=1.4, bias_variance=0.1, readout_variance=1.2)


@pytest.fixture(scope="module")
def solution():
    return finite_width(NET, wf.Task(X), width=50)


def test_couplings_of_one_sample(solution):
    """1/g_m = K + (G − (m+2)V/2K)/n, v = V/(nK⁴), and the running (4.100)."""
    n = np.array([np.inf, 50, 50, 50])
    K, G, V = (
        solution.data[name].values[(slice(None), *[1] * k)]
        for name, k in (("kernel", 2), ("correction", 2), ("vertex", 4))
    )
    action = {m: couplings(solution, m=m, samples=[1]) for m in (1, 4)}
    for m, part in action.items():
        metric = K + (G - (m + 2) * V / (2 * K)) / n
        np.testing.assert_allclose(part.metric.values.ravel(), metric, rtol=1e-12)
        np.testing.assert_allclose(part.quartic.values.ravel(), V / (n * K**4), rtol=1e-12)
        np.testing.assert_allclose(part.quadratic.values.ravel(), 2 / K - metric / K**2, rtol=1e-12)
    v = action[1].quartic.values.ravel()
    step = action[1].quadratic.values.ravel() - (action[4].quadratic.values.ravel() - 1.5 * v * K)
    np.testing.assert_allclose(step, 0, atol=1e-13)


def test_couplings_give_back_the_correlators(solution):
    """Eqs. 4.47 and 4.48: the two- and four-point functions of the quartic action, to first order."""
    m = 3
    action = couplings(solution, m=m)
    K, V = solution.kernel.values[-1], solution.vertex.values[-1]
    g, v = action.metric.values[-1], action.quartic.values[-1]
    loops = m * np.einsum("abcd,ea,fb,cd->ef", v, K, K, K) + 2 * np.einsum("abcd,ea,fc,bd->ef", v, K, K, K)
    np.testing.assert_allclose(g + loops / 2, solution.covariance.values[-1], rtol=1e-9)
    four = np.einsum("abcd,ea,fb,gc,hd->efgh", v, K, K, K, K)
    np.testing.assert_allclose(four, V / 50, rtol=0, atol=1e-12)


# Marginalization: integrating the first-order density of the quartic action, neuron by neuron and sample by sample.


def weight_of(solution, layer, z, samples=None):
    """ε Q of the density N(z; K)(1 + εQ) of couplings, z (…, neuron, sample), up to a constant."""
    action = couplings(solution, m=z.shape[-2], samples=samples)
    index = list(range(3)) if samples is None else samples
    K = solution.kernel.values[layer][np.ix_(index, index)]
    shift = action.quadratic.values[layer] - np.linalg.inv(K)
    squares = np.einsum("...ia,...ib->...ab", z, z)
    quartic = np.einsum("...ab,abcd,...cd->...", squares, action.quartic.values[layer], squares)
    return quartic / 8 - np.einsum("...ab,ab->...", squares, shift) / 2


def integrated(function, root, shape):
    """Average of a polynomial of degree four over Gaussian numbers of covariance root·rootᵀ, by Gauss–Hermite nodes."""
    y, w = np.polynomial.hermite_e.hermegauss(4)
    grid = np.stack(np.meshgrid(*[y] * int(np.prod(shape)), indexing="ij"), axis=-1)
    weight = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * int(np.prod(shape)), indexing="ij"), axis=-1), axis=-1)
    return float(np.sum(weight * function(grid.reshape(*weight.shape, *shape) @ root.T)))


def test_neurons_are_integrated_out(solution):
    """The couplings of two neurons, one of them integrated, are those of one."""
    K = solution.kernel.values[-1]
    root = np.linalg.cholesky(K)

    def both(first):
        return integrated(
            lambda z: weight_of(solution, -1, np.stack([np.broadcast_to(first, z.shape), z], -2)), root, (3,)
        )

    points = np.random.default_rng(0).normal(size=(4, 3)) @ root.T
    marginal = np.array([both(z) for z in points])
    direct = weight_of(solution, -1, points[:, None, :])
    np.testing.assert_allclose(marginal - marginal[0], direct - direct[0], rtol=0, atol=1e-10)
    unchanged = couplings(solution, m=2).quadratic.values[-1] - couplings(solution, m=1).quadratic.values[-1]
    assert np.abs(unchanged).max() > 1e-3  # the couplings run: entries of the larger action would be wrong


@pytest.mark.parametrize("kept", [[0, 2], [1]])
def test_samples_are_integrated_out(solution, kept):
    """The couplings of all samples, some of them integrated given the others, are those of the rest."""
    K = solution.kernel.values[-1]
    gone = [i for i in range(3) if i not in kept]
    pull = K[np.ix_(gone, kept)] @ np.linalg.inv(K[np.ix_(kept, kept)])
    root = np.linalg.cholesky(K[np.ix_(gone, gone)] - pull @ K[np.ix_(kept, gone)])

    def whole(known):
        def at(rest):
            z = np.zeros((*rest.shape[:-1], 3))
            z[..., kept], z[..., gone] = known, pull @ known + rest
            return weight_of(solution, -1, z[..., None, :])

        return integrated(at, root, (len(gone),))

    points = np.random.default_rng(1).normal(size=(5, len(kept)))
    marginal = np.array([whole(z) for z in points])
    direct = weight_of(solution, -1, points[:, None, :], samples=kept)
    np.testing.assert_allclose(marginal - marginal[0], direct - direct[0], rtol=0, atol=1e-10)
    large, small = couplings(solution).quadratic.values[-1], couplings(solution, samples=kept).quadratic.values[-1]
    assert np.abs(large[np.ix_(kept, kept)] - small).max() > 1e-3  # not entries of the larger coupling


def test_marginals_commute(solution):
    """Couplings of a part of the samples are those of a network that never saw the others."""
    alone = finite_width(NET, wf.Task(X[[2, 0]]), width=50)
    part, direct = couplings(solution, m=3, samples=[2, 0]), couplings(alone, m=3)
    for name in ("metric", "quadratic", "quartic"):
        np.testing.assert_allclose(part.data[name], direct.data[name], rtol=1e-9, atol=1e-12)


def test_couplings_refuse_what_they_cannot_say(solution):
    for match, options in (
        ("`m`", {"m": 50}),
        ("`m`", {"m": 0}),
        ("`samples`", {"samples": [0, 0]}),
        ("`samples`", {"samples": [7]}),
    ):
        with pytest.raises(ValueError, match=match):
            couplings(solution, **options)
    twice = finite_width(NET, wf.Task(X[[0, 0]]), width=50)
    with pytest.raises(ValueError, match="linearly independent"):
        couplings(twice)
    assert couplings(twice, samples=[0]).metric.shape == (4, 1, 1)
    with pytest.raises(ValueError, match="finite_width"):
        couplings(wf.prior(NET, wf.Task(X)))
    assert couplings(solution, m=1).status is wf.Status.success
    with pytest.raises(wf.SolveError, match=r"m V/\(nK²\) reaches 0.58, more than 0.3; a solution of width 97 or more"):
        couplings(solution, m=49)
    beyond = couplings(solution, m=49, throw=False)
    assert beyond.status is wf.Status.inaccurate and np.isfinite(beyond.quartic).all()
    assert couplings(finite_width(NET, wf.Task(X), width=97), m=49).status is wf.Status.success
    assert couplings(finite_width(NET, wf.Task(X), width=96), m=49, throw=False).status is wf.Status.inaccurate


def test_nearly_dependent_samples_are_inaccurate():
    """Inverse kernels magnify errors: success is refused, and the certificate says by how much."""
    near, nearer = (finite_width(NET, wf.Task(np.stack([X[0], X[0] + d * X[1]])), width=50) for d in (0.1, 1e-3))
    good = couplings(near)
    assert good.status is wf.Status.success and good.certificate.error < 1e-6
    with pytest.raises(wf.SolveError, match="inaccurate"):
        couplings(near, rtol=0.1 * good.certificate.error)
    with pytest.raises(wf.SolveError, match="inaccurate"):
        couplings(nearer)
    assert couplings(nearer, throw=False).residual > 1e-6


def test_undeclared_jumps_are_inaccurate(solution):
    """A step whose place is not given costs digits: the two node counts disagree."""
    step = lambda z: 1.0 * (z > 0.3)  # noqa: E731
    declared = neuron_average(solution, step, breaks=(0.3,))
    assert declared.status is wf.Status.success and declared.value_error < 1e-10
    with pytest.raises(wf.SolveError, match="inaccurate"):
        neuron_average(solution, step)
    partial = neuron_average(solution, step, throw=False)
    assert partial.certificate.error > 1e-8
    with pytest.raises(wf.SolveError, match="inaccurate"):
        neuron_covariance(solution, step, jnp.square)


@pytest.mark.parametrize("place", [0.1234, -0.77, 1.301])
@pytest.mark.parametrize("width", [0.05, 3e-3])
@pytest.mark.parametrize("samples", [(1,), (0, 2)])
def test_spikes_between_nodes_are_resolved_or_flagged(solution, place, width, samples):
    """A narrow Gaussian of the first preactivation: its average is a Gaussian density, however few nodes lie under it."""
    spike = lambda z, *other: jnp.exp(-(((z - place) / width) ** 2) / 2)  # noqa: E731
    K = solution.kernel.values[-1, samples[0], samples[0]]
    exact = width / np.sqrt(K + width**2) * np.exp(-(place**2) / (2 * (K + width**2)))
    average = neuron_average(solution, spike, samples=samples, throw=False)
    resolved = abs(average.leading - exact) <= average.value_error + 1e-12
    assert resolved if average.status is wf.Status.success else average.certificate.error > 1e-8
    assert resolved or len(samples) == 2  # one sample has nodes enough for an honest error of every one of these


def test_averages_that_do_not_exist_are_no_success(solution):
    """exp(z²/K) has no mean: what the ends of the nodes carry says so. exp(z) has one."""
    K = solution.kernel.values[-1, 0, 0]
    with pytest.raises(wf.SolveError, match="inaccurate"):
        neuron_average(solution, lambda z: jnp.exp(z**2 / K))
    with pytest.raises(wf.SolveError, match="inaccurate"):
        neuron_covariance(solution, jnp.square, lambda z: jnp.exp(z**2 / K))
    growing = neuron_average(solution, jnp.exp)
    assert growing.status is wf.Status.success and growing.leading == pytest.approx(np.exp(K / 2), rel=1e-9)


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_averages_make_the_next_layer(solution, layer):
    """E σσ gives the next covariance, Cov(σσ, σσ) between neurons the transported vertex."""
    weight, bias = (1.4, 0.1) if layer < 3 else (1.2, 0.1)
    product = lambda a, b: erf(a) * erf(b)  # noqa: E731
    average = neuron_average(solution, product, samples=(0, 2), layer=layer)
    assert bias + weight * average.value == pytest.approx(solution.covariance.values[layer, 0, 2], rel=1e-9)
    assert average.value_error < 1e-10
    between = neuron_covariance(solution, product, product, samples=(0, 2), layer=layer)
    both = neuron_average(solution, lambda a, b: product(a, b) ** 2, samples=(0, 2), layer=layer)
    source = (both.leading - average.leading**2) / 50
    assert weight**2 * (source + between.value) == pytest.approx(solution.connected.values[layer, 0, 2, 0, 2], rel=1e-9)


def test_polynomials(solution):
    """E z⁴ = 3K² + (6KG + 3V)/n; Cov(z², z'²) = V/n."""
    K, G, V = (
        solution.kernel.values[-1, 1, 1],
        solution.correction.values[-1, 1, 1],
        solution.vertex.values[-1, 1, 1, 1, 1],
    )
    fourth = neuron_average(solution, lambda z: z**4, samples=(1,))
    assert fourth.leading == pytest.approx(3 * K**2, rel=1e-12)
    assert fourth.correction == pytest.approx(6 * K * G + 3 * V, rel=1e-10)
    squares = neuron_covariance(solution, jnp.square, jnp.square, samples=(1,))
    assert squares.value == pytest.approx(V / 50, rel=1e-10)
    # kurtosis of the solution is that of these moments, to first order
    assert solution.kurtosis.values[-1, 1] == pytest.approx((3 * V) / K**2 / 50, rel=1e-12)


def test_step_functions_of_relu_networks():
    """n(P(|z| > 1) − P∞) of finite relu networks, extrapolated in 1/n; without the vertex there would be no change.

    Given Ĝ the outputs are Gaussian, so that each network gives its own probability; E Ĝ = K exactly for one input, which
    removes the term that is linear in Ĝ − K and with it most of the noise.
    """
    net, task = wf.DNN(2, "relu", weight_variance=2.0, readout_variance=2.0), wf.Task(X[:1])
    wide = finite_width(net, task, width=400)
    tail = neuron_average(wide, lambda z: 1.0 * (jnp.abs(z) > 1), breaks=(-1, 1))
    K = wide.kernel.values[-1].item()
    probability = lambda q: scipy.special.erfc(1 / np.sqrt(2 * q))  # noqa: E731
    assert tail.leading == pytest.approx(probability(K), rel=1e-9)
    slope = K**-1.5 * np.exp(-0.5 / K) / np.sqrt(2 * np.pi)

    def shifts(width, seed):
        drawn = wf.simulate.prior(
            net, task, width=width, replicates=20_000, seed=seed, quantities="output"
        ).output.values
        return width * (probability(drawn) - probability(K) - slope * (drawn - K))

    samples = 2 * shifts(200, 8) - shifts(100, 9)
    assert agrees(np.full((1, 1), tail.correction.item()), samples)
    assert not agrees(np.full((1, 1), 1.25 * tail.correction.item()), samples) and not agrees(np.zeros((1, 1)), samples)


def test_what_is_derived_from_a_failure_fails(solution):
    failed = replace(solution, certificate=replace(solution.certificate, failure=wf.Status.not_psd))
    for derive in (
        lambda: wf.couplings(failed, throw=False),
        lambda: wf.neuron_average(failed, jnp.square, throw=False),
        lambda: wf.neuron_covariance(failed, jnp.square, jnp.square, throw=False),
    ):
        assert derive().status is wf.Status.not_psd
