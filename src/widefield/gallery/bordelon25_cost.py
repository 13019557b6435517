"""Table 1 of Bordelon & Pehlevan, measured: what the march costs, and what training one network costs.

Process time of one warm call on this machine, and the bytes that each keeps. Times vary with the machine; the powers are
what the figure is about.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.boundary import x64
from widefield.gallery.bordelon25 import counter
from widefield.gallery.record import Made, Report
from widefield.network import Network
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

HEADER = ("what", "against", "time", "expected", "printed", "memory", "expected", "printed")
# what, against: expected powers of time and memory, and those of Table 1 as printed
POWERS = {
    ("march", "steps"): ((3, 2), (3, 2)),
    ("march", "depth"): ((1, 1), (1, 1)),
    ("residual march", "steps"): ((3, 2), (3, 2)),
    ("residual march", "depth"): ((1, 1), (2, 2)),
    ("network", "width"): ((2, 2), (2, 2)),
    ("network", "data"): ((1, 1), (1, 0)),
}
FASTEST_OF = 2


@dataclass(frozen=True)
class Parameters:
    """``steps`` vary at ``depth``, ``depths`` at ``fixed_steps``; a network has D = N, and P = N while N varies."""

    steps: tuple[int, ...] = (200, 400, 800)
    depth: int = 4
    depths: tuple[int, ...] = (4, 8, 16, 32)
    fixed_steps: int = 200
    widths: tuple[int, ...] = (500, 1000, 2000)
    data: tuple[int, ...] = (8000, 16_000, 32_000)
    fixed_width: int = 200
    updates: int = 20
    rate: float = 0.002
    seed: int = 2541


FULL = Parameters()
QUICK = Parameters(
    steps=(50, 100, 200), depths=(2, 4, 8), fixed_steps=100, widths=(250, 500, 1000), data=(4000, 8000, 16_000),
    fixed_width=100,
)  # fmt: skip


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Time and memory of every line of the table."""
    import xarray as xr

    p = parameters
    said = counter(report, len(POWERS) + 1)
    blocks = {}
    for what, against in POWERS:
        said(f"{what} against {against}")
        sizes, measured = series(p, what, against)
        name = f"{what}_{against}".replace(" ", "_")
        blocks[f"{name}_seconds"] = ((f"{name}_size",), np.array([seconds for seconds, _ in measured]))
        blocks[f"{name}_bytes"] = ((f"{name}_size",), np.array([kept for _, kept in measured], dtype=float))
        blocks[f"{name}_size"] = ((f"{name}_size",), np.array(sizes))
    said("drawing")
    data = xr.Dataset(blocks)
    rows = [row_of(data, what, against) for what, against in POWERS]
    notes = (
        "powers fitted to process times of one warm call; memory counts the matrices or weights and inputs that are kept",
        "residual networks need no responses between all pairs of layers: the march is linear in depth where Table 1 prints L²",
        "a linear network needs the sum over samples once a step: N²L + PD a step, where Table 1 prints N²LP",
        "small sizes are below the asymptotic powers: the input layer has matrices of its own, and calls a fixed cost",
    )
    table = [HEADER, *(cells(row) for row in rows)]
    return Made(draw(data), data, p, numbers=rows, table=table, notes=notes)


def series(p: Parameters, what: str, against: str) -> tuple[tuple[int, ...], list[tuple[float, int]]]:
    """Sizes, and (seconds, bytes) at each."""
    if what == "network":
        sizes = p.widths if against == "width" else p.data
        return sizes, [trained(p, *((n, n) if against == "width" else (p.fixed_width, n))) for n in sizes]
    sizes = p.steps if against == "steps" else p.depths
    residual = what == "residual march"
    return sizes, [marched(p, *((n, p.depth) if against == "steps" else (p.fixed_steps, n)), residual) for n in sizes]


@x64
def marched(p: Parameters, steps: int, depth: int, residual: bool) -> tuple[float, int]:
    """One march, compiled before it is timed, with data that are used again."""
    import jax

    from widefield.theories.proportional.march import march
    from widefield.theories.proportional.problem import problem

    net: Network = wf.ResNet(depth, "linear", depth**-0.5) if residual else wf.DNN(depth, "linear")
    asked = problem(
        net, rate=p.rate, steps=steps, richness=1.0, width_ratio=1.0, data_ratio=2.0, batch_ratio=None, label_noise=0.0,
        centered=False, spectrum=None, width=None, batch=None, target_overlap=None,
    )  # fmt: skip
    parameters = asked.parameters
    compiled = jax.jit(march, static_argnames="shape").lower(parameters, asked.shape).compile()
    kept: list[int] = []

    def call() -> None:
        state = jax.block_until_ready(compiled(parameters))
        kept.append(sum(leaf.nbytes for leaf in jax.tree.leaves(state)))

    return seconds(call), kept[0]


def trained(p: Parameters, width: int, n_data: int) -> tuple[float, int]:
    """One network over a few updates, less the time of one update, which holds the drawing of weights and inputs."""
    run: dict[str, Any] = {
        "dimension": width, "width_ratio": 1.0, "data_ratio": n_data / width, "richness": 1.0, "rate": p.rate, "replicates": 1,
        "seed": p.seed, "paired": False, "quantities": ("test_loss",), "progress": False,
    }  # fmt: skip
    net = wf.DNN(p.depth, "linear")
    one, many = (seconds(partial(wf.simulate.proportional, net, steps=n, **run)) for n in (1, 1 + p.updates))
    return max(many - one, 1e-9), 8 * (p.depth * width**2 + n_data * width)


def seconds(call: Callable[[], Any]) -> float:
    """Process seconds, the fastest of a few calls."""
    found = []
    for _ in range(FASTEST_OF):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def row_of(data: "xr.Dataset", what: str, against: str) -> dict[str, Any]:
    """Fitted powers beside the expected and the printed ones."""
    name = f"{what}_{against}".replace(" ", "_")
    sizes = np.log(data[f"{name}_size"].values)
    fit = {kind: float(np.polyfit(sizes, np.log(data[f"{name}_{kind}"].values), 1)[0]) for kind in ("seconds", "bytes")}
    expected, printed = POWERS[what, against]
    return {
        "quantity": f"{what} against {against}", "time_power": fit["seconds"], "memory_power": fit["bytes"],
        "expected_powers": list(expected), "printed_powers": list(printed),
        "largest_seconds": float(data[f"{name}_seconds"][-1]), "largest_megabytes": float(data[f"{name}_bytes"][-1]) / 1e6,
    }  # fmt: skip


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as words under `HEADER`."""
    what, against = row["quantity"].split(" against ")
    (t, m), (t_, m_) = row["expected_powers"], row["printed_powers"]
    return what, against, f"{row['time_power']:.2f}", str(t), str(t_), f"{row['memory_power']:.2f}", str(m), str(m_)


def draw(data: "xr.Dataset") -> Figure:
    """Time above, memory below: against steps, against depth, against the size of a network."""
    with house_style():
        figure, axes = panels(2, 3, size=(3.1, 2.5))
        columns = (
            ("steps", "steps $T$", ("march", "residual march")),
            ("depth", "depth $L$", ("march", "residual march")),
            ("", "width $N$ or samples $P$", ("width", "data")),
        )
        for column, (against, label, names) in enumerate(columns):
            cases = [(n, against) if against else ("network", n) for n in names]
            for row, (kind, title) in enumerate((("seconds", "CPU time [s]"), ("bytes", "memory [MB]"))):
                ax = axes[row, column]
                letter(ax, "abcdef"[3 * row + column])
                _lines(ax, data, cases, kind)
                ax.set(xlabel=label, ylabel=title, xscale="log", yscale="log")
                _ticks(ax, data, cases)
                ax.legend(fontsize=7)
        for ax, title in zip(axes[0], ("march", "march", "training one network"), strict=True):
            ax.set_title(title)
    return figure


def _ticks(ax: "Axes", data: "xr.Dataset", cases: list[tuple[str, str]]) -> None:
    """The sizes that were measured, and no others."""
    names = [f"{what}_{against}_size".replace(" ", "_") for what, against in cases]
    sizes = np.unique(np.concatenate([data[name].values for name in names]))
    ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    ax.set_xticks(sizes, [str(size) for size in sizes], rotation=45 if len(sizes) > 4 else 0)


def _lines(ax: "Axes", data: "xr.Dataset", cases: list[tuple[str, str]], kind: str) -> None:
    scale = 1e-6 if kind == "bytes" else 1.0
    for color, (what, against) in zip(SERIES, cases, strict=False):
        name = f"{what}_{against}".replace(" ", "_")
        x, y = data[f"{name}_size"].values, scale * data[f"{name}_{kind}"].values
        power = POWERS[what, against][0][kind == "bytes"]
        shown = f"{what}" if what != "network" else f"against {against}"
        ax.plot(x, y, "o", color=color, label=shown)
        ax.plot(x, y[-1] * (x / x[-1]) ** power, color=color, linestyle="--", linewidth=0.9)
    ax.plot([], [], color=COLORS["theory"], linestyle="--", linewidth=0.9, label="expected power")
