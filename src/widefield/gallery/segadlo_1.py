"""Fig. 1 of Segadlo et al.: variance and cross-covariance of one input, deep against recurrent, both bias modes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, equal_states, judge_all
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, Figure, band, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

KINDS = ("DNN", "RNN")
BIASES = {"untied": "uncorrelated", "tied": "static"}


@dataclass(frozen=True)
class Parameters:
    """g0² = g² = ``variance``, σ² = ``bias_variance``, A = ``depth`` − 1, x ~ N(1, 1) of ``dimension`` entries.

    The input is drawn with ``seed``, the networks of the i-th of the four cases with ``seed`` + i.
    """

    width: int = 2000
    depth: int = 31
    n_networks: int = 100
    dimension: int = 100_000
    variance: float = 1.6
    bias_variance: float = 0.2
    columns: tuple[int, ...] = (10, 30)
    seed: int = 2022


FULL = Parameters()
QUICK = Parameters(dimension=1000)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and simulation of the four panels."""
    import xarray as xr

    blocks = []
    cases = [(kind, biases) for biases in BIASES for kind in KINDS]
    for i, (kind, biases) in enumerate(cases):
        report(i, len(cases), f"{kind}, {BIASES[biases]} biases: {parameters.n_networks} networks")
        block = one_case(parameters, kind, biases, seed=parameters.seed + i)
        blocks.append(block.expand_dims(kind=[kind], biases=[biases]))
    report(len(cases), len(cases), "drawing")
    data = xr.combine_by_coords(blocks)
    assert isinstance(data, xr.Dataset)
    pairs = [pair for kind in KINDS for biases in BIASES for pair in curves(data, parameters, kind, biases)]
    note = "RNN: heavy-tailed at this width, and off the theory by O(1/width), more the later the state"
    return Made(draw(data, parameters), data, parameters, notes=(note,), **judged(judge_all(pairs).rows))


def one_case(parameters: Parameters, kind: str, biases: str, seed: int) -> "xr.Dataset":
    """Covariance between all pairs of states, ``theory`` (state, state_) and ``simulation`` (replicate, …)."""
    import xarray as xr

    p = parameters
    x = np.random.default_rng(p.seed).normal(1.0, 1.0, size=(1, p.dimension))
    network = getattr(wf, kind)(
        depth=p.depth,
        activation="relu",
        weight_variance=p.variance,
        input_variance=p.variance,
        readout_variance=p.variance,
        bias_variance=p.bias_variance,
        biases=biases,
    )
    task = wf.Task(x)
    theory = wf.prior(network, task, quantities=("hidden",))
    trial = wf.simulate.prior(
        network, task, width=p.width, replicates=p.n_networks, seed=seed, quantities=("hidden",), progress=False
    )
    first = {"sample": 0, "sample_": 0}
    return xr.Dataset({"theory": theory.hidden.isel(first), "simulation": trial.hidden.isel(first)})


def curves(data: "xr.Dataset", parameters: Parameters, kind: str, biases: str) -> Iterator[Pair]:
    """The plotted curves, to be compared: C(a,a), then C(a,b) for each plotted b."""
    case = data.sel(kind=kind, biases=biases)
    where = f"{kind}, {BIASES[biases]}"
    yield Pair(f"C(a,a) {where}", equal_states(case.theory), equal_states(case.simulation))
    for b in parameters.columns:
        yield Pair(f"C(a,{b}) {where}", case.theory.sel(state_=b), case.simulation.sel(state_=b))


def draw(data: "xr.Dataset", parameters: Parameters) -> Figure:
    """Panels a to d of the figure."""
    with house_style():
        figure, axes = panels(2, 2)
        for row, biases in enumerate(BIASES):
            letter(axes[row, 0], "ac"[row])
            letter(axes[row, 1], "bd"[row])
            _variance(axes[row, 0], data.sel(biases=biases))
            _cross(axes[row, 1], data.sel(biases=biases), parameters.columns)
            for ax in axes[row]:
                ax.set_title(f"{BIASES[biases]} biases")
                ax.set_xlabel("layer or time $a$")
        for column in (0, 1):
            _same_range(axes[:, column])
        axes[0, 0].legend(loc="upper right")
        axes[0, 1].legend(loc="upper left", fontsize=7)
    return figure


def _variance(ax: "Axes", data: "xr.Dataset") -> None:
    states = data.state.values
    ax.plot(states, equal_states(data.theory.sel(kind="RNN")), color=COLORS["theory"], label="theory")
    for kind in KINDS:
        band(
            ax,
            states,
            equal_states(data.simulation.sel(kind=kind)).transpose("replicate", "state"),
            kind=kind,
            label=kind,
        )
    ax.set_ylabel(r"$C^{(a,a)}$")


def _cross(ax: "Axes", data: "xr.Dataset", columns: tuple[int, ...]) -> None:
    states = data.state.values
    for b, style in zip(columns, ("RNN", "RNN_"), strict=False):
        for kind, key in (("DNN", "DNN"), ("RNN", style)):
            case = data.sel(kind=kind, state_=b)
            label = f"RNN, $b={b}$" if kind == "RNN" else ("DNN" if b == columns[0] else None)
            line = COLORS["theory"] if kind == "DNN" else COLORS[key]
            ax.plot(states, case.theory, color=line, linewidth=1.0 if kind == "DNN" else 1.4)
            band(ax, states, case.simulation.transpose("replicate", "state"), kind=key, label=label)
    ax.set_ylabel(r"$C^{(a,b)}$")


def _same_range(axes: np.ndarray) -> None:
    limits = np.array([ax.get_ylim() for ax in axes])
    for ax in axes:
        ax.set_ylim(limits[:, 0].min(), limits[:, 1].max())
