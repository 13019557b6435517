"""Fig. 2 of Bordelon & Pehlevan (2022): deep linear networks, their losses and kernels across depth and richness."""

from dataclasses import dataclass
from functools import partial

import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon22.kernels import (
    Ensemble,
    Kernels,
    Question,
    cosine,
    final_panel,
    loss_panel,
    times_panel,
    two_classes,
)
from widefield.plot.style import SERIES

FIELDS = ("loss", "label_feature", "gradient_trace")


@dataclass(frozen=True)
class Parameters(Ensemble):
    """Networks of all ``depths`` at one ``richness``, and of the last depth at all ``richnesses``."""

    depths: tuple[int, ...] = (1, 2, 3, 4, 5)
    richness: float = 1.0
    richnesses: tuple[float, ...] = (0.25, 0.5, 2.0)
    n_samples: int = 20
    dimension: int = 40
    rate: float = 0.003
    steps: int = 300


FULL = Parameters()
QUICK = Parameters(
    width=200, replicates=64, depths=(1, 2, 3), richnesses=(0.25, 2.0), n_samples=4, dimension=8, rate=0.02, steps=60
)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks across depths and across richnesses."""
    task, experiment = two_classes(p.n_samples, p.dimension, p.seed), Kernels(p)
    deep = {L: Question.of(wf.DNN(L, "linear"), task, p.rate, p.steps, p.richness) for L in p.depths}
    rich = {gamma: deep[p.depths[-1]].at_richness(gamma) for gamma in p.richnesses}
    families = (
        kit.Family("deep", "depth", "L = {}", FIELDS, deep),
        kit.Family("rich", "richness", "γ0 = {}", FIELDS, rich, seed=100),
    )
    data = kit.measure(families, experiment, work.jobs(len(deep) + len(rich)))
    last = {"depth": p.depths[-1]}
    depths = partial(loss_panel, title=rf"loss, $\gamma_0={p.richness:g}$", name="deep", dim="depth", symbol="L")
    richnesses = partial(loss_panel, title=f"loss, $L={p.depths[-1]}$")
    final = partial(
        final_panel, where=last, kernel="feature", title=rf"final ${{}}^\ell$, $L={p.depths[-1]}$", name="deep"
    )
    times = [partial(times_panel, where=last, kernel=kernel, name="deep") for kernel in ("feature", "gradient")]
    panels: kit.Panels = [[depths, richnesses, _displacement], [final, *times]]
    return kit.tested(panels, data, p, experiment, families, size=(3.5, 2.8))


def _displacement(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """Cosine of each layer's kernel with its first, averaged over layers."""
    for color, depth in zip(SERIES, data.depth.values):
        case = data.sel(depth=depth)
        theory, networks = case.deep_feature, case.deep_feature_sampled.mean("replicate")
        for kernel, look in ((theory, "-"), (networks, "o")):
            line = cosine(kernel, kernel.sel(at=0)).mean("layer")
            label = f"$L={depth:g}$" if look == "-" else None
            ax.plot(data["at"], line, look, markersize=3.5, color=color, label=label)
    ax.set(
        xlabel="step $t$", ylabel=r"cosine of $\Phi^\ell(t)$ and $\Phi^\ell(0)$", title="displacement of the features"
    )
    ax.legend()
