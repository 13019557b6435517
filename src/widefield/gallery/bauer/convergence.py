"""Panel 4 of the poster: kernels of trained recurrent networks approach the theory as they get wider."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bauer import sampling

SAMPLER = "the poster trains by SGLD; here HMC samples the same posterior, and kernels are averages over a chain"


@dataclass(frozen=True)
class Parameters:
    """Random inputs, labels ± ``label`` in turn at the last state: strong enough for a coherent network.

    ``n_chains`` networks of each width, from random weights, ``steps`` records of each; the last two widths are N/2, N.
    """

    widths: tuple[int, ...] = (50, 100, 200, 400, 800)
    depth: int = 4
    n_samples: int = 4
    dimension: int = 8
    label: float = 3.0
    temperature: float = 1.0
    n_chains: int = 16
    steps: int = 1000
    warmup: int = 500
    seed: int = 2026


FULL = Parameters()
QUICK = Parameters(widths=(25, 50, 100, 200), n_chains=12, steps=150, warmup=100)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory, and for every width the kernels of trained networks."""
    job, trials = work.jobs(len(p.widths) + 1), []
    job("theory")
    x = np.random.default_rng(p.seed).normal(size=(p.n_samples, p.dimension))
    network, task = sampling.linear("RNN", p.depth), wf.Task(x, p.label * (-1.0) ** np.arange(p.n_samples))
    state = sampling.theory(network, task, p.temperature)

    def kernel(i: int, width: int) -> xr.Dataset:
        chains = sampling.Sampling(p.temperature, width, p.n_chains, p.steps, p.warmup)
        trial = sampling.trained(chains, network, task, width=width, seed=p.seed + i, quantities=("hidden",))
        trials.append((f"N = {width}", trial))
        return xr.Dataset({"simulation": trial.hidden})

    data = kit.over({"width": p.widths}, kernel, job).assign(theory=state.hidden)
    data["cka"] = similarity(data.theory, data.simulation)
    for name, measure in MEASURES.items():
        data[f"{name}_theory"], data[name] = measure(data.theory), measure(data.simulation)
    words = f"the theory is {state.branch.item()}, stability {float(state.stability):.3g}"
    compared = f"{words}; compared: 2 · wide − narrow of the last two widths"
    gap, width = 1 - data.cka.mean("replicate").values, data.width.values
    ends = f"{gap[0]:.2g} at N = {width[0]} to {gap[-1]:.2g} at N = {width[-1]}"
    growth = f"1 − CKA falls from {ends}, like N^{kit.fitted_power(width, gap):.2f}"
    notes, rows = (SAMPLER, compared, growth, *sampling.mixing(trials)), sampling.verdicts(pairs(data), trials)
    panels: list[kit.Panel] = [_similarity, *(partial(_lags, name=name) for name in MEASURES)]
    return kit.made([panels], data, p, rows, size=(3.4, 3.0), notes=notes, numbers=numbers(data))


def similarity(kernel: xr.DataArray, sampled: xr.DataArray) -> xr.DataArray:
    """CKA of the kernel over all nodes (state, sample), theory against the mean of each chain."""
    order, n = ("state", "sample", "state_", "sample_"), kernel.sizes["state"] * kernel.sizes["sample"]
    one = kernel.transpose(*order).values.reshape(n, n)
    many = sampled.transpose("width", "replicate", *order).values
    values = wf.cka(one, many.reshape(*many.shape[:2], n, n))
    return xr.DataArray(values, dims=("width", "replicate"), coords={"width": sampled.width})


def autocorrelation(kernel: xr.DataArray) -> xr.DataArray:
    r"""Mean of :math:`\mathrm{tr} H_{a,a+l}/P` over ``lag`` l = 0, 1, …."""
    return _over_lags(sampling.state_traces(kernel))


def coherence(kernel: xr.DataArray) -> xr.DataArray:
    r"""Mean of :math:`\mathrm{tr} H_{ab}/\sqrt{\mathrm{tr} H_{aa}\,\mathrm{tr} H_{bb}}` over pairs of one ``lag``."""
    blocks = sampling.state_traces(kernel)
    size = kit.diagonal(blocks, "state") ** 0.5
    return _over_lags(blocks / size / size.rename(state="state_"))


MEASURES = {"coherence": coherence, "autocorrelation": autocorrelation}
LABELS = {"coherence": "temporal coherence", "autocorrelation": r"autocorrelation $\mathrm{tr}\,H_{a,a+l}/P$"}


def _over_lags(blocks: xr.DataArray) -> xr.DataArray:
    n, lines = blocks.sizes["state"], []
    for lag in range(n):
        a = xr.DataArray(np.arange(n - lag), dims="pair")
        picked = blocks.isel(state=a, state_=a + lag).drop_vars(("state", "state_"), errors="ignore")
        lines.append(picked.mean("pair"))
    return xr.concat(lines, dim="lag").assign_coords(lag=np.arange(n))


def pairs(data: xr.Dataset) -> kit.Pairs:
    """Curves over the lag, extrapolated to infinite width."""
    for name in MEASURES:
        wide, narrow = (data[name].isel(width=i, drop=True) for i in (-1, -2))
        some = {"lag": slice(1 if name == "coherence" else 0, None)}
        yield kit.Pair(name, data[f"{name}_theory"].isel(some), (2 * wide - narrow).isel(some))


def numbers(data: xr.Dataset) -> Iterator[dict[str, Any]]:
    """CKA at every width, mean and standard error over networks."""
    for width, case in kit.cases(data, "width"):
        values = case.cka.values
        place = {"quantity": "CKA", "width": int(width)}
        yield place | {"mean": float(values.mean()), "stderr": float(kit.stderr(values))}


def _similarity(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    gap, widths = 1 - data.cka, data.width.values
    kit.points(ax, widths, gap, color=kit.COLORS["RNN"], line="-", size=4.5, capsize=2, label="sampled RNN")
    kit.power_fit(ax, widths, float(gap.isel(width=0).mean()), -1, color="black", style=":", label="$1/N$")
    kit.ticks_at(ax, widths)
    ax.set(xlabel="width $N$", ylabel="1 − CKA with the theory")
    ax.legend()


def _lags(ax: kit.Axes, data: xr.Dataset, p: Parameters, name: str) -> None:
    line = data[f"{name}_theory"]
    ax.plot(line.lag, line, color=kit.COLORS["theory"], linewidth=2, label="theory")
    for color, marker, (width, case) in zip(kit.SERIES, kit.SHAPES, kit.cases(data, "width")):
        kit.points(ax, line.lag, case[name], color=color, marker=marker, size=4.5, label=f"$N={width}$")
    ax.set(xlabel="lag $l$", ylabel=LABELS[name])
    ax.set_ylim(bottom=0)
    ax.set_xticks(line.lag.values)
    if name == "autocorrelation":
        ax.legend()
