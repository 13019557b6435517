"""Two layers by quadrature: against the exact linear march, brute force, sampled paths and trained networks."""

import jax
import numpy as np
import pytest
import scipy.integrate

import widefield as wf
from tests import contracts
from tests.dynamics.question import experiment, predict
from tests.simulate.students import agrees
from widefield.theories.dynamics.methods import nodes, two_layers
from widefield.theories.dynamics.problem import problem
from widefield.theories.dynamics.request import Request

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(2, 4)), np.array([1.0, -0.6])
ONE, TWO = wf.Task(X[:1], Y[:1]), wf.Task(X, Y)
COMMON = {"richness": 1.5, "rate": 0.15, "steps": 8}
FIELDS = ("loss", "prediction", "ntk", "feature_kernel", "gradient_kernel", "alignment", "ntk_alignment")
full = pytest.mark.full


def ask(network, task=ONE, **changes):
    return predict(network, task, **COMMON | {"progress": False} | changes)


def solver(solution):
    return solution.certificate.diagnostics["solver"]


def quadrature(network, task, rtol=1e-7, **changes):
    """The method itself on a linear network, which `widefield.dynamics` would march exactly."""
    request = Request("full", FIELDS[2:5], (3, 8), rtol=rtol, progress=False)
    with jax.enable_x64(True):
        return two_layers.solve(problem(network, task, wf.Training(**COMMON | changes)), request)


BIAS = {"bias_variance": 0.4, "readout_bias_variance": 0.0}
LOGISTIC = wf.Task(X[:1], [1.0])
PROTOCOLS = {  # those that share a compilation stand together; the others are long
    "plain": ({}, ONE, {}),
    "weight decay": ({"readout_variance": 1.4}, ONE, {"weight_decay": 0.5}),
    "momentum": ({"input_variance": 0.8}, ONE, {"momentum_time": 0.4, "weight_decay": 0.2}),
    "schedule, initial scale": ({}, ONE, {"rate": np.linspace(0.2, 0.1, 8), "initial_scale": (0.7, 1.2)}),
    "logistic": ({}, LOGISTIC, {"loss": "logistic"}),
    "two inputs": ({}, TWO, {}),
    "two inputs, bias": (BIAS, wf.Task(X[:1], Y[:1], x_test=2 * X[:1]), {}),
    "two outputs, held-out input": ({}, wf.Task(X[:1], [[1.0, -0.5]], x_test=2 * X[:1]), {}),
}
LONG = ("logistic", "two inputs", "two inputs, bias", "two outputs, held-out input")


def cases(names):
    return [pytest.param(name, marks=full) if name in LONG else name for name in names]


@pytest.mark.parametrize("rule", ["product", pytest.param("sphere", marks=full)])
@pytest.mark.parametrize("name", cases(PROTOCOLS))
def test_linear_networks_are_those_of_the_exact_march(name, rule, monkeypatch):
    if rule == "sphere":
        monkeypatch.setattr(two_layers, "HOMOGENEOUS", (*nodes.HOMOGENEOUS, "linear"))
    variances, task, changes = PROTOCOLS[name]
    network, n = wf.DNN(1, "linear", **variances), task.n_samples
    exact = ask(network, task, at=[3, 8], **changes)
    found = quadrature(network, task, **changes)
    G = found.kernels["gradient_kernel"].value[:, :, 0, 0]  # (channel, channel_, at, at_, sample, sample_)
    pairs = [
        (found.prediction.value[:, 0, :n], exact.prediction), (found.loss.value, exact.loss),
        (found.kernels["ntk"].value.transpose(0, 3, 4, 1, 2).reshape(exact.ntk.shape), exact.ntk),
        (found.kernels["feature_kernel"].value[0], exact.feature_kernel),
        (G.transpose(2, 3, 4, 5, 0, 1).reshape(exact.gradient_kernel.shape), exact.gradient_kernel),
    ]  # fmt: skip
    if task.n_test:
        pairs.append((found.prediction.value[:, 0, n:], exact.test_prediction))
    for value, right in pairs:
        np.testing.assert_allclose(value, right, rtol=0, atol=1e-7)


def brute_force(phi, slope, kernel, label, n=1200, reach=8.0):
    """One input: every neuron of a fine grid of (u, V), by the update written out; f (step,), and Φ, G at the end.

    No neuron starts on the kink: an even number of nodes.
    """
    axis = np.linspace(-reach, reach, n)
    weight = np.exp(-(axis**2) / 2)
    weight = np.multiply.outer(weight, weight) / weight.sum() ** 2
    gamma, rate, root = COMMON["richness"], COMMON["rate"], np.sqrt(kernel)
    a, V = np.meshgrid(axis, axis, indexing="ij")
    curve = []
    for _ in range(COMMON["steps"] + 1):
        h = root * a
        f = np.sum(weight * V * phi(h)) / gamma
        curve.append(f)
        kernels = np.sum(weight * phi(h) ** 2), np.sum(weight * (V * slope(h)) ** 2)
        push = rate * gamma * (label - f)
        a, V = a + push * root * V * slope(h), V + push * phi(h)
    return np.array(curve), *kernels


FUNCTIONS = {
    "tanh": (np.tanh, lambda h: 1 / np.cosh(h) ** 2, 1e-9),
    "relu": (
        lambda h: np.maximum(h, 0),
        lambda h: np.where(h == 0, 0.5, h > 0),
        1e-4,
    ),  # of the grid: its spacing squared
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nonlinear_networks_by_brute_force(name):
    """The error that is reported covers the true one, and is small."""
    phi, slope, grid = FUNCTIONS[name]
    f, Phi, G = brute_force(phi, slope, float(X[0] @ X[0] / 4), Y[0])
    found = ask(wf.DNN(1, name))
    assert solver(found) == "quadrature" and found.certificate.seed is None and found.certificate.error < 1e-4
    for value, error, right in (
        (found.prediction[:, 0, 0], found.prediction_stderr[:, 0, 0], f),
        (found.feature_kernel[0, -1, -1, 0, 0], found.feature_kernel_stderr[0, -1, -1, 0, 0], Phi),
        (found.gradient_kernel[0, -1, -1, 0, 0], found.gradient_kernel_stderr[0, -1, -1, 0, 0], G),
    ):
        assert np.all(np.abs(value - right) <= error + grid)
    better = ask(wf.DNN(1, name), quantities="prediction", rtol=1e-6)
    assert better.certificate.error <= 1e-6
    assert np.all(np.abs(better.prediction[:, 0, 0] - f) <= 1e-6 + grid)


@full
@pytest.mark.parametrize("name", ["tanh", "relu", "abs", "erf"])
@pytest.mark.parametrize("task", [TWO, wf.Task(X[:1], [[1.0, -0.5]])])
def test_sampled_paths_find_the_same(name, task):
    network = wf.DNN(1, name)
    found, sampled = ask(network, task), ask(network, task, paths=4096)
    assert (solver(found), solver(sampled)) == ("quadrature", "paths")
    for field in FIELDS:
        error = np.hypot(sampled.data[f"{field}_stderr"], found.data[f"{field}_stderr"]).values
        z = (found.data[field] - sampled.data[field]).values / np.maximum(error, 1e-9)
        assert np.sqrt(np.mean(z**2)) < 2.5, field  # 8 batches, plus a bias of order 1/paths
        assert np.all(found.data[f"{field}_stderr"] < 0.02 * np.abs(found.data[field]).max())  # slopes of abs jump by 2
    for field in ("preactivation", "pregradient"):
        assert found.data[field].shape == (1, 8192, *sampled.data[field].shape[2:])
        np.testing.assert_allclose(
            (found.data[field] ** 2).mean("path"), (sampled.data[field] ** 2).mean("path"), rtol=0.1
        )


@full
@pytest.mark.parametrize("decay", [0.3, 0.0])
def test_flow_of_linear_networks_solves_its_equations(decay):
    """Eqs. 74, with H(0) = K^x and decay, by a general integrator."""
    gamma, K, y, steps, rate = 1.5, float(X[0] @ X[0] / 4), Y[0], 8, 0.15

    def rhs(_, now):
        f, H, G = now
        both = 2 * gamma**2 * (y - f) * f
        return (H + G * K) * (y - f) - 2 * decay * f, K * both - 2 * decay * H, both - 2 * decay * G

    times = rate * np.arange(steps + 1)
    right = scipy.integrate.solve_ivp(rhs, (0, times[-1]), (0, K, 1), t_eval=times, rtol=1e-11, atol=1e-13).y[0]
    linear = quadrature(wf.DNN(1, "linear"), ONE, flow=True, rtol=1e-5, weight_decay=decay)
    np.testing.assert_allclose(linear.prediction.value[:, 0, 0, 0], right, rtol=0, atol=1e-5)


@full
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_flow_is_the_limit_of_small_steps(name):
    """Descent in steps 32 and 64 times smaller, extrapolated; what is left of that is of second order."""
    flow = ask(wf.DNN(1, name), flow=True, quantities="prediction")
    options = {"quantities": "prediction", "rtol": 1e-5}
    fine, coarse = (
        ask(wf.DNN(1, name), rate=0.15 / k, steps=8 * k, **options).prediction.values[::k, 0, 0] for k in (64, 32)
    )
    error = flow.prediction_stderr[:, 0, 0] + 0.1 * np.abs(fine - coarse) + 2e-5
    assert solver(flow) == "quadrature" and flow.certificate.error < 1e-3
    assert np.all(np.abs(flow.prediction[:, 0, 0] - (2 * fine - coarse)) <= error)


def test_where_it_is_chosen():
    light = {"quantities": "loss", "paths": None}
    assert solver(ask(wf.DNN(1, "relu"), **light)) == "quadrature"
    assert solver(ask(wf.DNN(1, "relu"), paths=256, quantities="loss")) == "paths"


@full
@pytest.mark.parametrize("changes", [{"temperature": 0.1}, {"method": "independent"}, {"task": "three inputs"}])
def test_where_paths_are_sampled(changes):
    three = wf.Task(RNG.normal(size=(3, 4)), RNG.normal(size=3))
    task = three if changes.pop("task", None) else ONE
    assert solver(ask(wf.DNN(1, "relu"), task, quantities="loss", **changes)) == "paths"


def test_divergence_is_a_status_with_its_step():
    call = lambda throw: ask(wf.DNN(1, "abs"), rate=4.0, quantities="loss", throw=throw)  # noqa: E731
    partial = contracts.assert_fails_loudly(call, wf.Status.diverged)
    step = partial.certificate.diagnostics["diverged_at_step"]
    assert 0 < step <= 8 and np.isinf(partial.loss[step:]).all() and np.isfinite(partial.loss[:step]).all()


def test_heavy_tails_are_not_trusted():
    """Quadratic neurons grow without bound within some steps: rules do not converge and are not reported as if."""
    found = ask(wf.DNN(1, "quadratic"), quantities="loss", rtol=1e-3, throw=False, rate=0.5)
    assert found.status is not wf.Status.success


def flat(data, lead):
    """Outputs and kernels of one solution in a row; ``lead`` dims stay in front."""
    found = [data[name].transpose(*lead, ...).values for name in ("prediction", "test_prediction", "feature_kernel")]
    return np.concatenate([value.reshape(*value.shape[: len(lead)], -1) for value in found], axis=-1)


@full
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_trained_networks_agree(name):
    network, task = wf.DNN(1, name), wf.Task(X, Y, x_test=0.7 * X[:1] - X[1:])
    options = {"quantities": ("prediction", "test_prediction", "feature_kernel"), "at": [8], "progress": False}
    narrow, wide = (
        flat(
            experiment(network, task, **COMMON, width=n, replicates=400, seed=n, **options).data,
            ["replicate"],
        )
        for n in (200, 400)
    )
    samples = 2 * wide - narrow
    assert agrees(flat(predict(network, task, **COMMON, **options).data, []), samples)
    rich = COMMON | {"richness": 1.15 * COMMON["richness"]}
    assert not agrees(flat(predict(network, task, **rich, **options).data, []), samples)
