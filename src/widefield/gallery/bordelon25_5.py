"""Fig. 5 of Bordelon & Pehlevan: the best learning rate of residual networks against depth, for two branch scales."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery.bordelon25 import FASTER, Networks, Run, counter, points
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels
from widefield.question.network import Network

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

TITLES = {"constant": r"constant branch $\beta={:g}$", "scaled": r"scaled branch $\beta={:g}/\sqrt{{L}}$"}
REACH = 20.0  # curves start this factor below the optimum


@dataclass(frozen=True)
class Parameters(Networks):
    """``constant`` is β, ``scaled`` is β0; networks run at ``fractions`` of the best rate. Descent on the population.

    Networks of depth L of panel a have the seeds from ``seed`` + 100 on, of panel b from ``seed`` + 200 on.
    """

    depths: tuple[int, ...] = (2, 4, 8, 16)
    constant: float = 1.0
    scaled: float = 1.25
    steps: int = 12
    richness: float = 1.0
    width_ratio: float = 1.0
    fractions: tuple[float, ...] = (0.1, 0.25, 0.5)
    n_rates: int = 48


FULL = Parameters(dimension=480, replicates=300)
QUICK = Parameters(dimension=144, replicates=100, n_rates=32)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Sweeps of the rate, their optima, and networks on the stable side."""
    import xarray as xr

    p = parameters
    said = counter(report, 2 * len(p.depths) + 3)
    blocks = []
    for i, kind in enumerate(TITLES):
        said(f"{kind} branch: the best rate at {len(p.depths)} depths")
        found = best_rates(p, kind)
        seeds = p.seed + 100 * (i + 1)
        for j, depth in enumerate(p.depths):
            said(f"{kind} branch, depth {depth}")
            own = found.sel(depth=depth)
            case = xr.merge(
                [own.drop_vars("drift"), one_depth(p, kind, depth, float(own.optimal_rate), seeds + 10 * j)]
            )
            blocks.append(case.expand_dims(branch=[kind], depth=[depth]))
    said("drawing")
    data = xr.combine_by_coords(blocks)
    assert isinstance(data, xr.Dataset)
    data.loss_curve.attrs["nan"] = "infinite where training diverges"
    wrong = judge_all(compared(data, "_faster"))
    notes = (
        *(moved(data, kind) for kind in TITLES),
        p.note,
        f"a rate {FASTER:g} times as high in the theory alone is rejected in "
        f"{sum(row.agrees is False for row in wrong)} of {len(wrong.rows)} rows",
    )
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(compared(data)).rows))


def network(p: Parameters, kind: str, depth: int) -> Network:
    """The residual network of one curve."""
    return wf.ResNet(depth, "linear", p.constant if kind == "constant" else p.scaled / np.sqrt(depth))


def best_rates(p: Parameters, kind: str) -> "xr.Dataset":
    """``optimal_rate`` and ``maximal_rate`` over the depth, after all steps, and the power ``drift`` of the optimum."""
    found = wf.transfer(
        network(p, kind, p.depths[0]), over="depth", values=p.depths, steps=p.steps, scaled_branch=kind == "scaled",
        richness=p.richness, width_ratio=p.width_ratio,
    )  # fmt: skip
    last = found.data.isel(step=-1, drop=True)
    return last[["optimal_rate", "maximal_rate", "drift"]]


def one_depth(p: Parameters, kind: str, depth: int, best: float, seed: int) -> "xr.Dataset":
    """Loss after all steps against the rate: the theory's curve, theory and networks at ``fractions`` of the best."""
    import xarray as xr

    net = network(p, kind, depth)
    swept = best * np.geomspace(1 / REACH, 4, p.n_rates)
    rates = best * np.asarray(p.fractions)
    at = np.unique(np.concatenate([swept, rates, FASTER * rates]))
    grid = wf.rate_sweep(net, rates=at, steps=p.steps, width_ratios=(p.width_ratio,), richness=p.richness)
    loss = grid.test_loss.values[0, :, -1]
    theory, faster, curve = (loss[np.searchsorted(at, these)] for these in (rates, FASTER * rates, swept))
    runs = [Run(net, rate, p.steps, richness=p.richness, width_ratio=p.width_ratio) for rate in rates]
    sampled = [run.trained(p, seed + 2 * i).test_loss.values[:, -1] for i, run in enumerate(runs)]
    fields = {
        "curve_rate": ("point", swept), "loss_curve": ("point", curve), "rate": ("fraction", rates),
        "loss": ("fraction", theory), "loss_faster": ("fraction", faster),
        "loss_sampled": (("replicate", "fraction"), np.stack(sampled, axis=1)),
    }  # fmt: skip
    return xr.Dataset(fields, coords={"fraction": list(p.fractions)})


def compared(data: "xr.Dataset", suffix: str = "") -> Iterator[Pair]:
    """One row per depth and branch."""
    for kind in TITLES:
        for depth in data.depth.values:
            case = data.sel(branch=kind, depth=depth)
            yield Pair(f"test loss {kind} branch, L = {depth}", case[f"loss{suffix}"], case.loss_sampled)


def moved(data: "xr.Dataset", kind: str) -> str:
    """The path of the optimum in words."""
    rates, depths = data.optimal_rate.sel(branch=kind).values, data.depth.values
    powers = np.diff(np.log(rates)) / np.diff(np.log(depths))
    path = ", ".join(f"{rate:.2g}" for rate in rates)
    return f"{kind} branch: best rates {path}; between the last two depths it moves as L^{powers[-1]:.2f}"


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Loss against the rate for both branches, and the optima against depth."""
    with house_style():
        figure, axes = panels(1, 3, size=(3.5, 2.9))
        for ax, name, kind in zip(axes[0], "ab", TITLES, strict=False):
            letter(ax, name)
            _curves(ax, data.sel(branch=kind))
            ax.set_title(TITLES[kind].format(getattr(p, kind)))
        axes[0, 1].legend(fontsize=7, loc="lower left")
        letter(axes[0, 2], "c")
        _optima(axes[0, 2], data)
    return figure


def _curves(ax: "Axes", case: "xr.Dataset") -> None:
    for color, depth in zip(SERIES, case.depth.values, strict=False):
        own = case.sel(depth=depth)
        shown = own.loss_curve.values < 3 * own.loss_curve.values[0]
        ax.plot(own.curve_rate.values[shown], own.loss_curve.values[shown], color=color, label=f"$L={depth}$")
        points(ax, own.rate.values, own.loss_sampled, color=color)
        ax.axvline(float(own.optimal_rate), color=color, linewidth=0.8, linestyle=":")
    ax.set(xscale="log", yscale="log", xlabel=r"learning rate $\eta$", ylabel="test loss at the end")


def _optima(ax: "Axes", data: "xr.Dataset") -> None:
    for color, kind in zip((COLORS["DNN"], COLORS["RNN"]), TITLES, strict=True):
        case = data.sel(branch=kind)
        ax.plot(case.depth, case.optimal_rate, "o-", color=color, label=f"{kind} branch, best")
        ax.plot(case.depth, case.maximal_rate, "--", color=color, label="largest stable", linewidth=1.0)
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", xlabel="depth $L$", ylabel=r"learning rate $\eta$", title="the rate against depth")
    ax.set_xticks(data.depth.values, [str(depth) for depth in data.depth.values])
    ax.legend(fontsize=7, loc="lower left")
