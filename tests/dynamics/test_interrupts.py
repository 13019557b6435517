"""Ctrl-C during a long call: answered within a second, the same call works again, and Python ends as it should."""

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import signal, numpy as np, widefield as wf

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background

def ask(steps):
    task = wf.Task(np.eye(2, 3), np.array([1.0, -1.0]))
    return wf.dynamics(wf.DNN(2, "tanh"), task, wf.Training(0.01, steps), paths=64, quantities="loss", throw=False)

ask(2)
print("ready", flush=True)
try:
    ask(10**6)
except KeyboardInterrupt:
    print("answered", flush=True)
    {after}
print(ask(2).loss.shape, flush=True)
"""


@pytest.mark.parametrize("after, code", [("pass", 0), ("raise", -signal.SIGINT)])
def test_an_interrupt_is_answered_at_once(after, code):
    program = PROGRAM.replace("{after}", after)
    call = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert call.stdout is not None and call.stdout.readline() == "ready\n"
    time.sleep(0.7)
    start = time.perf_counter()
    call.send_signal(signal.SIGINT)
    assert call.stdout.readline() == "answered\n"
    assert time.perf_counter() - start < 10  # a second where nothing else runs
    rest, errors = call.communicate(timeout=60)
    assert call.returncode == code and rest == ("(3,)\n" if after == "pass" else "")
    assert after == "raise" or not errors
