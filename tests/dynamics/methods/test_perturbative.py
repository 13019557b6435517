"""Kernels to leading order in the squared richness: corrected closed forms, and errors that fall as its fourth power."""

import numpy as np
import pytest

import widefield as wf
from tests.dynamics.question import predict
from tests.dynamics.test_oracles import DEEP, EVERYWHERE, TIED, D, P, X, Y, ask
from widefield.theories.dynamics.methods import perturbative

NAMES = ("prediction", "ntk", "feature_kernel", "gradient_kernel", "alignment", "ntk_alignment")
KERNELS = NAMES[2:4]
full = pytest.mark.full


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=full)])
def test_linear_kernels_have_closed_forms(depth):
    """H^{l,2} and G^{l,2} with C^l = l C0 and D^l = (L+1−l) D0, at equal and at unequal times."""
    gamma, T, L = 0.7, 8, depth
    found = ask(wf.DNN(L, "linear"), DEEP, richness=gamma, method="perturbative", throw=False)
    delta = Y - ask(wf.DNN(L, "linear"), DEEP, method="lazy").prediction.values[..., 0]
    later = np.arange(T)[:, None] > np.arange(T)[None, :]
    H0, one = np.kron(np.ones((T, T)), X @ X.T / D), np.ones((T * P, T * P))
    D0 = 0.1 * np.repeat(np.repeat(later, P, 0), P, 1) * delta.reshape(-1)
    C0 = D0 * H0
    both = lambda a: a + a.T  # noqa: E731
    for l in range(1, L + 1):
        H2 = sum(k * (L + 1 - k) * both(C0 @ D0 @ H0) + k**2 * C0 @ one @ C0.T for k in range(1, l + 1))
        G2 = sum(k * (L + 1 - k) * both(D0 @ C0 @ one) + (L + 1 - k) ** 2 * D0 @ H0 @ D0.T for k in range(l, L + 1))
        for name, right in (("feature_kernel", H0 + gamma**2 * H2), ("gradient_kernel", one + gamma**2 * G2)):
            kernel = found.data[name].sel(layer=l).values.transpose(0, 2, 1, 3).reshape(T * P, T * P)
            np.testing.assert_allclose(kernel, right, rtol=0, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=full)])
def test_the_closed_form_is_what_small_richness_shows(depth, monkeypatch):
    """Variances, a schedule and held-out inputs; the march is good to 1e-9, a second derivative leaves 1e-6 of that."""
    network = wf.DNN(depth, "linear", weight_variance=1.4, input_variance=0.8, readout_variance=1.3)
    task = wf.Task(X, Y, x_test=X[:2] + 0.3, y_test=[0.1, -0.2])
    options = {
        "richness": 0.5,
        "rate": np.linspace(0.12, 0.04, 7),
        "steps": 7,
        "method": "perturbative",
        "throw": False,
    }
    closed = ask(network, task, **options)
    assert closed.certificate.diagnostics["solver"] == "closed form"
    monkeypatch.setattr(perturbative, "has_closed_form", lambda problem: False)
    measured = ask(network, task, **options)
    assert set(closed.data) == set(measured.data) and closed.data.sizes == measured.data.sizes
    for name in closed.data.data_vars:
        scale = np.abs(measured.data[name]).max()
        np.testing.assert_allclose(closed.data[name], measured.data[name], rtol=0, atol=3e-6 * scale, err_msg=name)


def errors(network, task, gamma, names, **options):
    """Largest errors of the leading order and of order zero against the full theory, one of each per field."""
    small = ask(network, task, richness=1e-3, quantities=names, **options)
    exact, leading = (
        ask(network, task, richness=gamma, quantities=names, method=method, throw=method == "full", **options)
        for method in ("full", "perturbative")
    )
    gap = lambda other: np.array([np.abs(other.data[n] - exact.data[n]).max() for n in names])  # noqa: E731
    return gap(leading), gap(small)


@pytest.mark.parametrize(("network", "task"), [(wf.DNN(2, "linear"), DEEP), pytest.param(TIED, EVERYWHERE, marks=full)])
def test_errors_fall_as_the_fourth_power(network, task):
    (far, plain_far), (near, plain_near) = (errors(network, task, gamma, NAMES) for gamma in (0.1, 0.05))
    assert np.all((far / near > 14) & (far / near < 18)), "an error of order γ0⁴"
    assert np.all((plain_far / plain_near > 3.6) & (plain_far / plain_near < 4.4)), "of order γ0²"
    assert np.all(near < 0.05 * plain_near)


@full
def test_nonlinear_kernels_at_leading_order():
    """An error of order γ0⁴, with its next order at the larger richness and some sampling error at the smaller one."""
    network, options = wf.DNN(2, "tanh"), {"paths": 4096, "at": [3, 7]}
    (far, _), (near, plain) = (errors(network, DEEP, gamma, KERNELS, **options) for gamma in (0.8, 0.4))
    assert np.all((far / near > 8) & (far / near < 24)), "faster than γ0³"
    assert np.all(near < 0.2 * plain)
    solution = ask(network, DEEP, richness=0.4, method="perturbative", quantities=KERNELS, **options)
    assert all(np.all(solution.data[f"{name}_stderr"].values > 0) for name in KERNELS)


def test_what_has_no_leading_order():
    for name in ("preactivation", "pregradient", "forward_response"):
        with pytest.raises(ValueError, match="`quantities` must be one of"):
            ask(wf.DNN(2, "linear"), DEEP, method="perturbative", quantities=name)


@pytest.mark.parametrize("network", [wf.DNN(2, "linear"), wf.RNN(2, "linear")])
def test_an_expansion_beyond_its_reach_is_inaccurate(network):
    """Closed and measured; the correction grows as the squared richness."""
    common = {"method": "perturbative", "quantities": ("prediction", "ntk"), "throw": False}
    small, large = (ask(network, DEEP, richness=gamma, **common) for gamma in (0.1, 3.0))
    assert small.status is wf.Status.success and large.status is wf.Status.inaccurate
    ratio = large.certificate.checks["expansion"].value / small.certificate.checks["expansion"].value
    np.testing.assert_allclose(ratio, 900, rtol=1e-6)


@pytest.mark.parametrize("activation", ["linear", "tanh"])
def test_the_loss_is_that_of_the_outputs(activation):
    """Expanded like the outputs, it would fall below zero where these overshoot the labels."""
    labels = np.array([1.0, -1.0])
    options = {
        "rate": 0.4,
        "steps": 12,
        "richness": 0.5,
        "method": "perturbative",
        "quantities": ("loss", "prediction"),
    }
    task = wf.Task(np.array([[1.0, 0.2, 0.0], [0.1, -1.0, 0.3]]), labels)
    found = predict(wf.DNN(2, activation), task, **options, paths=256, throw=False)
    own = 0.5 * np.sum((found.prediction.values[..., 0] - labels) ** 2, axis=1)
    np.testing.assert_allclose(found.loss, own, rtol=1e-12)
    assert np.all(found.loss.values >= 0)
