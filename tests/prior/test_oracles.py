"""The prior against closed forms, known values and a brute-force recursion that shares no code with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import widefield as wf
from widefield.gaussian import kernel_for
from widefield.theories.prior import core

from .oracle import covariances

RNG = np.random.default_rng(5)
ONCE, SEQUENCE = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 3, 4))


@pytest.mark.parametrize("activation", ["relu", "erf", "tanh", "quadratic"])
@pytest.mark.parametrize("inputs", [ONCE, SEQUENCE], ids=["once", "sequence"])
@pytest.mark.parametrize("make", [wf.DNN, wf.RNN])
@pytest.mark.parametrize("shared", ["tied", "untied"])
def test_all_states_match_brute_force(activation, inputs, make, shared):
    net = make(
        4, activation, weight_variance=1.1, input_variance=0.7, readout_variance=1.3, bias_variance=0.2,
        readout_bias_variance=0.4, biases=shared, inputs=shared,
    )  # fmt: skip
    solution = wf.prior(net, wf.Task(inputs, np.zeros((3, 4, 1))))
    C, F, tangent = covariances(net, inputs)
    scale = np.abs(C).max(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(solution.hidden, C, atol=1e-9 * scale.max(), rtol=1e-9)
    np.testing.assert_allclose(solution.feature, F, atol=1e-9 * np.abs(F).max(), rtol=1e-9)
    np.testing.assert_allclose(solution.readout, 1.3 * F + 0.4, atol=1e-9 * np.abs(F).max(), rtol=1e-9)
    np.testing.assert_allclose(solution.ntk, tangent, atol=1e-9 * np.abs(tangent).max(), rtol=1e-9)
    np.testing.assert_allclose(solution.output, solution.readout[-1, -1], rtol=1e-12)


def test_per_state_variances_match_brute_force():
    net = wf.DNN(
        3,
        "erf",
        weight_variance=(0.5, 2.0),
        input_variance=(1.0, 0.3, 0.8),
        bias_variance=(0.1, 0.0, 0.4),
        inputs="untied",
    )
    C, _, _ = covariances(net, SEQUENCE)
    np.testing.assert_allclose(wf.prior(net, wf.Task(SEQUENCE)).hidden, C, atol=1e-12, rtol=1e-10)


def pair_correlation(activation, w, depth, q, rho):
    """Correlation of two inputs after ``depth`` states, without biases."""
    with jax.enable_x64(True):
        net = wf.DNN(depth, activation, weight_variance=w)
        kernel, variances = kernel_for(net.activation, q), core.variances_of(net)
        nodes = core.node_variances(kernel, variances, jnp.full((1, 1), q))
        table = kernel.table(nodes)
        C, _, _ = jax.jit(core.equal_state_pairs)(kernel, variances, table, table, jnp.full((1, 1), rho * q))
        return np.asarray(C[:, 0]), np.asarray(nodes[:, 0])


def test_relu_correlations_approach_one_quadratically():
    """a²(1 − ρ_a) → 9π²/2 at w = 2; 35.8, 43.1 and 44.39 at a = 1e2, 1e3, 1e5."""
    C, q = pair_correlation("relu", 2.0, 100_001, 1.0, 0.0)
    np.testing.assert_allclose(q, 1.0, rtol=1e-12)
    a = np.array([100, 1000, 100_000])
    assert np.all(np.abs(a**2.0 * (1 - C[a]) - [35.8, 43.1, 44.39]) < [0.05, 0.05, 0.005]), a**2.0 * (1 - C[a])


def test_tanh_variance_decays_as_one_over_depth():
    """2a·C^{aa} = 1.043 at the 50th state for w = 1 without bias, from unit variance at the first."""
    _, q = pair_correlation("tanh", 1.0, 50, 1.0, 1.0)
    assert abs(2 * 50 * q[49] - 1.043) < 5e-4


def test_relu_variance_grows_by_half_the_weight_variance():
    for w in (0.7, 2.0, 2.3):
        _, q = pair_correlation("relu", w, 12, 1.7, 1.0)
        np.testing.assert_allclose(q, 1.7 * (w / 2) ** np.arange(12), rtol=1e-13)


@pytest.mark.parametrize("biases", ["tied", "untied"])
def test_figure_1_values(biases):
    """C^{30,30} = 1.003 at w = u = 1.6, b = 0.2, |x|²/D = 2, for both architectures; the deep cross-blocks are b or 0."""
    task = wf.Task(np.full((1, 2), np.sqrt(2.0)))
    options = {"weight_variance": 1.6, "input_variance": 1.6, "bias_variance": 0.2, "biases": biases}
    rnn, dnn = (wf.prior(make(31, "relu", **options), task) for make in (wf.RNN, wf.DNN))
    exact = 1 + (1.6 * 2 + 0.2 - 1) * 0.8**30
    for solution in (rnn, dnn):
        np.testing.assert_allclose(solution.hidden[30, 30, 0, 0], exact, rtol=1e-13)
    assert abs(exact - 1.003) < 5e-4
    off = ~np.eye(31, dtype=bool)
    np.testing.assert_allclose(dnn.hidden.values[off, 0, 0], 0.2 if biases == "tied" else 0.0, rtol=1e-14)
    assert rnn.hidden.values[off, 0, 0].max() > 0.3


def test_odd_recurrent_networks_forget_across_states():
    net = wf.RNN(5, "erf", weight_variance=1.5, bias_variance=0.3, biases="untied")
    hidden = wf.prior(net, wf.Task(ONCE)).hidden.values
    off = ~np.eye(5, dtype=bool)
    assert np.abs(hidden[off]).max() == 0.0
    tied = wf.RNN(5, "erf", weight_variance=1.5, bias_variance=0.3)
    assert np.abs(wf.prior(tied, wf.Task(ONCE)).hidden.values[off]).min() > 0.1


def test_sequences_break_the_symmetry_of_samples():
    hidden = wf.prior(wf.RNN(3, "relu", weight_variance=1.2), wf.Task(SEQUENCE)).hidden.values
    assert np.abs(hidden[0, 2] - hidden[2, 0]).max() > 0.1
    np.testing.assert_allclose(hidden, hidden.transpose(1, 0, 3, 2), rtol=1e-14, atol=1e-15)


def test_ntk_of_tied_and_untied_weights_agree_at_the_last_state_only():
    options = {"weight_variance": 1.4, "bias_variance": 0.1, "biases": "untied"}
    deep, recurrent = (make(4, "relu", **options) for make in (wf.DNN, wf.RNN))
    last, every = wf.Task(ONCE), wf.Task(ONCE, supervised=(0, 1, 2, 3))
    np.testing.assert_allclose(wf.prior(deep, last).ntk, wf.prior(recurrent, last).ntk, rtol=1e-14)
    difference = (wf.prior(recurrent, every).ntk - wf.prior(deep, every).ntk).values
    later = np.minimum.outer(np.arange(4), np.arange(4)) > 0
    off = ~np.eye(4, dtype=bool)
    assert difference[off & later].min() > 0.05, "shared weights add blocks between later states"
    np.testing.assert_allclose(difference[~(off & later)], 0, atol=1e-14)


@pytest.mark.parametrize("activation", ["relu", "erf", "tanh", "gelu"])
def test_degenerate_inputs(activation):
    """Duplicates stay duplicates, opposite and zero inputs are exact, at any depth."""
    x = np.vstack([ONCE[:1], ONCE[:1], -ONCE[:1], np.zeros((1, 4)), 1e-8 * ONCE[1:2]])
    solution = wf.prior(wf.RNN(40, activation, weight_variance=1.5), wf.Task(x), quantities=("output", "ntk"))
    for field in (solution.output.values, solution.ntk.values):
        assert np.isfinite(field).all()
        np.testing.assert_allclose(field[0, 1], field[0, 0], rtol=1e-13)
        assert np.abs(field[3]).max() == 0.0
    if activation in ("erf", "tanh"):
        np.testing.assert_allclose(solution.output[0, 2], -solution.output[0, 0], rtol=1e-12)


def test_depth_one_is_the_input_kernel():
    net = wf.DNN(1, "erf", input_variance=0.8, bias_variance=0.1)
    solution = wf.prior(net, wf.Task(ONCE))
    K = 0.8 * ONCE @ ONCE.T / 4 + 0.1
    d = np.sqrt(1 + 2 * np.diag(K))
    np.testing.assert_allclose(solution.hidden[0, 0], K, rtol=1e-14)
    np.testing.assert_allclose(solution.feature[0, 0], 2 / np.pi * np.arcsin(2 * K / np.outer(d, d)), rtol=1e-13)


@pytest.mark.full
def test_depth_one_thousand_reaches_the_fixed_point():
    net = wf.RNN(1000, "relu", weight_variance=1.0, bias_variance=0.3)
    hidden = wf.prior(net, wf.Task(ONCE[:2]), quantities="hidden").hidden
    np.testing.assert_allclose(hidden[-1, -1], 0.3 / (1 - 0.5), rtol=1e-12)


def test_reading_neurons_directly_gives_the_hidden_kernel():
    net = wf.RNN(3, "erf", readout_variance=None, weight_variance=1.5, bias_variance=0.1)
    solution = wf.prior(net, wf.Task(ONCE, np.zeros((3, 3, 1))))
    np.testing.assert_array_equal(solution.readout, solution.hidden)
    with_readout = wf.prior(
        wf.RNN(2, "erf", readout_variance=1.5, weight_variance=1.5, bias_variance=0.1), wf.Task(ONCE)
    )
    np.testing.assert_allclose(solution.output, with_readout.output, rtol=1e-13)
    np.testing.assert_allclose(solution.ntk[2, 2], with_readout.ntk, rtol=1e-13)


@pytest.mark.parametrize("supervised", [None, (0, 2)], ids=["last state", "two states"])
def test_regression_is_gaussian_conditioning(supervised):
    """Mean, covariance and evidence against scipy's multivariate normal on the joint kernel."""
    net = wf.RNN(3, "relu", weight_variance=1.5, bias_variance=0.2, readout_bias_variance=0.1)
    states = (2,) if supervised is None else supervised
    y = RNG.normal(size=(3, len(states), 2)) if supervised else RNG.normal(size=(3, 2))
    x_test = RNG.normal(size=(2, 4))
    solution = wf.prior(net, wf.Task(ONCE, y, supervised, x_test), noise=0.3)
    joint = wf.prior(net, wf.Task(np.vstack([ONCE, x_test]))).readout.values
    K = joint.transpose(0, 2, 1, 3).reshape(15, 15)
    train = np.array([5 * s + i for s in states for i in range(3)])
    test = np.array([5 * s + i for s in range(3) for i in (3, 4)])
    labels = y.reshape(3, len(states), 2).transpose(1, 0, 2).reshape(-1, 2)
    gain = K[np.ix_(test, train)] @ np.linalg.inv(K[np.ix_(train, train)] + 0.3 * np.eye(len(train)))
    np.testing.assert_allclose(solution.test_prediction, (gain @ labels).reshape(3, 2, 2), rtol=1e-9, atol=1e-12)
    covariance = K[np.ix_(test, test)] - gain @ K[np.ix_(train, test)]
    np.testing.assert_allclose(
        solution.test_covariance, covariance.reshape(3, 2, 3, 2).transpose(0, 2, 1, 3), rtol=1e-9, atol=1e-12
    )
    normal = scipy.stats.multivariate_normal(np.zeros(len(train)), K[np.ix_(train, train)] + 0.3 * np.eye(len(train)))
    np.testing.assert_allclose(solution.log_evidence, normal.logpdf(labels.T).sum(), rtol=1e-10)


def test_blocks_of_samples_give_the_whole_matrix():
    """More samples than one tile, with test inputs that start inside a tile."""
    x = RNG.normal(size=(300, 6))
    net = wf.RNN(3, "erf", weight_variance=1.2, bias_variance=0.1)
    solution = wf.prior(net, wf.Task(x[:170], x[:170, :1], x_test=x[170:]), noise=0.1)
    K = 1.0 * x @ x.T / 6 + 0.1
    for _ in range(3):
        d = np.sqrt(1 + 2 * np.diag(K))
        F = 2 / np.pi * np.arcsin(2 * K / np.outer(d, d))
        K = 1.2 * F + 0.1
    K = F + 0.1
    np.testing.assert_allclose(solution.output, K[:170, :170], rtol=1e-11, atol=1e-13)
    gain = np.linalg.solve(K[:170, :170] + 0.1 * np.eye(170), K[:170, 170:])
    np.testing.assert_allclose(solution.test_prediction[-1], gain.T @ x[:170, :1], rtol=1e-8, atol=1e-10)


def test_relu_tangent_kernel_of_a_sample_with_itself_is_exact():
    """Θ = C + (w/2) Θ on the diagonal; rounding must not part a sample from itself or from its duplicate."""
    x = np.random.default_rng(0).normal(size=(300, 784))
    w, b, depth = 2.0, 0.1, 30
    net = wf.DNN(depth, "relu", weight_variance=w, input_variance=w, readout_variance=w, bias_variance=b)
    ntk = wf.prior(net, wf.Task(np.vstack([x, x[:5]])), quantities=("output", "ntk")).ntk.values
    q = theta = w * (x**2).mean(axis=1) + b
    for _ in range(depth - 1):
        q = w * q / 2 + b
        theta = q + w / 2 * theta
    exact = w * q / 2 + b + w / 2 * theta
    np.testing.assert_allclose(np.diag(ntk)[:300], exact, rtol=1e-13)
    np.testing.assert_allclose(ntk[np.arange(5), 300 + np.arange(5)], exact[:5], rtol=1e-13)
