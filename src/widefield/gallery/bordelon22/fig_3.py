"""Fig. 3 of Bordelon & Pehlevan (2022): with weight decay relu networks end at a kernel that depends on the richness."""

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from widefield.gallery import kit
from widefield.gallery.bordelon22.kernels import Kernels, TwoClasses, loss_panel, rich

FIELDS = ("loss", "label_feature", "feature_trace")


@dataclass(frozen=True)
class Parameters(TwoClasses):
    """One hidden layer; ``paths`` is that of one of the theory's eight batches."""

    richnesses: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    weight_decay: float = 1.0
    paths: int = 8192


FULL = Parameters(steps=500)
QUICK = Parameters(width=300, replicates=48, n_samples=4, dimension=8, rate=0.05, steps=160, paths=1024)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks at each richness, to the end of training."""
    experiment, question = Kernels(p, paths=p.paths), p.question(1, "relu", p.richnesses[0])
    question = question._replace(training=replace(question.training, weight_decay=p.weight_decay))
    families = rich(question, p.richnesses, FIELDS)
    data = kit.measure(families, experiment, work.jobs(len(p.richnesses)))
    end = data.isel(at=-1, drop=True)
    f, kernel = end.rich_prediction.isel(output=0, drop=True), end.rich_feature.isel(layer=0, drop=True)
    push = np.einsum("rpq,rq->rp", kernel.transpose("richness", "sample", "sample_"), p.task.labels()[:, 0, 0] - f)
    data["readout_balance"] = (("richness", "sample"), push / p.weight_decay)
    note = "ΦΔ/λ is what a readout at rest gives; the last row compares it with f at the end of the theory"
    panels = [[_losses, _features, _last]]
    return kit.tested(panels, data, p, experiment, families, more=balance, size=(3.4, 2.9), notes=(note,))


def balance(data: xr.Dataset) -> kit.Pairs:
    """Of the readout, at the end of the theory."""
    yield kit.Pair("f = ΦΔ/λ at the end", data.rich_prediction.isel(at=-1, output=0), data.readout_balance)


def _losses(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    loss_panel(ax, data, p, rf"relu, $L=1$, $\lambda={p.weight_decay:g}$")
    ax.set(ylim=(0, 1.35 * float(data.rich_loss.isel(step=0, richness=0))))
    ax.legend(ncols=2, loc="upper right")


def _features(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    kit.curves(ax, data.isel(layer=0), "rich_label_feature", "richness", r"\gamma_0")
    ax.set(xlabel="step $t$", ylabel=r"$y^T\Phi y/P^2$", title="features along the labels", yscale="log")


def _last(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """The last loss against the richness."""
    end, trivial = data.isel(step=-1), float(data.rich_loss.isel(step=0, richness=0))
    ax.plot(data.richness, end.rich_loss, color=kit.COLORS["theory"])
    kit.points(ax, data.richness, end.rich_loss_sampled, color=kit.SERIES[0])
    ax.axhline(trivial, color=kit.COLORS["theory"], linestyle=":", label=r"$f=0$, the limit $\gamma_0\to0$")
    ax.set(xlabel=r"richness $\gamma_0$", ylabel="last loss", ylim=(0, None), title="fixed point")
    ax.legend()
