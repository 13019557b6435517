"""What two nouns of a question differ in."""

from dataclasses import fields
from typing import Any

import numpy as np

from widefield.question.activation import Activation
from widefield.question.training import source_of

GRID = np.linspace(-3, 3, 13)  # where functions of the same text are compared


def differing_field(first: Any, second: Any) -> tuple[str, tuple[Any, Any]] | None:
    """The first field in which two networks, tasks, teachers or trainings differ, with both values; notes do not count."""
    for name in (f.name for f in fields(first) if f.name != "notes"):
        values = getattr(first, name), getattr(second, name)
        if not _equal(*values):
            return name, values
    return None


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Activation) and isinstance(b, Activation):
        known = (a.name, a.parameters, a.breaks, a.source) == (b.name, b.parameters, b.breaks, b.source)
        return known and _same_values(a.function, b.function, GRID)
    if callable(a) and callable(b):
        return source_of(a) == source_of(b) and _same_values(a, b, GRID, GRID[::-1])
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return a == b


def _same_values(a: Any, b: Any, *at: np.ndarray) -> bool:
    """Whether two functions with the same text are the same; one that was read from a file is known by its text alone."""
    try:
        return a is b or np.array_equal(a(*at), b(*at), equal_nan=True)
    except Exception:
        return True
