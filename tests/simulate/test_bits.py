"""A seed gives the same bits however much memory is free and however many threads compute."""

import os
import subprocess
import sys

import numpy as np

PROGRAM = """
import sys
import numpy as np
import widefield as wf
from widefield.answer import boundary

if sys.argv[1] == "little":
    boundary.memory_budget = lambda: 60_000_000
rng = np.random.default_rng(0)
task = wf.Task(rng.standard_normal((6, 5)), rng.standard_normal(6), x_test=rng.standard_normal((2, 5)))
tanh, tied, linear = wf.DNN(3, "tanh"), wf.RNN(3, "erf"), wf.DNN(3, "linear")
training, seeded = wf.Training(0.05, 8), {"seed": 1, "throw": False}
s = wf.simulate
answers = {
    "prior": s.prior(tanh, task, width=300, replicates=6, **seeded),
    "prior, tied": s.prior(tied, task, width=300, replicates=3, **seeded),
    "prior, dense": s.prior(tanh, task, width=300, replicates=3, method="dense", quantities=("ntk", "hidden"), **seeded),
    "finite_width": s.finite_width(tanh, task, width=100, replicates=80, **seeded),
    "posterior": s.posterior(tied, task, temperature=0.3, width=40, draws=12, warmup=8, replicates=3, **seeded),
    "dynamics": s.dynamics(tied, task, training, width=200, replicates=3, **seeded),
    "proportional": s.proportional(
        linear, wf.Teacher(data_ratio=1.5), training, width_ratio=1.0, dimension=300, replicates=2, **seeded
    ),
}
fields = {f"{call}: {name}": field.values for call, answer in answers.items() for name, field in answer.data.items()}
np.savez(sys.argv[2], **fields)
"""


def fields(folder, threads, memory):
    multi = "true" if threads > 1 else "false"
    flags = f"--xla_cpu_multi_thread_eigen={multi} intra_op_parallelism_threads={threads}"
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(threads)) | {"XLA_FLAGS": flags}
    path = folder / f"{threads}-{memory}.npz"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, memory, str(path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return dict(np.load(path))


def test_threads_and_free_memory_change_nothing(tmp_path):
    one = fields(tmp_path, 1, "much")
    same, two = fields(tmp_path, 1, "little"), fields(tmp_path, 2, "much")
    assert one.keys() == same.keys() == two.keys() and len(one) > 20
    for name, values in one.items():
        np.testing.assert_array_equal(same[name], values, err_msg=f"{name}, little memory")
        np.testing.assert_array_equal(two[name], values, err_msg=f"{name}, two threads")
