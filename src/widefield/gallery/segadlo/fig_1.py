"""Fig. 1 of Segadlo et al.: variance and cross-covariance of one input, deep against recurrent, both bias modes."""

from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit

KINDS = ("DNN", "RNN")
BIASES = {"untied": "uncorrelated", "tied": "static"}
FIRST = {"sample": 0, "sample_": 0}
NOTE = "RNN: heavy-tailed at this width, and off the theory by O(1/width), more the later the state"


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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and simulation of the four panels."""
    data = kit.over({"biases": BIASES, "kind": KINDS}, partial(one_case, p), work.jobs(len(BIASES) * len(KINDS)))
    rows = [[partial(_variance, biases=biases), partial(_cross, biases=biases)] for biases in BIASES]
    return kit.made(rows, data, p, pairs(data, p), size=(3.4, 2.7), notes=(NOTE,), share="col")


def relu_network(kind: str, depth: int, variance: float, bias_variance: float, biases: str) -> wf.Network:
    """A network of relu neurons with g0² = g² = ``variance`` everywhere; A = ``depth`` − 1."""
    return getattr(wf, kind)(
        depth, "relu", weight_variance=variance, input_variance=variance, readout_variance=variance,
        bias_variance=bias_variance, biases=biases,
    )  # fmt: skip


def one_input(dimension: int, seed: int) -> wf.Task:
    """x ~ N(1, 1)."""
    return wf.Task(np.random.default_rng(seed).normal(1.0, 1.0, size=(1, dimension)))


def one_case(p: Parameters, i: int, biases: str, kind: str) -> xr.Dataset:
    """Covariance between all pairs of states, ``theory`` (state, state_) and ``simulation`` (replicate, …)."""
    network, task = relu_network(kind, p.depth, p.variance, p.bias_variance, biases), one_input(p.dimension, p.seed)
    theory = wf.prior(network, task, quantities=("hidden",))
    trial = wf.simulate.prior(
        network, task, width=p.width, replicates=p.n_networks, seed=p.seed + i, quantities=("hidden",), progress=False
    )
    return xr.Dataset({"theory": theory.hidden.isel(FIRST), "simulation": trial.hidden.isel(FIRST)})


def pairs(data: xr.Dataset, p: Parameters) -> kit.Pairs:
    """The plotted curves: C(a,a), then C(a,b) for each plotted b."""
    for kind, biases, case in kit.cases(data, "kind", "biases"):
        where = f"{kind}, {BIASES[biases]}"
        yield kit.Pair(f"C(a,a) {where}", kit.equal_states(case.theory), kit.equal_states(case.simulation))
        for b in p.columns:
            yield kit.Pair(f"C(a,{b}) {where}", case.theory.sel(state_=b), case.simulation.sel(state_=b))


def _variance(ax: kit.Axes, data: xr.Dataset, p: Parameters, biases: str) -> None:
    data = data.sel(biases=biases)
    ax.plot(data.state, kit.equal_states(data.theory.sel(kind="RNN")), color=kit.COLORS["theory"], label="theory")
    for kind in KINDS:
        samples = kit.equal_states(data.simulation.sel(kind=kind)).transpose("replicate", "state")
        kit.band(ax, data.state, samples, kind=kind, label=kind)
    _named(ax, biases, r"$C^{(a,a)}$")


def _cross(ax: kit.Axes, data: xr.Dataset, p: Parameters, biases: str) -> None:
    for (b, look), kind in product(zip(p.columns, ("RNN", "RNN_")), KINDS):
        case, deep = data.sel(biases=biases, kind=kind, state_=b), kind == "DNN"
        label = ("DNN" if b == p.columns[0] else None) if deep else f"RNN, $b={b}$"
        color, width = (kit.COLORS["theory"], 1.0) if deep else (kit.COLORS[look], 1.4)
        ax.plot(data.state, case.theory, color=color, linewidth=width)
        samples = case.simulation.transpose("replicate", "state")
        kit.band(ax, data.state, samples, kind=kind if deep else look, label=label)
    _named(ax, biases, r"$C^{(a,b)}$")


def _named(ax: kit.Axes, biases: str, symbol: str) -> None:
    ax.set(xlabel="layer or time $a$", ylabel=symbol, title=f"{BIASES[biases]} biases")
    if biases == "untied":
        ax.legend()
