"""Finite networks against moments that are known exactly at every width."""

import numpy as np
import pytest

import widefield as wf

from ..students import agrees

N, REPLICATES = 8, 10_000
METHODS = ("dense", "weight_free")
X = np.array([[0.6, -0.3, 1.0]])
K0 = 1.3 * float(X[0] @ X[0]) / 3


def diagonal(solution, field):
    """Equal-state values of the first sample, (replicate, state)."""
    return np.einsum("rssab->rsab", solution.data[field].values)[:, :, 0, 0]


@pytest.mark.parametrize("method", METHODS)
def test_linear_deep_network_has_chi_square_layers(method):
    net = wf.DNN(3, "linear", weight_variance=1.7, input_variance=1.3)
    samples = diagonal(
        wf.simulate.prior(net, wf.Task(X), width=N, replicates=REPLICATES, seed=1, method=method), "hidden"
    )
    mean = K0 * 1.7 ** np.arange(3)
    assert agrees(mean, samples)
    assert agrees(mean**2 * (1 + 2 / N) ** np.arange(1, 4), samples**2)
    assert not agrees(mean**2 * (1 + 1 / N) ** np.arange(1, 4), samples**2), "fluctuations of twice the width are seen"
    assert not agrees(1.05 * mean, samples), "a 5 % error in the input variance must be seen"


@pytest.mark.parametrize("method", METHODS)
def test_relu_deep_network_at_criticality(method):
    net = wf.DNN(3, "relu", weight_variance=2.0, input_variance=1.3)
    solution = wf.simulate.prior(net, wf.Task(X), width=N, replicates=REPLICATES, seed=2, method=method)
    feature, hidden = diagonal(solution, "feature"), diagonal(solution, "hidden")
    assert agrees(K0 / 2, feature)
    assert agrees(K0, hidden)
    assert agrees((K0 / 2) ** 2 * (1 + 5 / N) ** np.arange(1, 4), feature**2)
    assert not agrees((K0 / 2) ** 2 * (1 + 2 / N) ** np.arange(1, 4), feature**2), "linear layers are not relu layers"


@pytest.mark.parametrize("method", METHODS)
def test_linear_recurrent_network_at_width_three(method):
    r"""⟨h² · h²⟩/n = w² K (1 + 2/n²) and ⟨h⁰ · h²⟩/n = w K/n, by Isserlis' theorem for one W applied twice."""
    n, w = 3, 1.4
    net = wf.RNN(3, "linear", weight_variance=w, input_variance=1.3)
    solution = wf.simulate.prior(net, wf.Task(X), width=n, replicates=20_000, seed=3, method=method)
    hidden = solution.hidden.values[..., 0, 0]
    exact = K0 * np.array([[1, 0, w / n], [0, w, 0], [w / n, 0, w**2 * (1 + 2 / n**2)]])
    assert solution.certificate.options["method"] == method
    assert agrees(exact, hidden)
    assert not agrees(K0 * np.diag([1, w, w**2]), hidden), "the law of untied weights must be seen to differ"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("biases", "shared"), [("tied", 0.7), ("untied", 0.0)])
def test_biases_are_shared_across_states_only_where_tied(method, biases, shared):
    net = wf.DNN(3, "linear", bias_variance=0.7, input_variance=0.0, biases=biases)
    solution = wf.simulate.prior(net, wf.Task(X), width=N, replicates=REPLICATES, seed=4, method=method)
    hidden = solution.hidden.values[..., 0, 0]
    assert agrees(shared, hidden[:, 0, 1:])
    assert not agrees(0.7 - shared, hidden[:, 0, 1:])
    assert agrees([0.7, 1.4, 2.1], diagonal(solution, "hidden"))


@pytest.mark.parametrize("inputs", ["tied", "untied"])
def test_sequences_overlap_across_states_only_through_tied_inputs(inputs):
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    net = wf.DNN(3, "linear", weight_variance=0.0, input_variance=1.3, inputs=inputs)
    solution = wf.simulate.prior(net, wf.Task(x), width=N, replicates=5000, seed=5)
    overlap = 1.3 * np.einsum("asi,bti->stab", x, x) / 4
    expected = overlap if inputs == "tied" else overlap * np.eye(3)[:, :, None, None]
    assert agrees(expected, solution.hidden.values)
    assert not agrees(expected.swapaxes(0, 1), solution.hidden.values) or inputs == "untied", "C^{02} is not C^{20}"


def test_per_state_variances_act_on_their_own_state():
    variances = {"weight_variance": (2.0, 0.5), "input_variance": (1.0, 3.0, 0.5), "bias_variance": (0.1, 0.2, 0.4)}
    net = wf.DNN(3, "linear", inputs="untied", **variances)
    x = np.ones((1, 2, 5))
    solution = wf.simulate.prior(net, wf.Task(x), width=N, replicates=REPLICATES, seed=6)
    assert agrees([1.1, 2.0 * 1.1 + 3.0 + 0.2, 0.5 * 5.4 + 0.4], diagonal(solution, "hidden"))
    assert not agrees([1.1, 0.5 * 1.1 + 3.0 + 0.2, 2.0 * 3.75 + 0.4], diagonal(solution, "hidden"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [wf.DNN, wf.RNN])
def test_drawn_outputs_have_the_readout_covariance(kind, method):
    net = kind(3, "relu", weight_variance=1.5, readout_variance=2.0, bias_variance=0.3, readout_bias_variance=0.8)
    x = np.random.default_rng(1).standard_normal((2, 4))
    solution = wf.simulate.prior(net, wf.Task(x), width=N, replicates=REPLICATES, seed=7, method=method, n_outputs=2)
    draw, readout = solution.draw.values, solution.readout.values
    product = np.einsum("rsao,rtbo->rostab", draw, draw)
    assert agrees(0.0, product - readout[:, None])
    assert not agrees(0.0, product - 1.2 * readout[:, None]), "a 20 % error in the readout must be seen"
    assert not agrees(0.8, product - readout[:, None]), "a forgotten readout bias must be seen"
    assert agrees(0.0, np.einsum("rsa,rtb->rstab", draw[..., 0], draw[..., 1])), "outputs have their own readouts"
    np.testing.assert_allclose(readout, 2.0 * solution.feature.values + 0.8, rtol=1e-13)
    np.testing.assert_allclose(solution.output.values, readout[:, -1, -1], rtol=1e-12)
