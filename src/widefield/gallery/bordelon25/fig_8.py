"""Fig. 8 of Bordelon & Pehlevan: how fast the loss of a hard power-law task falls, and that it depends on depth."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit


@dataclass(frozen=True)
class Parameters:
    """β = ``source`` < 1, a = ``capacity``; one ``rates`` per depth, small enough for the kernel to grow to the end.

    Infinite width, on the population, centered.
    """

    depths: tuple[int, ...] = (1, 2, 3)
    source: float = 0.5
    capacity: float = 1.5
    richness: float = 12.0
    steps: int = 2000
    rates: tuple[float, ...] = (0.03, 0.005, 0.002)


FULL = Parameters()
QUICK = Parameters(steps=400, rates=(0.03, 0.01, 0.004))


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Loss and local exponents at every depth, against both formulas."""
    data = kit.over({"depth": p.depths}, partial(one_depth, p), work.jobs(len(p.depths)))
    notes = [
        "exponent: minus the slope of ln loss in ln step over the last octave, ± its change from the octave before"
    ]
    for depth, case in kit.cases(data.sel(depth=data.depth > 1), "depth"):
        measured, error = float(case.exponent[-1]), float(case.exponent_error)
        wanted, formula = float(case.depth_exponent), float(case.printed_exponent)
        notes.append(
            f"L = {depth}: {measured:.3f} ± {error:.3f}; (L+1)β/(1+Lβ) = {wanted:.3f} is {abs(measured - wanted) / error:.1f} of "
            f"these errors away, the printed 2β/(1+β) = {formula:.3f} {abs(measured - formula) / error:.1f}"
        )
    notes.append("the slopes still fall: the evidence reaches as far as the steps")
    last = (data.isel(octave=-1, drop=True).sel(depth=depth, drop=True) for depth in p.depths)
    pairs = (
        kit.Pair(f"exponent, L = {depth}", case.depth_exponent, case.exponent, [case.exponent_error])
        for depth, case in zip(p.depths, last)
    )
    return kit.made([[_losses, _slopes]], data, p, pairs, size=(3.7, 3.0), notes=notes)


def one_depth(p: Parameters, i: int, depth: int) -> xr.Dataset:
    """The exponent by `widefield.loss_exponent`, and the slope at every step from a tenth of an octave to either side."""
    training = wf.Training(p.rates[i], p.steps, richness=p.richness, centered=True)
    data = wf.loss_exponent(  # its error, however large, is what the figure shows
        wf.DNN(depth, "linear"), training, source=p.source, capacity=p.capacity, progress=False, throw=False
    ).data
    middle, slope = local_slopes(data.test_loss.values)
    data = data.assign_coords(step=np.arange(p.steps + 1), octave=np.arange(data.sizes["octave"]))
    return data.assign(local_exponent=("moment", slope)).assign_coords(moment=middle)


def local_slopes(loss: np.ndarray, width: float = 1.3) -> tuple[np.ndarray, np.ndarray]:
    """Times evenly spaced in the logarithm, and minus the slope between t/``width`` and t·``width``."""
    t = np.geomspace(4, (len(loss) - 1) / width, 60)
    at = lambda x: np.interp(np.log(x), np.log(np.arange(1, len(loss))), np.log(loss[1:]))  # noqa: E731
    return t, -(at(t * width) - at(t / width)) / (2 * np.log(width))


def _losses(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    for color, (depth, case) in zip(kit.SERIES, kit.cases(data, "depth")):
        ax.plot(data.step[1:], case.test_loss[1:], color=color, label=f"$L={depth}$")
        t, value = [p.steps / 8, p.steps], 0.8 * float(case.test_loss[-1])
        kit.power_fit(ax, t, value, -float(case.depth_exponent), through=-1, color=color)
    kit.key(ax, r"$t^{-(L+1)\beta/(1+L\beta)}$", color="black")
    ax.set(xlabel="step $t$", ylabel="test loss", title="hard task")
    ax.legend(loc="lower left")


def _slopes(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    for color, (depth, case) in zip(kit.SERIES, kit.cases(data, "depth")):
        kit.curve(ax, case.local_exponent, color=color, label=f"$L={depth}$")
        ax.axhline(float(case.depth_exponent), color=color, linestyle="--", linewidth=1.0)
    first = data.isel(depth=0)
    ax.axhline(float(first.printed_exponent), color="black", linestyle=":", label=r"$2\beta/(1+\beta)$, as printed")
    ax.axhline(float(first.lazy_exponent), color=kit.COLORS["theory"], linewidth=0.8, label=r"lazy, $\beta$")
    kit.key(ax, r"$(L+1)\beta/(1+L\beta)$", color="black")
    ax.set(xscale="log", xlabel="step $t$", ylabel=r"$-d\ln\mathcal{L}/d\ln t$", title="local exponent")
    ax.set_ylim(0.45, 1.3)
    ax.legend(loc="upper right", ncols=2)
