"""How the cost of output and tangent kernel grows with the number of samples and with depth."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import fresh
import numpy as np
import widefield as wf
from cases import CASES, Case
from kernels import ask
from tables import met, table

N_SAMPLES = (250, 500, 1000, 2000)
DEPTHS = (10, 20, 40, 80)
N_SAMPLES_AT_DEPTHS = 1000
SLACK = 0.15
"""Allowed above the expected exponent."""


def measure(activation: str, sizes: Sequence[tuple[int, int]], repeats: int) -> list[float]:
    """Warm seconds of `widefield.prior` for every (samples, depth)."""
    w = CASES[activation].weight_variance
    cases = {f"{p} {d}": Case(activation, n_samples=p, n_hidden=d, weight_variance=w) for p, d in sizes}
    asks = {name: partial(ask, case, wf.Task(case.inputs())) for name, case in cases.items()}
    return [t["warm_seconds"] for t in fresh.times(asks, repeats).values()]


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def run() -> list[dict[str, Any]]:
    series = {
        "samples": (2, N_SAMPLES, [(p, DEPTHS[0]) for p in N_SAMPLES]),
        "depth": (1, DEPTHS, [(N_SAMPLES_AT_DEPTHS, d) for d in DEPTHS]),
    }
    rows = []
    for activation in ("relu", "tanh"):
        for against, (expected, sizes, both) in series.items():
            seconds = fresh.call(measure, activation=activation, sizes=both, repeats=5)
            fitted = exponent(sizes, seconds)
            row = {"activation": activation, "against": against, "sizes": sizes, "seconds": seconds}
            rows.append(row | {"exponent": fitted, "expected": expected, "met": fitted <= expected + SLACK})
    return rows


def show(rows: list[dict[str, Any]]) -> str:
    header = ("activation", "against", "sizes", "seconds", "exponent", "target", "met")
    cells = [
        (
            row["activation"],
            row["against"],
            " ".join(map(str, row["sizes"])),
            " ".join(f"{s:.3g}" for s in row["seconds"]),
            f"{row['exponent']:.2f}",
            f"<= {row['expected'] + SLACK:g}",
            met([row["met"]]),
        )
        for row in rows
    ]
    what = f"Growth (samples at depth {DEPTHS[0]}, depth at {N_SAMPLES_AT_DEPTHS} samples)"
    return table(what, header, cells)
