r"""The moment between features and pre-activations of a saddle point, :math:`\Psi = \langle\varphi h^{\mathsf T}\rangle`.

A solution stores :math:`\Phi` and :math:`C`, which fix the density :math:`p(h)` (see `saddle_map`); :math:`\Psi` is averaged
over it afresh. The same nodes give :math:`\langle\varphi\varphi^{\mathsf T}\rangle`, which must be the solution's.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from widefield.gaussian.kernels import parity_of
from widefield.question.activation import Activation
from widefield.theories.posterior.nonlinear import annealed, moments, saddle_map
from widefield.theories.posterior.nonlinear.saddle import COLLAPSED, MAX_DIMENSION, levels_of
from widefield.theories.posterior.problem import Problem

SETTLED = 1e-8  # relative change from one grid to the next
N_DRAWS, N_BATCHES = 1 << 17, 16
CONSISTENT, SPREAD = 1e-4, 6.0  # how far <φφ> may be from a solution's: of its largest entry, in standard errors


class Moment(NamedTuple):
    """``cross`` and ``feature`` (batch, node, node_) by independent batches of nodes; grids have one.

    ``change`` is the relative change of ``cross`` from the grid before, zero for draws.
    """

    cross: np.ndarray
    feature: np.ndarray
    change: float = 0.0


def cross_moment(problem: Problem, activation: Activation, feature: Any, hidden: Any, seed: int = 0) -> Moment:
    r""":math:`\langle\varphi_a h_b\rangle` over the density of a state (Φ, C).

    Method: grids up to four dimensions, until two agree to 1e-8; Sobol draws beyond, annealed ones where their weights
    collapse.
    """
    prior = saddle_map.prior_state(problem, activation)
    frame = saddle_map.saddle_map(problem, activation, None, prior, np.ones(problem.input_kernel.shape, bool))
    state = saddle_map.State(jnp.asarray(feature), jnp.asarray(hidden))
    density = frame.density(state)
    dimension = frame.basis.embed.shape[1]
    if dimension > MAX_DIMENSION:
        return _by_draws(activation, density, state.hidden, dimension, seed)
    before = None
    for nodes in levels_of(frame, parity_of(activation) != 0):
        cross, products, _ = _sums(nodes(), activation, density, state.hidden)
        moment = Moment(np.asarray(cross), np.asarray(products))
        change = np.inf if before is None else np.abs(moment.cross - before.cross).max() / np.abs(moment.cross).max()
        before, moment = moment, moment._replace(change=float(change))
        if change <= SETTLED:
            break
    return moment


def _by_draws(activation: Activation, density: moments.Density, hidden: Array, dimension: int, seed: int) -> Moment:
    nodes = moments.draws(dimension, min(N_DRAWS, moments.capacity(dimension)), seed, N_BATCHES)
    cross, feature, share = _sums(nodes, activation, density, hidden)
    if share < COLLAPSED:
        sample = annealed.anneal(activation, density, N_DRAWS // (4 * N_BATCHES), seed, N_BATCHES)
        cross, feature, _ = _sums(annealed.nodes_of(sample, activation, density), activation, density, hidden)
    return Moment(np.asarray(cross), np.asarray(feature))


@eqx.filter_jit
def _sums(
    nodes: moments.Nodes, activation: Activation, density: moments.Density, hidden: Array
) -> tuple[Array, Array, Array]:
    """<φhᵀ> and <φφᵀ> by batch, and the effective share of all nodes."""
    return moments.batch_products(nodes, activation, density, hidden, lambda phi, h: ((phi, h), (phi, phi)))
