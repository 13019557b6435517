"""Checks of what a user passes in; each raises a `ValueError` that names the argument and what is allowed. And nouns."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

Array = np.ndarray


class Noun:
    """What nouns have in common: a frozen dataclass stores what it has checked, and notebooks show what `print` does."""

    def _put(self, **checked: Any) -> None:
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


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


def real(name: str, value: Any, allowed: str = "a finite number") -> float:
    """``value`` as a float, where it is one finite real number."""
    reject_tracers(**{name: value})
    try:
        number = np.asanyarray(float(value) if type(value) is int else value)
    except (ValueError, OverflowError):  # a ragged list, an integer beyond all floats
        number = np.asanyarray("no number")
    if number.ndim or number.dtype.kind not in "fiu" or np.ma.isMaskedArray(number) or not np.isfinite(number):
        raise ValueError(f"`{name}` must be {allowed}, got {value!r}.")
    return float(number)


def nonnegative(name: str, value: Any, *, positive: bool = False) -> float:
    """``value`` as a finite float that is not negative (or, with ``positive``, larger than zero)."""
    allowed = f"a finite {'positive' if positive else 'non-negative'} number"
    number = real(name, value, allowed)
    if number < 0 or (positive and number == 0):
        raise ValueError(f"`{name}` must be {allowed}, got {value!r}.")
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
