"""How kernel, vertex and first correction of a deep network run with depth, at criticality: theory and ensembles."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels, stderr

if TYPE_CHECKING:
    import xarray as xr

# activation: critical weight variance (tanh: K falls slowly to zero there)
CRITICAL = {"relu": 2.0, "tanh": 1.0}


@dataclass(frozen=True)
class Parameters:
    """Two inputs of unit power and overlap ``overlap``; ensembles of widths n and 2n give the leading order."""

    width: int = 64
    depth: int = 10
    n_networks: int = 400_000
    batches: int = 40
    overlap: float = 0.5
    seed: int = 4


FULL = Parameters(width=128, depth=20, n_networks=2_000_000)
QUICK = Parameters(n_networks=150_000)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and ensembles of both activations."""
    import xarray as xr

    blocks = []
    for i, activation in enumerate(CRITICAL):
        report(i, len(CRITICAL), f"{activation}: {parameters.n_networks} networks of two widths")
        blocks.append(one_case(parameters, activation).expand_dims(activation=[activation]))
    report(len(CRITICAL), len(CRITICAL), "drawing")
    data = xr.concat(blocks, "activation")
    pairs = [pair for activation in CRITICAL for pair in compared(data, activation)]
    notes = (f"ensembles of widths {parameters.width} and {2 * parameters.width}, extrapolated: 1/n² is left in them",)
    return Made(draw(data), data, parameters, notes=notes, **judged(judge_all(pairs).rows))


def one_case(parameters: Parameters, activation: str) -> "xr.Dataset":
    """``kernel``, ``vertex`` and ``correction`` of theory and ensemble, of the first input and of the pair."""
    import xarray as xr

    p = parameters
    x = np.array([[1.0, 0.0], [p.overlap, np.sqrt(1 - p.overlap**2)]]) * np.sqrt(2)
    network = wf.DNN(p.depth, activation, weight_variance=CRITICAL[activation], readout_variance=None)
    task = wf.Task(x)
    theory = wf.finite_width(network, task, width=p.width, quantities=("kernel", "correction", "vertex"))
    runs = [
        wf.simulate.finite_width(
            network, task, width=k * p.width, replicates=p.n_networks, seed=p.seed + k, groups=p.batches,
            quantities=("covariance", "vertex"), progress=False,
        )
        for k in (1, 2)
    ]  # fmt: skip
    kernel = theory.kernel
    shifts = [k * p.width * (run.covariance - kernel) for k, run in zip((1, 2), runs, strict=True)]
    return xr.Dataset(
        {
            "kernel": kernel,
            "vertex": theory.vertex,
            "correction": theory.correction,
            "kernel_sampled": 2 * runs[1].covariance - runs[0].covariance,
            "vertex_sampled": 2 * runs[1].vertex - runs[0].vertex,
            "correction_sampled": 2 * shifts[1] - shifts[0],
        }
    )


def compared(data: "xr.Dataset", activation: str) -> list[Pair]:
    """Layers that fluctuate: the vertex from the second on, the correction from the third."""
    case = data.sel(activation=activation)
    first = {"kernel": 2, "vertex": 2, "correction": 3}
    return [
        Pair(f"{name}, {activation}", case[name].sel(layer=slice(k, None)), case[f"{name}_sampled"].sel(layer=slice(k, None)))
        for name, k in first.items()
    ]  # fmt: skip


def draw(data: "xr.Dataset") -> Figure:
    """One row per activation: K, V/K², G1."""
    with house_style():
        figure, axes = panels(2, 3, size=(3.1, 2.6))
        for row, activation in enumerate(CRITICAL):
            case = data.sel(activation=activation)
            for column, name in enumerate(("kernel", "vertex", "correction")):
                ax = axes[row, column]
                letter(ax, "abcdef"[3 * row + column])
                _curves(ax, case, name)
                ax.set_title(activation)
                ax.set_xlabel("layer")
        axes[0, 0].legend(fontsize=7)
    return figure


def _curves(ax, case: "xr.Dataset", name: str) -> None:
    labels = {"kernel": r"$K$", "vertex": r"$V/K^2$", "correction": r"$G_1$"}
    layers = case.layer.values
    own = case.kernel.values[:, [0, 0], [0, 1]]
    for k, (i, j, what) in enumerate(((0, 0, "one input"), (0, 1, "two inputs"))):
        at = (i, j, i, j) if name == "vertex" else (i, j)
        scale = own[:, k] ** 2 if name == "vertex" else 1.0
        sampled = case[f"{name}_sampled"].transpose("replicate", "layer", ...).values[(slice(None), slice(None), *at)]
        ax.plot(layers, case[name].values[(slice(None), *at)] / scale, color=SERIES[k], label=f"theory, {what}")
        ax.errorbar(
            layers, sampled.mean(axis=0) / scale, stderr(sampled) / scale, fmt="o", markersize=3.5, color=SERIES[k]
        )
    ax.axhline(0, color=COLORS["theory"], linewidth=0.5)
    ax.set_ylabel(labels[name])
