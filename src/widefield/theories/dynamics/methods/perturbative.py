r"""Leading order in the squared richness, Eq. (dynamics.28): :math:`f_0 + \gamma_0^2f_2` of outputs, and of every kernel likewise.

Deep linear networks have closed forms (`perturbative_linear`); all others, recurrent ones among them, are measured.

Method: all quantities are even in the richness. The march is run at small ones, with the same paths at each, and the
polynomial in their squares through the results gives both orders. Averages over finitely many paths are not even, which
would leave an error of 1/richness: those are run with either sign, as if all backward noises had changed theirs. Outputs
and the tangent kernel take the order zero from the static limit, which is exact. Error: the standard error over batches, and
what the outputs change by without the largest richness.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from widefield.theories.dynamics.curves import Estimate, TrainingCurves, over_batches, relative_error, size
from widefield.theories.dynamics.march.batch import Batch
from widefield.theories.dynamics.methods import lazy, paths
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.request import AVERAGED, FIRST_PATHS, Request

# Richnesses, times the size of the labels, at which the orders are measured: the expansion is in this product. Smaller ones
# would lose digits to the directions that the march drops.
EXACT, SAMPLED = (0.05, 0.1, 0.15, 0.2, 0.25), (0.05, -0.05, 0.1, -0.1, 0.15, -0.15)


def covers(problem: Problem, request: Request) -> bool:
    """Any network."""
    return request.method == "perturbative"


def solve(problem: Problem, request: Request) -> TrainingCurves:
    """Orders measured at small richness; four times the paths, unless their number is chosen and no tolerance is."""
    curves = _orders(problem, request)
    adaptive = request.rtol is not None or request.paths is None
    while adaptive and curves.failure is None and curves.error > curves.rtol and curves.n_paths is not None:
        if 4 * curves.n_paths > paths.MOST_PATHS:
            break
        curves = _orders(problem, replace(request, paths=4 * curves.n_paths))
    return paths.with_note(curves)


def _orders(problem: Problem, request: Request) -> TrainingCurves:
    """With the paths that are asked for, or those that directions need."""
    scale = max(1.0, float(np.linalg.norm(problem.labels)))
    richnesses = np.array([point / scale for point in (EXACT if problem.exact else SAMPLED)])
    at = [replace(problem, richness=float(richness)) for richness in richnesses]
    n_paths, levels = None, [[paths.one_batch(each, request, 0, 1)] for each in at if problem.exact]
    if not problem.exact:
        every = lambda n: (n, [paths.all_batches(each, request, n) for each in at])  # noqa: E731
        n_paths, levels = paths.with_enough_paths(every, request.paths or FIRST_PATHS, request.paths is not None)
    static = lazy.solve(problem, replace(request, fields=(), at=()))
    marched = [paths.gather(problem, level, request, n_paths) for level in levels]
    failed = [one for one in (static, *marched) if one.failure is not None or not one.checks["residual"].met]
    if failed:
        return failed[0]
    zeroth, second = _weights(richnesses)

    def to_second_order(get: Callable[[Batch], np.ndarray], known: Estimate | None = None) -> Estimate:
        values = [np.stack([get(one) for one in same]) for same in zip(*levels, strict=True)]
        first = [np.tensordot(zeroth, v, axes=1) if known is None else known.value for v in values]
        orders = zip(first, values, strict=True)
        return over_batches([a + problem.richness**2 * np.tensordot(second, v, axes=1) for a, v in orders])

    asked = [name for name in AVERAGED if name in request.fields]
    kernels = {name: to_second_order(lambda one, name=name: one.averages[name]) for name in asked}  # type: ignore[misc]
    prediction = to_second_order(lambda one: one.prediction, static.prediction)
    fewer = np.abs(richnesses) < np.abs(richnesses).max()
    values = [one.prediction.value for one in marched]
    kept = [value for value, keep in zip(values, fewer, strict=True) if keep]
    change = np.tensordot(second, values, axes=1) - np.tensordot(_weights(richnesses[fewer])[1], kept, axes=1)
    cut = problem.richness**2 * np.abs(change)  # what outputs change by without the largest richness
    sampled = relative_error(prediction, problem.readouts, cut, problem.least_output)
    if request.ntk:
        kernels["ntk"] = to_second_order(lambda one: np.asarray(one.ntk), static.kernels["ntk"])
    return replace(
        marched[-1], prediction=prediction, loss=to_second_order(lambda one: one.loss, static.loss), draws={}, kernels=kernels,
        error=float(np.max([static.error, sampled])), correction=correction(problem, static, prediction, kernels),
    )  # fmt: skip


def correction(problem: Problem, static: TrainingCurves, prediction: Estimate, kernels: dict[str, Estimate]) -> float:
    """The size of the term of order γ0² relative to the static one: outputs of readouts, and the tangent kernel if asked for."""
    read = list(problem.readouts)
    first = static.prediction.value[:, read]
    shares = [size(prediction.value[:, read] - first, 0.0) / size(first, problem.least_output)]
    if "ntk" in kernels:
        tangent = static.kernels["ntk"].value
        shares.append(size(kernels["ntk"].value - tangent, 0.0) / size(tangent, np.finfo(float).tiny))
    return float(np.max(shares))


def _weights(richnesses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What gives the orders 0 and 2 of the even polynomial through values at the richnesses."""
    squares = (richnesses / richnesses.max()) ** 2
    inverse = np.linalg.pinv(np.vander(squares, len(set(squares)), increasing=True))
    return inverse[0], inverse[1] / richnesses.max() ** 2
