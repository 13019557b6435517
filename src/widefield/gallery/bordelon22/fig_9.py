"""Fig. 9 of Bordelon & Pehlevan (2022): independent gradients (A = B = 0) miss most of the learning in deep networks."""

from dataclasses import dataclass, replace

import xarray as xr

from widefield.gallery import kit
from widefield.gallery.bordelon22.kernels import LOSS, Kernels, TwoClasses, by_method, visible

METHODS = ("full", "independent")
FIELDS = ("loss", "feature", "label_feature")


@dataclass(frozen=True)
class Parameters(TwoClasses):
    """Linear networks of all ``depths``; the features drawn are those of the last."""

    depths: tuple[int, ...] = (2, 3, 4, 5)
    richness: float = 1.5


FULL = Parameters(n_samples=20, dimension=40, rate=0.004, steps=200)
QUICK = Parameters(width=200, replicates=64, n_samples=4, dimension=8, steps=60, depths=(2, 3))


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Both theories and networks of every depth; the verdict is that of the full theory."""

    def one_depth(i: int, depth: int) -> xr.Dataset:
        question = p.question(depth, "linear", p.richness)
        return xr.Dataset(by_method(p, question, METHODS, FIELDS, p.seed + 2 * i))

    data = kit.padded(kit.over({"depth": p.depths}, one_depth, work.jobs(len(p.depths))))
    full, independent = (kit.judge_all(pairs(data, method)) for method in METHODS)
    rejected = kit.rejections(pairs(data, "independent"))
    notes = (Kernels(p).note, f"independent gradients are {rejected}; the verdict is the full theory's")
    made = kit.made([[_losses, _features, _kernels]], data, p, [*full, *independent], size=(3.6, 3.0), notes=notes)
    return replace(made, agrees=full.agrees)


def pairs(data: xr.Dataset, method: str) -> kit.Pairs:
    """Losses and features along the labels at the marked times."""
    for depth, case in kit.cases(data, "depth"):
        at = visible(case.loss_full, data["at"].values)
        yield kit.Pair(
            f"loss {method}, L = {depth}", case[f"loss_{method}"].sel(step=at), case.loss_sampled.sel(step=at)
        )
        theory, networks = (case[f"label_feature_{part}"].dropna("layer", how="all") for part in (method, "sampled"))
        yield kit.Pair(f"yᵀΦy/P² {method}, L = {depth}", theory, networks)


def _both(ax: kit.Axes, case: xr.Dataset, field: str, color: str, label: str) -> None:
    """Full theory with networks, and dashed the independent one."""
    at = case["at"].values if field == "loss" else None
    kit.curve(ax, case[f"{field}_full"], case[f"{field}_sampled"], color=color, label=label, at=at)
    kit.curve(ax, case[f"{field}_independent"], color=color, style="--")


def _losses(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    for color, (depth, case) in zip(kit.SERIES, kit.cases(data, "depth")):
        _both(ax, case, "loss", color, f"$L={depth}$")
    kit.key(ax, "$A=B=0$")
    ax.set(xlabel="step $t$", ylabel=LOSS, title=rf"loss, $\gamma_0={p.richness:g}$")
    ax.legend()


def _features(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    for color, (layer, case) in zip(kit.SERIES, kit.cases(data.sel(depth=p.depths[-1]), "layer")):
        _both(ax, case, "label_feature", color, rf"$\ell={layer}$")
    ax.set(xlabel="step $t$", ylabel=r"$y^T\Phi^\ell y/P^2$", title=f"features, $L={p.depths[-1]}$")
    ax.set(ylim=(0, 1.3 * ax.get_ylim()[1]))
    ax.legend(ncols=3, loc="upper right")


def _kernels(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    end = data.sel(depth=p.depths[-1], at=p.steps)
    networks = end.feature_sampled.mean("replicate")
    kit.layers(
        ax, {"networks": networks, "full": end.feature_full, "$A=B=0$": end.feature_independent}, "final features"
    )
