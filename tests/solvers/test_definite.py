"""The trust region over positive definite matrices: known minima, known eigenvalues, invariance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widefield.solvers import definite

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def spread(n, blocks=1):
    A = RNG.normal(size=(blocks, n, 2 * n))
    return A @ A.swapaxes(-1, -2) / n


def divergence(S, C):
    """½(tr C⁻¹S − ln|S|): its minimum is S = C, its Riemannian Hessian there ½ in every direction."""
    C_inverse, S_inverse = definite.inverse(C)[0], definite.inverse(S)[0]
    value = 0.5 * (jnp.sum(C_inverse * S) - jnp.sum(definite.inverse(S)[1]))
    return value, 0.5 * (C_inverse - S_inverse)


def double_well(S, depth):
    """A scalar s = e^x with F = x⁴ − depth·x²: minima at x = ±√(depth/2), a maximum at 0."""
    x = jnp.log(S[0, 0, 0])
    return x**4 - depth * x**2, jnp.reshape((4 * x**3 - 2 * depth * x) / S[0, 0, 0], (1, 1, 1))


@pytest.mark.parametrize("blocks", [1, 3])
def test_it_finds_the_known_minimum(blocks):
    C = spread(4, blocks)
    start = np.broadcast_to(np.eye(4), C.shape)
    minimum = definite.minimize(divergence, start, (C,), tolerance=1e-12)
    np.testing.assert_allclose(minimum.point, C, rtol=1e-9, atol=1e-10)
    assert minimum.gradient <= 1e-12 and 0 < minimum.steps < 30
    value, direction = definite.smallest_eigenvalue(divergence, minimum.point, (C,))
    np.testing.assert_allclose([value, np.linalg.norm(direction)], [0.5, 1.0], rtol=1e-9)


def test_it_does_not_see_units():
    """S → ASAᵀ changes neither steps nor gradients, whatever the condition of A."""
    C, A = spread(3), np.diag([1e-4, 1.0, 1e4])
    starts = np.eye(3)[None], A @ A.T[None]
    plain, stretched = (
        definite.minimize(divergence, start, (target,)) for start, target in zip(starts, (C, A @ C @ A.T), strict=True)
    )
    assert plain.steps == stretched.steps
    np.testing.assert_allclose(stretched.point, A @ plain.point @ A.T, rtol=1e-8)


def test_convergence_is_quadratic():
    """Gradients at successive numbers of steps: each is about the square of the one before."""
    C, start = spread(5), np.eye(5)[None]
    gradients = [float(definite.minimize(divergence, start, (C,), max_steps=k).gradient) for k in range(3, 9)]
    late = [g for g in gradients if 1e-9 < g < 1e-1]
    assert len(late) >= 2 and late[-1] < 10 * late[-2] ** 2 + 1e-11


def test_a_maximum_is_left_and_its_eigenvalue_told():
    """At the top the gradient vanishes; a step aside ends in the minimum, and the Hessian tells the two apart."""
    top = definite.minimize(double_well, np.ones((1, 1, 1)), (2.0,))
    assert top.steps == 0 and top.gradient == 0
    eigenvalue, direction = definite.smallest_eigenvalue(double_well, np.asarray(top.point), (2.0,))
    np.testing.assert_allclose(eigenvalue, -4.0)
    bottom = definite.minimize(double_well, definite.displaced(top.point, 0.1 * direction), (2.0,))
    np.testing.assert_allclose(abs(np.log(bottom.point[0, 0, 0])), 1.0, rtol=1e-9)
    np.testing.assert_allclose(definite.smallest_eigenvalue(double_well, np.asarray(bottom.point), (2.0,))[0], 8.0)


def test_a_search_in_a_sector_stays_there():
    """Without its off-diagonal entries the best S is the inverse of C⁻¹'s diagonal."""
    C = spread(3)
    diagonal = lambda E, C: E * jnp.eye(3)[None]  # noqa: E731
    minimum = definite.minimize(divergence, np.eye(3)[None], (C,), project=diagonal)
    np.testing.assert_allclose(minimum.point[0], np.diag(1 / np.diag(np.linalg.inv(C[0]))), rtol=1e-9)


def test_too_few_steps_are_no_convergence():
    minimum = definite.minimize(divergence, np.eye(4)[None], (1e3 * spread(4),), max_steps=1)
    assert minimum.steps == 1 and minimum.gradient > 1e-3


def test_lanczos_agrees_with_the_dense_eigenvalue():
    S = spread(6)
    dense = definite.smallest_eigenvalue(divergence, S, (spread(6),))[0]
    S, C = spread(6), spread(6)
    dense = definite.smallest_eigenvalue(divergence, S, (C,))
    lanczos = definite.smallest_eigenvalue(divergence, S, (C,), rtol=1e-10, dense=0, block=10)
    np.testing.assert_allclose(lanczos[0], dense[0], rtol=1e-8)
    np.testing.assert_allclose(abs(np.sum(lanczos[1] * dense[1])), 1.0, rtol=1e-6)


def test_the_inverse_and_its_derivatives():
    A, E = spread(3)[0], RNG.normal(size=(3, 3))
    E = E + E.T
    (B, log_det), (dB, d_log) = jax.jvp(definite.inverse, (A,), (E,))
    np.testing.assert_allclose(B, np.linalg.inv(A), rtol=1e-9)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(A)[1], rtol=1e-12)
    np.testing.assert_allclose(dB, -np.linalg.inv(A) @ E @ np.linalg.inv(A), rtol=1e-9)
    np.testing.assert_allclose(d_log, np.trace(np.linalg.inv(A) @ E), rtol=1e-9)
