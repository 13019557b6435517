"""Where JAX begins and ends: the float64 scope, dtypes, and how much memory a result may take."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from widefield.answer.interrupt import interruptible
from widefield.answer.solution import Solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.teacher import Teacher
from widefield.question.training import Training

F = TypeVar("F", bound=Callable[..., Any])
NOUNS = {"network": Network, "task": Task, "teacher": Teacher, "training": Training, "solution": Solution}
SHARE_OF_MEMORY = 0.8
MOST_NAMES = 1000  # that are read of an iterator
COPIES = 2  # of a field for a moment: where it is made and in the answer (measured: 2.03)


def x64(function: F) -> F:
    """Run a public function in a float64 scope, whatever JAX's global flag, and so that Ctrl-C is answered at once.

    Nouns and switches are what they should be before it begins.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def scoped(*args, **kwargs):
        arguments: dict[str, Any] = {}
        with suppress(TypeError):  # a missing argument is told by the function itself
            arguments = signature.bind(*args, **kwargs).arguments
        check_common(arguments)

        def call() -> Any:
            with jax.enable_x64(True):
                return function(*args, **kwargs)

        return interruptible(call)

    return scoped  # type: ignore[return-value]


def check_common(arguments: dict[str, Any]) -> None:
    """What every public function asks of its arguments: nouns are nouns, switches are switches, nothing is being traced,
    and a list of numbers is an array. What else they must be, each function checks."""
    for name, value in arguments.items():
        kind = NOUNS.get(name)
        if kind is not None:
            if not isinstance(value, kind):
                raise ValueError(f"`{name}` must be a widefield {kind.__name__}, got {type(value).__name__}.")
        elif name == "throw" or (name == "progress" and value is not None):
            checks.flag(name, value)
        elif type(value) in (list, tuple) or isinstance(value, np.ndarray | jax.core.Tracer):
            checks.as_array(name, value, "a number or an array")
        if name == "quantities" and not isinstance(value, Iterator):  # which can be read once
            names_of(value)


def names_of(quantities: Any) -> tuple[str, ...] | None:
    """The names of the fields that are asked for, None for all that fit."""
    if quantities is None or isinstance(quantities, str):
        return None if quantities is None else (quantities,)
    several = isinstance(quantities, Iterable) and getattr(quantities, "ndim", 1) == 1
    names = tuple(islice(quantities, MOST_NAMES)) if several else (None,)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"`quantities` must be names of fields, got {checks.shown(quantities)}.")
    return tuple(dict.fromkeys(names))


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
    """Bytes a result may take: most of what is free now, not all, because others use the machine too."""
    return int(SHARE_OF_MEMORY * psutil.virtual_memory().available)


def require_memory(n_bytes: float, what: str, advice: str, *, parts: str = "", budget: int | None = None) -> None:
    """Refuse what cannot fit before anything is allocated, with what it was predicted to need and what is free."""
    budget = memory_budget() if budget is None else budget
    if n_bytes > budget:
        raise MemoryError(
            f"{what} need {describe_bytes(n_bytes)}{parts and f' ({parts})'}, but only {describe_bytes(budget)} may be "
            f"used: {describe_bytes(psutil.virtual_memory().available)} are free. {advice}"
        )


def describe_bytes(n_bytes: float) -> str:
    """``n_bytes`` in the unit a person would use."""
    n_bytes = float(min(n_bytes, sys.float_info.max))
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.0f} TB" if 999.5 <= n_bytes < 1e6 else f"{n_bytes:.3g} TB"


def choose_quantities(
    asked: Iterable[str] | None, sizes: dict[str, int], budget: int | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which quantities to return, and which are left out for want of memory.

    ``sizes`` maps each available quantity, the most wanted first, to its bytes; with ``budget=None`` room is left for the
    moment when a field is there twice. Asking by name for more than fits raises `MemoryError` before anything is allocated.
    """
    budget = memory_budget() // COPIES if budget is None else budget
    asked = names_of(asked)
    if asked is not None:
        if not asked:
            raise ValueError(f"`quantities` must name at least one of {', '.join(sizes)}.")
        for name in asked:
            checks.choice("quantities", name, sizes)
        need = sum(sizes[name] for name in asked)
        parts = ", ".join(f"{name} {describe_bytes(sizes[name])}" for name in asked)
        advice = "Ask for fewer quantities, fewer samples or a smaller depth."
        require_memory(need, "`quantities`", advice, parts=parts, budget=budget)
        return asked, ()
    kept: list[str] = []
    for name, size in sizes.items():
        if size <= budget:
            kept.append(name)
            budget -= size
    return tuple(kept), tuple(name for name in sizes if name not in kept)
