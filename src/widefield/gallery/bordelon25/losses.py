"""The experiment behind the paper's figures: losses of one training, in theory and in networks of two sizes."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit

LOSSES = ("test_loss", "train_loss")
POPULATION = wf.Teacher()
N_MARKS = 9  # training times at which networks are compared and drawn
FASTER = 1.2  # the nearby wrong theory has this factor on the rate
SHRINK = (
    3  # ratio of the two sizes: against 2 it halves the variance of the extrapolation at the same bias of order 1/D²
)


@dataclass(frozen=True)
class Ensemble:
    """Finite networks: ``replicates`` ±w* pairs of D = ``dimension``, and as many of D/3 with seeds of their own."""

    dimension: int = 288
    replicates: int = 300
    seed: int = 2025


class Question(NamedTuple):
    """Everything but the size."""

    network: wf.Network
    teacher: wf.Teacher
    training: wf.Training
    width_ratio: float = np.inf


@dataclass(frozen=True)
class Losses(kit.Experiment[Question]):
    """Losses over the step; networks are free of the offset of order 1/D."""

    ensemble: Ensemble
    suffix = "faster"
    wrong_theory = f"the theory at a rate {FASTER:g} times as high"

    @property
    def first_seed(self) -> int:
        return self.ensemble.seed

    @property
    def note(self) -> str:
        sizes = f"D = {self.ensemble.dimension} and of D = {self.ensemble.dimension // SHRINK}"
        return f"{self.ensemble.replicates} replicates of {sizes}, extrapolated to infinite D: 1/D² is left"

    def theory(self, question: Question, *, infinite_depth: bool = False) -> xr.Dataset:
        solution = wf.proportional(
            *question[:3], width_ratio=question.width_ratio, infinite_depth=infinite_depth, quantities=LOSSES, progress=False
        )  # fmt: skip
        return _numbered(solution.data)

    def sampled(self, question: Question, seed: int) -> xr.Dataset:
        size = self.ensemble.dimension
        large, small = (
            wf.simulate.proportional(
                *question[:3], width_ratio=question.width_ratio, dimension=dimension, replicates=self.ensemble.replicates, seed=seed + i, progress=False
            ).data
            for i, dimension in enumerate((size, size // SHRINK))
        )  # fmt: skip
        return _numbered((SHRINK * large - small) / (SHRINK - 1))

    def wrong(self, question: Question) -> Question:
        return question._replace(training=replace(question.training, rate=FASTER * question.training.rates))

    def compared(self, field: str, parts: list[xr.DataArray]) -> tuple[str, list[xr.DataArray]]:
        at = marks(parts[0].sizes["step"] - 1)
        return field.replace("_", " "), [part.sel(step=at) for part in parts]


def _numbered(data: xr.Dataset) -> xr.Dataset:
    return data[list(LOSSES)].drop_vars("time").assign_coords(step=np.arange(data.sizes["step"]))


def marks(n_steps: int) -> np.ndarray:
    """Some steps, closer at the start where losses fall fast, the first and the last one among them."""
    return np.unique(np.round(n_steps * np.linspace(0, 1, N_MARKS) ** 1.5).astype(int))


def richness_at(richness: float, width_ratio: float, parameterization: str) -> float:
    """γ0 of one width: fixed in μP, falling as 1/√ν in NTK parameterization."""
    return richness / np.sqrt(width_ratio) if parameterization == "ntk" else richness


def loss_panel(ax: kit.Axes, data: xr.Dataset, p: Ensemble, field: str, dim: str, symbol: str, title: str) -> None:
    """Losses of a family with networks at the marked steps."""
    kit.curves(ax, data, field, dim, symbol, at=marks(data.sizes["step"] - 1))
    ax.set(xlabel="step $t$", ylabel="test loss", title=title)


def log_range(ax: kit.Axes, data: xr.Dataset, fields: list[str]) -> None:
    """A logarithmic range that holds all ``fields`` and is not stretched by limits far below them."""
    values = np.concatenate([data[name].values.ravel() for name in fields])
    ax.set(yscale="log", ylim=(0.5 * values.min(), 1.5 * values.max()))
