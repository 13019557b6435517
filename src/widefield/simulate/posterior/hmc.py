r"""Hamiltonian Monte Carlo that moves exactly under the Gaussian prior and is kicked by the labels alone."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from widefield.simulate.networks.forward import Array, Parameters
from widefield.simulate.posterior.law import Law, potential

ACCEPTANCE = 0.8
FIRST_STEP, LARGEST_STEP = 0.2, 0.8
MAX_LEAPS = 200
DURATION = 0.75 * math.pi  # a quarter turn forgets the prior; soft modes near a transition need longer
SHRINKAGE, DELAY, FORGETTING = 0.05, 10.0, 0.75  # Hoffman & Gelman (2014), Section 3.2


class StepSize(NamedTuple):
    """Dual averaging of the log step size; ``mean`` is the one to freeze."""

    log: Float[Array, ""]
    mean: Float[Array, ""]
    excess: Float[Array, ""]
    n_seen: Float[Array, ""]


def first_step() -> StepSize:
    """Before anything is known."""
    log = jnp.log(FIRST_STEP)
    return StepSize(log, log, jnp.zeros(()), jnp.zeros(()))


def adapt(step: StepSize, acceptance: Float[Array, ""]) -> StepSize:
    """Step size after a trajectory with this acceptance probability (Eq. 6 of Hoffman & Gelman)."""
    n_seen = step.n_seen + 1
    weight = 1 / (n_seen + DELAY)
    excess = (1 - weight) * step.excess + weight * (ACCEPTANCE - acceptance)
    log = jnp.log(FIRST_STEP) + math.log(3.0) - jnp.sqrt(n_seen) / SHRINKAGE * excess
    log = jnp.minimum(log, math.log(LARGEST_STEP))
    share = n_seen**-FORGETTING
    return StepSize(log, share * log + (1 - share) * step.mean, excess, n_seen)


def move(
    position: Parameters, key: Array, step: StepSize, warm: Bool[Array, ""], law: Law
) -> tuple[Parameters, StepSize, Float[Array, "2"]]:
    """One trajectory; while ``warm`` is true the step size adapts. Also: acceptance probability and leaps taken."""
    size = jnp.exp(jnp.where(warm, step.log, step.mean))
    position, acceptance, leaps = transition(position, key, size, law)
    adapted = adapt(step, acceptance)
    step = jax.tree.map(lambda new, old: jnp.where(warm, new, old), adapted, step)
    return position, step, jnp.stack([acceptance, leaps.astype(acceptance.dtype)])


def transition(
    position: Parameters, key: Array, step: Float[Array, ""], law: Law
) -> tuple[Parameters, Float[Array, ""], Array]:
    r"""A Metropolis step that leaves :math:`e^{-|\theta|^2/2}\,p(y|\theta)` invariant, for standardized weights.

    Returns the new position, the acceptance probability and the number of leaps. Method: fresh momenta; leaps of at most
    ``step`` for a time drawn around `DURATION`; accept or stay. The time is drawn independently of the position, so the
    proposal is reversible and, being made of rotations and shears, keeps volumes.
    """
    for_momentum, for_rest = jax.random.split(key)
    momentum = normals(for_momentum, position)
    stretch, threshold = jax.random.uniform(for_rest, (2,))
    duration = DURATION * (0.5 + stretch)
    leaps = jnp.clip(jnp.ceil(duration / step), 1, MAX_LEAPS).astype(int)
    size = jnp.minimum(duration / leaps, step)
    proposed, momentum_, rise = _leapfrog(position, momentum, size, leaps, law)
    change = rise + _kinetic(proposed, momentum_) - _kinetic(position, momentum)
    acceptance = jnp.where(jnp.isfinite(change), jnp.exp(jnp.minimum(-change, 0.0)), 0.0)
    taken = threshold < acceptance
    return jax.tree.map(lambda new, old: jnp.where(taken, new, old), proposed, position), acceptance, leaps


def _leapfrog(
    position: Parameters, momentum: Parameters, step: Float[Array, ""], leaps: Array, law: Law
) -> tuple[Parameters, Parameters, Float[Array, ""]]:
    r"""Kick by :math:`\frac\epsilon2 \nabla\ln p(y|\theta)`, rotate by :math:`\epsilon`, kick by half, and again.

    Returns position, momentum and the rise of the potential. The rotation solves the prior's :math:`\dot\theta = p`,
    :math:`\dot p = -\theta` exactly: the error is that of the likelihood alone, and the step size falls no faster than
    :math:`N^{-1/4}`. First and last gradients come from the same loop, which keeps the compiled program small.
    """
    look = jax.value_and_grad(potential)

    def leap(i, state):
        q, p, first, _ = state
        angle = jnp.where(i == 0, 0.0, step)
        c, s = jnp.cos(angle), jnp.sin(angle)
        q, p = jax.tree.map(lambda q, p: c * q + s * p, q, p), jax.tree.map(lambda q, p: c * p - s * q, q, p)
        height, slope = look(q, law)
        kick = jnp.where((i == 0) | (i == leaps), step / 2, step)
        p = jax.tree.map(lambda p, g: p - kick * g, p, slope)
        return q, p, jnp.where(i == 0, height, first), height

    zero = jnp.zeros((), law.inputs.dtype)
    q, p, first, last = jax.lax.fori_loop(0, leaps + 1, leap, (position, momentum, zero, zero))
    return q, p, last - first


def _kinetic(q: Parameters, p: Parameters) -> Float[Array, ""]:
    """Energy of the free rotation."""
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves((q, p))), jnp.zeros(())) / 2


def normals(key: Array, like: Parameters) -> Parameters:
    """Standard normal numbers in the shape of ``like``, drawn at once: their generator is slow to compile."""
    leaves, tree = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    drawn = jax.lax.optimization_barrier(jax.random.normal(key, (int(ends[-1]),), leaves[0].dtype))
    parts = jnp.split(drawn, ends[:-1])
    return jax.tree.unflatten(tree, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])
