"""The march against explicit response matrices, closed forms, limits and the paper's own algorithm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import widefield as wf
from tests.dynamics import algorithm, oracle
from tests.dynamics.question import predict
from tests.simulate.students import agrees

RNG = np.random.default_rng(0)
K, P, D = 3, 2, 8
SEQUENCE, LABELS = RNG.normal(size=(P, K, D)), RNG.normal(size=(P, K, 1))
X, Y = RNG.normal(size=(P, D)), RNG.normal(size=P)
TEST = RNG.normal(size=(1, K, D))
DEEP = wf.Task(X, Y)
COMMON = {"richness": 1.3, "rate": 0.1, "steps": 7}
full = pytest.mark.full


def ask(network, task, **changes):
    return predict(network, task, **COMMON | {"progress": False} | changes)


def literal(network, task, **changes):
    names = {"weight_decay": "decay", "momentum_time": "tau", "initial_scale": "scale"}
    return oracle.solve(network, task, **{names.get(k, k): v for k, v in (COMMON | changes).items()})


def expected(network, task, solution, **changes):
    """The oracle's arrays under the names and in the layout of the solution's fields."""
    found, n = literal(network, task, **changes), task.n_samples
    n_out = task.labels().shape[2]
    read, several = sorted(task.supervised_states(network.depth)), task.labels().shape[1] > 1
    phi = found["phi"][:, :, :n, :, :, :n].transpose(0, 3, 1, 4, 2, 5)
    split = (len(read), n_out) * 2
    G = found["g"][:, :, :, :n, :, :, :, :n].transpose(0, 4, 1, 5, 2, 6, 3, 7)
    share = np.sqrt(network.relative_widths / network.relative_widths[-1])  # the field is γ0² N_L ∂f·∂f
    G = G * np.outer(share, share)[:, :, None, None, None, None]
    G = np.moveaxis(G.reshape(*np.array(split)[[0, 1]], *split[2:], *G.shape[2:]), (1, 3), (-2, -1))
    ntk = found["ntk"][..., :n, :n]
    ntk = np.moveaxis(ntk.reshape(len(ntk), *split, n, n), (1, 3, 0, 5, 6, 2, 4), range(7))
    if "layer" in solution.feature_kernel.dims:
        layers = range(network.depth)
        phi, G = np.stack([phi[k, k] for k in layers]), np.stack([G[:, :, k, k] for k in layers], axis=2)
    if not several:
        G, ntk = G[0, 0], ntk[0, 0]
    if n_out == 1:
        G, ntk = G[..., 0, 0], ntk[..., 0, 0]
    shown = found["f"] if several else found["f"][:, read[0]]
    return {
        "feature_kernel": phi, "gradient_kernel": G, "ntk": ntk, "state_prediction": found["f"][:, :, :n],
        "prediction": shown[..., :n, :], "test_prediction": shown[..., n:, :],
        "loss": 0.5 * ((found["f"][:, read, :n] - np.moveaxis(sorted_labels(task, network), 0, 1)) ** 2).sum(axis=(1, 2, 3)),
    }  # fmt: skip


def sorted_labels(task, network):
    return task.labels()[:, np.argsort(task.supervised_states(network.depth))]


def assert_is_literal(network, task, names=(), atol=1e-10, **changes):
    """Every field, each relative to its own size."""
    solution = ask(network, task, **changes)
    right = expected(network, task, solution, **changes)
    for name in names or set(right) & set(solution.data):
        assert solution.data[name].shape == right[name].shape, name
        size = np.abs(right[name]).max()
        np.testing.assert_allclose(solution.data[name], right[name], rtol=0, atol=atol * size, err_msg=name)


TIED = wf.RNN(K, "linear", weight_variance=1.3, input_variance=0.7, readout_variance=1.2)
UNTIED = wf.DNN(K, "linear", inputs="untied", weight_variance=(1.3, 0.6), input_variance=(0.5, 1.0, 1.5))
EVERYWHERE = wf.Task(SEQUENCE, LABELS)
SHAPES = {  # cases that share a compilation stand together
    "tied": (TIED, EVERYWHERE, {}),
    "tied, weight decay": (TIED, EVERYWHERE, {"weight_decay": 0.5}),
    "tied, momentum": (TIED, EVERYWHERE, {"momentum_time": 0.5, "weight_decay": 0.2}),
    "tied, schedule": (TIED, EVERYWHERE, {"rate": np.linspace(0.15, 0.05, 7)}),
    "tied, biases": (wf.RNN(K, "linear", bias_variance=0.4, readout_bias_variance=0.0), EVERYWHERE, {}),
    "tied, untied inputs and biases": (
        wf.RNN(K, "linear", inputs="untied", biases="untied", bias_variance=(0.1, 0.5, 0.9), readout_bias_variance=0.0),
        EVERYWHERE,
        {},
    ),
    "deep": (wf.DNN(2, "linear"), DEEP, {"richness": 2.0}),
    "deep, weight decay": (wf.DNN(2, "linear", weight_variance=0.8), DEEP, {"weight_decay": 0.7}),
    "deep, widths": (wf.DNN(2, "linear", widths=(0.5, 2.0)), DEEP, {}),
}
LONG = {
    "untied": (UNTIED, EVERYWHERE, {}),
    "untied, shared inputs, weight decay": (wf.DNN(K, "linear"), EVERYWHERE, {"weight_decay": 0.5}),
    "untied, biases": (wf.DNN(K, "linear", bias_variance=(0.4, 0.2, 0.6), readout_bias_variance=0.0), EVERYWHERE, {}),
    "untied, initial scale": (UNTIED, EVERYWHERE, {"initial_scale": 0.7, "momentum_time": 0.4}),
    "one layer": (wf.DNN(1, "linear"), DEEP, {}),
    "deep 4": (wf.DNN(4, "linear"), DEEP, {}),
    "deep 3, widths, biases": (
        wf.DNN(3, "linear", widths=(0.5, 1.0, 2.0), bias_variance=0.3, readout_bias_variance=0.0),
        DEEP,
        {"weight_decay": 0.3},
    ),
    "two of three readouts, any order": (TIED, wf.Task(SEQUENCE, LABELS[:, :2], supervised=(2, 0)), {}),
    "readout in the middle": (TIED, wf.Task(SEQUENCE, Y, supervised=1), {}),
    "several outputs": (wf.DNN(2, "linear"), wf.Task(X, RNG.normal(size=(P, 2))), {"weight_decay": 0.2}),
    "several outputs and readouts": (
        wf.RNN(2, "linear"),
        wf.Task(SEQUENCE[:, :2], RNG.normal(size=(P, 2, 2))),
        {},
    ),
    "held-out inputs": (TIED, wf.Task(SEQUENCE, LABELS, x_test=TEST), {"weight_decay": 0.1}),
    "degenerate inputs": (TIED, wf.Task(np.repeat(SEQUENCE[:1], 2, axis=0), LABELS), {}),
    "longer than the first buffer": (wf.DNN(2, "linear"), DEEP, {"steps": 24, "rate": 0.05}),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=full) if n == "tied, momentum" else n for n in SHAPES])
def test_linear_march_is_the_explicit_solution(name):
    network, task, changes = SHAPES[name]
    assert_is_literal(network, task, **changes)


@full
@pytest.mark.parametrize("name", LONG)
def test_linear_march_is_the_explicit_solution_in_more_cases(name):
    network, task, changes = LONG[name]
    assert_is_literal(network, task, **changes)


def test_the_oracle_sees_mask_and_responses():
    """What the explicit solution would miss if a response or the mask did not matter."""
    right = literal(TIED, EVERYWHERE)["f"]
    assert (
        np.abs(
            literal(wf.DNN(K, "linear", weight_variance=1.3, input_variance=0.7, readout_variance=1.2), EVERYWHERE)["f"]
            - right
        ).max()
        > 1e-2
    )
    for mistake in ("A", "B"):
        assert np.abs(literal(TIED, EVERYWHERE, mistake=mistake)["f"] - right).max() > 1e-2


def test_whitened_two_layers_have_closed_forms():
    """Eqs. 78–79, H(∞) and the balance law; K^x = 1."""
    y, gamma = np.array([1.2, -0.5]), 1.5
    size = np.linalg.norm(y)
    task = wf.Task(np.sqrt(2) * np.eye(2), y)
    rate, steps = 0.02, 150
    flow = predict(wf.DNN(1, "linear"), task, richness=gamma, rate=rate, steps=steps, flow=True, progress=False)
    f = flow.prediction.values[..., 0]
    np.testing.assert_allclose(f @ np.array([y[1], -y[0]]), 0, atol=1e-12)  # along the labels
    root = np.sqrt(1 + gamma**2 * size**2)
    along = f @ y / size
    ratio = (1 + gamma**2 * size * along) / (root * np.sqrt(1 + gamma**2 * along**2))
    early = slice(1, 60)  # later the inverse is singular
    error = 2 * max(flow.certificate.error, 1e-12)
    speed = 2 * np.sqrt(1 + gamma**2 * along[early] ** 2) * (size - along[early])
    time = (np.arctanh(ratio[early]) - np.arctanh(1 / root)) / (2 * root)
    assert np.all(np.abs(time - flow.time.values[early]) < error * size / speed)
    rhs = lambda t, e: -2 * np.sqrt(1 + gamma**2 * (size - e) ** 2) * e  # noqa: E731
    exact = scipy.integrate.solve_ivp(rhs, (0, 1.1 * rate * steps), [size], dense_output=True, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(size - along, exact.sol(flow.time.values)[0], rtol=0, atol=error * size)
    assert flow.certificate.error < 1e-4, "an error estimate that is too wide tests nothing"
    H = np.eye(2) + (root - 1) * np.outer(y, y) / size**2
    np.testing.assert_allclose(flow.ntk[-1], H + root * np.eye(2), atol=1e-4)


def test_lazy_limit_is_the_tangent_kernel_of_the_prior():
    network = wf.DNN(2, "linear", weight_variance=0.8)
    kernel = wf.prior(network, DEEP).ntk.values
    f, curve = np.zeros(P), []
    for _ in range(8):
        curve.append(f)
        f = f + 0.1 * kernel @ (Y - f)
    lazy = ask(network, DEEP, method="lazy")
    np.testing.assert_allclose(lazy.prediction[..., 0], curve, rtol=1e-12, atol=1e-14)
    small = ask(network, DEEP, richness=1e-4)
    np.testing.assert_allclose(small.prediction[..., 0], curve, rtol=0, atol=1e-6)
    np.testing.assert_allclose(small.ntk[-1], kernel, rtol=1e-6)


@full
@pytest.mark.parametrize("network", [wf.DNN(2, "tanh"), wf.RNN(K, "tanh")])
def test_lazy_limit_of_nonlinear_networks(network):
    task = DEEP if network.depth == 2 else EVERYWHERE
    lazy, small = ask(network, task, method="lazy"), ask(network, task, richness=1e-3, paths=2048)
    for name in ("prediction", "ntk"):
        error = np.maximum(small.data[f"{name}_stderr"].values, 1e-7)
        z = (small.data[name] - lazy.data[name]).values / error
        assert np.sqrt(np.mean(z**2)) < 3, name  # 8 batches, plus a bias of order 1/paths


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=full)])
def test_perturbation_theory_is_right_at_leading_order(depth):
    network, errors, plain = wf.DNN(depth, "linear"), [], []
    for gamma in (0.2, 0.1):
        exact = ask(network, DEEP, richness=gamma).prediction.values
        errors.append(np.abs(ask(network, DEEP, richness=gamma, method="perturbative").prediction.values - exact).max())
        plain.append(np.abs(ask(network, DEEP, richness=gamma, method="lazy").prediction.values - exact).max())
    assert 14 < errors[0] / errors[1] < 18, "an error of order γ0⁴"
    assert 3.6 < plain[0] / plain[1] < 4.4, "of order γ0²"
    assert errors[1] < 0.02 * plain[1]


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=full)])
def test_kernels_at_leading_order_are_the_corrected_closed_forms(depth):
    """H^{l,2} and G^{l,2} with C^l = l C0 and D^l = (L+1−l) D0; the printed ones have no l."""
    gamma, network, T = 0.01, wf.DNN(depth, "linear"), 8
    solution = ask(network, DEEP, richness=gamma)
    lazy = ask(network, DEEP, method="lazy")
    delta = Y - lazy.prediction.values[..., 0]
    later = np.arange(T)[:, None] > np.arange(T)[None, :]
    H0 = np.kron(np.ones((T, T)), X @ X.T / D)
    D0 = 0.1 * np.repeat(np.repeat(later, P, 0), P, 1) * delta.reshape(-1)
    C0, one = D0 * H0, np.ones((T * P, T * P))
    both = lambda a: a + a.T  # noqa: E731

    def moved(name, l):
        kernel = solution.data[name].sel(layer=l).values.transpose(0, 2, 1, 3).reshape(T * P, T * P)
        return (kernel - (H0 if name == "feature_kernel" else one)) / gamma**2

    L = depth
    for l in range(1, L + 1):
        H2 = sum(k * (L + 1 - k) * both(C0 @ D0 @ H0) + k**2 * C0 @ one @ C0.T for k in range(1, l + 1))
        G2 = sum(k * (L + 1 - k) * both(D0 @ C0 @ one) + (L + 1 - k) ** 2 * D0 @ H0 @ D0.T for k in range(l, L + 1))
        for name, right in (("feature_kernel", H2), ("gradient_kernel", G2)):
            np.testing.assert_allclose(moved(name, l), right, rtol=0, atol=1e-3 * np.abs(right).max(), err_msg=name)
    printed = sum(both(C0 @ D0 @ H0) + C0 @ one @ C0.T for _ in range(L))
    assert np.abs(moved("feature_kernel", L) - printed).max() > 0.3 * np.abs(H2).max()


def test_the_past_does_not_know_the_future():
    """Fewer steps, or another rate later on, leave what came before as it was."""
    network = wf.DNN(2, "linear")
    rates = np.append(np.full(4, 0.1), np.full(3, 0.02))
    usual, other, short = ask(network, DEEP), ask(network, DEEP, rate=rates), ask(network, DEEP, steps=4)
    for name in ("prediction", "ntk", "loss"):
        np.testing.assert_array_equal(usual.data[name][:5], other.data[name][:5])
        np.testing.assert_array_equal(usual.data[name][:5], short.data[name])
    # sums of other lengths round differently
    np.testing.assert_allclose(usual.feature_kernel[:, :5, :5], short.feature_kernel, rtol=0, atol=1e-14)
    assert not np.array_equal(usual.prediction[6], other.prediction[6])


@full
@pytest.mark.parametrize("changes", [{}, {"weight_decay": 0.5}])
def test_first_input_and_endpoint_do_not_see_tying(changes):
    """Odd φ: RNN = DNN, cross-state kernels vanish."""
    tied, untied = (ask(make(3, "linear"), DEEP, **changes) for make in (wf.RNN, wf.DNN))
    np.testing.assert_allclose(tied.prediction, untied.prediction, rtol=0, atol=1e-13)
    cross = tied.feature_kernel.values[np.triu_indices(3, 1)]
    np.testing.assert_allclose(cross, 0, atol=1e-13)
    np.testing.assert_allclose(tied.feature_kernel.values[range(3), range(3)], untied.feature_kernel, atol=1e-12)


@full
@pytest.mark.parametrize("depth", [3, 4, 5])
def test_weight_decay_makes_the_recurrent_network_coherent(depth):
    """A seed x² = ε x¹ grows at ln(1 + (K−2)ηλ)/(ηλ) once the error is quasi-static; the deep network's does not."""
    rate, decay, steps = 0.02, 0.6, 400
    x = np.zeros((1, 2, 1))
    x[0, :, 0] = 1.0, 10.0 ** -(depth + 4)  # still small after the faster growth of deeper ones
    keep = [steps - 100, steps]
    growth = {}
    for make in (wf.RNN, wf.DNN):
        solution = predict(
            make(depth, "linear"), wf.Task(x, [1.0]), richness=4.0, rate=rate, steps=steps, weight_decay=decay, at=keep,
            quantities="feature_kernel", progress=False,
        )  # fmt: skip
        phi = solution.feature_kernel.values[..., 0, 0]
        late = phi[depth - 2, depth - 1, [0, 1], [0, 1]] / np.sqrt(
            np.prod([phi[k, k, [0, 1], [0, 1]] for k in (depth - 2, depth - 1)], axis=0)
        )
        growth[make] = np.abs(late)
    rate_of_rnn = np.log(growth[wf.RNN][1] / growth[wf.RNN][0]) / (100 * rate * decay)
    right = np.log(1 + (depth - 2) * rate * decay) / (rate * decay)
    np.testing.assert_allclose(rate_of_rnn, right, rtol=5e-3)
    assert growth[wf.RNN][1] < 1e-2, "still small: the linear regime"
    assert np.all(growth[wf.DNN] < 1e-12)


@full
@pytest.mark.parametrize("equal_time", [True, False])
def test_the_papers_algorithm_finds_the_same(equal_time):
    """Independent streams of Algorithm 1; without the equal-time part of B it must differ."""
    gamma, rate, steps = 3.0, 0.2, 6
    x, y = X[:, :2] * 1.5, np.array([1.0, -1.0])
    march = predict(
        wf.DNN(2, "tanh"), wf.Task(x, y), richness=gamma, rate=rate, steps=steps, paths=8192, progress=False
    )
    theory = np.concatenate([march.prediction.values[1:].ravel(), march.feature_kernel.values[:, -1, -1].ravel()])
    samples = []
    with jax.enable_x64(True):
        for seed in range(8):
            f, phi, change = algorithm.solve(
                jnp.tanh, 2, x @ x.T / 2, y, richness=gamma, rate=rate, steps=steps, paths=1000, seed=seed, sweeps=45,
                equal_time=equal_time,
            )  # fmt: skip
            assert change < 1e-4
            samples.append(np.concatenate([f[1:].ravel(), phi[:, -1, :, -1].ravel()]))
    assert agrees(theory, samples) is equal_time
