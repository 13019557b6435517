"""Panels: theory as lines, networks as points with standard errors, kernels as images, powers as straight lines."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from widefield.plot.style import COLORS, KERNEL_MAP, SERIES, matrix, stderr

SHAPES = ("x", "s", "^", "o", "D", "v")  # markers of a series whose points lie close together


def points(
    ax: Axes,
    x: Any,
    samples: xr.DataArray,
    *,
    color: str,
    label: str | None = None,
    marker: str = "o",
    line: str = "none",
    size: float = 3.5,
    face: str | None = None,
    over: str = "replicate",
    capsize: float = 0.0,
) -> None:
    """Mean and standard error over the dim ``over``."""
    values = samples.transpose(over, ...).values
    ax.errorbar(
        x, values.mean(axis=0), stderr(values), fmt=marker, linestyle=line, color=color, label=label, markersize=size,
        markerfacecolor=face or color, capsize=capsize,
    )  # fmt: skip


def curve(
    ax: Axes,
    theory: xr.DataArray,
    samples: xr.DataArray | None = None,
    *,
    color: str,
    label: str | None = None,
    style: str = "-",
    at: Any = None,
    unit: float = 1.0,
    marker: str = "o",
) -> None:
    """Theory as a line over its only dim, networks at ``at`` (default: wherever they are), hollow with a dashed line."""
    x = unit * theory[theory.dims[0]]
    ax.plot(x, theory, color=color, linestyle=style, label=label)
    if samples is not None:
        (dim,) = set(samples.dims) - {"replicate"}
        samples = samples if at is None else samples.sel({dim: at})
        face = None if style == "-" else "white"
        points(ax, unit * samples[dim], samples, color=color, marker=marker, face=face)


def curves(ax: Axes, data: xr.Dataset, field: str, dim: str, symbol: str, *, at: Any = None, style: str = "-") -> None:
    """A `curve` of ``field`` for every value of ``dim``, called ``symbol`` in the legend."""
    for color, value in zip(SERIES, data[dim].values):
        theory, samples = (data[f"{field}{suffix}"].sel({dim: value}) for suffix in ("", "_sampled"))
        label = rf"${symbol}={value:g}$" if style == "-" else None
        curve(ax, theory, samples, color=color, label=label, style=style, at=at)


def layers(ax: Axes, kernels: Mapping[str, xr.DataArray], title: str) -> None:
    """Kernels (layer, sample, sample_) as images on one color scale, a row for each of ``kernels``."""
    stacks = [kernel.transpose("layer", "sample", "sample_").values for kernel in kernels.values()]
    n_layers, n = stacks[0].shape[:2]
    rows = [[np.pad(k, ((0, 1), (0, 1)), constant_values=np.nan) for k in stack] for stack in stacks]
    image = ax.imshow(np.block(rows)[:-1, :-1], cmap=KERNEL_MAP, interpolation="nearest")
    middle = lambda count: [(n + 1) * i + (n - 1) / 2 for i in range(count)]  # noqa: E731
    ax.set_xticks(middle(n_layers), [f"{i + 1}" for i in range(n_layers)])
    ax.set_yticks(middle(len(kernels)), list(kernels), rotation=90, va="center")
    ax.tick_params(length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.set(xlabel=r"layer $\ell$", title=title)
    ax.figure.colorbar(image, ax=ax, shrink=0.7)


def image(
    kernel: xr.DataArray, title: str, symbol: str, names: tuple[str, str], limits: tuple[float, float]
) -> Callable[..., None]:
    """A panel with one matrix; the color bar stands beside the one that has a ``symbol``."""
    return lambda ax, data, p: matrix(ax, kernel.values, title, symbol, names, limits)


def two_times(ax: Axes, theory: xr.DataArray, samples: xr.DataArray, label: str) -> None:
    """Two-time kernels (layer, at, at_) against t, at s = t and at s = 0."""
    for layer, color in zip(range(theory.sizes["layer"]), SERIES):
        one, many = (part.isel(layer=layer) for part in (theory, samples))
        curve(ax, diagonal(one, "at"), color=color, label=rf"$\ell={layer + 1}$")
        curve(ax, one.isel(at_=0), color=color, style="--")
        for part in (diagonal(many, "at"), many.isel(at_=0)):
            points(ax, part["at"], part, color=color)
    ax.set(xlabel="step $t$", ylabel=label, title="$s=t$ (solid), $s=0$ (dashed)", ylim=(None, 1.12 * ax.get_ylim()[1]))
    ax.legend(ncols=theory.sizes["layer"])  # above the curves


def density(
    ax: Axes, theory: xr.DataArray, samples: xr.DataArray, *, color: str, label: str | None = None, shift: float = 1.0
) -> None:
    """A histogram over ``bin``, theory as steps and networks as points, both times ``shift``."""
    ax.step(theory["bin"], shift * theory, where="mid", color=color, label=label)
    points(ax, samples["bin"], shift * samples, color=color)
    ax.set(yscale="log")


def power_fit(
    ax: Axes,
    x: Any,
    value: float,
    power: float,
    *,
    through: int = 0,
    color: str = COLORS["theory"],
    style: str = "--",
    label: str | None = None,
) -> None:
    """The straight line of ``power`` on logarithmic axes that has ``value`` at the x of index ``through``."""
    x = np.asarray(x, dtype=float)
    ax.plot(x, value * (x / x[through]) ** power, color=color, linestyle=style, linewidth=0.9, label=label)
    ax.set(xscale="log", yscale="log")


def fitted_power(x: Any, y: Any) -> float:
    """The slope of ln y in ln x."""
    return float(np.polyfit(np.log(np.asarray(x)), np.log(np.asarray(y)), 1)[0])


def key(ax: Axes, label: str, fmt: str = "--", color: str = COLORS["theory"]) -> None:
    """An entry of the legend that no curve of its own stands for."""
    ax.plot([], [], fmt, color=color, label=label, markersize=3.5, linewidth=1)


def ticks_at(ax: Axes, values: Iterable[float], *, scale: str = "log") -> None:
    """Horizontal ticks at the ``values`` themselves."""
    values = list(values)
    ax.set_xscale(scale)
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.set_xticks([], minor=True)


def diagonal(field: xr.DataArray, dim: str) -> xr.DataArray:
    """The entries where ``dim`` and its second copy are equal."""
    same = xr.DataArray(np.arange(field.sizes[dim]), dims=dim)
    return field.isel({f"{dim}_": same}).drop_vars(f"{dim}_", errors="ignore")
