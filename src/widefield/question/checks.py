"""Checks of what a user passes in. Each raises a `ValueError` that names the argument and what is allowed."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

Array = np.ndarray


def reject_tracers(**values: Any) -> None:
    """Public functions leave JAX; inside a transformation a theory's pure core is the one to call."""
    for name, value in values.items():
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
            raise ValueError(
                f"`{name}` is a JAX tracer: public functions return NumPy and cannot be traced by "
                "jit, grad or vmap. Inside a transformation call the theory's core, such as widefield.theories.prior.core."
            )


def real_array(name: str, value: Any, ndim: Sequence[int], meaning: str) -> tuple[Array, str | None]:
    """A finite, non-empty float64 copy of ``value`` and, where its dtype changed, a note that says so."""
    reject_tracers(**{name: value})
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"`{name}` must be {meaning}, but it is no array: {error}") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"`{name}` must hold real numbers, got dtype {array.dtype}.")
    if array.ndim not in ndim:
        raise ValueError(f"`{name}` must be {meaning}, got an array of shape {array.shape}.")
    if array.size == 0:
        raise ValueError(f"`{name}` is empty (shape {array.shape}); {meaning} needs at least one entry on every axis.")
    note = None
    if array.dtype != np.float64:
        note = f"{name}: {array.dtype} input, upcast to float64"
    given, array = array, np.array(array, dtype=np.float64)
    if note and not np.array_equal(array.astype(given.dtype), given, equal_nan=given.dtype.kind == "f"):
        raise ValueError(
            f"`{name}` holds {given.dtype} numbers that float64 cannot represent exactly; convert it first."
        )
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"`{name}` must be finite, got {array[where]} at index {where}.")
    array.flags.writeable = False
    return array, note


def integer(name: str, value: Any, minimum: int) -> int:
    """``value`` as an int of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ValueError(f"`{name}` must be an integer of at least {minimum}, got {value!r}.")
    return int(value)


def nonnegative(name: str, value: Any, *, positive: bool = False) -> float:
    """``value`` as a finite float that is not negative (or, with ``positive``, larger than zero)."""
    kind = "positive" if positive else "non-negative"
    message = f"`{name}` must be a finite {kind} number, got {value!r}."
    reject_tracers(**{name: value})
    kind_of = np.asarray(value).dtype.kind if np.ndim(value) == 0 else "O"
    if kind_of not in "fiu":
        raise ValueError(message)
    number = float(value)
    if not np.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(message)
    return number


def tolerance(name: str, value: Any, floor: float, dtype: str = "float64") -> float:
    """``value`` as a relative tolerance below one that ``dtype`` can reach."""
    number = nonnegative(name, value, positive=True)
    if not floor <= number < 1:
        raise ValueError(f"`{name}` must lie between {floor:g}, which {dtype} can reach, and 1, got {value!r}.")
    return number


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """``value`` if it is one of the ``allowed`` words."""
    allowed = tuple(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def per_state(name: str, value: Any, length: int, *, tied: bool, positive: bool = False) -> float | tuple[float, ...]:
    """A scalar variance, or ``length`` of them where the parameter is drawn anew at every state."""
    reject_tracers(**{name: value})
    try:
        n_dims = np.ndim(value)
    except ValueError:
        n_dims = -1
    if n_dims == 0:
        return nonnegative(name, value, positive=positive)
    if tied:
        raise ValueError(f"`{name}` must be one number because that parameter is tied across states, got {value!r}.")
    if n_dims != 1 or len(value) != length:
        raise ValueError(f"`{name}` must be one number or {length} of them (one per state), got {value!r}.")
    return tuple(nonnegative(f"{name}[{i}]", v, positive=positive) for i, v in enumerate(value))


def schedule(name: str, value: Any, steps: int) -> Array:
    """One positive number per step from a number, an array or a function of the step."""
    reject_tracers(**{name: value})
    try:
        values = np.asarray([value(t) for t in range(steps)] if callable(value) else value)
    except Exception as error:  # whatever a user's function raises
        raise ValueError(f"`{name}` must be a function of the step, got {value!r}: {error}.") from error
    if values.ndim > 1 or values.dtype.kind not in "fiu" or (values.ndim == 1 and len(values) != steps):
        raise ValueError(
            f"`{name}` must be a number, {steps} of them (one per step) or a function of the step, got {value!r}."
        )
    values = np.broadcast_to(values.astype(float), (steps,))
    if not np.isfinite(values).all() or (values <= 0).any():
        raise ValueError(f"`{name}` must be positive and finite, got {values.min():g} … {values.max():g}.")
    return values


def states(supervised: Any) -> tuple[int, ...] | None:
    """State indices as a tuple, or None where the default is meant."""
    if supervised is None:
        return None
    try:
        states = np.atleast_1d(np.asarray(supervised))
    except ValueError:
        states = np.asarray([])
    if states.ndim != 1 or states.size == 0 or states.dtype.kind not in "iu":
        raise ValueError(f"`supervised` must be state indices such as -1 or (0, 2), got {supervised!r}.")
    return tuple(int(s) for s in states)


def flag(name: str, value: Any) -> bool:
    """``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False, got {value!r}.")
    return value


def ratio(name: str, value: Any) -> float | None:
    """A positive number, or None where it is infinite or left out."""
    reject_tracers(**{name: value})
    infinite = np.ndim(value) == 0 and np.asarray(value).dtype.kind == "f" and np.isposinf(value)
    return None if value is None or infinite else nonnegative(name, value, positive=True)
