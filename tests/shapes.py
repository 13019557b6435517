"""Shapes as annotated: a checker for jaxtyping's import hook that looks at array annotations alone."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args, get_origin

import jax
import jaxtyping
import numpy as np

JAXTYPED = jaxtyping.jaxtyped


def where_annotated(function: Any = None, *, typechecker: Any) -> Any:
    """`jaxtyping.jaxtyped` for what has arrays in its annotations; to wrap every call costs a sixth of the tests' time."""
    if function is None:
        return functools.partial(where_annotated, typechecker=typechecker)
    if inspect.isfunction(function) and not any(map(_arrays, function.__annotations__.values())):
        return function
    return JAXTYPED(function, typechecker=typechecker)


def checked(function: Callable) -> Callable:
    """``function`` with its jaxtyping annotations tested at every call; other annotations are the type checker's."""
    if not inspect.isfunction(function):
        return function
    hints = {name: hint for name, hint in function.__annotations__.items() if _arrays(hint)}
    if not hints:
        return function
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            _check(function, name, value, hints.get(name))
        result = function(*args, **kwargs)
        _check(function, "return", result, hints.get("return"))
        return result

    return call


def _arrays(hint: Any) -> bool:
    """Whether a hint has an array with a shape in it."""
    inner = get_args(hint)
    return any(map(_arrays, inner)) if inner else inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)


def _check(function: Callable, name: str, value: Any, hint: Any) -> None:
    if hint is None or not hasattr(value, "shape") or get_origin(hint) in (tuple, list, dict):
        return
    value = np.asarray(value) if isinstance(value, np.generic) else value
    kind = np.ndarray if isinstance(value, np.ndarray) else jax.Array
    allowed = [_in_library(option, kind) for option in get_args(hint) or (hint,) if _arrays(option)]
    if allowed and not any(isinstance(value, option) for option in allowed):
        where = f"{function.__module__}.{function.__qualname__}"
        raise TypeError(f"{name} of {where} has shape {np.shape(value)} and dtype {value.dtype}, annotated {hint}")


@functools.lru_cache
def _in_library(hint: Any, kind: type) -> Any:
    """The same dtype and dims in NumPy or JAX: which of the two an array belongs to says nothing about its shape."""
    return hint.dtype[kind, hint.dim_str]
