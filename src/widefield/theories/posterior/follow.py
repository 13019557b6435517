r"""Branches of a linear network's stationary points as functions of a factor on the labels or on the temperature."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widefield.solvers import definite
from widefield.theories.posterior import branches, linear
from widefield.theories.posterior.branches import Stationary
from widefield.theories.posterior.problem import Problem

ALONG = ("labels", "temperature")


class LinearBranches(NamedTuple):
    """Follows the incoherent and the coherent branch of one problem; ``along`` names what the factor multiplies."""

    layout: linear.Joint
    along: str
    tolerance: float
    max_steps: int

    def at(self, factor: float) -> linear.Joint:
        """The coordinates of the problem at another factor: the random network, and so they, stay the same."""
        problem = self.layout.problem
        changed = {self.along: getattr(problem, self.along) * factor}
        return self.layout._replace(problem=problem._replace(**changed))

    def incoherent(self, factor: float, start: Stationary | None = None) -> Stationary:
        """The minimum among kernels without odd lags, from the random network or a point nearby."""
        point = np.eye(self.layout.root.shape[-1])[None] if start is None else start.point
        return self._descend(factor, point, even=True)

    def coherent(self, factor: float, start: Stationary) -> Stationary | None:
        """The minimum that a search without constraint reaches from ``start``, if it is coherent.

        From an unstable incoherent point the search begins along its most unstable direction.
        """
        point = branches.displaced(start, 0.1) if start.branch == "incoherent" else start.point
        found = self._descend(factor, point, even=False)
        return found if found.gradient <= self.tolerance and found.branch == "coherent" else None

    def _descend(self, factor: float, start: np.ndarray, *, even: bool) -> Stationary:
        return branches.descend(self.at(factor), start, even=even, tolerance=self.tolerance, max_steps=self.max_steps)


def linear_branches(problem: Problem, along: str, *, tolerance: float, max_steps: int) -> LinearBranches | None:
    """Branches to follow; None where the problem has no symmetry that a transition could break."""
    layout = linear.layout_of(problem)
    if not (isinstance(layout, linear.Joint) and branches.is_symmetric(problem)):
        return None
    return LinearBranches(layout, along, tolerance, max_steps)


class Landau(NamedTuple):
    r"""The free energy near the incoherent point, :math:`F_0 + \tfrac12\lambda a^2 + b\,a^4`, even modes eliminated.

    ``softest`` is :math:`\lambda`, ``quartic`` is :math:`b`; ``correlation`` is the largest adjacent-state correlation
    per unit of the amplitude :math:`a`.
    """

    softest: float
    quartic: float
    correlation: float


def landau(found: Stationary) -> Landau:
    r"""Landau coefficients along the softest direction :math:`e` of an incoherent point.

    .. math::  b = \tfrac1{24}F''''[e,e,e,e] - \tfrac12\langle c, H^{-1}c\rangle, \qquad c = \tfrac12F'''[e,e,\cdot]

    Method: derivatives by JAX; :math:`H^{-1}c` by conjugate gradients among the even lags, where H is positive.
    """
    softest, direction = definite.smallest_eigenvalue(linear.free_energy, found.point, (found.layout,), rtol=1e-12)
    quartic = float(_quartic(jnp.asarray(found.point), linear.mirrored(found.layout), jnp.asarray(direction)))  # type: ignore[arg-type]
    L = np.linalg.cholesky(found.point)
    moved = linear.kernel(found.layout, L @ direction @ np.swapaxes(L, -1, -2))
    scale = np.diag(np.diagonal(found.kernel))
    return Landau(softest, quartic, branches.adjacent_correlation(found.problem, np.asarray(moved)[0], scale))


@jax.jit
def _quartic(S, layout, e):
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
    answer, _ = jax.scipy.sparse.linalg.cg(product, c, tol=1e-13, maxiter=1000)
    return fourth(0.0) / 24 - 0.5 * jnp.sum(c * answer)
