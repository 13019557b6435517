"""Fig. 3 of Bordelon & Pehlevan: repeated data against fresh batches, dataset size, batch size and width."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import NullFormatter

import widefield as wf
from widefield.compare import judge_all
from widefield.gallery import bordelon25
from widefield.gallery.bordelon25 import LOSSES, Networks, Run, curve, family
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

FAMILIES = (
    ("repeated", "data_ratio", "GD, α = {}", LOSSES),
    ("online", "batch_ratio", "SGD, α_B = {}"),
    ("wide", "width_ratio", "SGD, ν = {}"),
)

TICKS = (0.5, 1, 2, 4)
LOWEST = 3e-3  # training losses below are compared and not drawn


@dataclass(frozen=True)
class Parameters(Networks):
    """Full batches with ``label_noise`` at ν = ``width_ratio``; fresh batches without noise at ν = ``online_ratio``.

    All sizes are whole numbers at both dimensions: rounding would leave an offset that extrapolation does not remove.
    """

    depth: int = 4
    steps: int = 80
    richness: float = 2.0
    rate: float = 0.02
    label_noise: float = 0.5
    width_ratio: float = 1.0
    data_ratios: tuple[float, ...] = (0.5, 0.75, 2.0)
    grid: tuple[float, ...] = tuple(np.geomspace(0.35, 4.0, 21).tolist())
    shown: tuple[int, ...] = (5, 20, 80)
    online_richness: float = 1.0
    online_rate: float = 0.015
    online_ratio: float = 0.5
    batch_ratios: tuple[float, ...] = (0.25, 0.5, 2.0)
    batch_ratio: float = 0.25
    width_ratios: tuple[float, ...] = (0.25, 0.5, 1.0)


FULL = Parameters()
QUICK = Parameters(dimension=96, replicates=100)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and networks of the four panels."""
    import xarray as xr

    p = parameters
    jobs = bordelon25.counter(report, len(p.data_ratios) + len(p.batch_ratios) + len(p.width_ratios) + 1)
    network = wf.DNN(p.depth, "linear")
    noisy = Run(network, p.rate, p.steps, p.richness, p.width_ratio, label_noise=p.label_noise)
    plain = Run(network, p.online_rate, p.steps, p.online_richness, p.online_ratio)
    repeated = {v: replace(noisy, data_ratio=v) for v in p.data_ratios}
    online = {v: replace(plain, batch_ratio=v) for v in p.batch_ratios}
    wide = {v: replace(plain, width_ratio=v, batch_ratio=p.batch_ratio) for v in p.width_ratios}
    data = xr.merge(
        [
            family("repeated", "data_ratio", repeated, p, seed=0, report=jobs),
            family("online", "batch_ratio", online, p, seed=100, report=jobs),
            family("wide", "width_ratio", wide, p, seed=200, report=jobs),
        ]
    )
    jobs("theory over a grid of dataset sizes")
    grid = [replace(noisy, data_ratio=v).theory().test_loss.sel(step=list(p.shown)) for v in p.grid]
    data["over_data"] = xr.concat(grid, "grid").assign_coords(grid=list(p.grid)).rename(step="shown")
    data["online_limit"] = plain.theory().test_loss
    compared = partial(bordelon25.every_pair, families=FAMILIES)
    notes = (p.note, bordelon25.power(data, compared))
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(compared(data)).rows))


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Panels a to d."""
    with house_style():
        figure, axes = panels(1, 4, size=(3.0, 2.9))
        _repeated(axes[0, 0], data, rf"GD, $\nu={p.width_ratio:g}$, $\sigma^2={p.label_noise:g}$")
        _over_data(axes[0, 1], data)
        for color, value in zip(SERIES, data.batch_ratio.values, strict=False):
            where = {"batch_ratio": value}
            curve(axes[0, 2], data, "online_test_loss", where, color=color, label=rf"$\alpha_B={value:g}$")
        axes[0, 2].plot(
            data.step, data.online_limit, color=COLORS["theory"], linestyle="--", label=r"$\alpha_B=\infty$"
        )
        axes[0, 2].set(title=rf"online SGD, $\nu={p.online_ratio:g}$")
        for color, value in zip(SERIES, data.width_ratio.values, strict=False):
            curve(axes[0, 3], data, "wide_test_loss", {"width_ratio": value}, color=color, label=rf"$\nu={value:g}$")
        axes[0, 3].set(title=rf"online SGD, $\alpha_B={p.batch_ratio:g}$")
        for ax in axes[0, [0, 2, 3]]:
            ax.set(xlabel="step $t$", yscale="log")
            ax.yaxis.set_minor_formatter(NullFormatter())
        axes[0, 0].set_ylim(LOWEST, 30)  # room for the legend
        axes[0, 1].xaxis.set_minor_formatter(NullFormatter())
        for ax, name in zip(axes[0], "abcd", strict=True):
            letter(ax, name)
            ax.set_ylabel("loss" if name == "a" else "test loss")
            ax.legend(fontsize=7, ncols=2 if name == "a" else 1, loc="upper right")
    return figure


def _repeated(ax: "Axes", data: "xr.Dataset", title: str) -> None:
    """Test and train loss, which part company the earlier the fewer the data."""
    for color, value in zip(SERIES, data.data_ratio.values, strict=False):
        for loss, style in zip(LOSSES, ("-", "--"), strict=True):
            label = rf"$\alpha={value:g}$" if loss == "test_loss" else "_"
            curve(ax, data, f"repeated_{loss}", {"data_ratio": value}, color=color, label=label, style=style)
    ax.plot([], [], color=COLORS["theory"], linestyle="--", label="train")
    ax.set_title(title)


def _over_data(ax: "Axes", data: "xr.Dataset") -> None:
    """Test loss against the number of data at some times: long training makes it non-monotonic."""
    for color, step in zip(SERIES, data.shown.values, strict=False):
        ax.plot(data.grid, data.over_data.sel(shown=step), color=color, label=rf"$t={step}$")
        samples = data.repeated_test_loss_sampled.sel(step=step)
        bordelon25.points(ax, data.data_ratio, samples, color=color)
    ax.set(xscale="log", xlabel=r"data per dimension $\alpha$", title="GD, test loss at some times")
    ax.set_xticks(TICKS, [f"{value:g}" for value in TICKS])
