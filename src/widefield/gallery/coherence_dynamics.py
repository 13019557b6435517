"""Does gradient descent make recurrent networks temporally coherent? Plain descent, weight decay, recurrent and deep.

The question the poster leaves open. One input at the first state, a label at the last one, and a seed: the second state
sees the same input times ``seed_input``. Linear networks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.answer.solution import Solution
from widefield.compare import Pair, judge_all
from widefield.gallery.bordelon22 import Networks, counter, diagonal, points
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

DEPTH = 3
LINKS = ((0, 1), (1, 2))  # states whose features are compared
NAMES = ("ρ12", "ρ23")
NETWORKS = {"RNN": wf.RNN, "DNN": wf.DNN}
PROTOCOLS = {"plain descent": False, "weight decay": True}
WANTED = ("prediction", "feature_kernel")
N_MARKS = 9
TINY_SEED = 1e-6  # stays small enough for its growth to be exponential


@dataclass(frozen=True)
class Parameters(Networks):
    """``depths`` K have their growth rate measured over the last two windows of ``window`` of the ``growth_steps``.

    The seed must be larger than a network's own correlations, 1.6/√N: these have a random sign and grow as well.
    """

    richness: float = 4.0
    rate: float = 0.02
    steps: int = 300
    weight_decay: float = 0.6
    seed_input: float = 0.3
    depths: tuple[int, ...] = (3, 4, 5)
    growth_steps: int = 200
    window: int = 50


FULL = Parameters()
QUICK = Parameters(width=400, replicates=32, steps=200)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Coherence against time of both kinds under both protocols, and growth rates."""
    import xarray as xr

    p = parameters
    jobs = counter(report, 4 + len(p.depths))
    blocks = []
    for i, kind in enumerate(NETWORKS):
        for j, protocol in enumerate(PROTOCOLS):
            jobs(f"{kind}, {protocol}")
            block = one_case(p, kind, protocol, seed=p.seed + 4 * i + 2 * j)
            blocks.append(block.expand_dims(kind=[kind], protocol=[protocol]))
    data = xr.combine_by_coords(blocks)
    assert isinstance(data, xr.Dataset)
    data = xr.merge([data, growth(p, jobs)])
    sizes = f"{p.replicates} networks of N = {p.width} and of N = {p.width // 2}, extrapolated: 1/N² is left"
    notes = (sizes, swapped(data))
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(pairs(data)).rows))


def task(seed_input: float) -> wf.Task:
    """One sample at states 0 and 1, labelled at the last."""
    return wf.Task(np.array([[[1.0], [seed_input]]]), np.ones(1))


def marks(steps: int) -> list[int]:
    """Steps at which networks are compared."""
    return [int(t) for t in np.linspace(0, steps, N_MARKS)]


def one_case(p: Parameters, kind: str, protocol: str, seed: int) -> "xr.Dataset":
    """Correlations and outputs in theory, over ``fine`` steps, and in networks, over ``at`` and ``replicate``."""
    network, at = NETWORKS[kind](DEPTH, "linear"), marks(p.steps)
    fine = sorted({*range(0, p.steps + 1, 5), *at})
    decay = p.weight_decay if PROTOCOLS[protocol] else 0.0
    theory = observed(wf.dynamics(network, task(p.seed_input), **physics(p, decay), at=fine), fine).rename(at="fine")
    wide, narrow = (
        observed(
            wf.simulate.dynamics(
                network, task(p.seed_input), **physics(p, decay), at=at, width=width, replicates=p.replicates, seed=own
            ),
            at,
        )
        for width, own in ((p.width, seed), (p.width // 2, seed + 1))
    )
    return theory.assign({f"{name}_sampled": 2 * wide[name] - narrow[name] for name in wide.data_vars})


def physics(p: Parameters, weight_decay: float, steps: int | None = None) -> dict[str, Any]:
    """The protocol, in the words that theory and simulation share."""
    found: dict[str, Any] = {"richness": p.richness, "rate": p.rate, "steps": steps or p.steps}
    return found | {"weight_decay": weight_decay, "quantities": WANTED, "progress": False}


def observed(solution: Solution, at: list[int]) -> "xr.Dataset":
    """``coherence`` ρ between the features of the linked states and ``output``, at the steps ``at``."""
    import xarray as xr

    kernel = diagonal(solution.feature_kernel, "at").isel(sample=0, sample_=0)
    pairs = [kernel.isel(state=a, state_=b, drop=True) for a, b in LINKS]
    sizes = [[kernel.isel(state=a, state_=a, drop=True) for a in link] for link in LINKS]
    rho = [pair / np.sqrt(one * two) for pair, (one, two) in zip(pairs, sizes, strict=True)]
    output = solution.prediction.drop_vars("time").isel(step=at, sample=0, output=0).rename(step="at")
    coherence = xr.concat([field.reset_coords(drop=True) for field in rho], "link")
    fields = {"coherence": coherence, "output": output.drop_vars("at", errors="ignore")}
    return xr.Dataset(fields).assign_coords(at=at, link=list(NAMES))


def growth(p: Parameters, jobs: Any) -> "xr.Dataset":
    """ρ of the first two states over a tiny seed, for each depth, and the rate of its growth in units of λ."""
    import xarray as xr

    every, curves = list(range(0, p.growth_steps + 1, 5)), []
    for depth in p.depths:
        jobs(f"growth, K = {depth}")
        options = physics(p, p.weight_decay, p.growth_steps)
        found = wf.dynamics(wf.RNN(depth, "linear"), task(TINY_SEED), **options, at=every)
        curves.append(observed(found, every).coherence.isel(link=0, drop=True) / TINY_SEED)
    curve = xr.concat(curves, "depth").rename(at="growth_step").assign_coords(depth=list(p.depths))
    step, end, window = p.rate * p.weight_decay, p.growth_steps, p.window
    early, middle, late = (curve.sel(growth_step=end - i * window) for i in (2, 1, 0))
    measured = np.log((late - middle).values / (middle - early).values) / (window * step)  # a constant source drops out
    expected = np.log(1 + (np.array(p.depths) - 2) * step) / step
    return xr.Dataset({"growth": curve, "rate": ("depth", measured), "rate_expected": ("depth", expected)})


def pairs(data: "xr.Dataset") -> Iterator[Pair]:
    """Correlations and outputs of each case, and the growth rates."""
    for kind in NETWORKS:
        for protocol in PROTOCOLS:
            own = data.sel(kind=kind, protocol=protocol)
            theory = own[["coherence", "output"]].sel(fine=data["at"].values).rename(fine="at")
            for link in data.link.values:
                yield Pair(
                    f"{link}, {kind}, {protocol}", theory.coherence.sel(link=link), own.coherence_sampled.sel(link=link)
                )
            if PROTOCOLS[protocol]:  # without decay the label is met to all digits
                yield Pair(f"f, {kind}, {protocol}", theory.output, own.output_sampled)
    yield Pair("growth rate/λ: ln(1+(K−2)ηλ)/ηλ, march", data.rate_expected, data.rate)


def swapped(data: "xr.Dataset") -> str:
    """A note that says whether networks reject the theory of the other kind."""
    other = data.assign(
        {
            name: data[name].sel(kind=["DNN", "RNN"]).assign_coords(kind=["RNN", "DNN"])
            for name in ("coherence", "output")
        }
    )
    rows = [row for row in judge_all(pairs(other)) if "weight decay" in row.quantity and row.quantity.startswith("ρ")]
    wrong = sum(row.agrees is False for row in rows)
    return f"with weight decay the other kind's theory is rejected in {wrong} of {len(rows)} rows of ρ"


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Correlations under both protocols, and the growth of a tiny seed."""
    with house_style():
        figure, axes = panels(1, 3, size=(3.5, 3.0))
        for ax, protocol in zip(axes[0], PROTOCOLS, strict=False):
            _coherence(ax, data.sel(protocol=protocol), p)
            ax.set(title=protocol + (rf", $\lambda={p.weight_decay:g}$" if PROTOCOLS[protocol] else ""))
        axes[0, 0].legend(loc="upper left", ncols=2, fontsize=7)
        _growth(axes[0, 2], data, p)
        for ax, name in zip(axes[0], "abc", strict=True):
            letter(ax, name)
    return figure


def _coherence(ax: "Axes", data: "xr.Dataset", p: Parameters) -> None:
    symbols = dict(zip(NAMES, (r"\rho_{12}", r"\rho_{23}"), strict=True))
    for kind in NETWORKS:
        for link, style, marker in zip(NAMES, ("-", "--"), ("o", "s"), strict=True):
            own = data.sel(kind=kind, link=link)
            label = f"${symbols[link]}$, {kind}"
            ax.plot(p.rate * data.fine, own.coherence, color=COLORS[kind], linestyle=style, label=label)
            points(ax, p.rate * data["at"], own.coherence_sampled, color=COLORS[kind], marker=marker)
    ax.set(xlabel=r"time $\eta t$", ylabel=r"correlation of states", ylim=(-0.1, 1.05))


def _growth(ax: "Axes", data: "xr.Dataset", p: Parameters) -> None:
    time = p.rate * data.growth_step
    for color, depth in zip(SERIES, data.depth.values, strict=False):
        curve, rate = data.growth.sel(depth=depth), float(data.rate_expected.sel(depth=depth))
        label = rf"$K={depth}$, rate ${float(data.rate.sel(depth=depth)):.3f}\,\lambda$"
        ax.plot(time, curve, color=color, label=label)
        line = curve.isel(growth_step=-1) * np.exp(rate * p.weight_decay * (time - time[-1]))
        ax.plot(time, line, color=COLORS["theory"], linestyle=":", linewidth=1)
    ax.plot([], [], color=COLORS["theory"], linestyle=":", linewidth=1, label=r"$\propto(1+(K-2)\eta\lambda)^t$")
    ax.set(yscale="log", ylim=(0.7, None), xlabel=r"time $\eta t$", ylabel=r"$\rho_{12}/\epsilon$, small $\epsilon$")
    ax.set(title="RNN, weight decay: growth of a seed")
    ax.legend(fontsize=7)
