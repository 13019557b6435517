"""Fig. 2 of Segadlo et al.: distance of finite networks' outputs from the Gaussian of the theory."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import metadata
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.points import Points
from widefield.gallery.segadlo.fig_1 import BIASES, KINDS, relu_network

HEADER = ("panel", "biases", "g²", "n", "A", "DNN: MMD²", "RNN: MMD²", "RNN − DNN in standard errors")


@dataclass(frozen=True)
class Parameters:
    """Scalar outputs for ``n_inputs`` inputs x ~ N(0, 1); A = depth − 1; g0² = g² in ``variances``, inset last.

    The published figure does not state its widths and depths; those here span its regime.
    """

    widths: tuple[int, ...] = (10, 20, 50, 100, 200, 500, 1000, 2000)
    depths: tuple[int, ...] = (2, 6, 11, 16, 21, 26, 31)
    variances: tuple[float, float] = (1.6, 1.2)
    depth: int = 16
    width: int = 500
    bias_variance: float = 0.2
    n_networks: int = 2000
    n_realizations: int = 40
    n_inputs: int = 10
    dimension: int = 4
    length: float = 0.5
    seed: int = 2024


FULL = Parameters()
QUICK = Parameters(widths=(10, 20, 40, 80, 160), depths=(2, 6, 16, 31), width=50, n_networks=500, n_realizations=4)


class Mark(NamedTuple):
    """One mark in the figure."""

    kind: str
    biases: str
    variance: float
    width: int
    depth: int

    @property
    def cost(self) -> int:
        """Work relative to other marks, for the progress bar."""
        return self.width * self.depth * (1 + self.depth // 5 if self.kind == "RNN" else 1)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """All marks, each network ensemble against the theory's Gaussian; a full run takes up where one was stopped."""
    jobs = list(product(range(p.n_realizations), all_marks(p)))
    total, done = sum(mark.cost for _, mark in jobs), 0
    for i, mark in jobs:
        if work.points.get(_key(p, i, mark)) is None:
            words = f"{mark.kind}, n = {mark.width}, A = {mark.depth - 1}, inputs {i + 1}/{p.n_realizations}"
            work.report(done, total, words)
            work.points.add(_key(p, i, mark), distance(p, i, mark))
        done += mark.cost
    by_width, by_depth = (collect(p, work.points, axis) for axis in ("width", "depth"))
    data = xr.Dataset({"by_width": by_width, "by_depth": by_depth.isel(variance=0, drop=True)})
    rows = list(numbers(data, p))
    notes = ["unbiased estimator, exact on the Gaussian side: may be negative", *exceptions(rows)]
    if work.points.path and work.points.n_stored:
        notes.append(f"{work.points.n_stored} of {len(jobs)} points were taken from {work.points.path.name}")
    panels = [[partial(_width_panel, biases=biases), partial(_depth_panel, biases=biases)] for biases in BIASES]
    figure = kit.sheet(panels, data, p, size=(3.7, 2.9))
    return kit.Made(figure, data, p, rows, [HEADER, *map(_cells, rows)], notes=tuple(notes))


def axes_of(p: Parameters, axis: str) -> dict[str, list[Any]]:
    """What varies along the ``width`` or along the ``depth``."""
    values, variances = (p.widths, p.variances) if axis == "width" else (p.depths, p.variances[:1])
    return {"variance": list(variances), "biases": list(BIASES), "kind": list(KINDS), axis: list(values)}


def marks(p: Parameters, axis: str) -> list[Mark]:
    """In the order of `axes_of`."""
    fixed = {"width": p.width, "depth": p.depth}
    cases = product(*axes_of(p, axis).values())
    return [Mark(kind, biases, variance, **(fixed | {axis: value})) for variance, biases, kind, value in cases]


def all_marks(p: Parameters) -> list[Mark]:
    """Every mark of the four panels and their insets, each once."""
    return list(dict.fromkeys(marks(p, "width") + marks(p, "depth")))


def distance(p: Parameters, realization: int, mark: Mark) -> float:
    """MMD² between the outputs of ``n_networks`` finite networks and the Gaussian of the theory.

    Every mark has a seed of its own, whatever the order in which they are computed.
    """
    place = (KINDS.index(mark.kind), list(BIASES).index(mark.biases), round(1000 * mark.variance))
    seed = np.random.SeedSequence([p.seed, realization, *place, mark.width, mark.depth]).generate_state(1)[0]
    trial = wf.simulate.prior(
        *_question(p, realization, mark), width=mark.width, replicates=p.n_networks, seed=int(seed), quantities=("draw",),
        progress=False,
    )  # fmt: skip
    outputs = trial.draw.isel(state=-1, output=0).transpose("replicate", "sample")
    return wf.mmd2(outputs, covariance=_covariance(p, realization, mark._replace(width=0)), length=p.length)


@lru_cache(maxsize=256)
def _covariance(p: Parameters, realization: int, mark: Mark) -> np.ndarray:
    """The theory's covariance of the outputs, the same for every width."""
    return wf.prior(*_question(p, realization, mark), quantities=("output",), progress=False).output.values


def _question(p: Parameters, realization: int, mark: Mark) -> tuple[wf.Network, wf.Task]:
    x = np.random.default_rng([p.seed, realization]).normal(size=(p.n_inputs, p.dimension))
    return relu_network(mark.kind, mark.depth, mark.variance, p.bias_variance, mark.biases), wf.Task(x)


def _key(p: Parameters, realization: int, mark: Mark) -> dict[str, Any]:
    """What a stored number depends on: another library version or other parameters make another key."""
    common = ("bias_variance", "n_networks", "n_inputs", "dimension", "length", "seed")
    fixed = {name: getattr(p, name) for name in common}
    return {"widefield": metadata.version("widefield"), **fixed, **mark._asdict(), "realization": realization}


def collect(p: Parameters, stored: Points, axis: str) -> xr.DataArray:
    """The numbers as a labeled array, last over the ``realization`` of the inputs."""
    coords = axes_of(p, axis) | {"realization": list(range(p.n_realizations))}
    flat = [stored.get(_key(p, i, mark)) for mark in marks(p, axis) for i in range(p.n_realizations)]
    return xr.DataArray(np.reshape(flat, [len(c) for c in coords.values()]), coords=coords, dims=list(coords))


def numbers(data: xr.Dataset, p: Parameters) -> Iterator[dict[str, Any]]:
    """Mean and standard error over the input realizations; deep against recurrent on the same inputs."""
    for biases, letters in zip(BIASES, ("ab", "cd")):
        case = data.sel(biases=biases)
        shown = [
            (letters[0], v, w, p.depth, case.by_width.sel(variance=v, width=w)) for v in p.variances for w in p.widths
        ]
        shown += [(letters[1], p.variances[0], p.width, d, case.by_depth.sel(depth=d)) for d in p.depths]
        for panel, variance, width, depth, values in shown:
            place = {"panel": panel, "biases": biases, "width": width, "A": depth - 1, "variance": variance}
            samples = values.transpose("realization", "kind").values
            each = zip(KINDS, samples.mean(axis=0), kit.stderr(samples))
            moments = {kind: {"mmd2": float(mean), "stderr": float(error)} for kind, mean, error in each}
            difference = samples[:, 1] - samples[:, 0]
            spread = float(kit.stderr(difference))
            yield {**place, **moments, "z_of_difference": float(difference.mean() / spread) if spread > 0 else None}


def exceptions(rows: list[dict[str, Any]]) -> list[str]:
    """Where the paper's order, recurrent networks farther from the theory than deep ones, does not hold."""
    places = [
        f"{row['panel']} (g² = {row['variance']:g}, n = {row['width']}, A = {row['A']}, z = {_cells(row)[-1]})"
        for row in rows
        if row["RNN"]["mmd2"] < row["DNN"]["mmd2"]
    ]
    return [f"RNN nearer than DNN, against the paper's order, at {', '.join(places)}"] if places else []


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    value = lambda kind: f"{row[kind]['mmd2']:+.2e} ± {row[kind]['stderr']:.0e}"  # noqa: E731
    z = "–" if row["z_of_difference"] is None else f"{row['z_of_difference']:+.1f}"
    place = (row["panel"], BIASES[row["biases"]], f"{row['variance']:g}", str(row["width"]), str(row["A"]))
    return *place, value("DNN"), value("RNN"), z


def _width_panel(ax: kit.Axes, data: xr.Dataset, p: Parameters, biases: str) -> None:
    """With the smaller variance in an inset."""
    inset = ax.inset_axes((0.6, 0.57, 0.38, 0.36))
    for panel, variance, every in ((ax, p.variances[0], 1), (inset, p.variances[1], len(p.widths) - 1)):
        _curves(panel, p.widths, data.by_width.sel(biases=biases, variance=variance))
        kit.ticks_at(panel, p.widths[:: max(1, every)])
    ax.set_ylim(top=1.15 * ax.get_ylim()[1])
    inset.set_title(f"$g^2={p.variances[1]:g}$", fontsize=7, pad=2)
    inset.tick_params(labelsize=6)
    title = f"{BIASES[biases]} biases, $A={p.depth - 1}$"
    ax.set(xlabel="width $n$", ylabel=r"$10^3\,\mathrm{MMD}^2$", title=title)


def _depth_panel(ax: kit.Axes, data: xr.Dataset, p: Parameters, biases: str) -> None:
    _curves(ax, np.array(p.depths) - 1, data.by_depth.sel(biases=biases))
    title = f"{BIASES[biases]} biases, $n={p.width}$"
    ax.set(xlabel="depth or duration $A$", ylabel=r"$10^3\,\mathrm{MMD}^2$", title=title)
    if biases == "untied":
        ax.legend(title=f"$g^2={p.variances[0]:g}$", loc="upper left")


def _curves(ax: kit.Axes, x: Any, values: xr.DataArray) -> None:
    ax.axhline(0, color=kit.COLORS["theory"], linewidth=0.7)
    for kind in KINDS:
        look: dict[str, Any] = {"color": kit.COLORS[kind], "marker": kit.MARKERS[kind], "size": 4, "capsize": 2}
        kit.points(ax, x, 1e3 * values.sel(kind=kind), over="realization", label=kind, line="-", **look)
