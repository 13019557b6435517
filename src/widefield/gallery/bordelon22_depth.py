"""Appendix P.6 of Bordelon & Pehlevan (2022): the tangent kernel changes by γ0²L of itself, where γ0²L is small.

Linear networks of all depths, trained for the same time in units of 1/(L+1), the rate at which the static kernel learns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bordelon22
from widefield.gallery.bordelon22 import Networks, Run, along_labels, points
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr

THEORIES = ("full", "perturbative")


@dataclass(frozen=True)
class Parameters(Networks):
    """``rate`` is that of depth 1 times 2: depth L learns at rate/(L+1)."""

    depths: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    richnesses: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)
    n_samples: int = 10
    dimension: int = 20
    rate: float = 0.05
    steps: int = 100


FULL = Parameters()
QUICK = Parameters(
    width=200, replicates=32, depths=(1, 2, 4), richnesses=(0.25, 0.5, 1.0), n_samples=4, dimension=8, rate=0.08, steps=40
)  # fmt: skip


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """The change of the kernel along the labels for every depth and richness, in both theories and in networks."""
    import xarray as xr

    p = parameters
    task = bordelon22.two_classes(p.n_samples, p.dimension, p.seed)
    jobs = bordelon22.counter(report, len(p.depths) * len(p.richnesses))
    values = {name: np.empty((len(p.depths), len(p.richnesses))) for name in THEORIES}
    sampled = np.empty((len(p.depths), len(p.richnesses), p.replicates))
    for seed, ((i, depth), (j, richness)) in enumerate(product(enumerate(p.depths), enumerate(p.richnesses))):
        jobs(f"L = {depth}, γ0 = {richness:g}")
        run = Run(wf.DNN(depth, "linear"), task, richness, p.rate / (depth + 1), p.steps, quantities=("loss", "ntk"))
        found = {name: along_labels(run.theory(method=name).ntk, task) for name in THEORIES}
        scale = float(found["full"].isel(at=0))
        for name in THEORIES:
            values[name][i, j] = change(found[name]) / scale
        sampled[i, j] = change(along_labels(run.trained(p, p.seed + 2 * seed).ntk, task)) / scale
    dims = ("depth", "richness")
    data = xr.Dataset(
        {name: (dims, value) for name, value in values.items()} | {"sampled": ((*dims, "replicate"), sampled)},
        coords={"depth": list(p.depths), "richness": list(p.richnesses)},
    )
    numbers = judged(judge_all(compared(data, "full")).rows)
    rejected = [row.agrees is False for row in judge_all(compared(data, "perturbative"))]
    notes = (p.note, f"first order in γ0² is rejected in {sum(rejected)} of {len(rejected)} rows", growth(data))
    return Made(draw(data), data, p, notes=notes, **numbers)


def change(size: "xr.DataArray") -> np.ndarray:
    """From the first to the last time; of networks too it is divided by the theory's first value, which has no error."""
    return (size.isel(at=-1) - size.isel(at=0)).values


def growth(data: "xr.Dataset") -> str:
    """The power of L with which the change per γ0² grows at the smallest richness."""
    deep = data.depth.values >= min(2, data.depth.values[-2])
    power = np.polyfit(np.log(data.depth.values[deep]), np.log(data.perturbative.isel(richness=0).values[deep]), 1)[0]
    return f"to first order the change grows as L^{power:.2f} over these depths; P.6 says L for large ones"


def compared(data: "xr.Dataset", theory: str) -> Iterator[Pair]:
    """One row per depth and richness."""
    for depth, richness in product(data.depth.values, data.richness.values):
        own = data.sel(depth=depth, richness=richness)
        yield Pair(f"ΔK/K {theory}, L = {depth}, γ0 = {richness:g}", own[theory], own.sampled)


def draw(data: "xr.Dataset") -> Figure:
    """All cases against γ0²L, and the change per γ0² against depth."""
    label = r"$y^T\Delta K\,y\;/\;y^TK_0\,y$"
    with house_style():
        figure, axes = panels(1, 2, size=(3.6, 3.0))
        for color, depth in zip(SERIES, data.depth.values, strict=False):
            own, x = data.sel(depth=depth), data.richness.values**2 * depth
            axes[0, 0].plot(x, own.full, color=color, label=f"$L={depth}$")
            axes[0, 0].plot(x, own.perturbative, color=color, linestyle="--")
            points(axes[0, 0], x, own.sampled, color=color)
        axes[0, 0].set(
            xlabel=r"$\gamma_0^2L$", ylabel=label, xscale="log", yscale="log", title="relative change of the NTK"
        )
        for color, richness in zip(SERIES, data.richness.values, strict=False):
            own = data.sel(richness=richness) / richness**2
            axes[0, 1].plot(data.depth, own.full, color=color, label=rf"$\gamma_0={richness:g}$")
            points(axes[0, 1], data.depth, own.sampled, color=color)
        axes[0, 1].plot(
            data.depth, data.perturbative.isel(richness=0) / float(data.richness[0]) ** 2, "--", color=COLORS["theory"]
        )
        axes[0, 1].set(
            xlabel="depth $L$", ylabel=f"{label} $/\\gamma_0^2$", title="per squared richness", ylim=(0, None)
        )
        axes[0, 1].set_xticks(data.depth.values)
        for ax, name in zip(axes[0], "ab", strict=True):
            ax.plot([], [], color=COLORS["theory"], linestyle="--", label=r"order $\gamma_0^2$")
            ax.legend(fontsize=7)
            letter(ax, name)
    return figure
