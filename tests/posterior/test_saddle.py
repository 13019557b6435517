"""The nonlinear saddle point against closed forms, published numbers, brute force and its own identities."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

import widefield as wf
from widefield.answer.certificate import Status
from widefield.solvers.linearization import linearize
from widefield.theories.posterior.nonlinear import moments, saddle_map
from widefield.theories.posterior.nonlinear.saddle import solve_saddle
from widefield.theories.posterior.nonlinear.stationary import SaddleOptions, features_of_test_inputs
from widefield.theories.posterior.problem import input_kernel_between, odd_lags, predict, problem_of

from .saddle_oracle import depth_one, depth_two

RNG = np.random.default_rng(11)
ERF = {"weight_variance": 2.0}  # of the published transition, with κ = 0.2


def question(activation, y, *, depth=3, make=wf.RNN, x=None, kappa=0.2, **network):
    net = make(depth, activation, **network)
    y = np.atleast_1d(np.asarray(y, float))
    return net, problem_of(net, wf.Task(np.ones((1, 1)) if x is None else x, y), kappa)


def solve(activation, y, *, start=None, sector="full", integration="auto", seed=0, n_paths=None, **asked):
    net, problem = question(activation, y, **asked)
    options = SaddleOptions(integration=integration, seed=seed, n_paths=n_paths)
    return solve_saddle(problem, net.activation, options, start=start, sector=sector)


@lru_cache
def erf_at(y):
    """The incoherent state of the published problem."""
    return solve("erf", y, **ERF)


def coherent_start(problem, activation, rho=0.5):
    """R_t ρ^|t−t'| R_t' with the prior's roots, for one sample."""
    with jax.enable_x64(True):
        prior = saddle_map.prior_state(problem, activation)
    lag = rho ** np.abs(np.subtract.outer(*[np.arange(problem.depth)] * 2))
    return tuple(np.sqrt(np.outer(np.diag(m), np.diag(m))) * lag for m in prior)


# Linear networks: Eqs. (posterior.12), (posterior.13).


def incoherent(lam, kappa):
    return scipy.optimize.brentq(lambda s: s - 1 - lam * s**3 / (s**3 + kappa) ** 2, 1.0, 50.0, xtol=1e-14)


@pytest.mark.parametrize("lam", [8.0, 10.125, 20.0])
def test_linear_incoherent_branch(lam):
    """Labels this strong leave no density at the prior, so that they are grown; μ = 1 at λ_c = (8 + κ)²/8."""
    found = solve("linear", np.sqrt(lam), kappa=1.0)
    s = incoherent(lam, 1.0)
    np.testing.assert_allclose(found.hidden, np.diag(s ** np.arange(1, 4)), atol=3e-7 * s**3)
    np.testing.assert_allclose(found.feature, found.hidden, atol=1e-8 * s**3)
    assert found.status is Status.success
    assert (lam > 10.125) == (found.mu > 1 + 1e-6)
    if lam == 10.125:
        np.testing.assert_allclose(found.mu, 1.0, atol=1e-6)
        with jax.enable_x64(True):
            state = saddle_map.State(jnp.asarray(found.feature), jnp.asarray(found.hidden))
            matrix = linearize(found.saddle_map, found.saddle_map.pack(state)).matrix
        assert np.linalg.eigvals(matrix).real.min() < -3, "plain iteration diverges here"


def coherent(s):
    """H of the coherent branch, and the λ at which it is the saddle for κ = 1."""
    h12 = np.sqrt(2 * s * (s - 1) * (s - 2))
    H = np.array([[s, h12, 0], [h12, 2 * s * (s - 1), 2 * s * h12], [0, 2 * s * h12, 4 * s * (s - 1) ** 2]])
    H[0, 2] = H[2, 0] = h12 * H[1, 2] / H[1, 1]
    return H, (4 * s * (s - 1) ** 2 + 1) ** 2 / (4 * s * (s - 1))


def test_linear_coherent_branch():
    (start, _), (truth, lam), k = coherent(2.9), coherent(3.0), 1.0
    net, problem = question("linear", np.sqrt(lam), kappa=k)
    found = solve_saddle(problem, net.activation, start=(start, start))
    np.testing.assert_allclose(np.abs(found.hidden), truth, rtol=1e-6)
    assert found.mu < 1
    energy = 0.5 * lam / (truth[2, 2] + k)
    K = np.pad(truth[:2, :2], ((1, 0), (1, 0)))
    K[0, 0] = 1
    exact = 0.5 * (np.trace(np.linalg.solve(K, truth)) - np.linalg.slogdet(truth)[1] + np.linalg.slogdet(K)[1] - 3)
    np.testing.assert_allclose([found.energy, found.entropy], [energy, exact], rtol=1e-6)


# The published transition of erf networks.


def test_erf_instability_is_where_published():
    """μ = 1 in the odd-lag sector at y_c = 4.2554, from an independent program."""
    low, high = (erf_at(y).mu - 1 for y in (4.2550, 4.26))
    assert low < 0 < high
    assert abs(4.2550 - low * 0.005 / (high - low) - 4.2554) < 1e-4
    assert all(erf_at(y).status is Status.success for y in (4.2550, 4.26))


def test_erf_coherent_state_is_the_published_one():
    net, problem = question("erf", 5.0, **ERF)
    found = solve_saddle(problem, net.activation, start=coherent_start(problem, net.activation))
    assert abs(abs(found.feature[0, 1]) - 0.19488) < 5e-6
    assert found.mu < 1 < erf_at(5.0).mu
    assert found.free_energy < erf_at(5.0).free_energy


@pytest.mark.full
def test_erf_transition_is_second_order():
    """Φ12² = 0.0587 (y − y_c) by an independent program; here 0.0588 at y − y_c = 0.045, and the ratio hardly moves with y."""
    ratios, start = [], None
    for y in (4.4, 4.35, 4.3):
        net, problem = question("erf", y, **ERF)
        found = solve_saddle(problem, net.activation, start=start or coherent_start(problem, net.activation))
        start = found.feature, found.hidden
        ratios.append(found.feature[0, 1] ** 2 / (y - 4.2554))
    assert abs(ratios[-1] - 0.0587) < 4e-4
    assert max(ratios) - min(ratios) < 2e-3


def test_a_coarse_grid_is_noticed():
    """At y = 8 a coarse grid misplaces the eigenvalue; the solve moves on to finer ones by itself."""
    found = erf_at(8.0)
    assert found.n_nodes > 100_000
    assert abs(found.mu - 1.13378) < 1e-4
    assert found.error < 1e-6


@pytest.mark.full
def test_even_sector_is_the_incoherent_branch():
    found = solve("erf", 5.0, sector="even", **ERF)
    np.testing.assert_allclose(found.hidden, erf_at(5.0).hidden, atol=1e-6)
    np.testing.assert_allclose(found.mu, erf_at(5.0).mu, atol=1e-6)
    assert np.all(found.feature[0, 1] == 0)


def test_even_sector_needs_the_symmetry():
    with pytest.raises(ValueError, match="even"):
        solve("relu", 1.0, sector="even")


def test_the_matrix_free_derivative_is_the_dense_one():
    """Arnoldi and GMRES, which take over beyond `DENSE` unknowns, on a map that is small enough for both."""
    found = erf_at(5.0)
    right = np.random.default_rng(0).normal(size=(2, 12))
    with jax.enable_x64(True):
        coarse = moments.grid(3, 0.5, 6.0, True, "saturated")
        m = eqx.tree_at(lambda m: m.nodes, found.saddle_map, coarse)
    odd = np.tile(odd_lags(m.problem)[m.rows, m.columns], 2)
    with jax.enable_x64(True):
        vector = m.pack(saddle_map.State(jnp.asarray(found.feature), jnp.asarray(found.hidden)))
        dense, free = linearize(m, vector), linearize(m, vector, dense=0)
        assert dense.matrix is not None and free.matrix is None
        for among in (None, odd, ~odd):
            np.testing.assert_allclose(free.leading(among), dense.leading(among), atol=1e-6)
        exact = dense.solve(right)
        np.testing.assert_allclose(free.solve(right), exact, atol=3e-3 * np.abs(exact).max())


# No labels: the prior.


EVERY = [pytest.param(a, d, marks=pytest.mark.full) for a in ("erf", "relu", "tanh") for d in (1, 2, 3)]


@pytest.mark.parametrize("activation, depth", [("relu", 2), ("erf", 3), *EVERY])
def test_without_labels_the_prior_is_the_fixed_point(activation, depth):
    x = RNG.normal(size=(1, depth, 2))
    task = wf.Task(x, np.zeros(1))
    for make in (wf.RNN, wf.DNN):
        net = make(depth, activation, weight_variance=1.4, input_variance=0.8)
        found = solve_saddle(problem_of(net, task, 0.3), net.activation)
        prior = wf.prior(net, task)
        np.testing.assert_allclose(found.hidden, np.asarray(prior.hidden)[..., 0, 0], atol=1e-7)
        np.testing.assert_allclose(found.feature, np.asarray(prior.feature)[..., 0, 0], atol=1e-7)
        np.testing.assert_allclose([found.energy, found.entropy, found.free_energy], 0, atol=1e-7)
        assert found.status is Status.success


# Brute force.

FUNCTIONS = {"erf": scipy.special.erf, "relu": lambda h: np.maximum(h, 0), "tanh": np.tanh}


@pytest.mark.parametrize("activation", [pytest.param("erf", marks=pytest.mark.full), "relu"])
def test_one_state_matches_brute_force(activation):
    found = solve(activation, 1.7, depth=1, x=np.full((1, 1), 1.2), kappa=0.4, readout_variance=1.3)
    bracket = (0.5, 0.999) if activation == "erf" else (1.5, 20.0)  # below, relu has no density
    exact = depth_one(FUNCTIONS[activation], 1.44, 1.7, 1.3, 0.4, bracket)
    measured = found.feature[0, 0], found.hidden[0, 0], found.free_energy
    np.testing.assert_allclose(measured, exact, rtol=3e-7)


@pytest.mark.parametrize("activation", [pytest.param("tanh", marks=pytest.mark.full), "relu"])
def test_two_states_match_brute_force(activation):
    found = solve(activation, 1.2, depth=2, kappa=0.5, weight_variance=1.5, readout_variance=0.9)
    start = found.feature[0, 0] * 1.02, found.feature[0, 1], found.feature[1, 1] * 0.98, found.hidden[1, 1]
    exact = depth_two(FUNCTIONS[activation], 1.0, 1.5, 1.2, 0.9, 0.5, start)
    measured = found.feature[0, 0], found.feature[0, 1], found.feature[1, 1], found.hidden[1, 1]
    np.testing.assert_allclose(measured, exact, atol=1e-6 if activation == "tanh" else 2e-4)


# Identities.


def test_derivative_of_the_free_energy():
    """dF/d|Y| = ½ tr YR at the saddle, for a factor on Y = yyᵀ."""
    step = 2e-3
    up, down = (erf_at(float(4.0 * np.sqrt(1 + sign * step))) for sign in (1, -1))
    slope = (up.free_energy - down.free_energy) / (2 * step)
    np.testing.assert_allclose(slope, erf_at(4.0).energy, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("activation", ["erf", "relu"])
def test_two_states_do_not_tell_recurrent_from_deep(activation):
    """T = 3 with an input and a label at both states."""
    task = wf.Task(np.array([[[1.0, 0.5], [-0.3, 0.8]]]), np.array([[[1.2], [-0.7]]]), supervised=(0, 1))
    nets = [make(2, activation, weight_variance=1.5) for make in (wf.RNN, wf.DNN)]
    tied, untied = (solve_saddle(problem_of(net, task, 0.3), net.activation) for net in nets)
    assert tied.status is untied.status is Status.success
    np.testing.assert_allclose(tied.hidden, untied.hidden, atol=1e-6)
    np.testing.assert_allclose(tied.feature, untied.feature, atol=1e-6)


def test_untied_odd_networks_predict_zero_at_unsupervised_states():
    net, problem = question("erf", 3.0, make=wf.DNN, **ERF)
    found = solve_saddle(problem, net.activation)
    with jax.enable_x64(True):
        prediction = np.asarray(predict(problem, jnp.asarray(found.feature), jnp.asarray(found.feature)))[:, 0]
    np.testing.assert_allclose(prediction[:2], 0, atol=1e-12)
    assert abs(prediction[2]) > 0.5


@pytest.mark.full
def test_repeated_opposite_and_zero_inputs_share_one_dimension():
    """Copies of a sample are copies at all states: the density lives on their span, without jitter."""
    x = np.array([[1.0], [1.0], [-1.0], [0.0]])
    found = solve("erf", [1.0, 2.0, -1.5, 0.0], depth=2, x=x, weight_variance=1.3)
    assert found.saddle_map.basis.embed.shape == (8, 2)
    # Three copies of one sample: their labels' mean, at a third of the temperature.
    one = found.feature[4, 4], found.feature[0, 4], found.feature[0, 0], found.hidden[4, 4]
    f11, _, f22, c22 = depth_two(
        scipy.special.erf, 1.0, 1.3, 1.5, 1.0, 0.2 / 3, (one[2], one[1], one[0], one[3]), 401, 10.0
    )
    sign = np.outer([1, 1, -1], [1, 1, -1])
    np.testing.assert_allclose(found.feature[4:7, 4:7], f22 * sign, atol=1e-6)
    np.testing.assert_allclose(found.feature[:3, :3], f11 * sign, atol=1e-6)
    np.testing.assert_allclose(found.hidden[4:7, 4:7], c22 * sign, atol=1e-6)
    np.testing.assert_allclose(found.hidden[3::4], 0, atol=1e-12)


def test_relu_without_a_density_is_flagged():
    """From a state where K⁻¹ − 2Φ̃ is not positive on the positive orthant nothing is returned as a result."""
    net, problem = question("relu", 4.0, depth=2, kappa=0.05)
    with jax.enable_x64(True):
        prior = saddle_map.prior_state(problem, net.activation)
    found = solve_saddle(problem, net.activation, start=prior)
    assert found.status is Status.diverged
    assert np.isnan(found.free_energy)
    assert solve_saddle(problem, net.activation).status is Status.success


@pytest.mark.full
def test_quadratic_features_have_no_density():
    net, problem = question("quadratic", 1.0, depth=2)
    assert solve_saddle(problem, net.activation).status is Status.diverged, "exp(h⁴) has no average"


@pytest.mark.parametrize("pattern", [(1, 1), (1, -1)])
def test_growth_is_copositivity(pattern):
    """relu with a positive off-diagonal pull: only the positive orthant grows, at (Φ̃11 + Φ̃22)/2 + Φ̃12."""
    with jax.enable_x64(True):
        conjugate = jnp.array([[0.1, 0.3 * pattern[1]], [0.3 * pattern[1], 0.1]])
        density = moments.Density(jnp.eye(2), jnp.eye(2), conjugate)
        value = float(saddle_map.growth(wf.RNN(2, "relu").activation, density))
    np.testing.assert_allclose(value, 0.4 if pattern == (1, 1) else 0.1, rtol=1e-6)


# Sampling.


@pytest.mark.full
def test_the_error_of_draws_is_a_limit():
    """Of the worst entry, beside quadrature, in units of the prior: met by nearly all of 16 seeds (fewer than 11 has a chance of 1e-4)."""
    prior, truth, ratios = wf.prior(wf.RNN(3, "erf", **ERF), wf.Task(np.ones((1, 1)))), erf_at(3.0), []
    kernels = {name: prior.data[name].values[:, :, 0, 0] for name in ("feature", "hidden")}
    units = {name: np.sqrt(np.outer(kernel.diagonal(), kernel.diagonal())) for name, kernel in kernels.items()}
    worst = lambda values: max(np.abs(values(name) / unit).max() for name, unit in units.items())  # noqa: E731
    for seed in range(16):
        found = solve("erf", 3.0, integration="importance", n_paths=1 << 14, seed=seed, sector="even", **ERF)
        gap = worst(lambda name, found=found: getattr(found, name) - getattr(truth, name))
        ratios.append(gap / max(1.0, worst(lambda name, found=found: getattr(found, name))) / found.error)
    assert np.sum(np.array(ratios) <= 1) >= 11 > np.sum(np.array(ratios) <= 1 / 3)


@pytest.mark.parametrize("seed", [0, 1])
def test_importance_sampling_covers_quadrature(seed):
    """Errors reported by the draws cover the difference from quadrature, amplified where μ is close to 1."""
    found = solve("erf", 3.0, integration="importance", n_paths=1 << 16, seed=seed, sector="even", **ERF)
    truth = erf_at(3.0)
    assert found.status is Status.success and found.integration == "importance"
    even = np.array([[0, 0], [1, 1], [2, 2], [0, 2]]).T
    for name in ("feature", "hidden"):
        gap = np.abs(getattr(found, name) - getattr(truth, name))[*even]
        error = getattr(found, f"{name}_stderr")[*even]
        assert np.all(gap <= 5 * error), (gap / error, name)
        assert np.all(error < 0.02 * getattr(truth, name)[2, 2])
    assert abs(found.free_energy - truth.free_energy) < 5 * found.free_energy_stderr
    assert found.deviation < 2.5
    assert abs(found.mu - truth.mu) < 0.02


@pytest.mark.full
def test_errors_grow_close_to_the_transition():
    """At y = 5 10⁵ draws leave Φ12 off by 40 % with a residual of zero: the reported error must say so."""
    net, problem = question("erf", 5.0, **ERF)
    start = coherent_start(problem, net.activation)
    options = SaddleOptions(integration="importance", n_paths=1 << 16, seed=3)
    found = solve_saddle(problem, net.activation, options, start=start)
    gap = abs(abs(found.feature[0, 1]) - 0.194882)
    assert gap <= 5 * found.feature_stderr[0, 1]
    assert found.feature_stderr[0, 1] > 3e-3
    assert found.feature_stderr[0, 1] > 3 * found.feature_stderr[0, 0]


@pytest.mark.full
def test_two_samples_and_test_points():
    """Six dimensions by importance sampling; a test point that is a training point gets the training row."""
    x, y = np.random.default_rng(0).normal(size=(2, 3)), np.array([1.5, -1.0])
    net = wf.RNN(3, "erf", weight_variance=2.0)
    problem = problem_of(net, wf.Task(x, y), 0.2)
    found = solve_saddle(problem, net.activation, SaddleOptions(sampling_rtol=5e-2))
    assert found.integration == "importance" and found.status is Status.success
    assert found.deviation < 2.5 and found.error < 5e-2 and found.ess > 0.3
    test = np.stack([x[0], -x[1]])[:, None]
    kernels = input_kernel_between(net, test, x[:, None]), input_kernel_between(net, test, test)
    features = features_of_test_inputs(problem, net.activation, found, *kernels)
    sign = np.tile([1, -1], 3)
    np.testing.assert_allclose(features.cross, found.feature * sign[:, None], atol=1e-6)
    np.testing.assert_allclose(features.second_moment, np.diag(found.feature), atol=1e-6)


def test_test_points_match_draws():
    """Φ_* at a new input against draws of (h, h_*) weighted by hand, relu and one state."""
    x, test = np.array([[1.0, 0.5]]), np.array([[0.3, -1.0]])
    net = wf.RNN(1, "relu")
    problem = problem_of(net, wf.Task(x, np.array([1.5])), 0.5)
    found = solve_saddle(problem, net.activation)
    kernels = (
        input_kernel_between(net, test[:, None], x[:, None]),
        input_kernel_between(net, test[:, None], test[:, None]),
    )
    features = features_of_test_inputs(problem, net.activation, found, *kernels)
    K = np.array([[x[0] @ x[0], x[0] @ test[0]], [x[0] @ test[0], test[0] @ test[0]]]) / 2
    h = np.random.default_rng(1).multivariate_normal(np.zeros(2), K, size=400_000)
    phi = np.maximum(h, 0)
    weight = np.exp(found.conjugate[0, 0] * phi[:, 0] ** 2)
    exact, scale = np.average(phi[:, 0] * phi[:, 1], weights=weight), np.average(phi[:, 1] ** 2, weights=weight)
    np.testing.assert_allclose([features.cross[0, 0], features.second_moment[0]], [exact, scale], rtol=0.03)


@pytest.mark.full
def test_annealed_draws_agree_with_quadrature():
    found = solve("erf", 3.0, integration="annealed", n_paths=1 << 17, sector="even", **ERF)
    truth = erf_at(3.0)
    assert found.integration == "annealed" and found.status is Status.success
    gap = np.abs(found.feature - truth.feature)[[0, 1, 2], [0, 1, 2]]
    assert np.all(gap <= 5 * np.diag(found.feature_stderr))
    assert abs(found.free_energy - truth.free_energy) < 5 * found.free_energy_stderr
    assert found.rhat < 1.05 and found.deviation < 2.5


# Contracts.


def test_the_map_is_pure_and_differentiable():
    with jax.enable_x64(True):
        net, problem = question("erf", 2.0, depth=2, **ERF)
        prior = saddle_map.prior_state(problem, net.activation)
        m = saddle_map.saddle_map(
            problem, net.activation, moments.grid(2, 0.3, 7.0, True), prior, np.ones((2, 2), bool)
        )
        v = m.pack(prior) * 1.1
        compiled = jax.jit(lambda v: m(v))
        np.testing.assert_allclose(compiled(v), m(v), atol=1e-13)
        np.testing.assert_allclose(m.pack(m.unpack(v)), v, rtol=1e-14)
        direction = jnp.asarray(np.random.default_rng(0).normal(size=len(v)))
        slope, step = jax.jvp(compiled, (v,), (direction,))[1], 1e-5
        difference = (compiled(v + step * direction) - compiled(v - step * direction)) / (2 * step)
        np.testing.assert_allclose(slope, difference, atol=1e-6)


def test_running_out_of_steps_is_not_success():
    net, problem = question("relu", 1.5, depth=1, x=np.array([[1.0, 0.5]]), kappa=0.5)
    found = solve_saddle(problem, net.activation, SaddleOptions(max_steps=2))
    assert found.status is not Status.success
    assert found.error == np.inf
