"""Fig. 5 of Bordelon & Pehlevan (2022): convolutional networks of two widths coincide at fixed richness γ0. Simulation only.

Handwritten digits, which ship with scikit-learn, unless a folder with the paper's CIFAR-10 is given.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery.bordelon22 import counter, points
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels, stderr
from widefield.simulate.dynamics import convolution

if TYPE_CHECKING:
    import xarray as xr

LABELS = {
    "test_loss": r"test loss $\langle(f-y)^2\rangle/2$",
    "accuracy": "test accuracy",
    "alignment": r"$A(\Phi^L,yy^T)$",
}


@dataclass(frozen=True)
class Parameters:
    """``replicates`` networks of ``width`` N and of N/2 channels at every richness, observed ``rows`` times.

    ``cifar10`` is a folder with CIFAR-10's binary files, digits without it.
    """

    width: int = 500
    replicates: int = 4
    depth: int = 4
    richnesses: tuple[float, ...] = (1.0, 5.0, 10.0)
    n_train: int = 250
    n_test: int = 100
    batch: int = 50
    classes: tuple[int, int] = (3, 8)
    rate: float = 0.02
    steps: int = 200
    rows: int = 10
    seed: int = 2022
    cifar10: str = ""


FULL = Parameters()
QUICK = Parameters(
    width=48, replicates=20, depth=3, richnesses=(0.5, 1.5), n_train=30, n_test=60, batch=30, rate=0.2, steps=80
)


class Images(NamedTuple):
    """Square images (sample, row, column, colour) less the mean of the training images, with labels ±1."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def images(p: Parameters) -> Images:
    """Two classes of images, every pixel of unit mean square over the training images."""
    n, n_test, classes = p.n_train, p.n_test, p.classes
    task = wf.tasks.cifar10(p.cifar10, n, n_test, classes) if p.cifar10 else wf.tasks.digits(n, n_test, classes)
    assert task.x_test is not None and task.y_test is not None
    colours = 3 if p.cifar10 else 1
    middle = task.x.mean(axis=0)
    scale = np.sqrt(np.mean((task.x - middle) ** 2))

    def square(x: np.ndarray) -> np.ndarray:
        side = int(np.sqrt(x.shape[1] / colours))
        return np.moveaxis(((x - middle) / scale).reshape(-1, colours, side, side), 1, -1)

    return Images(square(task.x), task.labels()[:, 0, 0], square(task.x_test), np.ravel(task.y_test))


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Networks of both widths at every richness; the narrow ones once more with γ = γ0 √N kept instead."""
    import xarray as xr

    p = parameters
    data_set = images(p)
    cases = {"": (p.width, 1.0), "_narrow": (p.width // 2, 1.0), "_fixed_gamma": (p.width // 2, np.sqrt(2))}
    jobs = counter(report, len(p.richnesses) * len(cases))
    at = np.unique(np.round(p.steps * np.linspace(0, 1, p.rows) ** 1.5)).astype(int)
    blocks = []
    for i, richness in enumerate(p.richnesses):
        named: dict[str, Any] = {}
        for j, (suffix, (width, factor)) in enumerate(cases.items()):
            jobs(f"γ0 = {richness:g}, N = {width}")
            found = convolution.train(
                *data_set, width=width, depth=p.depth, richness=factor * richness, rate=p.rate, batch=p.batch, at=at,
                replicates=p.replicates, seed=p.seed + 100 * i + 10 * j,
            )  # fmt: skip
            named |= {f"{name}{suffix}": (("replicate", "at"), found[name]) for name in LABELS}
        blocks.append(xr.Dataset(named, coords={"at": at}).expand_dims(richness=[richness]))
    data = xr.concat(blocks, "richness")
    truth, wrong = (judge_all(compared(data, suffix)).rows for suffix in ("_narrow", "_fixed_gamma"))
    sizes = [np.sqrt(np.mean([(row.z_rms or 0.0) ** 2 for row in rows])) for rows in (truth, wrong)]
    notes = (
        f"{p.replicates} networks each of N = {p.width} and N = {p.width // 2} channels, outputs less the initial ones: they differ by 1/N",
        f"rms z of the difference is {sizes[0]:.1f} at fixed γ0 and {sizes[1]:.1f} at fixed γ = γ0 √N; few networks, a yes is weak",
        "the theory page has no convolutional networks: simulation only",
    )
    return Made(draw(data, p), data, p, notes=notes, **judged(truth))


def compared(data: "xr.Dataset", suffix: str) -> Iterator[Pair]:
    """Wide networks, with the standard error of their mean, against narrow ones after the first step."""
    for name, richness in product(("test_loss", "alignment"), data.richness.values):
        wide, narrow = (data[name + s].sel(richness=richness).isel(at=slice(1, None)) for s in ("", suffix))
        error = wide.std("replicate", ddof=1) / np.sqrt(wide.sizes["replicate"])
        yield Pair(f"{name.replace('_', ' ')}, γ0 = {richness:g}", wide.mean("replicate"), narrow, [error])


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Test loss, accuracy and alignment of the last features with the labels: lines wide, points narrow networks."""
    with house_style():
        figure, axes = panels(1, 3, size=(3.4, 2.9))
        for ax, (name, label), mark in zip(axes[0], LABELS.items(), "abc", strict=True):
            for color, richness in zip(SERIES, data.richness.values, strict=False):
                wide = data[name].sel(richness=richness)
                mean, error = wide.mean("replicate").values, stderr(wide.transpose("replicate", "at").values)
                ax.plot(data["at"], mean, color=color, label=rf"$\gamma_0={richness:g}$")
                ax.fill_between(data["at"], mean - error, mean + error, color=color, alpha=0.25, linewidth=0)
                points(ax, data["at"], data[f"{name}_narrow"].sel(richness=richness), color=color)
            ax.set(xlabel="step $t$", ylabel=label)
            letter(ax, mark)
        axes[0, 0].plot([], [], color=COLORS["theory"], label=f"$N={p.width}$")
        axes[0, 0].plot([], [], "o", markersize=3.5, color=COLORS["theory"], label=f"$N={p.width // 2}$")
        axes[0, 0].legend(fontsize=7)
        figure.suptitle(f"{p.depth} convolutional layers of relu, simulation only", fontsize=9)
    return figure
