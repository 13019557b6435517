r"""What is measured in one network of a chain."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from widefield.simulate.networks.forward import Array, Parameters, preactivations
from widefield.simulate.posterior.law import Law, label_factor, whitened_labels


class Measurement(NamedTuple):
    """Quantities of one network; their averages over a chain are the fields of the result."""

    hidden: Float[Array, "state state_ sample sample_"]
    feature: Float[Array, "state state_ sample sample_"]
    squared_correlation: Float[Array, "state state_ sample sample_"]
    prediction: Float[Array, "state any output"]
    energy: Float[Array, ""]


def measure(parameters: Parameters, law: Law) -> tuple[Measurement, Float[Array, " trace"]]:
    r"""Kernels, predictions and energy of one network, and the scalars by which chains are judged.

    Predictions are :math:`V\varphi` where ``parameters`` hold a readout, else their mean over the law of :math:`V`
    given the features, :math:`v\Phi_{*S}(v\Phi_{SS} + \kappa)^{-1}y`: the same average with less noise.

    Where ``law.mirror`` says that :math:`W \to -W` (with :math:`V \to -V` if the labels sit at odd states) leaves the
    posterior unchanged, each network is reported as the one of the pair whose adjacent states are positively
    correlated in the mean; blocks of odd lag change sign, everything else is the same for both.
    """
    n = law.inputs.shape[1]
    hidden = jnp.stack(preactivations(parameters, law.every, law.scales, law.activation, law.sizes))
    feature = law.activation(hidden)
    kernel = _gram(hidden[:, :n])
    correlation = _correlation(kernel)
    adjacent = jnp.einsum("aapp->ap", correlation[:-1, 1:])
    sign = jnp.where(law.mirror & (adjacent.sum() < 0), -1.0, 1.0)
    signs = jnp.where(jnp.arange(len(law.sizes)) % 2 == 1, sign, 1.0)
    factor = label_factor(jnp.concatenate([feature[a, :n] for a in law.supervised]), law)
    labels = whitened_labels(factor, law)
    energy = jnp.sum(labels**2) / 2
    flip = (signs[:, None] * signs[None])[:, :, None, None]
    measurement = Measurement(
        hidden=flip * kernel,
        feature=flip * _gram(feature[:, :n]),
        squared_correlation=correlation**2,
        prediction=(signs * signs[law.supervised[0]])[:, None, None]
        * _predict(parameters, feature, factor, labels, law),
        energy=energy,
    )
    size = jnp.trace(kernel[-1, -1]) / n
    coherence = [jnp.mean(jnp.abs(adjacent))] if adjacent.size else []
    return measurement, jnp.stack([energy, size, *coherence])


TRACES = ("energy", "size", "coherence")


def _predict(parameters: Parameters, feature: Array, factor: Array, labels: Array, law: Law) -> Array:
    if len(parameters.readout):
        return law.scales.readout * (feature @ parameters.readout[0])
    n = law.inputs.shape[1]
    given = jnp.concatenate([feature[a, :n] for a in law.supervised])
    weights = jax.scipy.linalg.solve_triangular(factor, labels, lower=True, trans="T")
    return law.readout_variance * (feature @ given.T / law.width) @ weights


def _gram(rows: Float[Array, "state sample neuron"]) -> Float[Array, "state state_ sample sample_"]:
    return jnp.einsum("api,bqi->abpq", rows, rows) / rows.shape[2]


def _correlation(kernel: Float[Array, "state state_ sample sample_"]) -> Array:
    """Normalized kernel, zero where a state is silent."""
    variance = jnp.einsum("aapp->ap", kernel)
    inverse = jnp.where(variance > 0, 1 / jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    return kernel * inverse[:, None, :, None] * inverse[None, :, None, :]
