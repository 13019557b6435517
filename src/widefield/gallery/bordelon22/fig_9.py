"""Fig. 9 of Bordelon & Pehlevan (2022): independent gradients (A = B = 0) miss most of the learning in deep networks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import xarray as xr

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import kit
from widefield.gallery.bordelon22.kernels import Ensemble, Kernels, Question, two_classes, visible
from widefield.plot.style import SERIES

METHODS = {"full": "-", "independent": "--"}
FIELDS = ("loss", "feature", "label_feature")


@dataclass(frozen=True)
class Parameters(Ensemble):
    """Linear networks of all ``depths``; the features drawn are those of the last."""

    depths: tuple[int, ...] = (2, 3, 4, 5)
    richness: float = 1.5
    n_samples: int = 20
    dimension: int = 40
    rate: float = 0.004
    steps: int = 200


FULL = Parameters()
QUICK = Parameters(width=200, replicates=64, depths=(2, 3), n_samples=4, dimension=8, rate=0.02, steps=60)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Both theories and networks of every depth; the verdict is that of the full theory."""
    job, experiment, blocks = work.jobs(len(p.depths)), Kernels(p), []
    task = two_classes(p.n_samples, p.dimension, p.seed)
    for i, depth in enumerate(p.depths):
        job(f"L = {depth}")
        question = Question.of(wf.DNN(depth, "linear"), task, p.rate, p.steps, p.richness)
        parts = {method: experiment.theory(question, method=method) for method in METHODS}
        parts["sampled"] = experiment.sampled(question, p.seed + 2 * i)
        named = {f"{field}_{name}": part[field] for name, part in parts.items() for field in FIELDS}
        blocks.append(xr.Dataset(named).expand_dims(depth=[depth]))
    data = kit.padded(xr.concat(blocks, "depth", join="outer"))
    full, independent = (judge_all(pairs(data, method)) for method in METHODS)
    rejected = kit.rejections(pairs(data, "independent"))
    notes = (experiment.note, f"independent gradients are {rejected}; the verdict is the full theory's")
    made = kit.made([[_losses, _features, _kernels]], data, p, [*full, *independent], size=(3.6, 3.0), notes=notes)
    return replace(made, agrees=full.agrees)


def pairs(data: xr.Dataset, method: str) -> Iterator[Pair]:
    """Losses and features along the labels at the marked times."""
    for depth in data.depth.values:
        case = data.sel(depth=depth)
        at = visible(case.loss_full, data["at"].values)
        yield Pair(f"loss {method}, L = {depth}", case[f"loss_{method}"].sel(step=at), case.loss_sampled.sel(step=at))
        theory, networks = (case[f"label_feature_{part}"].dropna("layer", how="all") for part in (method, "sampled"))
        yield Pair(f"yᵀΦy/P² {method}, L = {depth}", theory, networks)


def _both(ax: kit.Axes, case: xr.Dataset, field: str, color: str, label: str) -> None:
    """Full theory with networks, and dashed the independent one."""
    at = case["at"].values if field == "loss" else None
    kit.curve(ax, case[f"{field}_full"], case[f"{field}_sampled"], color=color, label=label, at=at)
    kit.curve(ax, case[f"{field}_independent"], color=color, style="--")


def _losses(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    for color, depth in zip(SERIES, data.depth.values):
        _both(ax, data.sel(depth=depth), "loss", color, f"$L={depth}$")
    kit.key(ax, "$A=B=0$")
    ax.set(xlabel="step $t$", ylabel=r"loss $\frac{1}{2}\Sigma\Delta^2$", title=rf"loss, $\gamma_0={p.richness:g}$")
    ax.legend()


def _features(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    for color, layer in zip(SERIES, data.layer.values):
        _both(ax, data.sel(depth=p.depths[-1], layer=layer), "label_feature", color, rf"$\ell={layer}$")
    ax.set(xlabel="step $t$", ylabel=r"$y^T\Phi^\ell y/P^2$", title=f"features, $L={p.depths[-1]}$")
    ax.set(ylim=(0, 1.3 * ax.get_ylim()[1]))
    ax.legend(ncols=3, loc="upper right")


def _kernels(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    end = data.sel(depth=p.depths[-1], at=p.steps)
    rows = {
        "networks": end.feature_sampled.mean("replicate"),
        "full": end.feature_full,
        "$A=B=0$": end.feature_independent,
    }
    kit.layers(ax, rows, "final features")
