"""Batches marched together, in one program and over eight devices, are those that are marched one after another."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

import widefield as wf
from widefield.theories.dynamics.methods import paths

RNG = np.random.default_rng(0)
X, Y, TEST = RNG.normal(size=(3, 6)), RNG.normal(size=3), RNG.normal(size=(4, 6))
TASK = wf.Task(X, Y, x_test=TEST)
FIELDS = ("loss", "prediction", "test_prediction", "ntk", "feature_kernel")


def ask(**options):
    given = {"paths": 256, "quantities": FIELDS, "progress": False, "throw": False} | options
    return wf.dynamics(wf.DNN(3, "tanh"), TASK, wf.Training(0.1, 15, richness=2.0), **given)


def assert_equal(one, other):
    assert one.certificate.diagnostics == other.certificate.diagnostics
    for name in one.data.data_vars:
        np.testing.assert_allclose(one.data[name], other.data[name], rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("settings", [{}, pytest.param({"method": "independent"}, marks=pytest.mark.full)])
def test_one_program_gives_the_same_numbers(settings, monkeypatch):
    """More directions open than there is room for at first."""
    alone = ask(**settings)
    monkeypatch.setattr(paths, "_together", lambda *question: True)
    assert_equal(ask(**settings), alone)


def test_a_divergence_ends_as_it_does_alone(monkeypatch):
    def diverging():
        training = wf.Training(40.0, 15, richness=2.0)
        return wf.dynamics(wf.DNN(3, "relu"), TASK, training, paths=256, quantities="loss", progress=False, throw=False)

    alone = diverging()
    monkeypatch.setattr(paths, "_together", lambda *question: True)
    together = diverging()
    assert together.certificate.status.name == alone.certificate.status.name == "diverged"
    np.testing.assert_array_equal(np.isfinite(together.loss), np.isfinite(alone.loss))


@pytest.mark.full
def test_eight_devices_give_the_same_numbers(tmp_path):
    program = (
        "import jax\nfrom tests.dynamics.march.test_together import ask, assert_equal, paths\n"
        "assert len(jax.devices()) == 8\nshared, paths._together = ask(), lambda *question: False\n"
        "assert_equal(shared, ask())"
    )
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


@pytest.mark.full
@pytest.mark.parametrize("n_tests", [0, 300])
def test_seconds_are_foreseen(n_tests):
    """To a factor of three, once everything is compiled."""
    x = RNG.normal(size=(10 + n_tests, 3)) @ RNG.normal(size=(3, 40))
    task = wf.Task(x[:10], np.sign(x[:10, 0]), x_test=x[10:] if n_tests else None)
    call = lambda: wf.dynamics(  # noqa: E731
        wf.DNN(3, "tanh"), task, wf.Training(0.01, 40), paths=1024, quantities="loss", progress=False, throw=False
    )
    call()
    start = time.process_time()
    foreseen = call().certificate.diagnostics["predicted_seconds"]
    assert foreseen / 3 < time.process_time() - start < 3 * foreseen
