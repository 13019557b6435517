"""Where recurrent networks turn coherent, over depth and over temperature: a phase diagram that nobody has published.

Linear networks, one sample, an input at the first state and a label at the last; λ and κ̂ in units of the variances.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bauer.sampling import critical_strength, endpoint, linear

LINES = ("instability", "equal_free_energy", "spinodal")
WORDS = dict(zip(LINES, ("incoherent state unstable", "equal free energy", "coherent state ends")))
STYLES = dict(zip(LINES, ("-", "--", ":")))
EXACT_TRICRITICAL = {3: 56 / 3, 4: 81 / 16}
COLDEST = 1e-3


@dataclass(frozen=True)
class Parameters:
    """``depths`` T − 1 at the ``temperatures`` κ̂; ``n_points`` temperatures up to ``hottest`` at the depths named."""

    depths: tuple[int, ...] = (3, 4, 5, 6, 7, 8)
    temperatures: tuple[float, ...] = (1e-3, 1.0)
    hottest: tuple[tuple[int, float], ...] = ((3, 36.0), (4, 16.0), (5, 8.0))
    n_points: int = 25


FULL = Parameters()
QUICK = Parameters(depths=(3, 4, 5, 6), n_points=10)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """All lines of both diagrams, with closed forms beside the instability and the tricritical points."""
    job, hottest = work.jobs(len(p.depths) + len(p.hottest)), dict(p.hottest)

    def over_depth(i: int, depth: int) -> xr.Dataset:
        values = [strengths(depth, kappa) for kappa in p.temperatures]
        coords = {"temperature": list(p.temperatures), "line": list(LINES)}
        return xr.Dataset({"by_depth": (("temperature", "line"), np.array(values))}, coords)

    def over_temperature(i: int, depth: int) -> xr.Dataset:
        turn = tricritical_temperature(depth)
        grid = temperatures(turn, hottest[depth], p.n_points)
        values = np.array([strengths(depth, kappa) for kappa in grid])
        fields = {"by_temperature": (("point", "line"), values), "grid": ("point", grid), "tricritical": turn}
        return xr.Dataset(fields, {"line": list(LINES)})

    data = kit.over({"depth": p.depths}, over_depth, job)
    data = xr.merge([data, kit.over({"chosen": hottest}, over_temperature, job)])
    for name in ("by_depth", "by_temperature"):
        data[name].attrs["nan"] = "second order: the three lines are one"
    data.tricritical.attrs["nan"] = "first order at every temperature"
    lines = [partial(_over_temperature, relative=relative) for relative in (False, True)]
    return kit.made([[_over_depth, *lines]], data, p, pairs(data), size=(3.5, 3.1), notes=notes(data))


def transition(depth: int, temperature: float) -> wf.Transition:
    """The end points alone, in units of a label of size one."""
    return wf.transition(linear("RNN", depth), endpoint(1.0), temperature=temperature, points=2, progress=False)


def strengths(depth: int, temperature: float) -> list[float]:
    """λ on the three lines; NaN where a second-order transition has only the first."""
    ends = transition(depth, float(temperature))
    return [np.nan if (factor := getattr(ends, line)) is None else float(factor) ** 2 for line in LINES]


def tricritical_temperature(depth: int) -> float:
    """The temperature beyond which the transition is of first order; NaN where it always is."""
    if transition(depth, COLDEST).order == "first":
        return np.nan
    return wf.tricritical(linear("RNN", depth), endpoint(1.0), temperature=1.0).temperature.item()


def temperatures(tricritical: float, hottest: float, n_points: int) -> np.ndarray:
    """From zero to ``hottest``, a third of them below the tricritical point, where there is nothing but one line."""
    if np.isnan(tricritical):
        return np.linspace(COLDEST, hottest, n_points)
    n_below = n_points // 3
    below = np.linspace(COLDEST, tricritical, n_below, endpoint=False)
    above = tricritical + (hottest - tricritical) * np.linspace(0.2, 1, n_points - n_below) ** 1.5
    return np.concatenate([below, above])


def pairs(data: xr.Dataset) -> kit.Pairs:
    """Closed forms (as theory) beside the points of the continuation (as simulation)."""
    line = data.by_depth.sel(line="instability", drop=True)
    exact = [critical_strength(int(depth), data.temperature.values) for depth in data.depth]
    yield kit.Pair("instability over T", line.copy(data=exact), line)
    line = data.by_temperature.sel(line="instability", drop=True)
    exact = [critical_strength(int(depth), kappa) for depth, kappa in zip(data.chosen.values, data.grid.values)]
    yield kit.Pair("instability over κ̂", line.copy(data=exact), line)
    known = [depth for depth in data.chosen.values if int(depth) in EXACT_TRICRITICAL]
    if known:
        point = data.tricritical.sel(chosen=known)
        yield kit.Pair("tricritical κ̂", point.copy(data=[EXACT_TRICRITICAL[int(depth)] for depth in known]), point)


def notes(data: xr.Dataset) -> Iterator[str]:
    """What is compared, and the range of coexistence at each depth."""
    yield "no simulation: closed forms (as theory) beside the points of a continuation (as simulation)"
    kappa = float(data.temperature[-1])
    for depth in data.depth.values:
        lines = data.by_depth.sel(depth=depth, temperature=kappa).values
        order = f"second order at {lines[0]:.6g}"
        if np.isfinite(lines).all():
            order = "first order, " + ", ".join(f"{WORDS[name]} at {value:.6g}" for name, value in zip(LINES, lines))
        yield f"T = {depth + 1}, κ̂ = {kappa:g}: {order}"


def _over_depth(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    T = data.depth.values + 1
    for color, (kappa, case) in zip(kit.SERIES, kit.cases(data, "temperature")):
        top, _, low = (case.by_depth.sel(line=name).values for name in LINES)
        first = np.isfinite(low)
        ax.plot(T, top, color=color, linewidth=0.8)
        words = rf"$\hat\kappa={kappa:g}$" if kappa >= 0.01 else r"$\hat\kappa\to0$"
        for shape, kept, order in (("o", ~first, "second order"), ("s", first, "first order")):
            ax.plot(T[kept], top[kept], linestyle="none", marker=shape, color=color, label=f"{words}, {order}")
        ax.fill_between(T[first], low[first], top[first], color=color, alpha=0.35, linewidth=0)
    ax.set(yscale="log", xlabel="time steps $T$", ylabel=r"signal $\lambda$", title="shaded: coexistence")
    ax.set_xticks(T)
    for x, y, phase in ((0.62, 0.58, "coherent"), (0.08, 0.12, "incoherent")):
        ax.text(x, y, phase, transform=ax.transAxes, fontsize=9, color="0.4", style="italic")
    ax.legend()


def _over_temperature(ax: kit.Axes, data: xr.Dataset, p: Parameters, relative: bool) -> None:
    """Instability by its closed form, which the continuation agrees with; the other lines from the tricritical point."""
    for color, (depth, case) in zip(kit.SERIES, kit.cases(data, "chosen")):
        _lines(ax, case, int(depth), color, relative)
    for name in LINES if relative else ():
        kit.key(ax, WORDS[name], STYLES[name], "black")
    ax.plot([], [], color="black", marker="*", linestyle="none", label="tricritical")
    ax.set(xlabel=r"temperature $\hat\kappa$", ylabel=r"$\lambda/\lambda_c$" if relative else r"signal $\lambda$")
    ax.set_title("relative to the instability" if relative else "lines of transition")
    if relative:
        ax.set_ylim(bottom=1 - 1.45 * (1 - ax.get_ylim()[0]))
    else:
        ax.set(yscale="log")
    ax.legend(loc="lower right")


def _lines(ax: kit.Axes, data: xr.Dataset, depth: int, color: str, relative: bool) -> None:
    """The three lines of one depth, with a star where they part."""
    grid, turn, fine = data.grid.values, float(data.tricritical), np.linspace(0, data.grid.values[-1], 200)
    scale = lambda kappa: critical_strength(depth, kappa) if relative else np.ones_like(kappa)  # noqa: E731
    label, top = None if relative else f"$T={depth + 1}$", critical_strength(depth, fine) / scale(fine)
    ax.plot(fine, top, color="black" if relative else color, linewidth=1.2, label=label)
    start = float(critical_strength(depth, turn) / scale(np.asarray(turn)))
    for name in LINES[1:]:
        values = data.by_temperature.sel(line=name).values
        kept = np.isfinite(values)
        x, line = grid[kept], (values / scale(grid))[kept]
        if np.isfinite(turn):
            x, line = np.append(turn, x), np.append(start, line)
        ax.plot(x, line, color=color, linestyle=STYLES[name], linewidth=1.2)
    if np.isfinite(turn):
        ax.plot(turn, start, marker="*", markersize=10, color=color, linestyle="none", zorder=5)
