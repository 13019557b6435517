"""Fig. 7 of Bordelon & Pehlevan: the largest stable learning rate against width, in both parameterisations."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Row, judge
from widefield.gallery.bordelon25 import counter
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

KINDS = {"ntk": "NTK", "mup": "μP"}
WIDE = 1.0  # the power of μP is fitted from here on: below, the kernel of the narrow network has not settled


@dataclass(frozen=True)
class Parameters:
    """Richness ``richness`` (μP) or ``richness``/√ν (NTK); descent on the population over ``steps``.

    Networks of D = ``dimension`` are trained at ``factors`` of the theory's largest rate, below and above one, and judged
    at ``judged``. Those of the i-th parameterisation and j-th sampled width have the seeds from ``seed`` + 100 i + 10 j on.
    """

    depth: int = 3
    richness: float = 4.0
    steps: int = 40
    width_ratios: tuple[float, ...] = tuple(2.0**k for k in np.arange(-2, 4.1, 0.5))
    sampled: tuple[float, ...] = (0.25, 1.0, 4.0)
    factors: tuple[float, ...] = (0.7, 0.85, 1.2, 1.4)
    judged: tuple[float, ...] = (0.7, 1.4)
    dimension: int = 800
    replicates: int = 20
    seed: int = 2570


FULL = Parameters()
QUICK = Parameters(width_ratios=tuple(2.0**k for k in range(-2, 5)), dimension=400, replicates=12)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Edges of stability, their powers of the width, and networks on both sides."""
    import xarray as xr

    p = parameters
    said = counter(report, len(KINDS) * (1 + len(p.sampled)) + 1)
    blocks = []
    for i, kind in enumerate(KINDS):
        said(f"{KINDS[kind]}: the edge of stability at {len(p.width_ratios)} widths")
        edge = edges(p, kind)
        shares = []
        for j, nu in enumerate(p.sampled):
            said(f"{KINDS[kind]}: networks on both sides at ν = {nu:g}")
            shares.append(stable(p, kind, nu, float(edge.maximal_rate.sel(width_ratio=nu)), p.seed + 100 * i + 10 * j))
        found = xr.concat(shares, xr.Variable("sampled_ratio", list(p.sampled)))
        blocks.append(xr.merge([edge, found.rename("stable")]).expand_dims(parameterization=[kind]))
    said("drawing")
    data = xr.concat(blocks, "parameterization")
    expected = 1 - 1 / p.depth
    notes = (
        f"NTK: fitted power of ν {power(data, 'ntk'):.3f}, Eq. 70 has 1 − 1/L = {expected:.3f}; "
        f"μP: {power(data, 'mup', WIDE):.3f} from ν = {WIDE:g} on, Eq. 70 has 0",
        "stable: a network whose loss at the end is below that at the start",
        "narrow networks near the edge follow the theory from larger D on (ν = 0.25, 1.2 η_max: 100, 67 and 42 % stable at "
        "D = 100, 400 and 800), so only those farther away are judged",
    )
    return Made(draw(data, p), data, p, notes=notes, **judged(verdicts(data, p)))


def edges(p: Parameters, kind: str) -> "xr.Dataset":
    """``maximal_rate`` over the width, with its error."""
    found = wf.transfer(
        wf.DNN(p.depth, "linear"), over="width", values=p.width_ratios, steps=p.steps, parameterization=kind,
        richness=p.richness,
    )  # fmt: skip
    return found.data[["maximal_rate", "maximal_rate_error"]]


def stable(p: Parameters, kind: str, nu: float, edge: float, seed: int) -> "xr.DataArray":
    """Whether training lowers the loss, as 1 or 0 over (replicate, factor)."""
    import xarray as xr

    gamma = p.richness / np.sqrt(nu) if kind == "ntk" else p.richness
    ends = []
    for i, factor in enumerate(p.factors):
        trial = wf.simulate.proportional(
            wf.DNN(p.depth, "linear"), dimension=p.dimension, width_ratio=nu, richness=gamma, rate=factor * edge,
            steps=p.steps, replicates=p.replicates, seed=seed + i, paired=False, quantities=("test_loss",), progress=False,
            throw=False,
        )  # fmt: skip
        loss = trial.test_loss.values
        ends.append((loss[:, -1] < loss[:, 0]).astype(float))
    return xr.DataArray(np.stack(ends, axis=1), dims=("replicate", "factor"), coords={"factor": list(p.factors)})


def power(data: "xr.Dataset", kind: str, start: float = 0.0) -> float:
    """The fitted power of ν with which the edge moves."""
    edge = data.maximal_rate.sel(parameterization=kind)
    edge = edge.where(edge.width_ratio >= start, drop=True)
    return float(np.polyfit(np.log(edge.width_ratio), np.log(edge), 1)[0])


def verdicts(data: "xr.Dataset", p: Parameters) -> list[Row]:
    """The share of networks on the theory's side of the edge. It agrees where that is all of them.

    A Student test says little about shares: one network astray is as large as its standard error.
    """
    rows = []
    for kind, name in KINDS.items():
        for factor in p.judged:
            found = data.stable.sel(parameterization=kind, factor=factor, drop=True)
            right = (found if factor < 1 else 1 - found).mean("replicate")
            row = judge(f"{name}, {'stable' if factor < 1 else 'unstable'} at {factor:g} η_max", right * 0 + 1, right)
            rows.append(replace(row, agrees=bool((right == 1).all()), n_replicates=data.sizes["replicate"]))
    return rows


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """The edges with the networks around them, and the share of stable networks against the distance from it."""
    with house_style():
        figure, axes = panels(1, 2, size=(3.6, 2.9))
        _edges(axes[0, 0], data, p)
        _shares(axes[0, 1], data)
        letter(axes[0, 0], "a")
        letter(axes[0, 1], "b")
    return figure


def _edges(ax: "Axes", data: "xr.Dataset", p: Parameters) -> None:
    nu = data.width_ratio.values
    for (kind, name), color in zip(KINDS.items(), (COLORS["DNN"], COLORS["RNN"]), strict=True):
        case = data.sel(parameterization=kind)
        ax.plot(nu, case.maximal_rate, color=color, label=f"{name}, theory")
        share = case.stable.mean("replicate")
        for factor in case.factor.values:
            at = case.maximal_rate.sel(width_ratio=data.sampled_ratio.values).values * factor
            for x, y, s in zip(data.sampled_ratio.values, at, share.sel(factor=factor).values, strict=True):
                ax.plot(x, y, marker="o" if s > 0.5 else "x", color=color, markersize=4, linestyle="none")
    middle = len(nu) // 2
    law = float(data.maximal_rate.sel(parameterization="ntk").values[middle]) * (nu / nu[middle]) ** (1 - 1 / p.depth)
    ax.plot(nu, 0.6 * law, color=COLORS["theory"], linestyle="--", linewidth=0.9, label=rf"$\nu^{{1-1/{p.depth}}}$")
    ax.plot([], [], "o", color=COLORS["theory"], markersize=4, label="most networks stable")
    ax.plot([], [], "x", color=COLORS["theory"], markersize=4, label="most unstable")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel=r"width ratio $\nu=N/D$",
        ylabel=r"$\eta_{\max}$",
        title="largest stable rate",
    )
    ax.set_ylim(0.3 * float(data.maximal_rate.min()), 6 * float(data.maximal_rate.max()))
    ax.legend(fontsize=7, loc="upper left", ncols=2)


def _shares(ax: "Axes", data: "xr.Dataset") -> None:
    for kind, line, shift in (("ntk", "-", 0.98), ("mup", "--", 1.02)):
        for color, nu in zip(SERIES, data.sampled_ratio.values, strict=False):
            share = data.stable.sel(parameterization=kind, sampled_ratio=nu).mean("replicate")
            ax.plot(shift * data.factor, share, "o", linestyle=line, color=color, label=rf"{KINDS[kind]}, $\nu={nu:g}$")
    ax.axvline(1, color=COLORS["theory"], linewidth=0.8)
    ax.set(xscale="log", xlabel=r"$\eta/\eta_{\max}$", ylabel="stable networks", title="networks on both sides")
    ax.set_xticks(data.factor.values, [f"{factor:g}" for factor in data.factor.values])
    ax.minorticks_off()
    ax.legend(fontsize=7, loc="lower left")
