"""`simulate.dynamics` in gradient flow: small rates, closed forms, honest errors."""

import numpy as np
import pytest

import widefield as wf
from widefield.simulate.networks import trained
from widefield.simulate.networks.trained import FLOW_RTOL

from ..calls import dynamics

RNG = np.random.default_rng(2)
X, Y = RNG.standard_normal((3, 4)), np.array([1.0, -1.0, 0.5])
TASK = wf.Task(X, Y, x_test=X[:2] + 0.4, y_test=Y[:2])
SEQUENCE = wf.Task(RNG.standard_normal((3, 2, 4)), RNG.standard_normal((3, 2, 2)), supervised=(2, 0))
RUN = {"richness": 1.2, "rate": 0.1, "steps": 4, "width": 12, "replicates": 2, "seed": 4}
CASES = {
    "deep": (wf.DNN(2, "tanh"), TASK, {}),
    "decay": (wf.DNN(2, "erf"), TASK, {"weight_decay": 0.3, "rate": [0.1, 0.05, 0.15, 0.02]}),
    "recurrent": (wf.RNN(3, "tanh"), SEQUENCE, {"rate": 0.05}),
    "momentum": (wf.DNN(2, "tanh"), TASK, {"momentum_time": 0.5}),
    "kinks": (wf.DNN(2, "relu"), TASK, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_flow_is_training_at_a_small_rate(case):
    """Every replicate against the same network at 1/400 of the rate, whose own error is 1/400 of that of descent."""
    net, task, options = CASES[case]
    options = RUN | options
    flow, coarse = (dynamics(net, task, **options, flow=flow, at=[0, 4]) for flow in (True, False))
    rates = np.repeat(np.broadcast_to(options["rate"], 4) / 400, 400)
    small = dynamics(net, task, **options | {"rate": rates, "steps": 1600}, at=[0, 1600])
    changes = flow.certificate.diagnostics["flow_change"]
    assert flow.status is wf.Status.success and flow.certificate.error == changes["prediction"] <= FLOW_RTOL == 1e-3
    jumps = {"pregradient", "gradient_kernel", "ntk", "ntk_alignment"} if case == "kinks" else set()
    for name in set(flow.data.data_vars) - jumps:
        exact, dims = small.data[name].values, small.data[name].dims
        exact = np.take(exact, np.arange(0, 1601, 400), dims.index("step")) if "step" in dims else exact
        drift = np.abs(coarse.data[name] - exact).max()
        assert np.abs(flow.data[name] - exact).max() <= changes[name] * np.abs(exact).max() + drift / 200, name
    assert np.abs(flow.prediction - coarse.prediction).max() > 5 * FLOW_RTOL, "descent must be seen to differ"
    np.testing.assert_allclose(flow.data["time"], coarse.data["time"])


def test_lazy_flow_is_the_exponential_of_the_initial_kernel():
    """f(t) = (1 − exp(−Θt)) y for centered networks of small richness."""
    options = RUN | {"richness": 1e-5, "centered": True, "width": 30, "rate": 0.2}
    flow = dynamics(wf.DNN(1, "linear"), wf.Task(X, Y), **options, flow=True)
    for r in range(2):
        values, vectors = np.linalg.eigh(flow.ntk.values[r, 0])
        decay = np.exp(-np.outer(flow.data["time"], values))
        exact = (1 - decay) * (vectors.T @ Y) @ vectors.T
        error = np.abs(flow.prediction.values[r, ..., 0] - exact).max() / np.abs(exact).max()
        assert error <= flow.certificate.error and error < 5e-4


def test_what_is_asked_for_and_what_is_told(tmp_path):
    flow = dynamics(wf.DNN(2, "tanh"), TASK, **RUN, flow=True, quantities="loss")
    assert list(flow.data.data_vars) == ["loss"] and flow.training.flow
    assert set(flow.certificate.checks) == {"lost", "error"} and flow.certificate.diagnostics["rate_divided_by"] >= 4
    np.testing.assert_array_equal(flow.loss, dynamics(wf.DNN(2, "tanh"), TASK, **RUN, flow=True).loss)
    again = wf.load(flow.save(tmp_path / "a.nc"))
    assert again.certificate == flow.certificate and again.training.flow


def test_rates_that_diverge_are_passed_over_and_those_too_large_are_told():
    net, options = wf.DNN(2, "linear"), RUN | {"rate": 2.0, "steps": 30}
    assert dynamics(net, TASK, **options, throw=False).status is wf.Status.diverged
    flow = dynamics(net, TASK, **options, flow=True, throw=False)
    assert flow.certificate.diagnostics["rate_divided_by"] > 4 and np.isfinite(flow.loss).all()
    far = dynamics(net, TASK, **options | {"rate": 1e5}, flow=True, throw=False)
    assert far.status is wf.Status.diverged and not any(np.isnan(v).any() for v in far.data.data_vars.values())


def test_an_error_above_its_limit_is_no_success(monkeypatch):
    monkeypatch.setattr(trained, "MOST_LEVELS", 3)
    options = RUN | {"rate": 0.6, "flow": True}
    with pytest.raises(wf.SolveError, match="inaccurate"):
        dynamics(wf.DNN(2, "tanh"), TASK, **options)
    rough = dynamics(wf.DNN(2, "tanh"), TASK, **options, throw=False)
    assert rough.certificate.error > FLOW_RTOL and any("small rates" in note for note in rough.notes)
