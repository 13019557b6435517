r"""How wide is wide enough: the width at which a kernel fluctuates by less than a given fraction, against depth.

.. math::  n = \frac{V}{K^2\varepsilon^2}, \qquad \varepsilon^2 = \mathrm{Var}\,\hat G/K^2 \text{ over networks}
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels, stderr

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

CRITICAL = {"relu": 2.0, "tanh": 1.0, "erf": np.pi / 4}


@dataclass(frozen=True)
class Case:
    """A kind of network; without ``bias_variance`` it is critical."""

    name: str
    family: str
    activation: str
    weight_variance: float
    bias_variance: float = 0.0
    biases: str = "untied"

    def network(self, depth: int) -> wf.Network:
        return getattr(wf, self.family)(
            depth, self.activation, weight_variance=self.weight_variance, bias_variance=self.bias_variance,
            biases=self.biases, readout_variance=None,
        )  # fmt: skip


# Without biases an odd activation fluctuates alike in deep and recurrent networks; erf stands for both here.
CASES = (
    Case("relu, deep", "DNN", "relu", CRITICAL["relu"]),
    Case("relu, recurrent", "RNN", "relu", CRITICAL["relu"]),
    Case("tanh, deep", "DNN", "tanh", CRITICAL["tanh"]),
    Case("erf, deep", "DNN", "erf", CRITICAL["erf"]),
    Case("erf, recurrent", "RNN", "erf", CRITICAL["erf"]),
    Case("relu, deep, biases", "DNN", "relu", 1.6, 0.2),
    Case("relu, recurrent, biases", "RNN", "relu", 1.6, 0.2),
    Case("relu, recurrent, static biases", "RNN", "relu", 1.6, 0.2, "tied"),
    Case("erf, deep, biases", "DNN", "erf", 1.6, 0.2),
    Case("erf, recurrent, static biases", "RNN", "erf", 1.6, 0.2, "tied"),
)
N_CRITICAL = 5


@dataclass(frozen=True)
class Parameters:
    """One input of unit power. Networks of the width that ``checked`` asks for are made at ``checked_depths``."""

    depth: int = 20
    accuracies: tuple[float, ...] = (0.01, 0.05, 0.1)
    checked: float = 0.2
    checked_depths: tuple[int, ...] = (4, 8)
    n_networks: int = 20_000
    batches: int = 20
    seed: int = 7


FULL = Parameters(depth=30)
QUICK = Parameters(n_networks=2000)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Widths of all cases, and networks that have them."""
    import xarray as xr

    p, blocks = parameters, []
    for i, case in enumerate(CASES):
        report(i, len(CASES), f"{case.name}: {p.n_networks} networks of the advised widths")
        block = xr.merge([advice(p, case), checks(p, case, seed=p.seed + 100 * i)])
        blocks.append(block.expand_dims(case=[case.name]))
    report(len(CASES), len(CASES), "drawing")
    data = xr.concat(blocks, "case")
    raw = [replace(row, agrees=None) for row in judge_all(delivered(data)).rows]
    rows = [*judge_all(compared(data)).rows, *raw]
    return Made(draw(data, p), data, p, notes=notes(data, p), **judged(rows))


def advice(parameters: Parameters, case: Case) -> "xr.Dataset":
    """``spread`` V/K² and ``offset`` |G1|/K of Ĝ at every layer from the second on, which no width enters."""
    import xarray as xr

    found = wf.finite_width(
        case.network(parameters.depth), wf.Task(np.ones((1, 1))), width=1, quantities=("kernel", "correction", "ratio")
    )
    fields = {"spread": found.ratio.values, "offset": np.abs(found.correction.values / found.kernel.values)[:, 0, 0]}
    return xr.Dataset(
        {name: ("layer", values[1:]) for name, values in fields.items()},
        {"layer": np.arange(2, parameters.depth + 1)},
    )


def checks(parameters: Parameters, case: Case, seed: int) -> "xr.Dataset":
    """Networks of the advised width n and of 2n: the variance over K² that they have, one estimate per batch.

    ``sampled`` at n is what a user gets; ``leading`` is 2(2n Var) − n Var, free of the next order.
    """
    import xarray as xr

    p, task, found = parameters, wf.Task(np.ones((1, 1))), []
    for j, depth in enumerate(p.checked_depths):
        net = case.network(depth)
        theory = wf.finite_width(net, task, width=1, quantities=("kernel", "ratio"))
        spread, K = float(theory.ratio[-1]), float(theory.kernel[-1, 0, 0])
        width = needed(spread, p.checked)
        runs = [
            wf.simulate.finite_width(
                net, task, width=k * width, replicates=p.n_networks, seed=seed + 10 * j + k, groups=p.batches,
                quantities="kernel_variance", progress=False,
            ).kernel_variance.values[:, -1, 0, 0] / K**2
            for k in (1, 2)
        ]  # fmt: skip
        fields = {"advised": width, "promised": spread / width, "expected": spread}
        samples = {"sampled": runs[0], "leading": width * (4 * runs[1] - runs[0])}
        found.append(xr.Dataset(fields | {name: ("replicate", v) for name, v in samples.items()}))
    return xr.concat(found, "checked_depth").assign_coords(checked_depth=list(p.checked_depths))


def needed(spread: float, accuracy: float) -> int:
    """The least width at which the standard deviation over networks is at most ``accuracy`` of the kernel."""
    return int(np.ceil(spread / accuracy**2))


def compared(data: "xr.Dataset") -> Iterator[Pair]:
    """V/K² against networks of two widths."""
    for case in data.case.values:
        yield Pair(f"V/K², {case}", data.expected.sel(case=case), data.leading.sel(case=case))


def delivered(data: "xr.Dataset") -> Iterator[Pair]:
    """What the advice promises against what networks of that width have; they differ in the next order."""
    for case in data.case.values:
        yield Pair(f"Var/K² as advised, {case}", data.promised.sel(case=case), data.sampled.sel(case=case))


def notes(data: "xr.Dataset", parameters: Parameters) -> tuple[str, ...]:
    """Some advice in words."""
    p, depth = parameters, int(data.layer[len(data.layer) // 2])
    accuracy = max(p.accuracies)
    at = data.spread.sel(layer=depth)
    widths = ", ".join(f"{needed(float(at.sel(case=c.name)), accuracy)} ({c.name})" for c in CASES)
    offset = 100 * float((data.offset * accuracy**2 / data.spread).max())
    return (
        f"width for a spread of {100 * accuracy:g} % at layer {depth}: {widths}",
        f"the mean of Ĝ is then off by at most {offset:.1g} %",
        "'as advised' rows have no verdict: the next order in 1/n is in them",
    )


def draw(data: "xr.Dataset", parameters: Parameters) -> Figure:
    """Widths of relu at several accuracies, of all cases at one, and the accuracy that networks have."""
    p = parameters
    accuracy = max(p.accuracies)
    with house_style():
        figure, axes = panels(2, 2, size=(4.0, 3.1))
        _accuracies(axes[0, 0], data, p.accuracies)
        _cases(axes[0, 1], data, CASES[:N_CRITICAL], accuracy)
        _cases(axes[1, 0], data, CASES[N_CRITICAL:], accuracy)
        _measured(axes[1, 1], data, p.checked)
        axes[0, 0].set_title("relu, critical")
        axes[0, 1].set_title(f"critical, spread {100 * accuracy:g} %")
        axes[1, 0].set_title(f"$w = 1.6$, $b = 0.2$, spread {100 * accuracy:g} %")
        axes[1, 1].set_title(f"networks of the width advised for {100 * p.checked:g} %")
        for ax, name in zip(axes.flat, "abcd", strict=True):
            letter(ax, name)
            ax.set_xlabel("layer or time + 1")
        for ax in axes.flat[:3]:
            ax.set(yscale="log", ylabel="width $n$")
            ax.xaxis.get_major_locator().set_params(integer=True)
        axes[0, 1].legend(fontsize=7)
        axes[1, 0].legend(fontsize=7, loc="center right", bbox_to_anchor=(1, 0.42))
        figure.supxlabel("d: crosses recurrent, open symbols with biases, triangles static biases", fontsize=8)
    return figure


def _look(case: Case) -> dict[str, str]:
    """Colour by activation and biases, dashed where recurrent."""
    color = {"relu": SERIES[0], "tanh": SERIES[2], "erf": SERIES[1]}[case.activation]
    if case.biases == "tied":
        return {"color": color, "linestyle": ":", "marker": "^"}
    recurrent = case.family == "RNN"
    return {"color": color, "linestyle": "--" if recurrent else "-", "marker": "x" if recurrent else "o"}


def _accuracies(ax: "Axes", data: "xr.Dataset", accuracies: tuple[float, ...]) -> None:
    for i, accuracy in enumerate(accuracies):
        for case in CASES[:2]:
            width = data.spread.sel(case=case.name) / accuracy**2
            style = _look(case)["linestyle"]
            label = f"{100 * accuracy:g} %" if case is CASES[0] else None
            ax.plot(data.layer, width, color=SERIES[i], linestyle=style, label=label)
    for style, word in (("-", "deep"), ("--", "recurrent")):
        ax.plot([], [], color=COLORS["theory"], linestyle=style, label=word)
    ax.legend(fontsize=7, ncols=2, title="spread of the kernel", title_fontsize=7)


def _cases(ax: "Axes", data: "xr.Dataset", cases: tuple[Case, ...], accuracy: float) -> None:
    for case in cases:
        width, look = data.spread.sel(case=case.name) / accuracy**2, _look(case)
        thick = 3.0 if case.activation == "tanh" else 1.4  # erf lies on it
        label = case.name.removesuffix(", biases")
        ax.plot(data.layer, width, color=look["color"], linestyle=look["linestyle"], linewidth=thick, label=label)


def _measured(ax: "Axes", data: "xr.Dataset", accuracy: float) -> None:
    """Standard deviation over K; the cases side by side."""
    for i, case in enumerate(CASES):
        samples = data.sampled.sel(case=case.name).transpose("replicate", "checked_depth").values
        spread, look = np.sqrt(samples.mean(axis=0)), _look(case)
        error = stderr(samples) / (2 * spread)
        x = data.checked_depth + 0.15 * (i - (len(CASES) - 1) / 2)
        filled = "none" if case.bias_variance else look["color"]
        ax.errorbar(
            x, 100 * spread, 100 * error, fmt=look["marker"], color=look["color"], markerfacecolor=filled, markersize=4
        )
    ax.axhline(100 * accuracy, color=COLORS["theory"], linewidth=1)
    ax.set(ylabel="measured spread, %", ylim=(0.75 * 100 * accuracy, 1.25 * 100 * accuracy))
    ax.set_xticks(data.checked_depth.values)
