"""Where JAX begins and ends: the float64 scope, dtypes, and how much memory a result may take."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from widefield.question import checks

F = TypeVar("F", bound=Callable[..., Any])
SHARE_OF_MEMORY = 0.5


def x64(function: F) -> F:
    """Run a public function in a float64 scope, whatever JAX's global flag."""

    @functools.wraps(function)
    def scoped(*args, **kwargs):
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return scoped  # type: ignore[return-value]


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
