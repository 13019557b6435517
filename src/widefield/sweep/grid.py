"""The grid of a sweep: an axis of values for everything that is varied."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import numpy as np

from widefield.answer.boundary import check_common
from widefield.question import checks
from widefield.sweep.question import Changes, Question

MAX_POINTS = 10**5


@dataclass(frozen=True, eq=False)
class Axis:
    """``values`` of what ``key`` names, and the ``labels`` that they have in the answer."""

    key: str
    values: tuple[Any, ...]
    labels: np.ndarray


def axes_of(question: Question, over: Mapping[str, Any]) -> tuple[Axis, ...]:
    """The axes, once every value is known to be one that its place takes."""
    axes = tuple(_axis(key, values) for key, values in over.items())
    known = question.keys()
    for axis in axes:
        noun = axis.key.rpartition(".")[0]
        if axis.key not in known and noun not in over:
            raise ValueError(
                f"`over` must name what {question.call} is asked, got {axis.key!r}. It has: {', '.join(known)}."
            )
    question.check_complete(over)
    n_points = math.prod(len(axis.values) for axis in axes)
    if n_points > MAX_POINTS:
        raise ValueError(f"`over` must have at most {MAX_POINTS} points, got {n_points}.")
    for axis in axes:
        _check_values(question, axis, {other.key: other.values[0] for other in axes})
    return axes


def points_of(axes: tuple[Axis, ...]) -> Iterator[Changes]:
    """All combinations, the last axis running fastest."""
    for values in product(*(axis.values for axis in axes)):
        yield dict(zip((axis.key for axis in axes), values))


def check_over(over: Any) -> Mapping[str, Any]:
    """``over`` if it is a mapping from words to something."""
    if not isinstance(over, Mapping) or not over or not all(isinstance(key, str) for key in over):
        raise ValueError(
            f"`over` must be a dict from what is varied to its values, such as {{'temperature': [0.1, 1.0]}}, "
            f"got {checks.shown(over)}."
        )
    return over


def _axis(key: str, given: Any) -> Axis:
    meaning = "a list of values, or a dict of names and values"
    named = isinstance(given, Mapping)
    if not named:
        if isinstance(given, jax.Array | list | tuple):
            checks.reject_tracers(over=given)
        given = np.asarray(given) if isinstance(given, jax.Array) else given
        row = type(given) is np.ndarray and given.ndim == 1
        if not row and not isinstance(given, list | tuple | range):
            raise ValueError(f"`over`: {key!r} must be {meaning}, got {checks.shown(given)}.")
    values = tuple(map(_plain, given.values() if named else given))
    if not values:
        raise ValueError(f"`over`: {key!r} must be {meaning}, got none.")
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        raise ValueError(f"`over`: {key!r} must be {meaning}, got NaN.")
    plain = values if not named else tuple(given)
    words = all(isinstance(value, str) for value in plain)
    if named and not words:
        raise ValueError(f"`over`: the names of {key!r} must be words, got {checks.shown(plain)}.")
    if not words and not all(isinstance(value, int | float) for value in plain):
        return Axis(key, values, np.arange(len(values)))  # nouns, arrays: counted
    if len(set(plain)) < len(plain):
        raise ValueError(f"`over`: {key!r} must be different values, got {checks.shown(list(plain))}.")
    labels = np.asarray(plain)
    return Axis(key, values, labels if labels.dtype.kind != "O" else np.arange(len(values)))  # integers of many digits


def _plain(value: Any) -> Any:
    """A number of NumPy or JAX as one of Python."""
    return value.item() if isinstance(value, np.generic | np.ndarray | jax.Array) and not value.ndim else value


def _check_values(question: Question, axis: Axis, first: Changes) -> None:
    """Let nouns check what is put into them, beside the first value of all other axes."""
    for value in axis.values:
        try:
            check_common({axis.key: value})
            if "." in axis.key or axis.key == "labels":
                question.at({**first, axis.key: value})
        except (ValueError, TypeError) as error:
            raise ValueError(f"`over`: {axis.key!r} cannot be {checks.shown(value)}: {error}") from None
