"""Gradient flow as a limit: rates η, η/2, η/4, … at fixed time, extrapolated: Eq. (dynamics.20)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from widefield.answer.boundary import memory_budget
from widefield.answer.certificate import Status
from widefield.solvers import extrapolation
from widefield.theories.dynamics import memory
from widefield.theories.dynamics.curves import Estimate, TrainingCurves, divergence, size
from widefield.theories.dynamics.methods import lazy, paths
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.request import Request

FLOW_LEVELS, MOST_LEVELS = 3, 8  # halvings of the rate on the way to gradient flow: least, and most
EVERY_STEP = ("ntk", "alignment", "ntk_alignment")  # among the kernels; the others are kept at chosen steps
Level = Callable[[Problem, Request, int | None], TrainingCurves]


def covers(problem: Problem, request: Request) -> bool:
    """A flow in the full theory, in that without responses, and in the lazy limit."""
    return problem.training.flow and request.method in ("full", "independent", "lazy")


def solve(problem: Problem, request: Request) -> TrainingCurves:
    """The march at all rates has the same paths, as many as the first one takes."""

    def level(problem: Problem, request: Request, n_paths: int | None) -> TrainingCurves:
        if request.method == "lazy":
            return lazy.solve(problem, request)
        return (
            paths.solve(problem, request) if n_paths is None else paths.sampled(problem, request, n_paths, fixed=True)
        )

    return extrapolated(problem, request, level)


def extrapolated(problem: Problem, request: Request, level: Level) -> TrainingCurves:
    """Levels until the last change is within the tolerance.

    Rates down to one at which descent diverges are passed over.
    """
    levels: list[TrainingCurves] = []
    for k in range(MOST_LEVELS):
        # the same times in 2^k times as many steps; the last rate is that of the row after the last update
        rates = np.append(np.repeat(problem.rates[:-1] / 2**k, 2**k), problem.rates[-1] / 2**k)
        finer, at = replace(problem, rates=rates), tuple(t * 2**k for t in request.at)
        if len(levels) >= FLOW_LEVELS and memory.needed(finer, request) > memory_budget():
            break
        curves = level(finer, replace(request, at=at), levels[0].n_paths if levels else None)
        if curves.failure is Status.diverged and k + FLOW_LEVELS < MOST_LEVELS:
            levels = []
            continue
        if curves.failure is not None or (not levels and curves.status is not Status.success):
            return _thinned(curves, k)
        levels.append(_thinned(curves, k))
        if len(levels) >= FLOW_LEVELS:
            limit = _limit(problem, request, levels)
            if limit.error <= limit.rtol:
                return limit
            if np.max([one.error for one in levels]) > limit.rtol:  # smaller steps do not make paths better
                break
    advice = "lower the rate, raise `paths` or `rtol`"
    return replace(limit, notes=(f"the limit is good to {limit.error:.1e}, not to rtol={limit.rtol:g}: {advice}",))


def _thinned(curves: TrainingCurves, k: int) -> TrainingCurves:
    """The rows that curves of 2^k times as many steps share with those of the steps asked for."""
    every = lambda estimate: estimate.each(lambda v: v[:: 2**k])  # noqa: E731
    kernels = {name: every(e) if name in EVERY_STEP else e for name, e in curves.kernels.items()}
    thin = replace(curves, prediction=every(curves.prediction), loss=every(curves.loss), kernels=kernels)
    if curves.diverged_at is None or k == 0:
        return thin
    return replace(thin, **divergence(-(-curves.diverged_at // 2**k), f" even at 1/{2**k} of the rate"))


def _limit(problem: Problem, request: Request, levels: list[TrainingCurves]) -> TrainingCurves:
    """The extrapolation to zero rate of curves whose rate halves from each to the next; the loss is that of its outputs.

    Error: the last change of the outputs of readouts, relative to their size, and the share of it in every field.
    """
    last, read = levels[-1], list(problem.readouts)
    outputs, change = extrapolation.extrapolate([one.prediction.value for one in levels])
    errors = [float(change[:, read].max()) / size(outputs[:, read], problem.least_output)]
    errors += [one.error for one in levels]

    def judge(change: np.ndarray, value: np.ndarray) -> None:
        errors.append(float(np.max(change, initial=0.0) / np.max(np.abs(value), initial=np.finfo(float).tiny)))

    def limit(estimates: list[Estimate]) -> Estimate:
        value, change = extrapolation.extrapolate([one.value for one in estimates])
        judge(change, value)
        return Estimate(value, estimates[-1].stderr)

    if "state_prediction" in request.fields:
        judge(change, outputs)
    kernels = {name: limit([one.kernels[name] for one in levels]) for name in last.kernels}
    return replace(
        last, prediction=Estimate(outputs, last.prediction.stderr),
        loss=Estimate(problem.losses(outputs), last.loss.stderr), kernels=kernels, error=float(np.max(errors)),
    )  # fmt: skip
