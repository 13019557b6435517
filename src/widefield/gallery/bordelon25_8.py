"""Fig. 8 of Bordelon & Pehlevan: how fast the loss of a hard power-law task falls, and that it depends on depth."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery.bordelon25 import counter
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Parameters:
    """β = ``source`` < 1, a = ``capacity``; one ``rates`` per depth, small enough for the kernel to grow to the end.

    Infinite width, on the population, centred.
    """

    depths: tuple[int, ...] = (1, 2, 3)
    source: float = 0.5
    capacity: float = 1.5
    richness: float = 12.0
    steps: int = 2000
    rates: tuple[float, ...] = (0.03, 0.005, 0.002)


FULL = Parameters()
QUICK = Parameters(steps=400, rates=(0.03, 0.01, 0.004))


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Loss and local exponents at every depth, against both formulas."""
    import xarray as xr

    p = parameters
    said = counter(report, len(p.depths) + 1)
    blocks = []
    for depth, rate in zip(p.depths, p.rates, strict=True):
        said(f"depth {depth}: {p.steps} steps")
        blocks.append(one_depth(p, depth, rate).expand_dims(depth=[depth]))
    said("drawing")
    data = xr.concat(blocks, "depth")
    notes = (
        "exponent: minus the slope of ln loss in ln step over the last octave, ± its change from the octave before",
        *(printed(data, depth) for depth in p.depths if depth > 1),
        "the slopes still fall: the evidence reaches as far as the steps",
    )
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(compared(data)).rows))


def one_depth(p: Parameters, depth: int, rate: float) -> "xr.Dataset":
    """What `widefield.loss_exponent` finds, and the slope at every step from a tenth of an octave to either side."""
    found = wf.loss_exponent(
        wf.DNN(depth, "linear"), source=p.source, capacity=p.capacity, rate=rate, steps=p.steps, richness=p.richness,
        progress=False,
    ).data  # fmt: skip
    data = found.assign_coords(step=np.arange(p.steps + 1), octave=np.arange(found.sizes["octave"]))
    middle, slope = local_slopes(found.test_loss.values)
    return data.assign(local_exponent=("moment", slope)).assign_coords(moment=middle)


def local_slopes(loss: np.ndarray, width: float = 1.3) -> tuple[np.ndarray, np.ndarray]:
    """Times evenly spaced in the logarithm, and minus the slope between t/``width`` and t·``width``."""
    t = np.geomspace(4, (len(loss) - 1) / width, 60)
    at = lambda x: np.interp(np.log(x), np.log(np.arange(1, len(loss))), np.log(loss[1:]))  # noqa: E731
    return t, -(at(t * width) - at(t / width)) / (2 * np.log(width))


def compared(data: "xr.Dataset") -> list[Pair]:
    """The last octave's exponent beside (L+1)β/(1+Lβ)."""
    last = data.isel(octave=-1, drop=True)
    return [
        Pair(f"exponent, L = {depth}", own.depth_exponent, own.exponent, [own.exponent_error])
        for depth, own in ((depth, last.sel(depth=depth, drop=True)) for depth in data.depth.values)
    ]


def printed(data: "xr.Dataset", depth: int) -> str:
    """How far the printed exponent is, in words."""
    own = data.sel(depth=depth)
    found, error = float(own.exponent[-1]), float(own.exponent_error)
    wanted, formula = float(own.depth_exponent), float(own.printed_exponent)
    return (
        f"L = {depth}: {found:.3f} ± {error:.3f}; (L+1)β/(1+Lβ) = {wanted:.3f} is {abs(found - wanted) / error:.1f} of these "
        f"errors away, the printed 2β/(1+β) = {formula:.3f} {abs(found - formula) / error:.1f}"
    )


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Loss curves with the powers that were predicted, and the local exponents."""
    with house_style():
        figure, axes = panels(1, 2, size=(3.7, 3.0))
        _losses(axes[0, 0], data)
        _slopes(axes[0, 1], data)
        letter(axes[0, 0], "a")
        letter(axes[0, 1], "b")
    return figure


def _losses(ax: "Axes", data: "xr.Dataset") -> None:
    last = data.sizes["step"] - 1
    for color, depth in zip(SERIES, data.depth.values, strict=False):
        own = data.sel(depth=depth)
        ax.plot(data.step[1:], own.test_loss[1:], color=color, label=f"$L={depth}$")
        t = np.array([last / 8, last])
        law = float(own.test_loss[-1]) * (t / last) ** -float(own.depth_exponent)
        ax.plot(t, 0.8 * law, color=color, linestyle="--", linewidth=1.0)
    ax.plot([], [], color="black", linestyle="--", linewidth=1.0, label=r"$t^{-(L+1)\beta/(1+L\beta)}$")
    ax.set(xscale="log", yscale="log", xlabel="step $t$", ylabel="test loss", title="hard task")
    ax.legend(fontsize=7, loc="lower left")


def _slopes(ax: "Axes", data: "xr.Dataset") -> None:
    for color, depth in zip(SERIES, data.depth.values, strict=False):
        own = data.sel(depth=depth)
        ax.plot(data.moment, own.local_exponent, color=color, label=f"$L={depth}$")
        ax.axhline(float(own.depth_exponent), color=color, linestyle="--", linewidth=1.0)
    first = data.isel(depth=0)
    ax.axhline(float(first.printed_exponent), color="black", linestyle=":", label=r"$2\beta/(1+\beta)$, as printed")
    ax.axhline(float(first.lazy_exponent), color=COLORS["theory"], linewidth=0.8, label=r"lazy, $\beta$")
    ax.plot([], [], color="black", linestyle="--", linewidth=1.0, label=r"$(L+1)\beta/(1+L\beta)$")
    ax.set(
        xscale="log", xlabel="step $t$", ylabel=r"$-d\ln\mathcal{L}/d\ln t$", ylim=(0.45, 1.3), title="local exponent"
    )
    ax.legend(fontsize=7, loc="upper right", ncols=2)
