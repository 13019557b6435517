"""Fig. 2 of Segadlo et al.: distance of finite networks' outputs from the Gaussian of the theory."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import widefield as wf
from widefield.gallery.points import Points
from widefield.gallery.record import Made, Report
from widefield.plot.style import COLORS, MARKERS, Figure, house_style, letter, panels, stderr
from widefield.question.network import Network

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

KINDS = ("DNN", "RNN")
BIASES = {"untied": "uncorrelated", "tied": "static"}
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
    n_realisations: int = 40
    n_inputs: int = 10
    dimension: int = 4
    length: float = 0.5
    seed: int = 2024


FULL = Parameters()
QUICK = Parameters(widths=(10, 20, 40, 80, 160), depths=(2, 6, 16, 31), width=50, n_networks=500, n_realisations=4)


class Point(NamedTuple):
    """One mark in the figure."""

    kind: str
    biases: str
    variance: float
    width: int
    depth: int

    @property
    def cost(self) -> int:
        """Work relative to other points, for the progress bar."""
        return self.width * self.depth * (1 + self.depth // 5 if self.kind == "RNN" else 1)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """All points, each network ensemble against the theory's Gaussian; a full run takes up where one was stopped."""
    p = parameters
    points = Points(out / "segadlo-2.points.jsonl" if full else None)
    jobs = list(itertools.product(range(p.n_realisations), all_points(p)))
    total, done = sum(point.cost for _, point in jobs), 0
    for realisation, point in jobs:
        key = _key(p, realisation, point)
        if points.get(key) is None:
            what = (
                f"{point.kind}, n = {point.width}, A = {point.depth - 1}, inputs {realisation + 1}/{p.n_realisations}"
            )
            report(done, total, what)
            points.add(key, distance(p, realisation, point))
        done += point.cost
    report(total, total, "drawing")
    data = collect(p, points)
    rows = list(numbers(data))
    notes = ["unbiased estimator, exact on the Gaussian side: may be negative", *exceptions(rows)]
    if points.path and points.n_found:
        notes.append(f"{points.n_found} of {len(jobs)} points were taken from {points.path.name}")
    return Made(draw(data), data, p, rows, [HEADER, *map(_cells, rows)], notes=tuple(notes))


def all_points(p: Parameters) -> list[Point]:
    """Every mark of the four panels and their insets, each once."""
    cases = list(itertools.product(KINDS, BIASES))
    against_width = [Point(k, b, v, n, p.depth) for k, b in cases for v in p.variances for n in p.widths]
    against_depth = [Point(k, b, p.variances[0], p.width, d) for k, b in cases for d in p.depths]
    return list(dict.fromkeys(against_width + against_depth))


def distance(p: Parameters, realisation: int, point: Point) -> float:
    """MMD² between the outputs of ``n_networks`` finite networks and the Gaussian of the theory."""
    trial = wf.simulate.prior(
        _network(p, point),
        _task(p, realisation),
        width=point.width,
        replicates=p.n_networks,
        seed=_seed(p, realisation, point),
        quantities=("draw",),
        progress=False,
    )
    outputs = trial.draw.isel(state=-1, output=0).transpose("replicate", "sample")
    covariance = _covariance(p, realisation, point._replace(width=0))
    return wf.mmd2(outputs, covariance=covariance, length=p.length)


@lru_cache(maxsize=256)
def _covariance(p: Parameters, realisation: int, point: Point) -> np.ndarray:
    """The theory's covariance of the outputs, the same for every width."""
    theory = wf.prior(_network(p, point), _task(p, realisation), quantities=("output",), progress=False)
    return theory.output.values


def _task(p: Parameters, realisation: int) -> wf.Task:
    return wf.Task(np.random.default_rng([p.seed, realisation]).normal(size=(p.n_inputs, p.dimension)))


def _network(p: Parameters, point: Point) -> Network:
    return getattr(wf, point.kind)(
        depth=point.depth,
        activation="relu",
        weight_variance=point.variance,
        input_variance=point.variance,
        readout_variance=point.variance,
        bias_variance=p.bias_variance,
        biases=point.biases,
    )


def _seed(p: Parameters, realisation: int, point: Point) -> int:
    """A seed of its own for every point, whatever the order in which they are computed."""
    place = (KINDS.index(point.kind), list(BIASES).index(point.biases), round(1000 * point.variance))
    sequence = np.random.SeedSequence([p.seed, realisation, *place, point.width, point.depth])
    return int(sequence.generate_state(1)[0])


def _key(p: Parameters, realisation: int, point: Point) -> dict[str, Any]:
    """What a stored number depends on: another library version or other parameters make another key."""
    common = ("bias_variance", "n_networks", "n_inputs", "dimension", "length", "seed")
    fixed = {name: getattr(p, name) for name in common}
    return {"widefield": metadata.version("widefield"), **fixed, **point._asdict(), "realisation": realisation}


def collect(p: Parameters, points: Points) -> "xr.Dataset":
    """The numbers as labelled arrays, ``by_width`` and ``by_depth``."""
    import xarray as xr

    def array(axis: str, values: tuple[int, ...], variances: tuple[float, ...]) -> "xr.DataArray":
        coords: dict[str, list[Any]] = {
            "variance": list(variances),
            "biases": list(BIASES),
            "kind": list(KINDS),
            axis: list(values),
            "realisation": list(range(p.n_realisations)),
        }
        flat = []
        for variance, biases, kind, value, realisation in itertools.product(*coords.values()):
            at = {"width": p.width, "depth": p.depth, axis: value}
            flat.append(points.get(_key(p, realisation, Point(kind, biases, variance, **at))))
        shape = [len(c) for c in coords.values()]
        return xr.DataArray(np.array(flat, dtype=float).reshape(shape), coords=coords, dims=list(coords))

    by_width = array("width", p.widths, p.variances)
    by_depth = array("depth", p.depths, p.variances[:1]).isel(variance=0, drop=True)
    fixed = {"depth_of_by_width": p.depth, "width_of_by_depth": p.width, "variance_of_by_depth": p.variances[0]}
    return xr.Dataset({"by_width": by_width, "by_depth": by_depth}, attrs=fixed)


def numbers(data: "xr.Dataset") -> Iterator[dict[str, Any]]:
    """Mean and standard error over the input realisations; deep against recurrent on the same inputs."""
    attrs = data.attrs
    for biases, letters in zip(BIASES, ("ab", "cd"), strict=True):
        for variance, width in itertools.product(data.variance.values, data.width.values):
            at = {"biases": biases, "variance": variance, "width": width}
            place = {"width": int(width), "A": attrs["depth_of_by_width"] - 1, "variance": float(variance)}
            yield {"panel": letters[0], "biases": biases, **place, **_summary(data.by_width.sel(at))}
        for depth in data.depth.values:
            place = {"width": attrs["width_of_by_depth"], "A": int(depth) - 1}
            place["variance"] = attrs["variance_of_by_depth"]
            values = data.by_depth.sel(biases=biases, depth=depth)
            yield {"panel": letters[1], "biases": biases, **place, **_summary(values)}


def exceptions(rows: list[dict[str, Any]]) -> list[str]:
    """Where the paper's order, recurrent networks farther from the theory than deep ones, does not hold."""
    against = [row for row in rows if row["RNN"]["mmd2"] < row["DNN"]["mmd2"]]
    places = [
        f"{row['panel']} (g² = {row['variance']:g}, n = {row['width']}, A = {row['A']}, z = {_cells(row)[-1]})"
        for row in against
    ]
    return [f"RNN nearer than DNN, against the paper's order, at {', '.join(places)}"] if places else []


def _summary(values: "xr.DataArray") -> dict[str, Any]:
    samples = values.transpose("realisation", "kind").values
    mean, error = samples.mean(axis=0), stderr(samples)
    difference = samples[:, 1] - samples[:, 0]
    spread = float(stderr(difference))
    z = float(difference.mean() / spread) if spread > 0 else None
    return {
        "DNN": {"mmd2": float(mean[0]), "stderr": float(error[0])},
        "RNN": {"mmd2": float(mean[1]), "stderr": float(error[1])},
        "z_of_difference": z,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    value = lambda kind: f"{row[kind]['mmd2']:+.2e} ± {row[kind]['stderr']:.0e}"  # noqa: E731
    z = "–" if row["z_of_difference"] is None else f"{row['z_of_difference']:+.1f}"
    place = (row["panel"], BIASES[row["biases"]], f"{row['variance']:g}", str(row["width"]), str(row["A"]))
    return *place, value("DNN"), value("RNN"), z


def draw(data: "xr.Dataset") -> Figure:
    """Panels a to d; the smaller variance in the insets of a and c."""
    variance, small = data.variance.values
    with house_style():
        figure, axes = panels(2, 2, size=(3.7, 2.9))
        for row, biases in zip(axes, BIASES, strict=True):
            curves = data.by_width.sel(biases=biases)
            _against_width(row[0], curves.sel(variance=variance))
            row[0].set_ylim(top=1.15 * row[0].get_ylim()[1])
            inset = row[0].inset_axes((0.6, 0.57, 0.38, 0.36))
            _against_width(inset, curves.sel(variance=small), every=len(data.width) - 1)
            inset.set_title(f"$g^2={small:g}$", fontsize=7, pad=2)
            inset.tick_params(labelsize=6)
            _curves(row[1], data.depth.values - 1, data.by_depth.sel(biases=biases))
            row[0].set(xlabel="width $n$", title=f"{BIASES[biases]} biases, $A={data.attrs['depth_of_by_width'] - 1}$")
            width = data.attrs["width_of_by_depth"]
            row[1].set(xlabel="depth or duration $A$", title=f"{BIASES[biases]} biases, $n={width}$")
            for ax in row:
                ax.set_ylabel(r"$10^3\,\mathrm{MMD}^2$")
        for ax, name in zip(axes.flat, "abcd", strict=True):
            letter(ax, name)
        axes[0, 1].legend(title=f"$g^2={variance:g}$", loc="upper left")
    return figure


def _against_width(ax: "Axes", values: "xr.DataArray", every: int = 1) -> None:
    widths = values.width.values
    _curves(ax, widths, values)
    ax.set_xscale("log")
    shown = widths[:: max(1, every)]
    ax.set_xticks(shown, [str(n) for n in shown])
    ax.minorticks_off()


def _curves(ax: "Axes", x: np.ndarray, values: "xr.DataArray") -> None:
    ax.axhline(0, color=COLORS["theory"], linewidth=0.7)
    for kind in KINDS:
        samples = 1e3 * values.sel(kind=kind).transpose("realisation", ...).values
        mean, error = samples.mean(axis=0), stderr(samples)
        bars = ax.errorbar(x, mean, yerr=error, capsize=2, label=kind, color=COLORS[kind], linewidth=1)
        bars[0].set(marker=MARKERS[kind], markersize=4)
