"""Aligned text tables."""

from collections.abc import Iterable, Sequence
from typing import Any


def number(value: float | None) -> str:
    """Three digits, or a dash where nothing was measured."""
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def met(answers: Iterable[bool | None]) -> str:
    """Whether all targets of a row were met; a dash where one could not be judged and none was missed."""
    answers = list(answers)
    if False in answers:
        return "NO"
    return "–" if None in answers or not answers else "yes"


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A title and columns as wide as their widest cell, the first one flush left."""
    cells = [list(header), *([c if isinstance(c, str) else number(c) for c in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells]
    return "\n".join([title, lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]])
