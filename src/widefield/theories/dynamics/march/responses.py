r"""The responses A and B as two-time functions, from the site's own paths: what sources in its causal equations do.

Eq. (dynamics.7), with the equal-time part of B, Eq. (dynamics.10). Both contain η, never Δ; r and u are fields of the initial weights.
Langevin noise adds its own responses :math:`C\odot\langle\partial\varphi/\partial r\rangle` (Eqs. 105–111 of Bordelon & Pehlevan, 2022),
C being the covariance of the weights that it makes: they act on the fields and are not reported.

Method: sources at one step s are followed through all later rows t on every path, Eq. (dynamics.18). What a source does
depends on A and B at steps from s on alone: going through s from the last to the first, one pass suffices. Linear
networks have equal slopes on all paths, one of which is exact. Cost T³P³ per layer and path, twice that with kinks: two
sizes of the kicks, extrapolated to none.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from widefield.theories.dynamics.march import kernels, sources
from widefield.theories.dynamics.march.batch import Batch
from widefield.theories.dynamics.problem import Problem

NAMES = ("forward_response", "backward_response")
BLOCK_BYTES = 2**27  # of the sources that are followed together
LEAST_KEPT = 1e-12  # of the initial weights, where noise has made others
Pair = tuple[np.ndarray, np.ndarray]  # A and B


def sizes(problem: Problem, n_steps: int, n_paths: int) -> dict[str, int]:
    """Bytes that either takes, with its share of the work arrays: all rows are needed, whichever are kept."""
    if not problem.responses:
        raise ValueError("`quantities`: method='independent' has no responses.")
    if problem.training.temperature and np.abs(memory_of_updates(problem)[0]).min() < LEAST_KEPT:
        raise ValueError(
            "`quantities`: responses are those to the initial weights, of which `weight_decay` leaves nothing."
        )
    rows, n, depth = len(problem.rates), problem.task.n_samples, problem.network.depth
    channels = problem.n_channels
    states = 1 if problem.by_layer else depth
    one = 8 * channels * depth * states * n**2
    n_paths = 1 if problem.exact else n_paths
    paths = 8 * rows * depth * n * n_paths * (2 + 2 * channels)
    followed = 8 * rows * depth * n * (channels + 1) ** 2 * states * n_paths
    kept = 2 if problem.exact else 12  # of 8 batches
    need = n_passes(problem) * one * (4 * rows**2 + kept * n_steps**2) + paths + max(followed, BLOCK_BYTES)
    return dict.fromkeys(NAMES, need)


def n_passes(problem: Problem) -> int:
    """How often sources are followed: with two sizes at kinks."""
    return 2 if problem.network.activation.breaks else 1


def n_products(problem: Problem, n_paths: int) -> int:
    """Multiplications of all passes."""
    depth, n, channels = problem.network.depth, problem.task.n_samples, problem.n_channels
    states = 1 if problem.by_layer else depth
    followed = (channels + 1) * states * n * (1 if problem.exact else n_paths)
    return n_passes(problem) * followed * depth * 2 * channels * states * n**2 * len(problem.rates) ** 3 // 6


def responses(
    problem: Problem, batch: Batch, rows: tuple[int, ...], advance: Callable[[int], None]
) -> tuple[Pair, Pair | None, float]:
    """A and B (channel, state, state_, step, step_, sample, sample_), state_ of length 1 for layers, from the paths of one batch.

    With kinks also what half the size of the kicks changed, and how many paths make them small enough at ``rows``.
    """
    n, activation = problem.task.n_samples, problem.shape.activation
    if problem.exact:
        T, depth, channels = len(problem.rates), problem.network.depth, problem.n_channels
        flat = sources.slopes(np.ones((T, depth, n, 1)), np.zeros((channels, T, depth, n, 1)))
        return _respond(problem, batch, flat, advance), None, 0.0
    h = kernels.stack(batch.samples, "preactivation")
    z = np.moveaxis(kernels.stack(batch.samples, "pregradient"), 1, 0)
    if not problem.network.activation.breaks:
        return _respond(problem, batch, sources.smooth(activation, h, z), advance), None, 0.0
    fine, coarse = (
        _respond(problem, batch, sources.kicks(activation, h, z, factor * sources.KICK), advance) for factor in (1, 2)
    )
    A, B = (a - b for a, b in zip(fine, coarse, strict=True))
    return (fine[0] + A, fine[1] + B), (A, B), sources.paths_needed(h, rows)


def _respond(problem: Problem, batch: Batch, paths: sources.Paths, advance: Callable[[int], None]) -> Pair:
    n_rows, n = len(problem.rates), problem.task.n_samples
    work = _Couplings(problem, batch, paths)
    per_row = 8 * n_rows * problem.network.depth * n * paths.n_paths
    per_sample = work.C.nbytes // n + per_row * (work.n_channels + 1) ** 2 * work.J
    block = int(np.clip(BLOCK_BYTES // max(per_sample, 1), 1, n))
    for s in reversed(range(n_rows)):
        for first in range(0, n, block):
            work.add_sources(s, np.arange(first, min(first + block, n)))
        advance(1)
    B = np.zeros_like(work.B)
    if problem.by_layer:
        B[:, :-1] = work.B[:, 1:]
    else:
        B[:, :-1, :-1] = work.B[:, 1:, 1:]
    return work.A, B


def _initial_weights(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How much of an initial weight is left at row t, of those into each state (state, step) and of those that z of a channel
    reads (channel, state, step), and how a weight at t covaries with the one at s, over the latter (state, t, s).
    """
    depth, matrices = problem.network.depth, problem.shape.matrices
    channels = [c for c in problem.readouts for _ in range(problem.shape.n_outputs)]
    kept, _ = memory_of_updates(problem)
    scales = np.broadcast_to(problem.training.initial_scale, (2 + len(set(matrices)),))
    into = np.array([scales[0], *(scales[1 + m] for m in matrices)])
    out = lambda k, c: 0.0 if k > c else scales[-1] if k == c else into[k + 1]  # noqa: E731
    read = np.array([[out(k, c) for k in range(depth)] for c in channels])
    left = into[:, None] * kept
    carried = np.broadcast_to(left[:, :, None], (depth, len(kept), len(kept)))
    if problem.training.temperature:
        carried = carried + shaken_covariance(problem) / left[:, None, :]
    return left, read[:, :, None] * kept, carried


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


def weight_mask(problem: Problem, k: int, l: int) -> float:
    """√(w w') M of the transitions into states k and l, which are not the first."""
    w, matrices = problem.network.weight_variances, problem.shape.matrices
    return float(np.sqrt(w[k - 1] * w[l - 1])) * (matrices[k - 1] == matrices[l - 1])


def _upward(problem: Problem, k: int, l: int) -> float:
    """The mask of the transitions out of states k and l; g = γ0 N_L ∂f/∂h brings a ratio of widths."""
    a = problem.network.relative_widths
    return weight_mask(problem, k + 1, l + 1) * float(a[k + 1] / a[k])


class _Couplings:
    """Couplings C (state, t, μ, s, channel, state_, α) and D (channel, state, t, μ, s, state_, α) of Eq. (dynamics.18).

    They begin as what updates have written; A and B are added as they become known. Paths live at independent sites:
    one for all states, or one for each where layers are independent, so that state_ has length 1.
    """

    def __init__(self, problem: Problem, batch: Batch, paths: sources.Paths):
        self.problem, self.paths, self.gamma = problem, paths, problem.richness
        self.depth, self.T, self.n = problem.network.depth, len(problem.rates), problem.task.n_samples
        self.n_channels, every = problem.n_channels, tuple(range(self.depth))
        self.sites = tuple((k,) for k in every) if problem.by_layer else (every,)
        self.J = len(self.sites[0])
        self.into, self.read, self.carried = _initial_weights(problem)
        self.A = np.zeros((self.n_channels, self.depth, self.J, self.T, self.T, self.n, self.n))
        self.B = np.zeros_like(self.A)  # ∂g/∂u of the same state
        self._learn(batch)

    def _site(self, k: int) -> tuple[int, int]:
        """Which site state ``k`` belongs to and its place there."""
        return (k, 0) if self.problem.by_layer else (0, k)

    def _learn(self, batch: Batch) -> None:
        r""":math:`C = \kappa(t,s)\Delta_\alpha(s)[M w\Phi + X]`, :math:`D = \kappa\sum_{c'}\Delta^{c'}G^{cc'}` and the readout's own motion."""
        problem, n, depth, T = self.problem, self.n, self.depth, self.T
        by_layer, v = problem.by_layer, problem.network.readout_variance
        phi, G = (make(batch.samples, batch.weight, by_layer) for make in (kernels.features, kernels.gradients))
        _, kappa = memory_of_updates(problem)
        channels = [(c, o) for c in problem.readouts for o in range(problem.shape.n_outputs)]
        read = jnp.asarray(batch.prediction[:, list(problem.readouts), :n])
        delta = -np.asarray(jax.vmap(lambda f: problem.shape.gradient(f, jnp.asarray(problem.labels)))(read))
        delta = delta.transpose(1, 3, 0, 2).reshape(-1, T, n)  # of every channel
        place = lambda state: 0 if by_layer else state  # noqa: E731
        X = problem.inputs.kernel.reshape(depth, n, depth, n)
        self.C = np.zeros((depth, T, n, T, len(channels), self.J, n))
        self.D = np.zeros((len(channels), depth, T, n, T, self.J, n))
        for k, j, l in ((k, j, l) for states in self.sites for k in states for j, l in enumerate(states)):
            below = X[k, :, l] + (weight_mask(problem, k, l) * phi[k - 1, place(l - 1)] if k and l else 0.0)
            below = np.broadcast_to(below, (T, T, n, n))
            self.C[k, :, :, :, :, j] = np.einsum("tsma,ts,csa->tmsca", below, kappa, delta)
            for i, (c, o) in enumerate(channels):
                learned = self.D[i, k, :, :, :, j]
                if max(k, l) + 1 < depth:
                    above = _upward(problem, k, l) * G[i, :, k + 1, place(l + 1)]
                    learned += np.einsum("dtsma,ts,dsa->tmsa", above, kappa, delta)
                if k == c:
                    own_motion = [d for e, d in zip(channels, delta, strict=True) if e == (l, o)]
                    moved = np.einsum("ts,sa->tsa", kappa, sum(own_motion, np.zeros((T, n))))
                    learned += v * moved[:, None]

    def add_sources(self, s: int, samples: np.ndarray) -> None:
        """What sources at step ``s`` do later. Sources: r of every channel, then u, of every state and given sample."""
        every = (self.n_channels + 1, self.J, len(samples), self.paths.n_paths)
        shape = (len(self.sites), self.T - s)
        phi = np.zeros((*shape, self.J, self.n, *every))
        g = np.zeros((*shape, self.n_channels, self.J, self.n, *every))
        for t in range(s, self.T):
            moved = [self._forward(s, t, k, samples, phi, g) for k in range(self.depth)]
            for k in reversed(range(self.depth)):
                self._backward(s, t, k, samples, phi, g, moved[k])

    def _forward(self, s: int, t: int, k: int, samples, phi, g) -> np.ndarray:
        """δh of state k at row t; A of it enters h of state k + 1."""
        i, j = self._site(k)
        h = self.gamma * _driven(self.C[k, t, :, s:t], g[i, : t - s])
        if t == s:
            h[samples, -1, j, np.arange(len(samples))] += self.into[k, t]
        moved = self.paths.feature(s, t, self.sites[i], k, h)
        phi[i, t - s, j] = moved
        A = moved[:, :-1].mean(axis=-1) / self.gamma  # (μ, channel, state_, α)
        self.A[:, k, :, t, s][..., samples] = A.transpose(1, 2, 0, 3)
        for j, l in enumerate(self.sites[self._site(k + 1)[0]]) if k + 1 < self.depth else ():
            if l:
                factor = weight_mask(self.problem, k + 1, l) * self.carried[k + 1, t, s]
                known = self.A[:, k, 0 if self.J == 1 else l - 1, t, s][..., samples]  # (channel, μ, α)
                self.C[k + 1, t, :, s, :, j][..., samples] += factor * known.transpose(1, 0, 2)
        return h

    def _backward(self, s: int, t: int, k: int, samples, phi, g, h: np.ndarray) -> None:
        """δg of state k at row t; ∂g/∂u of it enters z of state k − 1."""
        i, j = self._site(k)
        for c in range(self.n_channels):
            z = self.gamma * _driven(self.D[c, k, t, :, s : t + 1], phi[i, : t - s + 1])
            if t == s:
                z[samples, c, j, np.arange(len(samples))] += self.read[c, k, t]
            moved = self.paths.gradient(s, t, self.sites[i], k, c, h, z)
            g[i, t - s, c, j] = moved
            self.B[c, k, :, t, s][..., samples] = (moved[:, -1].mean(axis=-1) / self.gamma).transpose(1, 0, 2)
        for j, l in enumerate(self.sites[self._site(k - 1)[0]]) if k else ():
            if l + 1 < self.depth:
                factor = _upward(self.problem, k - 1, l) * self.carried[k, t, s]
                known = self.B[:, k, 0 if self.J == 1 else l + 1, t, s][..., samples]
                self.D[:, k - 1, t, :, s, j][..., samples] += factor * known


def _driven(coupling: np.ndarray, past: np.ndarray) -> np.ndarray:
    """Σ over everything that ``past`` (…, channel, state, sample, path) has before its sources."""
    n, sources = coupling.shape[0], past.shape[-4:]
    inner, outer = coupling.size // n, int(np.prod(sources))
    return (coupling.reshape(n, inner) @ past.reshape(inner, outer)).reshape(n, *sources)
