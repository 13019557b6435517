"""The picture of `recurrent`: corrections in two rows, the figures of Segadlo et al. at finite width in a third."""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from widefield.gallery import kit
from widefield.plot.style import COLORS, SERIES, band

LOOK = {"DNN": ("DNN", "o"), "RNN": ("RNN", "x"), "RNN, static": ("RNN_", "s")}
LABELS = {"pair_mean": r"$H_1/C$", "pair_variance": r"$V_h/C^2$", "correction": r"$G_1/C$", "vertex": r"$V/C^2$"}
CAPTION = "lines: theory, symbols: networks with standard error; first two rows extrapolated in $1/n$"


def equal_states_of_fig_3(data: xr.Dataset) -> tuple[xr.DataArray, ...]:
    """C, H1 and Vh at equal states of Fig. 3."""
    names = ("fig3_pair_kernel", "fig3_pair_mean", "fig3_pair_variance")
    return tuple(xr.DataArray(np.diagonal(data[name].values), {"time": data.time}, "time") for name in names)


def _correction(ax: kit.Axes, data: xr.Dataset, p: Any, activation: str, name: str) -> None:
    """Divided by C or, for a variance, by C²."""
    for kind, (color, marker) in LOOK.items():
        case = data.sel(kind=kind, activation=activation)
        scale = case.kernel ** (2 if name in ("pair_variance", "vertex") else 1)
        ax.plot(case.a, case[name] / scale, color=COLORS[color], label=kind, linewidth=1.2)
        kit.points(ax, case.a, case[f"{name}_sampled"] / scale, color=COLORS[color], marker=marker, size=4, face="none")
    ax.set(title=activation, xlabel="layer or time $a$", ylabel=LABELS[name])
    if (activation, name) == ("relu", "pair_mean"):
        ax.legend()


def _variances(ax: kit.Axes, data: xr.Dataset, p: Any) -> None:
    """With the log-normal mean C exp(H1/(nC)), which holds for tied relu weights without biases."""
    C, H1, _ = equal_states_of_fig_3(data)
    ax.plot(data.time, C, color=COLORS["theory"], linewidth=2, label=r"$n=\infty$")
    for color, marker, width in zip(SERIES, kit.SHAPES, data.width.values):
        ax.plot(data.time, C * np.exp(H1 / (width * C)), color=color, linewidth=1)
        samples = data.fig3_equal.sel(width=width).transpose("network", "time")
        band(ax, data.time, samples, color=color, marker=marker, label=f"$n={width}$")
    ax.set(title="Fig. 3a, log-normal", xlabel="time $a$", ylabel=r"$C^{(a,a)}$", yscale="log")
    ax.legend(fontsize=6)


def _lags(ax: kit.Axes, data: xr.Dataset, p: Any) -> None:
    last = int(data.time[-1])
    C, H1 = (data[f"fig3_{name}"].sel(time_=last) for name in ("pair_kernel", "pair_mean"))
    lag = last - data.time
    ax.plot(lag, C, color=COLORS["theory"], linewidth=2)
    for color, marker, width in zip(SERIES, kit.SHAPES, data.width.values):
        ax.plot(lag, C + H1 / width, color=color, linewidth=1)
        band(ax, lag, data.fig3_last.sel(width=width).transpose("network", "time"), color=color, marker=marker)
    ax.set(title="Fig. 3b, first order", xlabel=r"lag $\Delta a$", ylabel=rf"$C^{{({last}-\Delta a,\,{last})}}$")


def _logarithms(ax: kit.Axes, data: xr.Dataset, p: Any) -> None:
    C, _, Vh = equal_states_of_fig_3(data)
    ax.plot(data.time, Vh / C**2, color=COLORS["theory"], linewidth=1.4)
    for color, marker, width in zip(SERIES, kit.SHAPES, data.width.values):
        spread = np.log(data.fig3_equal.sel(width=width)).var("network", ddof=1)
        ax.plot(data.time, width * spread, color=color, marker=marker, linestyle="none", markersize=3.5)
    ax.set(title="spread of single networks", xlabel="time $a$", ylabel=r"$n\,$Var$\,\ln(hh)$", yscale="log")


def _fig_1(ax: kit.Axes, data: xr.Dataset, p: Any) -> None:
    ax.axhline(1, color=COLORS["theory"], linewidth=2)
    for biases, kind, word in (("untied", "RNN", "uncorrelated biases"), ("tied", "RNN_", "static biases")):
        case = data.sel(biases=biases)
        ax.plot(case.time, case.fig1_mean / case.fig1_kernel, color=COLORS[kind], linewidth=1)
        band(
            ax,
            case.time,
            (case.fig1_hidden / case.fig1_kernel).transpose("fig1_network", "time"),
            kind=kind,
            label=word,
        )
    ax.set(title="Fig. 1, first order", xlabel="time $a$", ylabel=r"$C^{(a,a)}\,/\,C^{(a,a)}_{n=\infty}$")
    ax.legend()


PANELS: kit.Panels = [
    *([partial(_correction, activation=activation, name=name) for name in LABELS] for activation in ("relu", "erf")),
    [_variances, _lags, _logarithms, _fig_1],
]
