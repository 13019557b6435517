"""Checks of what a user passes in; each raises a `ValueError` that names the argument and what is allowed. And nouns."""

import html
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import numpy as np

Array = np.ndarray
LARGEST = 2**63 - 1  # integers of NumPy and JAX
SMALLEST = sys.float_info.min  # below, JAX takes numbers for zero


class Noun:
    """What nouns have in common: a frozen dataclass stores what it has checked, is short in a traceback, and shows in a
    notebook what `print` does."""

    def _put(self, **checked: Any) -> None:
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.repr}  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={_short(value)}' for name, value in given.items())})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _short(value: Any) -> str:
    if isinstance(value, tuple) and any(isinstance(part, np.ndarray) for part in value):
        return f"({', '.join(map(_short, value))})"
    return f"<array {value.shape}>" if isinstance(value, np.ndarray) else shown(value)


def shown(value: Any) -> str:
    """``value`` as a message can hold it."""
    try:
        text = repr(value)
    except Exception:  # an integer of too many digits, a user's object
        text = f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]} …"


def reject_tracers(**values: Any) -> None:
    """Public functions leave JAX; inside a transformation a theory's pure core is the one to call."""
    for name, value in values.items():
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
            raise ValueError(
                f"`{name}` is a JAX tracer: public functions return NumPy and cannot be traced by "
                "jit, grad or vmap. Inside a transformation call the theory's core, such as widefield.theories.prior.core."
            )


def as_array(name: str, value: Any, meaning: str) -> Array:
    """``value`` as NumPy reads it, unless that loses something: the trace of a computation, or a mask."""
    reject_tracers(**{name: value})
    if any(isinstance(leaf, np.ma.MaskedArray) for leaf in jax.tree.leaves(value)):
        raise ValueError(f"`{name}` must be {meaning}, got a masked array: leave out or fill in what is masked.")
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"`{name}` must be {meaning}, but it is no array: {error}") from None


def real_array(name: str, value: Any, ndim: Sequence[int], meaning: str) -> tuple[Array, str | None]:
    """A finite, non-empty float64 copy of ``value`` and, where its dtype changed, a note that says so."""
    given = as_array(name, value, meaning)
    if given.dtype.kind not in "fiub" or (given.dtype.kind == "b" and not given.ndim):
        raise ValueError(f"`{name}` must hold real numbers, got dtype {given.dtype}.")
    if given.ndim not in ndim:
        raise ValueError(f"`{name}` must be {meaning}, got an array of shape {given.shape}.")
    if given.size == 0:
        raise ValueError(f"`{name}` is empty (shape {given.shape}); {meaning} needs at least one entry on every axis.")
    array = np.array(given, dtype=np.float64)
    note = None if given.dtype == np.float64 else f"{name}: {given.dtype} input, upcast to float64"
    if note and not np.array_equal(array.astype(given.dtype), given, equal_nan=given.dtype.kind == "f"):
        raise ValueError(
            f"`{name}` holds {given.dtype} numbers that float64 cannot represent exactly; convert it first."
        )
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"`{name}` must be finite, got {array[where]} at index {where}.")
    array.flags.writeable = False
    return array, note


def integer(name: str, value: Any, minimum: int, maximum: int = LARGEST) -> int:
    """``value`` as an int of at least ``minimum`` and at most ``maximum``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not minimum <= value <= maximum:
        too_large = isinstance(value, int | np.integer) and value > maximum
        most = f" and at most {maximum}" if too_large or maximum != LARGEST else ""
        raise ValueError(f"`{name}` must be an integer of at least {minimum}{most}, got {shown(value)}.")
    return int(value)


def real(name: str, value: Any, allowed: str = "a finite number") -> float:
    """``value`` as a float, where it is one finite real number that JAX does not take for zero."""
    try:
        number = as_array(name, float(value) if type(value) is int else value, allowed)
    except OverflowError:
        number = np.asarray(np.inf)
    if number.ndim or number.dtype.kind not in "fiu" or not np.isfinite(number):
        raise ValueError(f"`{name}` must be {allowed}, got {shown(value)}.")
    if 0 < abs(float(number)) < SMALLEST:
        raise ValueError(f"`{name}` must be {allowed}, zero or at least {SMALLEST:.3g} in size, got {shown(value)}.")
    return float(number)


def nonnegative(name: str, value: Any, *, positive: bool = False) -> float:
    """``value`` as a finite float that is not negative (or, with ``positive``, larger than zero)."""
    allowed = f"a finite {'positive' if positive else 'non-negative'} number"
    number = real(name, value, allowed)
    if number < 0 or (positive and number == 0):
        raise ValueError(f"`{name}` must be {allowed}, got {shown(value)}.")
    return number


def tolerance(name: str, value: Any, floor: float, dtype: str = "float64") -> float:
    """``value`` as a relative tolerance below one that ``dtype`` can reach."""
    number = nonnegative(name, value, positive=True)
    if not floor <= number < 1:
        raise ValueError(
            f"`{name}` must be at least {floor:g}, which {dtype} can reach, and below 1, got {shown(value)}."
        )
    return number


def ratio(name: str, value: Any) -> float | None:
    """A positive number, or None where it is infinite or left out."""
    if value is None or (isinstance(value, float | np.floating) and np.isposinf(value)):
        return None
    return nonnegative(name, value, positive=True)


def flag(name: str, value: Any) -> bool:
    """``value`` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"`{name}` must be True or False, got {shown(value)}.")
    return bool(value)


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """``value`` if it is one of the ``allowed`` words."""
    allowed = tuple(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, allowed))}, got {shown(value)}.")
    return value


def per_state(name: str, value: Any, length: int, *, tied: bool, positive: bool = False) -> float | tuple[float, ...]:
    """A scalar variance, or ``length`` of them where the parameter is drawn anew at every state."""
    meaning = "one number" if tied else f"one number or {length} of them (one per state)"
    values = as_array(name, value, meaning)
    if values.ndim == 0:
        return nonnegative(name, value, positive=positive)
    if tied:
        raise ValueError(
            f"`{name}` must be one number because that parameter is tied across states, got {shown(value)}."
        )
    if values.shape != (length,):
        raise ValueError(f"`{name}` must be {meaning}, got {shown(value)}.")
    return tuple(nonnegative(f"{name}[{i}]", v, positive=positive) for i, v in enumerate(value))


def path(name: str, value: Any) -> Path:
    """``value`` as the name of a file or folder."""
    try:
        path = Path(value)
    except TypeError:
        path = Path("\0")
    if "\0" in str(path):
        raise ValueError(f"`{name}` must be the name of a file or folder, got {shown(value)}.")
    return path


def states(supervised: Any) -> tuple[int, ...] | None:
    """State indices as a tuple, or None where the default is meant."""
    if supervised is None:
        return None
    meaning = "state indices such as -1 or (0, 2)"
    indices = np.atleast_1d(as_array("supervised", supervised, meaning))
    if indices.ndim != 1 or indices.size == 0 or indices.dtype.kind not in "iu":
        raise ValueError(f"`supervised` must be {meaning}, got {shown(supervised)}.")
    return tuple(int(s) for s in indices)
