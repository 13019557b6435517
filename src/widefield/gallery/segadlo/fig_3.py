"""Fig. 3 of Segadlo et al.: recurrent networks near the instability, wider and wider."""

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.segadlo.fig_1 import FIRST, one_input

HEAVY = (
    "a few networks with strong activity carry the mean (the median, dashed, lies below the theory): standard errors "
    "are rough, so no verdict; the relative error falls with the width"
)
CAPTION = "symbols: mean over networks, tube: standard error, dashed: median"


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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and, for every width, simulation of the two panels."""
    network = wf.RNN(p.depth, "relu", weight_variance=p.variance, input_variance=p.variance)
    task, wanted = one_input(p.dimension, p.seed), ("hidden",)
    theory = wf.prior(network, task, quantities=wanted).hidden.isel(FIRST)

    def networks(i: int, width: int) -> xr.Dataset:
        trial = wf.simulate.prior(
            network, task, width=width, replicates=p.n_networks, seed=p.seed + i, quantities=wanted, progress=False
        )
        return xr.Dataset({"simulation": trial.hidden.isel(FIRST)})

    data = kit.over({"width": p.widths}, networks, work.jobs(len(p.widths))).assign(theory=theory)
    rows = [replace(row, agrees=None) for row in kit.judge_all(pairs(data))]
    return kit.made([[_variance, _lags]], data, p, rows, size=(3.6, 3.0), notes=(HEAVY,), caption=CAPTION)


def pairs(data: xr.Dataset) -> kit.Pairs:
    """The two plotted curves of every width."""
    last = int(data.state[-1])
    for width, case in kit.cases(data, "width"):
        yield kit.Pair(f"C(a,a) n = {width}", kit.equal_states(data.theory), kit.equal_states(case.simulation))
        yield kit.Pair(f"C(a,{last}) n = {width}", data.theory.sel(state_=last), case.simulation.sel(state_=last))


def _variance(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    _curves(ax, data.state.values, kit.equal_states(data.theory), kit.equal_states(data.simulation))
    ax.set(xlabel="time $a$", ylabel=r"$C^{(a,a)}$", yscale="log")
    ax.legend()


def _lags(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    last = int(data.state[-1])
    _curves(ax, last - data.state.values, data.theory.sel(state_=last), data.simulation.sel(state_=last))
    ax.set(xlabel=r"lag $\Delta a$", ylabel=rf"$C^{{({last}-\Delta a,\,{last})}}$")


def _curves(ax: kit.Axes, x: np.ndarray, theory: xr.DataArray, simulation: xr.DataArray) -> None:
    ax.plot(x, theory, color=kit.COLORS["theory"], linewidth=2, label="theory", zorder=4)
    for color, marker, width in zip(kit.SERIES, kit.SHAPES, simulation.width.values):
        samples = simulation.sel(width=width).transpose("replicate", "state")
        kit.band(ax, x, samples, color=color, marker=marker, label=f"$n={width}$")
        ax.plot(x, samples.median("replicate"), color=color, linestyle="--", linewidth=0.8)
