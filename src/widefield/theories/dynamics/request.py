"""What is asked for: the method, the fields that fit in memory, the steps of kernels, and how to sample."""

import time
from collections.abc import Callable, Hashable, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from widefield.answer.boundary import choose_quantities, memory_budget, names_of
from widefield.answer.progress import LONG, bar
from widefield.question import checks
from widefield.theories.dynamics import memory
from widefield.theories.dynamics.march import responses
from widefield.theories.dynamics.memory import DRAWN, KERNELS
from widefield.theories.dynamics.problem import Problem

METHODS = ("full", "lazy", "independent", "perturbative")
AVERAGED = (*KERNELS, *responses.NAMES, "alignment", "ntk_alignment")
SHOWN = 2.0  # seconds beyond which a call shows what remains of it
COMPILING = 2.5  # seconds of a compilation
SAMPLED_RTOL, DETERMINISTIC_RTOL = 0.1, 1e-3  # of the outputs, where none is given; a 95 % limit where they are sampled


_compiled: set[Hashable] = set()


def compiling(*key: Hashable) -> float:
    """Seconds that a compilation takes: none where it has been made before."""
    seconds = 0.0 if key in _compiled else COMPILING
    _compiled.add(key)
    return seconds


@dataclass(frozen=True)
class Request:
    """Which fields to make, at which steps two-time kernels are kept, and with which paths."""

    method: str
    fields: tuple[str, ...]
    at: tuple[int, ...]
    left_out: tuple[str, ...] = ()
    at_chosen: bool = False  # whether the user chose the steps
    paths: int | None = None
    rtol: float | None = None
    seed: int = 0
    progress: bool | None = None
    begun: float = field(default_factory=time.perf_counter)

    def bar(self, title: str, total: int, seconds: float) -> AbstractContextManager[Callable[[int], None]]:
        """Of a part of the call that may last ``seconds`` more, shown where all of it lasts longer than `SHOWN`."""
        return bar(title, total, self.progress, LONG / SHOWN * (time.perf_counter() - self.begun + seconds))

    @property
    def ntk(self) -> bool:
        """Whether the tangent kernel is needed."""
        return bool({"ntk", "ntk_alignment"} & set(self.fields))

    @property
    def responses(self) -> bool:
        """Whether A or B is asked for."""
        return bool(set(self.fields) & set(responses.NAMES))

    def limit(self, sampled: bool) -> float:
        """What the relative error of outputs may be."""
        return self.rtol or (SAMPLED_RTOL if sampled else DETERMINISTIC_RTOL)


def make_request(
    problem: Problem, *, method: str, paths: Any, at: Any, quantities: Any, rtol: Any, seed: Any, progress: Any
) -> Request:
    """Checked names within the memory that is free; kernels at all steps unless ``at`` chooses some."""
    _check_method(problem, method)
    rtol = None if rtol is None else checks.tolerance("rtol", rtol, 1e-6)
    paths = (
        None if paths is None else 2 * -(-checks.integer("paths", paths, memory.LEAST_PATHS) // 2)
    )  # they come in pairs
    seed = checks.integer("seed", seed, 0)
    steps = _steps(at, len(problem.rates))
    quantities = names_of(quantities)
    memory.refuse(problem, method, paths)
    sizes = memory.sizes(problem, method, len(steps), at is not None, paths or memory.first_paths(problem), quantities)
    free = memory_budget() - memory.solving(problem, method, paths)
    if quantities is None:
        free = min(free, memory_budget() // 2)  # what nobody asked for does not fill the memory
    fields, left_out = choose_quantities(quantities, sizes, budget=int(free))
    if quantities is None:
        left_out = (*left_out, *(name for name in DRAWN if name not in sizes))
    kept = set(fields) & {*KERNELS, *responses.NAMES, *DRAWN}
    if kept <= set(DRAWN) and at is None:
        steps = steps[-1:]
    chosen = tuple(steps) if kept else ()
    return Request(method, fields, chosen, left_out, at is not None, paths, rtol, seed, progress)


def _check_method(problem: Problem, method: str) -> None:
    """What an approximation does not cover."""
    checks.choice("method", method, METHODS)
    training, depth = problem.training, problem.network.depth
    if method in ("independent", "perturbative") and 1 < len(problem.readouts) < depth:
        raise ValueError(f"`method`={method!r} needs labels at one state or at all of them: others are not predicted.")
    if training.flow and training.temperature:
        raise ValueError("`flow` extrapolates smooth curves: use a small rate with `temperature`.")
    if method in ("lazy", "perturbative"):
        scaled = np.any(np.asarray(training.initial_scale) != 1)
        if training.weight_decay or scaled or training.temperature:
            raise ValueError(
                f"`method`={method!r} is for plain descent: without weight_decay, temperature or initial_scale."
            )
        if len(set(problem.network.relative_widths)) > 1:
            raise ValueError(f"`method`={method!r} needs equal `widths`.")
    if method == "perturbative" and (training.momentum_time is not None or training.flow):
        raise ValueError("`method`='perturbative' is for descent without momentum_time or flow.")


def _steps(at: Any, n_rows: int) -> Sequence[int]:
    if at is None:
        return range(n_rows)
    allowed = f"`at` must be steps between 0 and {n_rows - 1}, none of them twice, got"
    if isinstance(at, Sized) and len(at) > n_rows:
        raise ValueError(f"{allowed} {len(at)} of them.")
    steps = np.atleast_1d(np.asarray(at))
    inside = steps.ndim == 1 and steps.dtype.kind in "iu" and len(steps)
    if not inside or steps.min() < -n_rows or steps.max() >= n_rows:
        raise ValueError(f"{allowed} {at!r}.")
    return tuple(sorted({int(step) % n_rows for step in steps}))
