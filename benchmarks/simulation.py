"""Finite networks with and without their weights, at one point of Fig. 2 of Segadlo et al., and at large width."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import fresh
import numpy as np
from tables import met, table

import widefield as wf

N_INPUTS, DIMENSION = 10, 4
VARIANCES = {"weight_variance": 1.6, "input_variance": 1.6, "readout_variance": 1.6, "bias_variance": 0.2}


@dataclass(frozen=True)
class Point:
    """How many networks each method simulates differs, to spare time: times are per network."""

    weights: str
    width: int
    depth: int
    n_networks: dict[str, int]
    target: float


POINTS = {
    "Fig. 2 untied": Point("untied", 500, 16, {"weight_free": 2000, "dense": 40}, 15),
    "Fig. 2 tied": Point("tied", 500, 16, {"weight_free": 200, "dense": 200}, 1),
    "wide tied": Point("tied", 4000, 7, {"weight_free": 40, "dense": 4}, 10),
}


def measure(name: str, repeats: int) -> dict[str, float]:
    """Warm seconds per network of both methods."""
    point = POINTS[name]
    net = wf.DNN(point.depth, "relu", weights=point.weights, biases="untied", **VARIANCES)  # type: ignore[arg-type]
    task = wf.Task(np.random.default_rng(0).normal(size=(N_INPUTS, DIMENSION)))
    simulate = partial(wf.simulate.prior, net, task, width=point.width, seed=1, progress=False)
    trials = {
        method: partial(simulate, method=method, replicates=n, quantities=("output", "draw"))
        for method, n in point.n_networks.items()
    }
    times = fresh.times(trials, repeats)
    return {method: t["warm_seconds"] / point.n_networks[method] for method, t in times.items()}


def run() -> list[dict[str, Any]]:
    rows = []
    for name, point in POINTS.items():
        per_network = fresh.call(measure, name=name, repeats=3)
        ratio = per_network["dense"] / per_network["weight_free"]
        row = {"point": name, "width": point.width, "transitions": point.depth - 1, "seconds_per_network": per_network}
        rows.append(row | {"ratio": ratio, "target": point.target, "met": ratio >= point.target})
    return rows


def show(rows: list[dict[str, Any]]) -> str:
    header = ("networks", "n", "A·P", "weight-free ms", "dense ms", "ratio", "target", "met")
    cells = []
    for row in rows:
        sizes = str(row["width"]), str(row["transitions"] * N_INPUTS)
        times = (1e3 * row["seconds_per_network"][method] for method in ("weight_free", "dense"))
        cells.append((row["point"], *sizes, *times, row["ratio"], f">= {row['target']:g}x", met([row["met"]])))
    return table("Simulation, per network", header, cells)
