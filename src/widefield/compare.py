"""Verdicts: a table that sets a theory beside a simulation."""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from widefield.answer.solution import Solution
from widefield.measures import (
    REPLICATE,
    check_labels,
    numbers_of,
    relative_error,
    scores,
    standard_error,
    student_limit,
)
from widefield.question import checks

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Row:
    """One quantity of a `Comparison`.

    ``theory``, ``simulation`` and ``stderr`` (of their difference) are those of the entry ``index`` with the largest
    |z| (without standard errors: with the largest difference); ``z_rms`` and ``relative_error`` (of the mean,
    Frobenius) are over all ``n_entries``. ``error`` is what both may be off by without chance (zero where nothing is
    stated); z counts only what the difference exceeds it by. ``agrees`` says whether every |z| stays below ``limit``; None
    where nothing has an error of either kind.
    """

    quantity: str
    index: tuple[tuple[str, int | float | str], ...]
    theory: float
    simulation: float
    stderr: float | None
    z: float | None
    z_rms: float | None
    relative_error: float
    limit: float | None
    agrees: bool | None
    n_entries: int
    n_replicates: int
    error: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON-able data; an infinite number becomes the word ``"inf"`` or ``"-inf"``."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        row["index"] = dict(self.index)
        return {name: str(v) if isinstance(v, float) and not np.isfinite(v) else v for name, v in row.items()}


@dataclass(frozen=True)
class Comparison:
    """A theory beside a simulation (or beside another theory), one `Row` per common quantity."""

    rows: tuple[Row, ...]
    alpha: float

    @property
    def agrees(self) -> bool | None:
        """Whether every quantity with an error agrees; None where there is none."""
        verdicts = [row.agrees for row in self.rows if row.agrees is not None]
        return all(verdicts) if verdicts else None

    def __getitem__(self, quantity: str) -> Row:
        for row in self.rows:
            if row.quantity == quantity:
                return row
        raise KeyError(f"{quantity!r} was not compared; compared: {', '.join(row.quantity for row in self.rows)}")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON-able data."""
        return {"alpha": self.alpha, "agrees": self.agrees, "rows": [row.to_dict() for row in self.rows]}

    def __str__(self) -> str:
        return f"{text_table(HEADER, [cells(row) for row in self.rows])}\n{self._footer()}"

    def _repr_html_(self) -> str:
        body = "".join(_html_line("td", cells(row)) for row in self.rows)
        return f"<table><thead>{_html_line('th', HEADER)}</thead><tbody>{body}</tbody></table><p>{self._footer()}</p>"

    def _footer(self) -> str:
        if all(row.z is None for row in self.rows):
            return "No replicates and no stated errors: relative errors only, at the entry of the largest difference."
        n = max(row.n_replicates for row in self.rows)
        counted, limit = (f"{n} replicates; ", "Student") if n else ("", "normal")
        n_entries = sum(row.n_entries for row in self.rows)
        return (
            f"{counted}z at its largest entry, limit: {limit}, α = {self.alpha:g}, Bonferroni over {n_entries} entries."
        )


def compare(
    theory: Solution, trial: Solution, *, quantities: Iterable[str] | str | None = None, alpha: float = 1e-6
) -> Comparison:
    """Set every quantity that ``theory`` and ``trial`` share side by side.

    ``trial`` is a simulation, whose fields have a leading ``replicate`` dim, or a second theory, for which there are
    relative errors only, unless errors are stated. Two kinds are, on either side: ``<name>_stderr``, by chance (of a
    trial with replicates these take its place), adds to the standard error in quadrature; ``<name>_error``, the estimate
    of a deterministic error, is taken off the size of the difference before it is scored, both sides' added. A simulation
    of unequal widths has ``<name>_diagonal`` at equal states only: it is compared with the theory's equal states. Limits:
    the test knows the errors that are stated; a finite network differs from an infinite one by O(1/width), which many
    replicates resolve.
    """
    matches = {name: _match(name, theory, trial) for name in _names(theory)}
    pairs = {name: pair for name, pair in matches.items() if pair is not None}
    if not pairs:
        have = [", ".join(map(str, s.data.data_vars)) for s in (theory, trial)]
        raise ValueError(f"The two have no quantity in common: the first has {have[0]}; the second has {have[1]}.")
    asked = (quantities,) if isinstance(quantities, str) else tuple(pairs if quantities is None else quantities)
    return judge_all([pairs[checks.choice("quantities", name, pairs)] for name in asked], alpha=alpha)


class Pair(NamedTuple):
    """One labeled quantity to compare, standard errors ``known`` without replicates, and ``bounds`` of other errors."""

    quantity: str
    theory: "xr.DataArray"
    trial: "xr.DataArray"
    known: Sequence["xr.DataArray"] = ()
    bounds: Sequence["xr.DataArray"] = ()


def judge_all(pairs: Iterable[Pair], *, alpha: float = 1e-6) -> Comparison:
    """A row for each pair, Bonferroni over the entries of all of them."""
    pairs = tuple(pairs)
    n_tests = sum(pair.theory.size for pair in pairs)
    return Comparison(tuple(judge(*pair, alpha=alpha, n_tests=n_tests) for pair in pairs), alpha)


def judge(
    quantity: str,
    theory: "xr.DataArray",
    trial: "xr.DataArray",
    known: Sequence["xr.DataArray"] = (),
    bounds: Sequence["xr.DataArray"] = (),
    *,
    alpha: float = 1e-6,
    n_tests: int | None = None,
) -> Row:
    """The `Row` of one labeled quantity; ``trial`` may have a ``replicate`` dim.

    The ``known`` standard errors add in quadrature to that of the replicates; the ``bounds`` of deterministic errors add
    up and are taken off the difference; ``n_tests`` entries share ``alpha`` (by default, those of this quantity). Limits: with replicates the limit is Student's even where most of the error is
    known (then the normal one, which is smaller, would do).
    """
    if REPLICATE in theory.dims:
        raise ValueError(f"{quantity}: the first argument has a `replicate` dim; the theory comes first.")
    check_labels(quantity, theory, trial)
    sampled = REPLICATE in trial.dims
    order = (REPLICATE, *theory.dims) if sampled else theory.dims
    exact, samples = numbers_of(quantity, theory), numbers_of(quantity, trial.transpose(*order))
    samples = samples if sampled else samples[None]
    n, mean = len(samples), samples.mean(axis=0)
    variance = sum((numbers_of(quantity, _like(theory, error)) ** 2 for error in known), np.zeros_like(exact))
    allowed = sum((np.abs(numbers_of(quantity, _like(theory, error))) for error in bounds), np.zeros_like(exact))
    z = stderr = limit = None
    if n > 1 or (not sampled and (variance.any() or allowed.any())):
        stderr = np.sqrt(variance + (standard_error(samples) ** 2 if n > 1 else 0.0))
        z = scores(exact, samples, stderr, allowed)
        limit = student_limit(n if n > 1 else np.inf, n_tests or exact.size, alpha)
    ranked = mean - exact if z is None or not z.any() else z
    worst = np.unravel_index(int(np.argmax(np.abs(ranked))), exact.shape)
    return Row(
        quantity=quantity,
        index=tuple((str(d), _label(theory, d, i)) for d, i in zip(theory.dims, worst, strict=True)),
        theory=float(exact[worst]),
        simulation=float(mean[worst]),
        stderr=None if stderr is None else float(stderr[worst]),
        z=None if z is None else float(z[worst]),
        z_rms=None if z is None else float(np.sqrt(np.mean(z**2))),
        relative_error=relative_error(exact, mean),
        limit=limit,
        agrees=None if z is None or limit is None else bool(np.all(np.abs(z) <= limit)),
        n_entries=exact.size,
        n_replicates=n if sampled else 0,
        error=float(allowed[worst]),
    )


def equal_states(covariance: "xr.DataArray") -> "xr.DataArray":
    """C^{(a,a)} from C^{(a,b)}, over ``state``."""
    import xarray as xr

    same = xr.DataArray(np.arange(covariance.sizes["state"]), dims="state")
    return covariance.isel(state_=same).drop_vars("state_", errors="ignore")


HEADER = ("quantity", "at", "theory", "simulation", "z (limit)", "rms z", "rel. error", "agrees")


def cells(row: Row) -> tuple[str, ...]:
    """A row as the words of a table with the columns ``HEADER``."""
    at = ", ".join(f"{dim} {value}" for dim, value in row.index)
    verdict = {None: "–", True: "yes", False: "no"}[row.agrees]
    error = "" if row.stderr is None else f" ± {row.stderr:.1g}"
    bound = f" (± {row.error:.2g})" if row.error else ""
    score = "–" if row.z is None else f"{row.z:+.2f} ({row.limit:.1f})"
    rms = "–" if row.z_rms is None else f"{row.z_rms:.2f}"
    values = f"{row.theory:.5g}{bound}", f"{row.simulation:.5g}{error}", score, rms, f"{row.relative_error:.1e}"
    return row.quantity, at, *values, verdict


def text_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Left-aligned columns under a ruled header."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "  ".join("─" * width for width in widths), *text[1:]])


def _html_line(tag: str, parts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(part)}</{tag}>" for part in parts) + "</tr>"


def _names(solution: Solution) -> list[str]:
    """Fields that can be compared: numbers that are not themselves errors of others."""
    numbers = [str(name) for name, value in solution.data.data_vars.items() if value.dtype.kind in "fiu"]
    errors = {f"{name}_error" for name in numbers}
    return [name for name in numbers if not name.endswith("_stderr") and name not in errors]


def _match(name: str, theory: Solution, trial: Solution) -> Pair | None:
    """The theory's field ``name`` beside the trial's; beside its equal states, where the trial has only these."""
    field, other = theory.data[name], trial.data.data_vars.get(name)
    by_chance, bounds = _errors(theory, name, "_stderr"), _errors(theory, name, "_error")
    label = name
    if other is None and {"state", "state_"} <= set(field.dims):
        label, other = f"{name} (equal states)", trial.data.data_vars.get(f"{name}_diagonal")
        field, by_chance, bounds = equal_states(field), [*map(equal_states, by_chance)], [*map(equal_states, bounds)]
    if other is None or {"path", "neuron"} & {*field.dims, *other.dims}:  # draws, not numbers to be equal
        return None
    if REPLICATE not in other.dims:
        by_chance = by_chance + _errors(trial, str(other.name), "_stderr")
    return Pair(label, field, other, by_chance, bounds + _errors(trial, str(other.name), "_error"))


def _errors(solution: Solution, name: str, suffix: str) -> list["xr.DataArray"]:
    return [solution.data[name + suffix]] if name + suffix in solution.data else []


def _like(reference: "xr.DataArray", array: "xr.DataArray") -> "xr.DataArray":
    check_labels(str(array.name), reference, array)
    return array.transpose(*reference.dims)


def _label(array: "xr.DataArray", dim: Any, position: Any) -> int | float | str:
    return array.coords[dim].values[position].item() if dim in array.coords else int(position)
