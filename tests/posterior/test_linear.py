"""The posterior of linear networks against closed forms, brute force, and its own identities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widefield as wf

from . import oracle

W, U, V = 1.3, 0.7, 1.2
X = np.array([[1.0, 2.0, 0.5]])
K = U * np.sum(X**2) / 3
STRENGTH = st.floats(0.1, 60)
KAPPA = st.floats(0.01, 10)
RNG = np.random.default_rng(5)


def endpoint(strength, kappa, T=4, make=wf.RNN):
    """λ and κ̂ of Eq. (posterior.12) as a network, a task and a temperature."""
    unit = V * W ** (T - 2) * K
    net = make(T - 1, "linear", weight_variance=W, input_variance=U, readout_variance=V)
    return net, wf.Task(X, np.array([np.sqrt(strength * unit)])), kappa * unit


def solved(*args, branch="lowest", **kwargs):
    net, task, kappa = endpoint(*args, **kwargs)
    return wf.posterior(net, task, temperature=kappa, branch=branch)


def correlations(solution):
    H = solution.hidden.values[..., 0, 0]
    return H / np.sqrt(np.diag(H)) / np.sqrt(np.diag(H))[:, None]


@settings(max_examples=15, deadline=None)
@given(strength=STRENGTH, kappa=KAPPA)
def test_four_steps_follow_the_closed_forms(strength, kappa):
    """T = 4: incoherent below (8 + κ̂)²/8, the whole coherent branch above it."""
    solution = solved(strength, kappa)
    H = solution.hidden.values[..., 0, 0]
    if strength < oracle.instability(4, kappa):
        s = oracle.stretch(strength, kappa, 3)
        np.testing.assert_allclose(H, np.diag(K * W ** np.arange(3) * s ** np.arange(1, 4)), atol=1e-8 * H.max())
        assert solution.branch == "incoherent"
        return
    s = oracle.coherent_stretch(strength, kappa)
    rho12, rho23, rho13 = np.sqrt((s - 2) / s), np.sqrt(s * (s - 2)) / (s - 1), (s - 2) / (s - 1)
    np.testing.assert_allclose(np.diag(H), K * s * np.array([1, 2 * W * (s - 1), 4 * W**2 * (s - 1) ** 2]), rtol=1e-8)
    expected = np.array([[1, rho12, rho13], [rho12, 1, rho23], [rho13, rho23, 1]])
    np.testing.assert_allclose(correlations(solution), expected, atol=1e-8)
    assert solution.branch == "coherent" and solution.stability > 0


@settings(max_examples=10, deadline=None)
@given(strength=STRENGTH, kappa=KAPPA)
def test_deep_networks_are_never_coherent(strength, kappa):
    solution = solved(strength, kappa, make=wf.DNN)
    s = oracle.stretch(strength, kappa, 3)
    expected = np.diag(K * W ** np.arange(3) * s ** np.arange(1, 4))
    np.testing.assert_allclose(solution.hidden.values[..., 0, 0], expected, atol=1e-8 * expected.max())
    np.testing.assert_array_equal(solution.prediction.values[:-1], 0)
    assert solution.branch == "incoherent"


def test_the_incoherent_point_beyond_the_instability_is_a_saddle():
    """It is stationary and has the higher free energy: only its Hessian tells."""
    below, saddle = solved(20, 1.0), solved(20, 1.0, branch="incoherent")
    assert saddle.branch == "incoherent" and saddle.stability < -0.01 and saddle.residual < 1e-10
    assert below.free_energy < saddle.free_energy
    listed = below.certificate.diagnostics["branches"]
    assert [point["branch"] for point in listed] == ["coherent", "incoherent"]
    assert "saddle" in " ".join(saddle.notes)


def test_first_order_minima_coexist():
    """T = 6 between the spinodal and the instability: two minima, the lower one changes at 1.396193."""
    for strength, lowest in ((1.3955, "incoherent"), (1.3970, "coherent")):
        solution = solved(strength, 1e-9, T=6)
        listed = solution.certificate.diagnostics["branches"]
        assert solution.branch == lowest and {point["branch"] for point in listed} == {"coherent", "incoherent"}
        assert all(point["stability"] > 0 for point in listed)


def test_a_branch_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="`branch` must be one of.*incoherent"):
        solved(2, 1.0, branch="coherent")


@settings(max_examples=10, deadline=None)
@given(strength=STRENGTH, kappa=KAPPA, scale=st.floats(0.2, 5), w=st.floats(0.2, 3), v=st.floats(0.2, 3))
def test_only_two_numbers_matter(strength, kappa, scale, w, v):
    """(λ, κ̂) fix all correlations and the free energy."""
    one = solved(strength, kappa)
    unit = v * w**2 * np.sum((scale * X) ** 2) / 3
    net = wf.RNN(3, "linear", weight_variance=w, readout_variance=v)
    task = wf.Task(scale * X, np.array([np.sqrt(strength * unit)]))
    other = wf.posterior(net, task, temperature=kappa * unit)
    np.testing.assert_allclose(correlations(one), correlations(other), atol=1e-8)
    np.testing.assert_allclose(one.free_energy, other.free_energy, atol=1e-9)


CASES = {
    "RNN": (wf.RNN(3, "linear", weight_variance=1.1), (2, 3), (2, 2)),
    "RNN, sequences": (wf.RNN(3, "linear", weight_variance=0.8), (2, 3, 2), (2, 2)),
    "DNN, sequences": (wf.DNN(3, "linear", weight_variance=(1.5, 0.7)), (2, 3, 2), (2, 2)),
    "inputs untied": (wf.RNN(3, "linear", inputs="untied", input_variance=(1.0, 0.5, 2.0)), (2, 3, 2), (2, 2)),
    "more samples than dimensions": (wf.RNN(2, "linear"), (4, 2), (4, 1)),
    "more samples, sequences": (wf.DNN(2, "linear"), (3, 2, 1), (3, 1)),
}


def case(name):
    net, shape, labels = CASES[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    x = rng.normal(size=shape)
    supervised = (net.depth - 2, net.depth - 1)
    return net, wf.Task(x, 2 * rng.normal(size=(labels[0], 2, labels[1])), supervised=supervised)


@pytest.mark.parametrize("name", [n if n == "RNN" else pytest.param(n, marks=pytest.mark.full) for n in CASES])
def test_brute_force_finds_the_same_minimum(name):
    net, task = case(name)
    solution = wf.posterior(net, task, temperature=0.5)
    value, kernel = oracle.minimum(net, task, 0.5, starts=3)
    hidden = np.moveaxis(solution.hidden.values, 1, 2).reshape(kernel.shape)
    np.testing.assert_allclose(solution.free_energy, value, rtol=1e-9)
    np.testing.assert_allclose(hidden, kernel, atol=2e-5 * kernel.max())


@pytest.mark.parametrize("name", CASES)
def test_the_label_derivative_of_the_free_energy_is_half_the_response(name):
    """dF/dY = R/2, by differences of F between solved points; and energy and entropy add up."""
    net, task = case(name)
    solve = lambda y: wf.posterior(net, wf.Task(task.x, y, supervised=task.supervised), temperature=0.5)  # noqa: E731
    direction = np.random.default_rng(3).normal(size=task.y.shape)
    h = 1e-4
    low, middle, high = (solve(task.y + s * h * direction) for s in (-1, 0, 1))
    Ry = (task.labels() - _on_labels(middle, task, net.depth)) / 0.5  # y − f = κRy
    np.testing.assert_allclose(
        (high.free_energy - low.free_energy) / (2 * h), np.sum(direction * Ry), rtol=1e-6, atol=1e-8
    )
    assert middle.entropy >= 0 and middle.energy >= 0
    np.testing.assert_allclose(middle.free_energy, middle.energy + middle.entropy)
    np.testing.assert_allclose(middle.energy, 0.5 * np.sum(task.labels() * Ry), rtol=1e-10)


def _on_labels(solution, task, depth):
    states = list(task.supervised_states(depth))
    return np.moveaxis(solution.prediction.values[states], 0, 1)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), kappa=st.floats(0.05, 5))
@pytest.mark.parametrize("depth", [1, 2])
def test_two_states_do_not_tell_recurrent_from_deep(depth, seed, kappa):
    """T = 2, 3: the mask acts on one block only, whatever inputs and labels."""
    rng = np.random.default_rng(seed)
    task = wf.Task(rng.normal(size=(3, depth, 2)), 3 * rng.normal(size=(3, depth, 2)))
    kernels = [wf.posterior(make(depth, "linear"), task, temperature=kappa).hidden.values for make in (wf.RNN, wf.DNN)]
    np.testing.assert_allclose(*kernels, atol=1e-8 * np.abs(kernels[0]).max())


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**31))
@pytest.mark.parametrize("make", [wf.RNN, pytest.param(wf.DNN, marks=pytest.mark.full)])
def test_a_test_input_in_the_span_is_predicted_by_linearity(make, seed):
    """Also sequences, whose span is that of whole sequences; and a training input as a test input."""
    rng = np.random.default_rng(seed)
    x, mix = rng.normal(size=(3, 3, 2)), rng.normal(size=(2, 3))
    x_test = np.concatenate([np.einsum("ij,jsd->isd", mix, x), x[:1]])
    task = wf.Task(x, rng.normal(size=(3, 2, 2)), supervised=(0, 2), x_test=x_test)
    solution = wf.posterior(make(3, "linear"), task, temperature=0.3)
    train = solution.prediction.values
    expected = np.concatenate([np.einsum("ij,sjo->sio", mix, train), train[:, :1]], axis=1)
    np.testing.assert_allclose(solution.test_prediction.values, expected, atol=1e-9 * np.abs(train).max())


@pytest.mark.parametrize("make", [wf.RNN, wf.DNN])
@pytest.mark.parametrize("weak", ["labels", "temperature"])
def test_without_labels_it_is_the_prior(make, weak):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 3, 1))
    y, kappa = (0 * y, 0.1) if weak == "labels" else (y, 1e12)
    net, task = make(3, "linear", weight_variance=0.9), wf.Task(x, y)
    trained, random = wf.posterior(net, task, temperature=kappa), wf.prior(net, task)
    for name in ("hidden", "feature"):
        np.testing.assert_allclose(trained.data[name], random.data[name], atol=1e-10)
    np.testing.assert_allclose([trained.free_energy, trained.entropy], 0, atol=1e-9)


def test_duplicates_and_near_duplicates_need_no_jitter():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(5, 2))
    x[1], x[2] = x[0], x[0] + 1e-7 * x[3]
    task = wf.Task(x, rng.normal(size=(5, 1)))
    solution = wf.posterior(wf.RNN(3, "linear"), task, temperature=0.2)
    prediction = solution.prediction.values
    np.testing.assert_allclose(prediction[:, 0], prediction[:, 1], atol=1e-12)
    np.testing.assert_allclose(prediction[:, 0], prediction[:, 2], atol=1e-5)


def test_silent_inputs():
    """Nothing can be learned from inputs that are zero: the labels cost |y|²/2κ."""
    task = wf.Task(np.zeros((2, 3)), np.array([1.0, 2.0]))
    solution = wf.posterior(wf.RNN(3, "linear"), task, temperature=0.5)
    np.testing.assert_allclose(solution.free_energy, 5.0)
    np.testing.assert_array_equal(solution.hidden, 0)


def test_rotation_reaches_the_unsupervised_states():
    """A recurrent network continues the teacher's rotation where it has no labels; a deep one says zero there."""
    truth, seen, unseen = wf.tasks.rotation(8, 4, 6, angle=0.9, seed=1, n_test=5), [0, 1, 3, 5], [2, 4]
    task = wf.Task(truth.x, truth.y[:, seen], supervised=seen, x_test=truth.x_test)
    recurrent, deep = (wf.posterior(make(6, "linear"), task, temperature=1e-3) for make in (wf.RNN, wf.DNN))
    for solution, labels in ((recurrent.prediction, truth.y), (recurrent.test_prediction, truth.y_test)):
        error = solution.values[unseen] - np.moveaxis(labels, 1, 0)[unseen]
        assert np.sum(error**2) < 0.1 * np.sum(labels[:, unseen] ** 2)  # nine tenths of the variance, zero would say 1
    np.testing.assert_array_equal(deep.prediction.values[unseen], 0)


def test_deep_networks_satisfy_the_equations_of_the_appendix():
    """(117) of Appendix K.3 with 1/λ and its readout term γ0²β²/λ for λ ≠ 1; as printed, without it or with half, both are off."""
    gamma, beta, ridge, rng = 1.5, 5.0, 0.6, np.random.default_rng(3)
    variances = {"input_variance": 1 / ridge, "weight_variance": 1 / ridge, "readout_variance": 1 / (ridge * gamma**2)}
    net, task = wf.DNN(3, "linear", **variances), wf.Task(rng.normal(size=(2, 3)), 5 * rng.normal(size=2))
    solution = wf.posterior(net, task, temperature=1 / (gamma**2 * beta))
    block = lambda name, a: solution.data[name].values[a, a]  # noqa: E731
    error = task.y.ravel() - solution.prediction.values[-1, :, 0]
    readout = -(gamma**2) * beta**2 / ridge * np.outer(error, error)
    np.testing.assert_allclose(-2 * block("conjugate", 2), readout, atol=1e-8 * np.abs(readout).max())
    assert np.abs(readout @ block("feature", 2)).max() > 0.1, "labels that matter"
    for a in (0, 1):
        inverse = np.linalg.inv(block("feature", a))
        back = inverse @ block("hidden", a + 1) @ inverse
        np.testing.assert_allclose(
            -2 * block("conjugate", a), inverse - ridge * back, atol=1e-8 * np.abs(inverse).max()
        )
        assert np.abs(inverse - back + 2 * block("conjugate", a)).max() > 0.01 * np.abs(inverse).max()
