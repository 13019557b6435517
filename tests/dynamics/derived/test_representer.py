"""Training with weight decay ends where the final tangent kernel says (Eq. 98), for linear networks; relu ones slide."""

import numpy as np
import pytest

import widefield as wf
from tests.dynamics.question import predict

RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(2, 4)), np.array([2.0, -1.2])
MIX = np.array([[0.5, 1.5], [-1.0, 0.3]])  # test inputs within the span of the others: their kernel is known
LAMBDA = 0.4
full = pytest.mark.full


@pytest.mark.parametrize(("depth", "rate", "make"), [
    (1, 0.1, wf.DNN), pytest.param(2, 0.025, wf.DNN, marks=full), pytest.param(2, 0.025, wf.RNN, marks=full),
])  # fmt: skip
def test_linear_networks_end_at_the_regularized_prediction(depth, rate, make):
    task = wf.Task(X, Y, x_test=MIX @ X)
    options = {
        "richness": 2.0,
        "rate": rate,
        "weight_decay": LAMBDA,
        "quantities": ("prediction", "test_prediction", "ntk"),
    }
    found = predict(make(depth, "linear"), task, steps=400, progress=False, **options)
    K, f = found.ntk.values[-1], found.prediction.values[-1, :, 0]
    assert np.abs(f - found.prediction.values[-2, :, 0]).max() < 1e-9, "at rest"
    end = wf.regularized_prediction(found, test_kernel=MIX @ K)
    np.testing.assert_allclose(f, end.prediction[:, 0], rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.test_prediction.values[-1, :, 0], end.test_prediction[:, 0], rtol=0, atol=1e-8)
    assert end.status is wf.Status.success and end.certificate.error < 1e-8 and end.residual < 1e-12
    with pytest.raises(wf.SolveError, match="inaccurate"):
        wf.regularized_prediction(found, degree=depth)
    wrong = wf.regularized_prediction(found, degree=depth, throw=False)
    assert np.abs(wrong.prediction[:, 0] - f).max() > 1e-2, "the degree matters"
    with pytest.raises(wf.SolveError, match="inaccurate"):
        wf.regularized_prediction(found, step=3)  # not at rest
    assert np.abs(f).max() > 1, "not the trivial end"


@full
def test_relu_networks_slide_and_only_the_readout_is_at_rest():
    """Correlated inputs with opposite labels: neurons rest on h = 0 and chatter by O(rate). f = ΦΔ/λ, but not Eq. 98."""
    x = np.sqrt(2) * np.array([[1.0, 0.0], [0.6, 0.8]])
    readout, tangent = [], []
    for rate, steps in ((0.05, 200), (0.025, 400)):
        last = list(range(steps - 10, steps + 1))
        found = predict(
            wf.DNN(1, "relu"), wf.Task(x, Y), richness=2.0, rate=rate, weight_decay=LAMBDA, steps=steps, at=last, rtol=1e-2,
            quantities=("prediction", "ntk", "feature_kernel"), progress=False,
        )  # fmt: skip
        f = found.prediction.values[last, :, 0]
        Phi = np.stack([found.feature_kernel.values[0, i, i] for i in range(len(last))])
        by_readout = np.einsum("tpq,tq->tp", Phi, Y - f) / LAMBDA
        ends = [wf.regularized_prediction(found, step=step, throw=False) for step in last]
        by_tangent = [end.prediction.values[:, 0] for end in ends]
        readout.append(np.abs((by_readout - f).mean(axis=0)).max())
        tangent.append(np.abs((by_tangent - f).mean(axis=0)).max())
    assert readout[1] < 0.6 * readout[0] and readout[1] < 2e-3, "vanishes with the rate"
    assert min(tangent) > 0.03, "stays"


def test_several_outputs():
    """The tangent kernel over samples and outputs together."""
    y = np.array([[2.0, 2.0], [-1.2, 1.5]])
    options = {
        "richness": 2.0,
        "rate": 0.1,
        "weight_decay": LAMBDA,
        "quantities": ("prediction", "ntk"),
        "progress": False,
    }
    found = predict(wf.DNN(1, "linear"), wf.Task(X, y), steps=400, **options)
    assert np.abs(found.ntk.values[-1, :, :, 0, 1]).max() > 0.1, "outputs are not independent"
    assert wf.regularized_prediction(found).certificate.error < 1e-7


def test_bad_input():
    options = {
        "richness": 1.0,
        "rate": 0.1,
        "steps": 2,
        "weight_decay": LAMBDA,
        "quantities": ("prediction", "ntk"),
        "progress": False,
    }
    found = predict(wf.DNN(1, "linear"), wf.Task(X, Y), **options)
    for changes, message in (
        ({"degree": 0}, "`degree` must be an integer of at least 1"),
        ({"test_kernel": np.ones((3, 4))}, "`test_kernel` must have 2 columns"),
        ({"step": 3}, "`step` must be one between 0 and 2"),
        ({"step": True}, "`step` must be one between 0 and 2"),
        ({"degree": 1.5}, "`degree` must be an integer"),
        ({"test_kernel": "a"}, "`test_kernel` must"),
        ({"rtol": "a"}, "`rtol` must"),
        ({"throw": "no"}, "`throw` must be True or False"),
    ):
        with pytest.raises(ValueError, match=message):
            wf.regularized_prediction(found, **changes)
    without = predict(wf.DNN(1, "linear"), wf.Task(X, Y), **options | {"quantities": "loss"})
    with pytest.raises(ValueError, match="`solution` must have the fields"):
        wf.regularized_prediction(without)
    with pytest.raises(ValueError, match="`solution` must be one of widefield.dynamics"):
        wf.regularized_prediction(np.eye(2))
    tanh = predict(wf.DNN(1, "tanh"), wf.Task(X, Y), **options)
    with pytest.raises(ValueError, match="`degree` must be given"):
        wf.regularized_prediction(tanh)
    twins = predict(wf.DNN(1, "linear"), wf.Task(X[[0, 0]], [1.0, 1.0]), **options | {"weight_decay": 0.0})
    with pytest.raises(ValueError, match="`solution` must have an invertible ntk"):
        wf.regularized_prediction(twins)
