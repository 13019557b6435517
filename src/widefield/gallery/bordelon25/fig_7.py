"""Fig. 7 of Bordelon & Pehlevan: the largest stable learning rate against width, in both parameterizations."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon25.losses import PARAMETERIZATIONS, POPULATION, richness_at

WIDE = 1.0  # the power of μP is fitted from here on: below, the kernel of the narrow network has not settled
NEAR_THE_EDGE = (
    "narrow networks near the edge follow the theory from larger D on (ν = 0.25, 1.2 η_max: 100, 67 and 42 % stable at "
    "D = 100, 400 and 800), so only those farther away are judged"
)


@dataclass(frozen=True)
class Parameters:
    """Richness ``richness`` (μP) or ``richness``/√ν (NTK); descent on the population over ``steps``.

    Networks of D = ``dimension`` are trained at ``factors`` of the theory's largest rate, below and above one, and judged
    at ``judged``. Those of the i-th parameterization and j-th sampled width have the seeds from ``seed`` + 100 i + 10 j on.
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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Edges of stability, their powers of the width, and networks on both sides."""
    job = work.jobs(len(PARAMETERIZATIONS) * len(p.sampled) + 1)
    job(f"the edge of stability at {len(p.width_ratios)} widths")
    edges = xr.concat([edge(p, name) for name in PARAMETERIZATIONS], "parameterization")
    dims = {"parameterization": PARAMETERIZATIONS, "sampled_ratio": p.sampled}
    data = xr.merge([edges, kit.over(dims, partial(stable, p, edges), job)])
    ntk, mup = (data.maximal_rate.sel(parameterization=name) for name in PARAMETERIZATIONS)
    mup = mup.where(mup.width_ratio >= WIDE, drop=True)
    ntk_power, mup_power = (kit.fitted_power(rates.width_ratio, rates) for rates in (ntk, mup))
    notes = (
        f"NTK: fitted power of ν {ntk_power:.3f}, Eq. 70 has 1 − 1/L = {1 - 1 / p.depth:.3f}; "
        f"μP: {mup_power:.3f} from ν = {WIDE:g} on, Eq. 70 has 0",
        "stable: a network whose loss at the end is below that at the start",
        NEAR_THE_EDGE,
    )
    return kit.made([[_edges, _shares]], data, p, verdicts(data, p), size=(3.6, 2.9), notes=notes)


def edge(p: Parameters, name: str) -> xr.Dataset:
    """``maximal_rate`` over the width, with its error."""
    training = wf.Training(1.0, p.steps, richness=p.richness)
    question = wf.DNN(p.depth, "linear"), POPULATION, training
    transfer = wf.rate_transfer(*question, over="width", values=p.width_ratios, parameterization=name)
    return transfer.data[["maximal_rate", "maximal_rate_error"]].expand_dims(parameterization=[name])


def stable(p: Parameters, edges: xr.Dataset, i: int, name: str, nu: float) -> xr.Dataset:
    """Whether training lowers the loss, as 1 or 0 over (replicate, factor)."""
    largest, ends = float(edges.maximal_rate.sel(parameterization=name, width_ratio=nu)), []
    seed = p.seed + 100 * (i // len(p.sampled)) + 10 * (i % len(p.sampled))
    for k, factor in enumerate(p.factors):
        training = wf.Training(factor * largest, p.steps, richness=richness_at(p.richness, nu, name))
        loss = wf.simulate.proportional(
            wf.DNN(p.depth, "linear"), POPULATION, training, dimension=p.dimension, width_ratio=nu,
            replicates=p.replicates, seed=seed + k, paired=False, quantities=("test_loss",), progress=False, throw=False,
        ).test_loss.values  # fmt: skip
        ends.append((loss[:, -1] < loss[:, 0]).astype(float))
    return xr.Dataset({"stable": (("replicate", "factor"), np.stack(ends, axis=1))}, {"factor": list(p.factors)})


def verdicts(data: xr.Dataset, p: Parameters) -> Iterator[kit.Row]:
    """The share of networks on the theory's side of the edge. It agrees where that is all of them.

    A Student test says little about shares: one network astray is as large as its standard error.
    """
    for name, factor, case in kit.cases(data.sel(factor=list(p.judged)), "parameterization", "factor"):
        share = case.stable.mean("replicate").drop_vars(("parameterization", "factor"))
        right, side = (share, "stable") if factor < 1 else (1 - share, "unstable")
        row = kit.judge(f"{PARAMETERIZATIONS[name]}, {side} at {factor:g} η_max", xr.ones_like(right), right)
        yield replace(row, agrees=bool((right == 1).all()), n_replicates=data.sizes["replicate"])


def _edges(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """The edges, and what most networks around them do."""
    nu = data.width_ratio.values
    for color, (name, case) in zip((kit.COLORS["DNN"], kit.COLORS["RNN"]), kit.cases(data, "parameterization")):
        ax.plot(nu, case.maximal_rate, color=color, label=f"{PARAMETERIZATIONS[name]}, theory")
        for x, factor, networks in kit.cases(case, "sampled_ratio", "factor"):
            marker = "o" if networks.stable.mean() > 0.5 else "x"
            ax.plot(x, factor * case.maximal_rate.sel(width_ratio=x), marker, color=color, markersize=4)
    middle = len(nu) // 2
    value = 0.6 * float(data.maximal_rate.sel(parameterization="ntk")[middle])
    kit.power_fit(ax, nu, value, 1 - 1 / p.depth, through=middle, label=rf"$\nu^{{1-1/{p.depth}}}$")
    kit.key(ax, "most networks stable", "o")
    kit.key(ax, "most unstable", "x")
    ax.set(xlabel=r"width ratio $\nu=N/D$", ylabel=r"$\eta_{\max}$", title="largest stable rate")
    ax.set_ylim(0.3 * float(data.maximal_rate.min()), 6 * float(data.maximal_rate.max()))
    ax.legend(loc="upper left", ncols=2)


def _shares(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """The share of stable networks against the distance from the edge."""
    for name, line, shift in (("ntk", "-", 0.98), ("mup", "--", 1.02)):
        for color, (nu, case) in zip(kit.SERIES, kit.cases(data.sel(parameterization=name), "sampled_ratio")):
            share, label = case.stable.mean("replicate"), rf"{PARAMETERIZATIONS[name]}, $\nu={nu:g}$"
            ax.plot(shift * data.factor, share, "o", linestyle=line, color=color, label=label)
    ax.axvline(1, color=kit.COLORS["theory"], linewidth=0.8)
    ax.set(xlabel=r"$\eta/\eta_{\max}$", ylabel="stable networks", title="networks on both sides")
    kit.ticks_at(ax, data.factor.values)
    ax.legend(loc="lower left")
