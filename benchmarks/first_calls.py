"""What a newcomer waits for: first calls of small problems, each in a process of its own, without and with a compile cache."""

import tempfile
import time
from collections.abc import Callable
from typing import Any

import fresh
import jax
import numpy as np
from tables import table

import widefield as wf

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(5, 20)), np.array([1.0, -1.0, 1.0, 1.0, -1.0])
TASK, REGRESSION = wf.Task(X, Y), wf.Task(X, Y, x_test=RNG.normal(size=(3, 20)))
PAIR, UNIT = wf.Task(X[:2], Y[:2], x_test=X[:1] + 0.3), wf.Task(np.ones((1, 1)), np.ones(1))
TEACHER, TRAINING = wf.Teacher(data_ratio=2.0, label_noise=0.1), wf.Training(0.1, 30)
FINITE = {"width": 100, "seed": 0}

CALLS: dict[str, Callable[[], Any]] = {
    "prior, relu": lambda: wf.prior(wf.DNN(3, "relu"), REGRESSION, noise=0.1),
    "prior, tanh": lambda: wf.prior(wf.RNN(3, "tanh"), REGRESSION, noise=0.1),
    "depth_limit": lambda: wf.depth_limit(wf.DNN(3, "tanh")),
    "finite_width, DNN": lambda: wf.finite_width(wf.DNN(3, "tanh"), TASK, width=100),
    "finite_width, RNN": lambda: wf.finite_width(wf.RNN(3, "tanh"), TASK, width=100),
    "posterior, linear RNN": lambda: wf.posterior(wf.RNN(3, "linear"), REGRESSION, temperature=0.1),
    "posterior, linear DNN": lambda: wf.posterior(wf.DNN(3, "linear"), REGRESSION, temperature=0.1),
    "posterior, erf on a grid": lambda: wf.posterior(wf.RNN(3, "erf"), UNIT, temperature=0.1),
    "posterior, tanh on a grid": lambda: wf.posterior(wf.DNN(2, "tanh"), PAIR, temperature=0.3),
    "posterior, tanh by draws": lambda: wf.posterior(wf.RNN(3, "tanh"), PAIR, temperature=0.3),
    "transition, linear": lambda: wf.transition(wf.RNN(5, "linear"), UNIT, temperature=0.1),
    "tricritical, linear": lambda: wf.tricritical(wf.RNN(5, "linear"), UNIT, temperature=0.1),
    "landscape, linear": lambda: wf.landscape(wf.RNN(5, "linear"), UNIT, along=(3, 4), temperature=0.1),
    "proportional, DNN": lambda: wf.proportional(wf.DNN(3, "linear"), TEACHER, TRAINING, width_ratio=1.0),
    "dynamics": lambda: wf.dynamics(wf.RNN(3, "tanh"), TASK, wf.Training(0.05, 30)),
    "simulate.prior": lambda: wf.simulate.prior(wf.RNN(3, "tanh"), TASK, replicates=8, **FINITE),
    "simulate.finite_width": lambda: wf.simulate.finite_width(wf.DNN(3, "tanh"), TASK, replicates=64, **FINITE),
    "simulate.dynamics": lambda: wf.simulate.dynamics(
        wf.RNN(3, "tanh"), TASK, wf.Training(0.05, 30), replicates=8, **FINITE
    ),
    "simulate.posterior": lambda: wf.simulate.posterior(
        wf.RNN(3, "tanh"), PAIR, temperature=0.3, draws=100, warmup=50, replicates=2, width=20, seed=0, throw=False
    ),
    "simulate.proportional": lambda: wf.simulate.proportional(
        wf.DNN(3, "linear"), TEACHER, TRAINING, width_ratio=1.0, dimension=50, replicates=4, seed=0
    ),
}
IMPORTS = "import scipy.optimize, scipy.stats, xarray, equinox, optimistix, h5netcdf"  # what a first call would import


def measure(name: str, folder: str | None = None) -> dict[str, float]:
    """Process seconds of a first call and the next, imports beforehand; ``programs`` that it asked XLA for."""
    programs: list[str] = []
    count = lambda event, seconds, **_: programs.append(event) if event.endswith("backend_compile_duration") else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(count)
    if folder:
        jax.config.update("jax_enable_compilation_cache", True)
        wf.cache_compilations(folder)
    imports = fresh.seconds(lambda: exec(IMPORTS))
    first = fresh.seconds(CALLS[name])
    n_programs = len(programs)
    return {"imports": imports, "first": first, "programs": n_programs, "warm": fresh.seconds(CALLS[name])}


def run() -> list[dict[str, Any]]:
    results = []
    for name in CALLS:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            cold = fresh.call(measure, name=name)
            fresh.call(measure, name=name, folder=folder)
            cached = fresh.call(measure, name=name, folder=folder)
        results.append({"call": name} | cold | {"cached": cached["first"]})
        print(f"  {name}: {time.perf_counter() - begun:.0f} s", flush=True)
    header = ["first call", "programs", "first s", "with cache s", "warm s", "target (3, 1)"]
    met = lambda r: "yes" if r["first"] <= 3 and r["cached"] <= 1 else "NO"  # noqa: E731
    rows = [[r["call"], str(r["programs"]), r["first"], r["cached"], r["warm"], met(r)] for r in results]
    print("", table("First calls of small problems, without imports", header, rows), sep="\n", flush=True)
    return results
