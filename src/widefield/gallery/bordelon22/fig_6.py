"""Fig. 6 of Bordelon & Pehlevan (2022): one hidden relu layer, its loss, densities of pre-activations and pre-gradients, kernels."""

from dataclasses import dataclass
from functools import partial

import xarray as xr

from widefield.gallery import kit
from widefield.gallery.bordelon22 import kernels
from widefield.gallery.bordelon22.kernels import LAZY, WANTED, Kernels, TwoClasses

FIELDS = ("loss", "label_feature", "gradient_trace", "density", "gradient_density")


@dataclass(frozen=True)
class Parameters(TwoClasses):
    """One hidden layer; ``paths`` is that of one of the theory's eight batches."""

    width: int = 2000
    richnesses: tuple[float, ...] = (0.5, 1.0, 3.0)
    paths: int = 16384


FULL = Parameters(steps=200)
QUICK = Parameters(
    width=400, replicates=48, richnesses=(1.0, 3.0), n_samples=4, dimension=8, rate=0.05, steps=80, paths=4096
)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks at each richness, and the static limit."""
    job, experiment = work.jobs(len(p.richnesses) + 1), Kernels(p, (*WANTED, "preactivation", "pregradient"), p.paths)
    question = p.question(1, "relu", p.richnesses[0])
    families = kernels.rich(question, p.richnesses, FIELDS)
    data = kit.measure(families, experiment, job)
    data = data.assign(kernels.lazy_limit(experiment, question, job))
    note = f"lazy networks have γ0 = {LAZY:g}; p(h) and p(z) are those of the first sample at the end"
    loss = partial(kernels.loss_panel, title="relu, $L=1$")
    densities = [partial(_density, name=name) for name in ("density", "gradient_density")]
    final = kernels.kernel_panels({"richness": p.richnesses[-1]}, "final ${}$", times=())
    panels: kit.Panels = [[loss, *densities, *final]]
    return kit.tested(panels, data, p, experiment, families, more=kernels.lazy_pair, size=(3.2, 2.9), notes=(note,))


def _density(ax: kit.Axes, data: xr.Dataset, p: Parameters, name: str) -> None:
    """Of the first sample, in the hidden layer at the end of training."""
    for color, gamma in zip(kit.SERIES, p.richnesses):
        parts = (data[f"rich_{name}{part}"].sel(richness=gamma).isel(layer=0) for part in ("", "_sampled"))
        kit.density(ax, *parts, color=color)
    symbol, word = ("h", "pre-activations") if name == "density" else ("z", "pre-gradients")
    ax.set(xlabel=f"${symbol}$", ylabel=f"$p({symbol})$", title=f"{word} at the end", ylim=(1e-3, 3))
