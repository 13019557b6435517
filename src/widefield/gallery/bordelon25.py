"""What the figures of Bordelon & Pehlevan (2025) share: one training run, in theory and in networks of two sizes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery.record import Report
from widefield.plot.style import stderr
from widefield.question.network import Network

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

LOSSES = ("test_loss", "train_loss")
N_MARKS = 9  # training times at which networks are compared and drawn
FASTER = 1.2  # the nearby wrong theory has this factor on the rate
SHRINK = (
    3  # ratio of the two sizes: against 2 it halves the variance of the extrapolation at the same bias of order 1/D²
)


@dataclass(frozen=True)
class Networks:
    """Finite networks: ``replicates`` ±w* pairs of D = ``dimension``, and as many of D/3 with seeds of their own."""

    dimension: int = 288
    replicates: int = 300
    seed: int = 2025

    @property
    def note(self) -> str:
        """What the points are."""
        small = self.dimension // SHRINK
        sizes = f"D = {self.dimension} and of D = {small}"
        return f"{self.replicates} replicates of {sizes}, extrapolated to infinite D: 1/D² is left"


@dataclass(frozen=True)
class Run:
    """One training run, in the words of `widefield.proportional`."""

    network: Network
    rate: float
    steps: int
    richness: float = 1.0
    width_ratio: float = np.inf
    data_ratio: float | None = None
    batch_ratio: float | None = None
    label_noise: float = 0.0
    centered: bool = False

    @property
    def physics(self) -> dict[str, Any]:
        """All but the network, as keywords."""
        return {name: value for name, value in asdict(self).items() if name != "network"}

    def theory(self, *, depth_limit: bool = False) -> "xr.Dataset":
        """Losses over the step."""
        found = wf.proportional(
            self.network, **self.physics, depth_limit=depth_limit, quantities=LOSSES, progress=False
        )
        return _numbered(found.data)

    def trained(self, networks: Networks, seed: int) -> "xr.Dataset":
        """Losses over (replicate, step) of networks, free of the offset of order 1/D; takes ``seed`` and the next."""
        large, small = (
            wf.simulate.proportional(
                self.network, **self.physics, dimension=dimension, replicates=networks.replicates, seed=own, progress=False
            ).data
            for dimension, own in ((networks.dimension, seed), (networks.dimension // SHRINK, seed + 1))
        )  # fmt: skip
        return _numbered((SHRINK * large - small) / (SHRINK - 1))


def _numbered(data: "xr.Dataset") -> "xr.Dataset":
    return data[list(LOSSES)].drop_vars("time").assign_coords(step=np.arange(data.sizes["step"]))


def family(
    name: str,
    dim: str,
    runs: Mapping[float, Run],
    networks: Networks,
    *,
    seed: int,
    report: Callable[[str], None] = lambda what: None,
) -> "xr.Dataset":
    """Fields ``<name>_test_loss``, …, with ``_sampled`` for networks and ``_faster`` for a higher rate, over ``dim``."""
    import xarray as xr

    blocks = []
    for i, (value, run) in enumerate(runs.items()):
        report(f"{name}, {dim.replace('_', ' ')} {value:g}")
        parts = {"": run.theory(), "_faster": replace(run, rate=FASTER * run.rate).theory()}
        parts["_sampled"] = run.trained(networks, networks.seed + seed + 2 * i)
        named = {f"{name}_{loss}{suffix}": part[loss] for suffix, part in parts.items() for loss in LOSSES}
        blocks.append(xr.Dataset(named).expand_dims({dim: [value]}))
    return xr.concat(blocks, dim)


def marks(n_steps: int) -> np.ndarray:
    """Some steps, closer at the start where losses fall fast, the first and the last one among them."""
    return np.unique(np.round(n_steps * np.linspace(0, 1, N_MARKS) ** 1.5).astype(int))


def pairs(
    data: "xr.Dataset", name: str, dim: str, label: str, losses: Iterable[str] = ("test_loss",)
) -> Iterator[Pair]:
    """One pair per member of a family and loss, at the marked steps."""
    at = marks(data.sizes["step"] - 1)
    for loss in losses:
        field = data[f"{name}_{loss}"]
        for value in field[dim].values:
            own = {dim: value, "step": at}
            words = f"{loss.replace('_', ' ')} {label.format(f'{value:g}')}"
            yield Pair(words, field.sel(own), data[f"{name}_{loss}_sampled"].sel(own))


def every_pair(data: "xr.Dataset", families: Iterable[tuple]) -> Iterator[Pair]:
    """The pairs of all ``families``, each given by the arguments of `pairs` behind the data."""
    return (pair for family in families for pair in pairs(data, *family))


def power(data: "xr.Dataset", compared: Callable[["xr.Dataset"], Iterable[Pair]]) -> str:
    """A note that says how much of a nearby wrong theory, the fields ``_faster``, the comparison rejects."""
    wrong = {str(name).removesuffix("_faster"): data[name] for name in data.data_vars if str(name).endswith("_faster")}
    rejected = [row.agrees is False for row in judge_all(compared(data.assign(wrong)))]
    return f"the theory at a rate {FASTER:g} times as high is rejected in {sum(rejected)} of {len(rejected)} rows"


def curve(
    ax: "Axes", data: "xr.Dataset", field: str, where: dict[str, Any], *, color: str, label: str, style: str = "-"
) -> None:
    """Theory as a line, networks at the marked steps with their standard errors."""
    ax.plot(data.step, data[field].sel(where), color=color, label=label, linestyle=style)
    at = marks(data.sizes["step"] - 1)
    points(ax, at, data[f"{field}_sampled"].sel(where).sel(step=at), color=color, filled=style == "-")


def points(ax: "Axes", x: Any, samples: "xr.DataArray", *, color: str, filled: bool = True) -> None:
    """Mean and standard error of networks over one dim."""
    values = samples.transpose("replicate", ...).values
    face = color if filled else "white"
    ax.errorbar(x, values.mean(axis=0), stderr(values), fmt="o", markersize=3.5, color=color, markerfacecolor=face)


def counter(report: Report, total: int) -> Callable[[str], None]:
    """Reports the next of ``total`` jobs each time it is called."""
    done = iter(range(total))
    return lambda what: report(next(done), total, what)


def same_range(axes: Iterable["Axes"], data: "xr.Dataset", fields: Iterable[str]) -> None:
    """A logarithmic range that holds all ``fields`` and is not stretched by limits far below them."""
    values = np.concatenate([data[name].values.ravel() for name in fields])
    for ax in axes:
        ax.set(yscale="log", ylim=(0.5 * values.min(), 1.5 * values.max()))
