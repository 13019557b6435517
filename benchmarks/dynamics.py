"""Dynamics: the march against Algorithm 1 and against ensembles of networks, its growth, and long linear runs."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

import fresh
import jacobians
import jax
import numpy as np
from memory import process_mb
from scaling import exponent
from tables import met, table

import widefield as wf
from widefield.gallery.bordelon22.fig_1 import FULL, images
from widefield.theories.dynamics.march.batch import march
from widefield.theories.dynamics.problem import problem

SMALL = wf.Training(0.1, 30, richness=2.0)
ALGORITHM_PATHS, ALGORITHM_SEEDS = 512, (0, 1, 2)
MARCH_PATHS = (256, 512, 1024, 2048)
N_STREAMS = 8
REFERENCE_PATHS = 16384
LARGE = wf.Training(FULL.rate, FULL.steps)
WIDTH, NARROW, N_NARROW = 2500, 250, 40
TARGET = 0.01
GROWTH = {  # what grows, in both cases: (steps, depth, paths)
    "three inputs": {
        "steps": [(30, 2, 2048), (60, 2, 2048), (120, 2, 2048), (240, 2, 2048)],
        "depth": [(30, depth, 2048) for depth in (4, 8, 16, 32, 64, 128)],
        "paths": [(30, 2, 2048), (30, 2, 4096), (30, 2, 8192), (30, 2, 16384)],
    },
    "five digits": {
        "steps": [(50, 2, 1024), (100, 2, 1024), (200, 2, 1024), (400, 2, 1024)],
        "depth": [(50, depth, 1024) for depth in (4, 8, 16, 32, 64, 128)],
        "paths": [(50, 2, 1024), (50, 2, 2048), (50, 2, 4096), (50, 2, 8192)],
    },
}
TESTS = (125, 250, 500, 1000)
OPTIONS: dict[str, Any] = {"quantities": ("loss", "prediction"), "progress": False}


def small_task() -> wf.Task:
    """Three inputs of length √D."""
    x = np.random.default_rng(0).normal(size=(3, 10))
    return wf.Task(x * np.sqrt(10) / np.linalg.norm(x, axis=1, keepdims=True), np.array([1.0, -1.0, 1.0]))


def one_march(task: wf.Task, depth: int, n_paths: int, stream: int, training: wf.Training) -> np.ndarray:
    """Predictions (row, sample) of one batch of paths, without error bars."""
    one = march(
        problem(wf.DNN(depth, "tanh"), task, training), n_paths, 0, stream, ntk=False, at=(), advance=lambda n: None
    )
    return one.prediction[:, -1, :, 0]


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def measure_algorithm() -> dict[str, Any]:
    """Seconds and rms errors of f of single marches and of Algorithm 1, and the public call with its error bars."""
    task = small_task()
    public = partial(wf.dynamics, wf.DNN(2, "tanh"), task, SMALL, **OPTIONS, throw=False)
    first = fresh.seconds(partial(public, paths=MARCH_PATHS[0]))
    warm = min(fresh.seconds(partial(public, paths=MARCH_PATHS[0])) for _ in range(3))
    reference = public(paths=REFERENCE_PATHS)
    f, scatter = reference.prediction.values[..., 0], rms(reference.prediction_stderr)
    public_error = rms(public(paths=MARCH_PATHS[0]).prediction.values[..., 0] - f)
    rows = []
    with jax.enable_x64(True):
        for n_paths in MARCH_PATHS:
            call = partial(one_march, task, 2, n_paths, training=SMALL)
            found = [call(stream) for stream in range(N_STREAMS)]
            seconds = min(fresh.seconds(partial(call, 0)) for _ in range(5))
            rows.append({"paths": n_paths, "seconds": seconds, "error": rms(np.asarray(found) - f)})
    start, runs = time.process_time(), []
    for seed in ALGORITHM_SEEDS:
        runs.append(
            jacobians.solve(
                2,
                task.x @ task.x.T / 10,
                task.labels()[:, 0, 0],
                richness=SMALL.richness,
                rate=SMALL.rate,
                steps=SMALL.steps,
                paths=ALGORITHM_PATHS,
                seed=seed,
            )
        )
    seconds = (time.process_time() - start) / len(runs)
    return {
        "rows": rows, "algorithm": {"seconds": seconds, "error": rms(np.asarray([f_ - f for f_, _ in runs])), "sweeps": runs[0][1]},
        "reference": scatter, "public": {"cold": first, "warm": warm, "error": public_error},
    }  # fmt: skip


def seconds_at(rows: list[dict[str, float]], error: float) -> float:
    """Seconds of a march of that error: between the measured ones, and never less than the shortest."""
    ordered = sorted(rows, key=lambda row: row["error"])
    return float(
        np.exp(np.interp(np.log(error), *(np.log([row[name] for row in ordered]) for name in ("error", "seconds"))))
    )


def measure_theory(rtol: float | None) -> dict[str, Any]:
    """The public call in a new process, with compilation, then again; its memory and its curves."""
    task = images(FULL)
    call = partial(wf.dynamics, wf.DNN(3, "tanh"), task, LARGE, **OPTIONS, rtol=rtol)
    before = process_mb("VmRSS")
    cold = fresh.seconds(call)
    peak = process_mb("VmHWM") - before
    start = time.process_time()
    found = call()
    return {
        "cold": cold, "warm": time.process_time() - start, "mb": peak, "error": found.certificate.error,
        "paths": found.certificate.options["paths"], "f": found.prediction.values[..., 0].tolist(),
    }  # fmt: skip


def measure_networks(f: list) -> dict[str, Any]:
    """Seconds of one network; scatter of networks and their common offset, both from narrow ones."""
    theory = np.asarray(f)
    task, size = images(FULL), rms(theory[-1])
    call = partial(wf.simulate.dynamics, wf.DNN(3, "tanh"), task, **OPTIONS, seed=1)
    found: dict[str, Any] = {"seconds": fresh.seconds(partial(call, LARGE, width=WIDTH, replicates=1))}
    for name, centered in (("plain", False), ("centered", True)):
        training = replace(LARGE, centered=centered)
        trial = call(training, width=NARROW, replicates=N_NARROW).prediction.values[..., 0]
        offset = np.abs(trial.mean(axis=0) - theory).max() / size * NARROW / WIDTH
        scatter = trial.std(axis=0, ddof=1).max() / size * np.sqrt(NARROW / WIDTH)
        found[name] = {"offset": offset, "scatter": scatter}
    return found


def needed(one: dict[str, float], error: float) -> float:
    """How many networks have a standard error that, with their offset, is no larger than ``error``."""
    return float(np.ceil((one["scatter"] / (error - one["offset"])) ** 2)) if one["offset"] < error else np.inf


def measure_growth(case: str, name: str) -> list[float]:
    """Warm seconds of one march of three inputs, the case above, or of digits, for every size."""
    task, training = small_task(), SMALL
    if case != "three inputs":
        digits = images(FULL)
        task, training = wf.Task(digits.x[::2], digits.labels()[::2, 0, 0]), wf.Training(0.03, 1)
    return [
        warm_march(task, depth, n_paths, replace(training, steps=steps)) for steps, depth, n_paths in GROWTH[case][name]
    ]


def warm_march(task: wf.Task, depth: int, n_paths: int, training: wf.Training) -> float:
    """Seconds of one march after its compilation."""
    call = partial(one_march, task, depth, n_paths, 0, training)
    with jax.enable_x64(True):
        call()
        return min(fresh.seconds(call) for _ in range(5))


def measure_tests(n_paths: int | None) -> dict[str, Any]:
    """Warm seconds of the large case without test inputs, and with more and more digits as such."""
    task = images(FULL)
    held = wf.tasks.digits(10, max(TESTS)).x_test
    assert held is not None
    held = held * np.linalg.norm(task.x[0]) / np.linalg.norm(held, axis=1, keepdims=True)
    seconds, names = [], ("prediction",)
    for n in (0, *TESTS):
        asked, names = (replace(task, x_test=held[:n]), ("prediction", "test_prediction")) if n else (task, names)
        options = OPTIONS | {"quantities": names, "throw": False}
        call = partial(wf.dynamics, wf.DNN(3, "tanh"), asked, LARGE, paths=n_paths, **options)
        error = call().certificate.error
        seconds.append(fresh.seconds(call))
    return {"seconds": seconds, "error": error}


def measure_linear() -> dict[str, float]:
    """An exact march of 100 inputs over 100 steps, all of it."""
    rng = np.random.default_rng(0)
    task = wf.Task(rng.normal(size=(100, 200)), rng.normal(size=100))
    call = partial(wf.dynamics, wf.DNN(2, "linear"), task, wf.Training(0.02, 100), **OPTIONS)
    before = process_mb("VmRSS")
    cold = fresh.seconds(call)
    return {
        "cold": cold,
        "mb": process_mb("VmHWM") - before,
        "warm": fresh.seconds(call),
        "loss": float(call().loss[-1]),
    }


def run() -> dict[str, Any]:
    print("measuring the dynamics ...", flush=True)
    theory = fresh.call(measure_theory, rtol=None)
    return {
        "algorithm": fresh.call(measure_algorithm),
        "theory": theory,
        "rtol": fresh.call(measure_theory, rtol=TARGET),
        "networks": fresh.call(measure_networks, f=theory["f"]),
        "growth": {
            case: {name: fresh.call(measure_growth, case=case, name=name) for name in sizes}
            for case, sizes in GROWTH.items()
        },
        "tests": fresh.call(measure_tests, n_paths=1024),
        "linear": fresh.call(measure_linear),
    }


def show(results: dict[str, Any]) -> str:
    return "\n\n".join(part(results) for part in (show_algorithm, show_large, show_growth, show_tests, show_linear))


def show_algorithm(results: dict[str, Any]) -> str:
    found = results["algorithm"]
    plain, public = found["algorithm"], found["public"]
    equal = seconds_at(found["rows"], plain["error"])
    cells = [[f"march, {row['paths']} paths", row["seconds"], row["error"], "", "", ""] for row in found["rows"]]
    cells += [[f"wf.dynamics, 8 × {MARCH_PATHS[0]} paths", public["warm"], public["error"], public["cold"], "", ""]]
    ratio = plain["seconds"] / equal
    cells += [
        [f"Algorithm 1, {ALGORITHM_PATHS} paths", plain["seconds"], plain["error"], "", ratio, met([ratio >= 50])],
    ]
    title = f"Dynamics, tanh, L = 2, P = 3, T = 30, γ0 = 2 (reference good to {found['reference']:.0e}): at equal error of f"
    return table(title, ["", "s", "rms error of f", "first call s", "ratio", "50×"], cells)


def show_large(results: dict[str, Any]) -> str:
    networks, theory, asked = results["networks"], results["theory"], results["rtol"]
    cells = []
    for name, one in (("wf.dynamics", theory), (f"with rtol={TARGET:g}", asked)):
        ok = met([one["cold"] < 60, one["error"] <= TARGET])
        cells.append([f"{name}, 8 × {one['paths']} paths", one["cold"], one["warm"], one["mb"], one["error"], "", ok])
    for error, name in ((error, name) for error in (theory["error"], TARGET) for name in ("plain", "centered")):
        count = needed(networks[name], error)
        total = count * networks["seconds"]
        ratio = total / theory["cold"]
        judged = met([ratio >= 1]) if error == theory["error"] else ""
        cells.append([f"{count:.0f} {name} networks", total, total, "", error, ratio, judged])
    offsets = ", ".join(f"{name} {networks[name]['offset']:.1%}" for name in ("plain", "centered"))
    title = (
        f"Dynamics, tanh, L = 3, P = 10, T = 100: largest error of f, relative; one network of width {WIDTH} takes "
        f"{networks['seconds']:.1f} s, offsets {offsets}"
    )
    return table(title, ["", "first call s", "warm s", "MB", "error", "ratio", "met"], cells)


def show_growth(results: dict[str, Any]) -> str:
    """Every row has the limit. Depth has two: in 128 layers both cases open fewer directions, which helps that fit.

    ``matrices``: the exponent in the L − 1 hidden matrices; a cost proportional to these has 1.12 in 4 … 32 layers.
    ``doublings``: the exponent from each size to the next, largest where arrays leave a cache.
    """
    cells = []
    for case, sizes in GROWTH.items():
        for i, (name, rows) in enumerate(sizes.items()):
            values, all_seconds = [size[i] for size in rows], results["growth"][case][name]
            for n in sorted({4, len(values)}):
                seconds = all_seconds[:n]
                slope = exponent(values[:n], seconds)
                doublings = [exponent(values[j : j + 2], seconds[j : j + 2]) for j in range(n - 1)]
                inner = exponent([value - 1 for value in values[:n]], seconds) if name == "depth" else ""
                label = f"{case}, {name} {values[0]} … {values[n - 1]}"
                cells.append([label, _joined(seconds), slope, 1.2, met([slope <= 1.2]), inner, _joined(doublings)])
    columns = ["", "s", "exponent", "limit", "met", "matrices", "doublings"]
    return table("Dynamics: seconds of one march, growing size", columns, cells)


def _joined(values: list[float]) -> str:
    return ", ".join(f"{value:.2g}" for value in values)


def show_tests(results: dict[str, Any]) -> str:
    """The exponent is that of what test inputs add."""
    alone, *seconds = results["tests"]["seconds"]
    slope, ratio = exponent(list(TESTS), [value - alone for value in seconds]), seconds[-1] / alone
    cells = [[_joined([alone, *seconds]), slope, ratio, results["tests"]["error"], met([slope <= 1.1 and ratio <= 10])]]
    title = f"Dynamics, tanh, L = 3, P = 10, T = 100, 8 × 1024 paths: 0, {', '.join(map(str, TESTS))} test inputs"
    return table(title, ["s", "exponent", f"{TESTS[-1]} against none", "error", "1.1, 10×"], cells)


def show_linear(results: dict[str, Any]) -> str:
    linear = results["linear"]
    title = "Dynamics, linear, L = 2, P = 100, T = 100, exact"
    return table(title, ["", "first call s", "warm s", "MB"], [["", linear["cold"], linear["warm"], linear["mb"]]])
