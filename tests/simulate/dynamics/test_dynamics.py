"""`simulate.dynamics` against literal gradient descent, closed forms, and the prior's kernel."""

import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from widefield.simulate.networks.streams import NOISE, streams

from ..calls import dynamics
from ..students import agrees
from . import literal_descent as oracle

RNG = np.random.default_rng(3)
X = RNG.standard_normal((3, 3, 4))  # sample, state, D
X_TEST = RNG.standard_normal((2, 3, 4))
Y = RNG.standard_normal((3, 3, 2))  # sample, state, output
KERNELS = ("ntk", "feature_kernel", "gradient_kernel", "preactivation")


def task(driven, supervised, n_outputs, *, test=False):
    """Inputs at the first ``driven`` states, labels at ``supervised`` ones; D = 3 needs no reduction of inputs."""
    x, x_test = (X[:, :driven, :3], X_TEST[:, :driven, :3] if test else None)
    y = Y[:, supervised, :n_outputs]
    y_test = np.zeros((2, *y.shape[1:])) + 0.3 if test else None
    return wf.Task(x, y, supervised=supervised, x_test=x_test, y_test=y_test)


CASES = {
    "deep": (wf.DNN(3, "tanh", weight_variance=(1.5, 0.8), input_variance=1.3, readout_variance=0.7), (1, [2], 1)),
    "one layer": (wf.DNN(1, "relu", input_variance=2.0), (1, [0], 1)),
    "biases": (wf.DNN(3, "erf", bias_variance=(0.3, 0.0, 0.6), readout_bias_variance=0.0), (1, [2], 1)),
    "widths": (wf.DNN(3, "tanh", widths=(0.75, 1.5, 1.0), bias_variance=0.2, readout_bias_variance=0.0), (1, [2], 2)),
    "outputs": (wf.DNN(2, "gelu", readout_variance=2.0), (1, [1], 2)),
    "early readout": (wf.DNN(3, "sin"), (1, [1], 1)),
    "deep, shared inputs": (wf.DNN(3, "tanh", input_variance=0.6), (3, [0, 1, 2], 1)),
    "deep, own inputs": (wf.DNN(3, "tanh", inputs="untied", input_variance=(1.0, 0.5, 2.0)), (3, [2], 1)),
    "recurrent": (wf.RNN(3, "tanh", weight_variance=1.4, readout_variance=0.5), (3, [2, 0], 2)),
    "recurrent, depth 2": (wf.RNN(2, "softplus"), (1, [1], 1)),
    "recurrent, own inputs": (
        wf.RNN(3, "erf", inputs="untied", bias_variance=0.4, readout_bias_variance=0.0),
        (2, [1, 2], 1),
    ),
    "recurrent, own biases": (
        wf.RNN(3, "linear", biases="untied", bias_variance=(0.1, 0.2, 0.3), readout_bias_variance=0.0),
        (3, [2], 1),
    ),
}
RUN = {"width": 4, "richness": 1.3, "seed": 7, "replicates": 2}
RATES = np.array([0.05, 0.1, 0.02])


def literal(net, question, theta, **options):
    return oracle.train(net, question, theta, richness=RUN["richness"], rates=RATES, **options)


def check(trial, rows, question, net, replicate=1):
    """Every field of one replicate against the literal rows."""
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * max(1.0, np.abs(b).max()))  # noqa: E731
    states = question.supervised_states(net.depth)
    several, order = len(states) > 1, np.argsort(states)  # the oracle keeps the task's order of readouts
    get = lambda name: trial.data[name].values[replicate]  # noqa: E731
    stack = lambda name: np.stack([row[name] for row in rows])  # noqa: E731
    squeeze = lambda a: a[..., 0, 0] if a.shape[-1] == 1 else a  # noqa: E731
    chosen = lambda a: a if several else a[:, states[0] if a.shape[1] > 1 else 0]  # noqa: E731
    near(get("loss"), stack("loss"))
    near(get("prediction"), chosen(stack("f")))
    if "state_prediction" in trial.data:
        near(get("state_prediction"), stack("f"))
    if question.x_test is not None:
        near(get("test_prediction"), chosen(stack("f_test")))
    ntk = squeeze(stack("ntk")[:, order][:, :, order])
    near(get("ntk"), np.moveaxis(ntk, 0, 2) if several else ntk[:, 0, 0])
    phi = [np.stack([row["phi"][k] for row in rows]) for k in range(net.depth)]
    g = [np.stack([row["g"][k][order] for row in rows]) for k in range(net.depth)]
    plain = trial.feature_kernel.dims[1] == "layer"
    for k in range(net.depth):
        for q in [k] if plain else range(net.depth):
            place = (k,) if plain else (k, q)
            near(get("feature_kernel")[place], np.einsum("tmi,sni->tsmn", phi[k], phi[q]) / phi[k].shape[-1])
            expected = squeeze(np.einsum("tcmoi,sdnpi->cdtsmnop", g[k], g[q]) / g[k].shape[-1])
            kernel = get("gradient_kernel")
            near(
                kernel[(slice(None), slice(None), *place)] if several else kernel[place],
                expected if several else expected[0, 0],
            )
    if "preactivation" in trial.data:
        near(get("preactivation"), np.stack([a.T for a in rows[-1]["h"]]))


@pytest.mark.parametrize("case", CASES)
def test_every_field_is_that_of_literal_gradient_descent(case):
    net, (driven, supervised, n_outputs) = CASES[case]
    question = task(driven, supervised, n_outputs, test=case in ("deep", "recurrent"))
    trial = dynamics(net, question, rate=RATES, steps=3, **RUN)
    theta = oracle.draw(net, question, RUN["width"], n_outputs, RUN["seed"], replicate=1)
    rows = literal(net, question, theta)
    assert abs(rows[-1]["f"] - rows[0]["f"]).max() > 1e-2, "training must move the outputs"
    check(trial, rows, question, net)


def asymmetric(f, y):
    return jnp.sum(jnp.cosh(f - y) + 0.1 * f)


PROTOCOLS = {
    "decay": ({"weight_decay": 0.7}, {"decay": 0.7}),
    "momentum": ({"momentum_time": 0.3}, {"tau": 0.3}),
    "momentum and decay": ({"momentum_time": 0.3, "weight_decay": 0.7}, {"tau": 0.3, "decay": 0.7}),
    "langevin": ({"temperature": 0.4, "weight_decay": 0.7}, {"temperature": 0.4, "decay": 0.7}),
    "centered": ({"centered": True}, {"center": True}),
    "initial scale": ({"initial_scale": 1.7}, {}),
    "logistic": ({"loss": "logistic"}, {"loss": oracle.logistic}),
    "cross entropy": ({"loss": "cross_entropy"}, {"loss": oracle.cross_entropy}),
    "own loss": ({"loss": asymmetric}, {"loss": lambda f, y: (np.cosh(f - y) + 0.1 * f).sum()}),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_is_that_of_literal_gradient_descent(protocol):
    options, literal_options = PROTOCOLS[protocol]
    net = wf.RNN(3, "tanh", weight_variance=1.4, bias_variance=0.3, readout_bias_variance=0.0)
    question = task(3, [1, 2], 2)
    if protocol == "logistic":
        question = wf.Task(question.x, np.sign(question.y), supervised=[1, 2])
    if protocol == "cross entropy":
        question = wf.Task(
            question.x, np.exp(question.y) / np.exp(question.y).sum(-1, keepdims=True), supervised=[1, 2]
        )
    trial = dynamics(net, question, rate=RATES, steps=3, **RUN, **options)
    scale = options.get("initial_scale", 1.0)
    theta = oracle.draw(net, question, RUN["width"], 2, RUN["seed"], replicate=1, scale=scale)
    noise = streams(RUN["seed"], [1], NOISE)[0]
    rows = literal(net, question, theta, **literal_options, noise=noise)
    plain = literal(net, question, theta)
    assert protocol == "initial scale" or abs(rows[-1]["f"] - plain[-1]["f"]).max() > 1e-3, "the protocol must matter"
    check(trial, rows, question, net)


def test_test_loss_is_per_training_sample():
    question = task(1, [2], 2, test=True)
    trial = dynamics(wf.DNN(3, "tanh"), question, rate=0.1, steps=2, **RUN)
    expected = 0.5 * np.square(trial.test_prediction.values - 0.3).sum(axis=(2, 3)) * 3 / 2
    np.testing.assert_allclose(trial.test_loss, expected, rtol=1e-13)
    trial = dynamics(wf.DNN(3, "tanh"), question, rate=0.1, steps=2, **RUN, loss=asymmetric)
    deviation = trial.test_prediction.values
    expected = (np.cosh(deviation - 0.3) + 0.1 * deviation).sum(axis=(2, 3)) * 3 / 2
    np.testing.assert_allclose(trial.test_loss, expected, rtol=1e-13)


def test_chosen_steps_are_those_of_all():
    net, question = CASES["recurrent"][0], task(*CASES["recurrent"][1])
    full = dynamics(net, question, rate=0.1, steps=4, **RUN)
    some = dynamics(net, question, rate=0.1, steps=4, **RUN, at=[-1, 1])
    np.testing.assert_array_equal(some.data["at"], [1, 4])
    assert some.feature_kernel.dims == ("replicate", "state", "state_", "at", "at_", "sample", "sample_")
    assert some.gradient_kernel.dims[1:] == (
        "readout", "readout_", "state", "state_", "at", "at_", "sample", "sample_", "output", "output_"
    )  # fmt: skip
    for name, axis in (("feature_kernel", 3), ("gradient_kernel", 5)):
        chosen = np.take(np.take(full.data[name].values, [1, 4], axis), [1, 4], axis + 1)
        np.testing.assert_allclose(some.data[name], chosen, rtol=1e-13)
    assert some.preactivation.dims == ("replicate", "state", "at", "neuron", "sample")
    np.testing.assert_array_equal(some.preactivation[:, :, 1], full.preactivation)


def test_many_inputs_coordinates_change_no_law():
    """D = 40 enters through inner products: the mean tangent kernel is that of drawn weights, and x·x/D is exact."""
    x = np.random.default_rng(0).standard_normal((2, 40))
    net = wf.DNN(1, "linear")
    run = {"richness": 1.0, "rate": 0.1, "steps": 1, "width": 50, "seed": 0}
    trial = dynamics(net, wf.Task(x, [1.0, -1.0]), **run, replicates=200, quantities="ntk")
    expected = 2 * x @ x.T / 40
    assert agrees(expected, trial.ntk.values[:, 0])
    assert not agrees(1.05 * expected, trial.ntk.values[:, 0])


def deep(factor):
    return wf.DNN(2, "erf", weight_variance=1.5 * factor, bias_variance=0.3, readout_bias_variance=0.0)


def recurrent(factor):
    return wf.RNN(3, "erf", weight_variance=1.2 * factor, readout_variance=0.7)


@pytest.mark.parametrize(
    ("network", "arguments"),
    [(recurrent, (3, [0, 1, 2], 1)), pytest.param(deep, (1, [1], 1), marks=pytest.mark.full)],
)
def test_initial_tangent_kernel_is_the_priors(network, arguments):
    """f is the prior's network times 1/(γ0 √N), and the rate is γ0² N times its own: the same kernel."""
    question = task(*arguments)

    def kernels(width, seed):
        options = {"richness": 0.7, "rate": 0.1, "steps": 1, "replicates": 600, "quantities": "ntk"}
        return dynamics(network(1.0), question, width=width, seed=seed, **options).ntk.values[..., 0, :, :]

    samples = 2 * kernels(240, 1) - kernels(120, 2)
    assert agrees(wf.prior(network(1.0), question, quantities="ntk").ntk.values, samples)
    wrong = wf.prior(network(1.1), question, quantities="ntk").ntk.values
    assert not agrees(wrong, samples), "a 10 % error in the weight variance must be seen"


@pytest.mark.parametrize("case", ["deep", "recurrent"])
def test_lazy_training_is_linear_in_its_own_initial_kernel(case):
    net, arguments = CASES[case]
    states = sorted(arguments[1])
    question = task(arguments[0], states, 1)

    def deviation(richness):
        options = {"width": 40, "replicates": 2, "seed": 1, "rate": 0.1, "steps": 15, "centered": True}
        trial = dynamics(net, question, richness=richness, **options, quantities=("ntk", "prediction"))
        C, P = len(states), 3
        kernel = trial.ntk.values[..., 0, :, :].reshape(2, C, C, P, P).swapaxes(2, 3).reshape(2, C * P, C * P)
        y = question.labels().swapaxes(0, 1).reshape(-1)
        f = np.zeros((2, C * P))
        for _ in range(15):
            f = f + 0.1 * np.einsum("rij,rj->ri", kernel, y - f)
        reached = trial.prediction.values[:, -1, ..., 0]
        reached = (reached[:, states] if C > 1 else reached).reshape(2, -1)
        return np.abs(reached - f).max()

    errors = [deviation(richness) for richness in (1e-3, 1e-4)]
    assert errors[0] < 0.01 and errors[1] < errors[0] / 8, "the deviation falls in proportion to the richness"


def test_whitened_two_layer_linear_network_learns_the_closed_form_kernel():
    """H(∞) = 1 + (√(1 + γ0² y²) − 1) y yᵀ/y² (two-layer linear network of Bordelon & Pehlevan 2022)."""
    y = np.array([1.2, -0.9])
    question = wf.Task(np.sqrt(2) * np.eye(2), y)

    def kernels(width, seed):
        options = {"richness": 2.0, "rate": 0.01, "steps": 400, "replicates": 100, "at": [-1]}
        trial = dynamics(wf.DNN(1, "linear"), question, width=width, seed=seed, **options)
        assert float(trial.loss[:, -1].max()) < 1e-6
        return trial.feature_kernel.values[:, 0, 0, 0]

    samples = 2 * kernels(200, 1) - kernels(100, 2)
    closed = lambda g: np.eye(2) + (np.sqrt(1 + g**2 * y @ y) - 1) * np.outer(y, y) / (y @ y)  # noqa: E731
    assert agrees(closed(2.0), samples)
    assert not agrees(closed(2.2), samples), "a 10 % error in the richness must be seen"


@pytest.mark.full
def test_decay_makes_recurrent_networks_coherent_and_deep_ones_not():
    """Correlations of adjacent states against the exact infinite-width march."""
    question = wf.Task(np.array([[[1.0], [0.1]]]), [1.0])
    options = {"richness": 4.0, "rate": 0.02, "steps": 300, "weight_decay": 0.6, "at": [0, 100, 200, 300]}

    def correlations(net, seed):
        trial = dynamics(net, question, width=600, replicates=24, seed=seed, quantities="feature_kernel", **options)
        kernel = np.einsum("rkqtt->rtkq", trial.feature_kernel.values[..., 0, 0])
        size = np.sqrt(np.einsum("rtkk->rtk", kernel))
        return np.stack(
            [kernel[..., 0, 1] / (size[..., 0] * size[..., 1]), kernel[..., 1, 2] / size[..., 1] / size[..., 2]], 1
        )

    tied = np.array([[0.100, 0.348, 0.638, 0.823], [0.099, 0.573, 0.915, 0.988]])
    untied = np.array([[0.100, 0.209, 0.291, 0.367], [0.0, 0.0, 0.0, 0.0]])
    for net, right, wrong in ((wf.RNN(3, "linear"), tied, untied), (wf.DNN(3, "linear"), untied, tied)):
        samples = correlations(net, seed=1)
        assert agrees(right, samples) and not agrees(wrong, samples)
