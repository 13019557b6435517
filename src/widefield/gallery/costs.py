"""Measured costs beside a printed table: process times, fitted powers and their figure."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from widefield.plot.style import COLORS, SERIES

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

HEADER = ("what", "against", "time", "expected", "printed", "memory", "expected", "printed")
FASTEST_OF = 2

# what, against: powers of time and memory that are expected, and those that are printed
Powers = Mapping[tuple[str, str], tuple[tuple[int, int], tuple[int, int]]]


def seconds(call: Callable[[], Any]) -> float:
    """Process seconds, the fastest of a few calls."""
    found = []
    for _ in range(FASTEST_OF):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def name_of(what: str, against: str) -> str:
    """The beginning of the names of a series in the data."""
    return f"{what}_{against}".replace(" ", "_")


def block(what: str, against: str, sizes: tuple[int, ...], measured: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Fields ``<name>_seconds`` and ``<name>_bytes`` over ``<name>_size``."""
    name = name_of(what, against)
    time, memory = np.array(measured, dtype=float).T
    dims = (f"{name}_size",)
    return {f"{name}_seconds": (dims, time), f"{name}_bytes": (dims, memory), f"{name}_size": (dims, np.array(sizes))}


def row_of(data: "xr.Dataset", powers: Powers, what: str, against: str) -> dict[str, Any]:
    """Fitted powers beside the expected and the printed ones."""
    name = name_of(what, against)
    sizes = np.log(data[f"{name}_size"].values)
    fit = {kind: float(np.polyfit(sizes, np.log(data[f"{name}_{kind}"].values), 1)[0]) for kind in ("seconds", "bytes")}
    expected, printed = powers[what, against]
    return {
        "quantity": f"{what} against {against}", "time_power": fit["seconds"], "memory_power": fit["bytes"],
        "expected_powers": list(expected), "printed_powers": list(printed),
        "largest_seconds": float(data[f"{name}_seconds"][-1]), "largest_megabytes": float(data[f"{name}_bytes"][-1]) / 1e6,
    }  # fmt: skip


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as words under `HEADER`."""
    what, against = row["quantity"].split(" against ")
    (t, m), (t_, m_) = row["expected_powers"], row["printed_powers"]
    return what, against, f"{row['time_power']:.2f}", str(t), str(t_), f"{row['memory_power']:.2f}", str(m), str(m_)


def lines(ax: "Axes", data: "xr.Dataset", powers: Powers, cases: Mapping[tuple[str, str], str], kind: str) -> None:
    """Points of every series of ``cases`` (with its label), and the expected power through the last of them.

    What is measured has one colour in all panels, unless it is all that a panel shows.
    """
    from matplotlib.ticker import NullFormatter

    every = list(dict.fromkeys(what for what, _ in powers))
    several = len({what for what, _ in cases}) > 1
    for k, ((what, against), label) in enumerate(cases.items()):
        color = SERIES[(every.index(what) if several else k) % len(SERIES)]
        name = name_of(what, against)
        x, y = data[f"{name}_size"].values, (1e-6 if kind == "bytes" else 1.0) * data[f"{name}_{kind}"].values
        power = powers[what, against][0][kind == "bytes"]
        ax.plot(x, y, "o", color=color, label=label)
        ax.plot(x, y[-1] * (x / x[-1]) ** power, color=color, linestyle="--", linewidth=0.9)
    ax.plot([], [], color=COLORS["theory"], linestyle="--", linewidth=0.9, label="expected power")
    ax.set(xscale="log", yscale="log")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.legend(fontsize=7)
    _ticks(ax, np.unique(np.concatenate([data[f"{name_of(*case)}_size"].values for case in cases])))


def _ticks(ax: "Axes", sizes: np.ndarray) -> None:
    """The sizes that were measured, and no others."""
    ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    ax.set_xticks(sizes, [str(size) for size in sizes], rotation=45 if len(sizes) > 4 else 0)
