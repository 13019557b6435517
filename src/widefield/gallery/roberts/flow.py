"""How kernel, vertex and first correction of a deep network run with depth, at criticality: theory and ensembles."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit

CRITICAL = {"relu": 2.0, "tanh": 1.0}  # weight variances (tanh: K falls slowly to zero there)
FIRST = {"kernel": 2, "vertex": 2, "correction": 3}  # layers from which on they fluctuate
SYMBOLS = {"kernel": r"$K$", "vertex": r"$V/K^2$", "correction": r"$G_1$"}


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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and ensembles of both activations."""
    data = kit.over({"activation": CRITICAL}, partial(one_case, p), work.jobs(len(CRITICAL)))
    note = f"ensembles of widths {p.width} and {2 * p.width}, extrapolated: 1/n² is left in them"
    panels = [[partial(_running, activation=activation, name=name) for name in SYMBOLS] for activation in CRITICAL]
    return kit.made(panels, data, p, pairs(data), size=(3.1, 2.6), notes=(note,))


def two_inputs(overlap: float) -> wf.Task:
    """Of unit power."""
    return wf.Task(np.array([[1.0, 0.0], [overlap, np.sqrt(1 - overlap**2)]]) * np.sqrt(2))


def one_case(p: Parameters, i: int, activation: str) -> xr.Dataset:
    """``kernel``, ``vertex`` and ``correction`` of theory and ensemble, of the first input and of the pair."""
    network = wf.DNN(p.depth, activation, weight_variance=CRITICAL[activation], readout_variance=None)
    task = two_inputs(p.overlap)
    theory = wf.finite_width(network, task, width=p.width, quantities=tuple(FIRST), throw=False)  # coefficients
    narrow, wide = (
        wf.simulate.finite_width(
            network, task, width=k * p.width, replicates=p.n_networks, seed=p.seed + k, groups=p.batches,
            quantities=("covariance", "vertex"), progress=False,
        )
        for k in (1, 2)
    )  # fmt: skip
    shifts = [k * p.width * (trial.covariance - theory.kernel) for k, trial in ((1, narrow), (2, wide))]
    sampled = {
        "kernel_sampled": 2 * wide.covariance - narrow.covariance,
        "vertex_sampled": 2 * wide.vertex - narrow.vertex,
        "correction_sampled": 2 * shifts[1] - shifts[0],
    }
    return xr.Dataset({name: theory.data[name] for name in FIRST} | sampled)


def pairs(data: xr.Dataset) -> kit.Pairs:
    """Layers that fluctuate."""
    for activation in CRITICAL:
        for name, first in FIRST.items():
            case = data.sel(activation=activation, layer=slice(first, None))
            yield kit.Pair(f"{name}, {activation}", case[name], case[f"{name}_sampled"])


def _running(ax: kit.Axes, data: xr.Dataset, p: Parameters, activation: str, name: str) -> None:
    data = data.sel(activation=activation)
    for color, j, what in zip(kit.SERIES, (0, 1), ("one input", "two inputs")):
        entry = {"sample": 0, "sample_": j} | ({"sample__": 0, "sample___": j} if name == "vertex" else {})
        scale = data.kernel.isel(sample=0, sample_=j) ** 2 if name == "vertex" else 1.0
        theory, samples = (data[field].isel(entry) / scale for field in (name, f"{name}_sampled"))
        kit.curve(ax, theory, samples, color=color, label=f"theory, {what}")
    ax.axhline(0, color=kit.COLORS["theory"], linewidth=0.5)
    ax.set(xlabel="layer", ylabel=SYMBOLS[name], title=activation)
    if (activation, name) == ("relu", "kernel"):
        ax.legend()
