"""Ctrl-C is answered at once: public calls compute in a thread of their own, for which the main thread waits.

Python hears an interrupt between two of its own operations, and one operation of XLA or LAPACK may last minutes.
"""

import atexit
import contextlib
import contextvars
import ctypes
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

CONTEXTS: dict[str, Any] = {  # settings of JAX that a thread may have for itself
    "jax_default_device": jax.default_device, "jax_disable_jit": jax.disable_jit, "jax_debug_nans": jax.debug_nans,
    "jax_default_matmul_precision": jax.default_matmul_precision, "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
}  # fmt: skip
TO_STOP, TO_LEAVE = 0.5, 5.0  # seconds an interrupted call gets before the answer, and before Python ends without it


class _Worker(threading.Thread):
    """A thread for the calls of the main one, which never ends: a thread that has used JAX may not while Python shuts down."""

    def __init__(self) -> None:
        super().__init__(name="widefield", daemon=True)
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.idle = threading.Event()

    def run(self) -> None:
        while True:
            call = self.calls.get()
            try:
                call()
            finally:
                self.idle.set()


_workers: list[_Worker] = []  # the last one takes calls, the others were interrupted and perhaps still compute
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.clear)  # a child process has none of its parent's threads


def interruptible(call: Callable[[], Any]) -> Any:
    """The value of ``call``; after an interrupt its thread is told to stop, and another takes its place.

    What is traced, profiled or called from another thread than the main one, which alone hears interrupts, runs where it is.
    """
    if threading.current_thread() is not threading.main_thread() or sys.gettrace() or sys.getprofile():
        return call()
    outcome: dict[str, Any] = {}
    outer = {name: getattr(jax.config, name) for name in CONTEXTS}  # of this thread alone, unless they are global

    def work() -> None:
        try:
            with contextlib.ExitStack() as stack:
                for name, value in outer.items():
                    if getattr(jax.config, name) != value:
                        stack.enter_context(CONTEXTS[name](value))
                outcome["value"] = call()
        except BaseException as error:
            outcome["error"] = error
            if isinstance(error, KeyboardInterrupt):  # nothing that was dispatched may outlive the interpreter
                for array in jax.live_arrays():
                    with contextlib.suppress(RuntimeError):  # deleted: it was given to a computation
                        array.block_until_ready()

    if not _workers:
        _workers.append(_Worker())
        _workers[-1].start()
    worker, context = _workers[-1], contextvars.copy_context()
    worker.idle.clear()
    worker.calls.put(lambda: context.run(work))
    try:
        while not worker.idle.wait(1.0):
            pass
    except BaseException:
        _workers.append(_Worker())
        _workers[-1].start()
        _workers[-1].idle.set()
        stop = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), stop)
        worker.idle.wait(TO_STOP)
        raise
    if "error" in outcome:
        raise outcome.pop("error")
    return outcome["value"]


@atexit.register
def _leave() -> None:
    """Wait for interrupted calls, since XLA that computes while Python shuts down is a segmentation fault; leave without
    those that take long."""
    for worker in _workers:
        worker.idle.wait(TO_LEAVE)
    if any(not worker.idle.is_set() for worker in _workers):
        code = 130 if getattr(sys, "last_type", None) is KeyboardInterrupt else 0
        _workers.clear()
        sys.unraisablehook = lambda error: None
        atexit._run_exitfuncs()  # nothing runs after this; those that have run complain
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    time.sleep(0.01 * bool(_workers))  # they go to sleep
