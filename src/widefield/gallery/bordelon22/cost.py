"""Table 1 of Bordelon & Pehlevan (2022), measured: what a network, the approximations and the full theory cost.

Process time of one warm call on this machine against samples P, steps T and width N, and the bytes that each keeps. Times
vary with the machine; the powers are what the figure is about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon22.kernels import two_classes
from widefield.gallery.kit.costs import seconds, table_of_costs

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
COLUMNS = [("", label, {case: case[0] for case in POWERS if case[1] == against}) for against, label in LABELS.items()]
ARRAYS = 1.5  # kept for every direction and path: the direction, and half a noise, since paths come in pairs
NOTES = (
    "powers fitted to process times of one warm call; memory counts the weights, the kernel, or the directions of all paths",
    "one causal pass in low-rank form: the full theory is linear in T where Table 1 prints T³, and costs P times the number "
    "of directions, which grows with P at most in proportion; two-time kernels are extra",
    "the perturbative theory is measured by the march at three small richnesses; static kernels cost little beside the call",
)


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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Time and memory of every line of the table."""
    return table_of_costs(p, work, POWERS, series, COLUMNS, NOTES, one_legend=True)


def series(p: Parameters, what: str, against: str) -> tuple[Sequence[int], Sequence[tuple[float, float]]]:
    """Sizes, and (seconds, bytes) at each."""
    sizes = {"width": p.widths, "samples": p.samples, "steps": p.steps}[against]
    base = {"width": p.widths[-2], "samples": p.samples[0], "steps": p.steps[0]}
    return sizes, [measured(p, what, **(base | {against: size})) for size in sizes]


def measured(p: Parameters, what: str, *, width: int, samples: int, steps: int) -> tuple[float, float]:
    """Of one call, after one that compiles: time, and bytes of the weights, the static kernel, or one batch's directions."""
    training = wf.Training(p.rate / samples, steps, richness=p.richness)
    question = wf.DNN(p.depth, "tanh"), two_classes(samples, p.dimension, p.seed), training
    wanted: dict[str, Any] = {"seed": p.seed, "quantities": ("loss", "prediction"), "progress": False}

    def call() -> wf.Solution:
        if what == "network":
            return wf.simulate.dynamics(*question, width=width, replicates=1, **wanted)
        return wf.dynamics(*question, method=what, paths=p.paths, throw=what != "perturbative", **wanted)

    directions = call().certificate.diagnostics.get("directions", ())
    kept = {"network": width * (p.dimension + 1) + (p.depth - 1) * width**2, "lazy": samples**2}
    return seconds(call), 8.0 * kept.get(what, p.paths * ARRAYS * sum(directions))
