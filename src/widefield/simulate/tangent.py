r"""The neural tangent kernel of one finite network, by automatic differentiation."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widefield.network import Network

Parameters = dict[str, list[Any]]
COTANGENT_NUMBERS = 2**23


@lru_cache(maxsize=16)
def tangent_kernel(net: Network, sizes: tuple[int, ...], states: tuple[int, ...]) -> Callable[[Parameters, Any], Any]:
    r"""A compiled function from standard normal parameters and inputs (driven state, sample, coordinate) to the kernel.

    .. math::  \Theta_{\alpha\beta} = \sum_\theta \partial_\theta f_\alpha \, \partial_\theta f_\beta

    with every parameter written as :math:`\sqrt{\text{variance}/\text{fan-in}}` times :math:`\theta`. The result is
    (sample, sample\_), or (state, state\_, sample, sample\_) with several ``states``. *Method*: row
    :math:`(s, \alpha)` is the Jacobian applied to its own transpose's column, so that no Jacobian is stored.
    """

    @jax.jit
    def kernel(parameters, inputs):
        shape = (len(states), inputs.shape[1])
        _, forward = jax.linearize(lambda p: _outputs(net, sizes, states, p, inputs), parameters)
        backward = jax.linear_transpose(forward, parameters)
        basis = jnp.eye(shape[0] * shape[1]).reshape(-1, *shape)
        n_numbers = sum(leaf.size for leaf in jax.tree.leaves(parameters))
        together = max(1, min(len(basis), COTANGENT_NUMBERS // n_numbers))
        rows = jax.lax.map(lambda cotangent: forward(*backward(cotangent)), basis, batch_size=together)
        blocks = rows.reshape(*shape, *shape).swapaxes(1, 2)
        return blocks[0, 0] if shape[0] == 1 else blocks

    return kernel


def _outputs(net: Network, sizes: tuple[int, ...], states: tuple[int, ...], parameters: Parameters, inputs: Any) -> Any:
    """The first output at ``states``, as (state, sample)."""
    h = _drive(net, parameters, inputs, 0, sizes[0])
    found = {0: _read(net, parameters, h)} if 0 in states else {}
    for a in range(1, net.depth):
        scale = np.sqrt(net.weight_variances[a - 1] / sizes[a - 1])
        recurrent = scale * (net.activation(h) @ _of(parameters["weights"], a - 1))
        h = recurrent + _drive(net, parameters, inputs, a, sizes[a])
        if a in states:
            found[a] = _read(net, parameters, h)
    return jnp.stack([found[a] for a in states])


def _drive(net: Network, parameters: Parameters, inputs: Any, a: int, n: int) -> Any:
    drive = jnp.zeros((inputs.shape[1], n))
    if a < len(inputs) and parameters["input_weights"]:
        drive += np.sqrt(net.input_variances[a]) * (inputs[a] @ _of(parameters["input_weights"], a))
    if parameters["biases"]:
        drive += np.sqrt(net.bias_variances[a]) * _of(parameters["biases"], a)
    return drive


def _read(net: Network, parameters: Parameters, h: Any) -> Any:
    if not parameters["readout"] or net.readout_variance is None or net.readout_bias_variance is None:
        return h[:, 0]
    weights, bias = parameters["readout"]
    scale = np.sqrt(net.readout_variance / h.shape[1])
    return scale * (net.activation(h) @ weights) + np.sqrt(net.readout_bias_variance) * bias


def _of(drawn: list[Any], index: int) -> Any:
    """The parameter of a state: the only one where tied, its own where untied."""
    return drawn[0] if len(drawn) == 1 else drawn[index]
