"""What the calls of this room refuse: by name, before they work, and by memory; and what they show meanwhile."""

import itertools
import subprocess
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import widefield as wf
from widefield.theories.finite_width.untied import recursion

X = np.random.default_rng(5).normal(size=(3, 4))
NET, TASK = wf.DNN(2, "erf"), wf.Task(X)
OBJECTS = np.array([None, 1], dtype=object)
NO_NUMBER = (None, "1", np.nan, np.inf, 1j, [1, 2], np.ones(2), OBJECTS, True)
NO_INTEGER = (None, "1", 1.0, np.nan, 1j, [1], np.array([1]), OBJECTS, True, -1)


@pytest.fixture(scope="module")
def solution():
    return wf.finite_width(NET, TASK, width=50)


BAD = {
    "finite_width": {
        "network": (None, "relu", 3),
        "task": (None, X, "task"),
        "width": (*NO_INTEGER, 0, 10**400),
        "noise": (*NO_NUMBER[1:], -1.0),
        "rtol": (*NO_NUMBER, 0.0, -1.0, 1e-30, 1.0),
        "quantities": ("nonsense", 3, (), [["kernel"]], (None,), ("kernel", 3), np.ones((2, 2)), b"kernel", itertools.count()),
        "quadruples": (
            0, "0123", [], [(0, 1, 2)], [(0, 1, 2, 3)], [(0, 1, 2, -1)], [(0, 1, 2), (0, 1)], [(0.0, 1.0, 2.0, 0.0)],
            [(None,) * 4], [(True,) * 4], np.zeros((1, 1, 4), int),
        ),
        "progress": (0, "yes", np.ones(2)),
        "throw": (0, None, "no"),
    },
    "criticality": {
        "network": (None, "relu", wf.RNN(3, "relu")),
        "layers": (*NO_INTEGER, 15),
        "correlation": (*NO_NUMBER, 1.0, -1.0, 2),
        "rtol": (*NO_NUMBER, 0.0, 2.0),
        "progress": (0, "yes"),
        "throw": (1, None),
    },
    "couplings": {
        "solution": (None, 3, "solution"),
        "m": (*NO_INTEGER, 0, 50, 10**30),
        "samples": (0, "01", [], [0, 0], [3], [-1], [0.0], [None], [True], [[0, 1]], OBJECTS, 1j, itertools.count()),
        "rtol": (*NO_NUMBER, 0.0, 2.0),
        "progress": (0, "yes"),
        "throw": (1, None),
    },
    "neuron_average": {
        "solution": (None, 3, "solution"),
        "samples": (None, 0, "0", [], [0, 0], [0, 1, 2], [3], [0.5], [None], [[0]], itertools.count()),
        "layer": (*NO_INTEGER[1:], 0, 4),
        "breaks": ([None], "a", [np.nan], [np.inf], [1j], [[0.0]], [[0.0], [1.0, 2.0]], True, OBJECTS, np.arange(1e6)),
        "function": (
            None, 3, "tanh", lambda: 1.0, lambda z, y: z, lambda z: float(z), lambda z: z[:-1], lambda z: z[:, None],
            lambda z: 1.0, lambda z: np.nan * z, lambda z: np.log(z), lambda z: 1 / (0 * z), lambda z: 1j * z,
            lambda z: np.array([None] * len(z)), lambda z: None, lambda z: "z",
        ),
        "rtol": (*NO_NUMBER, 0.0, 2.0),
        "progress": (0, "yes"),
        "throw": (1, None),
    },
    "neuron_covariance": {"other": (None, lambda z: np.nan * z, lambda z: z[:-1], lambda z: 1j * z)},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call, argument", [(call, argument) for call, bad in BAD.items() for argument in bad])
def test_bad_arguments_are_named(call, argument, solution):
    good = {
        "finite_width": {"network": NET, "task": TASK, "width": 50},
        "criticality": {"network": wf.DNN(3, "relu", weight_variance=2.0), "layers": 16},
        "couplings": {"solution": solution},
        "neuron_average": {"solution": solution, "function": jnp.tanh},
        "neuron_covariance": {"solution": solution, "function": jnp.tanh, "other": jnp.tanh},
    }[call]
    for value in BAD[call][argument]:
        start = time.process_time()
        with pytest.raises(ValueError, match=f"`{argument}|tied" if argument == "network" else f"`{argument}"):
            getattr(wf, call)(**good | {argument: value})
            pytest.fail(f"{value!r} passed")
        assert time.process_time() - start < 1, value


@pytest.mark.parametrize(
    "call, argument", [("finite_width", "noise"), ("finite_width", "quadruples"), ("criticality", "correlation"),
                       ("couplings", "m"), ("couplings", "samples"), ("neuron_average", "breaks")],
)  # fmt: skip
def test_tracers_are_named(call, argument, solution):
    good = {
        "finite_width": {"network": NET, "task": TASK, "width": 50},
        "criticality": {"network": wf.DNN(3, "relu", weight_variance=2.0), "layers": 16},
        "couplings": {"solution": solution},
        "neuron_average": {"solution": solution, "function": jnp.tanh},
    }[call]
    with pytest.raises(ValueError, match=f"`{argument}"):
        jax.jit(lambda v: getattr(wf, call)(**good | {argument: v}))(0)


# Memory.


def test_what_does_not_fit_is_refused_with_what_would(monkeypatch):
    """5000 inputs, two million quadruples, deep tied networks and 10¹⁵ layers, on a machine with 2 GB left."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=2 * 10**9))
    many = wf.Task(np.random.default_rng(0).normal(size=(5000, 50)))
    with pytest.raises(
        MemoryError, match=r"(?s)correction of 5000 samples need .*GB, but only 1.6 GB .*give (\d+) samples"
    ) as info:
        wf.finite_width(wf.DNN(3, "relu"), many, width=100, quantities="correction")
    fit = int(str(info.value).split("give ")[1].split()[0])
    assert 500 < fit < 2000
    rows = np.zeros((2 * 10**6, 4), int)
    with pytest.raises(MemoryError, match="vertex_quadruples.*fewer.*`quadruples`"):
        wf.finite_width(wf.DNN(3, "relu"), TASK, width=100, quadruples=rows, quantities="vertex_quadruples")
    with pytest.raises(MemoryError, match=r"kernel of 20 samples.*give \d samples"):
        wf.finite_width(wf.RNN(10, "erf"), wf.Task(np.random.default_rng(0).normal(size=(20, 50))), width=100)
    with pytest.raises(MemoryError, match=r"1e\+15 `layers` need .*TB.*At most 133333 layers would fit"):
        wf.criticality(wf.DNN(3, "relu", weight_variance=2.0), layers=10**15)


def test_by_default_the_fields_that_fit_are_made(monkeypatch):
    x = np.random.default_rng(0).normal(size=(200, 3))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=5 * 10**7))
    solution = wf.finite_width(wf.DNN(2, "relu"), wf.Task(x), width=50)
    assert set(solution.data.data_vars) == {"kernel"} and {"correction", "ratio"} < set(solution.certificate.left_out)


MEASURE = """
import gc, re, numpy as np, psutil, widefield as wf
from widefield.answer import boundary
rng = np.random.default_rng(0)
ask = lambda n, q: wf.finite_width(NET, wf.Task(rng.normal(size=(n, 10))), width=10**6, quantities=q)
ask(3, QUANTITIES)
boundary.SHARE_OF_MEMORY = 0.0
try:
    ask(SAMPLES, QUANTITIES)
except MemoryError as error:
    number, unit = re.search(r"need ([\\d.]+) (MB|GB)", str(error)).groups()
boundary.SHARE_OF_MEMORY = 0.8
gc.collect()
before = psutil.Process().memory_info().rss
ask(SAMPLES, QUANTITIES)
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) - before
print(float(number) * {"MB": 1e6, "GB": 1e9}[unit] / peak)
"""


@pytest.mark.parametrize(
    "net, samples, quantities",
    [
        ("wf.DNN(3, 'linear')", 40, "vertex"),
        pytest.param("wf.DNN(3, 'relu')", 500, "correction", marks=pytest.mark.full),
        pytest.param("wf.RNN(7, 'linear')", 8, "vertex", marks=pytest.mark.full),
    ],
)
def test_predicted_memory_is_what_is_taken(net, samples, quantities):
    """Peak memory of a process of its own, within a factor of 1.5."""
    script = MEASURE.replace("NET", net).replace("SAMPLES", str(samples)).replace("QUANTITIES", repr(quantities))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 1 / 1.5 < float(done.stdout) < 1.5


# Progress.


@pytest.mark.parametrize(
    "ask, seconds",
    [
        (lambda: wf.finite_width(wf.DNN(3, "tanh"), wf.Task(np.eye(3)), width=50, quantities="vertex"), (0.3, 3)),
        (lambda: wf.criticality(wf.DNN(3, "relu", weight_variance=2.0), layers=16), (0.03, 1)),
    ],
)
def test_a_bar_knows_how_much_there_is(ask, seconds, monkeypatch):
    """Every unit of the total is counted, and the estimate that decides whether a bar is shown is in seconds."""
    seen = []

    class Bar:
        def __init__(self, title, total, shown, seconds):
            self.total, self.seconds, self.done = total, seconds, 0
            seen.append(self)

        def __enter__(self):
            return lambda n: setattr(self, "done", self.done + n)

        def __exit__(self, *_):
            return False

    monkeypatch.setattr(recursion, "bar", Bar)
    ask()
    assert [bar.done for bar in seen] == [bar.total for bar in seen] and len(seen) == 1
    assert seconds[0] < seen[0].seconds < seconds[1]
