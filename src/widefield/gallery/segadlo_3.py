"""Fig. 3 of Segadlo et al.: recurrent networks near the instability, wider and wider."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, equal_states, judge_all
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, band, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

MARKERS = ("x", "s", "^", "o", "D", "v")
HEAVY = (
    "a few networks with strong activity carry the mean (the median, dashed, lies below the theory): standard errors "
    "are rough, so no verdict; the relative error falls with the width"
)


@dataclass(frozen=True)
class Parameters:
    """g0² = g² = ``variance`` close to the instability at 2, no biases, x ~ N(1, 1) of ``dimension`` entries.

    The input is drawn with ``seed``, the networks of the i-th width with ``seed`` + i.
    """

    widths: tuple[int, ...] = (1000, 3000, 5000, 10_000)
    depth: int = 31
    n_networks: int = 100
    dimension: int = 100_000
    variance: float = 1.73
    seed: int = 2023


FULL = Parameters()
QUICK = Parameters(n_networks=50, dimension=1000)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and, for every width, simulation of the two panels."""
    import xarray as xr

    p, blocks = parameters, []
    network = wf.RNN(p.depth, "relu", weight_variance=p.variance, input_variance=p.variance)
    task = wf.Task(np.random.default_rng(p.seed).normal(1.0, 1.0, size=(1, p.dimension)))
    first = {"sample": 0, "sample_": 0}
    theory = wf.prior(network, task, quantities=("hidden",)).hidden.isel(first)
    for i, width in enumerate(p.widths):
        report(i, len(p.widths), f"n = {width}: {p.n_networks} networks")
        trial = wf.simulate.prior(
            network,
            task,
            width=width,
            replicates=p.n_networks,
            seed=p.seed + i,
            quantities=("hidden",),
            progress=False,
        )
        blocks.append(trial.hidden.isel(first).expand_dims(width=[width]))
    report(len(p.widths), len(p.widths), "drawing")
    data = xr.Dataset({"theory": theory, "simulation": xr.concat(blocks, dim="width")})
    compared = judge_all(pair for width in p.widths for pair in curves(data, width))
    rows = [replace(row, agrees=None) for row in compared]
    return Made(draw(data), data, p, notes=(HEAVY,), **judged(rows))


def curves(data: "xr.Dataset", width: int) -> Iterator[Pair]:
    """The two plotted curves of one width, to be compared."""
    simulation = data.simulation.sel(width=width)
    yield Pair(f"C(a,a) n = {width}", equal_states(data.theory), equal_states(simulation))
    last = int(data.state[-1])
    yield Pair(f"C(a,{last}) n = {width}", data.theory.sel(state_=last), simulation.sel(state_=last))


def draw(data: "xr.Dataset") -> Figure:
    """Variance against a, and covariance with the last state against the lag."""
    last = int(data.state[-1])
    with house_style():
        figure, axes = panels(1, 2, size=(3.6, 3.0))
        variance = equal_states(data.theory), equal_states(data.simulation)
        _curves(axes[0, 0], data.state.values, *variance)
        axes[0, 0].set(xlabel="time $a$", ylabel=r"$C^{(a,a)}$", yscale="log")
        lagged = data.theory.sel(state_=last), data.simulation.sel(state_=last)
        _curves(axes[0, 1], last - data.state.values, *lagged)
        axes[0, 1].set(xlabel=r"lag $\Delta a$", ylabel=rf"$C^{{({last}-\Delta a,\,{last})}}$")
        axes[0, 0].legend()
        for ax, name in zip(axes[0], "ab", strict=True):
            letter(ax, name)
        figure.supxlabel("symbols: mean over networks, tube: standard error, dashed: median", fontsize=8)
    return figure


def _curves(ax: "Axes", x: np.ndarray, theory: "xr.DataArray", simulation: "xr.DataArray") -> None:
    ax.plot(x, theory, color=COLORS["theory"], linewidth=2, label="theory", zorder=4)
    for i, width in enumerate(simulation.width.values):
        color, samples = SERIES[i % len(SERIES)], simulation.sel(width=width).transpose("replicate", "state")
        band(ax, x, samples, color=color, marker=MARKERS[i % len(MARKERS)], label=f"$n={width}$")
        ax.plot(x, samples.median("replicate"), color=color, linestyle="--", linewidth=0.8)
