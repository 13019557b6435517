r"""Losses of the outputs: their value and the error signal :math:`\Delta = -\partial\ell/\partial f` that drives training."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from widefield.question import checks

Loss = Callable[[Array, Array], Array]


def squared(f: Array, y: Array) -> Array:
    """½|f − y|² of one sample, summed over outputs."""
    return 0.5 * jnp.sum((f - y) ** 2)


def logistic(f: Array, y: Array) -> Array:
    """ln(1 + e^{−yf}), labels ±1."""
    return jnp.sum(jnp.logaddexp(0.0, -y * f))


def cross_entropy(f: Array, y: Array) -> Array:
    """−Σ y ln softmax(f), labels the probabilities of the classes."""
    return -jnp.sum(y * jax.nn.log_softmax(f))


NAMED: dict[str, Loss] = {"squared": squared, "logistic": logistic, "cross_entropy": cross_entropy}


def as_loss(loss: Any, n_outputs: int) -> Loss:
    """A named loss, or a user's function of one sample's prediction and label (output,), once it is seen to work."""
    if not callable(loss):
        return NAMED[checks.choice("loss", loss, NAMED)]
    one = jax.ShapeDtypeStruct((n_outputs,), jnp.float64)
    try:
        hash(loss)  # compilations are found by it
        jax.eval_shape(jax.grad(loss), one, one)
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"`loss` must be a differentiable JAX function of one sample's outputs and label to one number, but: {why}"
        ) from error
    return loss


def total(loss: Loss, f: Array, y: Array) -> Array:
    """The sum over (readout, sample)."""
    return jax.vmap(jax.vmap(loss))(f, y).sum()
