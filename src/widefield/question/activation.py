"""Activation functions: the named ones, and any JAX function of the user's."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widefield.question import checks


@dataclass(frozen=True)
class Activation:
    r"""A scalar function :math:`\varphi` applied to every pre-activation.

    ``breaks`` are the points where the function or its first derivative jumps: Gaussian integrals are split there.
    ``Activation(jnp.tanh)`` is smooth; a clipped ramp is ``Activation(lambda x: jnp.clip(x, -1, 1), breaks=(-1, 1))``.
    A user's function is saved by name and source text; after `widefield.load` it prints but cannot be evaluated.
    ``is_named`` marks the library's own functions, whose averages are known in closed form or at least by name.
    """

    function: Callable[[Any], Any]
    breaks: tuple[float, ...] = ()
    name: str = ""
    parameters: tuple[float, ...] = ()
    source: str = field(default="", compare=False, repr=False)
    is_named: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"`function` must be a callable of one array, got {checks.shown(self.function)}.")
        for name in ("name", "source"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"`{name}` must be text, got {checks.shown(getattr(self, name))}.")
        object.__setattr__(self, "breaks", tuple(sorted(set(_numbers("breaks", self.breaks)))))
        object.__setattr__(self, "parameters", _numbers("parameters", self.parameters))
        if not self.name:
            object.__setattr__(self, "name", getattr(self.function, "__name__", "activation"))
        if not self.source:
            object.__setattr__(self, "source", source_of(self.function))
            self._check_elementwise()

    def _check_elementwise(self) -> None:
        try:
            with jax.enable_x64(True):
                result = jax.eval_shape(self.function, jax.ShapeDtypeStruct((5, 1), jnp.float64))
        except Exception as error:  # whatever a user's function raises
            raise ValueError(f"`function` must accept a JAX array, but {self.name} raised: {error}") from error
        if getattr(result, "shape", None) != (5, 1):
            raise ValueError(f"`function` must act entry by entry, but {self.name} turns shape (5, 1) into {result}.")

    def __call__(self, x: Any) -> Any:
        return self.function(x)

    def known_as(self, name: str) -> bool:
        """Whether this is the library's own function of that name; a user's function may be called the same."""
        return self.is_named and self.name == name

    def __reduce__(self):
        """Named activations are found again by name, so that copies and other processes share one function."""
        if self.is_named:
            return named, (self.name, self.parameters)
        return Activation, (self.function, self.breaks, self.name, self.parameters, self.source)

    def __str__(self) -> str:
        inside = ", ".join(f"{p:g}" for p in self.parameters)
        return f"{self.name}({inside})" if inside else self.name


def source_of(function: Callable) -> str:
    """Source text of a user's function, also of one that was read from a file."""
    try:
        return getattr(function, "source_text", None) or inspect.getsource(function).strip()
    except (OSError, TypeError):
        return repr(function)


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    allowed = "finite numbers such as (-1, 1)"
    given = checks.as_array(name, value, allowed)
    if given.size and given.dtype.kind not in "fiu":
        raise ValueError(f"`{name}` must be {allowed}, got {checks.shown(value)}.")
    return tuple(np.atleast_1d(checks.real_array(name, value, (0, 1), allowed)[0]).tolist()) if given.size else ()


def _library(function: Callable, breaks: tuple[float, ...], name: str, *parameters: float) -> Activation:
    """One of the library's own functions: nobody else can say that its closed forms are known."""
    own = Activation(function, breaks, name, parameters, source="widefield")
    object.__setattr__(own, "source", "")
    object.__setattr__(own, "is_named", True)
    return own


def leaky_relu(slope: float = 0.01) -> Activation:
    r""":math:`\max(x, 0) + \text{slope}\,\min(x, 0)`."""
    return _leaky_relu_of(checks.real("slope", slope))


@lru_cache
def _leaky_relu_of(slope: float) -> Activation:
    return _library(lambda x: jnp.where(x > 0, x, slope * x), (0.0,), "leaky_relu", slope)


def monomial(power: int) -> Activation:
    r""":math:`x^p` for a whole power :math:`p \ge 1`."""
    return _monomial_of(checks.integer("power", power, 1, 16))


@lru_cache
def _monomial_of(power: int) -> Activation:
    return _library(lambda x: x**power, (), "monomial", float(power))


def _rbf(x):
    return jnp.sqrt(2.0).astype(jnp.result_type(x)) * jnp.sin(math.sqrt(2.0) * x + math.pi / 4)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: x,
    "relu": lambda x: jnp.maximum(x, 0),
    "abs": jnp.abs,
    "erf": jax.scipy.special.erf,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "sin": jnp.sin,
    "cos": jnp.cos,
    "rbf": _rbf,
    "quadratic": jnp.square,
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
}
_BREAKS = {"relu": (0.0,), "abs": (0.0,)}
NAMED: dict[str, Activation] = {"leaky_relu": leaky_relu()} | {
    name: _library(function, _BREAKS.get(name, ()), name) for name, function in _FUNCTIONS.items()
}


def as_activation(value: str | Activation) -> Activation:
    """The activation meant by a name or an `Activation`."""
    if isinstance(value, Activation):
        return value
    if not isinstance(value, str) or value not in NAMED:
        names = ", ".join(sorted(NAMED))
        raise ValueError(
            f"`activation` must be one of {names}, or a widefield.Activation(function, breaks=...); got {value!r}."
        )
    return NAMED[value]


def named(name: str, parameters: tuple[float, ...]) -> Activation:
    """A named activation with its parameters, as a file stores it."""
    families = {"leaky_relu": leaky_relu, "monomial": lambda power: monomial(int(power))}
    return families[name](*parameters) if parameters else NAMED[name]


def unavailable(kind: str, name: str, source: str) -> Callable[..., Any]:
    """Stands for a user's function read from a file: it prints, and raises if evaluated."""

    def function(*arguments):
        raise ValueError(
            f"The {kind} {name!r} was saved by name and source text only and cannot be evaluated. State it anew; "
            f"its source was:\n{source}"
        )

    function.__name__, function.source_text = name, source or "unknown source"  # type: ignore[attr-defined]
    return function
