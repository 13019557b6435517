"""Corrections of recurrent against deep networks, theory and ensembles; Figs. 1 and 3 of Segadlo et al. at finite width."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.segadlo.fig_1 import BIASES

LABELS = {"pair_mean": r"$H_1/C$", "pair_variance": r"$V_h/C^2$", "correction": r"$G_1/C$", "vertex": r"$V/C^2$"}
QUANTITIES = tuple(LABELS)
ACTIVATIONS = ("relu", "erf")
KINDS = {"DNN": ("DNN", "untied"), "RNN": ("RNN", "untied"), "RNN, static": ("RNN", "tied")}
LOOK = {"DNN": ("DNN", "o"), "RNN": ("RNN", "x"), "RNN, static": ("RNN_", "s")}
FIRST = {"pair_mean": 1, "pair_variance": 0, "correction": 2, "vertex": 1}  # state at which noise sets in
RICHARDSON = {1: 1 / 3, 2: -2.0, 4: 8 / 3}  # weights of widths n, 2n, 4n: 1/n and 1/n² cancel
CAPTION = "lines: theory, symbols: networks with standard error; first two rows extrapolated in $1/n$"
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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Corrections of all cases, then the two figures."""
    job = work.jobs(len(ACTIVATIONS) * len(KINDS) + 2)
    blocks = [kit.over({"activation": ACTIVATIONS, "kind": KINDS}, partial(corrections, p), job)]
    for name, figure in (("Fig. 3", fig_3), ("Fig. 1", fig_1)):
        job(name)
        blocks.append(figure(p))
    data = xr.merge(blocks)
    shown = [replace(row, agrees=None) for row in kit.judge_all(first_figure(data))]
    rows: list[kit.Pair | kit.Row] = [*pairs(data), *logarithms(data), *shown]
    first_two = [[partial(_correction, activation=phi, name=name) for name in LABELS] for phi in ACTIVATIONS]
    panels: kit.Panels = [*first_two, [_variances, _lags, _logarithms, _fig_1]]
    return kit.made(panels, data, p, rows, size=(2.9, 2.5), notes=NOTES, caption=CAPTION)


def network(kind: str, activation: str, depth: int, variance: float, bias_variance: float) -> wf.Network:
    """A network without readout, all weights and input weights of one variance."""
    family, biases = KINDS[kind]
    return getattr(wf, family)(
        depth, activation, weight_variance=variance, input_variance=variance, bias_variance=bias_variance,
        biases=biases, readout_variance=None,
    )  # fmt: skip


def corrections(p: Parameters, i: int, activation: str, kind: str) -> xr.Dataset:
    """H1, Vh, G1 and V at equal states, theory and (``*_sampled``) ensembles, extrapolated."""
    width = {"relu": p.relu_width, "erf": p.erf_width}[activation]
    net = network(kind, activation, p.depth, p.variance, p.bias_variance)
    theory = first_order(net, width)
    ensembles = {k: ensemble(p, net, theory["kernel"], k * width, p.seed + 10 * i + k) for k in RICHARDSON}
    sampled = {name: sum(c * ensembles[k][name] for k, c in RICHARDSON.items()) for name in QUANTITIES}
    fields: dict[str, Any] = {name: ("a", values) for name, values in theory.items()}
    fields |= {f"{name}_sampled": (("replicate", "a"), values) for name, values in sampled.items()}
    return xr.Dataset(fields, {"a": np.arange(p.depth)})


def first_order(net: wf.Network, width: int) -> dict[str, np.ndarray]:
    """Equal-state C, H1, Vh, G1 and V of one input of unit power.

    Of a deep network with fresh biases h is Gaussian given Ĉ: H1 = G1 and Vh = V + 2C².
    """
    theory = wf.finite_width(net, wf.Task(np.ones((1, 1))), width=width, throw=False)  # coefficients
    kernel, correction = (theory.data[name].values[:, 0, 0] for name in ("kernel", "correction"))
    vertex = theory.vertex.values[:, 0, 0, 0, 0]
    pair = {"pair_mean": correction, "pair_variance": vertex + 2 * kernel**2}
    if net.weights == "tied":
        pair = {name: equal(theory.data[name].values[..., 0, 0]) for name in pair}
    return {"kernel": kernel, **pair, "correction": correction, "vertex": vertex}


def equal(values: np.ndarray) -> np.ndarray:
    """The equal-state part of (…, state, state_)."""
    return np.diagonal(values, axis1=-2, axis2=-1)


def kernels(net: wf.Network, task: wf.Task, width: int, count: int, seed: int, *names: str) -> list[np.ndarray]:
    """Σhh/n (or Σφφ/n) of single networks, (network, state, state_)."""
    options: dict[str, Any] = {"quantities": names or ("hidden",), "progress": False}
    trial = wf.simulate.prior(net, task, width=width, replicates=count, seed=seed, **options)
    return [trial.data[name].values[..., 0, 0] for name in options["quantities"]]


def ensemble(p: Parameters, net: wf.Network, kernel: np.ndarray, width: int, seed: int) -> dict[str, np.ndarray]:
    """n times shift and variance of Σhh/n and of Ĉ = B + w Σφφ/n, one estimate per batch."""
    count = p.n_networks // p.batches * p.batches
    drawn = kernels(net, wf.Task(np.ones((1, 1))), width, count, seed, "hidden", "feature")
    hidden, feature = (equal(values).reshape(p.batches, -1, p.depth) for values in drawn)
    below = np.concatenate([np.zeros_like(feature[..., :1]), feature[..., :-1]], axis=-1)  # state 0 does not fluctuate
    chat = p.variance * below + p.bias_variance + np.where(np.arange(p.depth) == 0, p.variance, 0.0)
    return {
        "pair_mean": width * (hidden.mean(axis=1) - kernel),
        "pair_variance": width * hidden.var(axis=1, ddof=1),
        "correction": width * (chat.mean(axis=1) - kernel),
        "vertex": width * chat.var(axis=1, ddof=1),
    }


def fig_3(p: Parameters) -> xr.Dataset:
    """Theory (C, H1, Vh over two states) and Σhh/n of single networks, equal states and with the last state."""
    net = network("RNN", "relu", p.fig_depth, p.fig_3_variance, 0.0)
    task, wanted = wf.Task(np.full((1, 1), np.sqrt(p.power))), ("pair_kernel", "pair_mean", "pair_variance")
    theory = wf.finite_width(net, task, width=max(p.fig_3_widths), quantities=wanted, throw=False)
    widths = enumerate(p.fig_3_widths)
    hidden = np.stack([kernels(net, task, n, p.fig_3_networks, p.seed + 1000 + i)[0] for i, n in widths])
    fields: dict[str, Any] = {
        f"fig3_{name}": (("time", "time_"), theory.data[name].values[..., 0, 0]) for name in wanted
    }
    fields["fig3_equal"] = ("width", "network", "time"), equal(hidden)
    fields["fig3_last"] = ("width", "network", "time"), hidden[..., -1]
    times = np.arange(p.fig_depth)
    return xr.Dataset(fields, {"time": times, "time_": times, "width": list(p.fig_3_widths)})


def fig_1(p: Parameters) -> xr.Dataset:
    """C, H1 and Σhh/n at equal states, both bias modes."""
    task, blocks = wf.Task(np.full((1, 1), np.sqrt(p.power))), []
    for i, (biases, kind) in enumerate(zip(BIASES, ("RNN", "RNN, static"))):
        net = network(kind, "relu", p.fig_depth, p.variance, p.bias_variance)
        theory = wf.finite_width(net, task, width=p.fig_1_width, quantities=("pair_kernel", "pair_mean"), throw=False)
        kernel, shift = (equal(theory.data[name].values[..., 0, 0]) for name in ("pair_kernel", "pair_mean"))
        (hidden,) = kernels(net, task, p.fig_1_width, p.fig_1_networks, p.seed + 2000 + i)
        fields = {
            "fig1_kernel": ("time", kernel),
            "fig1_mean": ("time", kernel + shift / p.fig_1_width),
            "fig1_hidden": (("fig1_network", "time"), equal(hidden)),
        }
        blocks.append(xr.Dataset(fields, {"time": np.arange(p.fig_depth)}).expand_dims(biases=[biases]))
    return xr.concat(blocks, "biases")


def pairs(data: xr.Dataset) -> kit.Pairs:
    """Corrections where they do not vanish."""
    for activation, kind, name in product(ACTIVATIONS, KINDS, QUANTITIES):
        part = data.sel(activation=activation, kind=kind, a=slice(FIRST[name], None))
        yield kit.Pair(f"{name}, {kind}, {activation}", part[name], part[f"{name}_sampled"])


def equal_states_of_fig_3(data: xr.Dataset) -> tuple[xr.DataArray, ...]:
    """C, H1 and Vh at equal states of Fig. 3."""
    names = ("fig3_pair_kernel", "fig3_pair_mean", "fig3_pair_variance")
    return tuple(xr.DataArray(np.diagonal(data[name].values), {"time": data.time}, "time") for name in names)


def logarithms(data: xr.Dataset) -> kit.Pairs:
    """ln(hh/C) of Fig. 3: mean H1/(nC) − Vh/(2nC²) and n times variance Vh/C², first order, one row per width."""
    C, H1, Vh = equal_states_of_fig_3(data)
    for width, case in kit.cases(data, "width"):
        log = np.log(case.fig3_equal / C).rename(network="replicate")
        yield kit.Pair(f"mean ln(hh), Fig. 3, n = {width}", (H1 / C - Vh / (2 * C**2)) / width, log)
        square = width * (log - log.mean("replicate")) ** 2 * log.sizes["replicate"] / (log.sizes["replicate"] - 1)
        yield kit.Pair(f"n Var ln(hh), Fig. 3, n = {width}", Vh / C**2, square)


def first_figure(data: xr.Dataset) -> kit.Pairs:
    """C + H1/n against networks of the paper's width."""
    for biases, case in kit.cases(data, "biases"):
        networks = case.fig1_hidden.rename(fig1_network="replicate")
        yield kit.Pair(f"C(a,a), Fig. 1, {BIASES[biases]}", case.fig1_mean, networks)


def _correction(ax: kit.Axes, data: xr.Dataset, p: Parameters, activation: str, name: str) -> None:
    """Divided by C or, for a variance, by C²."""
    for kind, case in kit.cases(data.sel(activation=activation), "kind"):
        style, marker = LOOK[kind]
        color, scale = kit.COLORS[style], case.kernel ** (2 if name in ("pair_variance", "vertex") else 1)
        ax.plot(case.a, case[name] / scale, color=color, label=kind, linewidth=1.2)
        kit.points(ax, case.a, case[f"{name}_sampled"] / scale, color=color, marker=marker, size=4, face="none")
    ax.set(title=activation, xlabel="layer or time $a$", ylabel=LABELS[name])
    if (activation, name) == ("relu", "pair_mean"):
        ax.legend()


def _variances(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """With the log-normal mean C exp(H1/(nC)), which holds for tied relu weights without biases."""
    C, H1, _ = equal_states_of_fig_3(data)
    ax.plot(data.time, C, color=kit.COLORS["theory"], linewidth=2, label=r"$n=\infty$")
    for color, marker, (width, case) in zip(kit.SERIES, kit.SHAPES, kit.cases(data, "width")):
        ax.plot(data.time, C * np.exp(H1 / (width * C)), color=color, linewidth=1)
        samples = case.fig3_equal.transpose("network", "time")
        kit.band(ax, data.time, samples, color=color, marker=marker, label=f"$n={width}$")
    ax.set(title="Fig. 3a, log-normal", xlabel="time $a$", ylabel=r"$C^{(a,a)}$", yscale="log")
    ax.legend(fontsize=6)


def _lags(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    last = int(data.time[-1])
    C, H1 = (data[f"fig3_{name}"].sel(time_=last) for name in ("pair_kernel", "pair_mean"))
    lag = last - data.time
    ax.plot(lag, C, color=kit.COLORS["theory"], linewidth=2)
    for color, marker, (width, case) in zip(kit.SERIES, kit.SHAPES, kit.cases(data, "width")):
        ax.plot(lag, C + H1 / width, color=color, linewidth=1)
        kit.band(ax, lag, case.fig3_last.transpose("network", "time"), color=color, marker=marker)
    ax.set(title="Fig. 3b, first order", xlabel=r"lag $\Delta a$", ylabel=rf"$C^{{({last}-\Delta a,\,{last})}}$")


def _logarithms(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    C, _, Vh = equal_states_of_fig_3(data)
    ax.plot(data.time, Vh / C**2, color=kit.COLORS["theory"], linewidth=1.4)
    for color, marker, (width, case) in zip(kit.SERIES, kit.SHAPES, kit.cases(data, "width")):
        spread = np.log(case.fig3_equal).var("network", ddof=1)
        ax.plot(data.time, width * spread, color=color, marker=marker, linestyle="none", markersize=3.5)
    ax.set(title="spread of single networks", xlabel="time $a$", ylabel=r"$n\,$Var$\,\ln(hh)$", yscale="log")


def _fig_1(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    ax.axhline(1, color=kit.COLORS["theory"], linewidth=2)
    for kind, (biases, case) in zip(("RNN", "RNN_"), kit.cases(data, "biases")):
        ax.plot(case.time, case.fig1_mean / case.fig1_kernel, color=kit.COLORS[kind], linewidth=1)
        networks = (case.fig1_hidden / case.fig1_kernel).transpose("fig1_network", "time")
        kit.band(ax, case.time, networks, kind=kind, label=f"{BIASES[biases]} biases")
    ax.set(title="Fig. 1, first order", xlabel="time $a$", ylabel=r"$C^{(a,a)}\,/\,C^{(a,a)}_{n=\infty}$")
    ax.legend()
