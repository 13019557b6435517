"""Whitened data in one dimension: the general march, closed forms, and a thousand samples."""

import time

import numpy as np
import pytest
import scipy.integrate

import widefield as wf
from tests import contracts
from tests.dynamics.question import predict
from widefield.theories.dynamics.methods import whitened
from widefield.theories.dynamics.problem import problem
from widefield.theories.dynamics.request import Request

RNG = np.random.default_rng(11)
P, D = 4, 6
X = 1.3 * np.linalg.qr(RNG.normal(size=(D, P)))[0].T * np.sqrt(D)  # K^x = 1.69
Y, TEST = RNG.normal(size=P), RNG.normal(size=(2, D))
TASK = wf.Task(X, Y, x_test=TEST, y_test=np.ones(2))
COMMON = {"richness": 1.3, "rate": 0.04, "steps": 7, "progress": False}
NET = wf.DNN(2, "linear")
full = pytest.mark.full


def ask(network, task=TASK, **changes):
    return predict(network, task, **COMMON | changes)


def both(network, task, monkeypatch, **changes):
    """The reduced solution and the general march."""
    short = ask(network, task, **changes)
    monkeypatch.setattr(whitened, "covers", lambda problem, request: False)
    return short, ask(network, task, **changes)


SEQUENCE = np.stack([X, -0.4 * X, np.linalg.qr(RNG.normal(size=(D, D)))[0][:P]], axis=1)[:, :2]
CASES = {
    "two layers of weights": (wf.DNN(1, "linear", readout_variance=1.2), TASK, {}),
    "three": (wf.DNN(2, "linear", weight_variance=0.8, widths=(0.5, 1.0)), TASK, {"weight_decay": 0.4}),
    "four": (wf.DNN(3, "linear", weight_variance=(0.8, 1.1)), TASK, {"momentum_time": 0.2, "initial_scale": 0.8}),
    "chosen steps": (wf.DNN(2, "linear"), TASK, {"at": [2, 7], "rate": np.linspace(0.05, 0.02, 7)}),
    "tied": (wf.RNN(2, "linear", weight_variance=1.2), wf.Task(X, Y[:, None]), {}),
    "tied, two inputs": (wf.RNN(3, "linear"), wf.Task(SEQUENCE, Y), {}),
    "tied, a silent state": (wf.RNN(2, "linear"), wf.Task(np.stack([0 * X, X], axis=1), Y), {}),
    "flow": (wf.DNN(2, "linear"), TASK, {"flow": True}),
}
LONG = ("two layers of weights", "three", "four", "tied", "tied, two inputs", "tied, a silent state", "flow")


@pytest.mark.parametrize("name", [pytest.param(name, marks=full) if name in LONG else name for name in CASES])
def test_it_is_the_general_march(name, monkeypatch):
    network, task, changes = CASES[name]
    short, general = both(network, task, monkeypatch, **changes)
    assert (
        short.certificate.diagnostics["solver"] == "whitened"
        and general.certificate.diagnostics["solver"] == "coordinates"
    )
    assert set(short.data) == set(general.data) and {"ntk", "test_prediction"} & set(short.data)
    for field in set(short.data) - {"preactivation", "pregradient"}:
        assert short.data[field].dims == general.data[field].dims
        size = np.abs(general.data[field]).max()
        nonlinear = "flow" in changes and "alignment" in field  # of what is extrapolated: to within its error
        atol = (1e-6 if nonlinear else 1e-12) * size
        np.testing.assert_allclose(short.data[field], general.data[field], rtol=0, atol=atol, err_msg=field)


def test_samples_have_the_kernels_as_covariance():
    """Of h between samples, and of z; ⟨hz⟩ = γ0 f in the last layer."""
    found = ask(wf.DNN(2, "linear"))
    n = found.preactivation.sizes["path"]
    for name, kernel in (("preactivation", "feature_kernel"), ("pregradient", "gradient_kernel")):
        for layer in range(2):
            value = found.data[name][layer].values
            right = found.data[kernel][layer, -1, -1].values
            spread = np.sqrt((np.outer(np.diag(right), np.diag(right)) + right**2) / n)
            assert np.all(np.abs(value.T @ value / n - right) < 5 * spread)
    h, z = found.preactivation[-1].values, found.pregradient[-1].values
    product = h * z
    error = product.std(axis=0, ddof=1) / np.sqrt(n)
    assert np.all(np.abs(product.mean(axis=0) - 1.3 * found.prediction[-1, :, 0].values) < 5 * error)


@full
def test_two_layers_have_closed_forms():
    """Eqs. 78–79 and H(∞) at forty samples."""
    n, gamma, rate, steps = 40, 1.5, 0.02, 150
    y = RNG.normal(size=n) / 4
    size = np.linalg.norm(y)
    options = {"richness": gamma, "rate": rate, "steps": steps, "progress": False}
    flow = predict(wf.DNN(1, "linear"), wf.Task(np.sqrt(n) * np.eye(n), y), flow=True, **options)
    f = flow.prediction.values[..., 0]
    along = f @ y / size
    np.testing.assert_allclose(f, np.outer(along, y / size), rtol=0, atol=1e-14)
    rhs = lambda t, e: -2 * np.sqrt(1 + gamma**2 * (size - e) ** 2) * e  # noqa: E731
    exact = scipy.integrate.solve_ivp(rhs, (0, 1.1 * rate * steps), [size], dense_output=True, rtol=1e-11, atol=1e-13)
    error = 2 * flow.certificate.error * size
    np.testing.assert_allclose(size - along, exact.sol(flow.time.values)[0], rtol=0, atol=error)
    assert error < 1e-4
    root = np.sqrt(1 + gamma**2 * size**2)
    early = slice(1, 60)
    ratio = (1 + gamma**2 * size * along) / (root * np.sqrt(1 + gamma**2 * along**2))
    times = (np.arctanh(ratio) - np.arctanh(1 / root))[early] / (2 * root)
    speed = 2 * np.sqrt(1 + gamma**2 * along[early] ** 2) * (size - along[early])
    assert np.all(np.abs(times - flow.time.values[early]) < error / speed)
    H = np.eye(n) + (root - 1) * np.outer(y, y) / size**2
    np.testing.assert_allclose(flow.ntk[-1], H + root * np.eye(n), rtol=0, atol=1e-4)


@full
@pytest.mark.parametrize("depth", [2, 3])
def test_deep_networks_obey_the_scalar_equations(depth):
    """Eqs. 82–83 as time × time matrices, as corrected (D has B of its own layer), swept until they hold."""
    n, gamma, rate, T = 5, 1.2, 0.05, 12
    y = RNG.normal(size=n)
    size = np.linalg.norm(y)
    found = predict(
        wf.DNN(depth, "linear"),
        wf.Task(np.sqrt(n) * np.eye(n), y),
        richness=gamma,
        rate=rate,
        steps=T - 1,
        progress=False,
    )
    past = np.tril(np.ones((T, T)), -1) * rate
    one = np.ones((T, T))
    H, G = [one] * (depth + 1), [one] * (depth + 2)
    A, B = [np.zeros((T, T))] * (depth + 1), [np.zeros((T, T))] * (depth + 1)
    delta = np.full(T, size)
    for _ in range(400):
        for l in range(1, depth + 1):
            C, E = A[l - 1] + past * H[l - 1] * delta, B[l] + past * G[l + 1] * delta
            left, right = np.linalg.inv(np.eye(T) - gamma**2 * C @ E), np.linalg.inv(np.eye(T) - gamma**2 * E @ C)
            H[l] = left @ (H[l - 1] + gamma**2 * C @ G[l + 1] @ C.T) @ left.T
            G[l] = right @ (G[l + 1] + gamma**2 * E @ H[l - 1] @ E.T) @ right.T
            A[l], B[l - 1] = left @ C, right @ E
        new = size - (past * H[depth]) @ delta - A[depth].sum(axis=1)
        change, delta = np.abs(new - delta).max(), 0.5 * (delta + new)
    assert change < 1e-12
    np.testing.assert_allclose(y @ found.prediction.values[..., 0].T / size, size - delta, rtol=0, atol=1e-10)


def test_a_thousand_samples_cost_what_eight_do():
    def seconds(n):
        task = wf.Task(np.sqrt(n) * np.eye(n), RNG.normal(size=n) / np.sqrt(n), x_test=RNG.normal(size=(2, n)))
        start = time.process_time()
        found = predict(wf.DNN(2, "linear"), task, quantities=("loss", "prediction", "ntk"), **COMMON)
        return time.process_time() - start, found

    seconds(8)  # compiles
    (few, _), (many, found) = seconds(8), seconds(1000)
    assert many < 5 * few + 2 and found.prediction.shape == (8, 1000, 1)
    assert found.loss[-1] < found.loss[0]


def test_where_it_does_not_apply():
    def taken(network=NET, task=TASK, method="full", fields=("loss",), **training):
        return whitened.covers(problem(network, task, wf.Training(0.1, 2, **training)), Request(method, fields, ()))

    assert taken() and taken(wf.RNN(2, "linear"))
    assert not taken(task=wf.Task(X + 1e-6 * RNG.normal(size=X.shape), Y))
    assert not taken(wf.DNN(2, "linear", bias_variance=0.1, readout_bias_variance=0.0))
    assert not taken(wf.DNN(2, "tanh"))
    assert not taken(task=wf.Task(X, np.sign(Y)), loss="logistic")
    assert not taken(task=wf.Task(X, RNG.normal(size=(P, 2))))
    assert not taken(task=wf.Task(X, 0 * Y))
    assert not taken(method="independent") and not taken(temperature=0.1)
    assert not taken(fields=("loss", "forward_response"))


def test_divergence_is_a_status_with_its_step():
    partial = contracts.assert_fails_loudly(
        lambda throw: ask(wf.DNN(2, "linear"), rate=20.0, throw=throw), wf.Status.diverged
    )
    step = partial.certificate.diagnostics["diverged_at_step"]
    assert np.isinf(partial.loss[step:]).all() and np.isfinite(partial.loss[:step]).all()
    assert not any(np.isnan(field).any() for field in partial.data.values())
