"""The experiment behind the paper's figures: losses of one training, in theory and in networks of two sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit

LOSSES = ("test_loss", "train_loss")
POPULATION = wf.Teacher()
PARAMETERIZATIONS = {"ntk": "NTK", "mup": "μP"}
N_MARKS = 9  # training times at which networks are compared and drawn
FASTER = 1.2  # the nearby wrong theory has this factor on the rate
SHRINK = 3  # ratio of the two sizes: against 2 it halves the extrapolation's variance at the same bias of order 1/D²


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

    def at(self, **changed: Any) -> "Question":
        """The same with another training."""
        return self._replace(training=replace(self.training, **changed))


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
        options: dict[str, Any] = {"infinite_depth": infinite_depth, "quantities": LOSSES, "progress": False}
        return _numbered(wf.proportional(*question[:3], width_ratio=question.width_ratio, **options))

    def sampled(self, question: Question, seed: int) -> xr.Dataset:
        def networks(dimension: int, seed: int) -> xr.Dataset:
            trial = wf.simulate.proportional(
                *question[:3], width_ratio=question.width_ratio, dimension=dimension,
                replicates=self.ensemble.replicates, seed=seed, progress=False,
            )  # fmt: skip
            return _numbered(trial)

        return kit.extrapolated(networks, self.ensemble.dimension, seed, SHRINK)

    def wrong(self, question: Question) -> Question:
        return question.at(rate=FASTER * question.training.rates)

    def compared(self, field: str, parts: list[xr.DataArray]) -> tuple[str, list[xr.DataArray]]:
        return field.replace("_", " "), [part.sel(step=marks(part)) for part in parts]


def _numbered(solution: wf.Solution) -> xr.Dataset:
    data = solution.data[list(LOSSES)].drop_vars("time")
    return data.assign_coords(step=np.arange(data.sizes["step"]))


def marks(data: xr.Dataset | xr.DataArray) -> np.ndarray:
    """The steps that are compared and drawn."""
    return kit.marks(data.sizes["step"] - 1, N_MARKS)


def richness_at(richness: float, width_ratio: float, parameterization: str) -> float:
    """γ0 of one width: fixed in μP, falling as 1/√ν in NTK parameterization."""
    return richness / np.sqrt(width_ratio) if parameterization == "ntk" else richness


def loss_panel(
    ax: kit.Axes, data: xr.Dataset, p: Any, family: kit.Family, symbol: str, title: str,
    limits: Mapping[str, tuple[str, str]] | None = None, on_one_scale: Sequence[kit.Family] = (),
) -> None:  # fmt: skip
    """Losses of a family with networks at the marked steps, and ``limits``: fields with line style and label.

    Logarithmic ``on_one_scale`` with other families; limits far below them do not stretch it.
    """
    kit.curves(ax, data, f"{family.name}_test_loss", family.dim, symbol, at=marks(data))
    ax.set(xlabel="step $t$", ylabel="test loss", title=title)
    for field, (style, label) in (limits or {}).items():
        ax.plot(data.step, data[field], color=kit.COLORS["theory"], linestyle=style, label=label)
    if on_one_scale:
        values = np.concatenate([data[f"{other.name}_test_loss"].values.ravel() for other in on_one_scale])
        ax.set(yscale="log", ylim=(0.5 * values.min(), 1.5 * values.max()))
        ax.legend()


def loss_panels(families: Sequence[kit.Family], *shown: tuple[Any, ...]) -> list[partial]:
    """One on the same scale for each family: its symbol, title and limits."""
    return [
        partial(loss_panel, family=family, symbol=symbol, title=title, limits=dict(limits), on_one_scale=families)
        for family, (symbol, title, *limits) in zip(families, shown)
    ]
