r"""The density p(h, z; t) of the neurons of a two-layer network trained on one input: Eq. (dynamics.22).

It is solved along its characteristics, the paths of neurons: what starts at :math:`(h_0, z_0)` carries its probability with it,
for finite steps as for flow.
"""

import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from widefield.answer.boundary import memory_budget, require_memory, x64
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.training import Training
from widefield.theories.dynamics.methods import two_layers
from widefield.theories.dynamics.methods.two_layers import Motion
from widefield.theories.dynamics.problem import Problem, problem
from widefield.theories.dynamics.request import Request, compiling

COPIES = 40  # arrays of the grid's size that are held at once
FARTHEST = 30.0  # standard deviations; beyond, the density is zero in float64


@x64
def neuron_density(
    network: Network,
    task: Task,
    training: Training,
    *,
    nodes: int = 101,
    reach: float = 4.0,
    rtol: float = 1e-4,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Density of pre-activations h and backward fields z over the neurons of a two-layer network, at the end of training.

    .. math:: p(h_t, z_t) = p_0(h_0, z_0)\,/\,|\det\partial(h_t, z_t)/\partial(h_0, z_0)|

    Eq. (dynamics.23): the drift equation of Appendix E of Bordelon & Pehlevan (2022) along its characteristics. Fields
    (initial, initial\_): ``preactivation`` and ``pregradient``, where neurons have come from a grid of ``nodes`` by ``nodes``
    initial values within ``reach`` standard deviations, and ``density`` there. The training may have a flow, a weight decay
    and any loss.

    Method: outputs by quadrature to ``rtol``, Jacobians by automatic differentiation of every step.
    Error: that of the outputs, relative, at most ``rtol`` (1e-4 by default). ``residual`` is the share of grid points at
    which neurons have changed their order (a determinant that is not positive): none is allowed, since several
    initial values meet there and the rate is too large.
    Limits: one input and one output; activations without kinks (relu neurons collect at h = 0, which has no density).
    """
    begun = time.perf_counter()
    question = problem(network, replace(task, x_test=None, y_test=None), training)
    training.refuse("neuron_density", "momentum_time", "temperature", "initial_scale")
    if network.depth != 1:
        raise ValueError(f"`network` must have depth 1 in neuron_density, got depth {network.depth}.")
    if network.activation.breaks:
        raise ValueError(f"`network` must have an activation without kinks, got {network.activation.name!r}.")
    if task.n_samples != 1 or question.labels.size != 1 or np.any(network.bias_variances):
        raise ValueError("`task` must have one sample and one label in neuron_density, and the network no bias.")
    if not np.any(task.x):
        raise ValueError("`x` must not be zero in neuron_density: every h would be zero.")
    reach, nodes = checks.nonnegative("reach", reach, positive=True), checks.integer("nodes", nodes, 2)
    if reach > FARTHEST:
        raise ValueError(f"`reach` must be at most {FARTHEST:g} standard deviations, got {reach:g}.")
    rtol, need = checks.tolerance("rtol", rtol, 1e-6), 8 * COPIES * nodes**2
    fit = int(np.sqrt(memory_budget() / (8 * COPIES)))
    require_memory(need, f"Neurons on a grid of {nodes} `nodes` squared", f"{fit} nodes would fit.")
    grid = reach * np.linspace(-1, 1, nodes)
    request = Request("full", (), (), rtol=rtol, progress=progress)
    _, fine, error = two_layers.refined(question, request)
    assert fine is not None, "the first rule is always tried"
    h, z, density, folded = _carried(question, request, fine, grid)
    certificate = Certificate(
        "neuron_density", {"folded": Check(folded, 0.0), "error": Check(error, rtol, Status.not_converged)},
        None if fine.diverged_at is None else Status.diverged, steps=training.steps, wall_time=time.perf_counter() - begun,
        options={"nodes": nodes, "reach": reach, "rtol": rtol}, notes=task.notes,
        diagnostics={"solver": "characteristics", "nodes": len(fine.rule.weights)},
    )  # fmt: skip
    dims = ("initial", "initial_")
    fields = {"preactivation": (dims, h), "pregradient": (dims, z), "density": (dims, density)}
    variances = float(question.physics.inputs[0, 0, 0]) ** 2, float(question.physics.readout_variance)
    coords = {"initial": np.sqrt(variances[0]) * grid, "initial_": np.sqrt(variances[1]) * grid}
    return make_solution(fields, certificate, network, task, coords=coords, throw=throw, training=training)


def _carried(
    question: Problem, request: Request, fine: two_layers.RuleCurves, grid: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """h, z and p on the image of the grid, and where it folds. Its nodes have no weight in the outputs that drive them."""
    initial = np.stack([v.ravel() for v in np.meshgrid(grid, grid, indexing="ij")])
    nodes = jnp.asarray(np.concatenate([initial, fine.rule.nodes], axis=1))
    weights = jnp.asarray(np.concatenate([np.zeros(initial.shape[1]), fine.rule.weights]))
    physics, shape = question.physics, question.shape
    physics = physics._replace(inputs=jnp.abs(physics.inputs))  # the sign of a root is free
    motion, substeps = two_layers.start(physics, nodes), fine.substeps or 1
    one, zero = jnp.ones_like(motion.site.a), jnp.zeros_like(motion.site.a)
    starts = two_layers.Site(jnp.stack([one, zero]), jnp.stack([zero, one]))  # derivatives by the two starting values
    tangents = Motion(starts, jax.tree.map(jnp.zeros_like, starts))
    step = partial(_moved, shape.activation, shape.gradient, fine.substeps is not None, physics, weights)
    parts = np.repeat(question.rates[:-1] / substeps, substeps)
    work = compiling(shape, nodes.shape, fine.substeps) + 2e-7 * nodes.size * len(parts)
    with request.bar(f"{nodes.shape[1]} neurons", len(parts), work) as advance:
        for part in parts:
            motion, tangents = jax.block_until_ready(step(motion, tangents, jnp.asarray(part)))
            advance(1)
    n = initial.shape[1]
    J = np.concatenate([tangents.site.a, tangents.site.V], axis=1)[:, :, :n]
    determinant = J[0, 0] * J[1, 1] - J[0, 1] * J[1, 0]
    factor, root = float(physics.inputs[0, 0, 0]), float(jnp.sqrt(physics.readout_variance))
    first = np.exp(-np.sum(initial**2, axis=0) / 2) / (2 * np.pi * factor * root)
    with np.errstate(divide="ignore"):
        density = first / np.abs(determinant)
    h, z = factor * np.asarray(motion.site.a[0, :n]), root * np.asarray(motion.site.V[0, :n])
    size = (len(grid), len(grid))
    return h.reshape(size), z.reshape(size), density.reshape(size), float(np.mean(determinant <= 0))


@partial(jax.jit, static_argnames=("activation", "gradient", "flow"))
def _moved(activation, gradient, flow: bool, physics, weights: Array, motion: Motion, tangents: Motion, rate: Array):
    """One step of all neurons and of their derivatives; outputs are held, since one neuron does not change them."""
    if flow:
        step = lambda now: two_layers.advance_flow(activation, gradient, physics, weights, now, rate)[0]  # noqa: E731
    else:
        _, phi, _ = two_layers.neuron_fields(activation, physics, motion.site)
        delta = two_layers.outputs(gradient, physics, weights, phi, motion.site)[1]
        step = lambda now: two_layers.descend(activation, physics, now, delta, rate)  # noqa: E731
    still = weights == 0  # neurons of the rule are the network: only the others have derivatives
    tangents = jax.tree.map(lambda leaf: jnp.where(still, leaf, 0.0), tangents)
    moved = step(motion)
    return moved, jax.vmap(lambda t: jax.jvp(step, (motion,), (t,))[1])(tangents)
