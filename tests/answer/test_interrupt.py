"""Calls in a thread of their own: nothing is kept, nothing waits for itself, and an interrupted process does not say success."""

import gc
import signal
import subprocess
import sys
import time
import weakref

import pytest

from widefield.answer.interrupt import interruptible

LEFT = """
import os, signal, sys, threading, time
from widefield.answer import interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
interrupt.TO_STOP = interrupt.TO_LEAVE = 0.1
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    interrupt.interruptible(lambda: time.sleep(60))
except KeyboardInterrupt:
    {}
"""


class Thing:
    pass


def test_value_and_error_are_those_of_the_call():
    assert interruptible(lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 / 0)
    assert interruptible(lambda: interruptible(lambda: 2)) == 2


def test_nothing_is_kept():
    thing = interruptible(Thing)
    known = weakref.ref(thing)
    del thing
    gc.collect()
    assert known() is None


def test_a_signal_handler_may_call_while_a_call_waits():
    inner = []
    before = signal.signal(signal.SIGALRM, lambda *_: inner.append(interruptible(lambda: 2)))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        assert interruptible(lambda: (time.sleep(0.3), 1)[1]) == 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert inner == [2]


def test_a_module_may_call_while_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "of_a_user.py").write_text(
        "from widefield.answer.interrupt import interruptible\nX = 1\n"
        "def function():\n    from of_a_user import X\n    return X\nY = interruptible(function)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import of_a_user

    assert of_a_user.Y == 1


@pytest.mark.parametrize("ending, code", [("sys.exit(3)", 130), ("raise", 130), ("raise ValueError", 1), ("pass", 130)])
def test_a_process_that_leaves_a_call_behind_does_not_say_success(ending, code):
    run = subprocess.run([sys.executable, "-c", LEFT.format(ending)], capture_output=True, timeout=60)
    assert run.returncode == code
