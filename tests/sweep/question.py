"""A small question that is answered quickly, and the script of a sweep in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import widefield as wf

RNG = np.random.default_rng(3)
NET = wf.DNN(2, "relu", weight_variance=1.4, bias_variance=0.1)
TASK = wf.Task(RNG.normal(size=(3, 2)), RNG.normal(size=3), x_test=RNG.normal(size=(2, 2)), y_test=np.ones(2))
OVER = {"network.weight_variance": [0.5, 1.0, 2.0], "noise": [0.1, 0.3, 0.0, 0.7]}  # no noise: 4 labels, 2 dimensions
SCRIPT = """
import json, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
import widefield as wf
from tests.sweep.question import NET, OVER, TASK
from widefield.sweep import call
ask = call.ask
call.ask = lambda *point: (time.sleep(0.05), ask(*point))[1]  # so that it is still at work when a signal comes
store, options, out = json.loads(sys.argv[1])
answer = wf.sweep("prior", NET, TASK, over=OVER, store=store, **options)
answer.save(out)
"""


def here(**options):
    """The sweep in this process."""
    return wf.sweep("prior", NET, TASK, over=OVER, **options)


def elsewhere(folder: Path, **options) -> subprocess.Popen:
    """The same in a process of its own: the store is ``folder``/points, the answer ``folder``/answer.nc."""
    arguments = json.dumps([str(folder / "points"), options, str(folder / "answer.nc")])
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", SCRIPT, arguments], cwd=root, stderr=subprocess.PIPE, text=True)
