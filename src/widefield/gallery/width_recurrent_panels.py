"""The picture of `width_recurrent`: corrections in two rows, the figures of Segadlo et al. at finite width in a third."""

from typing import TYPE_CHECKING

import numpy as np

from widefield.plot.style import COLORS, SERIES, Figure, band, house_style, letter, panels, stderr
from widefield.theories.finite_width.tied.relu_growth import lognormal

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

LOOK = {"DNN": ("DNN", "o"), "RNN": ("RNN", "x"), "RNN, static": ("RNN_", "s")}
MARKERS = ("x", "s", "^", "o", "D", "v")
LABELS = {
    "pair_mean": r"$H_1/C$",
    "pair_variance": r"$V_h/C^2$",
    "correction": r"$G_1/C$",
    "vertex": r"$V/C^2$",
}


def draw(data: "xr.Dataset") -> Figure:
    """Rows: relu, erf, the paper's figures."""
    with house_style():
        figure, axes = panels(3, 4, size=(2.9, 2.5))
        for ax, name in zip(axes.flat, "abcdefghijkl", strict=True):
            letter(ax, name)
        for row, activation in enumerate(data.activation.values):
            for ax, name in zip(axes[row], LABELS, strict=True):
                _correction(ax, data.sel(activation=activation), name)
                ax.set(title=str(activation), xlabel="layer or time $a$", ylabel=LABELS[name])
        axes[0, 0].legend(fontsize=7)
        _variances(axes[2, 0], data)
        _lags(axes[2, 1], data)
        _logarithms(axes[2, 2], data)
        _fig_1(axes[2, 3], data)
        figure.supxlabel(
            "lines: theory, symbols: networks with standard error; first two rows extrapolated in $1/n$", fontsize=8
        )
    return figure


def _correction(ax: "Axes", data: "xr.Dataset", name: str) -> None:
    """Divided by C or, for a variance, by C²."""
    power = 2 if name in ("pair_variance", "vertex") else 1
    for kind, (color, marker) in LOOK.items():
        case = data.sel(kind=kind)
        scale = case.kernel.values**power
        samples = case[f"{name}_sampled"].transpose("replicate", "a").values / scale
        ax.plot(case.a, case[name] / scale, color=COLORS[color], label=kind, linewidth=1.2)
        mean, error, color = samples.mean(axis=0), stderr(samples), COLORS[color]
        ax.errorbar(case.a, mean, error, fmt=marker, markersize=4, color=color, markerfacecolor="none", linewidth=1)


def _diagonal(data: "xr.Dataset", name: str) -> np.ndarray:
    return np.diagonal(data[f"fig3_{name}"].values)


def _variances(ax: "Axes", data: "xr.Dataset") -> None:
    C, H1, Vh = (_diagonal(data, name) for name in ("pair_kernel", "pair_mean", "pair_variance"))
    ax.plot(data.time, C, color=COLORS["theory"], linewidth=2, label=r"$n=\infty$")
    for i, width in enumerate(data.width.values):
        ax.plot(data.time, lognormal(C, H1, Vh, int(width))[0], color=SERIES[i], linewidth=1)
        samples = data.fig3_equal.sel(width=width).transpose("network", "time")
        band(ax, data.time, samples, color=SERIES[i], marker=MARKERS[i], label=f"$n={width}$")
    ax.set(title="Fig. 3a, log-normal", xlabel="time $a$", ylabel=r"$C^{(a,a)}$", yscale="log")
    ax.legend(fontsize=6)


def _lags(ax: "Axes", data: "xr.Dataset") -> None:
    last = int(data.time[-1])
    C, H1 = (data[f"fig3_{name}"].sel(time_=last) for name in ("pair_kernel", "pair_mean"))
    lag = last - data.time
    ax.plot(lag, C, color=COLORS["theory"], linewidth=2)
    for i, width in enumerate(data.width.values):
        ax.plot(lag, C + H1 / width, color=SERIES[i], linewidth=1)
        band(ax, lag, data.fig3_last.sel(width=width).transpose("network", "time"), color=SERIES[i], marker=MARKERS[i])
    ax.set(title="Fig. 3b, first order", xlabel=r"lag $\Delta a$", ylabel=rf"$C^{{({last}-\Delta a,\,{last})}}$")


def _logarithms(ax: "Axes", data: "xr.Dataset") -> None:
    C, Vh = (_diagonal(data, name) for name in ("pair_kernel", "pair_variance"))
    ax.plot(data.time, Vh / C**2, color=COLORS["theory"], linewidth=1.4)
    for i, width in enumerate(data.width.values):
        spread = np.log(data.fig3_equal.sel(width=width)).var("network", ddof=1)
        ax.plot(data.time, width * spread, color=SERIES[i], marker=MARKERS[i], linestyle="none", markersize=3.5)
    ax.set(title="spread of single networks", xlabel="time $a$", ylabel=r"$n\,$Var$\,\ln(hh)$", yscale="log")


def _fig_1(ax: "Axes", data: "xr.Dataset") -> None:
    ax.axhline(1, color=COLORS["theory"], linewidth=2)
    for biases, kind, word in (("untied", "RNN", "uncorrelated biases"), ("tied", "RNN_", "static biases")):
        case = data.sel(biases=biases)
        ax.plot(case.time, case.fig1_mean / case.fig1_kernel, color=COLORS[kind], linewidth=1)
        relative = (case.fig1_hidden / case.fig1_kernel).transpose("fig1_network", "time")
        band(ax, case.time, relative, kind=kind, label=word)
    ax.set(title="Fig. 1, first order", xlabel="time $a$", ylabel=r"$C^{(a,a)}\,/\,C^{(a,a)}_{n=\infty}$")
    ax.legend(fontsize=7)
