r"""Landau's expansion of a linear network's free energy around its incoherent point, Eq. (posterior.14).

.. math::  F = F_0 + \tfrac12\lambda a^2 + b\,a^4, \qquad
           b = \tfrac1{24}F''''[e,e,e,e] - \tfrac12\langle c, H^{-1}c\rangle, \qquad c = \tfrac12F'''[e,e,\cdot]

along the softest direction :math:`e`, all even modes eliminated. At the instability :math:`\lambda = 0`, and the sign of
:math:`b` is the order of the transition.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from widefield.solvers import definite
from widefield.theories.posterior.branches import adjacent_correlation
from widefield.theories.posterior.linear import free_energy as linear
from widefield.theories.posterior.linear.stationary import LinearState


class Landau(NamedTuple):
    r"""``softest`` is :math:`\lambda`, ``quartic`` is :math:`b`; ``correlation`` is the largest adjacent-state correlation
    per unit of the amplitude :math:`a`."""

    softest: float
    quartic: float
    correlation: float


def landau(state: LinearState) -> Landau:
    """The coefficients at an incoherent point.

    Method: derivatives by JAX; H⁻¹c by conjugate gradients among the even lags, where H is positive.
    """
    assert isinstance(state.layout, linear.Joint)
    softest, direction = definite.smallest_eigenvalue(linear.free_energy, state.point, (state.layout,), rtol=1e-12)
    quartic = float(_quartic(jnp.asarray(state.point), linear.mirrored(state.layout), jnp.asarray(direction)))
    L = np.linalg.cholesky(state.point)
    moved = linear.kernel(state.layout, L @ direction @ np.swapaxes(L, -1, -2))
    scale = np.diag(np.diagonal(state.hidden))
    return Landau(softest, quartic, adjacent_correlation(state.problem, np.asarray(moved)[0], scale))


@jax.jit
def _quartic(S: Array, layout: linear.Joint, e: Array) -> Array:
    value = lambda E: linear.free_energy(definite.displaced(S, E), layout)[0]  # noqa: E731
    along = lambda a: value(a * e)  # noqa: E731
    fourth = along
    for _ in range(4):
        fourth = jax.grad(fourth)
    gradient = lambda a: jax.grad(value)(a * e)  # noqa: E731
    second = jax.jacfwd(jax.jacfwd(gradient))(0.0)
    even = lambda E: linear.unbroken(0.5 * (E + jnp.swapaxes(E, -1, -2)), layout)  # noqa: E731
    c = even(0.5 * second)
    product = lambda E: even(jax.jvp(jax.grad(value), (jnp.zeros_like(S),), (E,))[1])  # noqa: E731
    response, _ = jax.scipy.sparse.linalg.cg(product, c, tol=1e-13, maxiter=1000)
    return fourth(0.0) / 24 - 0.5 * jnp.sum(c * response)
