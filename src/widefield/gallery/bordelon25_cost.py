"""Table 1 of Bordelon & Pehlevan, measured: what the march costs, and what training one network costs.

Process time of one warm call on this machine, and the bytes that each keeps. Times vary with the machine; the powers are
what the figure is about.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import widefield as wf
from widefield.answer.boundary import x64
from widefield.gallery.bordelon25 import counter
from widefield.gallery.costs import HEADER, block, cells, lines, row_of, seconds
from widefield.gallery.record import Made, Report
from widefield.plot.style import Figure, house_style, letter, panels
from widefield.question.network import Network

if TYPE_CHECKING:
    import xarray as xr

# what, against: expected powers of time and memory, and those of Table 1 as printed
POWERS = {
    ("march", "steps"): ((3, 2), (3, 2)),
    ("march", "depth"): ((1, 1), (1, 1)),
    ("residual march", "steps"): ((3, 2), (3, 2)),
    ("residual march", "depth"): ((1, 1), (2, 2)),
    ("network", "width"): ((2, 2), (2, 2)),
    ("network", "data"): ((1, 1), (1, 0)),
}


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
    blocks: dict[str, Any] = {}
    for what, against in POWERS:
        said(f"{what} against {against}")
        blocks |= block(what, against, *series(p, what, against))
    said("drawing")
    data = xr.Dataset(blocks)
    rows = [row_of(data, POWERS, *case) for case in POWERS]
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


def draw(data: "xr.Dataset") -> Figure:
    """Time above, memory below: against steps, against depth, against the size of a network."""
    with house_style():
        figure, axes = panels(2, 3, size=(3.1, 2.5))
        marches = lambda against: {(what, against): what for what in ("march", "residual march")}  # noqa: E731
        columns = (
            ("steps $T$", marches("steps")),
            ("depth $L$", marches("depth")),
            ("width $N$ or samples $P$", {("network", n): f"against {n}" for n in ("width", "data")}),
        )
        for column, (label, cases) in enumerate(columns):
            for row, (kind, title) in enumerate((("seconds", "CPU time [s]"), ("bytes", "memory [MB]"))):
                ax = axes[row, column]
                letter(ax, "abcdef"[3 * row + column])
                lines(ax, data, POWERS, cases, kind)
                ax.set(xlabel=label, ylabel=title)
        for ax, title in zip(axes[0], ("march", "march", "training one network"), strict=True):
            ax.set_title(title)
    return figure
