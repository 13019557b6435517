"""Ctrl-C in every long public call: answered at once, the same call works again, and Python ends as it should."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from tests import contract_table as table

MANY = wf.Task(np.random.default_rng(0).normal(size=(400, 20)), np.ones(400))
FEW = wf.Task(MANY.x[:40], MANY.y[:40])


def slow(x):
    """A user's function that takes its time, in pieces."""
    for _ in range(600):
        time.sleep(0.1)
    return x


def averaged(x):
    return jnp.asarray(slow(np.asarray(x)))


LONG = {  # what makes each question of the contract table long: minutes, or as long as it takes
    "prior": {"network": wf.DNN(3000, "tanh"), "task": MANY, "quantities": "output"},
    "finite_width untied": {"network": wf.DNN(60, "tanh"), "task": FEW, "quantities": "vertex"},
    "finite_width tied": {"network": wf.RNN(12, "tanh"), "task": wf.Task(MANY.x[:6])},
    "finite_width regression": {"network": wf.DNN(60, "tanh"), "task": FEW},
    "posterior linear": {"network": wf.RNN(20, "linear"), "task": FEW},
    "posterior nonlinear": {"network": wf.RNN(4, "erf"), "task": FEW, "rtol": 1e-4},
    "dynamics exact": {"training": wf.Training(1e-3, 10**5)},
    "dynamics sampled": {"training": wf.Training(1e-3, 10**5), "quantities": "loss"},
    "dynamics lazy": {"task": MANY, "training": wf.Training(1e-4, 10**5), "quantities": "loss"},
    "proportional": {"training": replace(table.TRAINING, steps=1000)},
    "transition": {"network": wf.RNN(3, "erf"), "points": 500},
    "landscape": {"network": wf.RNN(3, "erf"), "values": np.linspace(-0.9, 0.9, 500)},
    "tricritical": {"network": wf.RNN(3, "erf")},
    "criticality": {"network": wf.DNN(1, "tanh"), "layers": 10**5},
    "neuron_average": {"function": averaged},
    "neuron_covariance": {"function": averaged},
    "optimal_rate": {"training": replace(table.TRAINING, steps=500)},
    "rate_sweep": {"training": replace(table.TRAINING, steps=500), "rates": np.linspace(0.01, 0.05, 200)},
    "rate_transfer": {"training": replace(table.TRAINING, steps=500)},
    "loss_exponent": {"training": wf.Training(0.3, 1000, richness=0.0)},
    "neuron_density": {"nodes": 300, "training": wf.Training(1e-3, 2000)},
    "simulate.prior": {"network": wf.DNN(3, "tanh"), "task": FEW, "width": 3000, "replicates": 1000, "method": "dense"},
    "simulate.finite_width": {"width": 2000, "replicates": 10**5},
    "simulate.posterior": {"draws": 10**6},
    "simulate.dynamics": {"width": 300, "replicates": 20, "training": wf.Training(1e-3, 10**5), "quantities": "loss"},
    "simulate.proportional": {"dimension": 500, "training": wf.Training(1e-3, 10**5)},
}
SHORT = {
    "posterior perturbative": "a closed form",
    "weight_outliers": "one eigendecomposition",
    "depth_limit": "a fixed point of numbers",
    "couplings": "sums over what is known",
    "regularized_prediction": "one linear system",
    "simulate.extrapolate": "a difference",
    "sweep": "calls of its own, interrupted beside its store",
}
EVERYDAY = ("prior", "dynamics sampled", "neuron_average", "simulate.proportional")
ANSWERED = 10.0  # seconds: one where nothing else runs
AFTER = 1.5


def interrupted(row):
    """Seconds from the interrupt to its answer; None where the call ended before."""
    sent = []

    def send():
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(AFTER, send)
    timer.start()
    try:
        row.ask(**LONG[row.name], throw=False)
    except KeyboardInterrupt:
        return time.perf_counter() - sent[0]
    timer.cancel()
    return None


def main(names):
    """In a process of its own: every call is interrupted, then asked the small question of its row."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    rows = {row.name: row for row in table.ROWS}
    for name in names:
        row = rows[name]
        row.ask()
        seconds = interrupted(row)
        again = table.solution_of(row.ask()).status
        print(f"{name}: {'too short' if seconds is None else f'{seconds:.2f}'} {again.name}", flush=True)


def test_every_public_call_is_long_or_known_to_be_short():
    assert {row.name for row in table.ROWS} == set(LONG) | set(SHORT) and not set(LONG) & set(SHORT)


@pytest.mark.skipif(os.name != "posix", reason="signals are sent")
@pytest.mark.parametrize("names", [EVERYDAY, pytest.param(tuple(LONG), marks=pytest.mark.full)], ids=["some", "all"])
def test_ctrl_c_is_answered_and_the_call_works_again(names):
    program = "import sys; from tests.test_interrupts import main; main(sys.argv[1:])"
    run = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, timeout=1800)
    told = {line.split(": ")[0]: line.split(": ")[1].split() for line in run.stdout.splitlines() if ": " in line}
    assert set(told) == set(names), run.stderr
    for name, (seconds, status) in told.items():
        assert status == "success", (name, status)
        assert float(seconds) < ANSWERED, name
    assert run.returncode in (0, 130), "one of the calls may still be at work when Python ends"
    assert "Fatal" not in run.stderr and "Error" not in run.stderr, run.stderr
