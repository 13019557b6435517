"""What `widefield.finite_width` promises, with untied and with tied weights: the list that every theory passes."""

import jax
import numpy as np
import pytest

import widefield as wf
from widefield.theories.finite_width import finite_width

from .. import contracts

X = np.random.default_rng(5).normal(size=(2, 4))
VARIANCES = {"weight_variance": 1.4, "bias_variance": 0.1, "readout_variance": 1.2}
NETWORKS = {"deep": wf.DNN(2, "relu", **VARIANCES), "tied": wf.RNN(3, "erf", **VARIANCES)}
ENGINES = pytest.mark.parametrize("engine", NETWORKS)
ON_REQUEST = {"deep": (), "tied": ("pair_vertex",)}
ALONE = ("kernel", "correction", "kernel_variance", "vertex")


def solve(engine, task=None, **options):
    return finite_width(NETWORKS[engine], wf.Task(X) if task is None else task, width=30, **options)


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


@ENGINES
def test_regression_keeps_the_contract(engine, tmp_path):
    task = wf.Task(X, np.ones(2), x_test=X[:1] + 0.3)
    solution = solve(engine, task, noise=0.1)
    contracts.assert_certified(solution, "finite_width")
    contracts.assert_arrays_are_numpy(solution)
    assert solution.certificate.options["noise"] == 0.1 and "test_prediction" in solution.data
    assert wf.load(solution.save(tmp_path / "regression.nc")).data.identical(solution.data)
