"""What `widefield.posterior` and its core promise: the list that every theory passes, and bad input."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from widefield.solvers import definite
from widefield.theories.posterior.linear import free_energy as linear
from widefield.theories.posterior.linear import stationary
from widefield.theories.posterior.problem import problem_of

from .. import contracts

RNG = np.random.default_rng(7)
NET = wf.RNN(3, "linear", weight_variance=1.2)
X, Y = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 1))
TASK = wf.Task(X, Y, x_test=RNG.normal(size=(2, 3)))


@pytest.fixture(scope="module")
def solved():
    return wf.posterior(NET, TASK, temperature=0.3)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def point(scale=1.0):
    layout = linear.layout_of(problem_of(NET, wf.Task(X, scale * Y), 0.3))
    A = np.random.default_rng(1).normal(size=(1, 6, 6))
    return jnp.asarray(np.eye(6) + 0.1 * A @ A.swapaxes(-1, -2)), jax.tree.map(lambda v: jnp.asarray(v, float), layout)


def physical(S, layout, readout, temperature, labels):
    """The free energy as a function of what a user may want to differentiate."""
    problem = layout.problem._replace(
        readout=readout, temperature=temperature, labels=labels, supervised=np.array([4, 5])
    )
    return linear.free_energy(S, layout._replace(problem=problem))[0]


def test_core_gradient_is_finite_difference(x64):
    """In the physical parameters by JAX, and in the kernel by Eq. (posterior.8)."""
    S, layout = point()
    args = layout.problem.readout, layout.problem.temperature, layout.problem.labels
    contracts.assert_gradient_is_difference(lambda v, kappa, y: physical(S, layout, v, kappa, y), *args)
    fixed = layout._replace(problem=layout.problem._replace(supervised=np.array([4, 5])))
    by_jax = jax.grad(lambda S: linear.free_energy(S, fixed)[0])(S)
    np.testing.assert_allclose(linear.free_energy(S, fixed)[1], by_jax, atol=1e-12)


def test_riemannian_hessian_is_the_second_difference(x64):
    S, layout = point(2.0)
    layout = layout._replace(problem=layout.problem._replace(supervised=np.array([4, 5])))
    E = np.random.default_rng(2).normal(size=S.shape)
    E = 0.5 * (E + E.swapaxes(-1, -2))
    at = lambda t: float(linear.free_energy(definite.displaced(S, t * E), layout)[0])  # noqa: E731
    h = 1e-3
    second = (-at(2 * h) + 16 * at(h) - 30 * at(0) + 16 * at(-h) - at(-2 * h)) / (12 * h**2)
    packed = definite._pack(jnp.asarray(E))
    np.testing.assert_allclose(packed @ definite.hessian(linear.free_energy, S, (layout,)) @ packed, second, rtol=1e-6)


def test_lanczos_is_the_dense_eigenvalue(x64):
    S, layout = point(2.0)
    layout = layout._replace(problem=layout.problem._replace(supervised=np.array([4, 5])))
    dense = np.linalg.eigvalsh(definite.hessian(linear.free_energy, S, (layout,)))
    smallest, direction = definite.smallest_eigenvalue(linear.free_energy, S, (layout,), rtol=1e-8, dense=0, block=10)
    np.testing.assert_allclose(smallest, dense[0], rtol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(direction), 1.0)


def test_certificate(solved):
    contracts.assert_certified(solved, "posterior")
    assert solved.certificate.options["temperature"] == 0.3 and solved.certificate.steps > 0
    assert solved.network == NET and solved.task is TASK
    assert all(type(field.values) is np.ndarray for field in solved.data.data_vars.values())


def test_dims(solved):
    dims = {name: field.dims for name, field in solved.data.data_vars.items()}
    assert dims["hidden"] == dims["feature"] == dims["conjugate"] == ("state", "state_", "sample", "sample_")
    assert dims["prediction"] == ("state", "sample", "output")
    assert dims["test_prediction"] == ("state", "test", "output")
    assert dims["free_energy"] == dims["energy"] == dims["entropy"] == dims["branch"] == dims["stability"] == ()


def test_alignment_is_the_cosine_with_the_labels(solved):
    for a in range(NET.depth):
        own, target = solved.feature.values[a, a], np.outer(Y, Y)
        cosine = sum(own[p, q] * target[p, q] for p in range(2) for q in range(2))
        cosine /= np.sqrt(np.sum(own**2) * np.sum(target**2))
        np.testing.assert_allclose(solved.alignment.values[a], cosine, rtol=1e-12)


def test_x64_flag_has_no_say():
    task = wf.Task(X.astype("float32"), Y)
    call = lambda: wf.posterior(NET, task, temperature=0.3, quantities=("hidden", "prediction"))  # noqa: E731
    contracts.assert_x64_flag_has_no_say(call)


def test_a_saddle_is_not_returned_as_a_minimum(monkeypatch):
    """With only the incoherent start left, the Hessian gives it away."""
    monkeypatch.setattr(stationary.LinearState, "displaced", lambda state, amount: state.point)
    monkeypatch.setattr(stationary, "_start", lambda layout, rho, growth: np.eye(layout.root.shape[-1])[None])
    task = wf.Task(np.ones((1, 1)), np.full(1, 6.0))
    contracts.assert_fails_loudly(partial(wf.posterior, wf.RNN(3, "linear"), task, temperature=1.0), wf.Status.saddle)


@pytest.mark.parametrize(
    ("net", "task", "options", "message"),
    [
        (NET, TASK, {"temperature": 0.0}, "`temperature` must be positive"),
        (NET, TASK, {"temperature": -1.0}, "`temperature` must be a finite non-negative"),
        (NET, TASK, {"temperature": np.nan}, "`temperature`"),
        (NET, TASK, {"branch": "both"}, "`branch` must be one of"),
        (NET, TASK, {"method": "guess"}, "`method` must be one of"),
        (NET, TASK, {"integration": "guess"}, "`integration` must be one of"),
        (NET, TASK, {"rtol": 1e-16}, "`rtol` must be at least"),
        (NET, TASK, {"quantities": "ntk"}, "`quantities` must be one of"),
        (NET, wf.Task(X), {}, "`task` must have labels"),
        (NET, X, {}, "`task` must be a widefield.Task"),
        ("relu", TASK, {}, "`network` must be a widefield.Network"),
        (wf.RNN(3, "linear", bias_variance=0.1), TASK, {}, "`bias_variance` must be 0.*posterior"),
        (wf.RNN(3, "linear", readout_bias_variance=0.1), TASK, {}, "`readout_bias_variance` must be 0.*posterior"),
        (wf.RNN(3, "linear", readout_variance=None), TASK, {}, "`readout_variance` must be positive for the posterior"),
        (wf.DNN(3, "linear", widths=(1.0, 2.0, 1.0)), TASK, {}, "`widths` must all be equal.*posterior"),
        (NET, wf.Task(X, np.ones((2, 5, 1))), {}, "`y` has 5 supervised states"),
        (NET, wf.Task(X, Y, supervised=4), {}, "`supervised` must lie in"),
        (NET, wf.Task(np.ones((2, 4, 3)), Y), {}, "`x` drives 4 states"),
    ],
)
def test_bad_input(net, task, options, message):
    with pytest.raises(ValueError, match=message):
        wf.posterior(net, task, **{"temperature": 0.3} | options)
