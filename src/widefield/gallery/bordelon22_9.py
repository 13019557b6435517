"""Fig. 9 of Bordelon & Pehlevan (2022): independent gradients (A = B = 0) miss most of the learning in deep networks."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bordelon22
from widefield.gallery.bordelon22 import Networks, Run, points, visible
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

METHODS = {"full": "-", "independent": "--"}
FIELDS = ("loss", "feature", "label_feature")


@dataclass(frozen=True)
class Parameters(Networks):
    """Linear networks of all ``depths``; the features drawn are those of the last."""

    depths: tuple[int, ...] = (2, 3, 4, 5)
    richness: float = 1.5
    n_samples: int = 20
    dimension: int = 40
    rate: float = 0.004
    steps: int = 200


FULL = Parameters()
QUICK = Parameters(width=200, replicates=64, depths=(2, 3), n_samples=4, dimension=8, rate=0.02, steps=60)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Both theories and networks of every depth; the verdict is that of the full theory."""
    import xarray as xr

    p = parameters
    task = bordelon22.two_classes(p.n_samples, p.dimension, p.seed)
    jobs = bordelon22.counter(report, len(p.depths))
    blocks = []
    for i, depth in enumerate(p.depths):
        jobs(f"L = {depth}")
        run = Run(wf.DNN(depth, "linear"), task, p.richness, p.rate, p.steps)
        found = {m: run.theory(method=m) for m in METHODS} | {"sampled": run.trained(p, p.seed + 2 * i)}
        named = {f"{field}_{part}": value[field] for part, value in found.items() for field in FIELDS}
        blocks.append(xr.Dataset(named).expand_dims(depth=[depth]))
    data = bordelon22.marked(xr.concat(blocks, "depth", join="outer"))
    truth, wrong = (judge_all(pairs(data, method)).rows for method in METHODS)
    numbers = judged([*truth, *wrong]) | {"agrees": judged(truth)["agrees"]}
    rejected = sum(row.agrees is False for row in wrong)
    notes = (
        p.note,
        f"independent gradients are rejected in {rejected} of {len(wrong)} rows; the verdict is the full theory's",
    )
    return Made(draw(data, p), data, p, notes=notes, **numbers)


def pairs(data: "xr.Dataset", method: str) -> Iterator[Pair]:
    """Losses and features along the labels at the marked times."""
    at = data["at"].values
    for depth in data.depth.values:
        own = data.sel(depth=depth)
        seen = visible(own.loss_full, at)
        yield Pair(f"loss {method}, L = {depth}", own[f"loss_{method}"].sel(step=seen), own.loss_sampled.sel(step=seen))
        theory, sampled = (own[f"label_feature_{part}"].dropna("layer", how="all") for part in (method, "sampled"))
        yield Pair(f"yᵀΦy/P² {method}, L = {depth}", theory, sampled)


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Losses of every depth, features of the deepest along training and at the end."""
    own = data.sel(depth=p.depths[-1])
    with house_style():
        figure, axes = panels(1, 3, size=(3.6, 3.0))
        for color, depth in zip(SERIES, data.depth.values, strict=False):
            for method, style in METHODS.items():
                label = f"$L={depth}$" if method == "full" else None
                axes[0, 0].plot(
                    data.step, data[f"loss_{method}"].sel(depth=depth), color=color, linestyle=style, label=label
                )
            sampled = data.loss_sampled.sel(depth=depth, step=data["at"].values)
            points(axes[0, 0], data["at"], sampled, color=color)
        axes[0, 0].plot([], [], color=COLORS["theory"], linestyle="--", label="$A=B=0$")
        axes[0, 0].set(
            xlabel="step $t$", ylabel=r"loss $\frac{1}{2}\Sigma\Delta^2$", title=rf"loss, $\gamma_0={p.richness:g}$"
        )
        axes[0, 0].legend(fontsize=7)
        _features(axes[0, 1], own, p)
        _kernels(axes[0, 2], own, p)
        for ax, name in zip(axes[0], "abc", strict=True):
            letter(ax, name)
    return figure


def _features(ax: "Axes", own: "xr.Dataset", p: Parameters) -> None:
    for layer, color in zip(own.layer.values, SERIES, strict=False):
        for method, style in METHODS.items():
            label = rf"$\ell={layer}$" if method == "full" else None
            ax.plot(
                own["at"], own[f"label_feature_{method}"].sel(layer=layer), color=color, linestyle=style, label=label
            )
        points(ax, own["at"], own.label_feature_sampled.sel(layer=layer), color=color)
    ax.set(xlabel="step $t$", ylabel=r"$y^T\Phi^\ell y/P^2$", title=f"features, $L={p.depths[-1]}$")
    ax.set(ylim=(0, 1.3 * ax.get_ylim()[1]))
    ax.legend(fontsize=7, ncols=3, loc="upper right")


def _kernels(ax: "Axes", own: "xr.Dataset", p: Parameters) -> None:
    """Rows: networks, full theory, independent gradients."""
    end = {"at": p.steps}
    parts = {"networks": own.feature_sampled.sel(end).mean("replicate")}
    parts |= {"full": own.feature_full.sel(end), "$A=B=0$": own.feature_independent.sel(end)}
    bordelon22.stacked(ax, {name: part.values for name, part in parts.items()}, "final features")
