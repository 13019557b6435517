"""Fig. 1 of Bordelon & Pehlevan (2022): three tanh layers on images, the whole training run and its convergence in N.

Handwritten digits, which ship with scikit-learn, unless a folder with the paper's CIFAR-10 is given.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bordelon22
from widefield.gallery.bordelon22 import WANTED, Networks, Run, curve, family, points, stacked, ticks_at, two_times
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels
from widefield.question.task import Task

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

FIELDS = ("loss", "label_feature", "gradient_trace", "density")
KERNELS = {"feature": r"\Phi", "gradient": "G"}


@dataclass(frozen=True)
class Parameters(Networks):
    """Kernels are drawn at the last richness; ``n_repeats`` networks of each of ``widths`` show the convergence.

    ``cifar10`` is a folder with CIFAR-10's binary files, digits without it.
    """

    width: int = 2500
    replicates: int = 20
    depth: int = 3
    richnesses: tuple[float, ...] = (1.0, 2.0, 4.0)
    n_samples: int = 10
    classes: tuple[int, int] = (3, 8)
    rate: float = 0.03
    steps: int = 100
    paths: int = 4096
    widths: tuple[int, ...] = (50, 100, 250, 500, 1000, 2500)
    n_repeats: int = 10
    cifar10: str = ""


FULL = Parameters()
QUICK = Parameters(
    width=200, replicates=40, richnesses=(1.0, 3.0), n_samples=6, rate=0.05, steps=50, paths=512, widths=(50, 100, 200, 400)
)  # fmt: skip


def images(p: Parameters) -> Task:
    """Images of two classes less their mean, scaled to length √D, those labelled −1 first."""
    n, classes = p.n_samples, p.classes
    found = wf.tasks.cifar10(p.cifar10, n, 0, classes) if p.cifar10 else wf.tasks.digits(n, 0, classes)
    order = np.argsort(found.labels()[:, 0, 0], kind="stable")
    x = found.x[order] - found.x.mean(axis=0)
    return Task(x * np.sqrt(x.shape[1]) / np.linalg.norm(x, axis=1, keepdims=True), found.labels()[order, 0, 0])


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and networks at each richness, then single networks of growing width."""
    p = parameters
    jobs = bordelon22.counter(report, len(p.richnesses) + len(p.widths))
    wanted, task = (*WANTED, "preactivation"), images(p)
    base = Run(wf.DNN(p.depth, "tanh"), task, p.richnesses[-1], p.rate, p.steps, quantities=wanted)
    runs = {gamma: replace(base, richness=gamma) for gamma in p.richnesses}
    data = family("rich", "richness", runs, p, seed=0, paths=p.paths, report=jobs)
    data = data.assign(convergence(p, base, data.sel(richness=p.richnesses[-1]), jobs))
    notes = (p.note, bordelon22.power(data, compared), slopes(data))
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(compared(data)).rows))


def convergence(p: Parameters, run: Run, theory: "xr.Dataset", report: Callable[[str], None]) -> "xr.Dataset":
    """1 − cosine between the kernels Φ(t,t), G(t,t) of single networks and of the theory, over (size, repeat, layer)."""
    import xarray as xr

    blocks = []
    for i, width in enumerate(p.widths):
        report(f"convergence, N = {width}")
        options: dict[str, Any] = {
            "width": width,
            "replicates": p.n_repeats,
            "seed": p.seed + 1000 + i,
            "progress": False,
        }
        wanted = ("loss", "feature_kernel", "gradient_kernel")
        trial = wf.simulate.dynamics(run.network, run.task, **run.physics, **options, at=run.at, quantities=wanted)
        found = bordelon22.reduced(trial, run.at)
        apart = {f"distance_{name}": 1 - cosine(found[name], theory[f"rich_{name}"]) for name in KERNELS}
        blocks.append(xr.Dataset(apart).rename(replicate="repeat").expand_dims(size=[width]))
    return xr.concat(blocks, "size")


def cosine(kernel: "xr.DataArray", other: "xr.DataArray") -> "xr.DataArray":
    """Over times and samples."""
    total = lambda field: field.sum(("at", "sample", "sample_"))  # noqa: E731
    return total(kernel * other) / np.sqrt(total(kernel**2) * total(other**2))


def slopes(data: "xr.Dataset") -> str:
    """A note with the power of N with which kernels of single networks approach the theory's."""
    fits = [
        np.polyfit(np.log(data["size"]), np.log(data[f"distance_{name}"].mean(("repeat", "layer"))), 1)[0]
        for name in KERNELS
    ]
    return f"1 − cosine of a network's kernel with the theory's falls as N^{fits[0]:.2f} (Φ), N^{fits[1]:.2f} (G)"


def compared(data: "xr.Dataset") -> Iterator[Pair]:
    """Losses, kernels and densities of every richness."""
    return bordelon22.pairs(data, "rich", "richness", "γ0 = {}", FIELDS)


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Losses and densities; below, kernels at the end, at two times, and their convergence."""
    own = data.sel(richness=p.richnesses[-1])
    with house_style():
        figure, axes = panels(2, 4, size=(3.4, 2.8))
        for color, gamma in zip(SERIES, p.richnesses, strict=False):
            curve(axes[0, 0], data, "rich_loss", {"richness": gamma}, color=color, label=rf"$\gamma_0={gamma:g}$")
        axes[0, 0].set(
            xlabel="step $t$", ylabel=r"loss $\frac{1}{2}\Sigma\Delta^2$", title=f"tanh, $L={p.depth}$, digits"
        )
        axes[0, 0].legend(fontsize=7)
        _density(axes[1, 0], own, p)
        for row, (kernel, symbol) in zip(axes[:, 1:], KERNELS.items(), strict=True):
            parts = {"theory": own[f"rich_{kernel}"], "networks": own[f"rich_{kernel}_sampled"].mean("replicate")}
            shown = {name: part.sel(at=p.steps).values for name, part in parts.items()}
            stacked(row[0], shown, rf"final ${symbol}^\ell$, $\gamma_0={p.richnesses[-1]:g}$")
            traces = [own[f"rich_{kernel}_trace{part}"] for part in ("", "_sampled")]
            two_times(row[1], rf"$\mathrm{{tr}}\,{symbol}^\ell(t,s)/P$", *traces)
            _convergence(row[2], data[f"distance_{kernel}"], symbol)
        for ax, name in zip(axes.T.flat, "abcdefgh", strict=True):
            letter(ax, name)
    return figure


def _density(ax: "Axes", own: "xr.Dataset", p: Parameters) -> None:
    """Of the first sample in every layer at the end of training; shifted by a factor of ten per layer."""
    for i, color in zip(range(p.depth), SERIES, strict=False):
        shift = 10.0**-i
        ax.step(own["bin"], shift * own.rich_density.isel(layer=i), where="mid", color=color, label=rf"$\ell={i + 1}$")
        points(ax, own["bin"], shift * own.rich_density_sampled.isel(layer=i), color=color)
    ax.set(xlabel="$h$", ylabel=r"$p(h)\,10^{1-\ell}$", title="pre-activations at the end", yscale="log", xlim=(-5, 5))
    ax.set(ylim=(3e-3 * 0.1**p.depth, 2))
    ax.legend(fontsize=7)


def _convergence(ax: "Axes", distance: "xr.DataArray", symbol: str) -> None:
    for i, color in zip(range(distance.sizes["layer"]), SERIES, strict=False):
        values = distance.isel(layer=i).rename(repeat="replicate")
        points(ax, distance["size"], values, color=color, label=rf"$\ell={i + 1}$")
    first = float(distance.isel(size=0).mean())
    ax.plot(
        distance["size"], first * distance["size"][0] / distance["size"], color=COLORS["theory"], label=r"$\propto 1/N$"
    )
    ticks_at(ax, distance["size"].values)
    ax.set(yscale="log", xlabel="width $N$", ylabel="1 − cosine", title=rf"${symbol}$, theory and network")
    ax.legend(fontsize=7)
