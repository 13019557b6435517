"""Measured costs beside a printed table: process times, fitted powers and their figure."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from widefield.gallery.kit.entry import sheet
from widefield.gallery.kit.panels import fitted_power, key, power_fit
from widefield.gallery.record import Made, Work
from widefield.plot.style import SERIES

HEADER = ("what", "against", "time", "expected", "printed", "memory", "expected", "printed")
UNITS = {"seconds": (1.0, "CPU time [s]"), "bytes": (1e-6, "memory [MB]")}

Case = tuple[str, str]  # what, against
Powers = Mapping[Case, tuple[tuple[int, int], tuple[int, int]]]  # of time and memory, expected and as printed
Column = tuple[str, str, Mapping[Case, str]]  # title, horizontal label, cases with their labels


def seconds(call: Callable[[], Any]) -> float:
    """Process seconds, the faster of two calls."""
    times = []
    for _ in range(2):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def table_of_costs(
    p: Any,
    work: Work,
    powers: Powers,
    series: Callable[..., tuple[Sequence[int], Sequence[tuple[float, float]]]],
    columns: Sequence[Column],
    notes: tuple[str, ...],
    *,
    one_legend: bool = False,
) -> Made:
    """The entry: ``series(p, what, against)`` gives sizes and (seconds, bytes) at each, for every line of ``powers``."""
    job, fields, rows = work.jobs(len(powers)), dict[str, Any](), []
    table: list[tuple[str, ...]] = [HEADER]
    for (what, against), (expected, printed) in powers.items():
        job(f"{what} against {against}")
        sizes, measured = series(p, what, against)
        name, (process_time, memory) = _name(what, against), np.array(measured, dtype=float).T
        named = {"size": np.array(sizes), "seconds": process_time, "bytes": memory}
        fields |= {f"{name}_{kind}": ((f"{name}_size",), values) for kind, values in named.items()}
        t, m = fitted_power(sizes, process_time), fitted_power(sizes, memory)
        rows.append({
            "quantity": f"{what} against {against}", "time_power": t, "memory_power": m, "expected_powers": [*expected],
            "printed_powers": [*printed], "largest_seconds": process_time[-1], "largest_megabytes": memory[-1] / 1e6,
        })  # fmt: skip
        by_kind = (f"{x:.2f}, {e}, {q}".split(", ") for x, e, q in zip((t, m), expected, printed))
        table.append((what, against, *(cell for kind in by_kind for cell in kind)))
    data = xr.Dataset(fields)
    panels = [[partial(_costs, powers=powers, kind=kind, column=column) for column in columns] for kind in UNITS]
    figure = sheet(panels, data, p, size=(3.1, 2.5))
    tops = figure.axes[: len(columns)]
    for ax in tops[-1:] if one_legend else tops:
        ax.legend(*(tops[0] if one_legend else ax).get_legend_handles_labels(), fontsize=7, frameon=False)
    return Made(figure, data, p, rows, table, notes=notes)


def _name(what: str, against: str) -> str:
    return f"{what}_{against}".replace(" ", "_")


def _costs(ax: Axes, data: xr.Dataset, p: Any, powers: Powers, kind: str, column: Column) -> None:
    """Points of every case, and the expected power through the last of them.

    What is measured has one color in all panels, unless it is all that a panel shows.
    """
    title, label, cases = column
    every = list(dict.fromkeys(what for what, _ in powers))
    several = len({what for what, _ in cases}) > 1
    sizes: set[int] = set()
    for k, ((what, against), words) in enumerate(cases.items()):
        color, name = SERIES[(every.index(what) if several else k) % len(SERIES)], _name(what, against)
        x, y = data[f"{name}_size"].values, UNITS[kind][0] * data[f"{name}_{kind}"].values
        ax.plot(x, y, "o", color=color, label=words)
        power_fit(ax, x, y[-1], powers[what, against][0][kind == "bytes"], through=-1, color=color)
        sizes |= set(x.tolist())
    key(ax, "expected power")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set(xlabel=label, ylabel=UNITS[kind][1], title=title if kind == "seconds" else "")
    ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    ax.set_xticks(sorted(sizes), [str(size) for size in sorted(sizes)], rotation=45 if len(sizes) > 4 else 0)
