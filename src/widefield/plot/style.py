"""The house style: colors, markers, images, figures without pyplot's global state, files written whole."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from widefield.answer.files import write_atomically
from widefield.question import checks

Panel = Callable[[Axes], None]  # draws itself
Share = Literal["none", "row", "col"]  # axes with one vertical range
DPI = 150
N_CURVES = 3
N_ANNOTATED = 4
N_TICKED = 6
N_WHOLE_TICKS = 12
# Okabe and Ito's palette, told apart with any color vision and by lightness in print.
COLORS = {"DNN": "#E69F00", "RNN": "#0072B2", "RNN_": "#CC79A7", "theory": "#5A5A5A", "other": "#009E73"}
MARKERS = {"DNN": "o", "RNN": "x", "RNN_": "x"}
OTHER_MARKER = "s"
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
KERNEL_MAP = "cividis"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "mathtext.fontset": "cm",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


class Figure(MatplotlibFigure):
    """A matplotlib figure that pyplot does not know of and that a notebook still shows."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with house_style():
            self.savefig(buffer, format="png", dpi=DPI)
        return buffer.getvalue()


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and save in the house style; matplotlib's own settings come back afterwards."""
    with matplotlib.rc_context(STYLE):
        yield


def panels(
    n_rows: int, n_columns: int, *, size: tuple[float, float] = (3.4, 2.7), share: Share = "none"
) -> tuple[Figure, np.ndarray]:
    """A figure of ``n_rows`` by ``n_columns`` axes, each of ``size`` inches; to be called inside `house_style`.

    ``share`` names the axes that have one vertical range.
    """
    figure = Figure(figsize=(size[0] * n_columns, size[1] * n_rows), layout="constrained")
    return figure, figure.subplots(n_rows, n_columns, squeeze=False, sharey=share)


def band(
    axes: Axes,
    x: Any,
    samples: Any,
    *,
    kind: str = "other",
    label: str | None = None,
    color: str | None = None,
    marker: str | None = None,
) -> None:
    """Mean over replicates (axis 0) as markers, its standard error as a tube."""
    samples, color = np.asarray(samples), color or COLORS.get(kind, COLORS["other"])
    marker = marker or MARKERS.get(kind, OTHER_MARKER)
    middle, error, size = samples.mean(axis=0), stderr(samples), 3.5 if marker == "o" else None
    axes.plot(x, middle, linestyle="none", marker=marker, markersize=size, color=color, label=label, zorder=3)
    axes.fill_between(x, middle - error, middle + error, color=color, alpha=0.25, linewidth=0, zorder=1)


def curve(axes: Axes, x: Any, field: xr.DataArray, *, error: Any = None, log: bool = False, **look: Any) -> None:
    """A field over its one dim, or its mean over replicates with a tube of the standard error (or of ``error``).

    What is infinite is left out, and on a ``log`` axis what is not positive.
    """
    samples = field.transpose("replicate", ...).values if "replicate" in field.dims else field.values[None]
    finite = np.isfinite(samples).all(axis=0)
    middle = np.where(finite, samples.mean(axis=0), np.nan)
    middle = np.where(middle > 0, middle, np.nan) if log else middle
    (line,) = axes.plot(x, middle, **look)
    error = stderr(samples) if error is None else error
    if finite.all() and np.any(error):
        axes.fill_between(x, middle - error, middle + error, color=line.get_color(), alpha=0.25, linewidth=0)


def predictions(
    axes: Axes, x: np.ndarray, field: xr.DataArray, labels: Any, labeled: Any, name: str, **look: Any
) -> None:
    """Outputs of the first samples over ``x`` and, where there are ``labels``, these as crosses at ``labeled``."""
    for k in range(min(N_CURVES, field.sizes["sample"])):
        curve(axes, x, field.isel(sample=k), color=SERIES[k], **look)
        if labels is not None:
            cross: dict[str, Any] = {"color": SERIES[k], "markersize": 7, "label": None if k else "label"}
            axes.plot(labeled, labels[k], "x", clip_on=False, **cross)
    axes.axhline(0, color=COLORS["theory"], linewidth=0.5)
    shown = "" if field.sizes["sample"] <= N_CURVES else f" (first {N_CURVES} samples)"
    axes.set(xlabel=name, ylabel="output", title=f"prediction{shown}")
    axes.legend(loc="best")


def diagonal(field: xr.DataArray, dim: str) -> xr.DataArray:
    """Entries where ``dim`` and its second copy are equal."""
    same = xr.DataArray(np.arange(field.sizes[dim]), dims=dim)
    return field.isel({f"{dim}_": same}).drop_vars(f"{dim}_", errors="ignore")


def numbered(field: xr.DataArray) -> list[tuple[xr.DataArray, str, str | None]]:
    """Layers (counted from 1) or states (from 0), each with its color and, unless there are too many, its number."""
    dim = "state" if "state" in field.dims else "layer"
    n, first = field.sizes[dim], 0 if dim == "state" else 1
    labels = [str(first + i) if n <= len(SERIES) else None for i in range(n)]
    return [(field.isel({dim: i}), SERIES[i % len(SERIES)], label) for i, label in enumerate(labels)]


def stderr(samples: Any) -> np.ndarray:
    """Standard error of the mean over axis 0 (zero where there is one replicate)."""
    samples = np.asarray(samples)
    if len(samples) < 2:
        return np.zeros(samples.shape[1:])
    return samples.std(axis=0, ddof=1) / np.sqrt(len(samples))


def mean(field: xr.DataArray) -> xr.DataArray:
    """The mean over replicates, where there are any."""
    return field.mean("replicate", keep_attrs=True) if "replicate" in field.dims else field


def matrix(
    axes: Axes,
    values: np.ndarray,
    title: str,
    symbol: str,
    names: tuple[str, str],
    limits: tuple[float, float] | None = None,
) -> None:
    """An image with axes called ``names`` (horizontal first); numbers are written into a small one.

    A ``symbol`` has a color bar. ``limits`` are those of the colors, for images that are to be compared.
    """
    values = np.where(np.isfinite(values), values, np.nan)
    long = max(values.shape) > 4 * min(values.shape)
    low, high = limits or (None, None)
    aspect: Any = "auto" if long else "equal"
    image = axes.imshow(values, cmap=KERNEL_MAP, interpolation="nearest", aspect=aspect, vmin=low, vmax=high)
    axes.set(xlabel=names[0], ylabel=names[1], title=title)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for which, n in zip("xy", values.shape[::-1], strict=True):
        whole_ticks(axes, n, which)
    if symbol:
        axes.figure.colorbar(image, ax=axes, shrink=0.8, label=symbol)
    if max(values.shape) <= N_ANNOTATED:
        middle = sum(limits or (values.min(), values.max())) / 2
        for (i, j), value in np.ndenumerate(values):
            color = "black" if value > middle else "white"
            number = f"{value:.3g}" if limits is None else f"{round(value, 2) + 0.0:.2f}"
            axes.text(j, i, number, ha="center", va="center", fontsize=7, color=color)


def whole_ticks(axes: Axes, n: int, which: str) -> None:
    """States and samples are counted: no ticks between whole numbers."""
    if n <= N_WHOLE_TICKS:
        (axes.set_xticks if which == "x" else axes.set_yticks)(range(0, n, 1 if n <= N_TICKED else 2))


def letter(axes: Axes, text: str) -> None:
    """The bold panel letter of a published figure, outside the upper left corner."""
    axes.set_title(text, loc="left", fontweight="bold")


def format_of(path: str | os.PathLike) -> str:
    """The format that the suffix of ``path`` says (none: PNG)."""
    name = checks.path("path", path)
    kind = name.suffix[1:] or "png"
    if kind not in Figure().canvas.get_supported_filetypes():
        raise ValueError(f"`path` must end in a format such as .png, .pdf or .svg, got {name.name!r}.")
    return kind


def save(figure: MatplotlibFigure, path: str | os.PathLike) -> Path:
    """Write a figure whole or not at all."""
    buffer, kind = io.BytesIO(), format_of(path)
    with house_style():
        figure.savefig(buffer, format=kind, dpi=DPI)
    return write_atomically(path, buffer.getvalue())
