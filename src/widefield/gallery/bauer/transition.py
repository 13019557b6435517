"""Panel 5 of the poster: coherence between states against the strength of the labels, and the landscape behind it.

Four time steps in the poster's count, T = 4: three hidden states, an input at the first and a label at the last.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bauer import sampling
from widefield.gallery.bauer.sampling import FIRST, KINDS, Blocks, Sampling, endpoint, linear

DEPTH = 3  # the closed forms of fluctuations are those of T = 4
PAIR = {"state": 1, "state_": 2}  # the order parameter, the poster's H^{T−1,T−2}
STARTS = {"theory": "started at the saddle", "prior": "started at random"}
WANTED = ("hidden", "squared_correlation")
DASHED: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 0.9}
LAW = "below λ_c the theory's ρ is 0 and ⟨ρ²⟩ is compared with its fluctuation, 2/(N(2 − s)); in a DNN, 1/N"
OFFSET = "RNN: 2 · wide − narrow from two widths, against infinite width"


@dataclass(frozen=True)
class Parameters(Sampling):
    """``ratios`` λ/λ_c are sampled, those in ``shown`` have their landscape drawn over ``correlations``."""

    ratios: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.3, 1.6, 2.0, 2.5, 3.0, 3.5)
    shown: tuple[float, ...] = (0.5, 1.0, 1.5)
    points: int = 81
    correlations: int = 61


FULL = Parameters()
QUICK = Parameters(
    width=200, n_chains=10, steps=130, warmup=60, ratios=(0.15, 0.4, 1.75, 2.5), points=41, correlations=41
)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Both branches, sampled networks of two widths from two starts, and the landscape on both sides."""
    critical = sampling.critical_strength(DEPTH, p.temperature)
    cases = list(product(KINDS, p.ratios))
    job = work.jobs(len(cases) + 1)
    job("theory: both branches and the landscape")
    lines = [branches(p, critical), landscapes(p, critical)]
    blocks, trials = sampling.collect(
        one_strength(p, kind, ratio, critical, p.seed + 10 * i, job) for i, (kind, ratio) in enumerate(cases)
    )
    data = xr.merge([*lines, xr.combine_by_coords(blocks)])
    data.attrs.update(critical_strength=critical)
    rows, notes = sampling.verdicts(pairs(data), trials), (LAW, OFFSET, *sampling.mixing(trials))
    return kit.made([[_recurrent, _deep, _landscape]], data, p, rows, size=(3.4, 3.0), notes=notes)


def branches(p: Parameters, critical: float) -> xr.Dataset:
    """Order parameter and stability of both branches over λ/λ_c, and the width's fluctuation N⟨ρ²⟩ below λ_c."""
    transition = wf.transition(
        linear("RNN", DEPTH), endpoint(critical), temperature=p.temperature, points=p.points, progress=False
    )
    curve = transition.curve.data[["order_parameter", "stability"]]
    curve = curve.assign_coords(factor=curve.factor**2).rename(factor="curve_ratio")
    for name in curve.data_vars:
        curve[name].attrs["nan"] = "no such branch"
    curve["found_critical"] = critical * float(transition.instability or np.nan) ** 2
    below = curve.curve_ratio.values[curve.curve_ratio.values < 0.97]
    below = np.concatenate([np.linspace(0, below[0], 4, endpoint=False), below])
    stretch = [saddle("RNN", ratio * critical, p, "incoherent").hidden.values[0, 0, 0, 0] for ratio in below]
    curve["fluctuation"] = ("below_ratio", 2 / (2 - np.array(stretch)))
    return curve.assign_coords(below_ratio=below)


def landscapes(p: Parameters, critical: float) -> xr.Dataset:
    """−ln P/N over the order parameter, relative to the incoherent point."""
    values = np.linspace(-0.8, 0.8, p.correlations)
    lines = [
        wf.landscape(
            linear("RNN", DEPTH), endpoint(ratio * critical), temperature=p.temperature,
            along=(PAIR["state"], PAIR["state_"]), values=values, progress=False,
        ).free_energy
        for ratio in p.shown
    ]  # fmt: skip
    free = np.stack([line - line.sel(correlation=0, method="nearest") for line in lines])
    coords = {"shown_ratio": list(p.shown), "correlation": values}
    return xr.Dataset({"landscape": (("shown_ratio", "correlation"), free)}, coords=coords)


def saddle(kind: str, strength: float, p: Parameters, branch: str = "lowest") -> wf.Solution:
    """The theory's state at one strength."""
    return sampling.theory(linear(kind, DEPTH), endpoint(strength), p.temperature, branch)


def one_strength(p: Parameters, kind: str, ratio: float, critical: float, seed: int, job: kit.Job) -> Blocks:
    """Theory and sampled kernels (start, neurons, replicate, state, state_) at one strength.

    Directions of a DNN's states are independent at any width: narrow ones tell all. Its fields are called ``deep_…``.
    """
    job(f"{kind}, λ = {ratio:g} λ_c: {p.n_chains} chains from each start")
    network, task, state = linear(kind, DEPTH), endpoint(ratio * critical), saddle(kind, ratio * critical, p)
    widths = list(p.sizes.values()) if kind == "RNN" else [p.sizes["narrow"]]
    sampled, trials = [], []
    for (i, start), (j, width) in product(enumerate(STARTS), enumerate(widths)):
        begin = state if start == "theory" else "prior"
        trial = sampling.trained(p, network, task, width=width, seed=seed + 2 * i + j, quantities=WANTED, start=begin)
        trials.append((f"{kind}, λ = {ratio:g} λ_c, N = {width}, from the {start}", trial))
        sampled.append(trial.data[list(WANTED)].isel(FIRST).expand_dims(start=[start], neurons=[width]))
    data = xr.combine_by_coords(sampled)
    assert isinstance(data, xr.Dataset)
    data["theory"] = state.hidden.isel(FIRST)
    if kind == "DNN":
        data = data.isel(neurons=0, drop=True).rename({name: f"deep_{name}" for name in data.data_vars})
    return data.expand_dims(ratio=[ratio]), trials


def pairs(data: xr.Dataset) -> kit.Pairs:
    """ρ² above λ_c and N⟨ρ²⟩ below, kernels at equal states, from either start."""
    narrow, wide = (int(n) for n in data.neurons.values)
    limit = lambda field: 2 * field.sel(neurons=wide) - field.sel(neurons=narrow)  # noqa: E731
    below, above = (data.sel(ratio=[r for r in data.ratio.values if (r > 1) == side]) for side in (False, True))
    spread = 2 / (2 - below.theory.sel(state=0, state_=0))
    square = above.theory.sel(PAIR) ** 2 / kit.equal_states(above.theory).sel(state=[1, 2]).prod("state")
    for start in STARTS:
        low, high = (side.squared_correlation.sel(PAIR).sel(start=start) for side in (below, above))
        yield kit.Pair(f"N ρ² RNN below λ_c, {start}", spread, limit(low * low.neurons))
        yield kit.Pair(f"ρ² RNN above λ_c, {start}", square, limit(high))
        variance = kit.equal_states(data.hidden.sel(start=start))
        yield kit.Pair(f"H(a,a) RNN, {start}", kit.equal_states(data.theory), limit(variance))
        deep = data.deep_squared_correlation.sel(PAIR).sel(start=start)
        yield kit.Pair(f"N ρ² DNN, {start}", xr.ones_like(deep.isel(replicate=0, drop=True)), narrow * deep)


def _recurrent(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """Stable parts solid, unstable ones dotted; dashed what fluctuations make of zero."""
    x, color, width = data.curve_ratio.values, kit.COLORS["RNN"], int(data.neurons[-1])
    quiet, coherent = (data.order_parameter.sel(branch=name).values for name in ("incoherent", "coherent"))
    stable, there = data.stability.sel(branch="incoherent").values > 0, np.isfinite(coherent)
    ax.plot(np.append(1.0, x[there]), np.append(0.0, coherent[there]), color=color, label=r"theory, $N\to\infty$")
    ax.plot([0.0, *x[stable], 1.0], [0.0, *quiet[stable], 0.0], color=color)
    ax.plot(x[~stable], quiet[~stable], color=color, linestyle=":", label="unstable")
    finite = np.sqrt(data.fluctuation.values / width)
    ax.plot(data.below_ratio.values[finite < 0.4], finite[finite < 0.4], **DASHED, label=rf"theory, $N={width}$")
    _diamonds(ax, data.squared_correlation.sel(neurons=width), "RNN")


def _deep(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    narrow = int(data.neurons[0])
    ax.axhline(0, color=kit.COLORS["DNN"], label=r"theory, $N\to\infty$")
    ax.axhline(narrow**-0.5, **DASHED, label=rf"theory, $N={narrow}$")
    _diamonds(ax, data.deep_squared_correlation, "DNN")


def _diamonds(ax: kit.Axes, squares: xr.DataArray, kind: str) -> None:
    """Root mean square of the sampled correlation."""
    for (start, words), (face, size) in zip(STARTS.items(), ((kit.COLORS[kind], 4), ("none", 7))):
        samples = squares.sel(PAIR).sel(start=start).transpose("replicate", "ratio").values
        root = np.sqrt(samples.mean(axis=0))
        error = kit.stderr(samples) / (2 * root)
        bars = ax.errorbar(squares.ratio, root, yerr=error, linestyle="none", color=kit.COLORS[kind], label=words)
        bars[0].set(marker="D", markersize=size, markerfacecolor=face)
    ax.set(xlabel=r"signal $\lambda/\lambda_c$", ylabel=r"$|\rho|$ of the last two states", title=kind)
    ax.set(xlim=(0, 1.08 * float(squares.ratio[-1])), ylim=(-0.03, 1))
    ax.legend(loc="upper left")


def _landscape(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    for color, (ratio, case) in zip(kit.SERIES, kit.cases(data, "shown_ratio")):
        ax.plot(data.correlation, case.landscape, color=color, label=rf"$\lambda={ratio:g}\,\lambda_c$")
    low = float(data.landscape.min())
    ax.set(ylim=(min(1.3 * low, -0.01), max(-4 * low, 0.03)), title="RNN, landscape")
    ax.set(xlabel=r"$\rho$ of the last two states", ylabel=r"$-\ln P/N$, from $\rho=0$")
    ax.legend(loc="upper center")
