"""Panel 4 of the poster: kernels of trained recurrent networks approach the theory as they get wider."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.compare import Pair
from widefield.gallery import bauer
from widefield.gallery.record import Made, Report
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels, stderr

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

SAMPLER = "the poster trains by SGLD; here HMC samples the same posterior, and kernels are averages over a chain"
MARKERS = ("x", "s", "^", "o", "D", "v")


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


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory, and for every width the kernels of trained networks."""
    import xarray as xr

    p, blocks, trials = parameters, [], []
    report(0, len(p.widths) + 1, "theory")
    state = bauer.theory("RNN", p.depth, teacher(p), p.temperature)
    for i, width in enumerate(p.widths):
        report(i + 1, len(p.widths) + 1, f"N = {width}: {p.n_chains} chains")
        sampling = bauer.Sampling(p.temperature, width, p.n_chains, p.steps, p.warmup)
        options: dict[str, Any] = {"width": width, "seed": p.seed + i, "quantities": ("hidden",), "start": "prior"}
        trial = bauer.trained(sampling, state.network, teacher(p), **options)
        trials.append((f"N = {width}", trial))
        blocks.append(trial.hidden.expand_dims(width=[width]))
    report(len(p.widths) + 1, len(p.widths) + 1, "drawing")
    data = xr.Dataset({"theory": state.hidden, "simulation": xr.concat(blocks, dim="width")})
    data["cka"] = similarity(data.theory, data.simulation)
    for name, measure in MEASURES.items():
        data[f"{name}_theory"], data[name] = measure(data.theory), measure(data.simulation)
    made = bauer.verdict(pairs(data), trials)
    made["numbers"] += list(numbers(data))
    words = f"the theory is {state.branch.item()}, stability {float(state.stability):.3g}"
    compared = f"{words}; compared: 2 · wide − narrow of the last two widths"
    notes = (SAMPLER, compared, growth(data), *bauer.mixing(trials))
    return Made(draw(data), data, p, notes=notes, **made)


def teacher(p: Parameters) -> wf.Task:
    """Inputs of ``dimension`` normal entries, labels of alternating sign."""
    x = np.random.default_rng(p.seed).normal(size=(p.n_samples, p.dimension))
    return wf.Task(x, p.label * (-1.0) ** np.arange(p.n_samples))


def similarity(theory: "xr.DataArray", sampled: "xr.DataArray") -> "xr.DataArray":
    """CKA of the kernel over all nodes (state, sample), theory against the mean of each chain."""
    import xarray as xr

    rows, columns = ("state", "sample"), ("state_", "sample_")
    flat = lambda k, *lead: k.transpose(*lead, *rows, *columns).values  # noqa: E731
    n = theory.sizes["state"] * theory.sizes["sample"]
    one, many = flat(theory).reshape(n, n), flat(sampled, "width", "replicate")
    values = wf.cka(one, many.reshape(*many.shape[:2], n, n))
    return xr.DataArray(values, dims=("width", "replicate"), coords={"width": sampled.width})


def autocorrelation(kernel: "xr.DataArray") -> "xr.DataArray":
    r"""Mean of :math:`\mathrm{tr} H_{a,a+l}/P` over ``lag`` l = 0, 1, …."""
    return _over_lags(bauer.state_traces(kernel))


def coherence(kernel: "xr.DataArray") -> "xr.DataArray":
    r"""Mean of :math:`\mathrm{tr} H_{ab}/\sqrt{\mathrm{tr} H_{aa}\,\mathrm{tr} H_{bb}}` over pairs of one ``lag``."""
    import xarray as xr

    blocks = bauer.state_traces(kernel)
    own = xr.DataArray(np.arange(blocks.sizes["state"]), dims="state")
    size = blocks.isel(state_=own).drop_vars("state_", errors="ignore") ** 0.5
    return _over_lags(blocks / size / size.rename(state="state_"))


MEASURES = {"coherence": coherence, "autocorrelation": autocorrelation}


def _over_lags(blocks: "xr.DataArray") -> "xr.DataArray":
    import xarray as xr

    n = blocks.sizes["state"]
    lines = []
    for lag in range(n):
        a = xr.DataArray(np.arange(n - lag), dims="pair")
        picked = blocks.isel(state=a, state_=a + lag).drop_vars(("state", "state_"), errors="ignore")
        lines.append(picked.mean("pair"))
    return xr.concat(lines, dim="lag").assign_coords(lag=np.arange(n))


def pairs(data: "xr.Dataset") -> Iterator[Pair]:
    """Curves over the lag, extrapolated to infinite width."""
    for name in MEASURES:
        found = bauer.limit(data[name].isel(width=-1, drop=True), data[name].isel(width=-2, drop=True))
        some = slice(1 if name == "coherence" else 0, None)
        yield Pair(name, data[f"{name}_theory"].isel(lag=some), found.isel(lag=some))


def numbers(data: "xr.Dataset") -> Iterator[dict[str, float | int | str]]:
    """CKA at every width, mean and standard error over networks."""
    for width in data.width.values:
        values = data.cka.sel(width=width).values
        yield {"quantity": "CKA", "width": int(width), "mean": float(values.mean()), "stderr": float(stderr(values))}


def growth(data: "xr.Dataset") -> str:
    """How 1 − CKA falls with the width."""
    gap = 1 - data.cka.mean("replicate").values
    slope = np.polyfit(np.log(data.width.values), np.log(gap), 1)[0]
    ends = f"{gap[0]:.2g} at N = {int(data.width[0])} to {gap[-1]:.2g} at N = {int(data.width[-1])}"
    return f"1 − CKA falls from {ends}, like N^{slope:.2f}"


def draw(data: "xr.Dataset") -> Figure:
    """CKA against width, then coherence and autocorrelation against lag."""
    with house_style():
        figure, axes = panels(1, 3, size=(3.4, 3.0))
        samples = 1 - data.cka.transpose("replicate", "width").values
        mean, error, widths = samples.mean(axis=0), stderr(samples), data.width.values
        axes[0, 0].errorbar(widths, mean, yerr=error, marker="o", color=COLORS["RNN"], capsize=2, label="sampled RNN")
        axes[0, 0].plot(
            widths, mean[0] * widths[0] / widths, color="black", linewidth=0.8, linestyle=":", label="$1/N$"
        )
        axes[0, 0].set(xscale="log", yscale="log", xlabel="width $N$", ylabel="1 − CKA with the theory")
        axes[0, 0].set_xticks(widths, [str(n) for n in widths])
        axes[0, 0].minorticks_off()
        axes[0, 0].legend()
        _lags(axes[0, 1], data, "coherence", "temporal coherence")
        _lags(axes[0, 2], data, "autocorrelation", r"autocorrelation $\mathrm{tr}\,H_{a,a+l}/P$")
        axes[0, 2].legend(fontsize=7)
        for ax, name in zip(axes[0], "abc", strict=True):
            letter(ax, name)
    return figure


def _lags(ax: "Axes", data: "xr.Dataset", name: str, words: str) -> None:
    line, found = data[f"{name}_theory"], data[name]
    ax.plot(line.lag, line, color=COLORS["theory"], linewidth=2, label="theory")
    for i, width in enumerate(data.width.values):
        samples = found.sel(width=width).transpose("replicate", "lag").values
        style: dict[str, Any] = {
            "color": SERIES[i % len(SERIES)],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": "none",
        }
        ax.errorbar(found.lag, samples.mean(axis=0), yerr=stderr(samples), label=f"$N={width}$", **style)
    ax.set(xlabel="lag $l$", ylabel=words)
    ax.set_ylim(bottom=0)
    ax.set_xticks(line.lag.values)
