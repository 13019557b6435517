"""The proportional limit: losses and their parts along training, rate sweeps, transfer and exponents."""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from widefield.answer.solution import Solution
from widefield.plot.style import COLORS, SERIES, Panel, curve, matrix, mean

LOSSES = {"test_loss": "test", "train_loss": "train"}
PARTS = {"bias": "bias", "width_variance": "width", "data_variance": "data"}


def pictures(solution: Solution) -> list[Panel]:
    """Losses, the parts of the test loss, the kernel, correlations of the error: those that the solution has."""
    fields = solution.data.data_vars
    drawn: list[Panel] = []
    for names, title in ((LOSSES, "loss"), (PARTS, "parts of the test loss")):
        shown = {label: fields[name] for name, label in names.items() if name in fields and (fields[name] > 0).any()}
        if shown:
            drawn.append(partial(_curves, fields=shown, title=title))
    if "kernel" in fields:
        drawn.append(partial(_kernel, field=_one_output(fields["kernel"])))
    if "error_correlation" in fields:
        drawn.append(partial(_correlation, field=_one_output(fields["error_correlation"])))
    return drawn


def rate_sweep(solution: Solution) -> list[Panel]:
    """Last loss against the rate, one line per width."""
    loss = solution.test_loss.isel(step=-1)
    lines = {rf"$\nu={value:g}$": loss.sel(width_ratio=value) for value in loss.width_ratio.values}
    return [partial(_rates, lines=lines, last=solution.test_loss.sizes["step"] - 1)]


def optimal_rate(solution: Solution) -> list[Panel]:
    """The sweep at the last time, and the best rate against the training time."""
    last = int(solution.data.step[-1])
    sweep = partial(_rates, lines={"": solution.sweep.isel(step=-1)}, last=last, edge=float(solution.maximal_rate))
    best = {"": (solution.optimal_rate, solution.optimal_rate_error)}
    return [sweep, partial(_best, lines=best, name="steps of training")]


def rate_transfer(solution: Solution) -> list[Panel]:
    """Best and largest stable rate against width or depth, and the drift against the training time."""
    dim = "depth" if "depth" in solution.data.dims else "width_ratio"
    name = "depth $L$" if dim == "depth" else r"width ratio $\nu$"
    fields = solution.data.isel(step=-1)
    lines = {
        "best": (fields.optimal_rate, fields.optimal_rate_error),
        "largest stable": (fields.maximal_rate, fields.maximal_rate_error),
    }
    return [partial(_best, lines=lines, name=name), partial(_drift, solution=solution)]


def loss_exponent(solution: Solution) -> list[Panel]:
    """The loss, and its local exponent beside the formulas."""
    loss = {"test": solution.test_loss.isel(step=slice(1, None))}
    return [partial(_curves, fields=loss, title="loss", first=1), partial(_exponents, solution=solution)]


def _one_output(field: xr.DataArray) -> xr.DataArray:
    """The first of several channels."""
    return field.isel({dim: 0 for dim in ("output", "output_") if dim in field.dims})


def _curves(ax: Axes, fields: dict[str, xr.DataArray], title: str, first: int = 0) -> None:
    """Over the step, channels averaged."""
    for (label, field), color in zip(fields.items(), SERIES, strict=False):
        loss = field.mean("output") if "output" in field.dims else field
        line = "--" if label == "train" else "-"
        curve(ax, first + np.arange(loss.sizes["step"]), loss, log=True, color=color, label=label, linestyle=line)
    ax.set(xlabel="step", ylabel="loss", title=title, yscale="log", xscale="log" if first else "linear")
    ax.legend(loc="best")


def _kernel(ax: Axes, field: xr.DataArray) -> None:
    curve(ax, np.arange(field.sizes["step"]), mean(field), color=SERIES[2])
    ax.set(xlabel="step", ylabel="response per rate", title="kernel")


def _correlation(ax: Axes, field: xr.DataArray) -> None:
    matrix(ax, mean(field).values, "correlation of the error", r"$C_v(t,t')$", ("step", "step"))


def _rates(ax: Axes, lines: dict[str, xr.DataArray], last: int, edge: float | None = None) -> None:
    for (label, loss), color in zip(lines.items(), SERIES * 3, strict=False):
        ax.plot(loss.rate, loss.where(np.isfinite(loss)), color=color, label=label)
    if edge is not None:
        ax.axvline(edge, color=COLORS["theory"], linestyle="--", linewidth=0.8, label="largest stable rate")
    ax.set(xscale="log", yscale="log", xlabel="rate", ylabel=f"test loss after {last} steps", title="rate sweep")
    if any(lines) or edge is not None:
        ax.legend(loc="best", fontsize=7)


def _points(ax: Axes, field: xr.DataArray, error: xr.DataArray, **look: Any) -> None:
    """Over the field's one dim, ticks at its values; an optimum at the end of the rates has no error bar."""
    x = field[field.dims[0]].values
    ax.errorbar(x, field, error.where(np.isfinite(error)), marker="o", markersize=3.5, **look)
    ax.set_xscale("log")
    _ticks(ax, x)


def _best(ax: Axes, lines: dict[str, tuple[xr.DataArray, xr.DataArray]], name: str) -> None:
    for (label, (rate, error)), color in zip(lines.items(), SERIES, strict=False):
        _points(ax, rate, error, color=color, label=label)
    ax.set(yscale="log", xlabel=name, ylabel="rate", title="best rate")
    if any(lines):
        ax.legend(loc="best")


def _drift(ax: Axes, solution: Solution) -> None:
    shown = solution.data.isel(step=np.isfinite(solution.drift_error.values))
    _points(ax, shown.drift, shown.drift_error, color=SERIES[2])
    ax.axhline(0, color=COLORS["theory"], linewidth=0.5)
    ax.set(xlabel="steps of training", ylabel="power of the best rate", title="drift")
    _ticks(ax, solution.data.step.values)


def _exponents(ax: Axes, solution: Solution) -> None:
    fields = solution.data
    ax.plot(fields.octave_end, fields.exponent, color=SERIES[0], marker="o", markersize=3.5, label="measured")
    for name, style in (("depth", "--"), ("printed", "-."), ("lazy", ":")):
        exponent = float(fields[f"{name}_exponent"])
        ax.axhline(exponent, color=COLORS["theory"], linestyle=style, linewidth=0.9, label=name)
    ax.set(xscale="log", xlabel="end of the octave, steps", ylabel="exponent", title="exponent of the loss")
    _ticks(ax, fields.octave_end.values)
    ax.legend(loc="best", fontsize=7)


def _ticks(ax: Axes, values: np.ndarray) -> None:
    """Ticks at the finite values themselves, on a logarithmic axis."""
    shown = [float(value) for value in values if np.isfinite(value)]
    ax.set_xticks(shown, [f"{value:g}" for value in shown])
    ax.xaxis.set_minor_formatter(NullFormatter())
