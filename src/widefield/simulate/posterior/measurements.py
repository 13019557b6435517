r"""What is measured in one network of a chain."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.simulate.networks.forward import Array, Parameters, preactivations
from widefield.simulate.posterior.law import Form, Law, label_factor, whitened_labels


class Measurement(NamedTuple):
    """Quantities of one network; their averages over a chain are the fields of the result."""

    hidden: Float[Array, "state state_ sample sample_"]
    feature: Float[Array, "state state_ sample sample_"]
    squared_correlation: Float[Array, "state state_ sample sample_"]
    prediction: Float[Array, "state any output"]
    energy: Float[Array, ""]


def measure(parameters: Parameters, law: Law, form: Form) -> tuple[Measurement, Float[Array, " trace"]]:
    r"""Kernels, predictions and energy of one network, and the scalars by which chains are judged.

    Predictions are :math:`V\varphi` where ``parameters`` hold a readout, else their mean over the law of :math:`V`
    given the features, :math:`v\Phi_{*S}(v\Phi_{SS} + \kappa)^{-1}y`: the same average with less noise.

    Where ``form.mirror`` says that :math:`W \to -W` (with :math:`V \to -V` if the labels sit at odd states) leaves the
    posterior unchanged, each network is reported as the one of the pair whose adjacent states are positively
    correlated in the mean; blocks of odd lag change sign, everything else is the same for both.
    """
    n = law.inputs.shape[1]
    hidden = jnp.stack(preactivations(parameters, law.every, law.scales, form.activation, form.sizes))
    feature = form.activation(hidden)
    kernel = _gram(hidden[:, :n])
    correlation = _correlation(kernel)
    adjacent = jnp.einsum("aapp->ap", correlation[:-1, 1:])
    sign = jnp.where(form.mirror & (adjacent.sum() < 0), -1.0, 1.0)
    signs = jnp.where(jnp.arange(len(form.sizes)) % 2 == 1, sign, 1.0)
    factor = label_factor(jnp.concatenate([feature[a, :n] for a in form.supervised]), law)
    labels = whitened_labels(factor, law)
    energy = jnp.sum(labels**2) / 2
    flip = (signs[:, None] * signs)[:, :, None, None]
    measurement = Measurement(
        hidden=flip * kernel,
        feature=flip * _gram(feature[:, :n]),
        squared_correlation=correlation**2,
        prediction=(signs * signs[form.supervised[0]])[:, None, None]
        * _predict(parameters, feature, factor, labels, law, form),
        energy=energy,
    )
    size = jnp.trace(kernel[-1, -1]) / n
    coherence = [jnp.mean(jnp.abs(adjacent))] if adjacent.size else []
    return measurement, jnp.stack([energy, size, *coherence])


TRACES = ("energy", "size", "coherence")


def _predict(parameters: Parameters, feature: Array, factor: Array, labels: Array, law: Law, form: Form) -> Array:
    if len(parameters.readout):
        return law.scales.readout * (feature @ parameters.readout[0])
    n = law.inputs.shape[1]
    given = jnp.concatenate([feature[a, :n] for a in form.supervised])
    weights = jax.scipy.linalg.solve_triangular(factor, labels, lower=True, trans="T")
    return law.readout_variance * (feature @ given.T / form.width) @ weights


def _gram(rows: Float[Array, "state sample neuron"]) -> Float[Array, "state state_ sample sample_"]:
    return jnp.einsum("api,bqi->abpq", rows, rows) / rows.shape[2]


def _correlation(kernel: Float[Array, "state state_ sample sample_"]) -> Array:
    """Normalized kernel, zero where a state is silent."""
    variance = jnp.einsum("aapp->ap", kernel)
    inverse = jnp.where(variance > 0, 1 / jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    return kernel * inverse[:, None, :, None] * inverse[None, :, None, :]


def is_mirror_symmetric(net: Network, task: Task) -> bool:
    r"""Whether :math:`W \to -W` maps the posterior onto itself by :math:`h^a \to (-1)^a h^a`.

    It does for tied weights, an odd activation, inputs at state 0 alone and labels at states of one parity.
    """
    x = task.sequences(net.depth, test=True)
    one_parity = len({s % 2 for s in task.supervised_states(net.depth)}) == 1
    return net.weights == "tied" and net.depth > 1 and one_parity and not x[:, 1:].any() and _is_odd(net.activation)


def _is_odd(activation: Activation) -> bool:
    probe = np.linspace(0.0, 4.0, 101)
    up, down = np.asarray(activation(jnp.asarray(probe))), np.asarray(activation(jnp.asarray(-probe)))
    return bool(np.allclose(up, -down, rtol=1e-12, atol=1e-14))
