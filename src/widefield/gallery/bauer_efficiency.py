"""The rotating teacher of panel 6, and how test errors fall with supervised states and with samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.gallery import bauer
from widefield.gallery.bauer import KINDS
from widefield.plot.style import COLORS, MARKERS, stderr
from widefield.question.network import Network

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

PARTS = ("supervised", "unsupervised")


@dataclass(frozen=True)
class Teacher:
    """A plane that turns by ``angle`` (degrees) per state, and the students' recurrent variance and temperature."""

    depth: int
    dimension: int
    angle: float
    weight_variance: float
    temperature: float

    def task(
        self, n_samples: int, supervised: tuple[int, ...], *, seed: int, n_test: int = 0
    ) -> tuple[wf.Task, wf.Task]:
        """The task with labels at all states, and with those at ``supervised`` states only."""
        whole = wf.tasks.rotation(n_samples, self.dimension, self.depth, np.radians(self.angle), seed, n_test)
        assert whole.y is not None
        return whole, wf.Task(whole.x, whole.y[:, list(supervised)], supervised=supervised, x_test=whole.x_test)

    def network(self, kind: str) -> Network:
        """A student."""
        return bauer.linear(kind, self.depth, self.weight_variance)


def sweep(
    teacher: Teacher,
    sets: Sequence[tuple[int, tuple[int, ...]]],
    n_tasks: int,
    n_test: int,
    seed: int,
    *,
    dim: str,
    labels: Sequence[int],
) -> "xr.Dataset":
    """``error_over_<dim>`` (kind, task, <dim>, part) for (samples, supervised states) in ``sets``."""
    import xarray as xr

    values = np.array(
        [
            [[errors(teacher, kind, *which, n_test, seed + i) for which in sets] for i in range(n_tasks)]
            for kind in KINDS
        ]
    )
    coords = {"kind": list(KINDS), dim: list(labels), "part": list(PARTS)}
    return xr.Dataset({f"error_over_{dim}": (("kind", "task", dim, "part"), values)}, coords=coords)


def errors(
    teacher: Teacher, kind: str, n_samples: int, supervised: tuple[int, ...], n_test: int, seed: int
) -> list[float]:
    """Squared errors on new inputs at supervised and at other states, relative to the teacher's square there."""
    whole, task = teacher.task(n_samples, supervised, seed=seed, n_test=n_test)
    found = wf.posterior(
        teacher.network(kind), task, temperature=teacher.temperature, quantities=("test_prediction",), progress=False
    )
    assert whole.y_test is not None
    target = whole.y_test[:, :, 0].T
    miss = found.test_prediction.isel(output=0).transpose("state", "test").values - target
    seen = np.isin(np.arange(teacher.depth), supervised)
    return [float(np.sum(miss[part] ** 2) / np.sum(target[part] ** 2)) for part in (seen, ~seen)]


def draw_errors(ax: "Axes", data: "xr.Dataset", dim: str, words: str, title: str) -> None:
    """Unsupervised states solid, supervised ones dashed."""
    x = data[dim].values
    for kind in KINDS:
        for part, line in zip(PARTS, ("--", "-"), strict=True):
            samples = data[f"error_over_{dim}"].sel(kind=kind, part=part).transpose("task", dim).values
            bars = ax.errorbar(x, samples.mean(axis=0), yerr=stderr(samples), color=COLORS[kind], capsize=2)
            bars[0].set(marker=MARKERS[kind], linestyle=line, label=f"{kind}, {part}")
    ax.set(xlabel=words, ylabel="relative test error", title=title)
    ax.set_ylim(-0.05, max(1.15, ax.get_ylim()[1]))
    ax.set_xticks(x)
