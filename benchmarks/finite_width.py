"""Finite width: the full vertex against the printed equation, and the growth of what is made on pairs."""

import itertools
from functools import lru_cache
from typing import Any

import fresh
import numpy as np
from scaling import SLACK, exponent
from tables import met, table

import widefield as wf
from widefield.theories.finite_width import finite_width

N_INPUTS, N_NODES = 4, 24  # of the printed equation, on a grid of N_NODES per input
SIZES = {"relu": (200, 400, 800), "tanh": (50, 100, 200, 400)}  # where the work exceeds the fixed cost of a call
FEW, ASKED = 8, 200  # inputs: what a call costs that does not grow with them, and the number with a target
NETWORK = {"weight_variance": 1.5, "bias_variance": 0.1}


def inputs(n: int) -> wf.Task:
    return wf.Task(np.random.default_rng(0).normal(size=(n, 20)))


@lru_cache
def grid(n: int) -> tuple[np.ndarray, np.ndarray]:
    z, w = np.polynomial.hermite_e.hermegauss(N_NODES)
    nodes = np.stack(np.meshgrid(*[z] * n, indexing="ij"), axis=-1).reshape(-1, n)
    weights = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * n, indexing="ij"), axis=-1).reshape(-1, n), axis=-1)
    return nodes, weights


def printed_component(K: np.ndarray, V: np.ndarray, a: int, b: int, c: int, d: int) -> float:
    """Eq. 4.90 for one component: every integral of the sum over four samples on the whole grid."""
    nodes, weight = grid(len(K))
    z = nodes @ np.linalg.cholesky(K).T
    s = np.tanh(z)
    inverse = np.linalg.inv(K)
    raised = np.einsum("ai,bj,ck,dl,ijkl->abcd", *[inverse] * 4, V, optimize=True)
    left, right = weight * s[:, a] * s[:, b], weight * s[:, c] * s[:, d]
    total = left @ (s[:, c] * s[:, d]) - left.sum() * right.sum()
    for e, f, g, h in itertools.product(range(len(K)), repeat=4):
        first, second = left @ (z[:, e] * z[:, f] - K[e, f]), right @ (z[:, g] * z[:, h] - K[g, h])
        total += raised[e, f, g, h] * first * second / 4
    return 1.5**2 * total


def measure_vertex() -> dict[str, float]:
    """Seconds of all components of V from layer 1 to 3, ours and printed (one component times their number)."""
    net = wf.DNN(2, "tanh", **NETWORK | {"readout_variance": 1.5})
    found = finite_width(net, inputs(N_INPUTS), width=100)
    K, V = found.kernel.values[1], found.vertex.values[1]
    calls = {
        "ours": lambda: finite_width(net, inputs(N_INPUTS), width=100, quantities=("vertex",)),
        "component": lambda: printed_component(K, V, 0, 1, 2, 3),
    }
    seconds = {name: t["warm_seconds"] for name, t in fresh.times(calls, 3).items()}
    off = abs(printed_component(K, V, 0, 1, 2, 3) - found.vertex.values[2, 0, 1, 2, 3])
    return {"ours": seconds["ours"], "printed": 2 * N_INPUTS**4 * seconds["component"], "difference": float(off)}


def measure_large() -> dict[str, float]:
    """The full vertex of 10 inputs through 10 layers, once."""
    return {
        name: fresh.seconds(lambda name=name: finite_width(wf.DNN(10, name, **NETWORK), inputs(10), width=100, quantities=("vertex",)))
        for name in ("relu", "erf", "tanh")
    }  # fmt: skip


def measure_pairs(activation: str) -> list[float]:
    """Seconds of the correction through 10 layers: few inputs, then a growing number."""
    net = wf.DNN(10, activation, **NETWORK)
    sizes = FEW, *SIZES[activation]
    calls = {n: lambda n=n: finite_width(net, inputs(n), width=100, quantities=("correction",)) for n in sizes}
    return [t["warm_seconds"] for t in fresh.times({str(n): call for n, call in calls.items()}, 2).values()]


def run() -> dict[str, Any]:
    print("measuring finite width ...", flush=True)
    return {
        "vertex": fresh.call(measure_vertex),
        "large": fresh.call(measure_large),
        "pairs": {name: fresh.call(measure_pairs, activation=name) for name in SIZES},
    }


def growth(name: str, measured: list[float]) -> list[Any]:
    """A row: sizes, seconds, exponent of the seconds less the fixed ones, of the last doubling alone, and the verdict."""
    (fixed, *seconds), sizes = measured, SIZES[name]
    growing = [s - fixed for s in seconds]
    slope, last = exponent(sizes, growing), exponent(sizes[-2:], growing[-2:])
    asked = seconds[sizes.index(ASKED)]
    words = " ".join(map(str, sizes)), " ".join(f"{s:.3g}" for s in seconds), f"{fixed:.2g}"
    return [name, *words, slope, last, met([asked <= 60, abs(slope - 2) <= SLACK])]


def show(results: dict[str, Any]) -> str:
    vertex, ratio = results["vertex"], results["vertex"]["printed"] / results["vertex"]["ours"]
    n_pairs = N_INPUTS * (N_INPUTS + 1) // 2
    symmetric = ratio * n_pairs * (n_pairs + 1) / (2 * N_INPUTS**4)
    off = f"{vertex['difference']:.0e}"
    return "\n\n".join(
        [
            table(
                f"Full vertex of {N_INPUTS} tanh inputs, two layers, against Eq. 4.90 on a grid of {N_NODES}⁴ nodes",
                ["", "s", "printed s", "ratio", "with its symmetries", "difference", "met"],
                [["tanh", vertex["ours"], vertex["printed"], ratio, symmetric, off, met([ratio >= 100])]],
            ),
            table(
                "Full vertex of 10 inputs through 10 layers, first call",
                ["", *results["large"]],
                [["s", *results["large"].values()]],
            ),
            table(
                f"Correction through 10 layers ({ASKED} inputs in a minute, exponent 2 ± {SLACK} of seconds - fixed)",
                ["", "inputs", "seconds", "fixed", "exponent", "last doubling", "met"],
                [growth(name, seconds) for name, seconds in results["pairs"].items()],
            ),
        ]
    )
