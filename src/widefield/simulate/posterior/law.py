r"""The posterior of a finite network, with its readout integrated out: what the samplers share."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.question.network import Network
from widefield.question.task import Task
from widefield.simulate.networks.forward import Array, Parameters, Scales, preactivations, prior_scales
from widefield.simulate.networks.weights import coordinates

STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Law:
    """Inputs, labels and scales, which may change without compiling again, and what a sampler is compiled for.

    ``every`` holds the training inputs and, after them, the test inputs. ``mirror``: :math:`W \\to -W` is a symmetry.
    """

    inputs: Float[Array, "driven sample coordinate"]
    every: Float[Array, "driven any coordinate"]
    labels: Float[Array, "supervised sample output"]
    scales: Scales  # its readout is the mean-field √v/N
    readout_variance: Float[Array, ""]
    temperature: Float[Array, ""]
    activation: Callable = field(metadata=STATIC)
    sizes: tuple[int, ...] = field(metadata=STATIC)
    supervised: tuple[int, ...] = field(metadata=STATIC)
    mirror: bool = field(metadata=STATIC)

    @property
    def width(self) -> int:
        """Neurons of every state."""
        return self.sizes[0]


def law_of(net: Network, task: Task, temperature: float, width: int) -> Law:
    """Training inputs first: their coordinates are those of the smaller problem, test inputs add theirs."""
    every = coordinates(task.sequences(net.depth, test=True), reduce=True)
    v = float(net.readout_variance or 0.0)
    return Law(
        inputs=every[:, : task.n_samples],
        every=every,
        labels=np.ascontiguousarray(task.labels().swapaxes(0, 1)),
        scales=prior_scales(net, net.sizes(width), 1)._replace(readout=np.sqrt(v) / width),
        readout_variance=np.asarray(v),
        temperature=np.asarray(temperature),
        activation=net.activation,
        sizes=net.sizes(width),
        supervised=task.supervised_states(net.depth),
        mirror=is_mirror_symmetric(net, task),
    )


def is_mirror_symmetric(net: Network, task: Task) -> bool:
    r"""Whether :math:`W \to -W` maps the posterior onto itself by :math:`h^a \to (-1)^a h^a`.

    It does for tied weights, an odd activation, inputs at state 0 alone and labels at states of one parity.
    """
    if net.weights == "untied" or net.depth == 1 or len({s % 2 for s in task.supervised_states(net.depth)}) > 1:
        return False
    probe = np.linspace(0.0, 4.0, 101)
    up, down = np.asarray(net.activation(jnp.asarray(probe))), np.asarray(net.activation(jnp.asarray(-probe)))
    odd = np.allclose(up, -down, rtol=1e-12, atol=1e-14)
    return bool(odd and not task.sequences(net.depth, test=True)[:, 1:].any())


def supervised_features(parameters: Parameters, law: Law) -> Float[Array, "label neuron"]:
    """Features of the training inputs at the supervised states, one state after the other."""
    hidden = preactivations(parameters, law.inputs, law.scales, law.activation, law.sizes)
    return jnp.concatenate([law.activation(hidden[a]) for a in law.supervised])


def label_factor(features: Float[Array, "label neuron"], law: Law) -> Float[Array, "label label_"]:
    r"""Lower Cholesky factor of :math:`v\Phi_{SS} + \kappa`, the covariance of the labels times the width."""
    kernel = features @ features.T / features.shape[1]
    return jnp.linalg.cholesky(law.readout_variance * kernel + law.temperature * jnp.eye(len(kernel)))


def whitened_labels(factor: Float[Array, "label label_"], law: Law) -> Float[Array, "label output"]:
    """Labels divided by ``factor``."""
    flat = law.labels.reshape(len(factor), -1)
    return jax.scipy.linalg.solve_triangular(factor, flat, lower=True)


def potential(parameters: Parameters, law: Law) -> Float[Array, ""]:
    r"""Minus the log probability of the labels given :math:`U` and :math:`W`, up to a constant.

    .. math::
        -\ln p(y|U, W) = \tfrac N2 \mathrm{tr}\,\mathbb Y\,(v\Phi_{SS} + \kappa)^{-1}
        + \tfrac{n_{\rm out}}2 \ln\det(v\Phi_{SS} + \kappa)

    Notation: :math:`\Phi_{SS}` averages the supervised features over the :math:`N` neurons of *this* network,
    :math:`\mathbb Y = \sum yy^\top` over outputs. *Method*: given the features the labels are Gaussian, because
    :math:`V_{ij} \sim N(0, v/N^2)` enters them linearly; the integral over :math:`V` is exact at every width.
    """
    factor = label_factor(supervised_features(parameters, law), law)
    labels = whitened_labels(factor, law)
    return law.width / 2 * jnp.sum(labels**2) + labels.shape[1] * jnp.sum(jnp.log(jnp.diag(factor)))


def draw_readout(parameters: Parameters, law: Law, rng: np.random.Generator) -> np.ndarray:
    r"""A draw of the standardized :math:`V` (neuron, output) from its Gaussian law given the features and labels.

    Method: a prior draw plus the regression of what its noisy outputs miss (Matheron's rule).
    """
    phi = float(law.scales.readout) * np.asarray(supervised_features(parameters, law))
    y = np.asarray(law.labels).reshape(len(phi), -1)
    noise = float(law.temperature) / law.width
    prior, error = rng.standard_normal((law.width, y.shape[1])), rng.standard_normal(y.shape)
    missed = y - phi @ prior - np.sqrt(noise) * error
    return prior + phi.T @ np.linalg.solve(phi @ phi.T + noise * np.eye(len(phi)), missed)
