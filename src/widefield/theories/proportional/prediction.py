r"""What one march predicts, and the limits that several approach: gradient flow (small rates) and infinite depth.

The theory of a discrete step differs from gradient flow by a series in the rate, that of a residual network of finite
depth from its limit at fixed :math:`\beta\sqrt L` by one in 1/L. Each refinement halves the parameter and one more power
is removed (Richardson); the error is what the last removal changed. Refinements go on until the error is small enough.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from widefield.solvers import extrapolation
from widefield.theories.proportional.problem import Problem
from widefield.theories.proportional.training_curves import CURVES, DIMS, TrainingCurves, fits, train

FEWEST_RATES, MOST_RATES = 3, 6  # η, η/2, η/4 … η/32
FEWEST_DEPTHS, MOST_DEPTHS = 4, 6  # 4, 8, 16, 32 … 128
FIRST_DEPTH = 4
SHARE = 0.25  # of the allowed error for the depth, where the flow is taken too


def predict(
    problem: Problem, names: tuple[str, ...], *, infinite_depth: bool, rtol: float, progress: bool | None = None
) -> TrainingCurves:
    """The arrays ``names``, and the losses in any case, of one march or in the limits that are asked; depth inside flow."""

    def at_one_rate(problem: Problem, rtol: float) -> TrainingCurves:
        if infinite_depth:
            return _limit((train(p, progress, names) for p in _depths(problem)), FEWEST_DEPTHS, rtol)
        return train(problem, progress, names)

    def at_rates() -> Iterator[TrainingCurves]:
        for k in range(MOST_RATES):
            finer, stride = problem.refined(2**k), 2**k
            if k >= FEWEST_RATES and not fits(finer, names):
                return
            level = at_one_rate(finer, SHARE * rtol)
            stop = None if level.diverged_at is None else -(-level.diverged_at // stride)
            every = lambda dims, stride=stride: tuple(slice(None, None, stride if "step" in d else 1) for d in dims)  # noqa: E731
            yield replace(level, arrays={n: v[every(DIMS[n])] for n, v in level.arrays.items()}, diverged_at=stop)

    if problem.training.flow:
        return _limit(at_rates(), FEWEST_RATES, rtol, n_spare=MOST_RATES - FEWEST_RATES)
    return at_one_rate(problem, rtol)


def _depths(problem: Problem) -> Iterator[Problem]:
    for k in range(MOST_DEPTHS):
        deeper = problem.deeper(FIRST_DEPTH * 2**k)
        if k >= FEWEST_DEPTHS and not fits(deeper):
            return
        yield deeper


def _limit(levels: Iterator[TrainingCurves], fewest: int, rtol: float, n_spare: int = 0) -> TrainingCurves:
    """Take as many levels as ``rtol`` needs and there are.

    Levels down to one that diverges are passed over while it is among the first ``n_spare``; a later one ends it.
    """
    taken: list[TrainingCurves] = []
    diverged: TrainingCurves | None = None
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


def in_the_limit(levels: list[TrainingCurves]) -> TrainingCurves:
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
    return TrainingCurves(arrays, residual, error, n_marches=len(levels))
