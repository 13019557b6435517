"""Fig. 6 of Bordelon & Pehlevan (2022): one hidden relu layer, its loss, densities of pre-activations and pre-gradients, kernels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bordelon22
from widefield.gallery.bordelon22 import LIGHT, WANTED, Networks, Run, curve, family, points, stacked
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

FIELDS = ("loss", "label_feature", "gradient_trace", "density", "gradient_density")
LAZY = 0.02  # richness of the networks that stand for zero


@dataclass(frozen=True)
class Parameters(Networks):
    """One hidden layer; ``paths`` is that of one of the theory's eight batches."""

    width: int = 2000
    richnesses: tuple[float, ...] = (0.5, 1.0, 3.0)
    n_samples: int = 10
    dimension: int = 20
    rate: float = 0.02
    steps: int = 200
    paths: int = 16384


FULL = Parameters()
QUICK = Parameters(
    width=400, replicates=48, richnesses=(1.0, 3.0), n_samples=4, dimension=8, rate=0.05, steps=80, paths=4096
)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and networks at each richness, and the static limit."""
    p = parameters
    task = bordelon22.two_classes(p.n_samples, p.dimension, p.seed)
    jobs = bordelon22.counter(report, len(p.richnesses) + 1)
    wanted = (*WANTED, "preactivation", "pregradient")
    base = Run(wf.DNN(1, "relu"), task, p.richnesses[0], p.rate, p.steps, quantities=wanted)
    runs = {gamma: replace(base, richness=gamma) for gamma in p.richnesses}
    data = family("rich", "richness", runs, p, seed=0, paths=p.paths, report=jobs)
    jobs("the static limit")
    data["lazy_loss"] = base.theory(method="lazy").loss
    data["lazy_loss_sampled"] = replace(base, richness=LAZY, quantities=LIGHT).trained(p, p.seed + 100).loss
    notes = (p.note, f"lazy networks have γ0 = {LAZY:g}; p(h) and p(z) are those of the first sample at the end")
    power = bordelon22.power(data, compared)
    return Made(draw(data, p), data, p, notes=(*notes, power), **judged(judge_all(compared(data)).rows))


def compared(data: "xr.Dataset") -> Iterator[Pair]:
    """Losses, kernels and densities of every richness, and the lazy loss."""
    yield from bordelon22.pairs(data, "rich", "richness", "γ0 = {}", FIELDS)
    at = bordelon22.visible(data.lazy_loss, data["at"].values)
    yield Pair("loss, lazy", data.lazy_loss.sel(step=at), data.lazy_loss_sampled.sel(step=at))


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Losses, densities, and final kernels at the last richness."""
    last = p.richnesses[-1]
    with house_style():
        figure, axes = panels(1, 5, size=(3.2, 2.9))
        curve(axes[0, 0], data, "lazy_loss", {}, color=COLORS["theory"], label="lazy")
        for color, gamma in zip(SERIES, p.richnesses, strict=False):
            curve(axes[0, 0], data, "rich_loss", {"richness": gamma}, color=color, label=rf"$\gamma_0={gamma:g}$")
            for ax, name, symbol in zip(axes[0, 1:3], ("density", "gradient_density"), "hz", strict=True):
                _density(ax, data.sel(richness=gamma), name, symbol, color)
        axes[0, 0].set(xlabel="step $t$", ylabel=r"loss $\frac{1}{2}\Sigma\Delta^2$", title="relu, $L=1$")
        axes[0, 0].legend(fontsize=7)
        for ax, kernel, symbol in zip(axes[0, 3:], ("feature", "gradient"), (r"\Phi", "G"), strict=True):
            own = data.sel(richness=last, at=p.steps)
            parts = {"theory": own[f"rich_{kernel}"], "networks": own[f"rich_{kernel}_sampled"].mean("replicate")}
            stacked(ax, {name: part.values for name, part in parts.items()}, rf"final ${symbol}$")
        for ax, name in zip(axes[0], "abcde", strict=True):
            letter(ax, name)
    return figure


def _density(ax: "Axes", own: "xr.Dataset", name: str, symbol: str, color: str) -> None:
    """Of the first sample, in the hidden layer at the end of training."""
    ax.step(own["bin"], own[f"rich_{name}"].isel(layer=0), where="mid", color=color)
    points(ax, own["bin"], own[f"rich_{name}_sampled"].isel(layer=0), color=color)
    word = {"h": "pre-activations", "z": "pre-gradients"}[symbol]
    ax.set(xlabel=f"${symbol}$", ylabel=f"$p({symbol})$", title=f"{word} at the end", yscale="log", ylim=(1e-3, 3))
