"""How the cost of output and tangent kernel grows with the number of samples and with depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import fresh
import numpy as np
from cases import Case
from kernels import ask
from tables import met, table

import widefield as wf

FEW = 8
"""What a call costs with so few samples does not grow with them (checks, the certificate): it is taken off."""
SLACK = 0.25


@dataclass(frozen=True)
class Series:
    """Sizes of which one varies, large enough for the work to exceed the fixed cost of a call."""

    activation: str
    weight_variance: float
    n_samples: tuple[int, ...]
    depths: tuple[int, ...]
    expected: int

    @property
    def against(self) -> str:
        return "samples" if len(self.n_samples) > 1 else "depth"

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.n_samples if self.against == "samples" else self.depths

    def cases(self, n_samples: Sequence[int]) -> list[Case]:
        return [
            Case(self.activation, p, d, weight_variance=self.weight_variance) for p in n_samples for d in self.depths
        ]


SERIES = (
    Series("relu", 2.0, (1000, 2000, 4000, 8000), (10,), expected=2),
    Series("tanh", 1.5, (500, 1000, 2000, 4000), (10,), expected=2),
    Series("relu", 2.0, (2000,), (10, 20, 40, 80), expected=1),
    Series("tanh", 1.5, (500,), (10, 20, 40, 80), expected=1),  # correlations grow to 1: deeper layers sum more terms
    Series("tanh", 3.0, (500,), (10, 20, 40, 80), expected=1),  # chaotic: all layers sum alike
)


def measure(index: int, repeats: int) -> dict[str, list[float]]:
    """Warm seconds of `widefield.prior` for every size of a series, and with few samples."""
    series = SERIES[index]
    cases = [*series.cases((FEW,)), *series.cases(series.n_samples)]
    asks = {str(i): partial(ask, case, wf.Task(case.inputs())) for i, case in enumerate(cases)}
    seconds = [t["warm_seconds"] for t in fresh.times(asks, repeats).values()]
    n_fixed = len(series.depths)
    fixed = seconds[:n_fixed] if series.against == "depth" else seconds[:n_fixed] * len(series.n_samples)
    return {"seconds": seconds[n_fixed:], "fixed_seconds": fixed}


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def run() -> list[dict[str, Any]]:
    rows = []
    for index, series in enumerate(SERIES):
        found = fresh.call(measure, index=index, repeats=3)
        growing = [all_ - fixed for all_, fixed in zip(found["seconds"], found["fixed_seconds"])]
        network = f"{series.activation}, w = {series.weight_variance:g}"
        row = {"network": network, "against": series.against, "sizes": series.sizes, **found}
        row |= {"exponent": exponent(series.sizes, growing), "last": exponent(series.sizes[-2:], growing[-2:])}
        rows.append(row | {"expected": series.expected, "met": abs(row["exponent"] - series.expected) <= SLACK})
    return rows


def show(rows: list[dict[str, Any]]) -> str:
    def numbers(values: Sequence[float]) -> str:
        return " ".join(f"{v:.3g}" for v in values)

    header = ("network", "against", "sizes", "seconds", "fixed", "exponent", "last doubling", "target", "met")
    cells = []
    for row in rows:
        fitted, last = (f"{row[name]:.2f}" for name in ("exponent", "last"))
        times = numbers(row["seconds"]), numbers(sorted(set(row["fixed_seconds"])))
        sizes, target = " ".join(map(str, row["sizes"])), f"{row['expected']} ± {SLACK}"
        cells.append((row["network"], row["against"], sizes, *times, fitted, last, target, met([row["met"]])))
    return table("Growth of seconds - fixed", header, cells)
