r"""The landscape of a linear network: the free energy at its best under one correlation, by an augmented Lagrangian.

.. math::  m = \frac{\mathrm{tr}H_{ab}}{\sqrt{\mathrm{tr}H_{aa}\,\mathrm{tr}H_{bb}}} = m_0, \qquad \eta = \frac{dF}{dm_0}

Eq. (posterior.17). It holds maxima and barriers as well as minima, each from its neighbor.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.solvers import definite
from widefield.theories.posterior.branches import Advance, LandscapePoint
from widefield.theories.posterior.linear import free_energy as linear
from widefield.theories.posterior.problem import Array, Problem, correlation, correlation_forms

STIFFNESS, ROUNDS = 20.0, 60


class Constraint(NamedTuple):
    """The correlation as three linear forms of S, its target, and the field that holds it there, up to a stiff spring."""

    forms: tuple[Float[Array, "1 rank rank"], ...]
    target: Float[Array, ""]
    multiplier: Float[Array, ""]


def lagrangian(S: Array, layout: linear.Joint, constraint: Constraint) -> tuple[Array, Array]:
    """Augmented Lagrangian of the free energy at a given correlation, and its gradient."""
    value, gradient = linear.free_energy(S, layout)
    m, slope = correlation(S, constraint.forms)
    off = m - constraint.target
    value = value - constraint.multiplier * off + 0.5 * STIFFNESS * off**2
    return value, gradient + (STIFFNESS * off - constraint.multiplier) * slope


@jax.jit
def constrained_minimum(S: Array, layout: linear.Joint, constraint: Constraint, tolerance: Array, max_steps: int):
    """Point, field, violation and free energy at the target, by updating the multiplier until the correlation is there."""

    def go_on(c):
        _, _, off, gradient, n = c
        return ((jnp.abs(off) > tolerance) | (gradient > tolerance)) & (n < ROUNDS)

    def body(c):
        S, multiplier, _, _, n = c
        at = constraint._replace(multiplier=multiplier)
        minimum = definite.minimize(lagrangian, S, (layout, at), tolerance=0.1 * tolerance, max_steps=max_steps)
        off = correlation(minimum.point, at.forms)[0] - constraint.target
        return minimum.point, multiplier - STIFFNESS * off, off, minimum.gradient, n + 1

    big = jnp.asarray(jnp.inf)
    S, multiplier, off, gradient, _ = jax.lax.while_loop(go_on, body, (S, constraint.multiplier, big, big, 0))
    return S, multiplier, jnp.maximum(jnp.abs(off), gradient), linear.free_energy(S, layout)[0]


def landscape_points(
    problem: Problem, pair: tuple[int, int], values: np.ndarray, rtol: float, max_steps: int, advance: Advance
) -> list[LandscapePoint | None]:
    """All values, outwards from the one closest to zero."""
    root, inverse = linear.roots(linear.random_kernel(problem)[None])
    layout = linear.Joint(problem, root, inverse, np.eye(root.shape[-1])[None])
    forms = tuple(root.swapaxes(-1, -2) @ form @ root for form in correlation_forms(problem, *pair))
    middle = int(np.argmin(np.abs(values)))
    points: dict[int, LandscapePoint] = {}
    for path in (range(middle, len(values)), range(middle - 1, -1, -1)):
        S, field = np.eye(root.shape[-1])[None], np.zeros(())
        for i in path:
            constraint = Constraint(forms, np.asarray(values[i]), field)
            S, field, off, free = constrained_minimum(S, layout, constraint, rtol, max_steps)
            kernel = np.asarray(linear.kernel(layout, np.asarray(S))[0])
            points[i] = LandscapePoint(kernel, kernel, float(free), float(field), float(off), float(off))
            advance(1)
    return [points[i] for i in range(len(values))]
