"""Fig. 1 of Bordelon & Pehlevan (2022): three tanh layers on images, the whole training run and its convergence in N.

Handwritten digits, which ship with scikit-learn, unless a folder with the paper's CIFAR-10 is given.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon22 import kernels
from widefield.gallery.bordelon22.kernels import KERNELS, WANTED, Ensemble, Kernels, Question

FIELDS = ("loss", "label_feature", "gradient_trace", "density")


@dataclass(frozen=True)
class Parameters(Ensemble):
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


def images(p: Parameters) -> wf.Task:
    """Images of two classes less their mean, scaled to length √D, those labeled −1 first."""
    n, classes = p.n_samples, p.classes
    task = wf.tasks.cifar10(p.cifar10, n, 0, classes) if p.cifar10 else wf.tasks.digits(n, 0, classes)
    order = np.argsort(task.labels()[:, 0, 0], kind="stable")
    x = task.x[order] - task.x.mean(axis=0)
    return wf.Task(x * np.sqrt(x.shape[1]) / np.linalg.norm(x, axis=1, keepdims=True), task.labels()[order, 0, 0])


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks at each richness, then single networks of growing width."""
    job, last = work.jobs(len(p.richnesses) + len(p.widths)), p.richnesses[-1]
    question = Question.of(wf.DNN(p.depth, "tanh"), images(p), p.rate, p.steps, last)
    experiment, families = Kernels(p, (*WANTED, "preactivation"), p.paths), kernels.rich(question, p.richnesses, FIELDS)
    data = kit.measure(families, experiment, job)
    distances = kit.over({"size": p.widths}, partial(distance, p, question, data.sel(richness=last)), job)
    data = data.assign(distances)
    powers = [kit.fitted_power(data["size"], data[f"distance_{name}"].mean(("repeat", "layer"))) for name in KERNELS]
    note = f"1 − cosine of a network's kernel with the theory's falls as N^{powers[0]:.2f} (Φ), N^{powers[1]:.2f} (G)"
    title = rf"final ${{}}^\ell$, $\gamma_0={last:g}$"
    final, final_, times, times_ = kernels.kernel_panels({"richness": last}, title)
    approach, approach_ = (partial(_convergence, kernel=kernel) for kernel in KERNELS)
    loss = partial(kernels.loss_panel, title=f"tanh, $L={p.depth}$, digits")
    panels: kit.Panels = [[loss, final, times, approach], [_density, final_, times_, approach_]]
    return kit.tested(panels, data, p, experiment, families, size=(3.4, 2.8), notes=(note,), by_column=True)


def distance(p: Parameters, question: Question, theory: xr.Dataset, i: int, width: int) -> xr.Dataset:
    """1 − cosine between the kernels Φ(t,t), G(t,t) of single networks and of the theory, over (repeat, layer)."""
    training = wf.Training(p.rate, p.steps, richness=question.training.richness)  # with the initial outputs
    trial = wf.simulate.dynamics(
        question.network, question.task, training, width=width, replicates=p.n_repeats, seed=p.seed + 1000 + i,
        at=question.at, quantities=("loss", "feature_kernel", "gradient_kernel"), progress=False,
    )  # fmt: skip
    networks, over = kernels.reduced(trial, question.at), ("at", "sample", "sample_")
    apart = {f"distance_{name}": 1 - kernels.cosine(networks[name], theory[f"rich_{name}"], over) for name in KERNELS}
    return xr.Dataset(apart).rename(replicate="repeat").drop_vars("richness", errors="ignore")


def _density(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """Of the first sample in every layer at the end of training; shifted by a factor of ten per layer."""
    end = data.sel(richness=p.richnesses[-1])
    for i, color in zip(range(p.depth), kit.SERIES):
        parts = (end[f"rich_density{part}"].isel(layer=i) for part in ("", "_sampled"))
        kit.density(ax, *parts, color=color, label=rf"$\ell={i + 1}$", shift=10.0**-i)
    ax.set(xlabel="$h$", ylabel=r"$p(h)\,10^{1-\ell}$", title="pre-activations at the end", xlim=(-5, 5))
    ax.set(ylim=(3e-3 * 0.1**p.depth, 2))
    ax.legend()


def _convergence(ax: kit.Axes, data: xr.Dataset, p: Parameters, kernel: str) -> None:
    distance = data[f"distance_{kernel}"]
    for i, color in zip(range(p.depth), kit.SERIES):
        kit.points(ax, data["size"], distance.isel(layer=i), over="repeat", color=color, label=rf"$\ell={i + 1}$")
    kit.power_fit(ax, data["size"], float(distance.isel(size=0).mean()), -1, style="-", label=r"$\propto 1/N$")
    kit.ticks_at(ax, p.widths)
    ax.set(xlabel="width $N$", ylabel="1 − cosine", title=rf"${KERNELS[kernel]}$, theory and network")
    ax.legend()
