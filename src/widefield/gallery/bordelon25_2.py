"""Fig. 2 of Bordelon & Pehlevan: the best learning rate moves with width in NTK parameterisation and stays put in μP."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bordelon25
from widefield.gallery.bordelon25 import FASTER, Networks, Run
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

NAMES = {"ntk": "NTK", "mup": "μP"}


@dataclass(frozen=True)
class Parameters(Networks):
    """Full-batch descent on α = ``data_ratio``; γ0 = ``richness`` in μP and ``richness``/√ν in NTK parameterisation.

    Networks of the widths ``trained`` run at ``fractions`` of the best rate at their width. Beyond the first edge of
    stability the loss is jagged and networks of finite size are far from their limit; at ν = ½ the best rate lies there.
    """

    depth: int = 4
    richness: float = 3.0
    data_ratio: float = 2.0
    steps: int = 12
    width_ratios: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 16.0)
    trained: tuple[float, ...] = (1.0, 2.0, 4.0)
    fractions: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75)
    rates: tuple[float, ...] = tuple(np.geomspace(2e-3, 0.2, 96).tolist())


FULL = Parameters()
QUICK = Parameters(dimension=96, replicates=120, trained=(1.0, 2.0))


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Sweeps, optima and networks in both parameterisations."""
    import xarray as xr

    p, blocks, drifts = parameters, [], []
    jobs = bordelon25.counter(report, len(NAMES) * (1 + len(p.trained)))
    for i, name in enumerate(NAMES):
        jobs(f"{NAMES[name]}: sweeps and optima")
        found, note = sweeps(p, name)
        drifts.append(note)
        trained = []
        for j, width_ratio in enumerate(p.trained):
            jobs(f"{NAMES[name]}: networks at ν = {width_ratio:g}")
            best = float(found[f"{name}_optimal"].sel(width_ratio=width_ratio))
            trained.append(at_fractions(p, name, width_ratio, best, seed=p.seed + 100 * i + 10 * j))
        blocks += [found, xr.concat(trained, "trained")]
    data = xr.merge(blocks)
    notes = (p.note, *drifts, bordelon25.power(data, pairs))
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(pairs(data)).rows))


def sweeps(p: Parameters, name: str) -> tuple["xr.Dataset", str]:
    """Test loss after the last step over (width_ratio, rate), the best and the largest stable rate; the drift in words."""
    import xarray as xr

    common: dict[str, Any] = {"parameterization": name, "richness": p.richness, "data_ratio": p.data_ratio}
    network = wf.DNN(p.depth, "linear")
    loss = wf.rate_sweep(network, rates=p.rates, steps=p.steps, width_ratios=p.width_ratios, **common).test_loss
    moved = wf.transfer(network, over="width", values=p.width_ratios, steps=p.steps, **common).data.isel(step=-1)
    drift = f"{NAMES[name]}: the best rate moves as ν^{float(moved.drift):.2f} ± {float(moved.drift_error):.2f}"
    fields = {
        f"{name}_sweep": loss.isel(step=-1),
        f"{name}_optimal": moved.optimal_rate,
        f"{name}_best_loss": moved.test_loss,
        f"{name}_maximal": moved.maximal_rate,
    }
    data = xr.Dataset({key: field.drop_vars("step", errors="ignore") for key, field in fields.items()})
    data[f"{name}_sweep"].attrs["nan"] = "infinite where training diverges"
    return data, drift


def at_fractions(p: Parameters, name: str, width_ratio: float, best: float, seed: int) -> "xr.Dataset":
    """Loss after the last step of theory and networks at fractions of the best rate."""
    import xarray as xr

    gamma = p.richness / np.sqrt(width_ratio) if name == "ntk" else p.richness
    run = Run(wf.DNN(p.depth, "linear"), best, p.steps, gamma, width_ratio, data_ratio=p.data_ratio)
    blocks = []
    for i, fraction in enumerate(p.fractions):
        own = replace(run, rate=fraction * best)
        parts = {"": own.theory(), "_faster": replace(own, rate=FASTER * own.rate).theory()}
        parts["_sampled"] = own.trained(p, seed + 2 * i)
        fields = {f"{name}{suffix}": part.test_loss.isel(step=-1, drop=True) for suffix, part in parts.items()}
        blocks.append(xr.Dataset(fields | {f"{name}_rate": own.rate}).expand_dims(fraction=[fraction]))
    return xr.concat(blocks, "fraction").expand_dims(trained=[width_ratio])


def pairs(data: "xr.Dataset") -> Iterator[Pair]:
    """One pair per parameterisation and width, over the fractions of the best rate."""
    for name, words in NAMES.items():
        for width_ratio in data.trained.values:
            own = {"trained": width_ratio}
            yield Pair(f"test loss {words}, ν = {width_ratio:g}", data[name].sel(own), data[f"{name}_sampled"].sel(own))


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Sweeps with the optima marked, networks below them."""
    titles = {"ntk": rf"NTK, $\gamma_0={p.richness:g}/\sqrt{{\nu}}$", "mup": rf"$\mu$P, $\gamma_0={p.richness:g}$"}
    with house_style():
        figure, axes = panels(1, 2, size=(3.6, 3.0))
        for ax, name, mark in zip(axes[0], NAMES, "ab", strict=True):
            for color, value in zip(SERIES, data.width_ratio.values, strict=False):
                _sweep(ax, data, name, value, color)
            letter(ax, mark)
            ax.set(xscale="log", yscale="log", title=titles[name], ylim=(0.01, 1.5))
            ax.set(xlabel=r"learning rate $\eta$", ylabel=f"test loss after {p.steps} steps")
        axes[0, 0].legend(fontsize=7, loc="lower left")
    return figure


def _sweep(ax: "Axes", data: "xr.Dataset", name: str, width_ratio: float, color: str) -> None:
    own = {"width_ratio": width_ratio}
    loss = data[f"{name}_sweep"].sel(own)
    ax.plot(data.rate, loss.where(np.isfinite(loss)), color=color, linewidth=0.9, label=rf"$\nu={width_ratio:g}$")
    best = float(data[f"{name}_optimal"].sel(own)), float(data[f"{name}_best_loss"].sel(own))
    ax.plot(*best, marker="*", markersize=9, color=color, markeredgecolor="black", markeredgewidth=0.5, zorder=4)
    if width_ratio in data.trained:
        sampled = data[f"{name}_sampled"].sel(trained=width_ratio)
        bordelon25.points(ax, data[f"{name}_rate"].sel(trained=width_ratio), sampled, color=color)
