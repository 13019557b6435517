"""Panel 6 of the poster: a rotating teacher seen at some states only, and what both architectures make of the others.

The labelled states have both parities next to each other, (0, 1) and (3, 4). With 0, 1, 3 and 5 only the first label
tells W from −W, and chains of finite networks that start at random are caught by the wrong one now and then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.answer.solution import Solution
from widefield.compare import Pair
from widefield.gallery import bauer
from widefield.gallery.bauer import KINDS
from widefield.gallery.bauer_efficiency import Teacher, draw_errors, sweep
from widefield.gallery.record import Made, Report
from widefield.plot.style import COLORS, Figure, house_style, letter, panels, stderr

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

N_SPECTRA = 6  # networks whose eigenvalues are drawn
SPECTRA = ("eigenvalue_real", "eigenvalue_imag")


@dataclass(frozen=True)
class Parameters(bauer.Sampling):
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
    n_labelled: int = 4
    n_supervised: tuple[int, ...] = (1, 2, 3, 4, 5)
    n_samples: tuple[int, ...] = (1, 2, 4, 8)
    n_tasks: int = 20
    n_test: int = 50
    seed: int = 2028

    @property
    def supervised(self) -> tuple[int, ...]:
        return tuple(sorted(self.order[: self.n_labelled]))

    @property
    def teacher(self) -> Teacher:
        return Teacher(self.depth, self.dimension, self.angle, self.weight_variance, self.temperature)


FULL = Parameters(width=800)
QUICK = Parameters(
    width=128, n_chains=12, steps=100, warmup=80, n_supervised=(2, 3, 4), n_samples=(1, 2, 4), n_tasks=6, n_test=20
)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Kernels, predictors and spectra of one task, theory and sampled; test errors of many, theory alone."""
    import xarray as xr

    p, trials, blocks = parameters, [], []
    for i, kind in enumerate(KINDS):
        report(i, 4, f"{kind}: theory and {p.n_chains} chains at widths {p.widths}")
        block, found = one_kind(p, kind, seed=p.seed + 10 * i)
        blocks.append(block)
        trials += found
    report(2, 4, "test errors over the number of supervised states")
    sets = [(p.inputs, tuple(sorted(p.order[:n]))) for n in p.n_supervised]
    blocks.append(sweep(p.teacher, sets, p.n_tasks, p.n_test, p.seed, dim="n_supervised", labels=p.n_supervised))
    report(3, 4, "test errors over the number of samples")
    sets = [(n, p.supervised) for n in p.n_samples]
    blocks.append(sweep(p.teacher, sets, p.n_tasks, p.n_test, p.seed, dim="n_samples", labels=p.n_samples))
    report(4, 4, "drawing")
    data = xr.merge(blocks)
    made = bauer.verdict(pairs(data, p), trials)
    made["numbers"] += list(numbers(data))
    notes = ("2 · wide − narrow against infinite width; the sweeps are theory alone", *outside(data, p))
    return Made(draw(data, p), data, p, notes=(*notes, *bauer.mixing(trials)), **made)


def one_kind(p: Parameters, kind: str, seed: int) -> tuple["xr.Dataset", list[bauer.Trial]]:
    """Fields ``<kind>_<quantity>`` of theory and, with ``_wide`` and ``_narrow``, of sampled networks."""
    import xarray as xr

    whole, task = p.teacher.task(p.inputs, p.supervised, seed=p.seed)
    network = p.teacher.network(kind)
    state = wf.posterior(network, task, temperature=p.temperature, progress=False)
    wanted = ("hidden", "prediction", *(SPECTRA if kind == "RNN" else ()))
    trials, fields = (
        [],
        {f"{kind}_kernel": bauer.state_traces(state.hidden), f"{kind}_prediction": outputs(state.prediction)},
    )
    for i, (size, width) in enumerate(zip(("wide", "narrow"), p.widths, strict=True)):
        trial = bauer.trained(p, network, task, width=width, seed=seed + i, quantities=wanted, start="prior")
        trials.append((f"{kind}, N = {width}", trial))
        fields[f"{kind}_kernel_{size}"] = bauer.state_traces(trial.hidden)
        fields[f"{kind}_prediction_{size}"] = outputs(trial.prediction)
        if kind == "RNN":
            angle, modulus = leading(trial)
            fields |= {f"angle_{size}": angle, f"modulus_{size}": modulus}
        if kind == "RNN" and size == "wide":
            fields |= {part: trial.data[part] for part in SPECTRA}
    if kind == "RNN":
        z = wf.spectrum(state).eigenvalues
        top = z[np.argmax(np.abs(z))]
        fields |= {"angle": xr.DataArray(np.degrees(abs(np.angle(top)))), "modulus": xr.DataArray(abs(top))}
        assert whole.y is not None
        fields["label"] = xr.DataArray(whole.y[:, :, 0].T, dims=("state", "sample"))
    return xr.Dataset(fields).drop_vars("output", errors="ignore"), trials


def outputs(prediction: "xr.DataArray") -> "xr.DataArray":
    return prediction.isel(output=0)


def leading(trial: Solution) -> tuple["xr.DataArray", "xr.DataArray"]:
    """Angle (degrees, between 0 and 180) and modulus of each network's largest eigenvalue."""
    z = trial.eigenvalue_real + 1j * trial.eigenvalue_imag
    top = z.isel(eigenvalue=abs(z).argmax("eigenvalue"))
    angle = top.copy(data=np.degrees(np.abs(np.angle(top.values))))
    return angle.drop_vars("eigenvalue", errors="ignore"), abs(z).max("eigenvalue")


def pairs(data: "xr.Dataset", p: Parameters) -> Iterator[Pair]:
    """Predictors at labelled and other states, kernels, and the leading eigenvalue of W."""
    rest = [state for state in range(p.depth) if state not in p.supervised]
    for kind in KINDS:
        names = (f"{kind}_prediction_wide", f"{kind}_prediction_narrow")
        found, line = bauer.limit(*(data[name] for name in names)), data[f"{kind}_prediction"].round(12)
        yield Pair(f"f {kind}, supervised", line.isel(state=list(p.supervised)), found.isel(state=list(p.supervised)))
        if rest:
            yield Pair(f"f {kind}, unsupervised", line.isel(state=rest), found.isel(state=rest))
        kernel = bauer.limit(data[f"{kind}_kernel_wide"], data[f"{kind}_kernel_narrow"])
        yield Pair(f"H {kind}", bauer.entries(data[f"{kind}_kernel"]), bauer.entries(kernel))
    if data.modulus > p.weight_variance**0.5:
        yield Pair("angle of z", data.angle, bauer.limit(data.angle_wide, data.angle_narrow))
        yield Pair("|z|", data.modulus, bauer.limit(data.modulus_wide, data.modulus_narrow))


def outside(data: "xr.Dataset", p: Parameters) -> tuple[str, ...]:
    """What the theory says of the leading eigenvalues of W."""
    where = f"{float(data.modulus):.3f} at ±{float(data.angle):.2f}°, the teacher's 1 at ±{p.angle:g}°"
    radius = p.weight_variance**0.5
    inside = "" if data.modulus > radius else ", inside the bulk: not compared"
    return (f"leading eigenvalues of W: {where}, bulk {radius:g}{inside}",)


def numbers(data: "xr.Dataset") -> Iterator[dict[str, Any]]:
    """Test errors at unsupervised states, means over tasks."""
    for name in ("n_supervised", "n_samples"):
        for kind in KINDS:
            for n in data[name].values:
                values = data[f"error_over_{name}"].sel({"kind": kind, name: n, "part": "unsupervised"}).values
                place = {"quantity": "test error at unsupervised states", "kind": kind, name: int(n)}
                yield {**place, "mean": float(values.mean()), "stderr": float(stderr(values))}


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Kernels above; predictors, spectrum and test errors below."""
    with house_style():
        figure, axes = panels(2, 4, size=(2.9, 2.7))
        _kernels(figure, axes[0], data, p)
        for ax, kind in zip(axes[1, :2], KINDS, strict=True):
            _predictor(ax, data, kind, p)
        framed: dict[str, Any] = {"frameon": True, "edgecolor": "none", "framealpha": 1.0}
        axes[1, 0].legend(fontsize=6.5, loc="upper right", ncols=2, **framed)
        _spectrum(axes[0, 3], data, p)
        draw_errors(axes[1, 2], data, "n_supervised", "supervised states", f"theory, {p.inputs} samples")
        draw_errors(axes[1, 3], data, "n_samples", "samples", f"theory, {p.n_labelled} supervised states")
        axes[1, 3].legend(fontsize=6.5, loc="center right", handlelength=3)
        for ax, name in zip(axes.flat, "abcdefgh", strict=True):
            letter(ax, name)
    return figure


def _kernels(figure: Figure, axes: np.ndarray, data: "xr.Dataset", p: Parameters) -> None:
    top = max(float(np.abs(data[f"{kind}_kernel"]).max()) for kind in KINDS)
    sampled = data.RNN_kernel_wide.mean("replicate").values
    images = (
        (data.RNN_kernel.values, "RNN, theory"),
        (sampled, f"RNN, $N={p.width}$"),
        (data.DNN_kernel.values, "DNN, theory"),
    )
    for ax, (values, words) in zip(axes, images, strict=False):
        image = bauer.kernel_image(ax, values, words, top, low=-top)
    figure.colorbar(image, ax=axes[2], shrink=0.8, label=r"$\mathrm{tr}\,H_{ab}/P$")


def _predictor(ax: "Axes", data: "xr.Dataset", kind: str, p: Parameters) -> None:
    """The first input's output at every state; supervised states are shaded."""
    states, shown = np.arange(p.depth), {"sample": int(np.argmax(np.abs(data.label).sum("state").values))}
    for i, state in enumerate(p.supervised):
        ax.axvspan(state - 0.3, state + 0.3, color="0.9", linewidth=0, label=None if i else "supervised")
    ax.plot(states, data.label.isel(shown), color="black", marker="_", markersize=12, linestyle="none", label="teacher")
    ax.plot(states, data[f"{kind}_prediction"].isel(shown), color=COLORS[kind], label="theory")
    samples = data[f"{kind}_prediction_wide"].isel(shown).transpose("replicate", "state").values
    bars = ax.errorbar(states, samples.mean(axis=0), yerr=stderr(samples), linestyle="none", color=COLORS[kind])
    bars[0].set(marker="D", markersize=4, markerfacecolor="none", label=f"$N={p.width}$")
    span = float(np.abs(data.label.isel(shown)).max())
    ax.set(xlabel="state $a$", ylabel="output $f^a$", title=kind, ylim=(-1.3 * span, 1.9 * span))
    ax.set_xlim(-0.5, p.depth - 0.5)
    ax.set_xticks(states)


def _spectrum(ax: "Axes", data: "xr.Dataset", p: Parameters) -> None:
    z = (data.eigenvalue_real + 1j * data.eigenvalue_imag).values[:N_SPECTRA].ravel()
    ax.plot(z.real, z.imag, linestyle="none", marker=".", markersize=2.5, color=COLORS["RNN"], alpha=0.6)
    bauer.bulk(ax, p.weight_variance**0.5)
    turn, outlier = np.radians(p.angle), np.radians(float(data.angle))
    for sign in (1, -1):
        words = (None, None) if sign < 0 else ("teacher", "theory")
        ray = 1.25 * np.exp(1j * sign * turn)
        ax.plot([0, ray.real], [0, ray.imag], color="0.6", linewidth=0.8, zorder=0, label=words[0])
        spot = float(data.modulus) * np.exp(1j * sign * outlier)
        ax.plot(spot.real, spot.imag, label=words[1], **bauer.OUTLIER)
    ax.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), title="RNN: eigenvalues of $W$")
    ax.legend(fontsize=6.5, loc="upper left")
