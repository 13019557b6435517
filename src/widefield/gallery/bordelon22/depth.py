"""Appendix P.6 of Bordelon & Pehlevan (2022): the tangent kernel changes by γ0²L of itself, where γ0²L is small.

Linear networks of all depths, trained for the same time in units of 1/(L+1), the rate at which the static kernel learns.
"""

from dataclasses import dataclass, replace
from functools import partial

import xarray as xr

from widefield.gallery import kit
from widefield.gallery.bordelon22.kernels import Kernels, TwoClasses, along_labels

LABEL = r"$y^T\Delta K\,y\;/\;y^TK_0\,y$"


@dataclass(frozen=True)
class Parameters(TwoClasses):
    """``rate`` is that of depth 1 times 2: depth L learns at rate/(L+1)."""

    depths: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    richnesses: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)


FULL = Parameters(rate=0.05)
QUICK = Parameters(
    width=200, replicates=32, depths=(1, 2, 4), richnesses=(0.25, 0.5, 1.0), n_samples=4, dimension=8, rate=0.08, steps=40
)  # fmt: skip


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """The change of the kernel along the labels for every depth and richness, in both theories and in networks."""
    dims = {"depth": p.depths, "richness": p.richnesses}
    data = kit.over(dims, partial(change, p), work.jobs(len(p.depths) * len(p.richnesses)))
    deep = data.isel(richness=0).sel(depth=data.depth >= min(2, int(data.depth[-2])))
    power = kit.fitted_power(deep.depth, deep.perturbative)
    notes = (
        Kernels(p).note,
        f"first order in γ0² is {kit.rejections(pairs(data, 'perturbative'))}",
        f"to first order the change grows as L^{power:.2f} over these depths; P.6 says L for large ones",
    )
    return kit.made([[_all, _per_richness]], data, p, pairs(data, "full"), size=(3.6, 3.0), notes=notes)


def change(p: Parameters, i: int, depth: int, richness: float) -> xr.Dataset:
    """From the first to the last time, divided by the theory's first value, which has no error."""
    experiment = Kernels(p, ("loss", "ntk"))
    question = replace(p, rate=p.rate / (depth + 1)).question(depth, "linear", richness)
    parts = {method: experiment.theory(question, method=method) for method in ("full", "perturbative")}
    parts["sampled"] = experiment.sampled(question, p.seed + 2 * i)
    size = {name: along_labels(part.ntk, question.task) for name, part in parts.items()}
    scale = float(size["full"].isel(at=0))
    moved = {name: line.isel(at=-1, drop=True) - line.isel(at=0, drop=True) for name, line in size.items()}
    return xr.Dataset({name: value / scale for name, value in moved.items()})


def pairs(data: xr.Dataset, theory: str) -> kit.Pairs:
    """One row per depth and richness."""
    for depth, richness, case in kit.cases(data, "depth", "richness"):
        yield kit.Pair(f"ΔK/K {theory}, L = {depth}, γ0 = {richness:g}", case[theory], case.sampled)


def _all(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """All cases against γ0²L."""
    for color, (depth, case) in zip(kit.SERIES, kit.cases(data, "depth")):
        x = data.richness.values**2 * depth
        ax.plot(x, case.full, color=color, label=f"$L={depth}$")
        ax.plot(x, case.perturbative, color=color, linestyle="--")
        kit.points(ax, x, case.sampled, color=color)
    ax.set(xlabel=r"$\gamma_0^2L$", ylabel=LABEL, xscale="log", yscale="log", title="relative change of the NTK")
    kit.key(ax, r"order $\gamma_0^2$")
    ax.legend()


def _per_richness(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """The change per γ0² against depth."""
    data = data / data.richness**2
    for color, (richness, case) in zip(kit.SERIES, kit.cases(data, "richness")):
        kit.curve(ax, case.full, case.sampled, color=color, label=rf"$\gamma_0={richness:g}$")
    first = data.perturbative.isel(richness=0)
    kit.curve(ax, first, color=kit.COLORS["theory"], style="--", label=r"order $\gamma_0^2$")
    ax.set(xlabel="depth $L$", ylabel=f"{LABEL} $/\\gamma_0^2$", title="per squared richness", ylim=(0, None))
    ax.set_xticks(data.depth.values)
    ax.legend()
