"""Fig. 3 of Bordelon & Pehlevan (2022): with weight decay relu networks end at a kernel that depends on the richness."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bordelon22
from widefield.gallery.bordelon22 import Networks, Run, curve, family, points
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr

FIELDS = ("loss", "label_feature", "feature_trace")


@dataclass(frozen=True)
class Parameters(Networks):
    """One hidden layer; ``paths`` is that of one of the theory's eight batches."""

    richnesses: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    weight_decay: float = 1.0
    n_samples: int = 10
    dimension: int = 20
    rate: float = 0.02
    steps: int = 500
    paths: int = 8192


FULL = Parameters()
QUICK = Parameters(width=300, replicates=48, n_samples=4, dimension=8, rate=0.05, steps=160, paths=1024)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and networks at each richness, to the end of training."""
    p = parameters
    task = bordelon22.two_classes(p.n_samples, p.dimension, p.seed)
    jobs = bordelon22.counter(report, len(p.richnesses))
    base = Run(wf.DNN(1, "relu"), task, p.richnesses[0], p.rate, p.steps, weight_decay=p.weight_decay)
    runs = {gamma: replace(base, richness=gamma) for gamma in p.richnesses}
    data = family("rich", "richness", runs, p, seed=0, paths=p.paths, report=jobs)
    y = task.labels()[:, 0, 0]
    f, kernel = data.rich_prediction.isel(at=-1, output=0, drop=True), data.rich_feature.isel(at=-1, layer=0, drop=True)
    push = np.einsum("rpq,rq->rp", kernel.transpose("richness", "sample", "sample_"), y - f) / p.weight_decay
    data["readout_balance"] = (("richness", "sample"), push)
    notes = (p.note, "ΦΔ/λ is what a readout at rest gives; the last row compares it with f at the end of the theory")
    power = bordelon22.power(data, compared)
    return Made(draw(data, p), data, p, notes=(*notes, power), **judged(judge_all(compared(data)).rows))


def compared(data: "xr.Dataset") -> Iterator[Pair]:
    """Losses and features of every richness, and the balance of the readout."""
    yield from bordelon22.pairs(data, "rich", "richness", "γ0 = {}", FIELDS)
    yield Pair("f = ΦΔ/λ at the end", data.rich_prediction.isel(at=-1, output=0), data.readout_balance)


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Losses, size and alignment of the features, and the last loss against the richness."""
    with house_style():
        figure, axes = panels(1, 3, size=(3.4, 2.9))
        for color, gamma in zip(SERIES, data.richness.values, strict=False):
            own, label = {"richness": gamma}, rf"$\gamma_0={gamma:g}$"
            curve(axes[0, 0], data, "rich_loss", own, color=color, label=label)
            theory, trial = (data[f"rich_label_feature{part}"].sel(own).isel(layer=0) for part in ("", "_sampled"))
            axes[0, 1].plot(data["at"], theory, color=color, label=label)
            points(axes[0, 1], data["at"], trial, color=color)
        trivial = float(data.rich_loss.isel(step=0, richness=0))
        axes[0, 0].set(xlabel="step $t$", ylabel=r"loss $\frac{1}{2}\Sigma\Delta^2$", ylim=(0, 1.35 * trivial))
        axes[0, 0].set(title=rf"relu, $L=1$, $\lambda={p.weight_decay:g}$")
        axes[0, 1].set(xlabel="step $t$", ylabel=r"$y^T\Phi y/P^2$", title="features along the labels", yscale="log")
        axes[0, 0].legend(*axes[0, 1].get_legend_handles_labels(), fontsize=7, ncols=2, loc="upper right")
        last, sampled = data.rich_loss.isel(step=-1), data.rich_loss_sampled.isel(step=-1)
        axes[0, 2].plot(data.richness, last, color=COLORS["theory"])
        points(axes[0, 2], data.richness, sampled, color=SERIES[0])
        axes[0, 2].axhline(trivial, color=COLORS["theory"], linestyle=":", label=r"$f=0$, the limit $\gamma_0\to0$")
        axes[0, 2].set(xlabel=r"richness $\gamma_0$", ylabel="last loss", ylim=(0, None), title="fixed point")
        axes[0, 2].legend(fontsize=7)
        for ax, name in zip(axes[0], "abc", strict=True):
            letter(ax, name)
    return figure
