"""Fig. 4 of Bordelon & Pehlevan (2022): approximations of the theory against the whole of it, across richness."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bordelon22
from widefield.gallery.bordelon22 import Networks, Run, points, ticks_at, visible
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

METHODS = {"full": "-", "independent": "--", "perturbative": "-.", "lazy": ":"}
FIELDS = ("loss", "ntk", "label_feature")


@dataclass(frozen=True)
class Parameters(Networks):
    """Losses and features are drawn at ``shown``, one of the ``richnesses``."""

    depth: int = 5
    richnesses: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0)
    shown: float = 1.0
    n_samples: int = 40
    dimension: int = 80
    rate: float = 0.002
    steps: int = 400


FULL = Parameters()
QUICK = Parameters(
    width=200, replicates=64, depth=3, richnesses=(0.25, 0.5, 1.0, 2.0), n_samples=4, dimension=8, rate=0.02, steps=60
)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Four theories and networks at every richness; the verdict is that of the full theory."""
    import xarray as xr

    p = parameters
    task = bordelon22.two_classes(p.n_samples, p.dimension, p.seed)
    jobs = bordelon22.counter(report, len(p.richnesses))
    base, blocks = Run(wf.DNN(p.depth, "linear"), task, p.shown, p.rate, p.steps), []
    for i, gamma in enumerate(p.richnesses):
        jobs(f"γ0 = {gamma:g}")
        blocks.append(one_richness(p, replace(base, richness=gamma), seed=p.seed + 2 * i).expand_dims(richness=[gamma]))
    data = xr.concat(blocks, "richness")
    truth = judge_all(pairs(data, "full")).rows
    others = [row for name in METHODS if name != "full" for row in judge_all(pairs(data, name)).rows]
    numbers = judged([*truth, *others]) | {"agrees": judged(truth)["agrees"]}
    notes = (p.note, "rows of an approximation that say no show where it stops; the verdict is that of the full theory")
    return Made(draw(data, p), data, p, notes=notes, **numbers)


def one_richness(p: Parameters, run: Run, seed: int) -> "xr.Dataset":
    """Fields ``<field>_<method>`` and ``<field>_sampled``; the static theory's features are the first ones."""
    import xarray as xr

    found: dict[str, xr.DataArray] = {}
    for method in METHODS:
        part = run.theory(method=method)
        found |= {f"{field}_{method}": part[field] for field in FIELDS if field in part}
    found["label_feature_lazy"] = found["label_feature_full"].isel(at=0, drop=True).expand_dims(at=run.at)
    trained = run.trained(p, seed)
    found |= {f"{field}_sampled": trained[field] for field in FIELDS}
    return xr.Dataset(found)


def pairs(data: "xr.Dataset", method: str) -> Iterator[Pair]:
    """Losses at the marked times and the final tangent kernel, one pair per richness."""
    at = data["at"].values
    for gamma in data.richness.values:
        own = data.sel(richness=gamma)
        words = f"{method}, γ0 = {gamma:g}"
        seen = visible(own.loss_full, at)
        yield Pair(f"loss {words}", own[f"loss_{method}"].sel(step=seen), own.loss_sampled.sel(step=seen))
        yield Pair(f"final NTK {words}", own[f"ntk_{method}"].sel(at=at[-1]), own.ntk_sampled.sel(at=at[-1]))


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Losses, features of every layer, and errors of the tangent kernel against the richness."""
    own = data.sel(richness=p.shown)
    with house_style():
        figure, axes = panels(1, 4, size=(3.1, 2.9))
        for color, (method, style) in zip(SERIES, METHODS.items(), strict=False):
            axes[0, 0].plot(data.step, own[f"loss_{method}"], color=color, linestyle=style, label=method)
        points(
            axes[0, 0],
            data["at"],
            own.loss_sampled.sel(step=data["at"].values),
            color=COLORS["theory"],
            label="networks",
        )
        axes[0, 0].set(
            xlabel="step $t$", ylabel=r"loss $\frac{1}{2}\Sigma\Delta^2$", title=rf"loss, $\gamma_0={p.shown:g}$"
        )
        _layers(axes[0, 1], own, p)
        _kernel_errors(axes[0, 2], data)
        _losses(axes[0, 3], data)
        axes[0, 0].legend(fontsize=7)
        for ax, name in zip(axes[0], "abcd", strict=True):
            letter(ax, name)
    return figure


def _layers(ax: "Axes", own: "xr.Dataset", p: Parameters) -> None:
    """Features along the labels, layer by layer; the perturbative theory has no features here."""
    layer, end = np.arange(1, p.depth + 1), {"at": p.steps}
    for color, (method, style) in zip(SERIES, METHODS.items(), strict=False):
        if f"label_feature_{method}" in own:
            ax.plot(layer, own[f"label_feature_{method}"].sel(end), color=color, linestyle=style)
    points(ax, layer, own.label_feature_sampled.sel(end), color=COLORS["theory"])
    ax.set(
        xlabel=r"layer $\ell$", ylabel=r"$y^T\Phi^\ell y/P^2$ at the end", title=rf"features, $\gamma_0={p.shown:g}$"
    )
    ax.set_xticks(layer)


def _kernel_errors(ax: "Axes", data: "xr.Dataset") -> None:
    """Distance of the final tangent kernel from that of networks, relative to it."""
    end = data["at"].values[-1]
    many = data.ntk_sampled.sel(at=end)
    mean = many.mean("replicate")
    norm = lambda field: np.sqrt((field**2).sum(("sample", "sample_")))  # noqa: E731
    for color, (method, style) in zip(SERIES, METHODS.items(), strict=False):
        error = norm(data[f"ntk_{method}"].sel(at=end) - mean) / norm(mean)
        ax.plot(data.richness, error, color=color, linestyle=style, marker="o", markersize=3)
    noise = norm(many.std("replicate", ddof=1)) / np.sqrt(many.sizes["replicate"]) / norm(mean)
    ax.fill_between(data.richness, 0, noise, color=COLORS["theory"], alpha=0.2, linewidth=0, label="error of networks")
    ax.set(yscale="log", xlabel=r"richness $\gamma_0$", ylabel="relative error", title="final NTK")
    ticks_at(ax, data.richness.values)
    ax.legend(fontsize=7, loc="upper left")


def _losses(ax: "Axes", data: "xr.Dataset") -> None:
    """Largest error of the loss along training, relative to the first loss."""
    at = data["at"].values
    many = data.loss_sampled.sel(step=at)
    for color, (method, style) in zip(SERIES, METHODS.items(), strict=False):
        error = np.abs(data[f"loss_{method}"].sel(step=at) - many.mean("replicate")).max("step") / many.mean(
            "replicate"
        ).sel(step=0)
        ax.plot(data.richness, error, color=color, linestyle=style, marker="o", markersize=3)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel=r"richness $\gamma_0$",
        ylabel=r"largest error / $\mathcal{L}(0)$",
        title="loss",
    )
    ticks_at(ax, data.richness.values)
