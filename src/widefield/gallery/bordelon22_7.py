"""Fig. 7 of Bordelon & Pehlevan (2022): three tanh layers on synthetic data, lazy and rich."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bordelon22
from widefield.gallery.bordelon22 import LIGHT, Networks, Run, curve, family, stacked, two_times
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr

FIELDS = ("loss", "label_feature", "gradient_trace")
LAZY = 0.02  # richness of the networks that stand for zero: features move by its square


@dataclass(frozen=True)
class Parameters(Networks):
    """``paths`` is that of one of the theory's eight batches."""

    width: int = 2000
    depth: int = 3
    richnesses: tuple[float, ...] = (1.0, 2.0)
    n_samples: int = 10
    dimension: int = 20
    rate: float = 0.03
    steps: int = 100
    paths: int = 4096


FULL = Parameters(replicates=20)
QUICK = Parameters(width=200, replicates=48, n_samples=4, dimension=8, rate=0.05, steps=60, paths=512)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and networks at each richness, and the static limit with networks of very small richness."""
    p = parameters
    task = bordelon22.two_classes(p.n_samples, p.dimension, p.seed)
    jobs = bordelon22.counter(report, len(p.richnesses) + 1)
    base = Run(wf.DNN(p.depth, "tanh"), task, p.richnesses[0], p.rate, p.steps)
    runs = {gamma: replace(base, richness=gamma) for gamma in p.richnesses}
    data = family("rich", "richness", runs, p, seed=0, paths=p.paths, report=jobs)
    jobs("the static limit")
    data["lazy_loss"] = base.theory(method="lazy").loss
    data["lazy_loss_sampled"] = replace(base, richness=LAZY, quantities=LIGHT).trained(p, p.seed + 100).loss
    notes = (p.note, f"lazy networks have γ0 = {LAZY:g}", bordelon22.power(data, compared))
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(compared(data)).rows))


def compared(data: "xr.Dataset") -> Iterator[Pair]:
    """Losses and kernels of every richness, and the lazy loss."""
    yield from bordelon22.pairs(data, "rich", "richness", "γ0 = {}", FIELDS)
    at = bordelon22.visible(data.lazy_loss, data["at"].values)
    yield Pair("loss, lazy", data.lazy_loss.sel(step=at), data.lazy_loss_sampled.sel(step=at))


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Losses, final kernels, and two-time kernels at the first richness."""
    own = data.sel(richness=p.richnesses[0])
    with house_style():
        figure, axes = panels(1, 5, size=(3.0, 2.9))
        curve(axes[0, 0], data, "lazy_loss", {}, color=COLORS["theory"], label="lazy")
        for color, gamma in zip(SERIES, p.richnesses, strict=False):
            curve(axes[0, 0], data, "rich_loss", {"richness": gamma}, color=color, label=rf"$\gamma_0={gamma:g}$")
        axes[0, 0].set(xlabel="step $t$", ylabel=r"loss $\frac{1}{2}\Sigma\Delta^2$", title=f"tanh, $L={p.depth}$")
        axes[0, 0].legend(fontsize=7)
        for ax, kernel, symbol in zip(axes[0, 1:3], ("feature", "gradient"), (r"\Phi", "G"), strict=True):
            parts = {"theory": own[f"rich_{kernel}"], "networks": own[f"rich_{kernel}_sampled"].mean("replicate")}
            shown = {name: part.sel(at=p.steps).values for name, part in parts.items()}
            stacked(ax, shown, rf"final ${symbol}^\ell$, $\gamma_0={p.richnesses[0]:g}$")
        for ax, kernel, symbol in zip(axes[0, 3:], ("feature", "gradient"), (r"\Phi", "G"), strict=True):
            traces = [own[f"rich_{kernel}_trace{part}"] for part in ("", "_sampled")]
            two_times(ax, rf"$\mathrm{{tr}}\,{symbol}^\ell(t,s)/P$", *traces)
        for ax, name in zip(axes[0], "abcde", strict=True):
            letter(ax, name)
    return figure
