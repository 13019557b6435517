"""Fig. 6 of Bordelon & Pehlevan: power-law data, small batches and narrow networks, on an easy and on a hard task."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery.bordelon25 import FASTER, counter, points
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

PANELS = {"sgd": "small batches", "easy": "easy task", "hard": "hard task"}
RATIO = 2  # panel a: a batch of B samples trains a network of width 2 B, so that both corrections are of order 1/B


@dataclass(frozen=True)
class Parameters:
    """λ_k ∝ k^-a with a = ``capacity`` and target powers ∝ k^(-aβ-1), β = ``source`` of each panel, ``n_modes`` modes.

    ``sizes`` are batches B (panel a, width 2 B) or widths N (panels b, c, on the population). Networks of panel i and
    the j-th size have the seed ``seed`` + 100 i + j.
    """

    depth: int = 4
    capacity: float = 1.5
    source: tuple[float, ...] = (0.8, 1.5, 0.5)
    n_modes: int = 500
    steps: int = 400
    rate: float = 0.05
    richness: float = 1.0
    sizes: tuple[int, ...] = (16, 64, 256)
    replicates: int = 300
    seed: int = 2560


FULL = Parameters()
QUICK = Parameters(steps=100, n_modes=400, sizes=(16, 64), replicates=160)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Theory and networks of the three panels."""
    import xarray as xr

    p = parameters
    said = counter(report, len(PANELS) * len(p.sizes) + 1)
    blocks = []
    for i, panel in enumerate(PANELS):
        for j, size in enumerate(p.sizes):
            said(f"{PANELS[panel]}, {'B' if panel == 'sgd' else 'N'} = {size}")
            case = one_size(p, panel, size, p.seed + 100 * i + j)
            blocks.append(case.expand_dims(panel=[panel], size=[size]))
    said("drawing")
    data = xr.combine_by_coords(blocks)
    assert isinstance(data, xr.Dataset)
    data = xr.merge([data, limits(p)], join="outer")
    wrong = judge_all(compared(data, "_faster"))
    notes = (
        "networks over theory, minus one, is of order 1/N and 1/B: each replicate extrapolates it from the two largest sizes",
        *(f"{PANELS[panel]}: networks − theory {offsets(data, panel)}" for panel in PANELS),
        *(f"{PANELS[panel]}: local exponent at the end {slopes(data, panel)}" for panel in ("easy", "hard")),
        f"{p.n_modes} modes: their end steepens the hard task late",
        f"a rate {FASTER:g} times as high in the theory alone is rejected in "
        f"{sum(row.agrees is False for row in wrong)} of {len(wrong.rows)} rows",
    )
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(compared(data)).rows))


def spectrum(p: Parameters, panel: str) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and target powers, which sum to one."""
    k = np.arange(1.0, p.n_modes + 1)
    powers = k ** -(p.capacity * p.source[list(PANELS).index(panel)] + 1)
    return k**-p.capacity, powers / powers.sum()


def theory(p: Parameters, panel: str, *, faster: float = 1.0, **own: Any) -> np.ndarray:
    """Test loss over the step."""
    options: dict[str, Any] = {"richness": p.richness, "rate": faster * p.rate, "steps": p.steps} | own
    return wf.proportional(
        wf.DNN(p.depth, "linear"), spectrum=spectrum(p, panel), quantities=("test_loss",), progress=False, **options
    ).test_loss.values


def one_size(p: Parameters, panel: str, size: int, seed: int) -> "xr.Dataset":
    """``loss``, the same at a higher rate, and ``loss_sampled`` (replicate, step)."""
    import xarray as xr

    own: dict[str, Any] = {"width": RATIO * size, "batch": size} if panel == "sgd" else {"width": size}
    trial = wf.simulate.proportional(
        wf.DNN(p.depth, "linear"), spectrum=spectrum(p, panel), richness=p.richness, rate=p.rate, steps=p.steps,
        replicates=p.replicates, seed=seed, quantities=("test_loss",), progress=False, **own,
    )  # fmt: skip
    fields: dict[str, tuple] = {
        "loss": ("step", theory(p, panel, **own)), "loss_faster": ("step", theory(p, panel, faster=FASTER, **own)),
        "loss_sampled": (("replicate", "step"), trial.test_loss.values),
    }  # fmt: skip
    return xr.Dataset(fields, coords={"step": np.arange(p.steps + 1)})


def limits(p: Parameters) -> "xr.Dataset":
    """Infinite width (and batch), rich and lazy at the same rate."""
    import xarray as xr

    rich = np.stack([theory(p, panel) for panel in PANELS])
    lazy = np.stack([theory(p, panel, richness=0.0, centered=True) for panel in PANELS])
    fields = {"limit": (("panel", "step"), rich), "lazy_limit": (("panel", "step"), lazy)}
    return xr.Dataset(fields, coords={"panel": list(PANELS), "step": np.arange(p.steps + 1)})


def marks(steps: int) -> np.ndarray:
    """Some steps, evenly spaced in the logarithm."""
    return np.unique(np.round(np.geomspace(1, steps, 8)).astype(int))


def compared(data: "xr.Dataset", suffix: str = "") -> Iterator[Pair]:
    """Networks over theory, extrapolated from the two largest sizes, beside one; ``suffix`` names another theory."""
    small, large = (data.isel(size=i, drop=True) for i in (-2, -1))
    at = {"step": marks(data.sizes["step"] - 1)}
    for panel in PANELS:
        own = {"panel": panel, **at}
        ratios = [part.loss_sampled.sel(own) / part[f"loss{suffix}"].sel(own) for part in (large, small)]
        factor = float(data["size"][-1] / data["size"][-2])
        found = (factor * ratios[0] - ratios[1]) / (factor - 1)
        yield Pair(f"networks / theory, {PANELS[panel]}", found.isel(replicate=0, drop=True) * 0 + 1, found)


def offsets(data: "xr.Dataset", panel: str) -> str:
    """The relative difference of the means at each size, root mean square over the marked steps."""
    own = data.sel(panel=panel, step=marks(data.sizes["step"] - 1))
    gap = (own.loss_sampled.mean("replicate") / own.loss - 1) ** 2
    size = "B" if panel == "sgd" else "N"
    return ", ".join(f"{100 * float(g) ** 0.5:.1f} % at {size} = {n}" for n, g in zip(gap["size"].values, gap.mean("step"), strict=True))  # fmt: skip


def slopes(data: "xr.Dataset", panel: str) -> str:
    """Minus the slope over the last octave at infinite width, rich and lazy."""
    last = data.sizes["step"] - 1
    local = lambda loss: float(np.log(loss.sel(step=last // 2) / loss.sel(step=last)) / np.log(last / (last // 2)))  # noqa: E731
    rich, lazy = (local(data[name].sel(panel=panel)) for name in ("limit", "lazy_limit"))
    return f"{rich:.2f} rich, {lazy:.2f} lazy"


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """One panel per task."""
    with house_style():
        figure, axes = panels(1, 3, size=(3.4, 2.9))
        for ax, name, (i, panel) in zip(axes[0], "abc", enumerate(PANELS), strict=True):
            letter(ax, name)
            _panel(ax, data.sel(panel=panel), "B" if panel == "sgd" else "N")
            ax.set_title(rf"{PANELS[panel]}, $\beta={p.source[i]:g}$")
            ax.legend(fontsize=7, loc="lower left")
    return figure


def _panel(ax: "Axes", case: "xr.Dataset", size: str) -> None:
    t, at = case.step.values[1:], marks(case.sizes["step"] - 1)
    for color, n in zip(SERIES, case["size"].values, strict=False):
        own = case.sel(size=n)
        ax.plot(t, own.loss[1:], color=color, label=f"${size}={n}$")
        points(ax, at, own.loss_sampled.sel(step=at), color=color)
    ax.plot(t, case.limit[1:], color="black", label=r"$N,B\to\infty$" if size == "B" else r"$N\to\infty$")
    ax.plot(t, case.lazy_limit[1:], color=COLORS["theory"], linestyle="--", linewidth=1.0, label="lazy limit")
    ax.set(xscale="log", yscale="log", xlabel="step $t$", ylabel="test loss")
