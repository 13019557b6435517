"""Panel 6 of the poster: a rotating teacher shown at some states only, and what both architectures make of the others.

The labeled states have both parities next to each other, (0, 1) and (3, 4). With 0, 1, 3 and 5 only the first label
tells W from −W, and chains of finite networks that start at random are caught by the wrong one now and then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bauer import sampling
from widefield.gallery.bauer.sampling import KINDS, SPECTRA, Blocks, Sampling, entries, limit

N_SPECTRA = 6  # networks whose eigenvalues are drawn
PARTS = ("supervised", "unsupervised")


@dataclass(frozen=True)
class Parameters(Sampling):
    """The teacher turns by ``angle`` (degrees) from state to state; ``supervised`` states have labels.

    w = ``weight_variance`` is below 1, so that the teacher's eigenvalues, of modulus 1, lie outside the bulk. Sweeps
    are means over ``n_tasks`` teachers: ``n_supervised`` of the states in ``order``, and ``n_samples``.
    """

    temperature: float = 0.1
    depth: int = 6
    angle: float = 45.0
    weight_variance: float = 0.25
    inputs: int = 2
    dimension: int = 2
    order: tuple[int, ...] = (0, 1, 3, 4, 2)
    n_labeled: int = 4
    n_supervised: tuple[int, ...] = (1, 2, 3, 4, 5)
    n_samples: tuple[int, ...] = (1, 2, 4, 8)
    n_tasks: int = 20
    n_test: int = 50
    seed: int = 2028

    @property
    def supervised(self) -> tuple[int, ...]:
        return tuple(sorted(self.order[: self.n_labeled]))

    def network(self, kind: str) -> wf.Network:
        return sampling.linear(kind, self.depth, self.weight_variance)

    def task(
        self, n_samples: int, supervised: tuple[int, ...], *, seed: int, n_test: int = 0
    ) -> tuple[wf.Task, wf.Task]:
        """The task with labels at all states, and with those at ``supervised`` states only."""
        whole = wf.tasks.rotation(n_samples, self.dimension, self.depth, np.radians(self.angle), seed, n_test)
        assert whole.y is not None
        return whole, wf.Task(whole.x, whole.y[:, list(supervised)], supervised=supervised, x_test=whole.x_test)


FULL = Parameters(width=800)
QUICK = Parameters(
    width=128, n_chains=12, steps=100, warmup=80, n_supervised=(2, 3, 4), n_samples=(1, 2, 4), n_tasks=6, n_test=20
)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Kernels, predictors and spectra of one task, theory and sampled; test errors of many, theory alone."""
    job = work.jobs(4)
    blocks, trials = sampling.collect(one_kind(p, kind, p.seed + 10 * i, job) for i, kind in enumerate(KINDS))
    job("test errors over the number of supervised states")
    sets = {n: (p.inputs, tuple(sorted(p.order[:n]))) for n in p.n_supervised}
    blocks.append(errors_over(p, "n_supervised", sets))
    job("test errors over the number of samples")
    blocks.append(errors_over(p, "n_samples", {n: (n, p.supervised) for n in p.n_samples}))
    data, sweeps = xr.merge(blocks), "2 · wide − narrow against infinite width; the sweeps are theory alone"
    notes = (sweeps, outside(data, p), *sampling.mixing(trials))
    rows = sampling.verdicts(pairs(data, p), trials)
    by_state = partial(_errors, dim="n_supervised", words="supervised states", title=f"theory, {p.inputs} samples")
    title = f"theory, {p.n_labeled} supervised states"
    by_sample = partial(_errors, dim="n_samples", words="samples", title=title)
    predictors = [partial(_predictor, kind=kind) for kind in KINDS]
    panels: kit.Panels = [[*_kernels(data, p), _spectrum], [*predictors, by_state, by_sample]]
    return kit.made(panels, data, p, rows, size=(2.9, 2.7), notes=notes, numbers=numbers(data))


def one_kind(p: Parameters, kind: str, seed: int, job: kit.Job) -> Blocks:
    """Fields ``<kind>_<quantity>`` of theory and, with ``_wide`` and ``_narrow``, of sampled networks."""
    job(f"{kind}: theory and {p.n_chains} chains at widths {tuple(p.sizes.values())}")
    whole, task = p.task(p.inputs, p.supervised, seed=p.seed)
    network, spectra = p.network(kind), SPECTRA if kind == "RNN" else ()
    state, observe = sampling.theory(network, task, p.temperature), partial(observed, kind=kind)
    wanted = ("hidden", "prediction", *spectra)
    fields, trials = sampling.both_sizes(p, network, task, kind, seed=seed, quantities=wanted, observe=observe)
    fields |= observe(state)
    if spectra:
        fields |= {part: trials[0][1].data[part] for part in spectra}
        top = sampling.leading_eigenvalue(state, outside=False)
        fields |= {"angle": xr.DataArray(np.degrees(abs(np.angle(top)))), "modulus": xr.DataArray(abs(top))}
        assert whole.y is not None
        fields["label"] = xr.DataArray(whole.y[:, :, 0].T, dims=("state", "sample"))
    return xr.Dataset(fields).drop_vars("output", errors="ignore"), trials


def observed(solution: wf.Solution, kind: str) -> dict[str, xr.DataArray]:
    """Kernel between states, predictor, and angle (degrees, 0 to 180) and modulus of sampled largest eigenvalues."""
    kernel, prediction = sampling.state_traces(solution.hidden), solution.prediction.isel(output=0)
    fields = {f"{kind}_kernel": kernel, f"{kind}_prediction": prediction}
    if "eigenvalue_real" in solution.data:
        z = sampling.eigenvalues(solution)
        top = z.isel(eigenvalue=abs(z).argmax("eigenvalue"))
        angle = top.copy(data=np.degrees(np.abs(np.angle(top.values)))).drop_vars("eigenvalue", errors="ignore")
        fields |= {"angle": angle, "modulus": abs(z).max("eigenvalue")}
    return fields


def errors_over(p: Parameters, dim: str, sets: dict[int, tuple[int, tuple[int, ...]]]) -> xr.Dataset:
    """``error_over_<dim>`` (kind, task, <dim>, part) for (samples, supervised states) in ``sets``."""
    errors = [[[errors_of(p, kind, *which, i) for which in sets.values()] for i in range(p.n_tasks)] for kind in KINDS]
    coords = {"kind": list(KINDS), dim: list(sets), "part": list(PARTS)}
    return xr.Dataset({f"error_over_{dim}": (("kind", "task", dim, "part"), np.array(errors))}, coords=coords)


def errors_of(p: Parameters, kind: str, n_samples: int, supervised: tuple[int, ...], i: int) -> list[float]:
    """Squared errors on new inputs at supervised and at other states, relative to the i-th teacher's square there."""
    whole, task = p.task(n_samples, supervised, seed=p.seed + i, n_test=p.n_test)
    assert whole.y_test is not None
    solution = wf.posterior(
        p.network(kind), task, temperature=p.temperature, quantities=("test_prediction",), progress=False
    )
    target = whole.y_test[:, :, 0].T
    miss = solution.test_prediction.isel(output=0).transpose("state", "test").values - target
    labeled = np.isin(np.arange(p.depth), supervised)
    return [float(np.sum(miss[part] ** 2) / np.sum(target[part] ** 2)) for part in (labeled, ~labeled)]


def pairs(data: xr.Dataset, p: Parameters) -> kit.Pairs:
    """Predictors at labeled and other states, kernels, and the leading eigenvalue of W."""
    rest = [state for state in range(p.depth) if state not in p.supervised]
    for kind in KINDS:
        line, sampled = data[f"{kind}_prediction"].round(12), limit(data, f"{kind}_prediction")
        for part, states in zip(PARTS, (list(p.supervised), rest)):
            if states:
                yield kit.Pair(f"f {kind}, {part}", line.isel(state=states), sampled.isel(state=states))
        yield kit.Pair(f"H {kind}", entries(data[f"{kind}_kernel"]), entries(limit(data, f"{kind}_kernel")))
    if data.modulus > p.weight_variance**0.5:
        yield kit.Pair("angle of z", data.angle, limit(data, "angle"))
        yield kit.Pair("|z|", data.modulus, limit(data, "modulus"))


def outside(data: xr.Dataset, p: Parameters) -> str:
    """What the theory says of the leading eigenvalues of W."""
    where = f"{float(data.modulus):.3f} at ±{float(data.angle):.2f}°, the teacher's 1 at ±{p.angle:g}°"
    radius = p.weight_variance**0.5
    inside = "" if data.modulus > radius else ", inside the bulk: not compared"
    return f"leading eigenvalues of W: {where}, bulk {radius:g}{inside}"


def numbers(data: xr.Dataset) -> Iterator[dict[str, Any]]:
    """Test errors at unsupervised states, means over tasks."""
    for name, kind in product(("n_supervised", "n_samples"), KINDS):
        for n, case in kit.cases(data[[f"error_over_{name}"]].sel(kind=kind, part="unsupervised"), name):
            values = case[f"error_over_{name}"].values
            place = {"quantity": "test error at unsupervised states", "kind": kind, name: int(n)}
            yield {**place, "mean": float(values.mean()), "stderr": float(kit.stderr(values))}


def _kernels(data: xr.Dataset, p: Parameters) -> Iterator[kit.Panel]:
    top = max(float(np.abs(data[f"{kind}_kernel"]).max()) for kind in KINDS)
    sampled = data.RNN_kernel_wide.mean("replicate")
    shown = {"RNN, theory": data.RNN_kernel, f"RNN, $N={p.width}$": sampled, "DNN, theory": data.DNN_kernel}
    for title, kernel in shown.items():
        symbol = r"$\mathrm{tr}\,H_{ab}/P$" if title.startswith("DNN") else ""
        yield kit.image(kernel, title, symbol, sampling.STATES, (-top, top))


def _predictor(ax: kit.Axes, data: xr.Dataset, p: Parameters, kind: str) -> None:
    """The output at every state for the input with the largest labels; supervised states are shaded."""
    states, color = np.arange(p.depth), kit.COLORS[kind]
    shown = data.isel(sample=int(np.argmax(np.abs(data.label).sum("state").values)))
    for i, state in enumerate(p.supervised):
        ax.axvspan(state - 0.3, state + 0.3, color="0.9", linewidth=0, label=None if i else "supervised")
    ax.plot(states, shown.label, color="black", marker="_", markersize=12, linestyle="none", label="teacher")
    ax.plot(states, shown[f"{kind}_prediction"], color=color, label="theory")
    look: dict[str, Any] = {"marker": "D", "size": 4, "face": "none", "label": f"$N={p.width}$"}
    kit.points(ax, states, shown[f"{kind}_prediction_wide"], color=color, **look)
    span = float(np.abs(shown.label).max())
    ax.set(xlabel="state $a$", ylabel="output $f^a$", title=kind, ylim=(-1.3 * span, 1.9 * span))
    ax.set_xlim(-0.5, p.depth - 0.5)
    ax.set_xticks(states)
    if kind == KINDS[0]:
        ax.legend(fontsize=6.5, loc="upper right", ncols=2, frameon=True, edgecolor="none", framealpha=1.0)


def _errors(ax: kit.Axes, data: xr.Dataset, p: Parameters, dim: str, words: str, title: str) -> None:
    """Unsupervised states solid, supervised ones dashed."""
    for kind, part in product(KINDS, PARTS):
        samples, line = data[f"error_over_{dim}"].sel(kind=kind, part=part), "--" if part == "supervised" else "-"
        look: dict[str, Any] = {"marker": kit.MARKERS[kind], "color": kit.COLORS[kind], "size": 4.5, "capsize": 2}
        kit.points(ax, data[dim].values, samples, over="task", label=f"{kind}, {part}", line=line, **look)
    ax.set(xlabel=words, ylabel="relative test error", title=title)
    ax.set_ylim(-0.05, max(1.15, ax.get_ylim()[1]))
    ax.set_xticks(data[dim].values)
    if dim == "n_samples":
        ax.legend(fontsize=6.5, loc="center right", handlelength=3)


def _spectrum(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    z = sampling.eigenvalues(data).values[:N_SPECTRA].ravel()
    sampling.spectrum_panel(ax, z, p.weight_variance**0.5, "RNN: eigenvalues of $W$")
    turn, outlier = np.radians(p.angle), np.radians(float(data.angle))
    for sign, ray_label, spot_label in ((1, "teacher", "theory"), (-1, None, None)):
        ray, spot = 1.25 * np.exp(1j * sign * turn), float(data.modulus) * np.exp(1j * sign * outlier)
        ax.plot([0, ray.real], [0, ray.imag], color="0.6", linewidth=0.8, zorder=0, label=ray_label)
        ax.plot(spot.real, spot.imag, label=spot_label, **sampling.OUTLIER)
    ax.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2))
    ax.legend(fontsize=6.5, loc="upper left")
