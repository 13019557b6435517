r"""What one march predicts, and the limits that several approach: gradient flow (small rates) and infinite depth.

The theory of a discrete step differs from gradient flow by a series in the rate, that of a residual network of finite
depth from its limit at fixed :math:`\beta\sqrt L` by one in 1/L. Each refinement halves the parameter and one more power
is removed (Richardson); the error is what the last removal changed. Refinements go on until the error is small enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from widefield.answer.boundary import memory_budget
from widefield.solvers import extrapolation
from widefield.theories.proportional.problem import Problem
from widefield.theories.proportional.training_curves import CURVES, DIMS, memory_of, train

FEWEST_RATES, MOST_RATES = 3, 6  # η, η/2, η/4 … η/32
FEWEST_DEPTHS, MOST_DEPTHS = 4, 6  # 4, 8, 16, 32 … 128
FIRST_DEPTH = 4
SHARE = 0.25  # of the allowed error for the depth, where the flow is taken too


@dataclass(frozen=True)
class Prediction:
    """Arrays by name, with the channel behind, and what the certificate rests on. ``n_levels`` marches were combined."""

    arrays: dict[str, np.ndarray]
    residual: float
    error: float
    diverged_at: int | None = None
    notes: tuple[str, ...] = ()
    n_levels: int = 1


def predict(
    problem: Problem, names: tuple[str, ...], *, infinite_depth: bool, rtol: float, progress: bool | None = None
) -> Prediction:
    """The arrays ``names``, and the losses in any case, of one march or in the limits that are asked; depth inside flow."""
    if problem.training.flow:
        rates = _rates(problem, names, infinite_depth, rtol, progress)
        return _limit(rates, FEWEST_RATES, rtol, n_spare=MOST_RATES - FEWEST_RATES)
    if infinite_depth:
        return _limit(_depths(problem, names, progress), FEWEST_DEPTHS, rtol)
    return _one_march(problem, names, progress)


def _one_march(problem: Problem, names: tuple[str, ...], progress: bool | None) -> Prediction:
    march = train(problem, progress)
    arrays = {name: march.array(name) for name in dict.fromkeys((*CURVES, *names))}
    return Prediction(arrays, march.residual, problem.modes_error, march.diverged_at, march.notes)


def _depths(problem: Problem, names: tuple[str, ...], progress: bool | None) -> Iterator[Prediction]:
    for k in range(MOST_DEPTHS):
        deeper = problem.deeper(FIRST_DEPTH * 2**k)
        if k >= FEWEST_DEPTHS and memory_of(deeper) > memory_budget():
            return
        yield _one_march(deeper, names, progress)


def _rates(problem: Problem, names, infinite_depth: bool, rtol: float, progress: bool | None) -> Iterator[Prediction]:
    for k in range(MOST_RATES):
        finer, stride = problem.refined(2**k), 2**k
        if k >= FEWEST_RATES and memory_of(finer) > memory_budget():
            return
        if infinite_depth:
            level = _limit(_depths(finer, names, progress), FEWEST_DEPTHS, SHARE * rtol)
        else:
            level = _one_march(finer, names, progress)
        stop = None if level.diverged_at is None else -(-level.diverged_at // stride)
        coarse = {
            name: tuple(slice(None, None, stride if "step" in dim else 1) for dim in DIMS[name])
            for name in level.arrays
        }
        yield replace(
            level, arrays={name: value[coarse[name]] for name, value in level.arrays.items()}, diverged_at=stop
        )


def _limit(levels: Iterator[Prediction], fewest: int, rtol: float, n_spare: int = 0) -> Prediction:
    """Take as many levels as ``rtol`` needs and there are.

    Levels down to one that diverges are passed over while it is among the first ``n_spare``; a later one ends it.
    """
    taken: list[Prediction] = []
    diverged: Prediction | None = None
    for k, level in enumerate(levels):
        if level.diverged_at is not None:
            taken, diverged = [], level
            if k >= n_spare:
                return level
            continue
        taken.append(level)
        if len(taken) >= fewest and (limit := in_the_limit(taken)).error <= rtol:
            return limit
    return diverged if diverged is not None and len(taken) < fewest else in_the_limit(taken)


def in_the_limit(levels: list[Prediction]) -> Prediction:
    """The limit of predictions whose small parameter halves from one to the next.

    Errors of losses are relative to the test loss of the same step, those of other fields to the largest entry.
    """
    arrays, changes = {}, []
    for name in levels[0].arrays:
        arrays[name], change = extrapolation.extrapolate([level.arrays[name] for level in levels])
        if name in CURVES:
            scale = np.max(np.abs(arrays["test_loss"]), axis=1, keepdims=True)
        else:
            scale = np.maximum(np.max(np.abs(arrays[name])), np.finfo(float).tiny)
        changes.append(float(np.max(change / scale)))
    error = float(np.max(changes) + np.max([level.error for level in levels]))  # NaN stays
    residual = float(np.max([level.residual for level in levels]))
    return Prediction(arrays, residual, error, n_levels=len(levels))
