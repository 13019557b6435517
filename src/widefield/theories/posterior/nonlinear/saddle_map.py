r"""The saddle point of nonlinear networks as a map of order parameters onto themselves, and its fixed points.

Eq. (posterior.5) with :math:`\tilde\Phi` eliminated. The linearized map has an eigenvalue +1 exactly where a branch turns
unstable, Eq. (posterior.15). Pure JAX: a `SaddleMap` is a function of a vector, differentiable in it and in the arrays
of its problem. Where :math:`K` is singular (more samples than input dimensions, repeated or zero inputs) the density lives
on the range of :math:`K`: that of the prior, because the range of :math:`\langle\varphi\varphi^{\mathsf T}\rangle` is the span
of the features of all states in the support, whatever their density; no jitter.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Float, Int

from widefield.answer.certificate import Status
from widefield.gaussian import AbstractKernel, kernel_for
from widefield.gaussian.steepness import derivative
from widefield.question.activation import Activation
from widefield.solvers.anderson import AndersonSolver
from widefield.theories.posterior.nonlinear import moments
from widefield.theories.posterior.problem import Array, Problem, covariance, energy, label_response, library, returned
from widefield.theories.prior.core import keep_duplicates

RANK = 1e-12  # of the largest eigenvalue of the correlations: below it a direction is a linear relation
FAR = 1e4  # where an activation shows how it grows
MEMORY, DAMPING = 6, 0.3  # the map's eigenvalues reach −5
ON_THE_WAY = 1e-5  # tolerance at weaker labels
MAX_RATIO, MIN_RATIO, MAX_TRIES = 4.0, 1.005, 100  # of successive label sizes


class State(NamedTuple):
    r"""Order parameters: ``feature`` :math:`\Phi` and ``hidden`` :math:`C`, over nodes (state, sample)."""

    feature: Float[Array, "node node"]
    hidden: Float[Array, "node node"]


class Basis(NamedTuple):
    """Coordinates of the range of K: h = ``embed`` c, c = ``extract`` h."""

    embed: Float[Array, "node dimension"]
    extract: Float[Array, "dimension node"]


def prior_state(problem: Problem, activation: Activation) -> State:
    """The state without labels: C = K(Φ) and Φ = <φφ> under it, state by state; the mask is the problem's."""
    feature = np.zeros_like(problem.input_kernel)
    for _ in range(problem.depth):
        largest = float(np.max(np.diag(covariance(problem, feature))))
        feature, K = jax.device_get(_prior_step(kernel_for(activation, largest), problem, feature))
    return State(feature, K)


@eqx.filter_jit
def _prior_step(kernel: AbstractKernel, problem: Problem, feature: Array) -> tuple[Array, Array]:
    K = covariance(problem, feature)
    q = jnp.diag(K)
    table = kernel.table(q)
    row, column = {k: v[..., :, None] for k, v in table.items()}, {k: v[..., None, :] for k, v in table.items()}
    K = keep_duplicates(q[:, None], q[None], K)
    return kernel.pair(row, column, K, False)[0], K


def range_of(K: np.ndarray) -> Basis:
    """A basis of the range of K: its own axes where K has full rank, otherwise those of its correlations."""
    scale = np.sqrt(np.diag(K))
    scale = np.where(scale > 0, scale, 1)
    values, vectors = np.linalg.eigh(K / scale / scale[:, None])
    keep = values > RANK * values[-1]
    if keep.all():
        return Basis(np.eye(len(K)), np.eye(len(K)))
    return Basis(scale[:, None] * vectors[:, keep], vectors[:, keep].T / scale)


class SaddleMap(eqx.Module):
    r"""The map (Φ, C) → (<φφᵀ>, <hhᵀ>) on vectors of independent entries, each in units of the prior's scale.

    ``rows`` and ``columns`` list the pairs of nodes that are free; all others are zero (the odd-lag blocks of the
    incoherent branch). ``nodes`` are `moments.Nodes`, or None as long as nothing is averaged. The value is NaN where the
    state has no density: K not positive, or features that outgrow it.
    """

    problem: Problem
    basis: Basis
    nodes: moments.Nodes | None
    feature_scale: Float[Array, " node"]
    hidden_scale: Float[Array, " node"]
    rows: Int[Array, " pair"]
    columns: Int[Array, " pair"]
    activation: Activation = eqx.field(static=True)
    grows: bool = eqx.field(static=True)

    @property
    def dimension(self) -> int:
        """Of the density: depth times samples, less where inputs repeat."""
        return self.basis.embed.shape[1]

    def pack(self, state: State) -> Array:
        i, j = self.rows, self.columns
        scales = self.feature_scale, self.hidden_scale
        parts = [matrix[i, j] / (s[i] * s[j]) for matrix, s in zip(state, scales)]
        return library(*parts).concatenate(parts)

    def unpack(self, vector: Array) -> State:
        i, j = self.rows, self.columns
        scales = self.feature_scale, self.hidden_scale
        feature, hidden = (part * s[i] * s[j] for part, s in zip(vector.reshape(2, -1), scales))
        return State(self._filled(feature), self._filled(hidden))

    def _filled(self, entries: Array) -> Array:
        """The symmetric matrix with these free entries."""
        i, j = self.rows, self.columns
        zero = library(entries).zeros(self.problem.input_kernel.shape, entries.dtype)
        if isinstance(zero, jax.Array):
            return zero.at[i, j].set(entries).at[j, i].set(entries)
        zero[i, j] = zero[j, i] = entries
        return zero

    def on(self, nodes: moments.Nodes) -> "SaddleMap":
        """The map that averages over ``nodes``."""
        return eqx.tree_at(lambda m: m.nodes, self, nodes, is_leaf=lambda x: x is None)

    def density(self, state: State) -> moments.Density:
        r"""The density that the state implies."""
        embed, extract = self.basis
        lower = jnp.linalg.cholesky(extract @ covariance(self.problem, state.feature) @ extract.T)
        whitener = jax.scipy.linalg.solve_triangular(lower, jnp.asarray(extract), lower=True)
        excess = whitener @ state.hidden @ whitener.T - jnp.eye(len(lower), dtype=lower.dtype)
        pulled = label_response(self.problem, state.feature)[1]
        conjugate = pulled + 0.5 * returned(self.problem, whitener.T @ excess @ whitener)
        return moments.Density(embed @ lower, whitener, conjugate)

    def image(self, state: State, density: moments.Density) -> Array:
        """The moments of a density as a vector; ``state`` says where to put the nodes."""
        assert self.nodes is not None
        result = moments.averages(self.nodes, self.activation, density, state.hidden)
        image = self.pack(State(result.feature, result.hidden))
        if not self.grows:
            return image
        return jnp.where(growth(self.activation, density) < 0.5, image, jnp.nan)

    def __call__(self, vector: Array, args: None = None) -> Array:
        state = self.unpack(vector)
        return self.image(state, self.density(state))


class Report(NamedTuple):
    """The map at one vector with all that the nodes say: ``batches`` of nodes alone have the batch in front."""

    state: State
    density: moments.Density
    image: Array
    image_batches: Array
    log_normalizer: Array
    log_normalizer_batches: Array
    ess: Array
    growth: Array


def report(m: SaddleMap, vector: Array) -> Report:
    """Everything at once, so that it is compiled once, in NumPy; ``ess`` is a share of the nodes."""
    return jax.device_get(_report(m, vector))


@eqx.filter_jit
def density_at(m: SaddleMap, vector: Array) -> moments.Density:
    """The density at one vector."""
    return m.density(m.unpack(vector))


@eqx.filter_jit
def _report(m: SaddleMap, vector: Array) -> Report:
    assert m.nodes is not None
    state = m.unpack(vector)
    density = m.density(state)
    pooled, batches = moments.all_averages(m.nodes, m.activation, density, state.hidden)
    pack = lambda result: m.pack(State(result.feature, result.hidden))  # noqa: E731
    share = pooled.ess / (m.nodes.n_chunks * moments.CHUNK)
    top = growth(m.activation, density, 256, 200) if m.grows else jnp.zeros(())
    image = jnp.where(top < 0.5, pack(pooled), jnp.nan)
    logs = pooled.log_normalizer, batches.log_normalizer
    return Report(state, density, image, jax.vmap(pack)(batches), *logs, share, top)


def saddle_map(
    problem: Problem, activation: Activation, nodes: moments.Nodes | None, prior: State, pairs: np.ndarray
) -> SaddleMap:
    """The map of a problem whose prior is known; ``pairs`` (node, node) is true where an entry is free."""
    rows, columns = np.nonzero(np.triu(pairs))
    scales = [np.sqrt(np.maximum(np.diag(np.asarray(matrix)), 0)) for matrix in prior]
    feature_scale, hidden_scale = (np.where(s > 0, s, 1.0) for s in scales)
    # An activation that grows at least like a root can overcome the Gaussian tails.
    ends = np.abs(derivative(activation.function, 0)(np.asarray([-FAR, FAR])))
    grows = bool(np.any(~np.isfinite(ends) | (ends > 1e-2 * FAR)))
    basis = range_of(np.asarray(prior.hidden))
    return SaddleMap(problem, basis, nodes, feature_scale, hidden_scale, rows, columns, activation, grows)


def growth(activation: Activation, density: moments.Density, n_starts: int = 32, n_steps: int = 40) -> Array:
    r"""Largest :math:`\varphi^{\mathsf T}\tilde\Phi\varphi/|z|^2` far out; at ½ the density no longer normalizes.

    For piecewise linear activations this is the copositivity of :math:`K^{-1} - 2D\tilde\Phi D` on every orthant.
    Ascent along z ← gradient from fixed directions, each of which is monotone: a lower bound of the maximum.
    """
    dimension = density.factor.shape[1]
    random = np.random.default_rng(0).normal(size=(n_starts, dimension))
    _, _, axes = jnp.linalg.svd(density.conjugate @ density.factor, full_matrices=False)
    start = jnp.concatenate([random, axes, -axes])
    unit = lambda z: z / jnp.linalg.norm(z, axis=-1, keepdims=True)  # noqa: E731

    def form(z):
        phi = activation.function(FAR * z @ density.factor.T) / FAR
        return jnp.sum(phi * (phi @ density.conjugate), axis=-1)

    # A multiple of |z|² makes the form convex along the way, so that no step goes down.
    size = jnp.linalg.norm(density.factor.T @ density.conjugate @ density.factor)
    step = lambda _, z: unit(jax.grad(lambda z: jnp.sum(form(z)))(z) + size * z)  # noqa: E731
    z = jax.lax.stop_gradient(jax.lax.fori_loop(0, n_steps, step, unit(start)))
    top = jnp.max(form(z))
    return jnp.where(jnp.all(density.conjugate == 0), 0.0, jnp.where(jnp.isnan(top), jnp.inf, top))


def free_energy(problem: Problem, state: State, conjugate: Array, log_normalizer: Array) -> tuple[Array, Array]:
    r"""Energy and entropy per neuron: ½ tr YR and KL(p ‖ N(0, K)) =
    :math:`\mathrm{tr}\tilde\Phi\Phi - \ln\int\!\mathcal N(h;0,K)e^{\varphi\tilde\Phi\varphi}`, Eq. (posterior.4)."""
    return energy(problem, state.feature), (conjugate * state.feature).sum() - log_normalizer


def free_energy_at(m: SaddleMap, state: State, density: moments.Density) -> Array:
    """The free energy of a state with the density it is given."""
    assert m.nodes is not None
    result = moments.averages(m.nodes, m.activation, density, state.hidden)
    cost, entropy = free_energy(m.problem, state, density.conjugate, result.log_normalizer)
    return cost + entropy


class Converged(NamedTuple):
    """Where an iteration ended, and how."""

    vector: Array
    status: Status
    steps: int


def iterate(m: SaddleMap, start: Array, tolerance: float, max_steps: int) -> Converged:
    """Anderson acceleration from ``start``; a map that is NaN from the start on ends as diverged or nonfinite."""
    accuracy = np.asarray(tolerance)  # an array: a number would be compiled in
    vector, solved, stopped, steps = jax.device_get(_iterate(m, start, accuracy, max_steps))
    lost = Status.diverged if m.grows else Status.nonfinite
    status = Status.success if solved else Status.not_converged if stopped else lost
    return Converged(vector, status, int(steps))


@eqx.filter_jit
def _iterate(m: SaddleMap, start: Array, accuracy: Any, max_steps: int) -> tuple[Array, Array, Array, Array]:
    """Where the iteration ends, whether it converged, whether it ran out of steps, and these."""
    solver = AndersonSolver(accuracy, accuracy, memory=MEMORY, damping=DAMPING)
    solution: Any = optx.fixed_point(m, solver, start, max_steps=max_steps, throw=False)
    ends = (solution.result == end for end in (optx.RESULTS.successful, optx.RESULTS.nonlinear_max_steps_reached))
    return solution.value, *ends, solution.stats["num_steps"]


def grow_labels(m: SaddleMap, prior: Array, tolerance: float, max_steps: int) -> Converged:
    """Follow the branch from weak labels to the given ones, by secant steps in the logarithm of their size.

    Strong labels leave no density at the prior: the pull on the features falls only once they have grown.
    """
    path: list[tuple[float, Array]] = []
    low, ratio, steps = 1.0, 2.0, 0

    def guess(goal: float) -> Array:
        if len(path) < 2:
            return path[-1][1] if path else prior
        (before, old), (now, new) = path
        return new + (new - old) * np.log(goal / now) / np.log(now / before)

    for _ in range(MAX_TRIES):
        goal = min(1.0, path[-1][0] * ratio) if path else 0.5 * low
        part = eqx.tree_at(lambda s: s.problem.labels, m, goal * m.problem.labels)
        point = iterate(part, guess(goal), tolerance if goal == 1 else ON_THE_WAY, max_steps)
        steps += point.steps
        if point.status is Status.success:
            path, ratio = [*path[-1:], (goal, point.vector)], min(ratio**1.5, MAX_RATIO)
            if goal == 1:
                return point._replace(steps=steps)
        elif not path:
            low = goal
        elif (ratio := np.sqrt(ratio)) < MIN_RATIO:
            break
    return Converged(path[-1][1] if path else prior, Status.diverged if m.grows else Status.not_converged, steps)
