r"""Slopes :math:`\varphi'(h)` of whole batches: cheap ones in NumPy, the rest by JAX, as in `activate`."""

import math
from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from widefield.question.activation import Activation

NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "linear": lambda h: np.ones_like(h),
    "relu": lambda h: (h > 0).astype(h.dtype),
    "leaky_relu": lambda h, slope: np.where(h > 0, 1.0, slope),
    "abs": np.sign,
    "erf": lambda h: 2 / math.sqrt(math.pi) * np.exp(-np.square(h)),
    "sin": np.cos,
    "cos": lambda h: -np.sin(h),
    "quadratic": lambda h: 2 * h,
    "exp": np.exp,
    "tanh": lambda h: 1 - np.square(np.tanh(h)),
}


def slope(activation: Activation, h: np.ndarray, n_padded: int) -> np.ndarray:
    """Slopes at ``h`` (replicate, …); JAX always sees ``n_padded`` networks, so that it compiles once."""
    if activation.is_named and activation.name in NUMPY:
        return NUMPY[activation.name](h, *activation.parameters)
    missing = n_padded - len(h)
    padded = np.concatenate([h, np.repeat(h[:1], missing, axis=0)]) if missing else h
    return np.asarray(_compiled(activation.function)(padded))[: len(h)]


@lru_cache(maxsize=64)
def _compiled(function: Callable) -> Callable:
    return jax.jit(lambda h: jax.jvp(function, (h,), (jnp.ones_like(h),))[1])
