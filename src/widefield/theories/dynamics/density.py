r"""The density p(h, z; t) of the neurons of a two-layer network trained on one input (Appendix E).

.. math::
    \partial_tp = -\partial_h(p\,\dot h) - \partial_z(p\,\dot z), \qquad \dot h = \gamma_0K\Delta\,\varphi'(h)z, \qquad
    \dot z = \gamma_0\Delta\,\varphi(h)

Eq. 67 of Bordelon & Pehlevan (2022), whose term with :math:`\varphi''` lacks :math:`\gamma_0`. It is solved along its
characteristics, the paths of neurons: what starts at :math:`(h_0, z_0)` carries its probability with it,
:math:`p(h_t, z_t) = p_0(h_0, z_0)/|\det J|`, for finite steps as for flow.
"""

import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from widefield.answer import legacy
from widefield.answer.boundary import x64
from widefield.answer.certificate import Status
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.training import Training
from widefield.theories.dynamics import ensemble, two_layer
from widefield.theories.dynamics.problem import Problem, problem
from widefield.theories.dynamics.two_layer import Motion


@x64
def neuron_density(
    network: Network,
    task: Task,
    training: Training,
    *,
    nodes: int = 101,
    reach: float = 4.0,
    rtol: float = 1e-4,
    throw: bool = True,
) -> Solution:
    r"""Density of pre-activations h and backward fields z over the neurons of a two-layer network, at the end of training.

    .. math:: p(h_t, z_t) = p_0(h_0, z_0)\,/\,|\det\partial(h_t, z_t)/\partial(h_0, z_0)|

    The drift equation of Appendix E along its characteristics. Fields (initial, initial\_): ``preactivation`` and
    ``pregradient``, where neurons have come from a grid of ``nodes`` by ``nodes`` starts within ``reach`` standard
    deviations, and ``density`` there. ``flow``, ``weight_decay``, ``loss`` and the physics are those of `widefield.dynamics`.

    Method: outputs by quadrature to ``rtol``, Jacobians by automatic differentiation of every step.
    Error: that of the outputs, relative, in the certificate; ``residual`` is 0 where neurons keep their order (every
    determinant is positive), otherwise the status is ``inaccurate``: several starts meet, and the rate is too large.
    Limits: one input and one output; activations without kinks (relu neurons collect at h = 0, which has no density).
    """
    begun = time.perf_counter()
    training.refuse("neuron_density", "batches", "momentum_time", "temperature", "initial_scale")
    richness, rate, steps, flow, loss = training.richness, training.rates, training.steps, training.flow, training.loss
    weight_decay = training.weight_decay
    bare = replace(task, x_test=None, y_test=None) if isinstance(task, Task) else task
    asked = problem(
        network, bare, richness=richness, rate=rate, steps=steps, loss=loss, weight_decay=weight_decay, momentum_time=None,
        initial_scale=1.0,
    )  # fmt: skip
    _check(asked)
    n = checks.integer("nodes", nodes, 2)
    grid = checks.nonnegative("reach", reach, positive=True) * np.linspace(-1, 1, n)
    sampling = ensemble.Sampling(None, checks.tolerance("rtol", rtol, 1e-6), 0, False)
    _, fine, error = two_layer.refined(asked, ensemble.Options(sampling, False, (), ()), flow)
    assert fine is not None, "the first rule is always tried"
    h, z, density, folded = _carried(asked, fine, grid)
    status = Status.inaccurate if folded else Status.success if error <= rtol else Status.not_converged
    if fine.diverged_at is not None:
        status = Status.diverged
    dims = ("initial", "initial_")
    options = {
        "richness": richness,
        "rate": rate,
        "steps": steps,
        "flow": flow,
        "weight_decay": weight_decay,
        "loss": loss,
    }
    certificate = legacy.certificate(
        theory="dynamics", status=status, residual=float(folded), error=float(error), steps=int(steps),
        wall_time=time.perf_counter() - begun, options={k: v for k, v in options.items() if v is not False}, notes=task.notes,
        diagnostics={"road": "characteristics", "nodes": len(fine.rule.weights)},
    )  # fmt: skip
    fields = {"preactivation": (dims, h), "pregradient": (dims, z), "density": (dims, density)}
    variances = float(asked.physics.inputs[0, 0, 0]) ** 2, float(asked.physics.readout_variance)
    coords = {"initial": np.sqrt(variances[0]) * grid, "initial_": np.sqrt(variances[1]) * grid}
    return make_solution(fields, certificate, network, task, coords=coords, throw=throw, training=training)


def _check(asked: Problem) -> None:
    """One input, one output, one hidden layer, smooth."""
    if asked.network.depth != 1:
        raise ValueError(f"`network` must have depth 1 in neuron_density, got depth {asked.network.depth}.")
    if asked.network.activation.breaks:
        raise ValueError(f"`network` must have an activation without kinks, got {asked.network.activation.name!r}.")
    if asked.task.n_samples != 1 or asked.labels.size != 1 or np.any(asked.network.bias_variances):
        raise ValueError("`task` must have one sample and one label in neuron_density, and the network no bias.")
    if not np.any(asked.task.x):
        raise ValueError("`x` must not be zero in neuron_density: every h would be zero.")


def _carried(
    asked: Problem, fine: two_layer.Curves, grid: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """h, z and p on the image of the grid. Its nodes have no weight in the outputs that drive them."""
    starts = np.stack([v.ravel() for v in np.meshgrid(grid, grid, indexing="ij")])
    nodes = jnp.asarray(np.concatenate([starts, fine.rule.nodes], axis=1))
    weights = jnp.asarray(np.concatenate([np.zeros(starts.shape[1]), fine.rule.weights]))
    physics, shape = asked.physics, asked.shape
    physics = physics._replace(inputs=jnp.abs(physics.inputs))  # the sign of a root is free
    motion = two_layer.start(physics, nodes)
    tangents = _unit_tangents(motion)
    for rate in asked.rates[:-1]:
        for _ in range(fine.substeps or 1):
            part = jnp.asarray(rate / (fine.substeps or 1))
            motion, tangents = _moved(
                shape.activation, shape.gradient, fine.substeps is not None, physics, weights, motion, tangents, part
            )
    n = starts.shape[1]
    J = np.stack([np.concatenate([t.a, t.V])[:, :n] for t in (_row(tangents.site, i) for i in range(2))])
    determinant = J[0, 0] * J[1, 1] - J[0, 1] * J[1, 0]
    factor, root = float(physics.inputs[0, 0, 0]), float(jnp.sqrt(physics.readout_variance))
    first = np.exp(-np.sum(starts**2, axis=0) / 2) / (2 * np.pi * factor * root)
    with np.errstate(divide="ignore"):
        density = first / np.abs(determinant)
    h, z = factor * np.asarray(motion.site.a[0, :n]), root * np.asarray(motion.site.V[0, :n])
    size = (len(grid), len(grid))
    return h.reshape(size), z.reshape(size), density.reshape(size), bool(np.any(determinant <= 0))


def _row(site: two_layer.Site, i: int) -> two_layer.Site:
    return jax.tree.map(lambda leaf: np.asarray(leaf[i]), site)


def _unit_tangents(motion: Motion) -> Motion:
    """Derivatives by the two starting values, in front of every leaf."""
    one, zero = jnp.ones_like(motion.site.a), jnp.zeros_like(motion.site.a)
    site = two_layer.Site(jnp.stack([one, zero]), jnp.stack([zero, one]))
    return Motion(site, jax.tree.map(jnp.zeros_like, site))


@partial(jax.jit, static_argnames=("activation", "gradient", "flow"))
def _moved(activation, gradient, flow: bool, physics, weights: Array, motion: Motion, tangents: Motion, rate: Array):
    """One step of all neurons and of their derivatives; outputs are held, since one neuron does not change them."""
    if flow:
        step = lambda now: two_layer.advance_flow(activation, gradient, physics, weights, now, rate)  # noqa: E731
    else:
        _, phi, _ = two_layer.neuron_fields(activation, physics, motion.site)
        delta = two_layer.outputs(gradient, physics, weights, phi, motion.site)[1]
        step = lambda now: two_layer.descend(activation, physics, now, delta, rate)  # noqa: E731
    still = weights == 0  # neurons of the rule are the network: only the others have derivatives
    tangents = jax.tree.map(lambda leaf: jnp.where(still, leaf, 0.0), tangents)
    moved = step(motion)
    return moved, jax.vmap(lambda t: jax.jvp(step, (motion,), (t,))[1])(tangents)
