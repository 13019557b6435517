"""Ctrl-C is answered at once, however long one call into NumPy or JAX takes."""

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

import jax

F = TypeVar("F", bound=Callable[..., Any])
PATIENCE = 0.5  # seconds for the work to stop, before Ctrl-C is answered all the same


def interruptible(function: F) -> F:
    """Run a public function in a thread of its own, while the main thread waits and hears Ctrl-C.

    Python hears it between two of its instructions and in its main thread alone, but one factorization or one compiled
    program may take minutes. The work is told to stop, which it does at its next instruction; an interpreter that ends
    waits for it, because it must not end while JAX computes. What is traced or profiled, or called from another thread,
    runs where it is called.
    """

    @functools.wraps(function)
    def waited_for(*args, **kwargs):
        if threading.current_thread() is not threading.main_thread() or sys.gettrace() or sys.getprofile():
            return function(*args, **kwargs)
        done, answers, failures = threading.Event(), [], []
        context, device = copy_context(), jax.config.jax_default_device  # type: ignore[attr-defined]

        def work() -> None:
            try:
                with jax.enable_x64(True), jax.default_device(device):  # JAX keeps these per thread
                    answers.append(context.run(function, *args, **kwargs))
            except BaseException as failure:
                failures.append(failure)
            finally:
                done.set()

        thread = threading.Thread(target=work, name=f"widefield.{function.__name__}")
        thread.start()
        try:
            while not done.wait(0.1):
                pass
        except BaseException:
            stop = ctypes.pythonapi.PyThreadState_SetAsyncExc
            stop(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt))
            done.wait(PATIENCE)
            raise
        thread.join()
        if failures:
            raise failures.pop()
        return answers.pop()

    return waited_for  # type: ignore[return-value]
