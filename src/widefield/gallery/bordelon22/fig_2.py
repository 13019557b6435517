"""Fig. 2 of Bordelon & Pehlevan (2022): deep linear networks, their losses and kernels across depth and richness."""

from dataclasses import dataclass
from functools import partial

import xarray as xr

from widefield.gallery import kit
from widefield.gallery.bordelon22.kernels import Kernels, TwoClasses, cosine, kernel_panels, loss_panel

FIELDS = ("loss", "label_feature", "gradient_trace")


@dataclass(frozen=True)
class Parameters(TwoClasses):
    """Networks of all ``depths`` at one ``richness``, and of the last depth at all ``richnesses``."""

    depths: tuple[int, ...] = (1, 2, 3, 4, 5)
    richness: float = 1.0
    richnesses: tuple[float, ...] = (0.25, 0.5, 2.0)


FULL = Parameters(n_samples=20, dimension=40, rate=0.003, steps=300)
QUICK = Parameters(
    width=200, replicates=64, n_samples=4, dimension=8, steps=60, depths=(1, 2, 3), richnesses=(0.25, 2.0)
)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks across depths and across richnesses."""
    experiment = Kernels(p)
    deep = {depth: p.question(depth, "linear", p.richness) for depth in p.depths}
    rich = {gamma: deep[p.depths[-1]].at_richness(gamma) for gamma in p.richnesses}
    families = (
        kit.Family("deep", "depth", "L = {}", FIELDS, deep),
        kit.Family("rich", "richness", "γ0 = {}", FIELDS, rich, seed=100),
    )
    data = kit.measure(families, experiment, work.jobs(len(deep) + len(rich)))
    depths = partial(loss_panel, title=rf"loss, $\gamma_0={p.richness:g}$", name="deep", dim="depth", symbol="L")
    richnesses = partial(loss_panel, title=f"loss, $L={p.depths[-1]}$")
    title = rf"final ${{}}^\ell$, $L={p.depths[-1]}$"
    kernels = kernel_panels({"depth": p.depths[-1]}, title, "deep", kernels=("feature",))
    return kit.tested([[depths, richnesses, _displacement], kernels], data, p, experiment, families, size=(3.5, 2.8))


def _displacement(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """Cosine of each layer's kernel with its first, averaged over layers."""
    for color, (depth, case) in zip(kit.SERIES, kit.cases(data, "depth")):
        for kernel, look in ((case.deep_feature, "-"), (case.deep_feature_sampled.mean("replicate"), "o")):
            line = cosine(kernel, kernel.sel(at=0)).mean("layer")
            label = f"$L={depth:g}$" if look == "-" else None
            ax.plot(data["at"], line, look, markersize=3.5, color=color, label=label)
    ax.set(xlabel="step $t$", ylabel=r"cosine of $\Phi^\ell(t)$ and $\Phi^\ell(0)$")
    ax.set(title="displacement of the features")
    ax.legend()
