"""Newton's method and the derivative of a map: known fixed points, eigenvalues and responses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widefield.solvers.linearization import linearize
from widefield.solvers.newton import fixed_point

MATRIX = np.array([[0.3, -2.0, 0.0], [2.0, 0.3, 0.0], [0.5, 0.0, 1.5]])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


class Affine(eqx.Module):
    """v ↦ Mv + b, whose iteration diverges."""

    matrix: jax.Array
    offset: jax.Array

    def __call__(self, v):
        return self.matrix @ v + self.offset


class Cosine(eqx.Module):
    scale: jax.Array

    def __call__(self, v):
        return jnp.cos(self.scale * v)


class Root(eqx.Module):
    """NaN below −1."""

    def __call__(self, v):
        return jnp.sqrt(1 + v)


def test_an_affine_map_is_met_at_once():
    b = np.array([1.0, -1.0, 2.0])
    solved = fixed_point(Affine(jnp.asarray(MATRIX), jnp.asarray(b)), jnp.zeros(3), 1e-12, 3)
    assert solved.converged and solved.finite
    np.testing.assert_allclose(solved.vector, np.linalg.solve(np.eye(3) - MATRIX, b), rtol=1e-12)


def test_a_fixed_point_is_met_whatever_its_stability():
    """cos(v) contracts at its fixed point, cos(3v) does not."""
    for scale, root in ((1.0, 0.7390851332151607), (3.0, 0.3900402437000000)):
        solved = fixed_point(Cosine(jnp.asarray(scale)), jnp.full(2, 0.5), 1e-13, 50)
        assert solved.converged
        np.testing.assert_allclose(solved.vector, np.cos(scale * np.asarray(solved.vector)), atol=1e-12)
        np.testing.assert_allclose(solved.vector, root, atol=2e-3)


def test_failures_are_told_apart():
    few = fixed_point(Cosine(jnp.asarray(3.0)), jnp.full(2, 0.9), 1e-13, 1)
    assert not few.converged and few.finite
    nowhere = fixed_point(Root(), jnp.full(2, -3.0), 1e-13, 20)
    assert not nowhere.converged and not nowhere.finite


@pytest.mark.parametrize("dense", [600, 0])
def test_the_derivative_of_a_map(dense):
    jacobian = linearize(Affine(jnp.asarray(MATRIX), jnp.zeros(3)), jnp.ones(3), dense=dense)
    np.testing.assert_allclose(jacobian.value, MATRIX.sum(axis=1))
    np.testing.assert_allclose(jacobian.push(np.array([1.0, 0, 0])), MATRIX[:, 0])
    np.testing.assert_allclose(jacobian.solve(np.eye(3)), np.linalg.inv(np.eye(3) - MATRIX).T, atol=3e-3)
    assert jacobian.leading(np.zeros(3, bool)) == -np.inf
    if dense:
        np.testing.assert_allclose(jacobian.leading(None), 1.5)
        np.testing.assert_allclose(jacobian.leading(np.array([True, True, False])), 0.3)
        assert jacobian.orientation() == np.sign(np.linalg.det(np.eye(3) - MATRIX))
