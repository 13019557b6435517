"""Fig. 4 of Bordelon & Pehlevan (2022): approximations of the theory against the whole of it, across richness."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import xarray as xr

from widefield.gallery import kit
from widefield.gallery.bordelon22.kernels import LOSS, Kernels, TwoClasses, by_method, visible

METHODS = {"full": "-", "independent": "--", "perturbative": "-.", "lazy": ":"}
FIELDS = ("loss", "ntk", "label_feature")
NOTE = "rows of an approximation that say no show where it stops; the verdict is that of the full theory"


@dataclass(frozen=True)
class Parameters(TwoClasses):
    """Losses and features are drawn at ``shown``, one of the ``richnesses``."""

    depth: int = 5
    richnesses: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0)
    shown: float = 1.0


FULL = Parameters(n_samples=40, dimension=80, rate=0.002, steps=400)
QUICK = Parameters(
    width=200, replicates=64, n_samples=4, dimension=8, steps=60, depth=3, richnesses=(0.25, 0.5, 1.0, 2.0)
)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Four theories and networks at every richness; the verdict is that of the full theory."""
    data = kit.over({"richness": p.richnesses}, partial(one_richness, p), work.jobs(len(p.richnesses)))
    full, *others = (kit.judge_all(pairs(data, method)) for method in METHODS)
    rows = [row for comparison in (full, *others) for row in comparison]
    panels = [_losses, _layers, _kernel_errors, _loss_errors]
    made = kit.made([panels], data, p, rows, size=(3.1, 2.9), notes=(Kernels(p).note, NOTE))
    return replace(made, agrees=full.agrees)


def one_richness(p: Parameters, i: int, gamma: float) -> xr.Dataset:
    """All methods; the static theory's features are the first ones."""
    question = p.question(p.depth, "linear", gamma)
    fields = by_method(p, question, METHODS, FIELDS, p.seed + 2 * i)
    fields["label_feature_lazy"] = fields["label_feature_full"].isel(at=0, drop=True).expand_dims(at=question.at)
    return xr.Dataset(fields)


def pairs(data: xr.Dataset, method: str) -> kit.Pairs:
    """Losses at the marked times and the final tangent kernel, one pair per richness."""
    for gamma, case in kit.cases(data, "richness"):
        words, at = f"{method}, γ0 = {gamma:g}", visible(case.loss_full, data["at"].values)
        yield kit.Pair(f"loss {words}", case[f"loss_{method}"].sel(step=at), case.loss_sampled.sel(step=at))
        yield kit.Pair(f"final NTK {words}", case[f"ntk_{method}"].isel(at=-1), case.ntk_sampled.isel(at=-1))


def _losses(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    case = data.sel(richness=p.shown)
    _lines(ax, case, "loss", "step", case.loss_sampled.sel(step=data["at"].values))
    ax.set(xlabel="step $t$", ylabel=LOSS, title=rf"loss, $\gamma_0={p.shown:g}$")
    ax.legend()


def _layers(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """Features along the labels, layer by layer; the perturbative theory has no features here."""
    end = data.sel(richness=p.shown, at=p.steps).assign_coords(layer=np.arange(1, p.depth + 1))
    _lines(ax, end, "label_feature", "layer", end.label_feature_sampled)
    title = rf"features, $\gamma_0={p.shown:g}$"
    ax.set(xlabel=r"layer $\ell$", ylabel=r"$y^T\Phi^\ell y/P^2$ at the end", title=title, xticks=end.layer)


def _lines(ax: kit.Axes, data: xr.Dataset, field: str, dim: str, samples: xr.DataArray) -> None:
    """One field of all theories that have it, and of networks."""
    for color, (method, style) in zip(kit.SERIES, METHODS.items()):
        if f"{field}_{method}" in data:
            ax.plot(data[dim], data[f"{field}_{method}"], color=color, linestyle=style, label=method)
    kit.points(ax, samples[dim], samples, color=kit.COLORS["theory"], label="networks")


def _kernel_errors(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """Distance of the final tangent kernel from that of networks, relative to it."""
    end = data.isel(at=-1)
    mean, many = end.ntk_sampled.mean("replicate"), end.ntk_sampled
    norm = lambda field: np.sqrt((field**2).sum(("sample", "sample_")))  # noqa: E731
    _against_richness(ax, data, lambda method: norm(end[f"ntk_{method}"] - mean) / norm(mean))
    noise = norm(many.std("replicate", ddof=1)) / np.sqrt(many.sizes["replicate"]) / norm(mean)
    ax.fill_between(
        data.richness, 0, noise, color=kit.COLORS["theory"], alpha=0.2, linewidth=0, label="error of networks"
    )
    ax.set(ylabel="relative error", title="final NTK")
    ax.legend(loc="upper left")


def _loss_errors(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """Largest error of the loss along training, relative to the first loss."""
    marked = data.sel(step=data["at"].values)
    mean = marked.loss_sampled.mean("replicate")
    _against_richness(ax, data, lambda method: abs(marked[f"loss_{method}"] - mean).max("step") / mean.sel(step=0))
    ax.set(ylabel=r"largest error / $\mathcal{L}(0)$", title="loss")


def _against_richness(ax: kit.Axes, data: xr.Dataset, error: Callable[[str], xr.DataArray]) -> None:
    for color, (method, style) in zip(kit.SERIES, METHODS.items()):
        ax.plot(data.richness, error(method), color=color, linestyle=style, marker="o", markersize=3)
    ax.set(yscale="log", xlabel=r"richness $\gamma_0$")
    kit.ticks_at(ax, data.richness.values)
