"""Eight devices in one process give the numbers of one."""

import json
import os
import subprocess
import sys

import jax
import numpy as np

from widefield.answer.devices import n_devices, on_devices

ANSWERS = """
import json, jax, numpy as np, widefield as wf
net = wf.DNN(2, "linear")
teacher = wf.Teacher(data_ratio=2.0)
training = wf.Training(0.1, 6)
sweep = wf.rate_sweep(net, teacher, training, rates=np.geomspace(0.01, 1.0, 16), width_ratios=(1.0,))
x = np.random.default_rng(0).normal(size=(2, 3))
task = wf.Task(x, np.array([1.0, -1.0]))
chains = wf.simulate.posterior(
    wf.RNN(2, "linear"), task, temperature=0.5, width=10, replicates=8, draws=40, warmup=40, seed=0, throw=False
)
print(json.dumps([len(jax.devices()), sweep.test_loss.values.tolist(), chains.hidden.values.tolist()]))
"""


def answers(devices: int) -> tuple[int, np.ndarray, np.ndarray]:
    flags = f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false"
    shown = subprocess.run(
        [sys.executable, "-c", ANSWERS], env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    count, sweep, chains = json.loads(shown.stdout)
    return count, np.array(sweep), np.array(chains)


def test_devices_change_no_number():
    (one, sweep, chains), (eight, sweep_8, chains_8) = answers(1), answers(8)
    assert (one, eight) == (1, 8)
    np.testing.assert_allclose(sweep_8, sweep, rtol=1e-12)
    np.testing.assert_allclose(chains_8, chains, rtol=1e-9, atol=1e-12)  # a rounding grows along a chain
    assert np.ptp(chains, axis=0).max() > 1e-3, "chains that are all alike would hide rows that are mixed"


def test_rows_are_shared_evenly():
    assert n_devices(1) == 1
    assert 7 % n_devices(7) == 0
    double = on_devices(lambda rows, factor: factor * rows, 1, shared=1)
    np.testing.assert_array_equal(jax.jit(double)(np.arange(3.0), 2.0), [0.0, 2.0, 4.0])
