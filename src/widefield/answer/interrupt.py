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

CONTEXTS: dict[str, Any] = {  # the settings of JAX that a thread may have for itself and that are carried over
    "jax_default_device": jax.default_device, "jax_disable_jit": jax.disable_jit, "jax_debug_nans": jax.debug_nans,
    "jax_debug_infs": jax.debug_infs, "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion, "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_default_prng_impl": jax.default_prng_impl, "jax_log_compiles": jax.log_compiles,
}  # fmt: skip
TO_STOP, TO_LEAVE = 0.5, 5.0  # seconds an interrupted call gets before the answer, and before Python ends without it


def carried_settings() -> Callable[[], contextlib.ExitStack]:
    """What gives another thread the settings of JAX that this one has."""
    settings = {name: getattr(jax.config, name) for name in CONTEXTS}

    def enter() -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        for name, value in settings.items():
            if getattr(jax.config, name) != value:
                stack.enter_context(CONTEXTS[name](value))
        return stack

    return enter


class _Worker(threading.Thread):
    """A thread for the calls of the main one, which never ends: a thread that has used JAX may not while Python shuts down."""

    def __init__(self) -> None:
        super().__init__(name="widefield", daemon=True)
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # one that comes when the call has ended
                self.calls.get()()


class _Call:
    """One call, what came of it, and whether anybody still waits for that."""

    def __init__(self, call: Callable[[], Any]):
        self.call, self.context = call, contextvars.copy_context()
        self.settings = carried_settings()
        self.done, self.abandoned = threading.Event(), threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def work(self) -> None:
        try:
            with self.settings():
                self.value = self.context.run(self.call)
        except BaseException as error:
            if not self.abandoned.is_set():
                self.error = error
        finally:
            if self.abandoned.is_set():  # nothing that was dispatched may outlive the interpreter
                self.value = None
                for array in jax.live_arrays():
                    with contextlib.suppress(RuntimeError):  # deleted: it was given to a computation
                        array.block_until_ready()
            self.done.set()

    def result(self) -> Any:
        """The value, or the error; neither is kept."""
        error, value = self.error, self.value
        self.error = self.value = None
        if error is None:
            return value
        try:
            raise error
        finally:
            del error


_idle: list[_Worker] = []  # at most one
_waiting: list[_Call] = []  # what the main thread waits for: a signal handler may call while it does
_abandoned: list[threading.Event] = []  # the ends of interrupted calls
if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=lambda: [known.clear() for known in (_idle, _waiting, _abandoned)])


def interruptible(call: Callable[[], Any]) -> Any:
    """The value of ``call``; after an interrupt its thread is told to stop, and the next call takes another.

    What is called from another thread than the main one, which alone hears interrupts, what is traced or profiled, and what
    is called while a module is imported (whose lock a thread would wait for) runs where it is. Limits: a lock that the
    caller holds and a user's function takes is held for ever.
    """
    elsewhere = threading.current_thread() is not threading.main_thread()
    if elsewhere or _waiting or sys.gettrace() or sys.getprofile() or _importing():
        return call()
    worker, asked = _idle.pop() if _idle else _Worker(), _Call(call)
    _waiting.append(asked)
    try:
        worker.calls.put(asked.work)
        while not asked.done.wait(1.0):
            pass
    except BaseException:
        asked.abandoned.set()
        _abandoned.append(asked.done)
        stop = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), stop)
        asked.done.wait(TO_STOP)
        raise
    finally:
        _waiting.clear()
    _idle[:] = [worker]
    return asked.result()


def _importing() -> bool:
    """Whether a module is being imported."""
    specs = (getattr(module, "__spec__", None) for module in list(sys.modules.values()))
    return any(getattr(spec, "_initializing", False) for spec in specs)


@atexit.register
def _leave() -> None:
    """Wait for interrupted calls, since XLA that computes while Python shuts down is a segmentation fault; leave without
    those that take long."""
    for done in _abandoned:
        done.wait(TO_LEAVE)
    if not all(done.is_set() for done in _abandoned):
        code = 130 if getattr(sys, "last_type", None) in (None, KeyboardInterrupt) else 1
        _abandoned.clear()
        sys.unraisablehook = lambda error: None
        atexit._run_exitfuncs()  # nothing runs after this; those that have run complain
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    time.sleep(0.01 * bool(_idle or _abandoned))  # they go to sleep
