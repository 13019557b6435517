"""Fig. 1 of Segadlo et al.: variance and cross-covariance of one input, deep against recurrent, both bias modes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import xarray as xr

import widefield as wf
from widefield.compare import Pair, equal_states
from widefield.gallery import kit
from widefield.gallery.segadlo.architectures import BIASES, FIRST, KINDS, one_input, relu_network
from widefield.plot.style import COLORS, band

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


def one_case(p: Parameters, i: int, biases: str, kind: str) -> xr.Dataset:
    """Covariance between all pairs of states, ``theory`` (state, state_) and ``simulation`` (replicate, …)."""
    network, task = relu_network(kind, p.depth, p.variance, p.bias_variance, biases), one_input(p.dimension, p.seed)
    theory = wf.prior(network, task, quantities=("hidden",))
    trial = wf.simulate.prior(
        network, task, width=p.width, replicates=p.n_networks, seed=p.seed + i, quantities=("hidden",), progress=False
    )
    return xr.Dataset({"theory": theory.hidden.isel(FIRST), "simulation": trial.hidden.isel(FIRST)})


def pairs(data: xr.Dataset, p: Parameters) -> Iterator[Pair]:
    """The plotted curves: C(a,a), then C(a,b) for each plotted b."""
    for kind, biases in product(KINDS, BIASES):
        case, where = data.sel(kind=kind, biases=biases), f"{kind}, {BIASES[biases]}"
        yield Pair(f"C(a,a) {where}", equal_states(case.theory), equal_states(case.simulation))
        for b in p.columns:
            yield Pair(f"C(a,{b}) {where}", case.theory.sel(state_=b), case.simulation.sel(state_=b))


def _variance(ax: kit.Axes, data: xr.Dataset, p: Parameters, biases: str) -> None:
    data = data.sel(biases=biases)
    ax.plot(data.state, equal_states(data.theory.sel(kind="RNN")), color=COLORS["theory"], label="theory")
    for kind in KINDS:
        samples = equal_states(data.simulation.sel(kind=kind)).transpose("replicate", "state")
        band(ax, data.state, samples, kind=kind, label=kind)
    _named(ax, biases, r"$C^{(a,a)}$")


def _cross(ax: kit.Axes, data: xr.Dataset, p: Parameters, biases: str) -> None:
    data = data.sel(biases=biases)
    for b, style in zip(p.columns, ("RNN", "RNN_")):
        for kind, look in (("DNN", "DNN"), ("RNN", style)):
            case = data.sel(kind=kind, state_=b)
            label = f"RNN, $b={b}$" if kind == "RNN" else ("DNN" if b == p.columns[0] else None)
            deep = kind == "DNN"
            ax.plot(data.state, case.theory, color=COLORS["theory" if deep else look], linewidth=1.0 if deep else 1.4)
            band(ax, data.state, case.simulation.transpose("replicate", "state"), kind=look, label=label)
    _named(ax, biases, r"$C^{(a,b)}$")


def _named(ax: kit.Axes, biases: str, symbol: str) -> None:
    ax.set(xlabel="layer or time $a$", ylabel=symbol, title=f"{BIASES[biases]} biases")
    if biases == "untied":
        ax.legend()
