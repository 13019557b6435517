"""Corrections of recurrent against deep networks, theory and ensembles; Figs. 1 and 3 of Segadlo et al. at finite width."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import width_recurrent_panels
from widefield.gallery.record import Made, Report, judged

if TYPE_CHECKING:
    import xarray as xr

QUANTITIES = ("pair_mean", "pair_variance", "correction", "vertex")
ACTIVATIONS = ("relu", "erf")
KINDS = {"DNN": ("DNN", "untied"), "RNN": ("RNN", "untied"), "RNN, static": ("RNN", "tied")}
FIRST = {"pair_mean": 1, "pair_variance": 0, "correction": 2, "vertex": 1}  # state at which noise sets in
RICHARDSON = (1 / 3, -2.0, 8 / 3)  # of widths n, 2n, 4n: 1/n and 1/n² cancel
FIG_1 = {"untied": "uncorrelated", "tied": "static"}
NOTES = (
    "ensembles of widths n, 2n and 4n, extrapolated with 1/n and 1/n²",
    "Fig. 3: a few networks carry the means, so the verdict is on mean and variance of ln(hh)",
    "Fig. 1: no verdict, the leading shift is too small at this width (rare unstable networks)",
)


@dataclass(frozen=True)
class Parameters:
    """One input; corrections at w = ``variance``, b = ``bias_variance``; the figures with the paper's parameters.

    Networks of the figures are few and wide, those of the corrections many: ``n_networks`` of each of the widths n, 2n and
    4n, where n is ``relu_width`` or ``erf_width`` (erf fluctuates less, and narrow networks shift more).
    """

    relu_width: int = 128
    erf_width: int = 16
    depth: int = 7
    n_networks: int = 400_000
    batches: int = 40
    variance: float = 1.6
    bias_variance: float = 0.2
    fig_1_width: int = 2000
    fig_1_networks: int = 2000
    fig_3_widths: tuple[int, ...] = (1000, 3000, 5000, 10_000)
    fig_3_networks: int = 1000
    fig_3_variance: float = 1.73
    fig_depth: int = 31
    power: float = 2.0
    seed: int = 6


FULL = Parameters()
QUICK = Parameters(relu_width=64, n_networks=30_000, fig_1_networks=400, fig_3_networks=150)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Corrections of all cases, then the two figures."""
    import xarray as xr

    cases = [(activation, kind) for activation in ACTIVATIONS for kind in KINDS]
    total, blocks = len(cases) + 2, []
    for i, (activation, kind) in enumerate(cases):
        report(i, total, f"{kind}, {activation}: {parameters.n_networks} networks of three widths")
        block = corrections(parameters, activation, kind, seed=parameters.seed + 10 * i)
        blocks.append(block.expand_dims(activation=[activation], kind=[kind]))
    report(len(cases), total, "Fig. 3")
    third = fig_3(parameters)
    report(len(cases) + 1, total, "Fig. 1")
    first = xr.combine_by_coords(blocks).sel(activation=list(ACTIVATIONS), kind=list(KINDS))
    data = xr.merge([first, third, fig_1(parameters)])
    report(total, total, "drawing")
    rows = [*judge_all([*compared(data), *logarithms(data)]).rows]
    shown = [replace(row, agrees=None) for row in judge_all(first_figure(data)).rows]
    return Made(width_recurrent_panels.draw(data), data, parameters, notes=NOTES, **judged([*rows, *shown]))


def network(kind: str, activation: str, depth: int, variance: float, bias_variance: float) -> wf.Network:
    """A network without readout, all weights and input weights of one variance."""
    family, biases = KINDS[kind]
    return getattr(wf, family)(
        depth, activation, weight_variance=variance, input_variance=variance, bias_variance=bias_variance,
        biases=biases, readout_variance=None,
    )  # fmt: skip


def corrections(parameters: Parameters, activation: str, kind: str, seed: int) -> "xr.Dataset":
    """H1, Vh, G1 and V at equal states, theory and (``*_sampled``) ensembles, extrapolated."""
    import xarray as xr

    p, width = parameters, {"relu": parameters.relu_width, "erf": parameters.erf_width}[activation]
    net = network(kind, activation, p.depth, p.variance, p.bias_variance)
    theory = first_order(net, width)
    runs = [ensemble(p, net, theory["kernel"], k * width, seed + k) for k in (1, 2, 4)]
    sampled = {name: sum(c * run[name] for c, run in zip(RICHARDSON, runs, strict=True)) for name in QUANTITIES}
    return xr.Dataset(
        {name: ("a", values) for name, values in theory.items()}
        | {f"{name}_sampled": (("replicate", "a"), values) for name, values in sampled.items()},
        {"a": np.arange(p.depth)},
    )


def first_order(net: wf.Network, width: int) -> dict[str, np.ndarray]:
    """Equal-state C, H1, Vh, G1 and V of one input of unit power.

    Of a deep network with fresh biases h is Gaussian given Ĉ: H1 = G1 and Vh = V + 2C².
    """
    found = wf.finite_width(net, wf.Task(np.ones((1, 1))), width=width)
    kernel, correction = (found.data[name].values[:, 0, 0] for name in ("kernel", "correction"))
    vertex = found.vertex.values[:, 0, 0, 0, 0]
    pairs = {"pair_mean": correction, "pair_variance": vertex + 2 * kernel**2}
    if net.weights == "tied":
        pairs = {name: equal(found.data[name].values[..., 0, 0]) for name in pairs}
    return {"kernel": kernel, **pairs, "correction": correction, "vertex": vertex}


def equal(values: np.ndarray) -> np.ndarray:
    """The equal-state part of (…, state, state_)."""
    return np.diagonal(values, axis1=-2, axis2=-1)


def ensemble(parameters: Parameters, net: wf.Network, kernel: np.ndarray, width: int, seed: int) -> dict[str, Any]:
    """n times shift and variance of Σhh/n and of Ĉ = B + w Σφφ/n, one estimate per batch."""
    p, count = parameters, parameters.n_networks // parameters.batches * parameters.batches
    run = wf.simulate.prior(
        net, wf.Task(np.ones((1, 1))), width=width, replicates=count, seed=seed, quantities=("hidden", "feature"),
        progress=False,
    )  # fmt: skip
    hidden, feature = (
        equal(run.data[name].values[..., 0, 0]).reshape(p.batches, -1, p.depth) for name in ("hidden", "feature")
    )
    below = np.concatenate([np.zeros_like(feature[..., :1]), feature[..., :-1]], axis=-1)  # state 0 does not fluctuate
    chat = p.variance * below + p.bias_variance + np.where(np.arange(p.depth) == 0, p.variance, 0.0)
    return {
        "pair_mean": width * (hidden.mean(axis=1) - kernel),
        "pair_variance": width * hidden.var(axis=1, ddof=1),
        "correction": width * (chat.mean(axis=1) - kernel),
        "vertex": width * chat.var(axis=1, ddof=1),
    }


def fig_3(parameters: Parameters) -> "xr.Dataset":
    """Theory (C, H1, Vh over two states) and Σhh/n of single networks, equal states and with the last state."""
    import xarray as xr

    p = parameters
    net = network("RNN", "relu", p.fig_depth, p.fig_3_variance, 0.0)
    task = wf.Task(np.full((1, 1), np.sqrt(p.power)))
    found = wf.finite_width(
        net, task, width=max(p.fig_3_widths), quantities=("pair_kernel", "pair_mean", "pair_variance")
    )
    runs = []
    for i, width in enumerate(p.fig_3_widths):
        run = wf.simulate.prior(
            net,
            task,
            width=width,
            replicates=p.fig_3_networks,
            seed=p.seed + 1000 + i,
            quantities="hidden",
            progress=False,
        )
        runs.append(run.hidden.values[..., 0, 0])
    hidden = np.stack(runs)
    fields: dict[str, Any] = {
        f"fig3_{name}": (("time", "time_"), found.data[name].values[..., 0, 0])
        for name in ("pair_kernel", "pair_mean", "pair_variance")
    }
    fields |= {
        "fig3_equal": (("width", "network", "time"), equal(hidden)),
        "fig3_last": (("width", "network", "time"), hidden[..., -1]),
    }
    times = np.arange(p.fig_depth)
    return xr.Dataset(fields, {"time": times, "time_": times, "width": list(p.fig_3_widths)})


def fig_1(parameters: Parameters) -> "xr.Dataset":
    """C, H1 and Σhh/n at equal states, both bias modes."""
    import xarray as xr

    p, blocks = parameters, []
    task = wf.Task(np.full((1, 1), np.sqrt(p.power)))
    for i, (biases, kind) in enumerate(zip(FIG_1, ("RNN", "RNN, static"), strict=True)):
        net = network(kind, "relu", p.fig_depth, p.variance, p.bias_variance)
        found = wf.finite_width(net, task, width=p.fig_1_width, quantities=("pair_kernel", "pair_mean"))
        run = wf.simulate.prior(
            net, task, width=p.fig_1_width, replicates=p.fig_1_networks, seed=p.seed + 2000 + i, quantities="hidden",
            progress=False,
        )  # fmt: skip
        kernel, shift = (equal(found.data[name].values[..., 0, 0]) for name in ("pair_kernel", "pair_mean"))
        fields = {
            "fig1_kernel": ("time", kernel),
            "fig1_mean": ("time", kernel + shift / p.fig_1_width),
            "fig1_hidden": (("fig1_network", "time"), equal(run.hidden.values[..., 0, 0])),
        }
        blocks.append(xr.Dataset(fields, {"time": np.arange(p.fig_depth)}).expand_dims(biases=[biases]))
    return xr.concat(blocks, "biases")


def compared(data: "xr.Dataset") -> Iterator[Pair]:
    """Corrections where they do not vanish."""
    for activation in ACTIVATIONS:
        for kind in KINDS:
            case = data.sel(activation=activation, kind=kind)
            for name in QUANTITIES:
                part = case.sel(a=slice(FIRST[name], None))
                yield Pair(f"{name}, {kind}, {activation}", part[name], part[f"{name}_sampled"])


def logarithms(data: "xr.Dataset") -> Iterator[Pair]:
    """ln(hh/C) of Fig. 3: mean H1/(nC) − Vh/(2nC²) and n times variance Vh/C², first order, one row per width."""
    C, H1, Vh = log_theory(data)
    for width in data.width.values:
        log = np.log(data.fig3_equal.sel(width=width) / C).rename(network="replicate")
        yield Pair(f"mean ln(hh), Fig. 3, n = {width}", (H1 / C - Vh / (2 * C**2)) / width, log)
        square = width * (log - log.mean("replicate")) ** 2 * log.sizes["replicate"] / (log.sizes["replicate"] - 1)
        yield Pair(f"n Var ln(hh), Fig. 3, n = {width}", Vh / C**2, square)


def log_theory(data: "xr.Dataset") -> tuple["xr.DataArray", ...]:
    """C, H1 and Vh at equal states of Fig. 3."""
    import xarray as xr

    names = ("fig3_pair_kernel", "fig3_pair_mean", "fig3_pair_variance")
    return tuple(xr.DataArray(np.diagonal(data[name].values), {"time": data.time}, "time") for name in names)


def first_figure(data: "xr.Dataset") -> Iterator[Pair]:
    """C + H1/n against networks of the paper's width."""
    for biases in FIG_1:
        case = data.sel(biases=biases)
        yield Pair(
            f"C(a,a), Fig. 1, {FIG_1[biases]}", case.fig1_mean, case.fig1_hidden.rename(fig1_network="replicate")
        )
