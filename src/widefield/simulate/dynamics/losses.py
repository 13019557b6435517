r"""What training minimizes: :math:`\ell(f, y)` of one sample at one readout, and its pull :math:`\Delta = -\partial_f \ell`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from scipy.special import expit, logsumexp, softmax

Function = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Loss:
    """``value`` (…) and ``pull`` (…, output) of outputs and labels, both (…, output)."""

    value: Function
    pull: Function


def loss_of(loss: Any, labels: dict[str, np.ndarray]) -> Loss:
    """The loss meant by a word or a JAX function, once ``labels`` (argument name: array) are known to suit it."""
    if callable(loss):
        return _user_loss(loss, next(iter(labels.values())).shape[-1])
    for name, y in labels.items():
        if loss == "logistic" and not np.isin(y, (-1.0, 1.0)).all():
            given = f"got values from {y.min()} to {y.max()}"
            raise ValueError(f"`{name}` must hold -1 and 1 with the logistic loss, {given}.")
        if loss == "cross_entropy" and y.shape[-1] < 2:
            raise ValueError(f"`{name}` must have one output per class (at least 2) with the cross-entropy, got 1.")
        if loss == "cross_entropy" and ((y < 0).any() or np.abs(y.sum(axis=-1) - 1).max() > 1e-9):
            raise ValueError(f"`{name}` must be class probabilities that sum to 1 with the cross-entropy loss.")
    return NAMED[loss]


def _user_loss(function: Callable, n_outputs: int) -> Loss:
    one = jax.ShapeDtypeStruct((n_outputs,), np.float64)
    name = getattr(function, "__name__", "loss")
    try:
        value = jax.eval_shape(jax.value_and_grad(function), one, one)[0]
    except Exception as error:
        raise ValueError(
            f"`loss` must be a differentiable JAX function of f and y, both (output,), to one number, "
            f"but {name} raised: {error}"
        ) from error
    if value.dtype != np.float64:
        raise ValueError(f"`loss` must return float64, but {name} returns {value.dtype}.")
    mapped = _mapped(function)
    return Loss(lambda f, y: mapped(f, y)[0], lambda f, y: -mapped(f, y)[1])


@lru_cache(maxsize=16)
def _mapped(function: Callable) -> Callable:
    """Values and slopes over all leading axes."""
    compiled = jax.jit(jax.vmap(jax.value_and_grad(function)))

    def both(f: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = compiled(*(x.reshape(-1, f.shape[-1]) for x in (f, np.broadcast_to(y, f.shape))))
        return np.asarray(value).reshape(f.shape[:-1]), np.asarray(slope).reshape(f.shape)

    return both


NAMED = {
    "squared": Loss(lambda f, y: 0.5 * np.square(f - y).sum(axis=-1), lambda f, y: y - f),
    "logistic": Loss(lambda f, y: np.logaddexp(0.0, -y * f).sum(axis=-1), lambda f, y: y * expit(-y * f)),
    "cross_entropy": Loss(
        lambda f, y: logsumexp(f, axis=-1) - (y * f).sum(axis=-1), lambda f, y: y - softmax(f, axis=-1)
    ),
}
