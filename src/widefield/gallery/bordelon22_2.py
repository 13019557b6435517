"""Fig. 2 of Bordelon & Pehlevan (2022): deep linear networks, their losses and kernels across depth and richness."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bordelon22
from widefield.gallery.bordelon22 import Networks, Run, curve, family, similarity, two_times
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

FIELDS = ("loss", "label_feature", "gradient_trace")


@dataclass(frozen=True)
class Parameters(Networks):
    """Networks of all ``depths`` at one ``richness``, and of the last depth at all ``richnesses``."""

    depths: tuple[int, ...] = (1, 2, 3, 4, 5)
    richness: float = 1.0
    richnesses: tuple[float, ...] = (0.25, 0.5, 2.0)
    n_samples: int = 20
    dimension: int = 40
    rate: float = 0.003
    steps: int = 300


FULL = Parameters()
QUICK = Parameters(
    width=200, replicates=64, depths=(1, 2, 3), richnesses=(0.25, 2.0), n_samples=4, dimension=8, rate=0.02, steps=60
)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and networks across depths and across richnesses."""
    import xarray as xr

    p = parameters
    task = bordelon22.two_classes(p.n_samples, p.dimension, p.seed)
    jobs = bordelon22.counter(report, len(p.depths) + len(p.richnesses))
    deep = {float(L): Run(wf.DNN(L, "linear"), task, p.richness, p.rate, p.steps) for L in p.depths}
    rich = {gamma: replace(deep[float(p.depths[-1])], richness=gamma) for gamma in p.richnesses}
    families = [
        family("deep", "depth", deep, p, seed=0, report=jobs),
        family("rich", "richness", rich, p, seed=100, report=jobs),
    ]
    data = bordelon22.marked(xr.merge(families))
    notes = (p.note, bordelon22.power(data, compared))
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(compared(data)).rows))


def compared(data: "xr.Dataset") -> Iterator[Pair]:
    """Losses, outputs and kernels of both families."""
    yield from bordelon22.pairs(data, "deep", "depth", "L = {}", FIELDS)
    yield from bordelon22.pairs(data, "rich", "richness", "γ0 = {}", FIELDS)


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Panels a to f."""
    last = {"depth": float(p.depths[-1])}
    with house_style():
        figure, axes = panels(2, 3, size=(3.5, 2.8))
        for color, depth in zip(SERIES, data.depth.values, strict=False):
            curve(axes[0, 0], data, "deep_loss", {"depth": depth}, color=color, label=f"$L={depth:g}$")
        axes[0, 0].set(title=rf"loss, $\gamma_0={p.richness:g}$")
        for color, gamma in zip(SERIES, data.richness.values, strict=False):
            curve(axes[0, 1], data, "rich_loss", {"richness": gamma}, color=color, label=rf"$\gamma_0={gamma:g}$")
        axes[0, 1].set(title=f"loss, $L={p.depths[-1]}$")
        for ax in axes[0, :2]:
            ax.set(xlabel="step $t$", ylabel=r"loss $\frac{1}{2}\Sigma\Delta^2$", ylim=(0, None))
            ax.legend()
        _displacement(axes[0, 2], data)
        end = {"at": p.steps}
        kernels = {"theory": data.deep_feature, "networks": data.deep_feature_sampled.mean("replicate")}
        shown = {name: kernel.sel(last).sel(end).values for name, kernel in kernels.items()}
        bordelon22.stacked(axes[1, 0], shown, rf"final $\Phi^\ell$, $L={p.depths[-1]}$")
        for ax, kernel, symbol in zip(axes[1, 1:], ("feature", "gradient"), (r"\Phi", "G"), strict=True):
            parts = [
                data[f"deep_{kernel}_trace{part}"].sel(last).dropna("layer", how="all") for part in ("", "_sampled")
            ]
            two_times(ax, rf"$\mathrm{{tr}}\,{symbol}^\ell(t,s)/P$", *parts)
        for ax, name in zip(axes.flat, "abcdef", strict=True):
            letter(ax, name)
    return figure


def _displacement(ax: "Axes", data: "xr.Dataset") -> None:
    """Cosine of each layer's kernel with its first, averaged over layers."""
    for color, depth in zip(SERIES, data.depth.values, strict=False):
        theory, trial = (data[f"deep_feature{suffix}"].sel(depth=depth) for suffix in ("", "_sampled"))
        mean = trial.mean("replicate")
        ax.plot(data["at"], similarity(theory, theory.sel(at=0)).mean("layer"), color=color, label=f"$L={depth:g}$")
        ax.plot(data["at"], similarity(mean, mean.sel(at=0)).mean("layer"), "o", markersize=3.5, color=color)
    ax.set(
        xlabel="step $t$", ylabel=r"cosine of $\Phi^\ell(t)$ and $\Phi^\ell(0)$", title="displacement of the features"
    )
    ax.legend()
