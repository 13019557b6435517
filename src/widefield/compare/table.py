"""Verdicts as rows of a table, in words, in HTML and as JSON-able data."""

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """One quantity of a `Comparison`.

    ``theory``, ``simulation`` and ``stderr`` (of their difference) are those of the entry ``index`` with the largest
    |z| (without standard errors: with the largest difference); ``limit`` is what every |z| has to stay below. ``z_rms``,
    ``relative_error`` (of the mean, Frobenius; None beside a theory that is zero), ``p``, the probability of a difference
    as large in norm by chance, and ``resolution``, the smallest relative error whose ``p`` would have been rejected
    (however it is spread), are over all ``n_entries``. ``error`` is what both may be off by without chance (zero where
    nothing is stated); only what the difference exceeds it by counts. ``agrees`` is True, False, or None where that is
    undecided, for the ``reason``, or where nothing has an error of either kind.
    """

    quantity: str
    index: tuple[tuple[str, int | float | str], ...]
    theory: float
    simulation: float
    stderr: float | None
    z: float | None
    z_rms: float | None
    relative_error: float | None
    limit: float | None
    agrees: bool | None
    n_entries: int
    n_replicates: int
    error: float = 0.0
    p: float | None = None
    resolution: float | None = None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """``agrees``, ``disagrees``, ``undecided``, or a dash where there is no error to judge by."""
        return _verdict(self.agrees, bool(self.reason))

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON-able data; an infinite number becomes the word ``"inf"`` or ``"-inf"``."""
        row = {field.name: getattr(self, field.name) for field in fields(self)} | {"verdict": self.verdict}
        row["index"] = dict(self.index)
        return {name: str(v) if isinstance(v, float) and not np.isfinite(v) else v for name, v in row.items()}


@dataclass(frozen=True)
class Comparison:
    """A theory beside a simulation (or beside another theory), one `Row` per common quantity."""

    rows: tuple[Row, ...]
    alpha: float

    @property
    def agrees(self) -> bool | None:
        """Whether every quantity with an error agrees; None where none has one, or some are undecided and none disagrees."""
        verdicts = [row.agrees for row in self.rows if row.verdict != "–"]
        return False if False in verdicts else all(verdicts) or None if verdicts else None

    @property
    def verdict(self) -> str:
        """``agrees``, ``disagrees``, ``undecided``, or a dash where there is no error to judge by."""
        return _verdict(self.agrees, any(row.reason for row in self.rows))

    def __getitem__(self, quantity: str) -> Row:
        for row in self.rows:
            if row.quantity == quantity:
                return row
        raise KeyError(f"{quantity!r} was not compared; compared: {', '.join(row.quantity for row in self.rows)}")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON-able data."""
        rows = [row.to_dict() for row in self.rows]
        return {"alpha": self.alpha, "agrees": self.agrees, "verdict": self.verdict, "rows": rows}

    def __str__(self) -> str:
        return "\n".join([text_table(HEADER, [cells(row) for row in self.rows]), *self._footer()])

    def _repr_html_(self) -> str:
        body = "".join(_html_line("td", cells(row)) for row in self.rows)
        notes = "".join(f"<p>{html.escape(line)}</p>" for line in self._footer())
        return f"<table><thead>{_html_line('th', HEADER)}</thead><tbody>{body}</tbody></table>{notes}"

    def _footer(self) -> list[str]:
        why: dict[str, list[str]] = {}
        for row in self.rows:
            if row.reason:
                why.setdefault(row.reason, []).append(row.quantity)
        reasons = [f"undecided: {', '.join(names)}: {reason}." for reason, names in why.items()]
        if all(row.z is None for row in self.rows):
            words = "No replicates and no stated errors: relative errors only, at the entry of the largest difference."
            return [words, *reasons]
        n = max(row.n_replicates for row in self.rows)
        counted, limit = (f"{n} replicates; ", "Student") if n else ("", "normal")
        n_entries = sum(row.n_entries for row in self.rows)
        words = (
            f"{counted}z at its largest entry, limit: {limit}, α = {self.alpha:g}, Bonferroni over {n_entries} entries"
        )
        return [f"{words} and over {len(self.rows)} norms.", *reasons]


HEADER = ("quantity", "at", "theory", "simulation", "z (limit)", "rms z", "rel. error", "resolution", "verdict")


def cells(row: Row) -> tuple[str, ...]:
    """A row as the words of a table with the columns ``HEADER``."""
    at = ", ".join(f"{dim} {value}" for dim, value in row.index)
    error = "" if row.stderr is None else f" ± {row.stderr:.1g}"
    bound = f" (± {row.error:.2g})" if row.error else ""
    score = "–" if row.z is None else f"{row.z:+.2f} ({row.limit:.1f})"
    rms = "–" if row.z_rms is None else f"{row.z_rms:.2f}"
    relative = ["–" if value is None else f"{value:.1e}" for value in (row.relative_error, row.resolution)]
    values = f"{row.theory:.5g}{bound}", f"{row.simulation:.5g}{error}", score, rms, *relative
    return row.quantity, at, *values, row.verdict


def text_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Left-aligned columns under a ruled header."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "  ".join("─" * width for width in widths), *text[1:]])


def _html_line(tag: str, parts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(part)}</{tag}>" for part in parts) + "</tr>"


def _verdict(agrees: bool | None, undecided: bool) -> str:
    return {True: "agrees", False: "disagrees", None: "undecided" if undecided else "–"}[agrees]
