"""Fig. 3 of Bordelon & Pehlevan: repeated data against fresh batches, dataset size, batch size and width."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr
from matplotlib.ticker import NullFormatter

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon25.losses import LOSSES, POPULATION, Ensemble, Losses, Question, loss_panel, marks

TICKS = (0.5, 1, 2, 4)
LOWEST = 3e-3  # training losses below are compared and not drawn


@dataclass(frozen=True)
class Parameters(Ensemble):
    """Full batches with ``label_noise`` at ν = ``width_ratio``; fresh batches without noise at ν = ``online_ratio``.

    All sizes are whole numbers at both dimensions: rounding would leave an offset that extrapolation does not remove.
    """

    depth: int = 4
    steps: int = 80
    richness: float = 2.0
    rate: float = 0.02
    label_noise: float = 0.5
    width_ratio: float = 1.0
    data_ratios: tuple[float, ...] = (0.5, 0.75, 2.0)
    grid: tuple[float, ...] = tuple(np.geomspace(0.35, 4.0, 21).tolist())
    shown: tuple[int, ...] = (5, 20, 80)
    online_richness: float = 1.0
    online_rate: float = 0.015
    online_ratio: float = 0.5
    batch_ratios: tuple[float, ...] = (0.25, 0.5, 2.0)
    batch_ratio: float = 0.25
    width_ratios: tuple[float, ...] = (0.25, 0.5, 1.0)

    def repeated(self, data_ratio: float) -> Question:
        teacher = wf.Teacher(data_ratio=data_ratio, label_noise=self.label_noise)
        training = wf.Training(self.rate, self.steps, richness=self.richness)
        return Question(wf.DNN(self.depth, "linear"), teacher, training, self.width_ratio)

    def online(self, teacher: wf.Teacher, width_ratio: float) -> Question:
        training = wf.Training(self.online_rate, self.steps, richness=self.online_richness)
        return Question(wf.DNN(self.depth, "linear"), teacher, training, width_ratio)


FULL = Parameters()
QUICK = Parameters(dimension=96, replicates=100)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks of the four panels."""
    experiment, batch = Losses(p), lambda ratio: wf.Teacher(batch_ratio=ratio)
    online = {alpha: p.online(batch(alpha), p.online_ratio) for alpha in p.batch_ratios}
    wide = {nu: p.online(batch(p.batch_ratio), nu) for nu in p.width_ratios}
    families = (
        kit.Family(
            "repeated", "data_ratio", "GD, α = {}", LOSSES, {alpha: p.repeated(alpha) for alpha in p.data_ratios}
        ),
        kit.Family("online", "batch_ratio", "SGD, α_B = {}", ("test_loss",), online, seed=100),
        kit.Family("wide", "width_ratio", "SGD, ν = {}", ("test_loss",), wide, seed=200),
    )
    job = work.jobs(sum(len(family.members) for family in families) + 1)
    data = kit.measure(families, experiment, job)
    job("theory over a grid of dataset sizes")
    grid = [experiment.theory(p.repeated(alpha)).test_loss.sel(step=list(p.shown)) for alpha in p.grid]
    data["over_data"] = xr.concat(grid, "grid").assign_coords(grid=list(p.grid)).rename(step="shown")
    data["online_limit"] = experiment.theory(p.online(POPULATION, p.online_ratio)).test_loss
    limit = {"online_limit": ("--", r"$\alpha_B=\infty$")}
    batches = rf"online SGD, $\nu={p.online_ratio:g}$", rf"online SGD, $\alpha_B={p.batch_ratio:g}$"
    panels = (
        _repeated,
        _over_data,
        partial(_online, family=families[1], symbol=r"\alpha_B", title=batches[0], limits=limit),
        partial(_online, family=families[2], symbol=r"\nu", title=batches[1], limits={}),
    )
    return kit.tested([panels], data, p, experiment, families, size=(3.0, 2.9))


def _repeated(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """Test and train loss, which part company the earlier the fewer the data."""
    for loss, style in zip(LOSSES, ("-", "--")):
        kit.curves(ax, data, f"repeated_{loss}", "data_ratio", r"\alpha", at=marks(data), style=style)
    kit.key(ax, "train")
    ax.set(xlabel="step $t$", ylabel="loss", title=rf"GD, $\nu={p.width_ratio:g}$, $\sigma^2={p.label_noise:g}$")
    _logarithmic(ax, n_columns=2)
    ax.set_ylim(LOWEST, 30)  # room for the legend


def _over_data(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """Test loss against the number of data at some times: long training makes it non-monotonic."""
    for color, (step, case) in zip(kit.SERIES, kit.cases(data, "shown")):
        kit.curve(ax, case.over_data, case.repeated_test_loss_sampled.sel(step=step), color=color, label=rf"$t={step}$")
    kit.ticks_at(ax, TICKS)
    ax.set(xlabel=r"data per dimension $\alpha$", ylabel="test loss", title="GD, test loss at some times")
    ax.legend(loc="upper right")


def _online(
    ax: kit.Axes, data: xr.Dataset, p: Parameters, family: kit.Family, symbol: str, title: str, limits: dict
) -> None:
    loss_panel(ax, data, p, family, symbol, title, limits)
    _logarithmic(ax)


def _logarithmic(ax: kit.Axes, n_columns: int = 1) -> None:
    ax.set(yscale="log")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.legend(ncols=n_columns, loc="upper right")
