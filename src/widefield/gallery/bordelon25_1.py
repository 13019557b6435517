"""Fig. 1 of Bordelon & Pehlevan: test loss across widths, in NTK parameterisation and in μP, and across depths."""

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

LARGE = 1e4  # a kernel method in NTK parameterisation, which has no ν = ∞ at γ0 > 0
FAMILIES = (
    ("ntk", "width_ratio", "NTK, ν = {}"),
    ("mup", "width_ratio", "μP, ν = {}"),
    ("deep", "depth", "μP, L = {}"),
)


@dataclass(frozen=True)
class Parameters(Networks):
    """γ0 = ``richness`` in μP and ``richness``/√ν in NTK parameterisation; the depths have ν = ``deep_ratio``."""

    depth: int = 4
    richness: float = 2.0
    rate: float = 0.02
    steps: int = 30
    width_ratios: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    depths: tuple[int, ...] = (1, 2, 4, 6)
    deep_ratio: float = 1.0


FULL = Parameters()
QUICK = Parameters(dimension=96, replicates=160, width_ratios=(0.5, 1.0, 2.0), depths=(1, 2, 4))


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and networks of the three panels, on the population."""
    import xarray as xr

    p = parameters
    jobs = bordelon25.counter(report, 2 * len(p.width_ratios) + len(p.depths))
    wide = {name: {nu: member(p, nu, name) for nu in p.width_ratios} for name in ("ntk", "mup")}
    deep = {float(depth): member(p, p.deep_ratio, "mup", depth) for depth in p.depths}
    data = xr.merge(
        [
            family("ntk", "width_ratio", wide["ntk"], p, seed=0, report=jobs),
            family("mup", "width_ratio", wide["mup"], p, seed=100, report=jobs),
            family("deep", "depth", deep, p, seed=200, report=jobs),
        ]
    )
    data["ntk_limit"] = member(p, LARGE, "ntk").theory().test_loss
    data["mup_limit"] = member(p, np.inf, "mup").theory().test_loss
    compared = partial(bordelon25.every_pair, families=FAMILIES)
    notes = (p.note, bordelon25.power(data, compared))
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(compared(data)).rows))


def member(p: Parameters, width_ratio: float, parameterization: str, depth: int | None = None) -> Run:
    """The run at one width and depth."""
    gamma = p.richness / np.sqrt(width_ratio) if parameterization == "ntk" else p.richness
    network = wf.DNN(p.depth if depth is None else int(depth), "linear")
    return Run(network, p.rate, p.steps, richness=gamma, width_ratio=width_ratio)


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Panels a to c."""
    titles = (
        rf"NTK, $\gamma_0={p.richness:g}/\sqrt{{\nu}}$, $L={p.depth}$",
        rf"$\mu$P, $\gamma_0={p.richness:g}$, $L={p.depth}$",
        rf"$\mu$P, $\gamma_0={p.richness:g}$, $\nu={p.deep_ratio:g}$",
    )
    with house_style():
        figure, axes = panels(1, 3, size=(3.3, 2.9))
        for i, (ax, (name, dim, _)) in enumerate(zip(axes[0], FAMILIES, strict=True)):
            symbol = "L" if dim == "depth" else r"\nu"
            for color, value in zip(SERIES, data[dim].values, strict=False):
                curve(ax, data, f"{name}_test_loss", {dim: value}, color=color, label=rf"${symbol}={value:g}$")
            letter(ax, "abc"[i])
            ax.set(xlabel="step $t$", ylabel="test loss", title=titles[i])
        for ax, name, label in zip(axes[0], ("ntk", "mup"), (r"$\nu=10^4$", r"$\nu=\infty$"), strict=False):
            ax.plot(data.step, data[f"{name}_limit"], color=COLORS["theory"], linestyle="--", label=label)
        bordelon25.same_range(axes[0], data, [f"{name}_test_loss" for name, *_ in FAMILIES])
        for ax in axes[0]:
            ax.legend(fontsize=7)
    return figure
