"""The proportional limit: the march against whole-matrix iteration, its growth, its floors, and sweeps of the rate.

Runs of more than 640 steps are compressed as they go; the dense march is measured beside them.
"""

import os
import time
from functools import partial
from typing import Any

import fresh
import jax
import numpy as np
from memory import process_mb
from scaling import exponent
from tables import met, table

import widefield as wf
from widefield.theories.proportional.march import march
from widefield.theories.proportional.march.compressed import BLOCK, RANK, marched
from widefield.theories.proportional.problem import Problem, pose
from widefield.theories.proportional.training_curves import train

DEPTH, SHORT, LONG = 4, 100, 2000
STEPS = (200, 400, 800, 1600)
DENSE = 800
DEPTHS = (4, 8, 16, 32)
RESIDUAL_STEPS = 200
N_RATES = 32
KINDS = ("plain", "residual")
HIDDEN = ("R_hr", "R_gu", "C_h", "C_g")
RATE, LONG_RATE, BRANCH = 0.01, 0.002, DEPTH**-0.5
RICHNESS, WIDTH_RATIO, TEACHER = 1.0, 1.0, wf.Teacher(data_ratio=2.0)
# n × n matrices that one step reads
READ = {"layer": 12, "inputs": 15}


def training(steps: int, rate: float | None = None) -> wf.Training:
    """The longer, the smaller its rate."""
    return wf.Training(rate or RATE * min(1.0, 2 * SHORT / steps), steps, richness=RICHNESS)


def posed(steps: int, depth: int = DEPTH, *, residual: bool = False, rate: float | None = None) -> Problem:
    """One run."""
    net = wf.ResNet(depth, "linear", 1 / np.sqrt(depth)) if residual else wf.DNN(depth, "linear")
    return pose(net, TEACHER, training(steps, rate), width_ratio=WIDTH_RATIO)


def core(one: Problem):
    """The march of one run as a compiled function of its parameters, which gives the test loss."""
    compiled = jax.jit(lambda p: march(p, one.shape).inputs.losses[:, 0]).lower(one.parameters).compile()
    return lambda p: np.asarray(compiled(p))[: one.n_rows]


def public_march(one: Problem) -> np.ndarray:
    """The march that the public call takes, without its check; the test loss."""
    *_, (_, state) = marched(one.parameters, one.shape)
    assert state is not None
    return np.asarray(state.inputs.losses)[: one.n_rows, 0]


def strict(matrix: np.ndarray, rate: float) -> np.ndarray:
    return rate * np.tril(matrix, -1)


def input_layer(X: dict[str, np.ndarray], rate: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Eqs. (proportional.5) to (proportional.8), whole matrices; and the test loss."""
    g0, nu, alpha = RICHNESS, WIDTH_RATIO, TEACHER.data_ratio
    eye, one = np.eye(len(X["C_D"])), np.ones((len(X["C_D"]), 1))
    K = X["R_gu"][0] / g0 + strict(X["C_g"][0], rate)
    H = np.linalg.inv(eye + K @ X["R_D"])
    R_vu = -H @ K
    R_D = np.linalg.inv(eye - R_vu / alpha)
    initial = X["C_g"][0] / (nu * g0**2)
    C_v = (H @ one) @ (H @ one).T + H @ initial @ H.T + R_vu @ X["C_D"] @ R_vu.T / alpha
    G, U = R_D @ H, eye + R_D @ R_vu
    C_h0 = (G @ one) @ (G @ one).T + G @ initial @ G.T + U @ X["C_D"] @ U.T / alpha
    return {"R_D": R_D, "C_D": R_D @ C_v @ R_D.T, "C_h0": C_h0, "R_hr0": -G}, np.diagonal(C_v)


def kernels(X: dict[str, np.ndarray], rate: float, branch: float) -> tuple[list, list, list, list]:
    """A, B and the covariances of u, r of every layer."""
    g0, nu = RICHNESS, WIDTH_RATIO
    ones = np.ones_like(X["C_D"])
    below, above = [X["C_h0"], *X["C_h"][:-1]], [*X["C_g"][1:], ones]
    strength = g0 * branch
    A = [X["R_hr0"] / (nu * g0) + g0 * strict(below[0], rate)]
    A += [R + strength * strict(C, rate) for R, C in zip(X["R_hr"][:-1], below[1:], strict=True)]
    B = [R + strength * strict(C, rate) for R, C in zip(X["R_gu"][1:], above[:-1], strict=True)]
    return A, [*B, g0 * strict(ones, rate)], below, above


def layer_by_layer(A: list, B: list, below: list, above: list, branch: float) -> dict[str, np.ndarray]:
    """Plain networks: every layer is a system of its own."""
    eye, layers = np.eye(len(A[0])), []
    for a, b, C_u, C_r in zip(A, B, below, above, strict=True):
        F, E = np.linalg.inv(eye - a @ b), np.linalg.inv(eye - b @ a)
        layers.append((F @ a, E @ b, F @ (C_u + a @ C_r @ a.T) @ F.T, E @ (C_r + b @ C_u @ b.T) @ E.T))
    return {name: np.stack(matrices) for name, matrices in zip(HIDDEN, zip(*layers, strict=True), strict=True)}


def all_pairs(A: list, B: list, below: list, above: list, branch: float) -> dict[str, np.ndarray]:
    """Residual networks as published: responses between all pairs of layers, one system of 2 L T equations."""
    depth, n = len(A), len(A[0])
    eye, part = np.eye(n), lambda i: slice(i * n, (i + 1) * n)
    system, drive = np.eye(2 * depth * n), np.zeros((2 * depth * n, 2 * depth * n))
    spread = np.zeros_like(drive)
    for l in range(depth):
        h, g = part(l), part(depth + l)
        up, down = branch if l else 1.0, branch if l + 1 < depth else 1.0
        system[h, g], system[g, h] = -up * A[l], -down * B[l]
        drive[h, h], drive[g, g] = up * eye, down * eye
        spread[h, h], spread[g, g] = below[l], above[l]
        if l:
            system[h, part(l - 1)] = -eye
        if l + 1 < depth:
            system[g, part(depth + l + 1)] = -eye
    Z = np.linalg.solve(system, drive)
    C = Z @ spread @ Z.T
    at = lambda M, i, j: np.stack([M[part(i * depth + l), part(j * depth + l)] for l in range(depth)])  # noqa: E731
    return {"R_hr": at(Z, 0, 1), "R_gu": at(Z, 1, 0), "C_h": at(C, 0, 0), "C_g": at(C, 1, 1)}


def picard(steps: int, *, residual: bool, damping: float = 0.5, tolerance: float = 1e-9) -> tuple[np.ndarray, int]:
    """All matrices at once, half the way at a time, until none changes by more than ``tolerance`` of its largest entry."""
    n, branch, solve = steps + 1, BRANCH if residual else 1.0, all_pairs if residual else layer_by_layer
    X: dict[str, np.ndarray] = {"R_D": np.eye(n)} | dict.fromkeys(("C_D", "C_h0", "R_hr0"), np.zeros((n, n)))
    X |= dict.fromkeys(HIDDEN, np.zeros((DEPTH, n, n)))
    change = np.inf
    for sweeps in range(1, 1000):
        new, loss = input_layer(X, RATE)
        new |= solve(*kernels(X, RATE, branch), branch)
        change = max(np.abs(new[name] - X[name]).max() / max(np.abs(new[name]).max(), 1e-300) for name in X)
        X = {name: X[name] + (1 - damping) * (new[name] - X[name]) for name in X}
        if change <= tolerance:
            return loss, sweeps
    raise RuntimeError(f"the damped iteration has not converged: it still changes by {change:.1e}")


def measure_iteration(residual: bool) -> dict[str, float]:
    """Seconds of one march, compiled, and of the damped iteration to the same losses."""
    with jax.enable_x64(True):
        one = posed(SHORT, residual=residual)
        compiled, parameters = core(one), one.parameters
        seconds = fresh.times({"march": lambda: compiled(parameters)}, 20)["march"]["warm_seconds"]
        loss, sweeps = picard(SHORT, residual=residual)
        iteration = min(fresh.seconds(partial(picard, SHORT, residual=residual)) for _ in range(2))
        off = float(np.abs(loss - compiled(parameters)).max())
    return {"march": seconds, "iteration": iteration, "sweeps": sweeps, "difference": off}


def measure_depths() -> list[float]:
    """Warm seconds of marches over growing depths, residual."""
    seconds = []
    with jax.enable_x64(True):
        for depth in DEPTHS:
            one = posed(RESIDUAL_STEPS, depth, residual=True)
            call = partial(core(one), one.parameters)
            seconds.append(min(fresh.seconds(call) for _ in range(5)))
            jax.clear_caches()
    return seconds


def measure_steps() -> list[float]:
    """Warm seconds of one run over growing steps."""
    with jax.enable_x64(True):
        return [_warm(partial(public_march, posed(steps)), 5 if steps <= 400 else 2) for steps in STEPS]


def measure_dense() -> dict[str, float]:
    """Warm seconds of the dense march, and how far the compressed one is from it."""
    with jax.enable_x64(True):
        one = posed(DENSE)
        compiled = core(one)
        loss = compiled(one.parameters)
        return {
            "seconds": _warm(partial(compiled, one.parameters), 2),
            "difference": float(np.abs(public_march(one) - loss).max() / loss.max()),
        }


def _warm(call, repeats: int) -> float:
    call()
    return min(fresh.seconds(call) for _ in range(repeats))


def floors() -> dict[str, float]:
    """Multiply-adds and bytes a second: a matrix product, and a copy (what is read and what is written)."""
    a, b = np.random.default_rng(0).normal(size=(2, 1500, 1500))
    large, into = np.ones((2, 2**26))
    product = min(fresh.seconds(lambda: a @ b) for _ in range(5))
    copy = min(fresh.seconds(lambda: np.copyto(into, large)) for _ in range(5))
    return {"products": 1500**3 / product, "bytes": 2 * large.nbytes / copy}


def measure_long() -> dict[str, Any]:
    """The whole public call at T = 2000: compilation, march and check; its memory, and its floors before and after."""
    before, speed = process_mb("VmRSS"), floors()
    wall = time.perf_counter()
    net = wf.DNN(DEPTH, "linear")
    options = {"width_ratio": WIDTH_RATIO, "quantities": ("test_loss",)}
    call = partial(wf.proportional, net, TEACHER, training(LONG, LONG_RATE), **options)
    seconds = fresh.seconds(call)
    wall = time.perf_counter() - wall
    peak = process_mb("VmHWM") - before
    speed = {name: max(value, speed[name]) for name, value in floors().items()}
    # numbers that are read, each multiplied and added once: whole matrices, or blocks and their factors
    reads = READ["layer"] * DEPTH + READ["inputs"]
    least = {"dense": reads * LONG**3 / 3, "compressed": reads * (BLOCK * LONG**2 + RANK / BLOCK * LONG**3 / 3)}
    floor = {name: {"products": n / speed["products"], "bytes": 8 * n / speed["bytes"]} for name, n in least.items()}
    return {"seconds": seconds, "wall": wall, "mb": peak, "load": os.getloadavg()[0], "floors": floor}


def measure_sweep() -> dict[str, float]:
    """32 rates in one call of `wf.rate_sweep`, and one after the other with the compiled march; both check one of them."""
    rates = np.geomspace(1e-3, 2e-2, N_RATES)
    with jax.enable_x64(True):
        runs = [posed(SHORT, rate=float(rate)) for rate in rates]
        compiled, parameters = core(runs[0]), [one.parameters for one in runs]
        net, options = wf.DNN(DEPTH, "linear"), {"rates": rates, "width_ratios": (WIDTH_RATIO,)}
        sweep = partial(wf.rate_sweep, net, TEACHER, training(SHORT), **options)
        calls = {"one call": sweep, "separate": lambda: ([compiled(p) for p in parameters], train(runs[-1]))}
        seconds = {name: t["warm_seconds"] for name, t in fresh.times(calls, 5).items()}
        separate = np.stack([compiled(p) for p in parameters])
        return seconds | {"difference": float(np.abs(sweep().test_loss.values[0] - separate).max())}


def run() -> dict[str, Any]:
    print("measuring the proportional limit ...", flush=True)
    return {
        "iteration": {name: fresh.call(measure_iteration, residual=name == "residual") for name in KINDS},
        "steps": fresh.call(measure_steps),
        "dense": fresh.call(measure_dense),
        "depth": fresh.call(measure_depths),
        "sweep": fresh.call(measure_sweep),
        "long": fresh.call(measure_long),
    }


def show(results: dict[str, Any]) -> str:
    iteration = [
        [name, r["march"], r["iteration"], r["sweeps"], f"{r['difference']:.0e}", r["iteration"] / r["march"],
         met([r["iteration"] >= 100 * r["march"]])]
        for name, r in results["iteration"].items()
    ]  # fmt: skip
    steps, depth = exponent(STEPS, results["steps"]), exponent(DEPTHS, results["depth"])
    sweep, long, dense = results["sweep"], results["long"], results["dense"]
    ratio = sweep["one call"] / sweep["separate"]
    return "\n\n".join(
        [
            table(
                f"Proportional, L = {DEPTH}, T = {SHORT}: the march against damped iteration of whole matrices to 1e-9",
                ["", "march s", "iteration s", "sweeps", "difference", "ratio", "100×"],
                iteration,
            ),
            table(
                "Proportional: seconds of one march, growing size",
                ["", *"1234", "exponent", "limit", "met"],
                [
                    [
                        f"steps {STEPS[0]} … {STEPS[-1]}, L = {DEPTH}",
                        *results["steps"],
                        steps,
                        3.1,
                        met([steps <= 3.1]),
                    ],
                    [f"residual, L = {DEPTHS[0]} … {DEPTHS[-1]}", *results["depth"], depth, 1.2, met([depth <= 1.2])],
                ],
            ),
            table(
                f"Proportional, L = {DEPTH}, T = {LONG}, one public call (load {long['load']:.1f}, wall {long['wall']:.0f} s)",
                ["floors", "products alone s", "bytes alone s", "the call s", "MB"],
                [[name, f["products"], f["bytes"], long["seconds"], long["mb"]] for name, f in long["floors"].items()],
            ),
            table(
                f"Proportional, L = {DEPTH}, T = {DENSE}: the dense march, and how far the compressed one is from it",
                ["", "dense s", "compressed s", "difference, relative", "1e-10"],
                [
                    [
                        "",
                        dense["seconds"],
                        results["steps"][STEPS.index(DENSE)],
                        f"{dense['difference']:.0e}",
                        met([dense["difference"] <= 1e-10]),
                    ]
                ],
            ),
            table(
                f"Proportional: {N_RATES} rates in one call and in separate ones, L = {DEPTH}, T = {SHORT}",
                ["", "one call s", "separate s", "ratio", "difference", "met"],
                [["", sweep["one call"], sweep["separate"], ratio, f"{sweep['difference']:.0e}", met([ratio <= 1.1])]],
            ),
        ]
    )
