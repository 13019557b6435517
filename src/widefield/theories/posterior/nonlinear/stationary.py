r"""The stationary state of a nonlinear network, what a solve for it is asked, and test inputs on top of it.

The saddle point is not the minimum of a known function of :math:`(\Phi, C)`, so a state's stability is read from the
saddle map: ``stability`` is :math:`1 - \mu` with :math:`\mu` its leading eigenvalue, zero exactly at an instability,
Eq. (posterior.15).
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.answer.boundary import x64
from widefield.answer.certificate import Status
from widefield.gaussian import rules
from widefield.question.activation import Activation
from widefield.theories.posterior.branches import COHERENT, StationaryState, adjacent_correlation, adjacent_trace
from widefield.theories.posterior.nonlinear import moments
from widefield.theories.posterior.nonlinear.saddle_map import SaddleMap, State
from widefield.theories.posterior.problem import Array, Problem, odd_lags, shifted

REACH, SPACING, PANEL_NODES = 8.0, 0.2, 24  # of averages over a test input
SPREAD = 4.0  # standard errors of an adjacent correlation that sampling alone may produce


@dataclass(frozen=True)
class SaddleOptions:
    """``rtol`` bounds residual and grid error in units of the prior's scale, ``sampling_rtol`` the 95 % limit on every
    sampled order parameter: draws are added until it is met, or ``n_paths`` of them are taken as they are."""

    rtol: float = 1e-7
    sampling_rtol: float = 1e-2
    max_steps: int = 300
    n_paths: int | None = None
    seed: int = 0
    integration: str = "auto"


@final
@dataclass(frozen=True, eq=False)
class Saddle(StationaryState):
    r"""A saddle point with its free energy, stability and error. Matrices are over nodes (state, sample), state-major.

    ``feature_stderr`` and ``hidden_stderr`` are standard errors, for quadrature the change on a finer grid; both include
    the amplification by the fixed point. ``residual`` is the undamped residual on the finer grid or on fresh draws, in
    units of the prior's scale, and ``deviation`` its root mean square in standard errors (about 1 if these are honest; 0
    for quadrature). ``mu`` is the largest real part of the map's eigenvalues, ``stability`` is 1 − ``mu``. ``ess`` is the
    effective share of the draws, ``rhat`` the annealed ones'.
    """

    conjugate: np.ndarray
    feature_stderr: np.ndarray
    hidden_stderr: np.ndarray
    energy: float
    entropy: float
    free_energy_stderr: float
    deviation: float
    mu: float
    ess: float
    rhat: float
    integration: str
    n_nodes: int
    status: Status
    saddle_map: SaddleMap

    @property
    def converged(self) -> bool:
        return self.status is Status.success

    @property
    def sampled(self) -> bool:
        return self.integration != "quadrature"

    @property
    def order_parameters(self) -> State:
        return State(self.feature, self.hidden)

    @property
    def noise(self) -> float:
        if not self.sampled:
            return COHERENT
        return max(COHERENT, SPREAD * adjacent_correlation(self.problem, self.hidden_stderr, self.hidden))

    def gauge_fixed(self) -> "Saddle":
        """Of the two states ±W, that whose adjacent states are positively correlated."""
        if adjacent_trace(self.problem, self.hidden) >= 0:
            return self
        sign = np.where(odd_lags(self.problem), -1.0, 1.0)
        turned: dict[str, Any] = {name: sign * getattr(self, name) for name in ("feature", "hidden", "conjugate")}
        return replace(self, **turned)


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
    r"""Features between test nodes (state, test sample) and training nodes, Eq. (posterior.11), forward in the states.

    Kernels are as `problem.input_kernel_between` makes them. Predictions need :math:`\Phi_{*S}` alone, and that only the
    variance of each test node: one-dimensional integrals at every node of the saddle point's own rule.
    """
    m, depth, known = saddle.saddle_map, problem.depth, saddle.order_parameters
    assert m.nodes is not None
    n_test, n_batches, used = len(kernel_test_train) // depth, m.nodes.n_batches, int(m.nodes.n_chunks)
    cross = np.zeros((n_batches, *kernel_test_train.shape))
    mean, second = np.zeros(kernel_test_train.shape), np.zeros(len(kernel_test_train))
    for state in range(depth):
        rows = slice(state * n_test, (state + 1) * n_test)
        K = (shifted(problem, mean) + kernel_test_train)[rows]
        before = second[(state - 1) * n_test : state * n_test] if state else np.zeros(n_test)
        variance = np.asarray(problem.weight)[state, state] * before + np.diag(kernel_test_test)[rows]
        weights, tops, products, squares = jax.device_get(_features(m, activation, used, known, K, variance))
        share = np.exp(tops - np.max(tops))
        weight = share * weights
        batches = share.reshape(n_batches, -1)
        sums = np.einsum("bc,bcij->bij", batches, products.reshape(*batches.shape, *products.shape[1:]))
        cross[:, rows] = sums / weight.reshape(batches.shape).sum(axis=1)[:, None, None]
        mean[rows] = sums.sum(axis=0) / weight.sum()
        second[rows] = share @ squares / weight.sum()
    error = cross.std(axis=0, ddof=1) / np.sqrt(len(cross)) if len(cross) > 1 else np.zeros_like(mean)
    return ConditionalMoments(mean, error, second)


@eqx.filter_jit
def _features(m: SaddleMap, activation: Activation, used: int, state: State, K: Array, variance: Array):
    """Sums over each of the ``used`` chunks, in units of its largest weight: of weights, of φ(h_*)φ(h), of φ(h_*)²."""
    assert m.nodes is not None
    density = m.density(state)
    placed = moments.frame(m.nodes, activation, density, state.hidden)
    gain = K @ density.whitener.T  # means of the test nodes per unit of z
    deviation = jnp.sqrt(jnp.maximum(variance - jnp.sum(gain**2, axis=1), 0.0))

    def chunk(part):
        log_term, h, phi = moments.log_terms(activation, density, placed, *part)
        top = jnp.max(log_term)
        weight = jnp.exp(log_term - top)
        mean = part[0] @ placed.to_white.T @ gain.T
        first, second = smoothed(activation, mean, deviation)
        return jnp.sum(weight), top, (weight[:, None] * first).T @ phi, weight @ second

    return jax.lax.map(chunk, (m.nodes.points[:used], m.nodes.log_weight[:used]))


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
