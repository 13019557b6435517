"""Regressions against dense textbook formulas made from the kernels of all inputs together."""

import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

import widefield as wf
from widefield.theories.prior import predictions, solve
from widefield.theories.prior.core import device
from widefield.theories.prior.regression import MANY

RNG = np.random.default_rng(11)
X, Y, X_TEST = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 2)), RNG.normal(size=(3, 4))
EVERY = np.vstack([X, X_TEST])
NET = wf.RNN(3, "relu", weight_variance=1.5, bias_variance=0.2, readout_bias_variance=0.1)
NOISE, RTOL = 0.3, 1e-9
PREDICTIONS = ("log_evidence", "test_prediction", "ntk_prediction")


def joint(field, supervised, states, net=NET):
    """K_DD and K_*D over (state, sample), from the whole kernel of all inputs, and the labels."""
    n = len(X)
    kernel = wf.prior(net, wf.Task(EVERY, supervised=(0, 1, 2)), quantities=field).data[field].values
    flat = lambda a, b, i, j: kernel[np.ix_(a, b, i, j)].transpose(0, 2, 1, 3).reshape(len(a) * len(i), -1)  # noqa: E731
    train, test = range(n), range(n, len(EVERY))
    return flat(supervised, supervised, train, train), flat(states, supervised, test, train)


def solved(field, supervised, states, labels, noise, net=NET):
    K, rows = joint(field, supervised, states, net)
    y = labels.reshape(len(X), len(supervised), -1).transpose(1, 0, 2).reshape(-1, 2)
    return (rows @ np.linalg.solve(K + noise * np.eye(len(K)), y)).reshape(len(states), len(X_TEST), 2)


@pytest.mark.parametrize(
    "make, activation, supervised",
    [
        (wf.RNN, "relu", (2,)),
        (wf.RNN, "relu", (0, 2)),
        (wf.RNN, "tanh", (1,)),
        (wf.DNN, "relu", (1,)),
        (wf.DNN, "relu", (0, 2)),
        (wf.RNN, "relu", (2, 0, 1)),
        (wf.DNN, "relu", (1, 2, 0)),
        pytest.param(wf.DNN, "tanh", (0, 2), marks=pytest.mark.full),
    ],
)
def test_predictions_are_dense_algebra(make, activation, supervised):
    """Without the covariance of the predictions no row of a test input is stored."""
    net = make(3, activation, weight_variance=1.5, bias_variance=0.2, readout_bias_variance=0.1)
    labels = RNG.normal(size=(5, len(supervised), 2))
    task = wf.Task(X, labels, supervised, X_TEST)
    solution = wf.prior(net, task, noise=NOISE, quantities=PREDICTIONS)
    expected = solved("readout", supervised, (0, 1, 2), labels, NOISE, net)
    np.testing.assert_allclose(solution.test_prediction, expected, rtol=RTOL, atol=1e-11)
    states = (0, 1, 2) if len(supervised) > 1 else supervised
    expected = solved("ntk", supervised, states, labels, NOISE, net)
    dims = ("state", "test", "output")[len(supervised) == 1 :]
    assert solution.ntk_prediction.dims == dims
    np.testing.assert_allclose(solution.ntk_prediction, expected.reshape(solution.ntk_prediction.shape), rtol=RTOL)
    together = wf.prior(net, task, noise=NOISE)  # with all fields the rows are read from the whole kernel
    for name in PREDICTIONS:
        np.testing.assert_allclose(together.data[name], solution.data[name], rtol=RTOL, atol=1e-11, err_msg=name)


def test_sequences_enter_the_states_they_drive():
    x = RNG.normal(size=(8, 2, 4))
    task = wf.Task(x[:5], Y, (1,), x[5:])
    streamed = wf.prior(NET, task, noise=NOISE, quantities=("test_prediction", "ntk_prediction"))
    kernels = wf.prior(NET, wf.Task(x, supervised=(0, 1, 2)), quantities=("readout", "ntk"))
    for name, kernel, states in (("test_prediction", "readout", (0, 1, 2)), ("ntk_prediction", "ntk", (1,))):
        K = kernels.data[kernel].values[:, 1]
        weights = np.linalg.solve(K[1, :5, :5] + NOISE * np.eye(5), Y)
        expected = np.stack([K[a, 5:, :5] @ weights for a in states])
        found = streamed.data[name].values.reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=RTOL, atol=1e-12)


TIMES = np.array([0.0, 0.3, 2.0, np.inf])


def test_the_tangent_kernel_predicts_along_the_flow():
    """Gradient flow of ½Σ(f − y)² + ½ noise |θ − θ₀|² in the weights of a linear model with this kernel."""
    task = wf.Task(X, Y, x_test=X_TEST)
    solution = wf.prior(NET, task, noise=NOISE, time=TIMES, quantities="ntk_prediction")
    assert solution.ntk_prediction.dims == ("time", "test", "output")
    np.testing.assert_array_equal(solution.data.time, TIMES)
    K, rows = joint("ntk", (2,), (2,))
    features = np.linalg.cholesky(np.block([[K, rows.T], [rows, rows @ np.linalg.solve(K, rows.T) + np.eye(3)]]))
    train, test = features[:5], features[5:]

    def velocity(_, theta):
        theta = theta.reshape(-1, 2)
        return (-train.T @ (train @ theta - Y) - NOISE * theta).ravel()

    path = scipy.integrate.solve_ivp(velocity, (0, 2), np.zeros(16), t_eval=TIMES[:3], rtol=1e-11, atol=1e-12)
    for k in range(3):
        np.testing.assert_allclose(solution.ntk_prediction[k], test @ path.y[:, k].reshape(-1, 2), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(solution.ntk_prediction[3], solved("ntk", (2,), (2,), Y, NOISE)[0], rtol=RTOL)
    one = wf.prior(NET, task, noise=NOISE, time=0.3, quantities="ntk_prediction").ntk_prediction
    assert one.dims == ("test", "output")
    np.testing.assert_allclose(one, solution.ntk_prediction[1], rtol=1e-12)
    shifted = K + NOISE * np.eye(5)
    exact = rows @ np.linalg.solve(shifted, (np.eye(5) - scipy.linalg.expm(-0.3 * shifted)) @ Y)
    np.testing.assert_allclose(one, exact, rtol=RTOL)


def test_a_time_is_that_of_lazy_training():
    """The lazy limit of the dynamics along the flow, of another theory and solver."""
    net, task = wf.DNN(2, "erf", weight_variance=1.3), wf.Task(X, Y, x_test=X_TEST)
    lazy = wf.dynamics(
        net, task, wf.Training(rate=0.05, steps=20, flow=True), method="lazy", quantities="test_prediction"
    )
    found = wf.prior(net, task, time=0.05 * np.arange(21), quantities="ntk_prediction").ntk_prediction
    allowed = lazy.certificate.error * np.abs(found.values).max()
    np.testing.assert_allclose(found, lazy.test_prediction, rtol=0, atol=allowed)
    assert np.abs(found[20] - lazy.test_prediction[19]).max() > allowed, "another time is another prediction"


def test_short_times_do_not_ask_for_an_inverse():
    """With a duplicate input and no noise the kernel is singular; a flow of finite time is not."""
    double = wf.Task(np.vstack([X, X[:1]]), np.vstack([Y, Y[:1] + 1]), x_test=X_TEST)
    with pytest.raises(wf.SolveError, match="not positive definite"):
        wf.prior(NET, double, quantities="ntk_prediction")
    found = wf.prior(NET, double, time=0.7, quantities="ntk_prediction").ntk_prediction
    kernel = wf.prior(NET, wf.Task(np.vstack([double.x, X_TEST])), quantities="ntk").ntk.values
    integral = scipy.linalg.expm(0.7 * np.block([[-kernel[:6, :6], np.eye(6)], [np.zeros((6, 12))]]))[:6, 6:]
    np.testing.assert_allclose(found, kernel[6:, :6] @ integral @ double.y, rtol=1e-8)
    with pytest.raises(wf.SolveError, match="not positive definite"):
        wf.prior(NET, double, time=1e9, quantities="ntk_prediction")


@pytest.mark.parametrize("n_noises", [2, MANY])
def test_several_noises_are_several_calls(n_noises):
    task, noises = wf.Task(X, Y, x_test=X_TEST), np.linspace(0.1, 1.0, n_noises)
    names = (*PREDICTIONS, "test_covariance")
    every = wf.prior(NET, task, noise=noises, time=[0.5, 1.0], quantities=names)
    assert every.ntk_prediction.dims == ("noise", "time", "test", "output")
    assert every.test_covariance.dims == ("noise", "state", "state_", "test", "test_")
    np.testing.assert_array_equal(every.data.noise, noises)
    for k in (0, n_noises - 1):
        one = wf.prior(NET, task, noise=noises[k], time=[0.5, 1.0], quantities=names)
        for name in names:
            np.testing.assert_allclose(every.data[name][k], one.data[name], rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.fixture
def accelerator(monkeypatch):
    """The road of an accelerator, on this machine and with small tiles."""
    monkeypatch.setattr(device, "free_bytes", lambda: 10**9)
    monkeypatch.setattr(device, "device_tile", lambda n: 32)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_an_accelerator_gives_the_same_numbers(activation, request):
    net = wf.DNN(3, activation, weight_variance=1.5, bias_variance=0.2)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(100, 6)), rng.normal(size=(70, 3))
    task, names = wf.Task(x[:70], y, x_test=x[70:]), (*PREDICTIONS, "output", "ntk")
    options = {"noise": [0.1, 0.4], "time": [1.0, np.inf], "quantities": names}
    host = wf.prior(net, task, **options)
    request.getfixturevalue("accelerator")
    found = wf.prior(net, task, **options)
    assert found.residual < 1e-13
    for name in names:
        scale = np.abs(host.data[name].values).max()
        np.testing.assert_allclose(found.data[name], host.data[name], rtol=0, atol=1e-10 * scale, err_msg=name)
    covariance = [wf.prior(net, task, noise=0.1, quantities="test_covariance").test_covariance for _ in range(2)]
    np.testing.assert_array_equal(*covariance)


def test_an_accelerator_sees_a_singular_kernel(accelerator):
    task = wf.Task(np.vstack([X, X[:1]]), np.zeros((6, 1)))
    with pytest.raises(wf.SolveError, match="not positive definite"):
        wf.prior(NET, task, quantities="log_evidence")
    assert np.isfinite(wf.prior(NET, task, noise=0.1, quantities="log_evidence").log_evidence)


def test_what_does_not_fit_on_an_accelerator_goes_to_the_host(accelerator, monkeypatch):
    made = []
    predict = predictions.predict
    monkeypatch.setattr(solve, "predict", lambda *given: made.append(type(given[2]).__name__) or predict(*given))
    task = wf.Task(X, Y)
    for free in (10**9, 10**5):
        monkeypatch.setattr(device, "free_bytes", lambda free=free: free)
        wf.prior(NET, task, noise=0.1, quantities="log_evidence")
    assert made == ["DeviceMatrix", "HostMatrix"]


SHARED = """
import sys, numpy as np, jax, widefield as wf
assert len(jax.devices()) == 8
x = np.random.default_rng(4).normal(size=(700, 6))
task = wf.Task(x[:600], x[:600, :2], x_test=x[600:])
names = ("output", "ntk", "test_prediction", "ntk_prediction")
solution = wf.prior(wf.RNN(3, "erf", weight_variance=1.2, bias_variance=0.1), task, noise=0.1, quantities=names)
np.savez(sys.argv[1], **{name: solution.data[name].values for name in names})
"""


def test_devices_share_the_tiles(tmp_path):
    """Eight devices give what one gives."""
    flags = f"--xla_force_host_platform_device_count=8 {os.environ.get('XLA_FLAGS', '')}"
    subprocess.run(
        [sys.executable, "-c", SHARED, str(tmp_path / "8.npz")], check=True, env=os.environ | {"XLA_FLAGS": flags}
    )
    one = SHARED.replace("== 8", "== 1")
    exec(one.replace("sys.argv[1]", repr(str(tmp_path / "1.npz"))), {})
    alone, shared = (np.load(tmp_path / f"{n}.npz") for n in (1, 8))
    for name in alone:
        np.testing.assert_allclose(shared[name], alone[name], rtol=0, atol=1e-12 * np.abs(alone[name]).max())


def test_single_precision_is_refined_to_the_tolerance():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(400, 6)), rng.normal(size=(300, 2))
    net, task = wf.DNN(3, "relu", weight_variance=2.0), wf.Task(x[:300], y, x_test=x[300:])
    names = ("test_prediction", "ntk_prediction")
    for noise in (0.1, 1e-5):
        exact = wf.prior(net, task, noise=noise, quantities=names)
        single = wf.prior(net, task, noise=noise, dtype="float32", rtol=1e-5, quantities=names)
        assert single.certificate.tolerance == 1e-5 and single.certificate.diagnostics["refinements"] > 0
        for name in names:
            error = np.linalg.norm(single.data[name] - exact.data[name]) / np.linalg.norm(exact.data[name])
            assert error < 1e-4, f"{name}, noise {noise}: {error}"


@pytest.mark.parametrize("name", ["noise", "time"])
@pytest.mark.parametrize("value", [-1.0, [], [[1.0]], [1.0, -1.0], np.nan, [0.1, np.nan], "soon", [True]])
def test_noise_and_time_are_numbers_or_rows_of_them(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        wf.prior(NET, wf.Task(X, Y, x_test=X_TEST), **{name: value})


def test_single_precision_has_no_evidence_of_a_raised_factor():
    """Predictions may be refined from any factor, the evidence rests on it."""
    task = wf.Task(np.vstack([X, X[:1]]), np.zeros((6, 1)), x_test=X_TEST)
    with pytest.raises(wf.SolveError, match="not positive definite"):
        wf.prior(NET, task, noise=1e-7, dtype="float32", quantities="log_evidence")


@pytest.mark.full
def test_doubtful_pairs_are_done_by_quadrature_on_every_road(request):
    x = np.vstack([X, X[:1] + 1e-4])
    task = wf.Task(x, np.vstack([Y, Y[:1]]), x_test=np.vstack([X_TEST, X[1:2] + 1e-4]))
    net, names = wf.RNN(3, "tanh", weight_variance=400.0), ("test_prediction", "ntk_prediction")
    stored, streamed = (wf.prior(net, task, noise=0.1, quantities=q) for q in ((*names, "test_covariance"), names))
    request.getfixturevalue("accelerator")
    for solution in (streamed, wf.prior(net, task, noise=0.1, quantities=names)):
        assert any("quadrature" in note for note in solution.notes)
        for name in names:
            np.testing.assert_allclose(solution.data[name], stored.data[name], rtol=1e-9, atol=1e-10)


def test_a_kernel_that_a_rounding_moves_is_not_right():
    """Two inputs a rounding apart: the solve is backward stable, its numbers are off by percents."""
    e = 2e-7
    x, y = np.array([[1.0, 0.0], [np.cos(e), np.sin(e)]]), np.array([1.0, -1.0])
    task = wf.Task(x, y, x_test=np.array([[0.0, 1.0]]))
    with pytest.raises(wf.SolveError, match="sensitivity.*ABOVE") as missed:
        wf.prior(wf.DNN(1, "linear"), task, quantities="test_prediction")
    assert missed.value.solution.status is wf.Status.inaccurate
    assert wf.prior(wf.DNN(1, "linear"), task, noise=1e-6, quantities="test_prediction").certificate.residual < 1e-10


def test_single_precision_has_no_covariance():
    task = wf.Task(X, Y, x_test=X_TEST)
    with pytest.raises(ValueError, match="`dtype` must be 'float64' for `test_covariance`"):
        wf.prior(NET, task, noise=0.1, dtype="float32", quantities="test_covariance")
    assert "test_covariance" in wf.prior(NET, task, noise=0.1, dtype="float32").certificate.left_out


def test_a_time_that_nothing_reads_is_refused():
    with pytest.raises(ValueError, match="`time` is read by `ntk_prediction` alone"):
        wf.prior(NET, wf.Task(X, Y, x_test=X_TEST), time=3.0, quantities="test_prediction")
    with pytest.raises(ValueError, match="`noise` must be one number with `store`"):
        wf.prior(NET, wf.Task(X, Y), noise=[0.1, 0.2], store="nowhere")
