"""Fig. 4 of Bordelon & Pehlevan: residual networks, how richness, branch and depth change the training curve."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import judge_all
from widefield.gallery import bordelon25
from widefield.gallery.bordelon25 import Networks, Run, curve, family
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr

FAMILIES = (
    ("rich", "richness", "γ0 = {}"),
    ("branched", "branch", "β0 = {}"),
    ("deep", "depth", "L = {}"),
)


@dataclass(frozen=True)
class Parameters(Networks):
    """β = β0/√L, initial function subtracted; each panel varies one of richness γ0, branch β0 and depth L, with the other two as given.

    ``deepest`` is shown in theory alone.
    """

    richness: float = 1.0
    branch: float = 1.2
    depth: int = 8
    rate: float = 0.02
    steps: int = 24
    width_ratio: float = 1.0
    richnesses: tuple[float, ...] = (0.5, 1.0, 2.0)
    branches: tuple[float, ...] = (0.5, 1.0, 1.5)
    depths: tuple[int, ...] = (1, 2, 4, 8, 16)
    deepest: int = 32


FULL = Parameters()
QUICK = Parameters(dimension=96, replicates=200, depth=4, richnesses=(0.5, 1.0, 2.0), depths=(1, 2, 8))


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and networks of the three panels, on the population, and the theory at infinite depth."""
    import xarray as xr

    p = parameters
    jobs = bordelon25.counter(report, len(p.richnesses) + len(p.branches) + len(p.depths) + 1)
    data = xr.merge(
        [
            family("rich", "richness", {v: member(p, richness=v) for v in p.richnesses}, p, seed=0, report=jobs),
            family("branched", "branch", {v: member(p, branch=v) for v in p.branches}, p, seed=100, report=jobs),
            family("deep", "depth", {float(v): member(p, depth=v) for v in p.depths}, p, seed=200, report=jobs),
        ]
    )
    jobs("infinite depth")
    data["deep_limit"] = member(p).theory(depth_limit=True).test_loss
    data["deepest"] = member(p, depth=p.deepest).theory().test_loss
    compared = partial(bordelon25.every_pair, families=FAMILIES)
    notes = (p.note, bordelon25.power(data, compared))
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(compared(data)).rows))


def member(
    p: Parameters, *, richness: float | None = None, branch: float | None = None, depth: int | None = None
) -> Run:
    """The run at one richness, branch and depth."""
    n_layers = depth or p.depth
    network = wf.ResNet(n_layers, "linear", branch=(branch or p.branch) / np.sqrt(n_layers))
    return Run(network, p.rate, p.steps, richness=richness or p.richness, width_ratio=p.width_ratio, centered=True)


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Panels a to c."""
    titles = (
        rf"$\beta_0={p.branch:g}$, $L={p.depth}$",
        rf"$\gamma_0={p.richness:g}$, $L={p.depth}$",
        rf"$\gamma_0={p.richness:g}$, $\beta_0={p.branch:g}$",
    )
    symbols = {"richness": r"\gamma_0", "branch": r"\beta_0", "depth": "L"}
    with house_style():
        figure, axes = panels(1, 3, size=(3.3, 2.9))
        for i, (ax, (name, dim, _)) in enumerate(zip(axes[0], FAMILIES, strict=True)):
            for color, value in zip(SERIES, data[dim].values, strict=False):
                curve(ax, data, f"{name}_test_loss", {dim: value}, color=color, label=rf"${symbols[dim]}={value:g}$")
            letter(ax, "abc"[i])
            ax.set(xlabel="step $t$", ylabel="test loss", title=titles[i])
        for field, style, label in (("deepest", ":", rf"$L={p.deepest}$"), ("deep_limit", "--", r"$L=\infty$")):
            axes[0, 2].plot(data.step, data[field], color=COLORS["theory"], linestyle=style, label=label)
        bordelon25.same_range(axes[0], data, [f"{name}_test_loss" for name, *_ in FAMILIES])
        for ax in axes[0]:
            ax.legend(fontsize=7)
    return figure
