"""Table 1 of Bordelon & Pehlevan (2022), measured: what a network, the approximations and the full theory cost.

Process time of one warm call on this machine against samples P, steps T and width N, and the bytes that each keeps. Times
vary with the machine; the powers are what the figure is about.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import widefield as wf
from widefield.answer.solution import Solution
from widefield.gallery.bordelon22 import counter, two_classes
from widefield.gallery.costs import HEADER, block, cells, lines, row_of, seconds
from widefield.gallery.record import Made, Report
from widefield.plot.style import Figure, house_style, letter, panels

if TYPE_CHECKING:
    import xarray as xr

# what, against: most that time and memory should grow with, and Table 1 as printed
POWERS = {
    ("network", "width"): ((2, 2), (2, 2)),
    ("network", "samples"): ((1, 0), (1, 0)),
    ("network", "steps"): ((1, 0), (1, 0)),
    ("lazy", "samples"): ((2, 2), (2, 2)),
    ("perturbative", "samples"): ((2, 1), (4, 4)),
    ("perturbative", "steps"): ((1, 0), (1, 1)),
    ("full", "samples"): ((2, 1), (3, 2)),
    ("full", "steps"): ((1, 0), (3, 2)),
}
LABELS = {"samples": "samples $P$", "steps": "steps $T$", "width": "width $N$"}
ARRAYS = 1.5  # kept for every direction and path: the direction, and half a noise, since paths come in pairs


@dataclass(frozen=True)
class Parameters:
    """Each of ``samples``, ``steps`` and ``widths`` varies while the others keep their first value, the width its last but one."""

    depth: int = 2
    samples: tuple[int, ...] = (5, 10, 20, 40)
    steps: tuple[int, ...] = (50, 100, 200)
    widths: tuple[int, ...] = (500, 1000, 2000, 4000)
    paths: int = 2048
    richness: float = 1.0
    rate: float = 0.02
    dimension: int = 50
    seed: int = 2022


FULL = Parameters()
QUICK = Parameters(samples=(4, 16), steps=(20, 60), widths=(200, 400, 800), paths=512, dimension=20)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Time and memory of every line of the table."""
    import xarray as xr

    p = parameters
    said = counter(report, len(POWERS))
    blocks: dict[str, Any] = {}
    for what, against in POWERS:
        said(f"{what} against {against}")
        blocks |= block(what, against, *series(p, what, against))
    data = xr.Dataset(blocks)
    rows = [row_of(data, POWERS, *case) for case in POWERS]
    notes = (
        "powers fitted to process times of one warm call; memory counts the weights, the kernel, or the directions of all paths",
        "one causal pass in low-rank form: the full theory is linear in T where Table 1 prints T³, and costs P times the number "
        "of directions, which grows with P at most in proportion; two-time kernels are extra",
        "the perturbative theory is measured by the march at three small richnesses; static kernels cost little beside the call",
    )
    return Made(draw(data), data, p, numbers=rows, table=[HEADER, *(cells(row) for row in rows)], notes=notes)


def series(p: Parameters, what: str, against: str) -> tuple[tuple[int, ...], list[tuple[float, float]]]:
    """Sizes, and (seconds, bytes) at each."""
    sizes = {"width": p.widths, "samples": p.samples, "steps": p.steps}[against]
    base = {"width": p.widths[-2], "samples": p.samples[0], "steps": p.steps[0]}
    return sizes, [measured(p, what, **(base | {against: size})) for size in sizes]


def measured(p: Parameters, what: str, *, width: int, samples: int, steps: int) -> tuple[float, float]:
    """Of one call; a compilation comes first and is not counted."""
    task = two_classes(samples, p.dimension, p.seed)
    asked: dict[str, Any] = {"richness": p.richness, "rate": p.rate / samples, "steps": steps, "progress": False}
    asked["quantities"] = ("loss", "prediction")
    net = wf.DNN(p.depth, "tanh")
    if what == "network":
        call = partial(wf.simulate.dynamics, net, task, width=width, replicates=1, seed=p.seed, **asked)
    else:
        call = partial(wf.dynamics, net, task, method=what, paths=p.paths, seed=p.seed, **asked)
    found = call()
    return seconds(call), kept(p, what, found, width, samples)


def kept(p: Parameters, what: str, found: Solution, width: int, samples: int) -> float:
    """Bytes of the weights, of the static kernel, or of the directions of one batch of paths."""
    if what == "network":
        return 8.0 * (width * (p.dimension + 1) + (p.depth - 1) * width**2)
    if what == "lazy":
        return 8.0 * samples**2
    return 8.0 * p.paths * ARRAYS * sum(found.certificate.diagnostics["directions"])


def draw(data: "xr.Dataset") -> Figure:
    """Time above, memory below, against samples, steps and width."""
    with house_style():
        figure, axes = panels(2, 3, size=(3.1, 2.5))
        for column, (against, label) in enumerate(LABELS.items()):
            cases = {case: case[0] for case in POWERS if case[1] == against}
            for row, (kind, title) in enumerate((("seconds", "CPU time [s]"), ("bytes", "memory [MB]"))):
                ax = axes[row, column]
                letter(ax, "abcdef"[3 * row + column])
                lines(ax, data, POWERS, cases, kind)
                ax.set(xlabel=label, ylabel=title)
                ax.get_legend().remove()
        axes[0, 2].legend(*axes[0, 0].get_legend_handles_labels(), fontsize=7, loc="upper left")
    return figure
