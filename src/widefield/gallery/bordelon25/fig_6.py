"""Fig. 6 of Bordelon & Pehlevan: power-law data, small batches and narrow networks, on an easy and on a hard task."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon25.losses import FASTER, Losses

TASKS = {"sgd": "small batches", "easy": "easy task", "hard": "hard task"}
RATIO = 2  # panel a: a batch of B samples trains a network of width 2 B, so that both corrections are of order 1/B
EXTRAPOLATED = "networks over theory, minus one, is of order 1/N and 1/B: each replicate extrapolates it from the two largest sizes"


@dataclass(frozen=True)
class Parameters:
    """λ_k ∝ k^-a with a = ``capacity`` and target powers ∝ k^(-aβ-1), β = ``source`` of each panel, ``n_modes`` modes.

    ``sizes`` are batches B (panel a, width 2 B) or widths N (panels b, c, on the population). Networks of panel i and
    the j-th size have the seed ``seed`` + 100 i + j.
    """

    depth: int = 4
    capacity: float = 1.5
    source: tuple[float, ...] = (0.8, 1.5, 0.5)
    n_modes: int = 500
    steps: int = 400
    rate: float = 0.05
    richness: float = 1.0
    sizes: tuple[int, ...] = (16, 64, 256)
    replicates: int = 300
    seed: int = 2560

    @property
    def question(self) -> tuple[wf.Network, wf.Training]:
        return wf.DNN(self.depth, "linear"), wf.Training(self.rate, self.steps, richness=self.richness)

    def teacher(self, task: str, batch: int | None = None) -> wf.Teacher:
        """Eigenvalues and target powers, which sum to one."""
        k = np.arange(1.0, self.n_modes + 1)
        powers = k ** -(self.capacity * self.source[list(TASKS).index(task)] + 1)
        return wf.Teacher(spectrum=(k**-self.capacity, powers / powers.sum()), batch=batch)


FULL = Parameters()
QUICK = Parameters(steps=100, n_modes=400, sizes=(16, 64), replicates=160)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks of the three panels, and both limits of infinite size."""
    job = work.jobs(len(TASKS) * len(p.sizes))
    data = kit.over({"panel": TASKS, "size": p.sizes}, partial(one_size, p), job)
    data = xr.merge([data, kit.over({"panel": TASKS}, partial(limits, p), lambda words: None)], join="outer")
    notes = (
        EXTRAPOLATED,
        *(f"{TASKS[task]}: networks − theory {offsets(data, task)}" for task in TASKS),
        *(f"{TASKS[task]}: local exponent at the end {slopes(data, task)}" for task in ("easy", "hard")),
        f"{p.n_modes} modes: their end steepens the hard task late",
        f"{Losses.wrong_theory} is {kit.rejections(pairs(data, '_faster'))}",
    )
    panels = [partial(_losses, task=task) for task in TASKS]
    return kit.made([panels], data, p, pairs(data), size=(3.4, 2.9), notes=notes)


def theory(p: Parameters, teacher: wf.Teacher, width: float | None = None, **changed: Any) -> tuple[str, np.ndarray]:
    """Test loss over the step, by a training that may differ."""
    network, training = p.question
    wanted: dict[str, Any] = {"width": width, "quantities": ("test_loss",), "progress": False}
    return "step", wf.proportional(network, teacher, replace(training, **changed), **wanted).test_loss.values


def one_size(p: Parameters, i: int, task: str, size: int) -> xr.Dataset:
    """``loss``, the same at a higher rate, and ``loss_sampled`` (replicate, step)."""
    teacher, width = (p.teacher(task, size), RATIO * size) if task == "sgd" else (p.teacher(task), size)
    network, training = p.question
    trial = wf.simulate.proportional(
        network, teacher, training, width=width, replicates=p.replicates,
        seed=p.seed + 100 * (i // len(p.sizes)) + i % len(p.sizes), quantities=("test_loss",), progress=False,
    )  # fmt: skip
    fields: dict[str, Any] = {"loss": theory(p, teacher, width)}
    fields["loss_faster"] = theory(p, teacher, width, rate=FASTER * p.rate)
    fields["loss_sampled"] = (("replicate", "step"), trial.test_loss.values)
    return xr.Dataset(fields, coords={"step": np.arange(p.steps + 1)})


def limits(p: Parameters, i: int, task: str) -> xr.Dataset:
    """Infinite width (and batch), rich and lazy at the same rate."""
    fields = {"limit": theory(p, p.teacher(task))}
    fields["lazy_limit"] = theory(p, p.teacher(task), richness=0.0, centered=True)
    return xr.Dataset(fields, coords={"step": np.arange(p.steps + 1)})


def marks(data: xr.Dataset) -> np.ndarray:
    """Some steps, evenly spaced in the logarithm."""
    return np.unique(np.round(np.geomspace(1, data.sizes["step"] - 1, 8)).astype(int))


def pairs(data: xr.Dataset, suffix: str = "") -> kit.Pairs:
    """Networks over theory, extrapolated from the two largest sizes, beside one; ``suffix`` names another theory."""
    factor = float(data["size"][-1] / data["size"][-2])
    for task, case in kit.cases(data.sel(step=marks(data)), "panel"):
        small, large = ((case.loss_sampled / case[f"loss{suffix}"]).isel(size=i, drop=True) for i in (-2, -1))
        ratio = (factor * large - small) / (factor - 1)
        yield kit.Pair(f"networks / theory, {TASKS[task]}", xr.ones_like(ratio.isel(replicate=0, drop=True)), ratio)


def offsets(data: xr.Dataset, task: str) -> str:
    """The relative difference of the means at each size, root mean square over the marked steps."""
    case = data.sel(panel=task, step=marks(data))
    gap = ((case.loss_sampled.mean("replicate") / case.loss - 1) ** 2).mean("step")
    symbol = "B" if task == "sgd" else "N"
    return ", ".join(f"{100 * float(g) ** 0.5:.1f} % at {symbol} = {n}" for n, g in zip(gap["size"].values, gap))


def slopes(data: xr.Dataset, task: str) -> str:
    """Minus the slope over the last octave at infinite width, rich and lazy."""
    last = data.sizes["step"] - 1
    ends = [last // 2, last]
    rich, lazy = (-kit.fitted_power(ends, data[name].sel(panel=task, step=ends)) for name in ("limit", "lazy_limit"))
    return f"{rich:.2f} rich, {lazy:.2f} lazy"


def _losses(ax: kit.Axes, data: xr.Dataset, p: Parameters, task: str) -> None:
    later = data.sel(panel=task).isel(step=slice(1, None))
    symbol, limit = ("B", r"$N,B\to\infty$") if task == "sgd" else ("N", r"$N\to\infty$")
    for color, (n, case) in zip(kit.SERIES, kit.cases(later, "size")):
        kit.curve(ax, case.loss, case.loss_sampled, color=color, label=f"${symbol}={n}$", at=marks(data))
    kit.curve(ax, later.limit, color="black", label=limit)
    kit.curve(ax, later.lazy_limit, color=kit.COLORS["theory"], style="--", label="lazy limit")
    title = rf"{TASKS[task]}, $\beta={p.source[list(TASKS).index(task)]:g}$"
    ax.set(xscale="log", yscale="log", xlabel="step $t$", ylabel="test loss", title=title)
    ax.legend(loc="lower left")
