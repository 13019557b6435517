"""Where recurrent networks turn coherent, over depth and over temperature: a phase diagram that nobody has published.

Linear networks, one sample, an input at the first state and a label at the last; λ and κ̂ in units of the variances.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bauer
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

LINES = ("instability", "equal_free_energy", "spinodal")
WORDS = {
    "instability": "incoherent state unstable",
    "equal_free_energy": "equal free energy",
    "spinodal": "coherent state ends",
}
STYLES = {"instability": "-", "equal_free_energy": "--", "spinodal": ":"}
EXACT_TRICRITICAL = {3: 56 / 3, 4: 81 / 16}


@dataclass(frozen=True)
class Parameters:
    """``depths`` T − 1 at the ``temperatures`` κ̂; ``n_points`` temperatures up to ``hottest`` at the depths named."""

    depths: tuple[int, ...] = (3, 4, 5, 6, 7, 8)
    temperatures: tuple[float, ...] = (1e-3, 1.0)
    hottest: tuple[tuple[int, float], ...] = ((3, 36.0), (4, 16.0), (5, 8.0))
    n_points: int = 25


FULL = Parameters()
QUICK = Parameters(depths=(3, 4, 5, 6), n_points=10)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """All lines of both diagrams, with closed forms beside the instability and the tricritical points."""
    import xarray as xr

    p = parameters
    total, done = len(p.depths) + len(p.hottest), 0
    by_depth = []
    for depth in p.depths:
        report(done, total, f"T = {depth + 1}: {len(p.temperatures)} temperatures")
        by_depth.append([strengths(depth, kappa) for kappa in p.temperatures])
        done += 1
    grids, by_temperature, tricritical = [], [], []
    for depth, hottest in p.hottest:
        report(done, total, f"T = {depth + 1}: up to κ̂ = {hottest:g}")
        tricritical.append(turning_point(depth))
        grids.append(temperatures(tricritical[-1], hottest, p.n_points))
        by_temperature.append([strengths(depth, kappa) for kappa in grids[-1]])
        done += 1
    report(total, total, "drawing")
    fields = {
        "by_depth": (("depth", "temperature", "line"), np.array(by_depth)),
        "by_temperature": (("chosen", "point", "line"), np.array(by_temperature)),
        "grid": (("chosen", "point"), np.array(grids)),
        "tricritical": (("chosen",), np.array(tricritical)),
    }
    coords = {"depth": list(p.depths), "temperature": list(p.temperatures), "line": list(LINES)}
    data = xr.Dataset(fields, coords=coords | {"chosen": [depth for depth, _ in p.hottest]})
    for name in ("by_depth", "by_temperature"):
        data[name].attrs["nan"] = "second order: the three lines are one"
    data.tricritical.attrs["nan"] = "first order at every temperature"
    return Made(draw(data), data, p, notes=notes(data), **judged(judge_all(pairs(data)).rows))


def strengths(depth: int, temperature: float) -> list[float]:
    """λ on the three lines; NaN where a second-order transition has only the first."""
    found = wf.transition(
        bauer.linear("RNN", depth), bauer.endpoint(1.0), temperature=float(temperature), points=2, progress=False
    )
    factors = [getattr(found, line) for line in LINES]
    return [np.nan if factor is None else factor**2 for factor in factors]


def turning_point(depth: int) -> float:
    """The temperature beyond which the transition is of first order; NaN where it always is."""
    order = wf.transition(
        bauer.linear("RNN", depth), bauer.endpoint(1.0), temperature=1e-3, points=2, progress=False
    ).order
    if order == "first":
        return np.nan
    found = wf.tricritical(bauer.linear("RNN", depth), bauer.endpoint(1.0), temperature=1.0)
    return np.nan if found is None else found


def temperatures(tricritical: float, hottest: float, n_points: int) -> np.ndarray:
    """From zero to ``hottest``, a third of them below the tricritical point, where there is nothing but one line."""
    if np.isnan(tricritical):
        return np.linspace(1e-3, hottest, n_points)
    n_below = n_points // 3
    below = np.linspace(1e-3, tricritical, n_below, endpoint=False)
    return np.concatenate(
        [below, tricritical + (hottest - tricritical) * np.linspace(0.2, 1, n_points - n_below) ** 1.5]
    )


def pairs(data: "xr.Dataset") -> Iterator[Pair]:
    """Closed forms (as theory) beside what continuation found (as simulation)."""
    found = data.by_depth.sel(line="instability", drop=True)
    exact = found.copy(data=[bauer.critical_strength(int(depth), data.temperature.values) for depth in data.depth])
    yield Pair("instability over T", exact, found)
    found = data.by_temperature.sel(line="instability", drop=True)
    grid = zip(data.chosen.values, data.grid.values, strict=True)
    yield Pair("instability over κ̂", found.copy(data=[bauer.critical_strength(int(d), k) for d, k in grid]), found)
    known = [depth for depth in data.chosen.values if int(depth) in EXACT_TRICRITICAL]
    if known:
        found = data.tricritical.sel(chosen=known)
        yield Pair("tricritical κ̂", found.copy(data=[EXACT_TRICRITICAL[int(depth)] for depth in known]), found)


def notes(data: "xr.Dataset") -> tuple[str, ...]:
    """What is compared, and the range of coexistence at each depth."""
    said = ["no simulation: closed forms (as theory) beside the points found by continuation (as simulation)"]
    for depth in data.depth.values:
        lines = data.by_depth.sel(depth=depth, temperature=data.temperature[-1]).values
        kappa = float(data.temperature[-1])
        if np.isfinite(lines).all():
            numbers = ", ".join(f"{WORDS[name]} at {value:.6g}" for name, value in zip(LINES, lines, strict=True))
            said.append(f"T = {depth + 1}, κ̂ = {kappa:g}: first order, {numbers}")
        else:
            said.append(f"T = {depth + 1}, κ̂ = {kappa:g}: second order at {lines[0]:.6g}")
    return tuple(said)


def draw(data: "xr.Dataset") -> Figure:
    """λ over T; λ over κ̂; and the first-order lines relative to the instability, where they can be told apart."""
    with house_style():
        figure, axes = panels(1, 3, size=(3.5, 3.1))
        _over_depth(axes[0, 0], data)
        _over_temperature(axes[0, 1], data, relative=False)
        _over_temperature(axes[0, 2], data, relative=True)
        for ax, name in zip(axes[0], "abc", strict=True):
            letter(ax, name)
    return figure


def _over_depth(ax: "Axes", data: "xr.Dataset") -> None:
    T = data.depth.values + 1
    for color, kappa in zip(SERIES, data.temperature.values, strict=False):
        lines = data.by_depth.sel(temperature=kappa)
        first = np.isfinite(lines.sel(line="spinodal").values)
        top, _, low = (lines.sel(line=name).values for name in LINES)
        ax.plot(T, top, color=color, linewidth=0.8)
        words = rf"$\hat\kappa={kappa:g}$" if kappa >= 0.01 else r"$\hat\kappa\to0$"
        for shape, kept, order in (("o", ~first, "second order"), ("s", first, "first order")):
            style: dict[str, Any] = {"linestyle": "none", "marker": shape, "color": color}
            ax.plot(T[kept], top[kept], label=f"{words}, {order}", **style)
        ax.fill_between(T[first], low[first], top[first], color=color, alpha=0.35, linewidth=0)
    ax.set(yscale="log", xlabel="time steps $T$", ylabel=r"signal $\lambda$", title="shaded: coexistence")
    ax.set_xticks(T)
    for x, y, phase in ((0.62, 0.58, "coherent"), (0.08, 0.12, "incoherent")):
        ax.text(x, y, phase, transform=ax.transAxes, fontsize=9, color="0.4", style="italic")
    ax.legend(fontsize=7)


def _over_temperature(ax: "Axes", data: "xr.Dataset", *, relative: bool) -> None:
    """Instability by its closed form, which the points found agree with; the other lines from the tricritical point."""
    for color, depth in zip(SERIES, (int(depth) for depth in data.chosen.values), strict=False):
        lines, grid = data.by_temperature.sel(chosen=depth), data.grid.sel(chosen=depth).values
        turn = float(data.tricritical.sel(chosen=depth))
        unit = bauer.critical_strength(depth, grid) if relative else np.ones_like(grid)
        fine = np.linspace(0, grid[-1], 200)
        whole = np.ones_like(fine) if relative else bauer.critical_strength(depth, fine)
        ax.plot(
            fine,
            whole,
            color="black" if relative else color,
            linewidth=1.2,
            label=None if relative else f"$T={depth + 1}$",
        )
        start = 1.0 if relative else float(bauer.critical_strength(depth, turn))
        for name in LINES[1:]:
            kept = np.isfinite(lines.sel(line=name).values)
            x, line = grid[kept], (lines.sel(line=name).values / unit)[kept]
            if np.isfinite(turn):
                x, line = np.append(turn, x), np.append(start, line)
            ax.plot(x, line, color=color, linestyle=STYLES[name], linewidth=1.2)
        if np.isfinite(turn):
            ax.plot(turn, start, marker="*", markersize=10, color=color, linestyle="none", zorder=5)
    for name in LINES if relative else ():
        ax.plot([], [], color="black", linestyle=STYLES[name], label=WORDS[name])
    ax.plot([], [], color="black", marker="*", linestyle="none", label="tricritical")
    ax.set(xlabel=r"temperature $\hat\kappa$", ylabel=r"$\lambda/\lambda_c$" if relative else r"signal $\lambda$")
    ax.set_title("relative to the instability" if relative else "lines of transition")
    if relative:
        ax.set_ylim(bottom=1 - 1.45 * (1 - ax.get_ylim()[0]))
    else:
        ax.set(yscale="log")
    ax.legend(fontsize=7, loc="lower right")
