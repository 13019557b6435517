"""`simulate.proportional` in gradient flow."""

import numpy as np
import pytest

import widefield as wf
from widefield.simulate.networks.streams import HIDDEN, READOUT, streams

from ..calls import proportional

RUN = {"dimension": 10, "width_ratio": 1.2, "richness": 0.8, "rate": 0.1, "steps": 5, "replicates": 2, "seed": 4}
NAMES = ("train_loss", "test_loss", "feature_correlation")
CASES = {
    "descent": (wf.DNN(2, "linear"), {"data_ratio": 0.8, "label_noise": 0.2}),
    "population": (wf.ResNet(3, "linear", 0.6), {"centered": True, "paired": False}),
    "channels": (wf.DNN(2, "linear"), {"data_ratio": 1.5, "target_overlap": np.diag([1.0, 0.5])}),
}


@pytest.mark.parametrize("case", CASES)
def test_flow_is_training_at_a_small_rate(case):
    """Every replicate against the same network at 1/100 of the rate, whose own error is 1/100 of that of descent."""
    net, options = CASES[case]
    options = RUN | options | {"quantities": NAMES}
    flow, coarse = (proportional(net, **options, flow=flow) for flow in (True, False))
    small = proportional(net, **options | {"rate": 0.1 / 100, "steps": 500})
    changes = flow.certificate.diagnostics["flow_change"]
    assert flow.status is wf.Status.success and flow.certificate.error == changes["test_loss"] <= 1e-3
    rows = np.arange(0, 501, 100)
    for name in NAMES:
        exact = small.data[name].values
        exact = exact[:, :, rows][:, :, :, rows] if "correlation" in name else exact[:, rows]
        drift = np.abs(coarse.data[name] - exact).max()
        assert np.abs(flow.data[name] - exact).max() <= changes[name] * np.abs(exact).max() + drift / 50
    assert np.abs(flow.test_loss - coarse.test_loss).max() > 5e-3, "descent must be seen to differ"


def test_one_layer_at_small_richness_is_an_exponential():
    """v(t) = exp(−Θt) w*, Θ = (W0ᵀW0 + |a|²)/N, at one hidden layer."""
    flow = proportional(wf.DNN(1, "linear"), **RUN | {"richness": 1e-5, "centered": True, "replicates": 1}, flow=True)
    drawn = ((HIDDEN, (12, 10)), (READOUT, (1, 12)))
    weights, readout = (streams(4, [0], purpose)[0].standard_normal(shape) for purpose, shape in drawn)
    values, vectors = np.linalg.eigh((weights.T @ weights + np.sum(readout**2) * np.eye(10)) / 12)
    exact = np.sum((np.exp(-np.outer(flow.data["time"], values)) * vectors[0]) ** 2, axis=1)
    assert np.abs(flow.test_loss.values[0] - exact).max() <= flow.certificate.error * exact.max() < 1e-3
