"""Where JAX begins and ends: the float64 scope, dtypes, and how much memory a result may take."""

import atexit
import contextlib
import contextvars
import ctypes
import functools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from widefield.question import checks

F = TypeVar("F", bound=Callable[..., Any])
SHARE_OF_MEMORY = 0.5
CONTEXTS: dict[str, Any] = {  # settings of JAX that a thread may have for itself
    "jax_default_device": jax.default_device, "jax_disable_jit": jax.disable_jit, "jax_debug_nans": jax.debug_nans,
    "jax_default_matmul_precision": jax.default_matmul_precision, "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
}  # fmt: skip
TO_STOP, TO_LEAVE = (
    0.5,
    5.0,
)  # seconds that an interrupted call gets before the answer, and before Python ends without it


def x64(function: F) -> F:
    """Run a public function in a float64 scope, whatever JAX's global flag, and so that Ctrl-C is answered at once."""

    @functools.wraps(function)
    def scoped(*args, **kwargs):
        def call() -> Any:
            with jax.enable_x64(True):
                return function(*args, **kwargs)

        return call() if threading.current_thread() is not threading.main_thread() else _interruptible(call)

    return scoped  # type: ignore[return-value]


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


def _interruptible(call: Callable[[], Any]) -> Any:
    """``call`` in a thread of its own, for which the main one waits: Python hears Ctrl-C between two of its own operations, and
    one of XLA or LAPACK may last minutes. After an interrupt the thread is told to stop, and another takes its place.
    """
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
    """Wait for interrupted calls: XLA that computes on while Python shuts down is a segmentation fault. Leave without them where
    that takes long.
    """
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


def working_dtype(dtype: Any) -> np.dtype:
    """float64, or float32 where the user asked for it."""
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = repr(dtype)
    return np.dtype(checks.choice("dtype", name, ("float64", "float32")))


def require_dtype(dtype: Any, **arrays: Any) -> None:
    """Refuse arrays of another precision than ``dtype``: JAX without x64 silently hands over float32."""
    wanted = working_dtype(dtype)
    for name, array in arrays.items():
        if jnp.result_type(array) != wanted:
            raise ValueError(
                f"`{name}` is {jnp.result_type(array)}, but the computation runs in {wanted.name}. Use "
                "jax.enable_x64(True) around the call, or ask for single precision with dtype='float32'."
            )


def memory_budget() -> int:
    """Bytes a result may take: half of what is free now."""
    return int(SHARE_OF_MEMORY * psutil.virtual_memory().available)


def describe_bytes(n_bytes: float) -> str:
    """``n_bytes`` in the unit a person would use."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.0f} TB" if n_bytes >= 999.5 else f"{n_bytes:.3g} TB"


def choose_quantities(
    asked: Iterable[str] | None, sizes: dict[str, int], budget: int | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which quantities to return, and which are left out for want of memory.

    ``sizes`` maps each available quantity, the most wanted first, to its bytes. Asking by name for more than fits
    raises `MemoryError` before anything is allocated.
    """
    budget = memory_budget() if budget is None else budget
    if asked is not None:
        if not isinstance(asked, Iterable):
            raise ValueError(f"`quantities` must be names out of {', '.join(sizes)}, got {asked!r}.")
        asked = (asked,) if isinstance(asked, str) else tuple(asked)
        if not asked:
            raise ValueError(f"`quantities` must name at least one of {', '.join(sizes)}.")
        for name in asked:
            checks.choice("quantities", name, sizes)
        need = sum(sizes[name] for name in asked)
        if need > budget:
            parts = ", ".join(f"{name} {describe_bytes(sizes[name])}" for name in asked)
            raise MemoryError(
                f"`quantities` need {describe_bytes(need)} ({parts}), but only {describe_bytes(budget)} may be used. "
                "Ask for fewer quantities, fewer samples or a smaller depth."
            )
        return asked, ()
    kept: list[str] = []
    for name, size in sizes.items():
        if size <= budget:
            kept.append(name)
            budget -= size
    return tuple(kept), tuple(name for name in sizes if name not in kept)
