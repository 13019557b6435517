"""Memory is predicted: the number that a refusal tells is what the call takes, and a refusal costs no time."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import widefield as wf

RNG = np.random.default_rng(0)
TASK = wf.Task(RNG.standard_normal((4, 3)), RNG.standard_normal(4))
DEEP, LINEAR, RECURRENT = wf.DNN(2, "tanh"), wf.DNN(2, "linear"), wf.RNN(3, "tanh")
TRAINING, TEACHER = wf.Training(0.05, 10), wf.Teacher(data_ratio=1.0)
MANY = wf.Task(TASK.x, TASK.y, x_test=RNG.standard_normal((200_000, 3)))
SPECTRUM = wf.Teacher(spectrum=(np.ones(5), np.ones(5)))
FEW = {"replicates": 3, "seed": 0}

TOO_LARGE = {
    "prior replicates": lambda s: s.prior(DEEP, TASK, width=10, replicates=10**12, seed=0),
    "prior width": lambda s: s.prior(DEEP, TASK, width=10**12, **FEW),
    "finite_width replicates": lambda s: s.finite_width(DEEP, TASK, width=10, replicates=10**13, seed=0),
    "finite_width replicates, recurrent": lambda s: s.finite_width(
        RECURRENT, TASK, width=10, replicates=10**13, seed=0
    ),
    "posterior width": lambda s: s.posterior(RECURRENT, TASK, temperature=0.3, width=10**7, **FEW),
    "posterior draws": lambda s: s.posterior(RECURRENT, TASK, temperature=0.3, width=10, draws=10**12, **FEW),
    "posterior replicates": lambda s: s.posterior(
        RECURRENT, TASK, temperature=0.3, width=10, replicates=10**12, seed=0
    ),
    "posterior width, test inputs": lambda s: s.posterior(RECURRENT, MANY, temperature=0.3, width=10**5, **FEW),
    "dynamics width": lambda s: s.dynamics(DEEP, TASK, TRAINING, width=10**7, **FEW),
    "dynamics replicates": lambda s: s.dynamics(DEEP, TASK, TRAINING, width=10, replicates=10**12, seed=0),
    "dynamics width, test inputs": lambda s: s.dynamics(RECURRENT, MANY, TRAINING, width=10**5, **FEW),
    "proportional dimension": lambda s: s.proportional(
        LINEAR, TEACHER, TRAINING, width_ratio=1.0, dimension=10**12, **FEW
    ),
    "proportional replicates": lambda s: s.proportional(
        LINEAR, TEACHER, TRAINING, width_ratio=1.0, dimension=10, replicates=10**12, seed=0
    ),
    "proportional width": lambda s: s.proportional(LINEAR, SPECTRUM, TRAINING, width=10**9, **FEW),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_cannot_fit_is_refused_at_once_and_what_would_fit_is_told(name):
    argument = name.replace(",", "").split()[1]
    began = time.process_time()
    with pytest.raises(
        MemoryError, match=rf"need [\d.e+]+ [GT]B .*may be used: .* are free.*`{argument}` \d+"
    ) as refused:
        TOO_LARGE[name](wf.simulate)
    assert time.process_time() - began < 1
    assert "would fit" in str(refused.value)


CASES = {
    "prior": "simulate.prior(wf.DNN(3, 'tanh'), task(100), width=200, replicates=400, quantities='hidden', seed=0)",
    "dynamics": "simulate.dynamics(wf.RNN(3, 'tanh'), task(20), wf.Training(0.02, 30), width=100, replicates=8, "
    "quantities='gradient_kernel', seed=0)",
    "proportional": "simulate.proportional(wf.DNN(2, 'linear'), wf.Teacher(data_ratio=1.5), wf.Training(0.05, 2), "
    "width_ratio=1.0, dimension=2000, replicates=1, seed=0)",
}
MEASURE = """
import json, re, sys
import numpy as np, psutil
import widefield as wf
from widefield import simulate
from widefield.answer import boundary

def task(n):
    rng = np.random.default_rng(0)
    return wf.Task(rng.standard_normal((n, 10)), rng.standard_normal(n))

def peak():
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

budget, result = boundary.memory_budget, {}
eval("simulate.prior(wf.DNN(2, 'tanh'), task(3), width=9, replicates=2, seed=0)")  # imports
for name, call in json.loads(sys.argv[1]).items():
    boundary.memory_budget = lambda: 1000
    try:
        eval(call)
    except MemoryError as error:
        number, unit = re.search(r"need ([\\d.]+) (MB|GB)", str(error)).groups()
    boundary.memory_budget = budget
    open("/proc/self/clear_refs", "w").write("5")  # forget the peak so far
    before = psutil.Process().memory_info().rss
    eval(call)
    result[name] = float(number) * {"MB": 1e6, "GB": 1e9}[unit], peak() - before
print(json.dumps(result))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_the_predicted_memory_is_what_is_taken():
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps(CASES)], capture_output=True, text=True, check=True, timeout=120
    )
    for name, (predicted, taken) in json.loads(done.stdout).items():
        assert taken > 1e8, f"{name}: too small a case to tell"
        assert 1 / 1.5 < predicted / taken < 1.5, f"{name}: predicted {predicted:.3g}, taken {taken:.3g}"
