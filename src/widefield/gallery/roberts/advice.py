r"""How wide is wide enough: the width at which a kernel fluctuates by less than a given fraction, against depth.

.. math::  n = \frac{V}{K^2\varepsilon^2}, \qquad \varepsilon^2 = \mathrm{Var}\,\hat G/K^2 \text{ over networks}
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.ticker import MaxNLocator

import widefield as wf
from widefield.gallery import kit

CRITICAL = {"relu": 2.0, "tanh": 1.0, "erf": np.pi / 4}
CAPTION = "d: crosses recurrent, open symbols with biases, triangles static biases"
COLOR_OF = {"relu": kit.SERIES[0], "tanh": kit.SERIES[2], "erf": kit.SERIES[1]}


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

    @property
    def look(self) -> dict[str, Any]:
        """Color by activation, dashed where recurrent, dotted where biases are static."""
        style, marker = (":", "^") if self.biases == "tied" else ("--", "x") if self.family == "RNN" else ("-", "o")
        return {"color": COLOR_OF[self.activation], "linestyle": style, "marker": marker}


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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Widths of all cases, and networks that have them."""
    measure = lambda i, name: xr.merge([advice(p, CASES[i]), checks(p, CASES[i], p.seed + 100 * i)])  # noqa: E731
    data = kit.over({"case": [case.name for case in CASES]}, measure, work.jobs(len(CASES)))
    spread = (kit.Pair(f"V/K², {name}", case.expected, case.leading) for name, case in kit.cases(data, "case"))
    # what the advice promises and what networks of that width have differ in the next order
    raw = (
        kit.Pair(f"Var/K² as advised, {name}", case.promised, case.sampled) for name, case in kit.cases(data, "case")
    )
    rows: list[kit.Pair | kit.Row] = [*spread, *(replace(row, agrees=None) for row in kit.judge_all(raw))]
    at = f"spread {100 * max(p.accuracies):g} %"
    critical = partial(_cases, cases=CASES[:N_CRITICAL], title=f"critical, {at}")
    biased = partial(_cases, cases=CASES[N_CRITICAL:], title=f"$w = 1.6$, $b = 0.2$, {at}")
    panels: kit.Panels = [[_accuracies, critical], [biased, _measured]]
    return kit.made(panels, data, p, rows, size=(4.0, 3.1), notes=notes(data, p), caption=CAPTION)


def advice(p: Parameters, case: Case) -> xr.Dataset:
    """``spread`` V/K² and ``offset`` |G1|/K of Ĝ at every layer from the second on, which no width enters."""
    theory = wf.finite_width(
        case.network(p.depth), wf.Task(np.ones((1, 1))), width=1, quantities=("kernel", "correction", "ratio"),
        throw=False,
    )  # fmt: skip
    offset = np.abs(theory.correction.values / theory.kernel.values)[:, 0, 0]
    fields = {"spread": ("layer", theory.ratio.values[1:]), "offset": ("layer", offset[1:])}
    return xr.Dataset(fields, {"layer": np.arange(2, p.depth + 1)})


def checks(p: Parameters, case: Case, seed: int) -> xr.Dataset:
    """Networks of the advised width n and of 2n: the variance over K² that they have, one estimate per batch.

    ``sampled`` at n is what a user gets; ``leading`` is 2(2n Var) − n Var, free of the next order.
    """
    task, blocks = wf.Task(np.ones((1, 1))), []
    for j, depth in enumerate(p.checked_depths):
        net = case.network(depth)
        theory = wf.finite_width(net, task, width=1, quantities=("kernel", "ratio"), throw=False)
        spread, K = float(theory.ratio[-1]), float(theory.kernel[-1, 0, 0])
        width = needed(spread, p.checked)
        narrow, wide = (
            wf.simulate.finite_width(
                net, task, width=k * width, replicates=p.n_networks, seed=seed + 10 * j + k, groups=p.batches,
                quantities="kernel_variance", progress=False,
            ).kernel_variance.values[:, -1, 0, 0] / K**2
            for k in (1, 2)
        )  # fmt: skip
        fields = {"advised": width, "promised": spread / width, "expected": spread}
        samples = {"sampled": narrow, "leading": width * (4 * wide - narrow)}
        blocks.append(xr.Dataset(fields | {name: ("replicate", v) for name, v in samples.items()}))
    return xr.concat(blocks, "checked_depth").assign_coords(checked_depth=list(p.checked_depths))


def needed(spread: float, accuracy: float) -> int:
    """The least width at which the standard deviation over networks is at most ``accuracy`` of the kernel."""
    return int(np.ceil(spread / accuracy**2))


def notes(data: xr.Dataset, p: Parameters) -> tuple[str, ...]:
    """Some advice in words."""
    depth, accuracy = int(data.layer[len(data.layer) // 2]), max(p.accuracies)
    spread = data.spread.sel(layer=depth)
    widths = ", ".join(f"{needed(float(spread.sel(case=c.name)), accuracy)} ({c.name})" for c in CASES)
    offset = 100 * float((data.offset * accuracy**2 / data.spread).max())
    return (
        f"width for a spread of {100 * accuracy:g} % at layer {depth}: {widths}",
        f"the mean of Ĝ is then off by at most {offset:.1g} %",
        "'as advised' rows have no verdict: the next order in 1/n is in them",
    )


def _widths(ax: kit.Axes, title: str) -> None:
    ax.set(yscale="log", xlabel="layer or time + 1", ylabel="width $n$", title=title)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _accuracies(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    for color, accuracy in zip(kit.SERIES, p.accuracies):
        for case, style, label in zip(CASES, ("-", "--"), (f"{100 * accuracy:g} %", None)):
            width = data.spread.sel(case=case.name) / accuracy**2
            ax.plot(data.layer, width, color=color, linestyle=style, label=label)
    kit.key(ax, "deep", "-")
    kit.key(ax, "recurrent", "--")
    ax.legend(ncols=2, title="spread of the kernel", title_fontsize=7)
    _widths(ax, "relu, critical")


def _cases(ax: kit.Axes, data: xr.Dataset, p: Parameters, cases: Sequence[Case], title: str) -> None:
    for case in cases:
        look = case.look | {"marker": "", "linewidth": 3.0 if case.activation == "tanh" else 1.4}  # erf lies on it
        width = data.spread.sel(case=case.name) / max(p.accuracies) ** 2
        ax.plot(data.layer, width, label=case.name.removesuffix(", biases"), **look)
    _widths(ax, title)
    corner = {"loc": "center right", "bbox_to_anchor": (1, 0.42)} if cases[0].bias_variance else {}
    ax.legend(**corner)


def _measured(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    """Standard deviation over K; the cases side by side."""
    for i, case in enumerate(CASES):
        samples = data.sampled.sel(case=case.name).transpose("replicate", "checked_depth").values
        spread = np.sqrt(samples.mean(axis=0))
        x = data.checked_depth + 0.15 * (i - (len(CASES) - 1) / 2)
        look = case.look | {"linestyle": "none"} | ({"markerfacecolor": "none"} if case.bias_variance else {})
        ax.errorbar(x, 100 * spread, 100 * kit.stderr(samples) / (2 * spread), markersize=4, **look)
    percent = 100 * p.checked
    ax.axhline(percent, color=kit.COLORS["theory"], linewidth=1)
    ax.set(ylabel="measured spread, %", ylim=(0.75 * percent, 1.25 * percent))
    ax.set(xlabel="layer or time + 1", title=f"networks of the width advised for {percent:g} %")
    ax.set_xticks(data.checked_depth.values)
