r"""The neural tangent kernel of one finite network, by automatic differentiation."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Float

from widefield.simulate.networks.forward import Array, Parameters, Scales, forward

COTANGENT_NUMBERS = 2**23


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
