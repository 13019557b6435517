r"""The finite network as a pure JAX function of its parameters: what tangent kernels, posteriors and training share."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.question.network import Network

Array = jax.Array | np.ndarray
COTANGENT_NUMBERS = 2**23  # of all parameters, for rows of a tangent kernel made together


class Parameters(NamedTuple):
    r"""Numbers of unit scale, drawn or trained. Each list has one array where tied, one per use where untied.

    An empty list leaves its term out; without a readout the outputs are the neurons themselves.
    """

    weights: Sequence[Float[Array, "from to"]]
    input_weights: Sequence[Float[Array, "coordinate neuron"]]
    biases: Sequence[Float[Array, "1 neuron"]]
    readout: Sequence[Float[Array, "_ output"]]  # V (neuron, output) and its bias (1, output)


class Scales(NamedTuple):
    """What each parameter is multiplied by: traced, so that other variances or another readout compile nothing."""

    weights: Float[Array, " transition"]
    inputs: Float[Array, " state"]
    biases: Float[Array, " state"]
    readout: Float[Array, ""]
    readout_bias: Float[Array, ""]


def prior_scales(net: Network, sizes: Sequence[int], dimension: int) -> Scales:
    r""":math:`\sqrt{w/n}`, :math:`\sqrt{u/D}`, :math:`\sqrt b` and, for the readout, :math:`\sqrt{v/n}`.

    Another readout, such as the mean-field :math:`\sqrt v/(\gamma n)`, is ``scales._replace(readout=...)``;
    ``dimension`` is 1 for inputs that carry :math:`1/\sqrt D` already.
    """
    return Scales(
        weights=np.sqrt(net.weight_variances / np.asarray(sizes[:-1])),
        inputs=np.sqrt(net.input_variances / dimension),
        biases=np.sqrt(net.bias_variances),
        readout=np.sqrt((net.readout_variance or 0.0) / sizes[-1]),
        readout_bias=np.sqrt(net.readout_bias_variance or 0.0),
    )


def forward(
    parameters: Parameters,
    inputs: Float[Array, "driven sample coordinate"],
    scales: Scales,
    activation: Callable,
    sizes: Sequence[int],
    states: Sequence[int] = (-1,),
) -> Float[Array, "state sample output"]:
    r"""Outputs at ``states`` of the network with ``sizes`` neurons per state, driven by ``inputs`` from state 0 on.

    .. math::
        h^a = \sigma_W W^a \varphi(h^{a-1}) + \sigma_U U^a x^a + \sigma_\xi \xi^a, \qquad
        f^a = \sigma_V V \varphi(h^a) + \sigma_{\rm out} \xi^{\rm out}

    Notation: the :math:`\sigma` are ``scales``. Pure in its first three arguments: jit (with the others static), vmap
    over networks, differentiate. *Limits*: several ``states`` must have equally many neurons.
    """
    hidden = preactivations(parameters, inputs, scales, activation, sizes)
    return jnp.stack([_read(parameters, hidden[a], scales, activation) for a in states])


def preactivations(
    parameters: Parameters,
    inputs: Float[Array, "driven sample coordinate"],
    scales: Scales,
    activation: Callable,
    sizes: Sequence[int],
) -> list[Float[Array, "sample neuron"]]:
    """The hidden states of `forward`, one after the other."""
    hidden: list[Array] = []
    for a, n in enumerate(sizes):
        h = jnp.zeros((inputs.shape[1], n), inputs.dtype)
        if hidden:
            h += scales.weights[a - 1] * (activation(hidden[-1]) @ of_use(parameters.weights, a - 1))
        if a < len(inputs) and len(parameters.input_weights):
            h += scales.inputs[a] * (inputs[a] @ of_use(parameters.input_weights, a))
        if len(parameters.biases):
            h += scales.biases[a] * of_use(parameters.biases, a)
        hidden.append(h)
    return hidden


def _read(parameters: Parameters, h: Array, scales: Scales, activation: Callable) -> Array:
    if not len(parameters.readout):
        return h
    weights, bias = parameters.readout
    return scales.readout * (activation(h) @ weights) + scales.readout_bias * bias


def of_use(drawn: Sequence[Any], use: int) -> Any:
    """The parameter of a use: the only one where tied, its own where untied."""
    return drawn[0] if len(drawn) == 1 else drawn[use]


@partial(jax.jit, static_argnames=("activation", "sizes", "states"))
def tangent_kernel(
    parameters: Parameters,
    inputs: Float[Array, "driven sample coordinate"],
    scales: Scales,
    activation: Callable,
    sizes: tuple[int, ...],
    states: tuple[int, ...] = (-1,),
) -> Float[Array, "state state_ sample sample_"]:
    r"""The kernel of the first output at ``states``, every parameter trained at unit rate.

    .. math::  \Theta^{st}_{\alpha\beta} = \sum_\theta \partial_\theta f^s_\alpha \, \partial_\theta f^t_\beta

    The arguments are those of `forward`. *Method*: row :math:`(s, \alpha)` is the Jacobian applied to its own
    transpose's column, so that no Jacobian is stored. Compiled once per shape, whatever the variances.
    """
    shape = (len(states), inputs.shape[1])
    outputs = lambda p: forward(p, inputs, scales, activation, sizes, states)[..., 0]  # noqa: E731
    _, push = jax.linearize(outputs, parameters)
    pull = jax.linear_transpose(push, parameters)
    basis = jnp.eye(shape[0] * shape[1], dtype=inputs.dtype).reshape(-1, *shape)
    n_numbers = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    together = max(1, min(len(basis), COTANGENT_NUMBERS // max(1, n_numbers)))
    rows = jax.lax.map(lambda cotangent: push(*pull(cotangent)), basis, batch_size=together)
    return rows.reshape(*shape, *shape).swapaxes(1, 2)
