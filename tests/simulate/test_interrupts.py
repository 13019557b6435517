"""Ctrl-C: answered within a second, the same call works again, and the interpreter ends as it should."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import widefield as wf

CALLS = {
    "prior": (
        "s.prior(wf.DNN(3, 'tanh'), task(20), width=9000, replicates=40, seed=0, method='dense', quantities='output')",
        "s.prior(wf.DNN(2, 'tanh'), task(3), width=9, replicates=3, seed=0)",
    ),
    "posterior": (
        "s.posterior(wf.RNN(3, 'tanh'), task(4), temperature=0.3, width=60, replicates=8, seed=0, draws=10**5)",
        "s.posterior(wf.RNN(3, 'tanh'), task(4), temperature=0.3, width=60, replicates=8, seed=0, draws=8, warmup=2, "
        "throw=False)",
    ),
}
PROGRAM = """
import signal, sys, time
import numpy as np
import widefield as wf

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background

s = wf.simulate

def task(n):
    rng = np.random.default_rng(0)
    return wf.Task(rng.standard_normal((n, 5)), rng.standard_normal(n))

eval(sys.argv[2])
print("started", flush=True)
try:
    eval(sys.argv[1])
except KeyboardInterrupt:
    print(time.time(), flush=True)
eval(sys.argv[2])
print("again", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are sent")
@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_is_answered_and_nothing_is_left_behind(name):
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *CALLS[name]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "started\n", child.communicate(timeout=60)[1]
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(2)  # at work
        sent = time.time()
        child.send_signal(signal.SIGINT)
        said, errors = child.communicate(timeout=60)
        answered, again = said.split("\n")[:2]
        assert float(answered) - sent < 10  # a second where nothing else runs
        assert again == "again" and child.returncode == 0 and not errors, errors
    finally:
        child.kill()


def test_what_goes_wrong_in_the_work_comes_out_and_the_callers_settings_go_in():
    task = wf.Task(np.ones((1, 1)), np.ones(1))
    with pytest.raises(ValueError, match="`width`"):
        wf.simulate.prior(wf.DNN(2, "tanh"), task, width=0, replicates=1, seed=0)
    with pytest.raises(wf.SolveError, match="overflowed"):
        wf.simulate.prior(wf.DNN(9, "exp", weight_variance=1e3), task, width=9, replicates=2, seed=0)
    seen = []
    identity = wf.Activation(lambda z: seen.append(np.geterr()["under"]) or z, name="identity")
    with np.errstate(under="raise"):
        wf.simulate.prior(wf.DNN(1, identity), task, width=3, replicates=1, seed=0)
    assert "raise" in seen


def test_calls_from_other_threads_give_the_same_numbers():
    call = lambda: wf.simulate.prior(wf.RNN(2, "tanh"), wf.Task(np.eye(2)), width=9, replicates=2, seed=0)  # noqa: E731
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(call())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in answers:
        np.testing.assert_array_equal(answer.hidden, call().hidden)
