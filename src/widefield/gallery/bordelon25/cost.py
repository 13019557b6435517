"""Table 1 of Bordelon & Pehlevan, measured: what the march costs, and what training one network costs.

Process time of one warm call on this machine, and the bytes that each keeps. Times vary with the machine; the powers are
what the figure is about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import widefield as wf
from widefield.answer.boundary import x64
from widefield.gallery import kit
from widefield.gallery.kit.costs import seconds, table_of_costs
from widefield.theories.proportional.march.causal import march
from widefield.theories.proportional.problem import pose

# what, against: expected powers of time and memory, and those of Table 1 as printed
POWERS = {
    ("march", "steps"): ((3, 2), (3, 2)),
    ("march", "depth"): ((1, 1), (1, 1)),
    ("residual march", "steps"): ((3, 2), (3, 2)),
    ("residual march", "depth"): ((1, 1), (2, 2)),
    ("network", "width"): ((2, 2), (2, 2)),
    ("network", "data"): ((1, 1), (1, 0)),
}
COLUMNS = (
    ("march", "steps $T$", {(what, "steps"): what for what in ("march", "residual march")}),
    ("march", "depth $L$", {(what, "depth"): what for what in ("march", "residual march")}),
    ("training one network", "width $N$ or samples $P$", {("network", n): f"against {n}" for n in ("width", "data")}),
)
NOTES = (
    "powers fitted to process times of one warm call; memory counts the matrices or weights and inputs that are kept",
    "residual networks need no responses between all pairs of layers: the march is linear in depth where Table 1 prints L²",
    "a linear network needs the sum over samples once a step: N²L + PD a step, where Table 1 prints N²LP",
    "small sizes are below the asymptotic powers: the input layer has matrices of its own, and calls a fixed cost",
)


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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Time and memory of every line of the table."""
    return table_of_costs(p, work, POWERS, series, COLUMNS, NOTES)


def series(p: Parameters, what: str, against: str) -> tuple[Sequence[int], Sequence[tuple[float, float]]]:
    """Sizes, and (seconds, bytes) at each."""
    if what == "network":
        sizes = p.widths if against == "width" else p.data
        return sizes, [trained(p, n if against == "width" else p.fixed_width, n) for n in sizes]
    sizes, residual = p.steps if against == "steps" else p.depths, what == "residual march"
    return sizes, [marched(p, *((n, p.depth) if against == "steps" else (p.fixed_steps, n)), residual) for n in sizes]


@x64
def marched(p: Parameters, steps: int, depth: int, residual: bool) -> tuple[float, int]:
    """One march of `widefield.proportional`, compiled before it is timed, with data that are used again."""
    import jax

    network: wf.Network = wf.ResNet(depth, "linear", depth**-0.5) if residual else wf.DNN(depth, "linear")
    asked = pose(network, wf.Teacher(data_ratio=2.0), wf.Training(p.rate, steps), width_ratio=1.0)
    compiled = jax.jit(march, static_argnames="shape").lower(asked.parameters, asked.shape).compile()
    call = lambda: jax.block_until_ready(compiled(asked.parameters))  # noqa: E731
    return seconds(call), sum(leaf.nbytes for leaf in jax.tree.leaves(call()))


def trained(p: Parameters, width: int, n_data: int) -> tuple[float, int]:
    """One network over a few updates, less the time of one update, which holds the drawing of weights and inputs."""
    network, teacher = wf.DNN(p.depth, "linear"), wf.Teacher(data_ratio=n_data / width)

    def train(steps: int) -> wf.Solution:
        return wf.simulate.proportional(
            network, teacher, wf.Training(p.rate, steps), dimension=width, width_ratio=1.0, replicates=1, seed=p.seed,
            paired=False, quantities=("test_loss",), progress=False,
        )  # fmt: skip

    one, many = (seconds(partial(train, steps)) for steps in (1, 1 + p.updates))
    return max(many - one, 1e-9), 8 * (p.depth * width**2 + n_data * width)
