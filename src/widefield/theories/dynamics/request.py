"""What is asked for: the method, the fields that fit in memory, the steps of kernels, and how to sample."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from widefield.answer.boundary import choose_quantities, memory_budget
from widefield.question import checks
from widefield.theories.dynamics.march import responses
from widefield.theories.dynamics.problem import Problem

METHODS = ("full", "lazy", "independent", "perturbative")
KERNELS, DRAWN = ("feature_kernel", "gradient_kernel"), ("preactivation", "pregradient")
AVERAGED = (*KERNELS, *responses.NAMES, "alignment", "ntk_alignment")
FIRST_PATHS = 1024
SAMPLED_RTOL, DETERMINISTIC_RTOL = 0.05, 1e-3  # of the outputs, where none is given


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
    check_method(problem, method)
    if progress is not None:
        checks.flag("progress", progress)
    rtol = None if rtol is None else checks.tolerance("rtol", rtol, 1e-6)
    paths = None if paths is None else 2 * -(-checks.integer("paths", paths, 64) // 2)  # they come in pairs
    seed = checks.integer("seed", seed, 0)
    steps = _steps(at, len(problem.rates))
    if isinstance(quantities, Iterable):
        quantities = (quantities,) if isinstance(quantities, str) else tuple(quantities)
    sizes = _sizes(problem, method, len(steps), at is not None, paths or FIRST_PATHS, quantities)
    fields, left_out = choose_quantities(quantities, sizes, budget=memory_budget() // 2)
    if quantities is None:
        left_out = (*left_out, *(name for name in DRAWN if name not in sizes))
    kept = set(fields) & {*KERNELS, *responses.NAMES, *DRAWN}
    if kept <= set(DRAWN) and at is None:
        steps = steps[-1:]
    return Request(method, fields, steps if kept else (), left_out, at is not None, paths, rtol, seed, progress)


def check_method(problem: Problem, method: str) -> None:
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


def _sizes(
    problem: Problem, method: str, n_steps: int, chosen: bool, n_paths: int, quantities: tuple[str, ...] | None
) -> dict[str, int]:
    """Bytes of every field that the method has, the most wanted first. Responses are made on request alone."""
    sizes = _curve_sizes(problem, method) | _kernel_sizes(problem, method, n_steps, n_paths)
    if method == "lazy":  # these are made of the prior's kernels between all states
        between = 16 * problem.network.depth**2 * (problem.task.n_samples + problem.task.n_test) ** 2
        states = {name for name in (*KERNELS, "alignment", "state_prediction") if name in sizes}
        sizes |= {name: sizes[name] + between for name in states}
    if method in ("full", "independent") and not problem.training.flow:
        drawn = 8 * problem.network.depth * problem.task.n_samples * n_paths * 8 * (n_steps if chosen else 1)
        sizes |= {"preactivation": drawn, "pregradient": drawn * problem.n_channels}
        if set(quantities or ()) & set(responses.NAMES):
            sizes |= responses.sizes(problem, n_steps, n_paths)
    return sizes


def _curve_sizes(problem: Problem, method: str) -> dict[str, int]:
    """Bytes of what has one entry per step."""
    n_rows, n, depth, task = len(problem.rates), problem.task.n_samples, problem.network.depth, problem.task
    curve = 8 * n_rows * (n + task.n_test) * depth * problem.labels.shape[2]
    sizes = {"loss": 8 * n_rows, "prediction": curve}
    if task.n_test:
        sizes["test_prediction"] = curve
    if task.y_test is not None:
        sizes["test_loss"] = 8 * n_rows
    if depth > 1 and method in ("full", "lazy"):
        sizes["state_prediction"] = curve
    ntk = 8 * n_rows * problem.n_channels**2 * n**2
    return sizes | {"ntk": ntk, "alignment": 8 * n_rows * depth, "ntk_alignment": ntk}


def _kernel_sizes(problem: Problem, method: str, n_steps: int, n_paths: int) -> dict[str, int]:
    """Bytes of two-time kernels, with the samples that they are made of."""
    n, depth, channels = problem.task.n_samples, problem.network.depth, problem.n_channels
    kept = 2 if problem.exact or method == "lazy" else 12  # of 8 batches
    two_times = 8 * depth * (1 if problem.by_layer else depth) * n_steps**2 * n**2 * kept
    n_values = 0 if method == "lazy" else n_steps * depth * (n + problem.task.n_test) * n_paths
    samples = 8 * n_values * (2 + 2 * channels)
    return {"feature_kernel": two_times + samples, "gradient_kernel": channels**2 * two_times + samples}


def _steps(at: Any, n_rows: int) -> tuple[int, ...]:
    if at is None:
        return tuple(range(n_rows))
    checks.reject_tracers(at=at)
    steps = np.atleast_1d(np.asarray(at))
    inside = steps.ndim == 1 and steps.dtype.kind in "iu" and len(steps)
    if not inside or steps.min() < -n_rows or steps.max() >= n_rows:
        raise ValueError(f"`at` must be steps between 0 and {n_rows - 1}, got {at!r}.")
    return tuple(sorted({int(step) % n_rows for step in steps}))
