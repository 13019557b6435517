"""Fig. 2 of Bordelon & Pehlevan: the best learning rate moves with width in NTK parameterization and stays put in μP."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon25.losses import PARAMETERIZATIONS, Ensemble, Losses, Question, richness_at


@dataclass(frozen=True)
class Parameters(Ensemble):
    """Full-batch descent on α = ``data_ratio``; γ0 = ``richness`` in μP and ``richness``/√ν in NTK parameterization.

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

    @property
    def question(self) -> Question:
        """In μP, at a rate of one."""
        training = wf.Training(1.0, self.steps, richness=self.richness)
        return Question(wf.DNN(self.depth, "linear"), wf.Teacher(data_ratio=self.data_ratio), training)


FULL = Parameters()
QUICK = Parameters(dimension=96, replicates=120, trained=(1.0, 2.0))


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Sweeps, optima and networks in both parameterizations."""
    job, blocks, drifts = work.jobs(len(PARAMETERIZATIONS) * (1 + len(p.trained))), [], []
    for i, (name, words) in enumerate(PARAMETERIZATIONS.items()):
        job(f"{words}: sweeps and optima")
        sweep, drift = sweeps(p, name)
        trained = kit.over({"trained": p.trained}, partial(at_fractions, p, name, i, sweep[f"{name}_optimal"]), job)
        drifts.append(f"{words}: the best rate moves as ν^{drift}")
        blocks += [sweep, trained]
    panels = [partial(_sweeps, name=name) for name in PARAMETERIZATIONS]
    return kit.tested([panels], xr.merge(blocks), p, Losses(p), pairs, size=(3.6, 3.0), notes=drifts)


def sweeps(p: Parameters, name: str) -> tuple[xr.Dataset, str]:
    """Test loss after the last step over (width_ratio, rate), the best and the largest stable rate; the power of the best."""
    nouns = p.question[:3]
    sweep = wf.rate_sweep(*nouns, rates=p.rates, width_ratios=p.width_ratios, parameterization=name)
    moved = wf.rate_transfer(*nouns, over="width", values=p.width_ratios, parameterization=name).data.isel(step=-1)
    fields = {"sweep": sweep.test_loss.isel(step=-1), "optimal": moved.optimal_rate, "best_loss": moved.test_loss}
    fields["maximal"] = moved.maximal_rate
    data = xr.Dataset({f"{name}_{key}": field.drop_vars("step", errors="ignore") for key, field in fields.items()})
    data[f"{name}_sweep"].attrs["nan"] = "infinite where training diverges"
    return data, f"{float(moved.drift):.2f} ± {float(moved.drift_error):.2f}"


def at_fractions(p: Parameters, name: str, i: int, optimal: xr.DataArray, j: int, width_ratio: float) -> xr.Dataset:
    """Loss after the last step of theory and networks at fractions of the best rate."""
    gamma, best, blocks = richness_at(p.richness, width_ratio, name), float(optimal.sel(width_ratio=width_ratio)), []
    for k, fraction in enumerate(p.fractions):
        question = p.question.at(rate=fraction * best, richness=gamma)._replace(width_ratio=width_ratio)
        parts = Losses(p).parts(question, p.seed + 100 * i + 10 * j + 2 * k)
        fields = {f"{name}{suffix}": part.test_loss.isel(step=-1, drop=True) for suffix, part in parts.items()}
        blocks.append(xr.Dataset(fields | {f"{name}_rate": fraction * best}).expand_dims(fraction=[fraction]))
    return xr.concat(blocks, "fraction")


def pairs(data: xr.Dataset) -> kit.Pairs:
    """One pair per parameterization and width, over the fractions of the best rate."""
    for name, words in PARAMETERIZATIONS.items():
        for width_ratio, case in kit.cases(data, "trained"):
            yield kit.Pair(f"test loss {words}, ν = {width_ratio:g}", case[name], case[f"{name}_sampled"])


def _sweeps(ax: kit.Axes, data: xr.Dataset, p: Parameters, name: str) -> None:
    """Loss against the rate with the optimum marked, and networks."""
    for color, (nu, case) in zip(kit.SERIES, kit.cases(data, "width_ratio")):
        loss, best = case[f"{name}_sweep"], (float(case[f"{name}_optimal"]), float(case[f"{name}_best_loss"]))
        ax.plot(data.rate, loss.where(np.isfinite(loss)), color=color, linewidth=0.9, label=rf"$\nu={nu:g}$")
        ax.plot(*best, marker="*", markersize=9, color=color, markeredgecolor="black", markeredgewidth=0.5, zorder=4)
        if nu in data.trained:
            networks = data.sel(trained=nu)
            kit.points(ax, networks[f"{name}_rate"], networks[f"{name}_sampled"], color=color)
    titles = {"ntk": rf"NTK, $\gamma_0={p.richness:g}/\sqrt{{\nu}}$", "mup": rf"$\mu$P, $\gamma_0={p.richness:g}$"}
    ax.set(xscale="log", yscale="log", title=titles[name], ylim=(0.01, 1.5))
    ax.set(xlabel=r"learning rate $\eta$", ylabel=f"test loss after {p.steps} steps")
    if name == "ntk":
        ax.legend(loc="lower left")
