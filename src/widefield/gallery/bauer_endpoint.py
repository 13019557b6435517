"""Panel 5 of the poster, weak and strong labels at the last state: kernels of both architectures, spectrum of W."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair
from widefield.gallery import bauer
from widefield.gallery.bauer import KINDS
from widefield.gallery.record import Made, Report
from widefield.plot.style import COLORS, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

SIGNALS = ("weak", "strong")
GAUGE = "RNN, weak: odd lags are not compared, their sign is chosen in every network, which leaves a mean of order 1/√N"
N_SPECTRA = 4  # networks whose eigenvalues are drawn


@dataclass(frozen=True)
class Parameters(bauer.Sampling):
    """λ/λ_c = ``ratios``, weak and strong; hidden states T − 1 = ``depth``; chains start at random weights."""

    depth: int = 4
    ratios: tuple[float, float] = (0.3, 6.0)


FULL = Parameters()
QUICK = Parameters(width=128, n_chains=24, steps=120, warmup=80)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Kernels, predictions and eigenvalues of both architectures at both strengths."""
    import xarray as xr

    p, blocks, trials = parameters, [], []
    cases = [(kind, signal) for kind in KINDS for signal in SIGNALS]
    for i, (kind, signal) in enumerate(cases):
        report(i, len(cases), f"{kind}, {signal} signal: {p.n_chains} chains at widths {p.widths}")
        block, found = one_case(p, kind, signal, seed=p.seed + 2 * i)
        blocks.append(block)
        trials += found
    report(len(cases), len(cases), "drawing")
    data = xr.merge(blocks)
    data.attrs.update(narrow=p.widths[1], wide=p.width)
    notes = ("2 · wide − narrow against infinite width", GAUGE, *bauer.mixing(trials))
    return Made(draw(data), data, p, notes=notes, **bauer.verdict(pairs(data), trials))


def one_case(p: Parameters, kind: str, signal: str, seed: int) -> tuple["xr.Dataset", list[bauer.Trial]]:
    """Fields ``<kind>_<signal>_<quantity>``, sampled ones with dims (size, replicate, …)."""
    import xarray as xr

    strength = p.ratios[SIGNALS.index(signal)] * float(bauer.critical_strength(p.depth, p.temperature))
    task, network = bauer.endpoint(strength), bauer.linear(kind, p.depth)
    state = bauer.theory(kind, p.depth, task, p.temperature)
    spectra = ("eigenvalue_real", "eigenvalue_imag") if kind == "RNN" else ()
    wanted = ("hidden", "prediction", *spectra)
    trials, fields, name = [], {}, f"{kind}_{signal}"
    for i, (size, width) in enumerate(zip(("wide", "narrow"), p.widths, strict=True)):
        trial = bauer.trained(p, network, task, width=width, seed=seed + i, quantities=wanted, start="prior")
        trials.append((f"{kind}, {signal}, N = {width}", trial))
        fields[f"{name}_hidden_{size}"] = trial.hidden.isel(bauer.FIRST)
        fields[f"{name}_prediction_{size}"] = trial.prediction.isel(state=-1, sample=0, output=0)
        if spectra:
            z = trial.eigenvalue_real + 1j * trial.eigenvalue_imag
            fields[f"{name}_outlier_{size}"] = abs(z).max("eigenvalue")
        if spectra and size == "wide":
            fields |= {f"{name}_{part}": trial.data[part] for part in spectra}
    fields[f"{name}_theory"] = state.hidden.isel(bauer.FIRST)
    fields[f"{name}_predicted"] = state.prediction.isel(state=-1, sample=0, output=0)
    if spectra:
        found = wf.spectrum(state).outliers
        fields[f"{name}_expected_outlier"] = xr.DataArray(np.abs(found[0]) if len(found) else 0.0)
    return xr.Dataset(fields).drop_vars(("state", "sample", "output"), errors="ignore"), trials


def pairs(data: "xr.Dataset") -> Iterator[Pair]:
    """Kernels, the prediction at the last state, and the eigenvalue outside the circle where there is one."""
    for signal in SIGNALS:
        for kind in KINDS:
            name = f"{kind}_{signal}"
            odd = kind == "DNN" or signal == "strong"
            found = bauer.limit(data[f"{name}_hidden_wide"], data[f"{name}_hidden_narrow"])
            kernel = data[f"{name}_theory"]
            yield Pair(f"H {kind}, {signal}", bauer.entries(kernel, odd=odd), bauer.entries(found, odd=odd))
            found = bauer.limit(data[f"{name}_prediction_wide"], data[f"{name}_prediction_narrow"])
            yield Pair(f"f {kind}, {signal}", data[f"{name}_predicted"], found)
        expected = data[f"RNN_{signal}_expected_outlier"]
        if expected > 0:
            found = bauer.limit(data[f"RNN_{signal}_outlier_wide"], data[f"RNN_{signal}_outlier_narrow"])
            yield Pair(f"outlier |z|, {signal}", expected, found)


def draw(data: "xr.Dataset") -> Figure:
    """A row for each strength: kernels of theory and sampled networks, and the eigenvalues of W."""
    with house_style():
        figure, axes = panels(2, 5, size=(2.5, 2.4))
        for row, signal in zip(axes, SIGNALS, strict=True):
            top = max(float(data[f"{kind}_{signal}_theory"].max()) for kind in KINDS)
            for i, kind in enumerate(KINDS):
                sampled = data[f"{kind}_{signal}_hidden_wide"].mean("replicate")
                words = f"{kind}, {signal}: "
                bauer.kernel_image(row[2 * i], data[f"{kind}_{signal}_theory"].values, words + "theory", top)
                image = bauer.kernel_image(row[2 * i + 1], sampled.values, f"{words}$N={data.attrs['wide']}$", top)
            figure.colorbar(image, ax=row[3], shrink=0.8, label="$H_{ab}$")
            _spectrum(row[4], data, signal)
        for ax, name in zip(axes.flat, "abcdefghij", strict=True):
            letter(ax, name)
    return figure


def _spectrum(ax: "Axes", data: "xr.Dataset", signal: str) -> None:
    """Eigenvalues of a few networks, turned by the sign W → −W so that the largest has a positive real part."""
    parts = (data[f"RNN_{signal}_eigenvalue_{part}"].values[:N_SPECTRA] for part in ("real", "imag"))
    for z in (a + 1j * b for a, b in zip(*parts, strict=True)):
        z = z * (np.sign(z[np.argmax(np.abs(z))].real) or 1.0)
        ax.plot(z.real, z.imag, linestyle="none", marker=".", markersize=2.5, color=COLORS["RNN"], alpha=0.6)
    bauer.bulk(ax, 1.0)
    expected = float(data[f"RNN_{signal}_expected_outlier"])
    if expected > 0:
        ax.plot(expected, 0, label="theory", **bauer.OUTLIER)
        ax.legend(loc="upper right", fontsize=7)
    ax.set(xlim=(-1.3, 1.9), ylim=(-1.3, 1.3), title=f"RNN, {signal}: $W$")
