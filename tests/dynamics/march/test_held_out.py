"""Test inputs are read from the weights: against the march in which they are samples with Δ = 0."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from tests.dynamics.question import split

RNG = np.random.default_rng(0)
X, Y, TEST = RNG.normal(size=(3, 6)), RNG.normal(size=3), RNG.normal(size=(4, 6))
SEQUENCES, SEQUENCES_TEST = RNG.normal(size=(3, 3, 5)), RNG.normal(size=(4, 3, 5))
LABELS = RNG.normal(size=(3, 2, 2))
DEEP = wf.Task(X, Y, x_test=TEST)
LAST, TWO = (wf.Task(SEQUENCES, y, supervised=s, x_test=SEQUENCES_TEST) for y, s in ((Y, None), (LABELS, (0, 2))))
BIASED = wf.RNN(3, "linear", bias_variance=0.2, readout_bias_variance=0.0)
full = pytest.mark.full


def unlabeled(f, y):
    """The squared loss of samples whose label is not zero."""
    return jnp.sum(jnp.where(y == 0, 0.0, 0.5 * (f - y) ** 2))


def as_samples(network, task, **settings):
    """Outputs and errors of test inputs that are marched as samples that train nothing."""
    labels = task.labels()
    x, y = np.concatenate([task.x, task.x_test]), np.concatenate([labels, np.zeros((task.n_test, *labels.shape[1:]))])
    training, options = split(**settings)
    question = wf.Task(x, y, supervised=task.supervised_states(network.depth))
    made = wf.dynamics(
        network, question, replace(training, loss=unlabeled), quantities="prediction", throw=False, **options
    )
    error = made.prediction_stderr.values[..., task.n_samples :, :] if "prediction_stderr" in made.data else 0.0
    return made.prediction.values[..., task.n_samples :, :], error


def as_tests(network, task, **settings):
    training, options = split(**settings)
    names = ("prediction", "test_prediction")
    return wf.dynamics(network, task, training, quantities=names, throw=False, **options)


LINEAR = {
    "deep, weight decay": (wf.DNN(3, "linear"), DEEP, {"richness": 1.5, "weight_decay": 0.1}),
    "tied, two readouts and outputs, momentum": (BIASED, TWO, {"momentum_time": 0.3}),
    "untied, sequences": (wf.DNN(3, "linear", bias_variance=0.2, readout_bias_variance=0.0), TWO, {}),
    "independent": (wf.DNN(3, "linear"), DEEP, {"method": "independent"}),
    "flow": (wf.DNN(2, "linear"), DEEP, {"flow": True}),
    "lazy": (wf.DNN(2, "tanh"), DEEP, {"method": "lazy"}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=full) if n.startswith(("untied", "flow")) else n for n in LINEAR]
)
def test_exact_methods_agree(name):
    network, task, settings = LINEAR[name]
    settings = {"rate": 0.05, "steps": 6} | settings
    right, _ = as_samples(network, task, **settings)
    found = as_tests(network, task, **settings).test_prediction.values
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-10)
    assert np.abs(right[-1]).max() > 0.05, "outputs that do not move show nothing"


SAMPLED = {
    "deep": (wf.DNN(3, "tanh"), DEEP, {}),
    "tied": (wf.RNN(3, "tanh", weight_variance=1.5), TWO, {}),
    "kinks": (wf.RNN(3, "relu", bias_variance=0.3, readout_bias_variance=0.0), LAST, {}),
    "noise": (wf.RNN(3, "tanh"), LAST, {"temperature": 0.5, "weight_decay": 0.3, "initial_scale": (1.0, 0.7, 1.2)}),
    "independent": (wf.DNN(3, "tanh"), DEEP, {"method": "independent"}),
    "perturbative": (wf.DNN(2, "tanh"), DEEP, {"method": "perturbative", "richness": 0.3, "paths": 1024}),
}


@pytest.mark.parametrize("name", [n if n in ("deep", "tied") else pytest.param(n, marks=full) for n in SAMPLED])
def test_sampled_outputs_agree(name):
    """Within five standard errors of eight batches on both sides; a test input that is 10 % larger is seen."""
    network, task, settings = SAMPLED[name]
    settings = {"rate": 0.1, "steps": 12, "richness": 2.0, "paths": 4096, "progress": False} | settings
    right, error = as_samples(network, task, **settings)
    found = as_tests(network, task, **settings)
    limit = 5 * np.hypot(error, found.test_prediction_stderr.values) + 1e-12
    assert np.all(np.abs(found.test_prediction.values - right) < limit)
    larger = as_tests(network, replace(task, x_test=1.1 * task.x_test), **settings).test_prediction.values
    assert np.any(np.abs(larger - right) > limit)


def test_the_training_does_not_see_test_inputs():
    """Bit for bit, and a test input does not see the others."""
    settings = {"rate": 0.1, "steps": 12, "richness": 2.0, "paths": 4096, "progress": False}
    both = as_tests(wf.DNN(3, "tanh"), DEEP, **settings)
    alone = as_tests(wf.DNN(3, "tanh"), replace(DEEP, x_test=TEST[:1]), **settings)
    np.testing.assert_array_equal(both.prediction, alone.prediction)
    np.testing.assert_allclose(both.test_prediction[:, :1], alone.test_prediction, rtol=0, atol=1e-12)


def test_a_training_input_held_out_is_predicted_as_in_training():
    """Where it is a sample too: nothing is fresh in it."""
    settings = {"rate": 0.1, "steps": 12, "richness": 2.0, "paths": 4096, "progress": False}
    found = as_tests(wf.DNN(3, "tanh"), replace(DEEP, x_test=np.concatenate([X, TEST[:1]])), **settings)
    np.testing.assert_allclose(found.test_prediction[:, :3], found.prediction, rtol=0, atol=2e-3)


def test_blocks_that_are_not_full_are_cut():
    """Of more test inputs than a block has, the last one is filled up: with independent gradients outputs follow kicks."""
    x, y = np.eye(3)[:2], np.array([1.0, -1.0])
    tests = np.random.default_rng(0).normal(size=(257, 3))
    ask = lambda x_test: wf.dynamics(  # noqa: E731
        wf.DNN(2, "linear"), wf.Task(x, y, x_test=x_test), wf.Training(0.1, 3), method="independent"
    )
    many, few = ask(tests), ask(tests[-3:])
    assert many.test_prediction.sizes["test"] == 257
    np.testing.assert_allclose(many.test_prediction[:, -3:], few.test_prediction, atol=1e-12)
