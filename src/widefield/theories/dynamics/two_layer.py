r"""Two-layer networks: every neuron follows its own equation of motion, and averages are deterministic (Appendix E).

.. math::
    h_\mu = \sqrt uLa, \qquad f = \frac{\sqrt v}{\gamma_0}\langle V\varphi(h)\rangle, \qquad
    a \leftarrow a + \eta\gamma_0L^T[\Delta\cdot\sqrt vV\,\varphi'(h)], \qquad
    V \leftarrow V + \eta\gamma_0\sqrt v\,\Delta^T\varphi(h)

Eq. 66 of Bordelon & Pehlevan (2022), for finite steps. The initial :math:`a` (one entry per direction of the input kernel
:math:`LL^T`) and :math:`V` (one per output) are standard normal and nothing random enters later: with at most three of
them, averages are quadratures. Given the errors :math:`\Delta(t)` neurons do not interact.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from widefield.answer.certificate import Status
from widefield.answer.progress import bar
from widefield.theories.dynamics import kernels, losses, paths
from widefield.theories.dynamics.answer import Answer, Estimate
from widefield.theories.dynamics.ensemble import FIRST_PATHS, N_BATCHES, Options, size
from widefield.theories.dynamics.march import Physics, initial_scales, label_alignment
from widefield.theories.dynamics.nodes import HOMOGENEOUS, MOST_DIMENSIONS, Rule, rules
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.run import DIVERGED, OVERFLOW, Run

GOAL, GOOD_ENOUGH = 1e-4, 1e-3  # of the error of predictions where no rtol is given: aimed at, and still accepted
MOST_NODES, MOST_NODES_ASKED = 2**20, 2**23  # without and with rtol
MOST_WORK = 16  # of a flow: evaluations per step and node of the largest rule
BLOCK = 8192  # nodes whose whole history is held at once
FIELDS = {
    "loss", "test_loss", "prediction", "test_prediction", "state_prediction", "ntk", "feature_kernel", "gradient_kernel",
    "preactivation", "pregradient", "alignment", "ntk_alignment",
}  # fmt: skip


class Site(NamedTuple):
    """Neurons: input weights ``a`` (direction, node), readouts ``V`` (output, node)."""

    a: Array
    V: Array


class Motion(NamedTuple):
    """Neurons and the momentum of their weights."""

    site: Site
    momentum: Site


@dataclass(frozen=True)
class Curves:
    """What one rule gives: outputs (step, sample, output), errors (step, train sample, output), loss, NTK."""

    rule: Rule
    prediction: np.ndarray
    delta: np.ndarray
    loss: np.ndarray
    ntk: np.ndarray | None
    diverged_at: int | None
    alignment: np.ndarray  # (step, 1)
    substeps: int | None  # of a flow


def applies(problem: Problem, options: Options) -> bool:
    """Two layers, nonlinear, without Langevin noise, with few enough Gaussians and no wish for sampled paths."""
    if problem.network.depth != 1 or problem.exact or problem.temperature or not problem.responses:
        return False
    n_variables = problem.physics.inputs.shape[-1] + problem.shape.n_outputs
    return options.sampling.paths is None and set(options.wanted) <= FIELDS and n_variables <= MOST_DIMENSIONS


def solve(problem: Problem, options: Options, flow: bool = False) -> Answer | None:
    """Rules of doubling resolution until outputs change by less than ``rtol``; None where they would be no good.

    Error: the change from the rule before, for every field; relative to the size of outputs in ``error``. With ``flow`` the same levels halve the steps of a fourth-order Runge–Kutta method.
    """
    rtol = options.sampling.rtol
    coarse, fine, error = refined(problem, options, flow)
    if coarse is None or fine is None or (rtol is None and error > GOOD_ENOUGH):
        return None
    found = _answer(problem, options, coarse, fine, error)
    enough = error <= (rtol or GOOD_ENOUGH) or found.status is not Status.success
    return found if enough else replace(found, status=Status.not_converged)


def refined(problem: Problem, options: Options, flow: bool) -> tuple[Curves | None, Curves | None, float]:
    """The last two rules and how far apart their outputs are."""
    rtol = options.sampling.rtol
    most = MOST_NODES if rtol is None else MOST_NODES_ASKED
    homogeneous = problem.network.activation.is_named and problem.network.activation.name in HOMOGENEOUS
    factor = np.asarray(problem.physics.inputs[0, : problem.task.n_samples])
    coarse, fine, error = None, None, np.inf
    for level, rule in enumerate(rules(homogeneous, factor, problem.shape.n_outputs, most)):
        if flow and 4 * 2**level * len(rule.weights) > MOST_WORK * most:
            break
        coarse, fine = fine, _march(problem, options, rule, 2**level if flow else None)
        error = np.inf if coarse is None else _change(coarse, fine, problem.least_output)
        if error <= (rtol or GOAL):
            break
    return coarse, fine, error


def _change(coarse: Curves, fine: Curves, least: float) -> float:
    """Largest change of an output, relative to their size; infinite where only one rule diverges."""
    if coarse.diverged_at != fine.diverged_at:
        return np.inf
    rows = slice(fine.diverged_at)
    return float(np.abs(fine.prediction[rows] - coarse.prediction[rows]).max()) / size(fine.prediction[rows], least)


def _march(problem: Problem, options: Options, rule: Rule, substeps: int | None) -> Curves:
    """All steps with one rule: descent, or flow in ``substeps`` Runge–Kutta steps per step."""
    physics, shape, weights = problem.physics, problem.shape, jnp.asarray(rule.weights)
    motion = start(physics, jnp.asarray(rule.nodes))
    function = shape.activation, shape.gradient
    seen = options.ntk, "alignment" in options.wanted
    rows: list[tuple] = []
    stop = None
    work = 3e-8 * rule.nodes.size * physics.inputs.shape[1] * len(problem.rates) * (4 * substeps if substeps else 1)
    with bar(f"{len(rule.weights)} nodes", len(problem.rates), options.sampling.progress, work) as advance:
        for t, rate in enumerate(problem.rates):
            row = tuple(np.asarray(v) for v in _observe(*function, *seen, physics, weights, motion.site))
            value = float(losses.total(problem.loss, jnp.asarray(row[0][None, : shape.n_train]), physics.labels))
            if (
                not np.isfinite(row[0]).all()
                or not np.isfinite(value)
                or value > DIVERGED * max(rows[0][-1] if rows else np.inf, 1.0)
            ):
                stop = t
                if not rows:
                    raise ValueError(OVERFLOW)
                break
            rows.append((*row, value))
            if substeps is None:
                motion = descend(shape.activation, physics, motion, jnp.asarray(row[1]), jnp.asarray(rate))
            else:
                for _ in range(substeps):
                    motion = advance_flow(*function, physics, weights, motion, jnp.asarray(rate / substeps))
            advance(1)
    n = len(problem.rates)
    f, delta, ntk, aligned, values = (_to_the_end(column, n) for column in zip(*rows, strict=True))
    return Curves(rule, f, delta, values, ntk if options.ntk else None, stop, aligned, substeps)


def _to_the_end(rows: tuple, n: int) -> np.ndarray:
    """Rows after a divergence are infinite."""
    found = np.asarray(rows)
    return np.concatenate([found, np.full((n - len(found), *found.shape[1:]), np.inf)])


def start(physics: Physics, nodes: Array) -> Motion:
    n_inputs = physics.inputs.shape[-1]
    first, last = initial_scales(physics, 0)
    site = Site(first * nodes[:n_inputs], last * nodes[n_inputs:])
    return Motion(site, jax.tree.map(jnp.zeros_like, site))


def neuron_fields(activation, physics: Physics, site: Site) -> tuple[Array, Array, Array]:
    """h, φ(h) and φ'(h), each (sample, node)."""
    h = physics.inputs[0] @ site.a
    value, slope = jax.jvp(activation, (h,), (jnp.ones_like(h),))
    return h, value, slope


@partial(jax.jit, static_argnames=("activation", "gradient", "ntk", "alignment"))
def _observe(activation, gradient, ntk: bool, alignment: bool, physics: Physics, weights: Array, site: Site):
    """Outputs of all inputs; errors, NTK (channel, channel_, sample, sample_) and alignment (1,) of the training ones."""
    _, phi, slope = neuron_fields(activation, physics, site)
    f, delta = outputs(gradient, physics, weights, phi, site)
    aligned = label_alignment(physics.labels, jnp.sqrt(weights) * phi[None], 1.0) if alignment else jnp.zeros(())
    if not ntk:
        return f, delta, jnp.zeros(()), aligned
    n, v = physics.labels.shape[1], physics.readout_variance
    n_outputs = len(site.V)
    g = (jnp.sqrt(v) * site.V[:, None] * slope[:n]).reshape(n_outputs * n, -1)
    G = ((weights * g) @ g.T).reshape(n_outputs, n, n_outputs, n).swapaxes(1, 2)
    Phi = (weights * phi[:n]) @ phi[:n].T
    outer = physics.inputs[0, :n] @ physics.inputs[0, :n].T
    return f, delta, G * outer + v * Phi * jnp.eye(n_outputs)[:, :, None, None], aligned


def outputs(gradient, physics: Physics, weights: Array, phi: Array, site: Site) -> tuple[Array, Array]:
    f = jnp.sqrt(physics.readout_variance) / physics.richness * (weights * phi) @ site.V.T
    n = physics.labels.shape[1]
    return f, -gradient(f[None, :n], physics.labels)[0]


def _push(activation, physics: Physics, site: Site, delta: Array) -> Site:
    """The pull of the loss on every neuron, per unit of time."""
    n = physics.labels.shape[1]
    _, phi, slope = neuron_fields(activation, physics._replace(inputs=physics.inputs[:, :n]), site)
    size = physics.richness * jnp.sqrt(physics.readout_variance)
    back = slope * (delta @ site.V)
    return Site(size * physics.inputs[0, :n].T @ back, size * delta.T @ phi)


@partial(jax.jit, static_argnames=("activation",))
def descend(activation, physics: Physics, motion: Motion, delta: Array, rate: Array) -> Motion:
    """One update by gradient descent."""
    kick = _push(activation, physics, motion.site, delta)
    inertia = physics.momentum * rate
    momentum = jax.tree.map(
        lambda old, new: jnp.where(inertia > 0, (1 - inertia) * old + inertia * new, new), motion.momentum, kick
    )
    keep = 1 - rate * physics.decay
    return Motion(jax.tree.map(lambda x, q: keep * x + rate * q, motion.site, momentum), momentum)


@partial(jax.jit, static_argnames=("activation", "gradient"))
def advance_flow(activation, gradient, physics: Physics, weights: Array, motion: Motion, time: Array) -> Motion:
    """One Runge–Kutta step of gradient flow."""

    def speed(now: Motion) -> Motion:
        _, phi, _ = neuron_fields(activation, physics, now.site)
        kick = _push(activation, physics, now.site, outputs(gradient, physics, weights, phi, now.site)[1])
        heavy = physics.momentum > 0
        force = jax.tree.map(lambda q, k: jnp.where(heavy, q, k), now.momentum, kick)
        site = jax.tree.map(lambda x, q: q - physics.decay * x, now.site, force)
        return Motion(site, jax.tree.map(lambda q, k: physics.momentum * (k - q), now.momentum, kick))

    ahead = lambda slope, part: jax.tree.map(lambda x, s: x + part * time * s, motion, slope)  # noqa: E731
    one = speed(motion)
    two = speed(ahead(one, 0.5))
    three = speed(ahead(two, 0.5))
    four = speed(ahead(three, 1.0))
    return jax.tree.map(lambda x, a, b, c, d: x + time / 6 * (a + 2 * b + 2 * c + d), motion, one, two, three, four)


def _answer(problem: Problem, options: Options, coarse: Curves, fine: Curves, error: float) -> Answer:
    """Every field of the finer rule with its change from the coarser one."""
    with np.errstate(invalid="ignore"):
        change = lambda a, b: np.where(np.isfinite(a), np.abs(a - b), np.inf)  # noqa: E731
        gap = lambda a, b: Estimate(a, change(a, b))  # noqa: E731
        kinked = bool(problem.network.activation.breaks)
        curve = lambda a, b: Estimate(a, _largest(change(a, b), kinked))  # noqa: E731
        ntk = None if fine.ntk is None or coarse.ntk is None else curve(fine.ntk, coarse.ntk)
        prediction, loss = curve(fine.prediction[:, None], coarse.prediction[:, None]), curve(fine.loss, coarse.loss)
        found = {"alignment": curve(fine.alignment, coarse.alignment)}
        if fine.ntk is not None and coarse.ntk is not None:
            cosine = lambda ntk: kernels.tangent_alignment(problem.labels, ntk)  # noqa: E731
            found["ntk_alignment"] = curve(cosine(fine.ntk), cosine(coarse.ntk))
    draws: dict[str, np.ndarray] = {}
    if fine.diverged_at is None:
        asked = {"feature_kernel", "gradient_kernel"} & set(options.wanted)
        both = [two_times(problem, curves, options.at, asked) for curves in (fine, coarse)] if asked else [{}, {}]
        found |= {name: gap(both[0][name], both[1][name]) for name in asked}
        if {"preactivation", "pregradient"} & set(options.wanted):
            draws = _drawn(problem, fine, options)
    notes: tuple[str, ...] = ()
    diagnostics: dict[str, Any] = {"road": "quadrature", "nodes": len(fine.rule.weights)}
    if fine.diverged_at is not None:
        diagnostics["diverged_at_step"] = fine.diverged_at
        notes = (f"the loss diverges at step {fine.diverged_at}; later entries are infinite",)
    return Answer(
        prediction, loss, ntk, found, draws, status=Status.success if fine.diverged_at is None else Status.diverged,
        residual=0.0, error=error, notes=notes, diagnostics=diagnostics,
    )  # fmt: skip


def _largest(change: np.ndarray, kinked: bool) -> np.ndarray:
    """Error of a curve (step, …): the largest change so far, since it may pass through zero.

    Where activations have a kink, that of all steps: at first so few neurons cross it that no rule may see them.
    """
    if kinked:
        lasts = np.isfinite(change)
        change = np.where(lasts, np.where(lasts, change, 0.0).max(axis=0), np.inf)
    return np.maximum.accumulate(change)


def histories(problem: Problem, delta: np.ndarray, nodes: np.ndarray, at: tuple[int, ...]) -> dict[int, tuple]:
    """φ (1, sample, node), g (channel, 1, sample, node) h and z at the steps ``at``, under errors that are known."""
    physics, shape, motion = problem.physics, problem.shape, start(problem.physics, jnp.asarray(nodes))
    found = {}
    for t, rate in enumerate(problem.rates[: max(at) + 1]):
        if t in at:
            found[t] = tuple(np.asarray(v) for v in _recorded(shape.activation, physics, motion.site))
        motion = descend(shape.activation, physics, motion, jnp.asarray(delta[t]), jnp.asarray(rate))
    return found


@partial(jax.jit, static_argnames=("activation",))
def _recorded(activation, physics: Physics, site: Site) -> tuple[Array, Array, Array, Array]:
    h, phi, slope = neuron_fields(activation, physics, site)
    z = jnp.sqrt(physics.readout_variance) * site.V[:, None, None, :] * jnp.ones_like(h)
    return phi[None], slope * z, h[None], z


def two_times(problem: Problem, curves: Curves, at: tuple[int, ...], asked: set[str]) -> dict[str, np.ndarray]:
    """Two-time kernels, block by block of nodes."""
    total: dict[str, Any] = dict.fromkeys(asked, 0.0)
    n, (nodes, weights) = problem.task.n_samples, curves.rule
    for i in range(0, len(weights), BLOCK):
        cut, share = nodes[:, i : i + BLOCK], np.sqrt(weights[i : i + BLOCK])
        missing = BLOCK - len(share) if len(weights) > BLOCK else 0
        cut, share = np.pad(cut, [(0, 0), (0, missing)]), np.pad(share, (0, missing))
        made = histories(problem, curves.delta, cut, at)
        weighted = {t: (phi * share, g * share) for t, (phi, g, *_) in made.items()}
        run = Run(curves.prediction, curves.loss, None, weighted, 1.0, (), 0.0, None)
        for name, kernel in (("feature_kernel", kernels.features), ("gradient_kernel", kernels.gradients)):
            if name in asked:
                total[name] = total[name] + kernel(run, n, simple=True)
    return total


def _drawn(problem: Problem, curves: Curves, options: Options) -> dict[str, np.ndarray]:
    """h (at, 1, sample, path) and z (at, channel, 1, sample, path) of random neurons: the initial Gaussian pushed forward."""
    n = problem.task.n_samples
    nodes = paths.sampled(len(curves.rule.nodes), N_BATCHES * FIRST_PATHS, options.sampling.seed, 0)
    made = histories(problem, curves.delta, np.asarray(nodes), options.at)
    rows = lambda which: np.stack([made[t][which][..., :n, :] for t in sorted(made)])  # noqa: E731
    return {name: rows(which) for name, which in (("preactivation", 2), ("pregradient", 3)) if name in options.wanted}
