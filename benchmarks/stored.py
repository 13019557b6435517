"""A regression from tiles on a disk: by this process and by one and two workers, against whole matrices in memory."""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fresh
import numpy as np
import psutil
from distributed import Client, LocalCluster
from tables import met, table

import widefield as wf

N_SAMPLES, DEPTH, NOISE = 4000, 3, 0.1
FASTER = 1.7
"""Two workers against one: the share of the work that the caller does alone stays below a fifth."""


def timed(call: Callable[..., wf.Solution], *workers: psutil.Process) -> tuple[dict[str, float], wf.Solution]:
    """Seconds on the clock and of all processes together."""
    spent = lambda: time.process_time() + sum(sum(w.cpu_times()[:2]) for w in workers)  # noqa: E731
    clock, before = time.perf_counter(), spent()
    answer = call()
    return {"seconds": time.perf_counter() - clock, "process_seconds": spent() - before}, answer


def measure() -> dict[str, Any]:
    """Warm times of every way, and whether the files of all are the same."""
    rng = np.random.default_rng(0)
    x, y, x_test = (rng.normal(size=(n, d)) for n, d in ((N_SAMPLES, 20), (N_SAMPLES, 3), (200, 20)))
    task = wf.Task(x, y, x_test=x_test)
    ask = partial(wf.prior, wf.DNN(DEPTH, "relu"), noise=NOISE, quantities=("log_evidence", "test_prediction"))
    few = wf.Task(x, y[:, :1], x_test=x_test)  # compiles the same shapes
    ask(task=few)
    found: dict[str, Any] = {}
    found["memory"], whole = timed(partial(ask, task=task))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ask(task=few, store=folder / "compile here")
        found["here"], answer = timed(partial(ask, task=task, store=folder / "here"))
        for n in (1, 2):
            with LocalCluster(n, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
                ask(task=few, store=folder / f"compile {n}", client=client)
                workers = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
                found[f"workers {n}"], _ = timed(
                    partial(ask, task=task, store=folder / f"{n}", client=client), *workers
                )
        files = {path.relative_to(folder / "here") for path in (folder / "here").rglob("*") if path.is_file()}
        contents = [[(folder / way / file).read_bytes() for file in sorted(files)] for way in ("here", "1", "2")]
        found["again"], _ = timed(partial(ask, task=task, store=folder / "here"))
    off = np.abs(answer.test_prediction - whole.test_prediction).max() / np.abs(whole.test_prediction).max()
    gigabytes = sum(map(len, contents[0])) / 1e9
    return found | {"same": contents[0] == contents[1] == contents[2], "off": float(off), "gigabytes": gigabytes}


def run() -> dict[str, Any]:
    return fresh.call(measure)


def show(found: dict[str, Any]) -> str:
    names = {"memory": "in memory", "here": "store, this process", "workers 1": "store, one worker",
             "workers 2": "store, two workers", "again": "store, finished before"}  # fmt: skip
    rows = []
    for key, name in names.items():
        clock, process = found[key]["seconds"], found[key]["process_seconds"]
        ratio = found["workers 1"]["seconds"] / clock if key == "workers 2" else None
        reached = None if ratio is None else ratio >= FASTER and found["same"] and found["off"] < 1e-9
        rows.append((name, clock, process, process / found["memory"]["process_seconds"], ratio, met([reached])))
    header = ("regression", "s", "process s", "/ in memory", "/ one worker", f"{FASTER}x, same bits")
    title = (
        f"Stored kernel, P = {N_SAMPLES}, depth {DEPTH}: {found['gigabytes']:.2f} GB written, off by {found['off']:.0e}"
    )
    return table(title, header, rows)
