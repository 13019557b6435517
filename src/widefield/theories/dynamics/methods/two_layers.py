r"""Two-layer networks: every neuron follows its own equation of motion, Eq. (dynamics.21), and averages are deterministic.

The initial :math:`a` (one entry per direction of the input kernel :math:`LL^T`) and :math:`V` (one per output) are standard normal
and nothing random enters later: with at most three of them, averages are quadratures. Given the errors
:math:`\Delta(t)` neurons do not interact.

Method: rules of doubling resolution until outputs change by less than the tolerance; with ``flow`` they halve the steps of a
fourth-order Runge–Kutta method as well. Error: the change from the rule before, of every field; that of the outputs,
relative to their size, in the certificate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from widefield.answer.boundary import memory_budget
from widefield.theories.dynamics import inputs
from widefield.theories.dynamics.curves import N_BATCHES, Estimate, TrainingCurves, divergence, size, to_the_end
from widefield.theories.dynamics.march import kernels, noise
from widefield.theories.dynamics.march.batch import SiteValues, diverges
from widefield.theories.dynamics.march.step import Physics, initial_scales, label_alignment
from widefield.theories.dynamics.memory import BLOCK, DRAWN, FIRST_PATHS, KERNELS
from widefield.theories.dynamics.methods.nodes import HOMOGENEOUS, MOST_DIMENSIONS, Rule, rules
from widefield.theories.dynamics.problem import Problem, total_loss
from widefield.theories.dynamics.request import DETERMINISTIC_RTOL, Request, compiling

GOAL = 1e-4  # of the error of outputs where no rtol is given: aimed at; the default rtol is still accepted
MOST_NODES, MOST_NODES_ASKED = 2**20, 2**23  # without and with rtol
MOST_WORK = 16  # of a flow: evaluations per step and node of the largest rule


class Site(NamedTuple):
    """Neurons: input weights ``a`` (direction, node), readouts ``V`` (output, node)."""

    a: Array
    V: Array


class Motion(NamedTuple):
    """Neurons and the momentum of their weights."""

    site: Site
    momentum: Site


@dataclass(frozen=True)
class RuleCurves:
    """What one rule gives: outputs (step, sample, output), the loss, the NTK and the alignment (step, 1).

    ``errors`` drive the neurons: (step, train sample, output) of descent, (step, substep, stage, train sample, output) of flow.
    """

    rule: Rule
    prediction: np.ndarray
    errors: np.ndarray
    loss: np.ndarray
    ntk: np.ndarray | None
    alignment: np.ndarray
    diverged_at: int | None
    substeps: int | None  # of a flow


def covers(problem: Problem, request: Request) -> bool:
    """Two layers, nonlinear, without Langevin noise, with few enough Gaussians and no wish for sampled paths."""
    if problem.network.depth != 1 or problem.exact or problem.training.temperature or request.method != "full":
        return False
    few = problem.inputs.joined.shape[-1] + problem.shape.n_outputs <= MOST_DIMENSIONS
    return few and request.paths is None and not request.responses


def solve(problem: Problem, request: Request) -> TrainingCurves | None:
    """None where no tolerance is given and the rules do not meet the default one."""
    coarse, fine, error = refined(problem, request)
    if coarse is None or fine is None or (request.rtol is None and error > DETERMINISTIC_RTOL):
        return None
    return _training_curves(problem, request, coarse, fine, error)


def refined(problem: Problem, request: Request) -> tuple[RuleCurves | None, RuleCurves | None, float]:
    """The last two rules and how far apart their outputs are."""
    per_node = 8 * (problem.task.n_samples + inputs.BLOCK + 2) * (8 + 2 * problem.shape.n_outputs)
    most = min(MOST_NODES if request.rtol is None else MOST_NODES_ASKED, memory_budget() // per_node)
    flow, activation = problem.training.flow, problem.network.activation
    homogeneous = activation.is_named and activation.name in HOMOGENEOUS
    factor = problem.inputs.joined[0, : problem.task.n_samples]
    coarse, fine, error = None, None, np.inf
    for level, rule in enumerate(rules(homogeneous, factor, problem.shape.n_outputs, most)):
        if flow and 4 * 2**level * len(rule.weights) > MOST_WORK * most:
            break
        coarse, fine = fine, _march(problem, request, rule, 2**level if flow else None)
        if coarse is not None and coarse.diverged_at == fine.diverged_at:
            before, after = (one.prediction[: fine.diverged_at] for one in (coarse, fine))
            error = float(np.abs(after - before).max()) / size(after, problem.least_output)
        else:
            error = np.inf
        if error <= (request.rtol or GOAL):
            break
    return coarse, fine, error


def _march(problem: Problem, request: Request, rule: Rule, substeps: int | None) -> RuleCurves:
    """All steps with one rule: descent, or flow in ``substeps`` Runge–Kutta steps per step."""
    physics, shape, weights = _physics(problem), problem.shape, jnp.asarray(rule.weights)
    motion, n_rows = start(physics, jnp.asarray(rule.nodes)), len(problem.rates)
    function = shape.activation, shape.gradient
    observed = request.ntk, "alignment" in request.fields
    rows: list[tuple] = []
    stop = None
    tests = jnp.asarray(problem.inputs.joined[0, problem.task.n_samples :])
    work = 3e-8 * rule.nodes.size * problem.inputs.joined.shape[1] * n_rows * (4 * substeps if substeps else 1)
    with request.bar(
        f"{len(rule.weights)} nodes", n_rows, compiling(shape, len(rule.weights), substeps) + work
    ) as advance:
        for t, rate in enumerate(problem.rates):
            f, delta, *row = (np.asarray(v) for v in _observe(*function, *observed, physics, weights, motion.site))
            value = float(total_loss(problem.loss, jnp.asarray(f[None]), physics.labels))
            if len(tests):
                f = np.concatenate([f, _test_outputs(shape.activation, physics, weights, motion.site, tests)])
            if diverges(f, value, rows[0][-1] if rows else None):
                stop = t
                break
            motion, errors = _moved(problem, weights, motion, delta, rate, substeps)
            rows.append((f, errors, *row, value))
            advance(1)
    f, errors, ntk, aligned, values = (to_the_end(column, n_rows) for column in zip(*rows, strict=True))
    return RuleCurves(rule, f, errors, values, ntk if request.ntk else None, aligned, stop, substeps)


def _physics(problem: Problem) -> Physics:
    """Of the training inputs, in directions that test inputs have too."""
    return problem.physics._replace(inputs=jnp.asarray(problem.inputs.joined[:, : problem.task.n_samples]))


def _moved(problem: Problem, weights: Array, motion: Motion, delta: np.ndarray, rate: float, substeps: int | None):
    """Neurons after one step, and the errors that drove it: ``delta`` in descent."""
    physics, shape, stages = _physics(problem), problem.shape, []
    if substeps is None:
        return descend(shape.activation, physics, motion, jnp.asarray(delta), jnp.asarray(rate)), delta
    for _ in range(substeps):
        time = jnp.asarray(rate / substeps)
        motion, deltas = advance_flow(shape.activation, shape.gradient, physics, weights, motion, time)
        stages.append(np.asarray(deltas))
    return motion, np.stack(stages)


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
    """Outputs, errors, NTK (channel, channel_, sample, sample_) and alignment (1,)."""
    _, phi, slope = neuron_fields(activation, physics, site)
    f, delta = outputs(gradient, physics, weights, phi, site)
    aligned = (
        label_alignment(physics.labels, (jnp.sqrt(weights)[None] * phi)[None], 1.0) if alignment else jnp.zeros(())
    )
    if not ntk:
        return f, delta, jnp.zeros(()), aligned
    n, v = physics.labels.shape[1], physics.readout_variance
    n_outputs = len(site.V)
    g = (jnp.sqrt(v) * site.V[:, None] * slope[None]).reshape(n_outputs * n, -1)
    G = ((weights[None] * g) @ g.T).reshape(n_outputs, n, n_outputs, n).swapaxes(1, 2)
    Phi = (weights[None] * phi) @ phi.T
    outer = physics.inputs[0] @ physics.inputs[0].T
    return f, delta, G * outer[None, None] + v * Phi[None, None] * jnp.eye(n_outputs)[:, :, None, None], aligned


def outputs(gradient, physics: Physics, weights: Array, phi: Array, site: Site) -> tuple[Array, Array]:
    f = jnp.sqrt(physics.readout_variance) / physics.richness * (weights[None] * phi) @ site.V.T
    return f, -gradient(f[None], physics.labels)[0]


@partial(jax.jit, static_argnames="activation")
def _test_outputs(activation, physics: Physics, weights: Array, site: Site, tests: Array) -> Array:
    """Outputs (test, output) of inputs (test, direction) that train nothing, some of them at a time."""
    v = jnp.sqrt(physics.readout_variance) / physics.richness * weights[:, None] * site.V.T
    return jax.lax.map(lambda row: activation(row @ site.a) @ v, tests, batch_size=inputs.BLOCK)


def _push(activation, physics: Physics, site: Site, delta: Array) -> Site:
    """The pull of the loss on every neuron, per unit of time."""
    _, phi, slope = neuron_fields(activation, physics, site)
    size = physics.richness * jnp.sqrt(physics.readout_variance)
    back = slope * (delta @ site.V)
    return Site(size * physics.inputs[0].T @ back, size * delta.T @ phi)


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
def advance_flow(
    activation, gradient, physics: Physics, weights: Array, motion: Motion, time: Array
) -> tuple[Motion, Array]:
    """One Runge–Kutta step of gradient flow, and the errors (stage, train sample, output) that drove it."""
    stages: list[Array] = []

    def errors(now: Motion) -> Array:
        _, phi, _ = neuron_fields(activation, physics, now.site)
        stages.append(outputs(gradient, physics, weights, phi, now.site)[1])
        return stages[-1]

    moved = _runge_kutta(activation, physics, motion, errors, time)
    return moved, jnp.stack(stages)


@partial(jax.jit, static_argnames=("activation",))
def replay_flow(activation, physics: Physics, motion: Motion, errors: Array, time: Array) -> Motion:
    """The same step of other neurons, under ``errors`` (stage, train sample, output) that are known."""
    stages = iter(errors)
    return _runge_kutta(activation, physics, motion, lambda now: next(stages), time)


def _runge_kutta(
    activation, physics: Physics, motion: Motion, errors: Callable[[Motion], Array], time: Array
) -> Motion:
    def speed(now: Motion) -> Motion:
        kick = _push(activation, physics, now.site, errors(now))
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


def _training_curves(
    problem: Problem, request: Request, coarse: RuleCurves, fine: RuleCurves, error: float
) -> TrainingCurves:
    """Every field of the finer rule with its change from the coarser one.

    That of a curve (step, …) is the largest so far, since it may pass through zero; where activations have a kink, that of
    all steps: at first so few neurons cross it that no rule may see them.
    """
    asked, draws = [name for name in KERNELS if name in request.fields], {}

    def change(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(a), np.abs(a - b), np.inf)

    def curve(a: np.ndarray, b: np.ndarray) -> Estimate:
        error = change(a, b)
        if problem.network.activation.breaks:
            lasts = np.isfinite(error)
            error = np.where(lasts, np.where(lasts, error, 0.0).max(axis=0), np.inf)
        return Estimate(a, np.maximum.accumulate(error))

    made = {"alignment": curve(fine.alignment, coarse.alignment)}
    if fine.ntk is not None and coarse.ntk is not None:
        made["ntk"] = curve(fine.ntk, coarse.ntk)
        cosines = (kernels.tangent_alignment(problem.labels, one) for one in (fine.ntk, coarse.ntk))
        made["ntk_alignment"] = curve(*cosines)
    if fine.diverged_at is None and asked:
        both = [two_times(problem, one, request.at, asked) for one in (fine, coarse)]
        made |= {name: Estimate(both[0][name], change(both[0][name], both[1][name])) for name in asked}
    if fine.diverged_at is None and set(DRAWN) & set(request.fields):  # the initial Gaussian pushed forward
        nodes = next(noise.sampled_blocks([len(fine.rule.nodes)], N_BATCHES * FIRST_PATHS, request.seed, 0))
        values = histories(problem, fine, np.asarray(nodes), request.at)
        draws = {name: kernels.stack(values, name) for name in DRAWN if name in request.fields}
    return TrainingCurves(
        curve(fine.prediction[:, None], coarse.prediction[:, None]), curve(fine.loss, coarse.loss), made, draws,
        error=error, rtol=request.limit(sampled=False), **divergence(fine.diverged_at),
        diagnostics={"solver": "quadrature", "nodes": len(fine.rule.weights)},
    )  # fmt: skip


def histories(problem: Problem, curves: RuleCurves, nodes: np.ndarray, at: tuple[int, ...]) -> dict[int, SiteValues]:
    """Values of the neurons ``nodes`` at the steps ``at``, under errors that are known; S are the nodes."""
    physics, activation = _physics(problem), problem.shape.activation
    motion = start(physics, jnp.asarray(nodes))
    values = {}
    for t, rate in enumerate(problem.rates[: max(at) + 1]):
        if t in at:
            values[t] = SiteValues(*(np.asarray(v) for v in _recorded(activation, physics, motion.site)))
        if curves.substeps is None:
            motion = descend(activation, physics, motion, jnp.asarray(curves.errors[t]), jnp.asarray(rate))
            continue
        for errors in curves.errors[t]:
            time = jnp.asarray(rate / curves.substeps)
            motion = replay_flow(activation, physics, motion, jnp.asarray(errors), time)
    return values


@partial(jax.jit, static_argnames=("activation",))
def _recorded(activation, physics: Physics, site: Site) -> tuple[Array, Array, Array, Array]:
    h, phi, slope = neuron_fields(activation, physics, site)
    z = jnp.sqrt(physics.readout_variance) * site.V[:, None, None, :] * jnp.ones_like(h)[None, None]
    return phi[None], slope[None, None] * z, h[None], z


def two_times(problem: Problem, curves: RuleCurves, at: tuple[int, ...], asked: list[str]) -> dict[str, np.ndarray]:
    """Two-time kernels, block by block of nodes."""
    total: dict[str, np.ndarray] = {}
    nodes, weights = curves.rule
    for i in range(0, len(weights), BLOCK):
        cut, share = nodes[:, i : i + BLOCK], np.sqrt(weights[i : i + BLOCK])
        missing = BLOCK - len(share) if len(weights) > BLOCK else 0
        cut, share = np.pad(cut, [(0, 0), (0, missing)]), np.pad(share, (0, missing))
        values = histories(problem, curves, cut, at)
        weighted = {t: SiteValues(*(value * share for value in one)) for t, one in values.items()}
        for name, kernel in zip(KERNELS, (kernels.features, kernels.gradients), strict=True):
            if name in asked:
                total[name] = total.get(name, 0.0) + kernel(weighted, 1.0, by_layer=True)
    return total
