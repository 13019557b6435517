"""The experiment behind the paper's figures: losses, kernels and densities of one training, in theory and in networks of two widths."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit

N_MARKS = 8  # training times at which networks are compared and drawn
SMALL = 0.01  # share of the first loss below which its logarithm, not the loss itself, is what networks scatter in
RICHER = 1.2  # the nearby wrong theory has this factor on the richness
LIGHT = ("loss", "prediction", "ntk")
WANTED = (*LIGHT, "feature_kernel", "gradient_kernel")
EDGES = np.linspace(-6, 6, 49)  # of the histograms of pre-activations and pre-gradients
KERNELS = {"feature": r"\Phi", "gradient": "G"}
LAZY = 0.02  # richness of the networks that stand for zero: features move by its square
LOSS = r"loss $\frac{1}{2}\Sigma\Delta^2$"
WORDS = {
    "loss": "loss",
    "label_feature": "yᵀΦy/P²",
    "feature_trace": "tr Φ(t,t)",
    "gradient_trace": "tr G(t,t)",
    "density": "p(h)",
    "gradient_density": "p(z)",
}


class Question(NamedTuple):
    """Everything but the size; outputs are counted from the initial ones."""

    network: wf.Network
    task: wf.Task
    training: wf.Training

    @staticmethod
    def of(
        network: wf.Network, task: wf.Task, rate: float, steps: int, richness: float, weight_decay: float = 0.0
    ) -> "Question":
        """Centered gradient descent."""
        training = wf.Training(rate, steps, richness=richness, weight_decay=weight_decay, centered=True)
        return Question(network, task, training)

    def at_richness(self, richness: float) -> "Question":
        """The same at another richness."""
        return self._replace(training=replace(self.training, richness=richness))

    @property
    def at(self) -> list[int]:
        """The steps that are compared and drawn."""
        return kit.marks(self.training.steps, N_MARKS).tolist()


@dataclass(frozen=True)
class Ensemble:
    """Finite networks: ``replicates`` of ``width`` N, and as many of N/2 with seeds of their own."""

    width: int = 1000
    replicates: int = 40
    seed: int = 2022


@dataclass(frozen=True)
class TwoClasses(Ensemble):
    """Random inputs of two classes, learned by ``steps`` steps of ``rate``."""

    n_samples: int = 10
    dimension: int = 20
    rate: float = 0.02
    steps: int = 100

    @property
    def task(self) -> wf.Task:
        return two_classes(self.n_samples, self.dimension, self.seed)

    def question(self, depth: int, activation: str, richness: float) -> Question:
        return Question.of(wf.DNN(depth, activation), self.task, self.rate, self.steps, richness)


@dataclass(frozen=True)
class Kernels(kit.Experiment[Question]):
    """Curves and kernels; networks are free of the offset of order 1/N. ``paths`` as in `widefield.dynamics`."""

    ensemble: Ensemble
    quantities: tuple[str, ...] = WANTED
    paths: int | None = None
    suffix = "richer"
    wrong_theory = f"the theory at {RICHER:g} times the richness"

    @property
    def first_seed(self) -> int:
        return self.ensemble.seed

    @property
    def note(self) -> str:
        p = self.ensemble
        sizes = f"N = {p.width} and of N = {p.width // 2}"
        return f"{p.replicates} networks of {sizes}, outputs less the initial ones, extrapolated: 1/N² is left"

    def theory(self, question: Question, *, method: str = "full") -> xr.Dataset:
        """The static and the perturbative theory are compared by their NTK; the latter is shown where it fails too."""
        wanted = self.quantities if method in ("full", "independent") else LIGHT
        at = question.at if {"feature_kernel", "gradient_kernel"} & set(wanted) else None
        options: dict[str, Any] = {"throw": method != "perturbative", "paths": self.paths if method == "full" else None}
        solution = wf.dynamics(*question, method=method, at=at, quantities=wanted, progress=False, **options)
        return reduced(solution, question.at)

    def sampled(self, question: Question, seed: int) -> xr.Dataset:
        def networks(width: int, seed: int) -> xr.Dataset:
            trial = wf.simulate.dynamics(
                *question, width=width, replicates=self.ensemble.replicates, seed=seed, at=question.at,
                quantities=self.quantities, progress=False,
            )  # fmt: skip
            return reduced(trial, question.at)

        return kit.extrapolated(networks, self.ensemble.width, seed)

    def wrong(self, question: Question) -> Question:
        return question.at_richness(RICHER * question.training.richness)

    def compared(self, field: str, parts: list[xr.DataArray]) -> tuple[str, list[xr.DataArray]]:
        """Losses at the marked times, two-time kernels at equal ones; layers that do not exist are left out."""
        if "step" in parts[0].dims:
            at = visible(parts[0], kit.marks(parts[0].sizes["step"] - 1, N_MARKS))
            parts = [part.sel(step=at) for part in parts]
        if "at_" in parts[0].dims:
            parts = [kit.diagonal(part, "at") for part in parts]
        if "layer" in parts[0].dims:
            parts = [part.dropna("layer", how="all") for part in parts]
        return WORDS[field], parts


def reduced(solution: wf.Solution, at: list[int]) -> xr.Dataset:
    """Losses over all steps; outputs, NTK and kernels at the times ``at``; two-time kernels averaged over samples.

    ``label_feature`` is yᵀΦ(t,t)y/P² of every layer. Standard errors of sums are bounded by the sum of those of the terms.
    """
    data, fields = solution.data.drop_vars("time"), {}
    data = data.assign_coords(step=np.arange(data.sizes["step"]))
    for suffix in ("", "_stderr"):
        if f"loss{suffix}" in data:
            fields[f"loss{suffix}"] = data[f"loss{suffix}"]
        for name in (f"prediction{suffix}", f"ntk{suffix}"):
            if name in data:
                fields[name] = data[name].sel(step=at).rename(step="at")
        for kernel in KERNELS:
            field = data.get(f"{kernel}_kernel{suffix}")
            if field is not None:
                fields[f"{kernel}{suffix}"] = kit.diagonal(field, "at")
                fields[f"{kernel}_trace{suffix}"] = kit.diagonal(field, "sample").mean("sample")
        if f"feature{suffix}" in fields and solution.task is not None:
            feature = fields[f"feature{suffix}"]
            fields[f"label_feature{suffix}"] = along_labels(feature, solution.task, bound=bool(suffix))
    for name, density in (("preactivation", "density"), ("pregradient", "gradient_density")):
        if name in data:
            fields |= densities(data[name], density)
    return xr.Dataset({name: field.reset_coords(drop=True) for name, field in fields.items()}).assign_coords(at=at)


def densities(field: xr.DataArray, name: str) -> dict[str, xr.DataArray]:
    """Histograms of h or z of the first sample at the end, over ``bin``, with the error of independent draws for a theory."""
    draws = "neuron" if "neuron" in field.dims else "path"
    field = field.isel({"sample": 0} | ({"at": -1} if "at" in field.dims else {})).transpose(..., draws)
    width, n = EDGES[1] - EDGES[0], field.sizes[draws]
    count = np.apply_along_axis(lambda row: np.histogram(row, EDGES)[0], -1, field.values)
    coords = {"bin": (EDGES[1:] + EDGES[:-1]) / 2}
    density = xr.DataArray(count / (n * width), dims=(*field.dims[:-1], "bin"), coords=coords)
    return {name: density} | ({} if draws == "neuron" else {f"{name}_stderr": np.sqrt(density / (n * width))})


def along_labels(kernel: xr.DataArray, task: wf.Task, *, bound: bool = False) -> xr.DataArray:
    """yᵀKy/P² of the first output's labels; ``bound`` takes |y|, for an upper bound of the standard error."""
    y = task.labels()[:, 0, 0] / task.n_samples
    y = np.abs(y) if bound else y
    return (kernel * xr.DataArray(y, dims="sample") * xr.DataArray(y, dims="sample_")).sum(("sample", "sample_"))


def two_classes(n_samples: int, dimension: int, seed: int) -> wf.Task:
    """Random inputs of length √D, the first half of which is labeled 1 and the rest −1."""
    x = np.random.default_rng(seed).standard_normal((n_samples, dimension))
    y = np.where(np.arange(n_samples) < n_samples / 2, 1.0, -1.0)
    return wf.Task(x * np.sqrt(dimension) / np.linalg.norm(x, axis=1, keepdims=True), y)


def visible(loss: xr.DataArray, at: Iterable[int]) -> np.ndarray:
    """Those of the steps ``at`` before the loss has all but vanished."""
    return np.asarray([t for t in at if loss.sel(step=t) >= SMALL * loss.sel(step=0)])


def cosine(kernel: xr.DataArray, other: xr.DataArray, over: tuple[str, ...] = ("sample", "sample_")) -> xr.DataArray:
    """Between kernels, over the dims ``over``."""
    total = lambda field: field.sum(over, skipna=False)  # noqa: E731
    return total(kernel * other) / np.sqrt(total(kernel**2) * total(other**2))


def by_method(
    p: Ensemble, question: Question, methods: Iterable[str], fields: tuple[str, ...], seed: int
) -> dict[str, xr.DataArray]:
    """``<field>_<method>`` of the theories that have the field, and ``<field>_sampled``."""
    experiment = Kernels(p)
    parts = {method: experiment.theory(question, method=method) for method in methods}
    parts["sampled"] = experiment.sampled(question, seed)
    return {f"{field}_{name}": part[field] for name, part in parts.items() for field in fields if field in part}


def rich(question: Question, richnesses: Iterable[float], fields: tuple[str, ...]) -> tuple[kit.Family[Question]]:
    """Fields ``rich_<field>`` over ``richness``."""
    members = {gamma: question.at_richness(gamma) for gamma in richnesses}
    return (kit.Family("rich", "richness", "γ0 = {}", fields, members),)


def lazy_limit(experiment: Kernels, question: Question, job: kit.Job) -> dict[str, xr.DataArray]:
    """The loss of the static theory, and of networks that hardly learn features."""
    job("the static limit")
    light = replace(experiment, quantities=LIGHT)
    networks = light.sampled(question.at_richness(LAZY), experiment.first_seed + 100)
    return {"lazy_loss": light.theory(question, method="lazy").loss, "lazy_loss_sampled": networks.loss}


def lazy_pair(data: xr.Dataset) -> kit.Pairs:
    """The lazy loss, before it has all but vanished."""
    at = visible(data.lazy_loss, data["at"].values)
    yield kit.Pair("loss, lazy", data.lazy_loss.sel(step=at), data.lazy_loss_sampled.sel(step=at))


def loss_panel(
    ax: kit.Axes, data: xr.Dataset, p: Any, title: str, name: str = "rich", dim: str = "richness", symbol: str = r"\gamma_0"
) -> None:  # fmt: skip
    """Losses of a family, and of the lazy limit where there is one."""
    at = data["at"].values
    if "lazy_loss" in data:
        kit.curve(ax, data.lazy_loss, data.lazy_loss_sampled, at=at, color=kit.COLORS["theory"], label="lazy")
    kit.curves(ax, data, f"{name}_loss", dim, symbol, at=at)
    ax.set(xlabel="step $t$", ylabel=LOSS, title=title, ylim=(0, None))
    ax.legend()


def kernel_panels(
    where: dict[str, float], title: str, name: str = "rich", kernels: Iterable[str] = KERNELS, times: Iterable[str] = KERNELS
) -> list[partial]:  # fmt: skip
    """Final ``kernels``, then those at two ``times``; ``title`` has a place for the symbol."""
    final = [partial(_final, where=where, kernel=kernel, title=title, name=name) for kernel in kernels]
    return [*final, *(partial(_at_two_times, where=where, kernel=kernel, name=name) for kernel in times)]


def _final(ax: kit.Axes, data: xr.Dataset, p: Any, where: dict[str, float], kernel: str, title: str, name: str) -> None:
    """A kernel of every layer at the end, of theory and networks."""
    case = data.sel(where).isel(at=-1)
    networks = case[f"{name}_{kernel}_sampled"].mean("replicate")
    kit.layers(ax, {"theory": case[f"{name}_{kernel}"], "networks": networks}, title.format(KERNELS[kernel]))


def _at_two_times(ax: kit.Axes, data: xr.Dataset, p: Any, where: dict[str, float], kernel: str, name: str) -> None:
    field, case = f"{name}_{kernel}_trace", data.sel(where)
    theory, samples = (case[f"{field}{part}"].dropna("layer", how="all") for part in ("", "_sampled"))
    kit.two_times(ax, theory, samples, rf"$\mathrm{{tr}}\,{KERNELS[kernel]}^\ell(t,s)/P$")
