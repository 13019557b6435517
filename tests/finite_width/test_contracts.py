"""What `widefield.finite_width` promises, with untied and with tied weights: the list that every theory passes."""

import jax
import numpy as np
import pytest

import widefield as wf
from widefield.theories.finite_width import couplings, criticality, finite_width, neuron_average

from .. import contracts

X = np.random.default_rng(5).normal(size=(2, 4))
VARIANCES = {"weight_variance": 1.4, "bias_variance": 0.1, "readout_variance": 1.2}
NETWORKS = {"deep": wf.DNN(2, "relu", **VARIANCES), "tied": wf.RNN(3, "erf", **VARIANCES)}
ENGINES = pytest.mark.parametrize("engine", NETWORKS)
LARGE = {"deep": "vertex", "tied": "pair_vertex"}
ON_REQUEST = {"deep": (), "tied": ("pair_vertex",)}
ALONE = ("kernel", "correction", "kernel_variance", "vertex")


def solve(engine, task=None, **options):
    return finite_width(NETWORKS[engine], wf.Task(X) if task is None else task, width=30, **options)


@ENGINES
def test_certificate_fields_and_files(engine, tmp_path):
    solution = solve(engine)
    contracts.assert_certified(solution, "finite_width")
    contracts.assert_arrays_are_numpy(solution)
    assert solution.certificate.options["width"] == 30 and solution.network == NETWORKS[engine]
    again = wf.load(solution.save(tmp_path / "solution.nc"))
    assert again.data.identical(solution.data) and again.certificate == solution.certificate


@ENGINES
def test_quantities_select(engine):
    everything = solve(engine)
    assert everything.certificate.left_out == ON_REQUEST[engine]
    for name in ALONE:
        alone = solve(engine, quantities=name)
        assert list(alone.data.data_vars) == [name]
        np.testing.assert_allclose(alone.data[name], everything.data[name], rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="`quantities` must be one of"):
        solve(engine, quantities=("kernel", "nonsense"))


@ENGINES
def test_x64_flag_has_no_say(engine):
    contracts.assert_x64_flag_has_no_say(lambda: solve(engine, quantities=("correction", "kernel_variance")))


@ENGINES
def test_memory_is_refused(engine, monkeypatch):
    many = wf.Task(np.random.default_rng(0).normal(size=(60, 3)))
    contracts.assert_memory_is_refused(
        lambda **options: solve(engine, many, **options), monkeypatch, LARGE[engine], 10**7
    )


@pytest.mark.parametrize("make", [wf.DNN, wf.RNN])
def test_fails_loudly(make):
    net = make(10, "relu", weight_variance=1e40)
    partial = contracts.assert_fails_loudly(
        lambda throw: finite_width(net, wf.Task(X), width=30, throw=throw), wf.Status.nonfinite
    )
    assert np.isnan(partial.correction).all() and partial.correction.shape == (11, 2, 2)


@ENGINES
def test_tracers_are_refused(engine):
    """The core is NumPy: the message says so, and points to the one part that can be traced."""
    call = lambda n: finite_width(NETWORKS[engine], wf.Task(X), width=n).kernel.values.sum()  # noqa: E731
    for transform, at in ((jax.jit, 30), (jax.grad, 30.0), (jax.vmap, np.array([30]))):
        with pytest.raises(ValueError, match="`width` is a JAX tracer.*NumPy.*theories.prior.core"):
            transform(call)(at)


def test_same_call_same_numbers():
    for engine in NETWORKS:
        assert solve(engine).data.identical(solve(engine).data)


@ENGINES
def test_regression_keeps_the_contract(engine, tmp_path):
    task = wf.Task(X, np.ones(2), x_test=X[:1] + 0.3)
    solution = solve(engine, task, noise=0.1)
    contracts.assert_certified(solution, "finite_width")
    contracts.assert_arrays_are_numpy(solution)
    assert solution.certificate.options["noise"] == 0.1 and "test_prediction" in solution.data
    assert wf.load(solution.save(tmp_path / "regression.nc")).data.identical(solution.data)


def test_other_calls_keep_the_contract(tmp_path):
    """Criticality, couplings and averages of a neuron: certified, NumPy, and the same from a file."""
    deep = solve("deep")
    for solution, theory in (
        (criticality(NETWORKS["deep"], layers=16), "criticality"),
        (couplings(deep), "couplings"),
        (neuron_average(deep, lambda z: z**2), "neuron_average"),
    ):
        assert all(check.met for check in solution.certificate.checks.values())
        if theory != "neuron_average":
            contracts.assert_certified(solution, theory)
        assert all(type(field.values) is np.ndarray for field in solution.data.data_vars.values())
        assert wf.load(solution.save(tmp_path / f"{theory}.nc")).data.identical(solution.data)
