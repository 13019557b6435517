"""Theory against weights sampled from the posterior of finite networks: 1/width removed, a wrong theory rejected."""

from functools import cache

import numpy as np
import pytest

import widefield as wf

from ..simulate import students

CHAINS, WIDTHS = 24, (48, 96)


@cache
def sampled(make, activation, name):
    """2·wide − narrow of every field, one row per chain; chains start at the theory's kernel."""
    net, task, kappa = question(make, activation, name)
    runs = [
        wf.simulate.posterior(
            net, task, temperature=kappa, width=n, replicates=CHAINS, seed=n, draws=300, warmup=100,
            start=theory(make, activation, name), quantities=("hidden", "feature", "prediction"), throw=False,
        )
        for n in WIDTHS
    ]  # fmt: skip
    return {k: 2 * runs[1].data[k].values - runs[0].data[k].values for k in runs[0].data.data_vars}


@cache
def theory(make, activation, name):
    net, task, kappa = question(make, activation, name)
    return wf.posterior(net, task, temperature=kappa)


def question(make, activation, name):
    if name == "endpoint":
        net = make(3, activation, weight_variance=2.0)
        return net, wf.Task(np.ones((1, 1)), np.full(1, 8.0)), 0.5
    truth, seen = wf.tasks.rotation(3, 4, 6, angle=0.9, seed=1), [0, 1, 3, 5]
    return make(6, activation), wf.Task(truth.x, truth.y[:, seen], supervised=seen), 0.2


def agreement(make, activation, name, field="feature"):
    """Equal-state and odd-lag entries alike; the deep network's kernel is the wrong theory for the recurrent one."""
    return students.agrees(theory(make, activation, name).data[field].values, sampled(make, activation, name)[field])


@pytest.mark.parametrize("make", [wf.RNN, pytest.param(wf.DNN, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "activation", ["linear", pytest.param("erf", marks=pytest.mark.full), pytest.param("relu", marks=pytest.mark.full)]
)
def test_endpoint(make, activation):
    assert agreement(make, activation, "endpoint") and agreement(make, activation, "endpoint", "prediction")
    other = wf.DNN if make is wf.RNN else wf.RNN
    wrong = theory(other, activation, "endpoint").feature.values
    assert not students.agrees(wrong, sampled(make, activation, "endpoint")["feature"])


@pytest.mark.full
@pytest.mark.parametrize("make", [wf.RNN, wf.DNN])
def test_rotation_with_unsupervised_states(make):
    assert agreement(make, "linear", "rotation") and agreement(make, "linear", "rotation", "prediction")
    other = wf.DNN if make is wf.RNN else wf.RNN
    wrong = theory(other, "linear", "rotation").prediction.values
    assert not students.agrees(wrong, sampled(make, "linear", "rotation")["prediction"])


def top_eigenvalue(run):
    """The real part of the largest eigenvalue of every network; W → −W leaves its sign open."""
    values = run.eigenvalue_real.values + 1j * run.eigenvalue_imag.values
    return np.abs(np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)[:, 0].real)


@pytest.mark.full
def test_the_outlier_of_trained_erf_networks():
    """The largest eigenvalue of W, 2·wide − narrow; 10 % off, or W read off the states alone, is rejected."""
    net, task = wf.RNN(3, "erf", weight_variance=2.0), wf.Task(np.ones((1, 1)), np.full(1, 8.0))
    solution = wf.posterior(net, task, temperature=0.2)
    narrow, wide = (
        top_eigenvalue(
            wf.simulate.posterior(
                net, task, temperature=0.2, width=n, replicates=300, seed=n + 7, draws=2, warmup=120, start=solution,
                quantities=("eigenvalue_real", "eigenvalue_imag"), throw=False,
            )
        )
        for n in (100, 200)
    )  # fmt: skip
    spectrum = wf.weight_outliers(solution)
    outlier = spectrum.eigenvalue_real.values[spectrum.outlier.values]
    assert outlier.shape == (1,)
    samples = 2 * wide - narrow
    assert students.agrees(outlier, samples[:, None])
    for wrong in (0.9, 1.1):
        assert not students.agrees(wrong * outlier, samples[:, None])
    H = solution.hidden.values[..., 0, 0]
    assert not students.agrees(np.abs(np.linalg.eigvals(np.linalg.solve(H[:2, :2], H[:2, 1:]))).max(), samples[:, None])
