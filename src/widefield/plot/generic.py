"""A picture of any solution: scalars as text, fields of one dim as curves, of two or more as images."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from widefield.answer.solution import Solution
from widefield.plot.style import SERIES, Panel, curve, matrix, mean, stderr

MOST_PANELS = 6


def pictures(solution: Solution) -> list[Panel]:
    """A panel with all scalars, then one per field, ``MOST_PANELS`` at most."""
    panels = scalars(solution)
    panels += [partial(_field, field=v, known=e) for v, e in _fields(solution) if _dims(v) and v.dtype.kind in "fiub"]
    return panels[:MOST_PANELS]


def scalars(solution: Solution) -> list[Panel]:
    """One panel of text with every field that is a single number or word."""
    lines = {str(field.name): _text(field, error) for field, error in _fields(solution) if not _dims(field)}
    return [partial(_words, lines=lines)] if lines else []


def _fields(solution: Solution) -> Iterator[tuple[xr.DataArray, np.ndarray | None]]:
    """Every field, with its standard error where that is a field too."""
    for name, field in solution.data.data_vars.items():
        if field.size and not str(name).endswith("_stderr"):
            known = solution.data.data_vars.get(f"{name}_stderr")
            yield field, None if known is None else known.values


def _dims(field: xr.DataArray) -> list[str]:
    return [str(dim) for dim in field.dims if dim != "replicate"]


def _text(field: xr.DataArray, error: np.ndarray | None) -> str:
    if field.dtype.kind not in "fiub":
        return str(field.values)
    error = stderr(field.values) if "replicate" in field.dims else error
    return f"{float(mean(field)):.5g}" + (f" ± {float(error):.1g}" if error is not None and error else "")


def _words(ax: Axes, lines: dict[str, str]) -> None:
    ax.set_axis_off()
    for i, (name, value) in enumerate(lines.items()):
        height = 1 - (i + 0.5) / max(len(lines), 6)
        ax.text(0.0, height, name.replace("_", " "), transform=ax.transAxes, va="center")
        ax.text(1.0, height, value, transform=ax.transAxes, va="center", ha="right")


def _field(ax: Axes, field: xr.DataArray, known: np.ndarray | None) -> None:
    dims, name = _dims(field), str(field.name).replace("_", " ")
    if len(dims) == 1:
        x = field[dims[0]].values
        error = None if "replicate" in field.dims else known
        curve(ax, x, field, error=error, color=SERIES[0], marker="o" if len(x) == 1 else None)
        ax.set(xlabel=dims[0], ylabel=name, title=name)
        if x.dtype.kind in "iu":
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    last = mean(field).isel(dict.fromkeys(dims[:-2], -1))
    where = f", last {', '.join(dims[:-2])}" if dims[:-2] else ""
    matrix(ax, last.values.astype(float), f"{name}{where}", name, (dims[-1], dims[-2]))
