"""Theory against networks trained by gradient descent: extrapolated in 1/N, and with wrong theories that must be seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import widefield as wf
from tests.dynamics import algorithm, oracle
from tests.dynamics.question import experiment, predict
from tests.simulate.students import agrees

ALPHA = 1e-6
FIELDS = ("prediction", "feature_kernel", "gradient_kernel")
RNG = np.random.default_rng(5)
X, Y = 1.5 * RNG.normal(size=(2, 4)), np.array([1.0, -1.0])
SEQUENCE, LABELS = 1.5 * RNG.normal(size=(2, 3, 4)), RNG.choice([-1.0, 1.0], size=(2, 3, 1))
THREE = RNG.normal(size=(3, 3))
FIRST, EVERYWHERE = wf.Task(X, Y), wf.Task(SEQUENCE, LABELS)
full = pytest.mark.full


def case(network, task, richness, rate, steps, **more):
    return network, task, {"richness": richness, "rate": rate, "steps": steps} | more


CASES = {
    "tanh 1": case(wf.DNN(1, "tanh"), FIRST, 2.0, 0.15, 10),
    "tanh 2": case(wf.DNN(2, "tanh"), FIRST, 2.0, 0.15, 10),
    "tanh 3": case(wf.DNN(3, "tanh", weight_variance=1.5), FIRST, 2.0, 0.1, 12),
    "tanh 16": case(wf.DNN(16, "tanh"), FIRST, 1.0, 0.1, 8),
    "relu 1": case(wf.DNN(1, "relu"), FIRST, 2.0, 0.1, 10),
    "relu 2": case(wf.DNN(2, "relu", weight_variance=1.5), FIRST, 2.0, 0.08, 12),
    "relu 3": case(wf.DNN(3, "relu", weight_variance=2.0), FIRST, 1.0, 0.05, 12),
    "relu 2, late": case(wf.DNN(2, "relu"), wf.Task(THREE, [1.0, -1.0, 1.0]), 2.0, 0.04, 40),
    "tied tanh": case(wf.RNN(3, "tanh", weight_variance=1.3), EVERYWHERE, 1.0, 0.1, 8),
    "tied relu": case(wf.RNN(3, "relu"), EVERYWHERE, 1.0, 0.04, 8),
    "untied tanh, all states": case(wf.DNN(3, "tanh", weight_variance=1.3), EVERYWHERE, 1.0, 0.1, 8),
    "weight decay": case(wf.DNN(2, "tanh"), FIRST, 2.0, 0.15, 10, weight_decay=0.5),
    "momentum": case(wf.DNN(2, "tanh"), FIRST, 2.0, 0.15, 10, momentum_time=0.4),
    "biases": case(wf.DNN(2, "tanh", bias_variance=0.5, readout_bias_variance=0.0), FIRST, 2.0, 0.15, 10),
    "widths": case(wf.DNN(2, "tanh", widths=(0.5, 1.0)), FIRST, 2.0, 0.15, 10),
    "initial scale": case(wf.DNN(2, "tanh"), FIRST, 2.0, 0.15, 10, initial_scale=0.7),
    "schedule": case(wf.DNN(2, "tanh"), FIRST, 2.0, np.linspace(0.25, 0.05, 10), 10),
    "langevin": case(wf.DNN(2, "tanh"), FIRST, 2.0, 0.1, 10, temperature=0.1, weight_decay=0.5),
    "logistic": case(wf.DNN(2, "tanh"), FIRST, 2.0, 0.3, 10, loss="logistic"),
    "cross entropy, two outputs": case(
        wf.DNN(2, "tanh"), wf.Task(X, np.array([[1.0, 0.0], [0.2, 0.8]])), 2.0, 0.3, 10, loss="cross_entropy"
    ),
}


def rows(data, steps, lead):
    """What is compared: outputs at three steps, equal-time kernels at the last one. ``lead`` axes stay in front."""
    found = []
    for name in FIELDS:
        field = data[name]
        if name == "prediction":
            field = field.isel(step=[steps // 3, steps]).transpose(*lead, ...)
        else:
            field = field.transpose(*lead, ...)
        found.append(field.values.reshape(*field.shape[: len(lead)], -1))
    return np.concatenate(found, axis=-1)


def predicted(network, task, physics, **options):
    """Values and standard errors of the theory."""
    steps = physics["steps"]
    solution = predict(
        network, task, **physics, at=[steps], quantities=FIELDS, **{"paths": 4096, "progress": False} | options
    )
    errors = {name: solution.data[f"{name}_stderr"] for name in FIELDS}
    return rows(solution.data, steps, ()), rows(errors, steps, ())


def trained(network, task, physics, widths, replicates, seed):
    """2·wide − narrow of (replicate, number): the offset of order 1/N is gone."""
    trials = [
        experiment(
            network, task, **physics, width=n, replicates=replicates, seed=seed + n, at=[physics["steps"]],
            quantities=FIELDS, progress=False,
        )
        for n in widths
    ]  # fmt: skip
    narrow, wide = (rows(trial.data, physics["steps"], ("replicate",)) for trial in trials)
    return 2 * wide - narrow


def meets(theory, samples):
    """Student's test, Bonferroni over the entries, with the theory's own standard error added."""
    value, error = theory
    n = len(samples)
    spread = np.sqrt(samples.var(axis=0, ddof=1) / n + error**2)
    limit = scipy.stats.t.isf(ALPHA / (2 * value.size), df=n - 1)
    return bool(np.all(np.abs(samples.mean(axis=0) - value) <= limit * spread))


def richer(physics, factor):
    return physics | {"richness": factor * physics["richness"]}


@pytest.mark.parametrize("name", ["tanh 2", pytest.param("tied tanh", marks=full)])
def test_theory_meets_trained_networks(name):
    network, task, physics = CASES[name]
    samples = trained(network, task, physics, (80, 160), 250, seed=7)
    assert meets(predicted(network, task, physics), samples)
    assert not meets(predicted(network, task, richer(physics, 1.15)), samples), "15 % of the richness must be seen"


@full
@pytest.mark.parametrize("name", CASES)
def test_theory_meets_wider_networks(name):
    network, task, physics = CASES[name]
    samples = trained(network, task, physics, (200, 400), 300, seed=17)
    assert meets(predicted(network, task, physics, paths=16384), samples)
    assert not meets(predicted(network, task, richer(physics, 1.15), paths=16384), samples)


@full
@pytest.mark.parametrize("name", ["tanh 2", "tanh 3", "relu 2", "tied tanh"])
def test_networks_reject_the_theory_without_responses(name):
    network, task, physics = CASES[name]
    samples = trained(network, task, physics, (80, 160), 250, seed=7)
    assert meets(predicted(network, task, physics), samples)
    assert not meets(predicted(network, task, physics, method="independent"), samples)


@full
@pytest.mark.parametrize("name", ["tied tanh", "untied tanh, all states"])
def test_networks_reject_the_wrong_mask(name):
    network, task, physics = CASES[name]
    samples = trained(network, task, physics, (80, 160), 250, seed=7)
    other = {"tied": wf.DNN, "untied": wf.RNN}[network.weights](3, "tanh", weight_variance=1.3)
    assert meets(predicted(network, task, physics), samples)
    assert not meets(predicted(other, task, physics), samples)


@full
def test_networks_reject_the_theory_without_equal_time_responses():
    """tr Φ¹ of the paper's algorithm with and without B(t, t), each over independent streams."""
    network, task, physics = case(wf.DNN(2, "tanh"), wf.Task(X, Y), 3.0, 0.2, 6)
    narrow, wide = (
        experiment(
            network, task, **physics, width=n, replicates=300, seed=n, at=[6], quantities="feature_kernel", progress=False
        ).feature_kernel.values[:, 0, 0, 0]
        for n in (80, 160)
    )  # fmt: skip
    samples = np.trace(2 * wide - narrow, axis1=1, axis2=2)[:, None]
    options = {"richness": 3.0, "rate": 0.2, "steps": 6, "paths": 600, "sweeps": 30}
    for equal_time in (True, False):
        with jax.enable_x64(True):
            kernels = [
                algorithm.solve(jnp.tanh, 2, X @ X.T / 4, Y, seed=seed, equal_time=equal_time, **options)[1]
                for seed in range(12)
            ]
        traces = np.array([np.trace(phi[0, -1, :, -1]) for phi in kernels])
        theory = np.atleast_1d(traces.mean()), np.atleast_1d(traces.std(ddof=1) / np.sqrt(len(traces)))
        assert meets(theory, samples) is equal_time


@full
@pytest.mark.parametrize("mistake", [None, "A", "B"])
def test_recurrent_networks_reject_the_theory_without_one_response(mistake):
    """Linear RNNs against explicit responses: both are needed, each by itself."""
    network, task, physics = case(wf.RNN(3, "linear"), EVERYWHERE, 1.0, 0.02, 12)
    narrow, wide = (
        experiment(
            network, task, **physics, width=n, replicates=1500, seed=n, quantities="prediction", progress=False
        ).prediction.values[:, [6, 12]]
        for n in (100, 200)
    )  # fmt: skip
    right = oracle.solve(network, task, **physics, mistake=mistake)["f"][[6, 12]]
    assert agrees(right, 2 * wide - narrow) is (mistake is None)


@full
def test_the_error_falls_with_the_width():
    """The distance of the mean network from the theory: of order 1/N."""
    network, task, physics = CASES["tanh 2"]
    value, _ = predicted(network, task, physics, paths=16384)
    distance = {}
    for n, replicates in ((25, 4000), (100, 4000)):
        trial = experiment(
            network, task, **physics, width=n, replicates=replicates, seed=n, at=[physics["steps"]], quantities=FIELDS,
            progress=False,
        )  # fmt: skip
        mean = rows(trial.data, physics["steps"], ("replicate",)).mean(axis=0)
        distance[n] = np.sqrt(np.mean((mean - value) ** 2))
    assert 2.5 < distance[25] / distance[100] < 6.5
