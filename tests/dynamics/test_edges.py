"""Where automatic choices and error estimates could go wrong without a word: names, zeros, kinks, flows, divergence."""

import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from tests import contracts
from tests.dynamics.question import density, experiment, predict
from widefield.theories.dynamics.curves import Estimate, relative_error
from widefield.theories.dynamics.methods import flow, paths

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 8)), RNG.normal(size=2)
NET, TASK = wf.DNN(2, "linear"), wf.Task(X, Y)
ONE = wf.Task(X[:1, :4], [1.0])
PHYSICS = {"richness": 1.3, "rate": 0.1, "steps": 7, "progress": False}
full = pytest.mark.full


def ask(network=NET, task=TASK, **changes):
    return predict(network, task, **PHYSICS | changes)


def test_a_function_of_the_user_may_be_called_linear():
    def linear(h):
        return jnp.sin(h)

    found, right = (ask(wf.DNN(1, phi), ONE, quantities="prediction") for phi in (wf.Activation(linear), "sin"))
    np.testing.assert_array_equal(found.prediction, right.prediction)
    assert found.certificate.diagnostics["solver"] == "quadrature"


def test_outputs_that_stay_zero_are_known_exactly():
    """Errors are relative to the outputs unless these are zero up to round-off."""
    for task in (wf.Task(X[:1, :4], [0.0]), wf.Task(X[[0, 0], :4], [1.0, -1.0])):
        found = ask(wf.DNN(1, "tanh"), task, rtol=1e-3, quantities="prediction")
        assert found.certificate.diagnostics["solver"] == "quadrature" and found.certificate.error < 1e-4
        assert np.abs(found.prediction).max() < 1e-15


def test_networks_that_die_have_a_relative_error():
    """Outputs that end at zero: their size is that of the step where they are largest."""
    value = np.array([0.0, 2.0, 0.0]).reshape(3, 1, 1, 1)
    assert relative_error(Estimate(value, 0.01 * value), (0,)) == pytest.approx(2.3646 * 0.01, rel=1e-4)


@pytest.mark.full
def test_flow_meets_a_tolerance_or_says_not(monkeypatch):
    coarse = ask(flow=True, quantities="prediction")
    met = ask(flow=True, rtol=1e-6, quantities="prediction")
    assert met.certificate.error <= 1e-6 < coarse.certificate.error <= 1e-3, "the default is judged too"
    size = np.sqrt(np.mean(met.prediction.values[-1] ** 2))
    gap = np.abs(coarse.prediction - met.prediction).max() / size
    assert 1e-6 < gap < coarse.certificate.error
    monkeypatch.setattr(flow, "MOST_LEVELS", 4)
    partial = contracts.assert_fails_loudly(
        lambda throw: ask(flow=True, rtol=1e-6, quantities="prediction", throw=throw), wf.Status.not_converged
    )
    assert partial.prediction.shape == coarse.prediction.shape


def test_flow_is_finite_where_descent_diverges():
    options = {"rate": 4.0, "steps": 2, "quantities": "prediction"}
    assert ask(throw=False, **options).status is wf.Status.diverged
    found = ask(flow=True, rtol=1e-2, **options)
    fine = ask(rate=4.0 / 512, steps=1024, quantities="prediction")
    np.testing.assert_allclose(found.prediction[-1], fine.prediction[-1], rtol=0, atol=2e-2)
    lost = ask(flow=True, rate=1e4, steps=3, throw=False, quantities="prediction")
    assert lost.status is wf.Status.diverged and lost.prediction.shape == (4, 2, 1)
    step = lost.certificate.diagnostics["diverged_at_step"]
    assert np.isinf(lost.prediction[step:]).all() and np.isfinite(lost.prediction[:step]).all()


def test_samples_are_those_of_the_steps_asked_for():
    partial = ask(rate=20.0, at=[0, 7], throw=False)
    assert partial.status is wf.Status.diverged
    assert not {"preactivation", "pregradient", "feature_kernel"} & set(partial.data)


def test_a_network_that_overflows_at_the_start():
    for depth in (1, 2):
        with pytest.raises(ValueError, match="`network` overflows before the first update"):
            ask(wf.DNN(depth, "exp"), wf.Task(1e3 * X[:1, :4], [1.0]), quantities="prediction")


def test_test_losses_have_the_errors_of_outputs():
    task = wf.Task(X[:1, :4], [1.0], x_test=2 * X[:1, :4], y_test=[0.3])
    found = ask(wf.DNN(1, "tanh"), task, paths=256, quantities=("test_loss", "test_prediction"))
    slope = np.abs(found.test_prediction.values[:, 0, 0] - 0.3)
    np.testing.assert_allclose(found.test_loss_stderr, slope * found.test_prediction_stderr[:, 0, 0], rtol=1e-12)


@full
def test_readouts_are_labeled_as_in_simulations():
    task, q = wf.Task(X, RNG.normal(size=(2, 2, 1))), ("ntk", "gradient_kernel")
    theory = ask(wf.RNN(2, "linear"), task, at=[0, 7], quantities=q)
    trial = experiment(wf.RNN(2, "linear"), task, **PHYSICS, at=[0, 7], quantities=q, width=5, replicates=2, seed=0)
    assert set(theory.data.coords) == set(trial.data.coords) - {"replicate"}
    for name in theory.data.coords:
        np.testing.assert_array_equal(theory.data[name], trial.data[name])
    only = ask(wf.RNN(2, "linear"), task, quantities="preactivation")
    assert set(only.data.coords) == {"state"}


@full
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "abs"])
def test_errors_of_kinks_cover_the_truth_at_every_step(activation):
    """Few neurons cross a kink in one step: two rules may agree and both miss them."""
    names = ("loss", "prediction", "ntk")
    found, fine = (
        ask(wf.DNN(1, activation), ONE, richness=2.0, quantities=names, **more) for more in ({}, {"rtol": 1e-6})
    )
    for name in names:
        error = found.data[f"{name}_stderr"] + fine.data[f"{name}_stderr"] + 1e-12
        assert np.all(np.abs(found.data[name] - fine.data[name]) <= error), name


@full
def test_perturbation_theory_meets_a_tolerance_or_says_not(monkeypatch):
    options = {"method": "perturbative", "richness": 0.5, "paths": 64, "quantities": "prediction"}
    network = wf.DNN(2, "tanh")
    plain = ask(network, ONE, **options)
    rtol = 0.7 * plain.certificate.error
    met = ask(network, ONE, rtol=rtol, **options)
    assert met.certificate.error <= rtol and met.certificate.options["paths"] > 64
    monkeypatch.setattr(paths, "MOST_PATHS", 64)
    contracts.assert_fails_loudly(lambda throw: ask(network, ONE, rtol=rtol, throw=throw, **options), wf.Status.not_converged)  # fmt: skip


def test_schedules_of_densities():
    physics = {"richness": 1.0, "steps": 3, "nodes": 5}
    one, many = (density(wf.DNN(1, "tanh"), ONE, rate=rate, **physics) for rate in (0.1, np.full(3, 0.1)))
    np.testing.assert_array_equal(one.density, many.density)


def test_bad_input():
    with pytest.raises(ValueError, match="`momentum_time` must be at least the rate"):
        experiment(NET, TASK, **PHYSICS, momentum_time=0.05, width=5, replicates=2, seed=0)
    with pytest.raises(ValueError, match="`training` must be a widefield.Training"):
        wf.dynamics(NET, TASK, {"rate": 0.1, "steps": 7})


@pytest.mark.parametrize("task", [wf.Task(RNG.normal(size=(3, 8)), RNG.normal(size=3)), TASK])
def test_one_eigendecomposition_of_the_input_kernel(task, monkeypatch):
    """Problem data are made once, for all batches, levels of a flow and fields of a call."""
    calls, eigh = [], np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda kernel: calls.append(kernel.shape) or eigh(kernel))
    for changes in (
        {"paths": 64, "rtol": 0.9},
        {"flow": True, "paths": 64, "rtol": 0.9},
        {"method": "perturbative", "paths": 64},
    ):
        ask(wf.DNN(2, "tanh"), task, steps=2, throw=False, **changes)
        assert len(calls) == 1
        calls.clear()


def descended(task, steps, **changes):
    fields = ("prediction", "ntk", "alignment", "ntk_alignment", "feature_kernel", "gradient_kernel")
    return ask(task=task, quantities=fields, **{"steps": steps, "rate": 0.1, "at": [0, 2, 4]} | changes)


@pytest.mark.parametrize("network, method", [
    (NET, "full"), (wf.DNN(1, "tanh"), "full"), (wf.DNN(2, "tanh"), "lazy"), pytest.param(wf.RNN(2, "linear"), "full", marks=full),
])  # fmt: skip
def test_kernels_along_a_flow_are_those_of_small_steps(network, method):
    """Extrapolated to the order after the first; one-step differences would leave a hundred times as much."""
    common = {"network": network, "method": method, "rtol": 1e-5}
    flow = descended(ONE, 4, flow=True, **common)
    names = list(flow.data.data_vars)
    rows = {name: flow.data[name].values for name in names if not name.endswith("_stderr")}
    assert {"feature_kernel", "gradient_kernel", "alignment", "ntk_alignment"} <= set(rows)
    levels = []
    for k in (32, 64):
        small = descended(ONE, 4 * k, rate=0.1 / k, **common | {"at": [0, 2 * k, 4 * k]})
        thin = {
            name: small.data[name].isel(step=slice(None, None, k))
            if "step" in small.data[name].dims
            else small.data[name]
            for name in rows
        }
        levels.append({name: value.values for name, value in thin.items()})
    for name, value in rows.items():
        limit, change = 2 * levels[1][name] - levels[0][name], np.abs(levels[1][name] - levels[0][name]).max()
        np.testing.assert_allclose(value, limit, rtol=0, atol=0.05 * change + 2e-5 * np.abs(limit).max(), err_msg=name)


LAZY = {
    "tanh": (wf.DNN(2, "tanh", weight_variance=1.3, readout_variance=0.8), TASK),
    "relu, several outputs": (wf.DNN(2, "relu"), wf.Task(X, RNG.normal(size=(2, 2)))),
    "tied, two of three readouts": (wf.RNN(3, "tanh", bias_variance=0.2, readout_bias_variance=0.0),
                                    wf.Task(RNG.normal(size=(2, 3, 8)), RNG.normal(size=(2, 2, 1)), supervised=(0, 2))),
    "readout in the middle": (wf.RNN(3, "linear"), wf.Task(RNG.normal(size=(2, 3, 8)), Y, supervised=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "tanh" else full) for n in LAZY])
def test_lazy_kernels_are_those_of_little_richness(name):
    """All of them, exactly at all times, against the march of a network that hardly moves."""
    network, task = LAZY[name]
    names = ("prediction", "state_prediction", "ntk", "alignment", "ntk_alignment", "feature_kernel", "gradient_kernel")
    lazy, small = (
        ask(network, task, at=[0, 3], steps=3, quantities=names, **more)
        for more in ({"method": "lazy"}, {"richness": 1e-3, "paths": 4096, "rtol": 0.9})
    )
    for field in names:
        assert lazy.data[field].dims == small.data[field].dims
        sampled = small.data.get(f"{field}_stderr")
        error = 1e-5 * np.abs(lazy.data[field]).max() if sampled is None else 7 * sampled + 1e-4
        assert np.all(np.abs(lazy.data[field] - small.data[field]) <= error), field
    assert lazy.certificate.error < 1e-9 and f"{field}_stderr" not in lazy.data


def test_divergence_can_be_saved(tmp_path):
    partial = ask(rate=40.0, throw=False, quantities="loss")
    again = wf.load(partial.save(tmp_path / "diverged.nc"))
    assert again.certificate == partial.certificate and again.status is wf.Status.diverged
