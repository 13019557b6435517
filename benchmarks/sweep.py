"""Sweeps: what they add to the calls that they make, what a call itself spends on, a store, and two workers against one.

python benchmarks/sweep.py     # alone, about a minute on a quiet machine with two cores
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import fresh
import numpy as np
from tables import met, table

import widefield as wf
from widefield.solvers import definite
from widefield.sweep.processes import local_client

LABELS, TEMPERATURES = np.linspace(0.5, 4.0, 20), np.geomspace(0.01, 1.0, 10)
OVER = {"labels": LABELS.tolist(), "temperature": TEMPERATURES.tolist()}
OVERHEAD = 1.1  # of the sweep, in units of its 200 calls
SPEED_UP = 1.7  # of two workers


def seconds(call: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """The faster of two calls."""
    found = []
    for _ in range(2):
        begun = clock()
        call()
        found.append(clock() - begun)
    return min(found)


def question() -> tuple[wf.Network, wf.Task]:
    return wf.RNN(4, "linear"), wf.Task(np.ones((1, 1)), np.ones(1))


def measure_in_process() -> dict[str, float]:
    """Process seconds of 200 linear posteriors, and of the compiled solves inside of them."""
    net, task = question()
    tasks = [wf.Task(task.x, factor * task.y) for factor in LABELS]
    separate = lambda: [wf.posterior(net, one, temperature=t) for one in tasks for t in OVER["temperature"]]  # noqa: E731
    swept = partial(wf.sweep, "posterior", net, task, over=OVER, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        swept(store=folder)
        stored = lambda: swept(store=tempfile.mkdtemp(dir=folder))  # noqa: E731
        found = {"separate": seconds(separate), "sweep": seconds(swept), "stored": seconds(stored)}
        found["reopened"] = seconds(lambda: swept(store=folder))
    return found | compiled(separate)


def compiled(separate: Callable[[], Any]) -> dict[str, float]:
    """How many compiled solves there are, and their share of the time: what a vmapped sweep could save at most."""
    spent, number = {"minimize": 0.0, "hessian": 0.0}, {"minimize": 0, "hessian": 0}

    def timed(name: str) -> Callable[..., Any]:
        plain = getattr(definite, name)

        def call(*arguments: Any, **options: Any) -> Any:
            begun = time.process_time()
            value = plain(*arguments, **options)
            [np.asarray(part) for part in (value if isinstance(value, tuple) else (value,))]
            spent[name] += time.process_time() - begun
            number[name] += 1
            return value

        return call

    with mock.patch.multiple(definite, minimize=timed("minimize"), hessian=timed("hessian")):
        separate()
    return {f"{name} {what}": d[name] for name in spent for what, d in (("seconds", spent), ("calls", number))}


def measure_workers(n_workers: int) -> float:
    """Wall seconds of eight points of some seconds, once the workers have compiled."""
    net, training = wf.DNN(3, "tanh"), wf.Training(0.05, 60)
    task = wf.Task(np.random.default_rng(0).normal(size=(8, 10)), np.ones(8))
    options = {"width": 700, "replicates": 4, "quantities": ("loss",), "progress": False}
    ask = partial(wf.sweep, "simulate.dynamics", net, task, training, over={"seed": list(range(8))}, **options)
    with local_client(n_workers) as client:
        return seconds(lambda: ask(client=client), time.perf_counter)


def run() -> dict[str, Any]:
    found = fresh.call(measure_in_process)
    return found | {"one worker": measure_workers(1), "two workers": measure_workers(2)}


def show(found: dict[str, Any]) -> str:
    alone, n = found["separate"], len(LABELS) * len(TEMPERATURES)
    inside = found["minimize seconds"] + found["hessian seconds"]
    speed_up = found["one worker"] / found["two workers"]
    rows = [
        ("200 separate calls", alone, 1.0, "", ""),
        ("  compiled solves in them", inside, inside / alone, "", ""),
        ("one sweep", found["sweep"], found["sweep"] / alone, f"≤ {OVERHEAD}", met([found["sweep"] <= OVERHEAD * alone])),
        ("one sweep into a store", found["stored"], found["stored"] / alone, "", ""),
        ("a finished store", found["reopened"], found["reopened"] / alone, "", ""),
        ("two workers, speed-up", found["two workers"], speed_up, f"≥ {SPEED_UP}", met([speed_up >= SPEED_UP])),
    ]  # fmt: skip
    title = (
        f"Sweep of {n} linear posteriors: {found['minimize calls'] / n:.1f} descents and {found['hessian calls'] / n:.1f} "
        f"Hessians a point, {1000 * alone / n:.1f} ms; "
        f"a file costs {1000 * (found['stored'] - found['sweep']) / n:.0f} ms to write, {1000 * found['reopened'] / n:.0f} to read"
    )
    return table(title, ("what", "seconds", "ratio", "target", "met"), rows)


if __name__ == "__main__":
    import sweep  # by its name, for the processes of their own

    print(sweep.show(sweep.run()))
