"""Training with weight decay ends where the final tangent kernel says (Eq. 98), for linear networks; relu ones slide."""

import numpy as np
import pytest

import widefield as wf
from widefield.theories.dynamics import regularised_prediction

RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(2, 4)), np.array([2.0, -1.2])
MIX = np.array([[0.5, 1.5], [-1.0, 0.3]])  # test inputs within the span of the others: their kernel is known
LAMBDA = 0.4
full = pytest.mark.full


@pytest.mark.parametrize(("depth", "rate", "make"), [
    (1, 0.1, wf.DNN), pytest.param(2, 0.025, wf.DNN, marks=full), pytest.param(2, 0.025, wf.RNN, marks=full),
])  # fmt: skip
def test_linear_networks_end_at_the_regularised_prediction(depth, rate, make):
    task = wf.Task(X, Y, x_test=MIX @ X)
    options = {
        "richness": 2.0,
        "rate": rate,
        "weight_decay": LAMBDA,
        "quantities": ("prediction", "test_prediction", "ntk"),
    }
    found = wf.dynamics(make(depth, "linear"), task, steps=400, progress=False, **options)
    K, f = found.ntk.values[-1], found.prediction.values[-1, :, 0]
    assert np.abs(f - found.prediction.values[-2, :, 0]).max() < 1e-9, "at rest"
    right = {"weight_decay": LAMBDA, "degree": depth + 1}
    np.testing.assert_allclose(f, regularised_prediction(K, Y, **right), rtol=0, atol=1e-8)
    held_out = regularised_prediction(K, Y, test_kernel=MIX @ K, **right)
    np.testing.assert_allclose(found.test_prediction.values[-1, :, 0], held_out, rtol=0, atol=1e-8)
    wrong = regularised_prediction(K, Y, weight_decay=LAMBDA, degree=depth)
    assert np.abs(wrong - f).max() > 1e-2, "the degree matters"
    assert np.abs(f).max() > 1, "not the trivial end"


@full
def test_relu_networks_slide_and_only_the_readout_is_at_rest():
    """Correlated inputs with opposite labels: neurons rest on h = 0 and chatter by O(rate). f = ΦΔ/λ, but not Eq. 98."""
    x = np.sqrt(2) * np.array([[1.0, 0.0], [0.6, 0.8]])
    readout, tangent = [], []
    for rate, steps in ((0.05, 200), (0.025, 400)):
        last = list(range(steps - 10, steps + 1))
        found = wf.dynamics(
            wf.DNN(1, "relu"), wf.Task(x, Y), richness=2.0, rate=rate, weight_decay=LAMBDA, steps=steps, at=last, rtol=1e-2,
            quantities=("prediction", "ntk", "feature_kernel"), progress=False,
        )  # fmt: skip
        f = found.prediction.values[last, :, 0]
        Phi = np.stack([found.feature_kernel.values[0, i, i] for i in range(len(last))])
        by_readout = np.einsum("tpq,tq->tp", Phi, Y - f) / LAMBDA
        by_tangent = [regularised_prediction(K, Y, weight_decay=LAMBDA, degree=2) for K in found.ntk.values[last]]
        readout.append(np.abs((by_readout - f).mean(axis=0)).max())
        tangent.append(np.abs((by_tangent - f).mean(axis=0)).max())
    assert readout[1] < 0.6 * readout[0] and readout[1] < 2e-3, "vanishes with the rate"
    assert min(tangent) > 0.03, "stays"


def test_bad_input():
    with pytest.raises(ValueError, match="`kernel` must have one row and column per label"):
        regularised_prediction(np.eye(3), Y, weight_decay=0.1, degree=2)
    with pytest.raises(ValueError, match="`degree` must be an integer of at least 1"):
        regularised_prediction(np.eye(2), Y, weight_decay=0.1, degree=0)
