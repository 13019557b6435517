r"""Features of inputs that were not trained on, on top of a saddle point.

.. math::
    h_* \mid h \sim \mathcal N\big(K_{*h}K^{-1}h,\; K_{**} - K_{*h}K^{-1}K_{h*}\big), \qquad
    \Phi_{*h} = \langle\varphi(h_*)\varphi(h)^{\mathsf T}\rangle

Eq. (posterior.11): test nodes do not change the training kernel. They run forward in state, because :math:`K_*` of a
state needs the features of the state before. Predictions need :math:`\Phi_{*S}` alone, and that only the variance of
each test node: one-dimensional integrals at every node of the saddle point's own rule.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from widefield.answer.boundary import x64
from widefield.gaussian import rules
from widefield.question.activation import Activation
from widefield.theories.posterior.nonlinear import moments
from widefield.theories.posterior.nonlinear.saddle import Saddle
from widefield.theories.posterior.problem import Problem, shifted

REACH, SPACING, PANEL_NODES = 8.0, 0.2, 24


class ConditionalMoments(NamedTuple):
    r"""``cross`` :math:`\Phi_{*h}` (test node, node) with the standard error of the draws (zero for quadrature) and
    ``second_moment`` <φ²> of each test node."""

    cross: np.ndarray
    cross_stderr: np.ndarray
    second_moment: np.ndarray


@x64
def features_of_test_inputs(
    problem: Problem,
    activation: Activation,
    saddle: Saddle,
    kernel_test_train: Float[np.ndarray, "test node"],
    kernel_test_test: Float[np.ndarray, "test test"],
) -> ConditionalMoments:
    """Features between test nodes (state, test sample) and training nodes; kernels as `problem.input_kernel_between` makes them."""
    m, depth, known = saddle.saddle_map, problem.depth, saddle.order_parameters
    assert m.nodes is not None
    n_test, n_batches, used = len(kernel_test_train) // depth, m.nodes.n_batches, int(m.nodes.n_chunks)
    density = m.density(known)
    placed = moments.frame(m.nodes, activation, density, known.hidden)
    cross = np.zeros((n_batches, *kernel_test_train.shape))
    mean, second = np.zeros(kernel_test_train.shape), np.zeros(len(kernel_test_train))
    for state in range(depth):
        rows = slice(state * n_test, (state + 1) * n_test)
        K = np.asarray(shifted(problem, jnp.asarray(mean)) + kernel_test_train)[rows]
        before = second[(state - 1) * n_test : state * n_test] if state else np.zeros(n_test)
        variance = np.asarray(problem.weight)[state, state] * before + np.diag(kernel_test_test)[rows]
        gain = K @ np.asarray(density.whitener).T  # means of the test nodes per unit of z
        deviation = np.sqrt(np.maximum(variance - np.sum(gain**2, axis=1), 0.0))
        log_z, tops, products, squares = _features(
            m.nodes.points[:used], m.nodes.log_weight[:used], activation, density, placed,
            jnp.asarray(gain), jnp.asarray(deviation),
        )  # fmt: skip
        share = np.asarray(jnp.exp(tops - jnp.max(tops)))
        weight, products = share * np.asarray(log_z), np.asarray(products)
        batches = share.reshape(n_batches, -1)
        sums = np.einsum("bc,bcij->bij", batches, products.reshape(*batches.shape, *products.shape[1:]))
        cross[:, rows] = sums / weight.reshape(batches.shape).sum(axis=1)[:, None, None]
        mean[rows] = sums.sum(axis=0) / weight.sum()
        second[rows] = share @ np.asarray(squares) / weight.sum()
    error = cross.std(axis=0, ddof=1) / np.sqrt(len(cross)) if len(cross) > 1 else np.zeros_like(mean)
    return ConditionalMoments(mean, error, second)


@eqx.filter_jit
def _features(points, log_weight, activation: Activation, density, frame, gain: Array, deviation: Array):
    """Sums over every chunk, in units of its largest weight: of weights, of φ(h_*)φ(h), of φ(h_*)²."""

    def chunk(part):
        log_term, h, phi = moments.log_terms(activation, density, frame, *part)
        top = jnp.max(log_term)
        weight = jnp.exp(log_term - top)
        mean = part[0] @ frame.to_white.T @ gain.T
        first, second = smoothed(activation, mean, deviation)
        return jnp.sum(weight), top, (weight[:, None] * first).T @ phi, weight @ second

    return jax.lax.map(chunk, (points, log_weight))


def smoothed(activation: Activation, mean: Float[Array, "node test"], deviation: Float[Array, " test"]):
    """Averages of φ and φ² over a Gaussian around ``mean``; panels end at the breaks of the activation."""
    if activation.breaks:
        safe = jnp.where(deviation > 0, deviation, 1)
        centers = (jnp.asarray(activation.breaks, mean.dtype)[None, None] - mean[..., None]) / safe[None, :, None]
        ends = jnp.full((*mean.shape, 1), REACH, mean.dtype)
        edges = jnp.concatenate([-ends, jnp.clip(centers, -REACH, REACH), ends], axis=-1)
        xi, weight = rules.panels(edges, PANEL_NODES, jnp)
    else:
        xi = np.arange(-REACH, REACH + SPACING / 2, SPACING)[None, None]
        weight = np.exp(-0.5 * xi**2)
    weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
    phi = activation.function(mean[..., None] + deviation[None, :, None] * xi)
    return jnp.sum(weight * phi, axis=-1), jnp.sum(weight * phi**2, axis=-1)
