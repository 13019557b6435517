r"""Limits that are reached by extrapolation: gradient flow (small rates) and infinite depth.

The theory of a discrete step differs from gradient flow by a series in the rate, that of a residual network of finite
depth from its limit at fixed :math:`\beta\sqrt L` by one in 1/L. Each refinement halves the parameter and one more power
is removed (Richardson); the error is what the last removal changed.
"""

import numpy as np

from widefield.answer.certificate import Status
from widefield.solvers import extrapolation
from widefield.theories.proportional.problem import Problem
from widefield.theories.proportional.run import CURVES, Answer, run

FLOW_LEVELS = 3  # rates η, η/2, η/4
DEPTHS = (4, 8, 16, 32)


def extrapolate(problem: Problem, flow: bool, deep: bool, progress: bool | None = None) -> Answer:
    """Curves in the limit; the two limits may be taken together, depth inside."""
    if flow:
        factors = [2**k for k in range(FLOW_LEVELS)]
        return in_the_limit([_every(_depth(problem.refined(f), deep, progress), f) for f in factors])
    return _depth(problem, deep, progress)


def _depth(problem: Problem, deep: bool, progress: bool | None) -> Answer:
    if not deep:
        return run(problem, progress)
    return in_the_limit([run(problem.deeper(depth), progress) for depth in DEPTHS])


def _every(answer: Answer, stride: int) -> Answer:
    """The rows at the times of the coarsest run."""
    curves = {name: value[::stride] for name, value in answer.curves.items()}
    return Answer(
        curves,
        answer.kernel[::stride],
        None,
        answer.status,
        answer.residual,
        answer.error,
        answer.notes,
        answer.diagnostics,
    )


def in_the_limit(answers: list[Answer]) -> Answer:
    """The limit of answers whose small parameter halves from one to the next."""
    failed = [answer for answer in answers if answer.status is not Status.success]
    if failed:
        return failed[0]
    curves, changes = {}, [max(answer.error for answer in answers)]
    for name in CURVES:
        values = [answer.curves[name] for answer in answers]
        curves[name], change = extrapolation.extrapolate(values)
        changes.append(float(np.max(change / np.max(np.abs(curves["test_loss"]), axis=1, keepdims=True))))
    kernel, _ = extrapolation.extrapolate([answer.kernel for answer in answers])
    worst = max(answer.residual or 0.0 for answer in answers)
    return Answer(curves, kernel, None, Status.success, worst, max(changes))
