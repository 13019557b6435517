"""Anderson acceleration: converges where plain iteration does not, and says so when it has not converged."""

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest

from widefield.solvers.anderson import AndersonSolver


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def linear_map(eigenvalues, seed=0):
    """A map y → My + b with these eigenvalues, not symmetric, and its fixed point."""
    rng = np.random.default_rng(seed)
    basis = rng.normal(size=(len(eigenvalues),) * 2)
    M, b = basis @ np.diag(eigenvalues) @ np.linalg.inv(basis), rng.normal(size=len(eigenvalues))
    return M, b, np.linalg.solve(np.eye(len(b)) - M, b)


def affine(y, args):
    return args[0] @ y + args[1]


@pytest.mark.parametrize("damping", [1.0, 0.3])
@pytest.mark.parametrize("eigenvalues", [(-4.0, 0.99), (-4.0, 0.99, 0.5, -0.7, 0.0), (-4.0, 1.3, 0.99, 0.2)])
def test_linear_maps_where_plain_iteration_fails(eigenvalues, damping):
    M, b, truth = linear_map(eigenvalues)
    solver = AndersonSolver(1e-10, 1e-10, memory=6, damping=damping)
    solution = optx.fixed_point(affine, solver, jnp.zeros(len(b)), (M, b), max_steps=60)
    np.testing.assert_allclose(solution.value, truth, rtol=1e-7, atol=1e-7)
    assert solution.stats["num_steps"] <= 3 * len(b) + 6
    plain = optx.FixedPointIteration(1e-10, 1e-10)
    failed = optx.fixed_point(affine, plain, jnp.zeros(len(b)), (M, b), max_steps=60, throw=False)
    assert failed.result != optx.RESULTS.successful


def test_more_eigenvalues_than_memory():
    M, b, truth = linear_map(np.concatenate([[-4.0, 0.99], np.linspace(-0.9, 0.9, 18)]), seed=3)
    solver = AndersonSolver(1e-10, 1e-10, memory=6, damping=0.4)
    solution = optx.fixed_point(affine, solver, jnp.zeros(20), (M, b), max_steps=400)
    np.testing.assert_allclose(solution.value, truth, rtol=1e-6, atol=1e-6)


def overshooting(y, strength):
    return {"a": jnp.cos(strength * y["b"]), "b": jnp.sin(y["a"]) - 2.5 * y["b"]}


def test_nonlinear_map_over_a_tree():
    solver = AndersonSolver(1e-12, 1e-12, damping=0.5)
    y0 = {"a": jnp.full(3, 0.2), "b": jnp.full(3, 0.1)}
    solution = optx.fixed_point(overshooting, solver, y0, jnp.array([1.0, 2.0, 3.0]))
    again = overshooting(solution.value, jnp.array([1.0, 2.0, 3.0]))
    for key in y0:
        np.testing.assert_allclose(again[key], solution.value[key], atol=3e-12)


@pytest.mark.parametrize("damping", [1.0, 1e-3])
def test_stops_on_the_undamped_residual(damping):
    """A rule that reads the damped step would call a residual 1000 times the tolerance a success."""
    solver = AndersonSolver(0.0, 1e-4, memory=1, damping=damping)
    f = lambda y, args: jnp.tanh(0.5 * y) + 1 + 0.2 * jnp.sin(3 * y[::-1])  # noqa: E731
    solution = optx.fixed_point(f, solver, jnp.array([5.0, -3.0]), max_steps=100_000)
    assert np.max(np.abs(f(solution.value, None) - solution.value)) < 1e-4


def test_running_out_of_steps_is_not_success():
    M, b, _ = linear_map((-4.0, 0.99, 0.5, -0.7))
    solver = AndersonSolver(1e-12, 1e-12)
    solution = optx.fixed_point(affine, solver, jnp.zeros(4), (M, b), max_steps=3, throw=False)
    assert solution.result == optx.RESULTS.nonlinear_max_steps_reached
    assert solution.stats["relative_error"] > 1


def test_no_fixed_point_is_not_success():
    solver = AndersonSolver(1e-9, 1e-9)
    solution = optx.fixed_point(lambda y, _: y**2 + y + 1, solver, jnp.ones(()), max_steps=200, throw=False)
    assert solution.result != optx.RESULTS.successful


def test_retreats_from_where_the_map_is_not_finite():
    f = lambda y, _: jnp.where(jnp.all(y < 1.2), 3 - 4 * jnp.exp(y - 1) + y, jnp.nan)  # noqa: E731
    solution = optx.fixed_point(f, AndersonSolver(1e-11, 1e-11), jnp.full(2, -2.0), max_steps=200)
    np.testing.assert_allclose(solution.value, 1 + np.log(0.75), rtol=1e-9)


@pytest.mark.parametrize("start", [2.0, jnp.inf])
def test_a_start_that_is_not_finite_is_reported(start):
    f = lambda y, _: jnp.where(y < 1, y / 2, jnp.nan)  # noqa: E731
    solution = optx.fixed_point(f, AndersonSolver(1e-9, 1e-9), jnp.asarray(start), throw=False)
    assert solution.result in (optx.RESULTS.nonlinear_divergence, optx.RESULTS.nonfinite)


def test_gradient_is_the_finite_difference():
    def root(strength):
        y0 = {"a": jnp.full(1, 0.2), "b": jnp.full(1, 0.1)}
        solution = optx.fixed_point(overshooting, AndersonSolver(1e-13, 1e-13, damping=0.5), y0, strength)
        return solution.value["a"][0] * solution.value["b"][0]

    step = 1e-5
    difference = (root(jnp.array([1.5 + step])) - root(jnp.array([1.5 - step]))) / (2 * step)
    np.testing.assert_allclose(jax.grad(root)(jnp.array([1.5]))[0], difference, rtol=1e-7)


def test_jit_is_plain():
    M, b, _ = linear_map((-4.0, 0.99, 0.5))
    solve = lambda b: optx.fixed_point(affine, AndersonSolver(1e-11, 1e-11), jnp.zeros(3), (M, b)).value  # noqa: E731
    with jax.disable_jit():
        plain = solve(b)
    np.testing.assert_allclose(jax.jit(solve)(b), plain, rtol=1e-8)


def test_bad_options():
    with pytest.raises(ValueError, match="memory"):
        AndersonSolver(1e-9, 1e-9, memory=0)
    with pytest.raises(ValueError, match="damping"):
        AndersonSolver(1e-9, 1e-9, damping=0.0)
