r"""The responses A and B as two-time functions, from the site's own paths: what sources in its causal equations do.

.. math::
    A^{k;j,c}_{\mu\alpha}(t,s) = \frac1{\gamma_0}\Big\langle
    \frac{\partial\varphi(h^k_\mu(t))}{\partial r^{j;c}_\alpha(s)}\Big\rangle \quad (s < t), \qquad
    B^{k,c;j}_{\mu\alpha}(t,s) = \frac1{\gamma_0}\Big\langle
    \frac{\partial g^{k+1;c}_\mu(t)}{\partial u^{j+1}_\alpha(s)}\Big\rangle \quad (s \le t)

Eq. (dynamics.7); Eqs. 8–9 of Bordelon & Pehlevan (2022), with the equal-time part of B, Eq. (dynamics.10). Both contain η,
never Δ; r and u are fields of the initial weights. The march does not need them: it knows their products with the fields
that occur, in which they are not unique where fields of several samples or steps are linearly dependent.

Langevin noise adds its own responses :math:`A^\epsilon = C\odot\langle\partial\varphi/\partial r\rangle` (Eqs. 105–111
there), C being the covariance of the weights that it makes: they act on the fields and are not reported.

Method: sources at one step s are followed through all later rows t on every path, Eq. (dynamics.18). What a source does
depends on A and B at steps from s on alone: going through s from the last to the first, one pass suffices. Linear
networks have equal slopes on all paths, one of which is exact. Cost T³P³ per layer and path, twice that with kinks: two
sizes of the kicks, extrapolated to none.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.progress import bar
from widefield.theories.dynamics.march import kernels, sources
from widefield.theories.dynamics.march.batch import Batch
from widefield.theories.dynamics.problem import Problem

NAMES = ("forward_response", "backward_response")
BLOCK_BYTES = 2**27  # of the sources that are followed together
LEAST_KEPT = 1e-12  # of the initial weights, where noise has made others


def refuse(problem: Problem) -> None:
    """What has no such responses."""
    if not problem.responses:
        raise ValueError("`quantities`: method='independent' has no responses.")
    if problem.training.temperature and np.abs(memory_of_updates(problem)[0]).min() < LEAST_KEPT:
        raise ValueError(
            "`quantities`: responses are those to the initial weights, of which `weight_decay` leaves nothing."
        )


def sizes(problem: Problem, n_steps: int, n_paths: int) -> dict[str, int]:
    """Bytes that either takes, with its share of the work arrays: all rows are needed, whichever are kept."""
    rows, n, depth = len(problem.rates), problem.task.n_samples, problem.network.depth
    channels = problem.n_channels
    states = 1 if problem.by_layer else depth
    one = 8 * channels * depth * states * n**2
    n_paths = 1 if problem.exact else n_paths
    paths = 8 * rows * depth * n * n_paths * (2 + 2 * channels)
    followed = 8 * rows * depth * n * (channels + 1) ** 2 * states * n_paths
    kept = 2 if problem.exact else 12  # of 8 batches
    passes = 2 if problem.network.activation.breaks else 1
    need = passes * one * (4 * rows**2 + kept * n_steps**2) + paths + max(followed, BLOCK_BYTES)
    return dict.fromkeys(NAMES, need)


@dataclass(frozen=True)
class Site:
    """Where paths live: ``states`` of each independent site, all of them in one or each in its own."""

    states: tuple[tuple[int, ...], ...]

    def __getitem__(self, k: int) -> tuple[int, int]:
        """Which site state ``k`` belongs to and its place there."""
        return next((i, states.index(k)) for i, states in enumerate(self.states) if k in states)


@dataclass(frozen=True)
class Weights:
    """How much of an initial weight is left at row t, and how that of row t covaries with the one at row s, over the latter."""

    into: np.ndarray  # those into each state (state, step)
    read: np.ndarray  # those that z of a channel reads (channel, state, step)
    carried: np.ndarray  # (state, t, s): ``into`` at t, and more with Langevin noise


@dataclass(frozen=True)
class Responses:
    """A and B (channel, state, state_, step, step_, sample, sample_) of one batch; for layers state_ has length 1.

    ``changes``: what half the size of the kicks changed, for activations with kinks. ``paths_needed`` make
    them small enough at the chosen rows.
    """

    values: tuple[np.ndarray, np.ndarray]
    changes: tuple[np.ndarray, np.ndarray] | None = None
    paths_needed: float = 0.0


def responses(problem: Problem, batch: Batch, rows: tuple[int, ...], progress: bool | None) -> Responses:
    """Both, from the paths of one batch at all rows, of which ``rows`` are asked for."""
    n = problem.task.n_samples
    if problem.exact:
        T, depth, channels = len(problem.rates), problem.network.depth, problem.n_channels
        flat = sources.Slopes(np.ones((T, depth, n, 1)), np.zeros((channels, T, depth, n, 1)))
        return Responses(_respond(problem, batch, flat, progress))
    h = kernels.stack(batch.samples, "preactivation")[:, :, :n]
    z = np.moveaxis(kernels.stack(batch.samples, "pregradient")[:, :, :, :n], 1, 0)
    activation = problem.shape.activation
    if not problem.network.activation.breaks:
        return Responses(_respond(problem, batch, sources.slopes(activation, h, z), progress))
    fine, coarse = (
        _respond(problem, batch, sources.kicks(activation, h, z, factor * sources.KICK), progress) for factor in (1, 2)
    )
    A, B = (a - b for a, b in zip(fine, coarse, strict=True))
    return Responses((fine[0] + A, fine[1] + B), (A, B), sources.paths_needed(h, rows))


def _respond(
    problem: Problem, batch: Batch, paths: sources.Slopes | sources.Kicks, progress: bool | None
) -> tuple[np.ndarray, np.ndarray]:
    depth, n = problem.network.depth, problem.task.n_samples
    site = Site(tuple((k,) for k in range(depth)) if problem.by_layer else (tuple(range(depth)),))
    C, D = _learning(problem, batch, site)
    work = _Couplings(problem, site, paths, C, D)
    per_row = 8 * len(problem.rates) * depth * n * paths.n_paths
    per_sample = C.nbytes // n + per_row * (work.n_channels + 1) ** 2 * len(site.states[0])
    block = int(np.clip(BLOCK_BYTES // max(per_sample, 1), 1, n))
    with bar("responses", len(problem.rates), progress, 1e-10 * work.n_products) as advance:
        for s in reversed(range(len(problem.rates))):
            for first in range(0, n, block):
                work.add_sources(s, np.arange(first, min(first + block, n)))
            advance(1)
    B = np.zeros_like(work.B)
    if problem.by_layer:
        B[:, :-1] = work.B[:, 1:]
    else:
        B[:, :-1, :-1] = work.B[:, 1:, 1:]
    return work.A, B


def _weights(problem: Problem) -> Weights:
    depth, matrices = problem.network.depth, problem.shape.matrices
    channels = [c for c in problem.readouts for _ in range(problem.shape.n_outputs)]
    kept, _ = memory_of_updates(problem)
    scales = np.broadcast_to(problem.training.initial_scale, (2 + len(set(matrices)),))
    into = np.array([scales[0], *(scales[1 + m] for m in matrices)])
    out = lambda k, c: 0.0 if k > c else scales[-1] if k == c else into[k + 1]  # noqa: E731
    read = np.array([[out(k, c) for k in range(depth)] for c in channels])
    left, left_read = into[:, None] * kept, read[:, :, None] * kept
    carried = np.broadcast_to(left[:, :, None], (depth, len(kept), len(kept)))
    if problem.training.temperature:
        carried = carried + shaken_covariance(problem) / left[:, None, :]
    return Weights(left, left_read, carried)


def shaken_covariance(problem: Problem) -> np.ndarray:
    """Of what Langevin noise has added to a weight by rows t and s, (step, step_): Eq. (dynamics.12)."""
    T = len(problem.rates)
    covariance = np.zeros((T, T))
    for t in range(1, T):
        rate = problem.rates[t - 1]
        keep = 1 - rate * problem.training.weight_decay
        covariance[t, :t] = covariance[:t, t] = keep * covariance[t - 1, :t]
        covariance[t, t] = keep**2 * covariance[t - 1, t - 1] + 2 * rate * problem.training.temperature
    return covariance


def memory_of_updates(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """What is left at row t of the initial weights (step,), and of the gradient of step s (step, step_): Eq. (dynamics.11)."""
    T, tau = len(problem.rates), problem.training.momentum_time
    weight, speed, table, kept, left = np.zeros(T), np.zeros(T), np.zeros((T, T)), np.ones(T), 1.0
    for t, rate in enumerate(problem.rates):
        table[t], kept[t] = weight, left
        inertia = 1.0 if tau is None else rate / tau
        speed = (1 - inertia) * speed + inertia * np.eye(T)[t]
        keep = 1 - rate * problem.training.weight_decay
        weight, left = keep * weight + rate * speed, keep * left
    return kept, table


def _learning(problem: Problem, batch: Batch, site: Site) -> tuple[np.ndarray, np.ndarray]:
    r"""What updates have written: C (state, t, μ, s, channel, state_, α), D (channel, state, t, μ, s, state_, α).

    :math:`C = \kappa(t,s)\Delta_\alpha(s)[M w\Phi + X]`, :math:`D = \kappa\sum_{c'}\Delta^{c'}G^{cc'}` and the readout's
    own motion; :math:`\kappa` = η for plain descent.
    """
    n, depth, n_out = problem.task.n_samples, problem.network.depth, problem.shape.n_outputs
    by_layer = problem.by_layer
    phi, G = (make(batch.samples, batch.weight, n, by_layer) for make in (kernels.features, kernels.gradients))
    place = lambda l: 0 if by_layer else l  # noqa: E731
    _, kappa = memory_of_updates(problem)
    T, channels = len(kappa), [(c, o) for c in problem.readouts for o in range(n_out)]
    delta = error_signal(problem, batch)  # (channel, step, sample)
    X = problem.inputs.kernel
    X = X.reshape(depth, len(X) // depth, depth, -1)[:, :n, :, :n]
    J = len(site.states[0])
    C, D = np.zeros((depth, T, n, T, len(channels), J, n)), np.zeros((len(channels), depth, T, n, T, J, n))
    for states in site.states:
        for k in states:
            for j, l in enumerate(states):
                below = X[k, :, l] + (weight_mask(problem, k, l) * phi[k - 1, place(l - 1)] if k and l else 0.0)
                C[k, :, :, :, :, j] = np.einsum(
                    "tsma,ts,csa->tmsca", np.broadcast_to(below, (T, T, n, n)), kappa, delta
                )
                for i, (c, o) in enumerate(channels):
                    if max(k, l) + 1 < depth:
                        above = _upward(problem, k, l) * G[i, :, k + 1, place(l + 1)]
                        D[i, k, :, :, :, j] += np.einsum("dtsma,ts,dsa->tmsa", above, kappa, delta)
                    if k == c:
                        own_motion = [d for e, d in zip(channels, delta, strict=True) if e == (l, o)]
                        D[i, k, :, :, :, j] += (
                            problem.network.readout_variance
                            * np.einsum("ts,sa->tsa", kappa, sum(own_motion, np.zeros((T, n))))[:, None]
                        )
    return C, D


def error_signal(problem: Problem, batch: Batch) -> np.ndarray:
    """Δ (channel, step, sample) of the training samples."""
    read = jnp.asarray(batch.prediction[:, list(problem.readouts), : problem.task.n_samples])
    delta = -np.asarray(jax.vmap(lambda f: problem.shape.gradient(f, jnp.asarray(problem.labels)))(read))
    return delta.transpose(1, 3, 0, 2).reshape(-1, delta.shape[0], delta.shape[2])


def weight_mask(problem: Problem, k: int, l: int) -> float:
    """√(w w') M of the transitions into states k and l, which are not the first."""
    w, matrices = problem.network.weight_variances, problem.shape.matrices
    return float(np.sqrt(w[k - 1] * w[l - 1])) * (matrices[k - 1] == matrices[l - 1])


def _upward(problem: Problem, k: int, l: int) -> float:
    """The mask of the transitions out of states k and l; g = γ0 N_L ∂f/∂h brings a ratio of widths."""
    a = problem.network.relative_widths
    return weight_mask(problem, k + 1, l + 1) * float(a[k + 1] / a[k])


class _Couplings:
    """Couplings C and D, to which A and B are added as they become known."""

    def __init__(
        self, problem: Problem, site: Site, paths: sources.Slopes | sources.Kicks, C: np.ndarray, D: np.ndarray
    ):
        self.problem, self.site, self.paths, self.C, self.D = problem, site, paths, C, D
        self.weights = _weights(problem)
        self.n_channels, self.depth, self.T, self.n = D.shape[:4]
        self.J = len(site.states[0])
        self.A = np.zeros((self.n_channels, self.depth, self.J, self.T, self.T, self.n, self.n))
        self.B = np.zeros_like(self.A)  # ∂g/∂u of the same state
        self.gamma = problem.richness

    @property
    def n_products(self) -> int:
        """Multiplications of all passes."""
        followed = (self.n_channels + 1) * self.J * self.n * self.paths.n_paths
        return followed * self.depth * 2 * self.n_channels * self.J * self.n**2 * self.T**3 // 6

    def add_sources(self, s: int, samples: np.ndarray) -> None:
        """What sources at step ``s`` do later. Sources: r of every channel, then u, of every state and given sample."""
        every = (self.n_channels + 1, self.J, len(samples), self.paths.n_paths)
        shape = (len(self.site.states), self.T - s)
        phi = np.zeros((*shape, self.J, self.n, *every))
        g = np.zeros((*shape, self.n_channels, self.J, self.n, *every))
        for t in range(s, self.T):
            moved = [self._forward(s, t, k, samples, phi, g) for k in range(self.depth)]
            for k in reversed(range(self.depth)):
                self._backward(s, t, k, samples, phi, g, moved[k])

    def _forward(self, s: int, t: int, k: int, samples, phi, g) -> np.ndarray:
        i, j = self.site[k]
        h = self.gamma * _driven(self.C[k, t, :, s:t], g[i, : t - s])
        if t == s:
            h[samples, -1, j, np.arange(len(samples))] += self.weights.into[k, t]
        moved = self.paths.feature(s, t, self.site.states[i], k, h)
        phi[i, t - s, j] = moved
        A = moved[:, :-1].mean(axis=-1) / self.gamma  # (μ, channel, state_, α)
        self.A[:, k, :, t, s][..., samples] = A.transpose(1, 2, 0, 3)
        self._know_forward(s, t, k, samples)
        return h

    def _know_forward(self, s: int, t: int, k: int, samples) -> None:
        """A of state k enters h of state k + 1."""
        if k + 1 < self.depth:
            i, _ = self.site[k + 1]
            for j, l in enumerate(self.site.states[i]):
                if l:
                    place = 0 if self.J == 1 else l - 1
                    factor = weight_mask(self.problem, k + 1, l) * self.weights.carried[k + 1, t, s]
                    A = self.A[:, k, place, t, s][..., samples]  # (channel, μ, α)
                    self.C[k + 1, t, :, s, :, j][..., samples] += factor * A.transpose(1, 0, 2)

    def _backward(self, s: int, t: int, k: int, samples, phi, g, h: np.ndarray) -> None:
        i, j = self.site[k]
        for c in range(self.n_channels):
            z = self.gamma * _driven(self.D[c, k, t, :, s : t + 1], phi[i, : t - s + 1])
            if t == s:
                z[samples, c, j, np.arange(len(samples))] += self.weights.read[c, k, t]
            moved = self.paths.gradient(s, t, self.site.states[i], k, c, h, z)
            g[i, t - s, c, j] = moved
            self.B[c, k, :, t, s][..., samples] = (moved[:, -1].mean(axis=-1) / self.gamma).transpose(1, 0, 2)
        self._know_backward(s, t, k, samples)

    def _know_backward(self, s: int, t: int, k: int, samples) -> None:
        """∂g/∂u of state k enters z of state k − 1."""
        if k:
            i, _ = self.site[k - 1]
            for j, l in enumerate(self.site.states[i]):
                if l + 1 < self.depth:
                    place = 0 if self.J == 1 else l + 1
                    factor = _upward(self.problem, k - 1, l) * self.weights.carried[k, t, s]
                    self.D[:, k - 1, t, :, s, j][..., samples] += factor * self.B[:, k, place, t, s][..., samples]


def _driven(coupling: np.ndarray, past: np.ndarray) -> np.ndarray:
    """Σ over everything that ``past`` (…, channel, state, sample, path) has before its sources."""
    n, sources = coupling.shape[0], past.shape[-4:]
    inner, outer = coupling.size // n, int(np.prod(sources))
    return (coupling.reshape(n, inner) @ past.reshape(inner, outer)).reshape(n, *sources)
