"""Fig. 5 of Bordelon & Pehlevan (2022): convolutional networks of two widths coincide at fixed richness γ0. Simulation only.

Handwritten digits, which ship with scikit-learn, unless a folder with the paper's CIFAR-10 is given.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.simulate.dynamics.convolution import train

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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Networks of both widths at every richness; the narrow ones once more with γ = γ0 √N kept instead."""
    data = kit.over({"richness": p.richnesses}, partial(one_richness, p), work.jobs(len(p.richnesses)))
    true, false = (kit.judge_all(pairs(data, suffix)).rows for suffix in ("_narrow", "_fixed_gamma"))
    sizes = [np.sqrt(np.mean([(row.z_rms or 0.0) ** 2 for row in rows])) for rows in (true, false)]
    notes = (
        f"{p.replicates} networks each of N = {p.width} and N = {p.width // 2} channels, outputs less the initial ones: they differ by 1/N",
        f"rms z of the difference is {sizes[0]:.1f} at fixed γ0 and {sizes[1]:.1f} at fixed γ = γ0 √N; few networks, a yes is weak",
        "the theory covers no convolutional networks: simulation only",
    )
    panels = [partial(_observed, name=name) for name in LABELS]
    caption = f"{p.depth} convolutional layers of relu, simulation only"
    return kit.made([panels], data, p, true, size=(3.4, 2.9), notes=notes, caption=caption)


def images(p: Parameters) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, y and the same of the test: square images (sample, row, column, color) of two classes with labels ±1.

    The mean of the training images is subtracted; every pixel is of unit mean square over them.
    """
    n, n_test, classes = p.n_train, p.n_test, p.classes
    task = wf.tasks.cifar10(p.cifar10, n, n_test, classes) if p.cifar10 else wf.tasks.digits(n, n_test, classes)
    assert task.x_test is not None and task.y_test is not None
    middle, colors = task.x.mean(axis=0), 3 if p.cifar10 else 1
    scale = np.sqrt(np.mean((task.x - middle) ** 2))

    def square(x: np.ndarray) -> np.ndarray:
        side = int(np.sqrt(x.shape[1] / colors))
        return np.moveaxis(((x - middle) / scale).reshape(-1, colors, side, side), 1, -1)

    return square(task.x), task.labels()[:, 0, 0], square(task.x_test), np.ravel(task.y_test)


def one_richness(p: Parameters, i: int, richness: float) -> xr.Dataset:
    """What is observed of wide networks, of narrow ones, and of narrow ones with the γ of wide ones."""
    kinds = {"": (p.width, 1.0), "_narrow": (p.width // 2, 1.0), "_fixed_gamma": (p.width // 2, np.sqrt(2))}
    at = kit.marks(p.steps, p.rows)
    fields: dict[str, Any] = {}
    for j, (suffix, (width, factor)) in enumerate(kinds.items()):
        observed = train(
            *images(p), width=width, depth=p.depth, richness=factor * richness, rate=p.rate, batch=p.batch, at=at,
            replicates=p.replicates, seed=p.seed + 100 * i + 10 * j,
        )  # fmt: skip
        fields |= {f"{name}{suffix}": (("replicate", "at"), observed[name]) for name in LABELS}
    return xr.Dataset(fields, coords={"at": at})


def pairs(data: xr.Dataset, suffix: str) -> kit.Pairs:
    """Wide networks, with the standard error of their mean, against narrow ones after the first step."""
    for name in ("test_loss", "alignment"):
        for richness, case in kit.cases(data.isel(at=slice(1, None)), "richness"):
            wide, narrow = case[name], case[name + suffix]
            error = wide.std("replicate", ddof=1) / np.sqrt(wide.sizes["replicate"])
            yield kit.Pair(f"{name.replace('_', ' ')}, γ0 = {richness:g}", wide.mean("replicate"), narrow, [error])


def _observed(ax: kit.Axes, data: xr.Dataset, p: Parameters, name: str) -> None:
    """Lines wide, points narrow networks."""
    for color, (richness, case) in zip(kit.SERIES, kit.cases(data, "richness")):
        mean, error = case[name].mean("replicate"), kit.stderr(case[name].transpose("replicate", "at").values)
        kit.curve(ax, mean, case[f"{name}_narrow"], color=color, label=rf"$\gamma_0={richness:g}$")
        ax.fill_between(data["at"], mean - error, mean + error, color=color, alpha=0.25, linewidth=0)
    ax.set(xlabel="step $t$", ylabel=LABELS[name])
    if name == "test_loss":
        kit.key(ax, f"$N={p.width}$", "-")
        kit.key(ax, f"$N={p.width // 2}$", "o")
        ax.legend()
