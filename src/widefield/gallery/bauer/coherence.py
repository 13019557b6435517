"""Does gradient descent make recurrent networks temporally coherent? Plain descent, weight decay, recurrent and deep.

The question the poster leaves open. One input at the first state, a label at the last one, and a seed: the second state
sees the same input times ``seed_input``. Linear networks.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit

DEPTH = 3
LINKS = {"ρ12": (0, 1), "ρ23": (1, 2)}  # states whose features are compared
SYMBOLS = {"ρ12": r"\rho_{12}", "ρ23": r"\rho_{23}"}
NETWORKS = {"RNN": wf.RNN, "DNN": wf.DNN}
PROTOCOLS = {"plain descent": False, "weight decay": True}
WANTED: dict[str, Any] = {"quantities": ("prediction", "feature_kernel"), "progress": False}
N_MARKS = 9
TINY_SEED = 1e-6  # stays small enough for its growth to be exponential


@dataclass(frozen=True)
class Parameters:
    """``replicates`` networks of ``width`` N and of N/2. Growth rates at ``depths`` K over the last two windows of
    ``window`` of the ``growth_steps``.

    The seed must be larger than a network's own correlations, 1.6/√N: these have a random sign and grow as well.
    """

    width: int = 1000
    replicates: int = 40
    seed: int = 2022
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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Coherence against time of both kinds under both protocols, and growth rates."""
    job = work.jobs(4 + len(p.depths))
    data = kit.over({"kind": NETWORKS, "protocol": PROTOCOLS}, partial(one_case, p), job)
    data = xr.merge([data, growth(p, job)])
    sizes = f"{p.replicates} networks of N = {p.width} and of N = {p.width // 2}, extrapolated: 1/N² is left"
    exchange = lambda field: field.sel(kind=["DNN", "RNN"]).assign_coords(kind=["RNN", "DNN"])  # noqa: E731
    swapped = pairs(data.assign({name: exchange(data[name]) for name in ("coherence", "output")}))
    rows = [row for row in kit.judge_all(swapped) if "weight decay" in row.quantity and row.quantity.startswith("ρ")]
    wrong = sum(row.agrees is False for row in rows)
    other = f"with weight decay the other kind's theory is rejected in {wrong} of {len(rows)} rows of ρ"
    panels: list[kit.Panel] = [*(partial(_coherence, protocol=protocol) for protocol in PROTOCOLS), _growth]
    return kit.made([panels], data, p, pairs(data), size=(3.5, 3.0), notes=(sizes, other))


def question(p: Parameters, kind: str, depth: int, seed_input: float, steps: int, *, decays: bool) -> tuple[Any, ...]:
    """One sample at states 0 and 1, labeled at the last."""
    task = wf.Task(np.array([[[1.0], [seed_input]]]), np.ones(1))
    training = wf.Training(p.rate, steps, richness=p.richness, weight_decay=p.weight_decay if decays else 0.0)
    return NETWORKS[kind](depth, "linear"), task, training


def one_case(p: Parameters, i: int, kind: str, protocol: str) -> xr.Dataset:
    """Correlations and outputs in theory, over ``fine`` steps, and in networks, over ``at`` and ``replicate``."""
    nouns = question(p, kind, DEPTH, p.seed_input, p.steps, decays=PROTOCOLS[protocol])
    at = [int(t) for t in np.linspace(0, p.steps, N_MARKS)]
    fine = sorted({*range(0, p.steps + 1, 5), *at})
    theory = observed(wf.dynamics(*nouns, at=fine, **WANTED), fine).rename(at="fine")

    def networks(width: int, seed: int) -> xr.Dataset:
        trial = wf.simulate.dynamics(*nouns, at=at, width=width, replicates=p.replicates, seed=seed, **WANTED)
        return observed(trial, at)

    sampled = kit.extrapolated(networks, p.width, p.seed + 2 * i)
    return theory.assign({f"{name}_sampled": sampled[name] for name in sampled})


def observed(solution: wf.Solution, at: list[int]) -> xr.Dataset:
    """``coherence`` ρ between the features of the linked states and ``output``, at the steps ``at``."""
    kernel = kit.diagonal(solution.feature_kernel, "at").isel(sample=0, sample_=0)
    block = lambda a, b: kernel.isel(state=a, state_=b, drop=True)  # noqa: E731
    rho = [block(a, b) / np.sqrt(block(a, a) * block(b, b)) for a, b in LINKS.values()]
    output = solution.prediction.drop_vars("time").isel(step=at, sample=0, output=0).rename(step="at")
    coherence = xr.concat([field.reset_coords(drop=True) for field in rho], "link")
    fields = {"coherence": coherence, "output": output.drop_vars("at", errors="ignore")}
    return xr.Dataset(fields).assign_coords(at=at, link=list(LINKS))


def growth(p: Parameters, job: kit.Job) -> xr.Dataset:
    """ρ of the first two states over a tiny seed, for each depth, and the rate of its growth in units of λ."""
    every, curves = list(range(0, p.growth_steps + 1, 5)), []
    for depth in p.depths:
        job(f"growth, K = {depth}")
        solution = wf.dynamics(*question(p, "RNN", depth, TINY_SEED, p.growth_steps, decays=True), at=every, **WANTED)
        curves.append(observed(solution, every).coherence.isel(link=0, drop=True) / TINY_SEED)
    curve = xr.concat(curves, "depth").rename(at="growth_step").assign_coords(depth=list(p.depths))
    step, end, window = p.rate * p.weight_decay, p.growth_steps, p.window
    early, middle, late = (curve.sel(growth_step=end - i * window) for i in (2, 1, 0))
    measured = np.log((late - middle).values / (middle - early).values) / (window * step)  # a constant source drops out
    expected = np.log(1 + (np.array(p.depths) - 2) * step) / step
    return xr.Dataset({"growth": curve, "rate": ("depth", measured), "rate_expected": ("depth", expected)})


def pairs(data: xr.Dataset) -> kit.Pairs:
    """Correlations and outputs of each case, and the growth rates."""
    for kind, protocol, case in kit.cases(data, "kind", "protocol"):
        theory = case[["coherence", "output"]].sel(fine=data["at"].values).rename(fine="at")
        for link in LINKS:
            rho = theory.coherence.sel(link=link), case.coherence_sampled.sel(link=link)
            yield kit.Pair(f"{link}, {kind}, {protocol}", *rho)
        if PROTOCOLS[protocol]:  # without decay the label is met to all digits
            yield kit.Pair(f"f, {kind}, {protocol}", theory.output, case.output_sampled)
    yield kit.Pair("growth rate/λ: ln(1+(K−2)ηλ)/ηλ, march", data.rate_expected, data.rate)


def _coherence(ax: kit.Axes, data: xr.Dataset, p: Parameters, protocol: str) -> None:
    for kind, link, case in kit.cases(data.sel(protocol=protocol), "kind", "link"):
        style, marker = ("-", "o") if link == "ρ12" else ("--", "s")
        look = {"color": kit.COLORS[kind], "style": style, "marker": marker, "label": f"${SYMBOLS[link]}$, {kind}"}
        kit.curve(ax, case.coherence, case.coherence_sampled, unit=p.rate, **look)
    ax.set(xlabel=r"time $\eta t$", ylabel=r"correlation of states", ylim=(-0.1, 1.05))
    ax.set(title=protocol + (rf", $\lambda={p.weight_decay:g}$" if PROTOCOLS[protocol] else ""))
    if not PROTOCOLS[protocol]:
        ax.legend(loc="upper left", ncols=2)


def _growth(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    time = p.rate * data.growth_step
    for color, (depth, case) in zip(kit.SERIES, kit.cases(data, "depth")):
        label = rf"$K={depth}$, rate ${float(case.rate):.3f}\,\lambda$"
        kit.curve(ax, case.growth, color=color, label=label, unit=p.rate)
        expected = case.growth[-1] * np.exp(float(case.rate_expected) * p.weight_decay * (time - time[-1]))
        ax.plot(time, expected, color=kit.COLORS["theory"], linestyle=":", linewidth=1)
    kit.key(ax, r"$\propto(1+(K-2)\eta\lambda)^t$", ":")
    ax.set(yscale="log", ylim=(0.7, None), xlabel=r"time $\eta t$", ylabel=r"$\rho_{12}/\epsilon$, small $\epsilon$")
    ax.set(title="RNN, weight decay: growth of a seed")
    ax.legend()
