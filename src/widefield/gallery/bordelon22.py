"""What the figures of Bordelon & Pehlevan (2022) share: one training run, in theory and in networks of two widths."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.answer.solution import Solution
from widefield.compare import Pair, judge_all
from widefield.gallery.record import Report
from widefield.plot.style import SERIES, stderr
from widefield.question.network import Network
from widefield.question.task import Task

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

N_MARKS = 8  # training times at which networks are compared and drawn
SMALL = 0.01  # share of the first loss below which its logarithm, not the loss itself, is what networks scatter in
RICHER = 1.2  # the nearby wrong theory has this factor on the richness
LIGHT = ("loss", "prediction", "ntk")
WANTED = (*LIGHT, "feature_kernel", "gradient_kernel")
EDGES = np.linspace(-6, 6, 49)  # of the histograms of pre-activations and pre-gradients
WORDS = {
    "loss": "loss",
    "prediction": "f",
    "ntk": "NTK",
    "feature": "Φ(t,t)",
    "gradient": "G(t,t)",
    "label_feature": "yᵀΦy/P²",
    "feature_trace": "tr Φ(t,t)",
    "gradient_trace": "tr G(t,t)",
    "density": "p(h)",
    "gradient_density": "p(z)",
}


@dataclass(frozen=True)
class Networks:
    """Finite networks: ``replicates`` of ``width`` N, and as many of N/2 with seeds of their own."""

    width: int = 1000
    replicates: int = 40
    seed: int = 2022

    @property
    def note(self) -> str:
        """What the points are."""
        sizes = f"N = {self.width} and of N = {self.width // 2}"
        return f"{self.replicates} networks of {sizes}, outputs less the initial ones, extrapolated: 1/N² is left"


@dataclass(frozen=True)
class Run:
    """One training run, in the words of `widefield.dynamics`."""

    network: Network
    task: Task
    richness: float
    rate: float
    steps: int
    weight_decay: float = 0.0
    quantities: tuple[str, ...] = WANTED

    @property
    def physics(self) -> dict[str, Any]:
        """All but the network and the task, as keywords."""
        names = ("richness", "rate", "steps", "weight_decay")
        return {name: getattr(self, name) for name in names}

    @property
    def at(self) -> list[int]:
        """Some steps, closer at the start where most happens, the first and the last one among them."""
        return [int(t) for t in np.unique(np.round(self.steps * np.linspace(0, 1, N_MARKS) ** 1.5))]

    def theory(self, *, method: str = "full", paths: int | None = None) -> "xr.Dataset":
        """Curves and kernels at infinite width; the static and the perturbative theory have no kernels but the NTK."""
        wanted = self.quantities if method in ("full", "independent") else LIGHT
        at = self.at if {"feature_kernel", "gradient_kernel"} & set(wanted) else None
        options: dict[str, Any] = {"method": method, "paths": paths, "at": at, "quantities": wanted, "progress": False}
        return reduced(wf.dynamics(self.network, self.task, **self.physics, **options), self.at)

    def trained(self, networks: Networks, seed: int) -> "xr.Dataset":
        """The same of networks, with a ``replicate`` dim and free of the offset of order 1/N; takes two seeds."""
        wide, narrow = (
            reduced(
                wf.simulate.dynamics(
                    self.network, self.task, **self.physics, width=width, replicates=networks.replicates, seed=own,
                    centered=True, at=self.at, quantities=self.quantities, progress=False,
                ),
                self.at,
            )
            for width, own in ((networks.width, seed), (networks.width // 2, seed + 1))
        )  # fmt: skip
        return 2 * wide - narrow


def reduced(solution: Solution, at: list[int]) -> "xr.Dataset":
    """Losses over all steps; outputs, NTK and kernels at the times ``at``; two-time kernels averaged over samples.

    ``label_feature`` is yᵀΦ(t,t)y/P² of every layer. Standard errors of sums are bounded by the sum of those of the terms.
    """
    import xarray as xr

    data = solution.data.drop_vars("time")
    data = data.assign_coords(step=np.arange(data.sizes["step"]))
    found = {name: data[name] for name in ("loss", "loss_stderr") if name in data}
    for name in {"prediction", "ntk", "prediction_stderr", "ntk_stderr"} & set(data.data_vars):
        found[name] = data[name].sel(step=at).rename(step="at")
    for kernel, suffix in product(("feature", "gradient"), ("", "_stderr")):
        field = data.get(f"{kernel}_kernel{suffix}")
        if field is not None:
            found[f"{kernel}{suffix}"] = diagonal(field, "at")
            found[f"{kernel}_trace{suffix}"] = diagonal(field, "sample").mean("sample")
    for suffix in ("", "_stderr"):
        if f"feature{suffix}" in found and solution.task is not None:
            found[f"label_feature{suffix}"] = along_labels(found[f"feature{suffix}"], solution.task, bound=bool(suffix))
    for name, density in (("preactivation", "density"), ("pregradient", "gradient_density")):
        if name in data:
            found |= densities(data[name], density)
    return xr.Dataset({name: field.reset_coords(drop=True) for name, field in found.items()}).assign_coords(at=at)


def densities(field: "xr.DataArray", name: str) -> dict[str, "xr.DataArray"]:
    """Histograms of h or z of the first sample at the end, over ``bin``, with the error of independent draws for a theory."""
    import xarray as xr

    draws = "neuron" if "neuron" in field.dims else "path"
    field = field.isel({"sample": 0} | ({"at": -1} if "at" in field.dims else {}))
    values = field.transpose(..., draws).values
    width, n = EDGES[1] - EDGES[0], values.shape[-1]
    count = np.stack([np.histogram(row, EDGES)[0] for row in values.reshape(-1, n)]).reshape(*values.shape[:-1], -1)
    dims = [dim for dim in field.dims if dim != draws]
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    found = xr.DataArray(count / (n * width), dims=(*dims, "bin"), coords={"bin": middle})
    if "replicate" in dims:
        return {name: found}
    return {name: found, f"{name}_stderr": np.sqrt(found / (n * width))}


def along_labels(kernel: "xr.DataArray", task: Task, *, bound: bool = False) -> "xr.DataArray":
    """yᵀKy/P² of the first output's labels; ``bound`` takes |y|, for an upper bound of the standard error."""
    import xarray as xr

    y = task.labels()[:, 0, 0] / task.n_samples
    y = np.abs(y) if bound else y
    return (kernel * xr.DataArray(y, dims="sample") * xr.DataArray(y, dims="sample_")).sum(("sample", "sample_"))


def diagonal(field: "xr.DataArray", dim: str) -> "xr.DataArray":
    """The entries where ``dim`` and its second copy are equal."""
    import xarray as xr

    same = xr.DataArray(np.arange(field.sizes[dim]), dims=dim)
    return field.isel({f"{dim}_": same}).drop_vars(f"{dim}_", errors="ignore")


def two_classes(n_samples: int, dimension: int, seed: int) -> Task:
    """Random inputs of length √D, the first half of which is labelled 1 and the rest −1."""
    x = np.random.default_rng(seed).standard_normal((n_samples, dimension))
    y = np.where(np.arange(n_samples) < n_samples / 2, 1.0, -1.0)
    return Task(x * np.sqrt(dimension) / np.linalg.norm(x, axis=1, keepdims=True), y)


def family(
    name: str,
    dim: str,
    runs: Mapping[float, Run],
    networks: Networks,
    *,
    seed: int,
    paths: int | None = None,
    report: Callable[[str], None] = lambda what: None,
) -> "xr.Dataset":
    """Fields ``<name>_<field>``, with ``_sampled`` for networks and ``_richer`` for a larger richness, over ``dim``.

    Members of different depth are padded with NaN along ``layer``. ``paths`` as in `widefield.dynamics`.
    """
    import xarray as xr

    blocks = []
    for i, (value, run) in enumerate(runs.items()):
        report(f"{name}, {dim} {value:g}")
        parts = {
            "": run.theory(paths=paths),
            "_richer": replace(run, richness=RICHER * run.richness).theory(paths=paths),
        }
        parts["_sampled"] = run.trained(networks, networks.seed + seed + 2 * i)
        named = {
            _named(name, str(field), suffix): part[field] for suffix, part in parts.items() for field in part.data_vars
        }
        blocks.append(xr.Dataset(named).expand_dims({dim: [value]}))
    return marked(xr.concat(blocks, dim, join="outer"))


def _named(name: str, field: str, suffix: str) -> str:
    """The standard errors of the wrong theory are kept apart from those of the right one."""
    plain = field.removesuffix("_stderr")
    return f"{name}_{plain}{suffix}{field.removeprefix(plain)}"


def marked(data: "xr.Dataset") -> "xr.Dataset":
    """``data`` whose fields say so where they are padded."""
    for field in data.data_vars.values():
        if bool(np.isnan(field).any()):
            field.attrs["nan"] = "no such layer"
    return data


def pairs(data: "xr.Dataset", name: str, dim: str, label: str, fields: Iterable[str]) -> Iterator[Pair]:
    """One pair per member of a family and field; losses at the marked times, layers that do not exist left out."""
    for field, value in product(fields, data[dim].values):
        names = [f"{name}_{field}{suffix}" for suffix in ("", "_sampled", "_stderr")]
        parts = [data[part].sel({dim: value}) for part in names if part in data]
        if "step" in parts[0].dims:
            at = visible(parts[0], data["at"].values)
            parts = [part.sel(step=at) for part in parts]
        if "at_" in parts[0].dims:
            parts = [diagonal(part, "at") for part in parts]
        if "layer" in parts[0].dims:
            parts = [part.dropna("layer", how="all") for part in parts]
        yield Pair(f"{WORDS[field]} {label.format(f'{value:g}')}", parts[0], parts[1], parts[2:])


def visible(loss: "xr.DataArray", at: np.ndarray) -> np.ndarray:
    """Those of the steps ``at`` before the loss has all but vanished."""
    return np.asarray([t for t in at if loss.sel(step=t) >= SMALL * loss.sel(step=0)])


def power(data: "xr.Dataset", compared: Callable[["xr.Dataset"], Iterable[Pair]]) -> str:
    """A note that says how much of a nearby wrong theory, the fields ``_richer``, the comparison rejects."""
    wrong = {str(name).removesuffix("_richer"): data[name] for name in data.data_vars if str(name).endswith("_richer")}
    rejected = [row.agrees is False for row in judge_all(compared(data.assign(wrong)))]
    return f"the theory at {RICHER:g} times the richness is rejected in {sum(rejected)} of {len(rejected)} rows"


def similarity(kernel: "xr.DataArray", other: "xr.DataArray") -> "xr.DataArray":
    """Cosine between kernels over their samples."""
    total = lambda field: field.sum(("sample", "sample_"), skipna=False)  # noqa: E731
    return total(kernel * other) / np.sqrt(total(kernel**2) * total(other**2))


def points(
    ax: "Axes", x: Any, samples: "xr.DataArray", *, color: str, marker: str = "o", label: str | None = None
) -> None:
    """Mean and standard error of networks over one dim."""
    values = samples.transpose("replicate", ...).values
    ax.errorbar(
        x, values.mean(axis=0), stderr(values), fmt=marker, markersize=3.5, color=color, linestyle="none", label=label
    )


def curve(ax: "Axes", data: "xr.Dataset", field: str, where: dict[str, Any], *, color: str, label: str) -> None:
    """Theory as a line over the step, networks at the marked times with their standard errors."""
    ax.plot(data.step, data[field].sel(where), color=color, label=label)
    at = data["at"].values
    points(ax, at, data[f"{field}_sampled"].sel(where).sel(step=at), color=color)


def counter(report: Report, total: int) -> Callable[[str], None]:
    """Reports the next of ``total`` jobs each time it is called."""
    done = iter(range(total))
    return lambda what: report(next(done), total, what)


def stacked(ax: "Axes", kernels: Mapping[str, np.ndarray], title: str) -> None:
    """Kernels (layer, sample, sample) as images on one colour scale, a row for each of ``kernels``."""
    n_layers, n = next(iter(kernels.values())).shape[:2]
    gap = ((0, 1), (0, 1))
    rows = [[np.pad(k, gap, constant_values=np.nan) for k in row] for row in kernels.values()]
    image = ax.imshow(np.block(rows)[:-1, :-1], cmap="cividis", interpolation="nearest")
    middle = lambda count: [(n + 1) * i + (n - 1) / 2 for i in range(count)]  # noqa: E731
    ax.set_xticks(middle(n_layers), [f"{i + 1}" for i in range(n_layers)])
    ax.set_yticks(middle(len(kernels)), list(kernels), rotation=90, va="center")
    ax.tick_params(length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.set(xlabel=r"layer $\ell$", title=title)
    ax.figure.colorbar(image, ax=ax, shrink=0.7)


def two_times(ax: "Axes", label: str, theory: "xr.DataArray", trial: "xr.DataArray") -> None:
    """Two-time kernels (layer, at, at_) against t, at s = t and at s = 0."""
    at = theory["at"].values
    for layer, color in zip(range(theory.sizes["layer"]), SERIES, strict=False):
        one, many = (part.isel(layer=layer) for part in (theory, trial))
        for style in ("-", "--"):
            pick = partial(diagonal, dim="at") if style == "-" else lambda kernel: kernel.isel(at_=0)
            ax.plot(at, pick(one), color=color, linestyle=style, label=rf"$\ell={layer + 1}$" if style == "-" else None)
            points(ax, at, pick(many), color=color)
    ax.set(xlabel="step $t$", ylabel=label, title="$s=t$ (solid), $s=0$ (dashed)", ylim=(None, 1.12 * ax.get_ylim()[1]))
    ax.legend(fontsize=7, ncols=theory.sizes["layer"])  # above the curves


def ticks_at(ax: "Axes", values: np.ndarray) -> None:
    """Ticks at the ``values`` themselves, on a logarithmic horizontal axis."""
    ax.set_xscale("log")
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.set_xticks([], minor=True)
