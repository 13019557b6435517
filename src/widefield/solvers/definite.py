r"""Minimization over positive definite matrices: a Riemannian trust region, and how stable its minima are.

A point is a stack :math:`S` (block, n, n). Near it, :math:`S(E) = L(1 + E + \tfrac12E^2)L^{\!T}` with
:math:`S = LL^{\!T}` and symmetric :math:`E`; this never leaves the positive definite matrices and is a geodesic to
second order, so that Newton's method in :math:`E` knows the curvature of the space. Units of the point drop out: the
gradient :math:`L^{\!T}GL` and the Hessian's eigenvalues do not change under :math:`S \to ASA^{\!T}`.

A function to minimize is ``function(S, *args) -> (value, G)`` with the symmetric gradient :math:`G = dF/dS`; Hessian
products are its derivative. ``project(E, *args)`` restricts the search to a linear sector that holds the start.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

Array = Any  # NumPy or JAX, whichever comes in
Stack = Float[Array, "block n n"]
MAX_RADIUS = 2.0
DENSE = 64  # numbers of unknowns up to which eigenvalues are computed densely
LANCZOS_BLOCK, MAX_LANCZOS = 32, 320


class Minimum(NamedTuple):
    """Where the search ended. ``gradient`` is the largest entry of L^T G L, in units that the point sets."""

    point: Stack
    value: Array
    gradient: Array
    steps: Array
    products: Array


def inverse(A: Float[Array, "*batch n n"]) -> tuple[Float[Array, "*batch n n"], Float[Array, " *batch"]]:
    """The inverse and the log determinant of positive definite matrices; their derivatives are products alone."""
    return _inverse(A) if isinstance(A, jax.Array) else _inverse_on_host(A)


def _inverse_on_host(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same for NumPy, with nothing to compile."""
    L, eye = root_on_host(A), np.eye(A.shape[-1])
    half = np.empty_like(A)
    for block in np.ndindex(A.shape[:-2]):
        half[block] = scipy.linalg.solve_triangular(L[block], eye, lower=True, check_finite=False)
    return half.swapaxes(-1, -2) @ half, 2 * np.log(np.diagonal(L, axis1=-2, axis2=-1)).sum(axis=-1)


def root_on_host(A: np.ndarray) -> np.ndarray:
    """Cholesky's factors by NumPy; NaN where a matrix is not positive definite."""
    try:
        return np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        return np.full_like(A, np.nan)


@jax.custom_jvp
def _inverse(A):
    L = jnp.linalg.cholesky(A)
    eye = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    half = jax.scipy.linalg.solve_triangular(L, eye, lower=True)
    return half.mT @ half, 2 * jnp.sum(jnp.log(jnp.diagonal(L, axis1=-2, axis2=-1)), axis=-1)


@_inverse.defjvp
def _inverse_jvp(primals, tangents):
    (A,), (dA,) = primals, tangents
    B, log_det = _inverse(A)
    return (B, log_det), (-B @ dA @ B, jnp.sum(B * dA, axis=(-1, -2)))


class _Local(NamedTuple):
    """The function around a point, which is ``root`` times its transpose."""

    point: Stack
    root: Stack
    value: Array
    gradient: Stack


def _anywhere(E, *args):
    """No sector: the projection that changes nothing."""
    del args
    return E


def _symmetric(A):
    return 0.5 * (A + A.mT)


def _local(function, project, S, args) -> _Local:
    L = jnp.linalg.cholesky(S)
    value, G = function(S, *args)
    return _Local(S, L, value, project(_symmetric(L.mT @ G @ L), *args))


def _hessian_at(function, project, at: _Local, args) -> Callable[[Stack], Stack]:
    """The Riemannian Hessian as a function of E; what does not depend on E is computed once."""
    L, g = at.root, at.gradient
    _, derivative = jax.linearize(lambda S: function(S, *args)[1], at.point)

    def product(E):
        change = L.mT @ derivative(L @ E @ L.mT) @ L + 0.5 * (g @ E + E @ g)
        return project(_symmetric(change), *args)

    return product


def _moved(L, E):
    """S(E)."""
    eye = jnp.eye(L.shape[-1], dtype=L.dtype)[None]
    # 1 + E + E²/2 = (1 + (1 + E)²)/2
    one = eye + E
    return _symmetric(0.5 * L @ (eye + one @ one) @ L.mT)


def _dot(A, B):
    return jnp.sum(A * B)


def _step(product: Callable, g, radius, max_products):
    """Truncated conjugate gradients (Steihaug): the step, by how much it should lower the value, and its products.

    Stops at the boundary of the region, along the first direction of negative curvature, or when the model's gradient
    has fallen by the square of the outer one (quadratic convergence).
    """
    norm = jnp.sqrt(_dot(g, g))
    target = norm * jnp.minimum(0.1, norm)

    def to_boundary(E, d):
        """The positive τ at which |E + τd| = radius."""
        a, b, c = _dot(d, d), _dot(E, d), _dot(E, E) - radius**2
        return (-b + jnp.sqrt(jnp.maximum(b * b - a * c, 0))) / a

    def body(c):
        E, r, d, rr, n, _ = c
        Hd = product(d)
        curvature = _dot(d, Hd)
        alpha = rr / jnp.where(curvature > 0, curvature, 1)
        ahead = E + alpha * d
        outside = (curvature <= 0) | (_dot(ahead, ahead) >= radius**2)
        alpha = jnp.where(outside, to_boundary(E, d), alpha)
        r = r + alpha * Hd
        new = _dot(r, r)
        return E + alpha * d, r, -r + new / rr * d, new, n + 1, outside | (jnp.sqrt(new) <= target)

    zero = jnp.zeros_like(g)
    start = (zero, g, -g, norm**2, jnp.zeros((), int), norm == 0)
    E, r, *_, n, _ = jax.lax.while_loop(lambda c: ~c[-1] & (c[4] < max_products), body, start)
    return E, -0.5 * _dot(E, g + r), n  # r = g + HE


@partial(jax.jit, static_argnames=("function", "project", "max_products"))
def minimize(
    function: Callable,
    start: Stack,
    args: tuple = (),
    *,
    project: Callable = _anywhere,
    tolerance: float = 1e-11,
    radius: float = 0.5,
    max_steps: int = 200,
    max_products: int = 400,
) -> Minimum:
    """A local minimum near ``start``; converged where the returned ``gradient`` is at most ``tolerance``.

    Method: trust region with Steihaug's truncated conjugate gradients; directions of negative curvature are followed
    to the boundary. Below the roundings of the value a step counts as good if it lowers the gradient.
    """
    largest = lambda at: jnp.max(jnp.abs(at.gradient), initial=0)  # noqa: E731
    limit = MAX_RADIUS * np.sqrt(max(1, start.shape[0] * start.shape[1]))

    def go_on(c):
        at, radius, n, _ = c
        return (largest(at) > tolerance) & (n < max_steps) & (radius > 1e-12)

    def body(c):
        at, radius, n, products = c
        product = _hessian_at(function, project, at, args)
        E, predicted, used = _step(product, at.gradient, radius, max_products)
        new = _local(function, project, _moved(at.root, E), args)
        blind = predicted < 1e-12 * (1 + jnp.abs(at.value))
        ratio = jnp.where(blind, jnp.where(largest(new) < largest(at), 1.0, 0.0), (at.value - new.value) / predicted)
        ratio = jnp.where(jnp.isfinite(new.value) & jnp.isfinite(largest(new)), ratio, -1.0)
        size = jnp.sqrt(_dot(E, E))
        radius = jnp.where(ratio < 0.25, 0.25 * size, radius)
        radius = jnp.where((ratio > 0.75) & (size > 0.9 * radius), jnp.minimum(2 * radius, limit), radius)
        at = jax.tree.map(lambda a, b: jnp.where(ratio > 0.05, a, b), new, at)
        return at, radius, n + 1, products + used

    first = _local(function, project, start, args)
    zero = jnp.zeros((), int)
    at, _, n, products = jax.lax.while_loop(go_on, body, (first, jnp.asarray(radius, start.dtype), zero, zero))
    return Minimum(at.point, at.value, largest(at), n, products)


def _pack(E):
    """Symmetric matrices as vectors, so that the inner product stays the same."""
    i, j = np.triu_indices(E.shape[-1])
    return (E[:, i, j] * np.where(i == j, 1, np.sqrt(2))[None]).reshape(-1)


def _unpack(vector, shape):
    i, j = np.triu_indices(shape[-1])
    entry = np.zeros(shape[1:], int)
    entry[i, j] = entry[j, i] = np.arange(len(i))
    return (vector.reshape(shape[0], -1) * np.where(i == j, 1, np.sqrt(0.5))[None])[:, entry]


@partial(jax.jit, static_argnums=0)
def hessian(function: Callable, S: Stack, args: tuple = ()) -> Float[Array, "unknown unknown"]:
    """The dense Riemannian Hessian over packed symmetric matrices."""
    product = _hessian_at(function, _anywhere, _local(function, _anywhere, S, args), args)
    n = S.shape[0] * S.shape[1] * (S.shape[1] + 1) // 2
    return jax.vmap(lambda v: _pack(product(_unpack(v, S.shape))))(jnp.eye(n, dtype=S.dtype))


@partial(jax.jit, static_argnums=(0, 5), donate_argnums=(3, 4))
def _lanczos(function, S, args, basis, tridiagonal, n_more, first):
    """``n_more`` Lanczos vectors more; ``tridiagonal`` is (diagonal, beside)."""
    product = _hessian_at(function, _anywhere, _local(function, _anywhere, S, args), args)

    def grow(k, carry):
        basis, (diagonal, beside) = carry
        v = _pack(product(_unpack(basis[k], S.shape)))
        alpha = basis[k] @ v
        before = jnp.where(k > 0, beside[k - 1], 0) * basis[jnp.maximum(k - 1, 0)]
        v = v - alpha * basis[k] - before
        norm, diagonal = jnp.linalg.norm(v), diagonal.at[k].set(alpha)
        return basis.at[k + 1].set(v / norm), (diagonal, beside.at[k].set(norm))

    return jax.lax.fori_loop(first, first + n_more, grow, (basis, tridiagonal))


def smallest_eigenvalue(
    function: Callable,
    S: Stack,
    args: tuple = (),
    *,
    rtol: float = 1e-2,
    dense: int = DENSE,
    block: int = LANCZOS_BLOCK,
) -> tuple[float, Array]:
    """The smallest eigenvalue of the Riemannian Hessian and its direction E; a minimum has none below zero.

    Method: dense for few unknowns, otherwise Lanczos until the error bound is ``rtol`` of the eigenvalue or 1e-6 of the
    largest one. Its vectors are not orthogonalized again: that makes copies of eigenvalues, not wrong ones.
    """
    n = S.shape[0] * S.shape[1] * (S.shape[1] + 1) // 2
    if n == 0:
        return np.inf, np.zeros(S.shape)
    if n <= dense:
        values, vectors = np.linalg.eigh(np.asarray(hessian(function, S, args)))
        return float(values[0]), _unpack(vectors[:, 0], S.shape)
    size = min(n - 1, MAX_LANCZOS) // block * block
    first = np.random.default_rng(0).normal(size=n)
    basis = jnp.zeros((size + 1, n)).at[0].set(first / np.linalg.norm(first))
    tridiagonal = jnp.zeros(size), jnp.zeros(size)
    for k in range(0, size, block):
        basis, tridiagonal = _lanczos(function, S, args, basis, tridiagonal, block, k)
        m = k + block
        diagonal, beside = (np.asarray(t)[:m] for t in tridiagonal)
        values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, beside[:-1])
        bound = beside[-1] * abs(vectors[-1, 0])
        if bound <= max(rtol * abs(values[0]), 1e-6 * values[-1]):
            break
    direction = vectors[:, 0] @ np.asarray(basis[:m])
    return float(values[0]), _unpack(direction / np.linalg.norm(direction), S.shape)


def gradient_at(function: Callable, S: Stack, E: Stack, args: tuple = ()) -> Stack:
    r"""dF/dE of F(S(E)) with :math:`M = L^{\!T}GL`: :math:`\tfrac12[(1 + E)M + M(1 + E)]`."""
    L = jnp.linalg.cholesky(S)
    M, one = L.mT @ function(_moved(L, E), *args)[1] @ L, jnp.eye(L.shape[-1], dtype=L.dtype)[None] + E
    return 0.5 * (one @ M + M @ one)


@jax.jit
def displaced(S: Stack, E: Stack) -> Stack:
    """The point that lies E away from S."""
    return _moved(jnp.linalg.cholesky(S), E)
