"""Memory is predicted: what calls take is what was foreseen, and what cannot fit is refused at once with what would."""

import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import psutil
import pytest

import widefield as wf
from tests.dynamics.question import predict
from widefield.theories.dynamics import memory

RNG = np.random.default_rng(0)
ONE = wf.Task(RNG.normal(size=(2, 3)), RNG.normal(size=2))
TANH, LINEAR = wf.DNN(2, "tanh"), wf.DNN(2, "linear")

MEASURE = """
import jax, numpy as np, widefield as wf
from widefield.theories.dynamics import memory
from widefield.theories.dynamics.problem import problem
from widefield.theories.dynamics.request import make_request

def peak():
    return 1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

def task(n, dimension):
    rng = np.random.default_rng(0)
    return wf.Task(rng.normal(size=(n, dimension)), rng.normal(size=n))

wf.dynamics(wf.DNN(2, "tanh"), task(2, 3), wf.Training(0.01, 1), paths=64, throw=False)  # imports
network, asked, training, options = {question}
before = peak()
wf.dynamics(network, asked, training, throw=False, **options)
taken = peak() - before
with jax.enable_x64(True):
    made = problem(network, asked, training)
    given = dict(method="full", paths=None, at=None, quantities=None, rtol=None, seed=0, progress=None) | options
    print(taken, memory.needed(made, make_request(made, **given)))
"""
QUESTIONS = {
    "paths": 'wf.DNN(2, "tanh"), task(64, 8), wf.Training(0.01, 1), {"paths": 16384, "quantities": "loss"}',
    "coordinates": 'wf.DNN(2, "linear"), task(300, 300), wf.Training(0.01, 5), {"quantities": "loss"}',
    "static kernel": 'wf.DNN(2, "tanh"), task(3000, 8), wf.Training(0.01, 5), {"quantities": "loss", "method": "lazy"}',
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_predicted_is_taken(name):
    """Peak memory of a fresh process above that of its imports, within a factor of 1.5."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak is read from /proc")
    program = MEASURE.replace("{question}", QUESTIONS[name])
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(2)
    ]
    (compiling, predicted), (taken, _) = (map(float, done.stdout.split()) for done in runs)
    assert taken < 1.5 * predicted, "the second run finds its programs in the cache"
    assert predicted / 1.5 < compiling, "compiling takes some 200 MB of its own"


def ask(n_samples, network=TANH, steps=2, **options):
    task = wf.Task(np.ones((n_samples, 3)) + np.arange(n_samples)[:, None], np.ones(n_samples))
    return lambda: predict(network, task, rate=0.01, steps=steps, **options)


TOO_LARGE = {
    "samples": (ask(200_000, steps=1000), "200000 samples of `task` need .* would fit"),
    "samples, linear": (ask(200_000, LINEAR), "200000 samples of `task` need .* would fit"),
    "samples, lazy": (ask(500_000, method="lazy"), "500000 samples of `task` need .* would fit"),
    "samples, perturbative": (ask(500_000, LINEAR, method="perturbative"), "500000 samples of `task` need"),
    "samples, two layers": (ask(500_000, wf.DNN(1, "tanh")), "500000 samples of `task` need .* would fit"),
    "paths": (ask(4, paths=10**12), "1e.12 `paths` need .* paths would fit"),
    "at": (ask(4, steps=10**5, at=range(10**5), quantities="feature_kernel"), "`quantities` need .*feature_kernel"),
    "flow": (ask(200_000, flow=True), "200000 samples of `task` need .* would fit"),
    "grid": (
        lambda: wf.neuron_density(wf.DNN(1, "tanh"), wf.Task(ONE.x[:1], ONE.y[:1]), wf.Training(0.1, 2), nodes=10**6),
        "1000000 `nodes` squared need .* nodes would fit",
    ),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_cannot_fit_is_refused_at_once(name):
    call, message = TOO_LARGE[name]
    start = time.perf_counter()
    with pytest.raises(MemoryError, match=message):
        call()
    assert time.perf_counter() - start < 1.0


def test_steps_that_cannot_fit_are_refused(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=125 * 10**6))
    with pytest.raises(MemoryError, match="200000 `steps` need 200 MB.* 100000 steps would fit"):
        ask(4, steps=200_000)()


def test_what_is_said_to_fit_is_not_refused(monkeypatch):
    monkeypatch.setattr(memory, "memory_budget", lambda: 24 * 10**7)
    with pytest.raises(MemoryError, match="samples would fit") as refused:
        ask(400)()
    fits = int(str(refused.value).split(" samples would fit")[0].split()[-1])
    assert 4 < fits < 400
    with pytest.raises(MemoryError):
        ask(fits + 1)()
    assert ask(4, quantities="loss")().loss.shape == (3,)
