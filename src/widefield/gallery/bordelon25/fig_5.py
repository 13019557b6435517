"""Fig. 5 of Bordelon & Pehlevan: the best learning rate of residual networks against depth, for two branch scales."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon25.losses import FASTER, POPULATION, Ensemble, Losses, Question

TITLES = {"constant": r"constant branch $\beta={:g}$", "scaled": r"scaled branch $\beta={:g}/\sqrt{{L}}$"}
REACH = 20.0  # curves start this factor below the optimum


@dataclass(frozen=True)
class Parameters(Ensemble):
    """``constant`` is β, ``scaled`` is β0; networks run at ``fractions`` of the best rate. Descent on the population.

    Networks of depth L of panel a have the seeds from ``seed`` + 100 on, of panel b from ``seed`` + 200 on.
    """

    depths: tuple[int, ...] = (2, 4, 8, 16)
    constant: float = 1.0
    scaled: float = 1.25
    steps: int = 12
    richness: float = 1.0
    width_ratio: float = 1.0
    fractions: tuple[float, ...] = (0.1, 0.25, 0.5)
    n_rates: int = 48

    def question(self, kind: str, depth: int) -> Question:
        """At a rate of one."""
        network = wf.ResNet(depth, "linear", self.constant if kind == "constant" else self.scaled / np.sqrt(depth))
        return Question(network, POPULATION, wf.Training(1.0, self.steps, richness=self.richness), self.width_ratio)


FULL = Parameters(dimension=480, replicates=300)
QUICK = Parameters(dimension=144, replicates=100, n_rates=32)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Sweeps of the rate, their optima, and networks on the stable side."""
    job = work.jobs(1 + 2 * len(p.depths))
    job("the best rates")
    best = xr.concat([best_rates(p, kind) for kind in TITLES], "branch")
    data = kit.over({"branch": TITLES, "depth": p.depths}, partial(one_depth, p, best), job)
    data = xr.merge([best, data])
    data.loss_curve.attrs["nan"] = "infinite where training diverges"
    notes = []
    for kind, case in kit.cases(data, "branch"):
        rates = case.optimal_rate.values
        path, power = ", ".join(f"{rate:.2g}" for rate in rates), kit.fitted_power(p.depths[-2:], rates[-2:])
        notes.append(f"{kind} branch: best rates {path}; between the last two depths it moves as L^{power:.2f}")
    panels: list[kit.Panel] = [*(partial(_curves, kind=kind) for kind in TITLES), _optima]
    return kit.tested([panels], data, p, Losses(p), pairs, size=(3.5, 2.9), notes=notes)


def best_rates(p: Parameters, kind: str) -> xr.Dataset:
    """``optimal_rate`` and ``maximal_rate`` over the depth, after all steps."""
    question, scaled = p.question(kind, p.depths[0])[:3], kind == "scaled"
    transfer = wf.rate_transfer(
        *question, over="depth", values=p.depths, scaled_branch=scaled, width_ratio=p.width_ratio
    )
    return transfer.data.isel(step=-1, drop=True)[["optimal_rate", "maximal_rate"]].expand_dims(branch=[kind])


def one_depth(p: Parameters, best: xr.Dataset, i: int, kind: str, depth: int) -> xr.Dataset:
    """Loss after all steps against the rate: the theory's curve, theory and networks at ``fractions`` of the best."""
    optimal, question = float(best.optimal_rate.sel(branch=kind, depth=depth)), p.question(kind, depth)
    swept, rates = optimal * np.geomspace(1 / REACH, 4, p.n_rates), optimal * np.asarray(p.fractions)
    at = np.unique(np.concatenate([swept, rates, FASTER * rates]))
    loss = wf.rate_sweep(*question[:3], rates=at, width_ratios=(p.width_ratio,)).test_loss.values[0, :, -1]
    theory, faster, curve = (loss[np.searchsorted(at, these)] for these in (rates, FASTER * rates, swept))
    seed = p.seed + 100 * (1 + i // len(p.depths)) + 10 * (i % len(p.depths))
    trials = [Losses(p).sampled(question.at(rate=rate), seed + 2 * k) for k, rate in enumerate(rates)]
    fields = {
        "curve_rate": ("point", swept), "loss_curve": ("point", curve), "rate": ("fraction", rates),
        "loss": ("fraction", theory), "loss_faster": ("fraction", faster),
        "loss_sampled": (("replicate", "fraction"), np.stack([t.test_loss.values[:, -1] for t in trials], axis=1)),
    }  # fmt: skip
    return xr.Dataset(fields, coords={"fraction": list(p.fractions)})


def pairs(data: xr.Dataset) -> kit.Pairs:
    """One row per depth and branch."""
    for kind, depth, case in kit.cases(data, "branch", "depth"):
        yield kit.Pair(f"test loss {kind} branch, L = {depth}", case.loss, case.loss_sampled)


def _curves(ax: kit.Axes, data: xr.Dataset, p: Parameters, kind: str) -> None:
    for color, (depth, case) in zip(kit.SERIES, kit.cases(data.sel(branch=kind), "depth")):
        shown = case.isel(point=case.loss_curve.values < 3 * case.loss_curve.values[0])
        ax.plot(shown.curve_rate, shown.loss_curve, color=color, label=f"$L={depth}$")
        kit.points(ax, case.rate, case.loss_sampled, color=color)
        ax.axvline(float(case.optimal_rate), color=color, linewidth=0.8, linestyle=":")
    ax.set(xscale="log", yscale="log", xlabel=r"learning rate $\eta$", ylabel="test loss at the end")
    ax.set_title(TITLES[kind].format(getattr(p, kind)))
    if kind == "scaled":
        ax.legend(loc="lower left")


def _optima(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    for color, (kind, case) in zip((kit.COLORS["DNN"], kit.COLORS["RNN"]), kit.cases(data, "branch")):
        ax.plot(case.depth, case.optimal_rate, "o-", color=color, label=f"{kind} branch, best")
        ax.plot(case.depth, case.maximal_rate, "--", color=color, label="largest stable", linewidth=1.0)
    kit.ticks_at(ax, data.depth.values)
    ax.set(yscale="log", xlabel="depth $L$", ylabel=r"learning rate $\eta$", title="the rate against depth")
    ax.legend(loc="lower left")
