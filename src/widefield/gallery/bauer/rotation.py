"""The rotating teacher of panel 6, and how test errors fall with supervised states and with samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bauer.sampling import KINDS, linear
from widefield.plot.style import COLORS, MARKERS

PARTS = ("supervised", "unsupervised")


@dataclass(frozen=True)
class Rotation:
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

    def network(self, kind: str) -> wf.Network:
        """A student."""
        return linear(kind, self.depth, self.weight_variance)

    def errors(self, kind: str, n_samples: int, supervised: tuple[int, ...], *, n_test: int, seed: int) -> list[float]:
        """Squared errors on new inputs at supervised and at other states, relative to the teacher's square there."""
        whole, task = self.task(n_samples, supervised, seed=seed, n_test=n_test)
        assert whole.y_test is not None
        solution = wf.posterior(
            self.network(kind), task, temperature=self.temperature, quantities=("test_prediction",), progress=False
        )
        target = whole.y_test[:, :, 0].T
        miss = solution.test_prediction.isel(output=0).transpose("state", "test").values - target
        labeled = np.isin(np.arange(self.depth), supervised)
        return [float(np.sum(miss[part] ** 2) / np.sum(target[part] ** 2)) for part in (labeled, ~labeled)]


def errors_over(
    dim: str,
    values: Sequence[int],
    rotation: Rotation,
    sets: Sequence[tuple[int, tuple[int, ...]]],
    *,
    n_tasks: int,
    n_test: int,
    seed: int,
) -> xr.Dataset:
    """``error_over_<dim>`` (kind, task, <dim>, part) for (samples, supervised states) in ``sets``."""
    errors = [
        [[rotation.errors(kind, *which, n_test=n_test, seed=seed + i) for which in sets] for i in range(n_tasks)]
        for kind in KINDS
    ]
    coords = {"kind": list(KINDS), dim: list(values), "part": list(PARTS)}
    return xr.Dataset({f"error_over_{dim}": (("kind", "task", dim, "part"), np.array(errors))}, coords=coords)


def errors_panel(ax: kit.Axes, data: xr.Dataset, p: Any, dim: str, words: str, title: str) -> None:
    """Unsupervised states solid, supervised ones dashed."""
    for kind in KINDS:
        for part, line in zip(PARTS, ("--", "-")):
            look: dict[str, Any] = {
                "marker": MARKERS[kind],
                "color": COLORS[kind],
                "line": line,
                "size": 4.5,
                "capsize": 2,
            }
            samples = data[f"error_over_{dim}"].sel(kind=kind, part=part)
            kit.points(ax, data[dim].values, samples, over="task", label=f"{kind}, {part}", **look)
    ax.set(xlabel=words, ylabel="relative test error", title=title)
    ax.set_ylim(-0.05, max(1.15, ax.get_ylim()[1]))
    ax.set_xticks(data[dim].values)
    if dim == "n_samples":
        ax.legend(fontsize=6.5, loc="center right", handlelength=3)
