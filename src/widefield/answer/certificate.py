"""How far a result can be trusted: numbers beside their limits, and the status that follows from them."""

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from pydantic import ConfigDict


class Status(enum.Enum):
    """How a solve ended. The value is the advice shown to the user."""

    success = "every number below is within its limit"
    not_converged = "the iteration stopped before its tolerance: raise max_steps or rtol, or start closer"
    inaccurate = "a residual or an error estimate exceeds its limit: raise rtol, or follow the note"
    incomplete = "a part of what was asked is missing: the notes name it"
    nonfinite = "a value overflowed or is not a number: lower the variances, the depth or the rate"
    not_psd = "a covariance is not positive definite: add noise, or remove duplicate inputs"
    saddle = "the stationary point is not a minimum: ask for another branch"
    diverged = "the solution grows without bound: lower the rate or the variances"
    too_large = "the result does not fit in memory: ask for fewer quantities or samples"

    def __str__(self) -> str:
        return self.name


class Check(NamedTuple):
    """A number beside the largest value that counts as success, and what it means where it is larger."""

    value: float
    limit: float
    otherwise: Status = Status.inaccurate

    @property
    def met(self) -> bool:
        """Whether the number is within its limit; NaN never is."""
        return bool(self.value <= self.limit)


def derive_status(checks: Mapping[str, Check], failure: Status | None) -> Status:
    """The only place where a status comes from: what the solver saw fail, then the first check that is not met."""
    if failure is not None:
        return failure
    return next((check.otherwise for check in checks.values() if not check.met), Status.success)


@dataclass(frozen=True)
class Certificate:
    """What a result was made with, and how well it satisfies its own equations.

    ``checks`` are the numbers that success rests on: ``"residual"``, re-evaluated after the solve (undamped), relative to
    the natural scale of each equation; ``"error"``, the largest error estimate met on the way, beside what was asked;
    ``"lost"``, how many branches, chains or points were lost; others under their own names. ``failure`` is what the solver
    itself saw go wrong. `status` follows from these and cannot be set. ``diagnostics`` are further numbers that nothing is
    asked of.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    theory: str
    checks: Mapping[str, Check]
    failure: Status | None = None
    steps: int = 0
    seed: int | None = None
    dtype: str = "float64"
    wall_time: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    diagnostics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        put("checks", MappingProxyType({name: _checked(name, check) for name, check in self.checks.items()}))
        put("versions", self.versions or dict(_versions()))
        put("options", plain(self.options))
        put("diagnostics", plain(self.diagnostics))
        if self.failure is Status.success:
            raise ValueError("`failure` must be what went wrong, or None: success follows from the checks.")
        if not self.checks and self.failure is None:
            raise ValueError("`checks` must hold at least one number beside its limit: success is earned.")

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or another process, gets the checks as a plain dict."""
        return self.__dict__ | {"checks": dict(self.checks)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"checks": MappingProxyType(state["checks"])})

    @property
    def status(self) -> Status:
        """How the solve ended, derived from ``failure`` and ``checks``."""
        return derive_status(self.checks, self.failure)

    @property
    def residual(self) -> float | None:
        """The residual, or None where no equation is solved (a simulation) or none could be evaluated."""
        return self.checks["residual"].value if "residual" in self.checks else None

    @property
    def tolerance(self) -> float | None:
        """The limit of the residual."""
        return self.checks["residual"].limit if "residual" in self.checks else None

    @property
    def error(self) -> float | None:
        """The largest error estimate, or None where there is no such thing."""
        return self.checks["error"].value if "error" in self.checks else None

    def __str__(self) -> str:
        lines = [f"{self.theory}: {self.status.name} ({self.status.value})"]
        for name, check in self.checks.items():
            verdict = "within" if check.met else "ABOVE"
            lines.append(f"  measured   {name} {check.value:.1e}, {verdict} {check.limit:.1e}")
        options = ", ".join(f"{k}={v}" for k, v in self.options.items())
        seed = "" if self.seed is None else f", seed {self.seed}"
        lines.append(f"  made with  {options or 'defaults'}{seed}, {self.dtype}, {self.wall_time:.2f} s")
        lines += [f"  note       {note}" for note in self.notes]
        lines += [f"  measured   {name} {value}" for name, value in self.diagnostics.items()]
        if self.left_out:
            lines.append(f"  left out   {', '.join(self.left_out)}")
        return "\n".join(lines)


class SolveError(RuntimeError):
    """A solve that did not succeed; ``solution`` holds what was reached (also with ``throw=False``)."""

    def __init__(self, message: str, solution: Any = None):
        super().__init__(message)
        self.solution = solution


def _checked(name: str, check: Check) -> Check:
    value, limit, otherwise = check
    if not math.isfinite(limit):
        raise ValueError(
            f"the limit of check {name!r} must be finite, got {limit}: a number that cannot fail earns nothing."
        )
    if otherwise is Status.success:
        raise ValueError(f"check {name!r} must name what it means where its limit is exceeded, not success.")
    return Check(float(value), float(limit), otherwise)


def plain(value: Any) -> Any:
    """``value`` as numbers, words, lists and dicts, as a file keeps it; functions by name."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    return getattr(value, "__name__", repr(value))


@lru_cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("widefield", "jax", "numpy", "scipy")}
