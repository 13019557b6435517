"""The march in batches of paths, with as many as the tolerance asks for; in exact coordinates where networks are linear."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from widefield.answer.progress import bar
from widefield.theories.dynamics.curves import TrainingCurves, divergence, over_batches, relative_error, widened
from widefield.theories.dynamics.march import observables
from widefield.theories.dynamics.march.batch import Batch, TooFewPaths, march
from widefield.theories.dynamics.problem import LEFT_OUT, Problem
from widefield.theories.dynamics.request import FIRST_PATHS, Request

N_BATCHES = 8
MOST_PATHS = 2**17
MOST_KICKED = 2**14  # paths that are taken unasked to resolve kinks
Made = TypeVar("Made")
UNRESOLVED = "responses are smoothed: in some steps neurons move less than kicks at the kinks resolve; "


def covers(problem: Problem, request: Request) -> bool:
    """Everything but the limits: the full theory, and the one without responses, Eq. (dynamics.27)."""
    return request.method in ("full", "independent") and not problem.training.flow


def solve(problem: Problem, request: Request) -> TrainingCurves:
    """Once for linear networks, otherwise in batches, with as many paths as the tolerance asks for."""
    if problem.exact:
        return gather(problem, [one_batch(problem, request, 0, 1)], request, None)
    if request.rtol is not None:
        return _to_tolerance(problem, request, request.rtol)
    if request.paths is not None:
        return with_note(sampled(problem, request, request.paths, fixed=True))
    curves = sampled(problem, request, FIRST_PATHS, fixed=False)
    needed = 1.1 * curves.paths_needed
    if (curves.n_paths or 0) < needed <= MOST_KICKED:  # for kicks at kinks
        curves = sampled(problem, request, 2 ** int(np.ceil(np.log2(needed))), fixed=False)
    while curves.failure is None and curves.error > curves.rtol and 4 * (curves.n_paths or 0) <= MOST_PATHS:
        curves = sampled(problem, request, 4 * (curves.n_paths or 0), fixed=False)
    return with_note(curves)


def with_note(curves: TrainingCurves) -> TrainingCurves:
    """What to do about outputs that are not as good as was asked."""
    if curves.failure is not None or curves.error <= curves.rtol:
        return curves
    advice = "raise `paths` or `rtol`" if 4 * (curves.n_paths or 0) <= MOST_PATHS else "raise `rtol`"
    note = f"outputs are good to {curves.error:.1e}, not to rtol={curves.rtol:g}, with 8 × {curves.n_paths} paths: {advice}"
    return replace(curves, notes=(*curves.notes, note))


def sampled(problem: Problem, request: Request, n_paths: int, *, fixed: bool) -> TrainingCurves:
    """Means over batches of ``n_paths``, or more unless their number is ``fixed``."""
    one = lambda n: gather(problem, all_batches(problem, request, n), request, n)  # noqa: E731
    return with_enough_paths(one, n_paths, fixed)


def with_enough_paths(make: Callable[[int], Made], n_paths: int, fixed: bool) -> Made:
    """``make(n_paths)``; twice the paths where directions need them, unless their number is ``fixed``."""
    while True:
        try:
            return make(n_paths)
        except TooFewPaths:
            if fixed or 2 * n_paths > MOST_PATHS:
                raise
        n_paths *= 2


def _to_tolerance(problem: Problem, request: Request, rtol: float) -> TrainingCurves:
    """Four times the paths until standard error and bias of the outputs are within ``rtol`` together.

    The bias falls as 1/paths, so that what is left of it is a third of the last change.
    """
    problem = replace(problem, left_out=min(problem.left_out, rtol / (10 * LEFT_OUT)))
    coarse = 2 * max((request.paths or FIRST_PATHS) // 8, 32)
    before = sampled(problem, replace(request, fields=(), at=()), coarse, fixed=False)
    while True:
        assert before.n_paths is not None
        curves = sampled(problem, request, 4 * before.n_paths, fixed=False)
        if curves.failure is not None or not curves.checks["residual"].met:
            return curves
        bias = np.abs(curves.prediction.value - before.prediction.value) / 3
        error = relative_error(curves.prediction, problem.readouts, bias, problem.least_output)
        curves = replace(curves, error=error)
        last = 16 * before.n_paths > MOST_PATHS
        if last or (error <= rtol and not curves.paths_needed):
            return with_note(curves)
        before = curves


def all_batches(problem: Problem, request: Request, n_paths: int) -> list[Batch]:
    """Independent batches of paths."""
    return [one_batch(problem, request, n_paths, b) for b in range(N_BATCHES)]


def one_batch(problem: Problem, request: Request, n_paths: int, batch: int) -> Batch:
    """One batch reduced to what is kept of it."""
    n_states, n_samples, _ = problem.physics.inputs.shape
    work = 3e-7 * max(n_paths, 500) * n_states * n_samples
    at, n_rows = observables.rows_needed(problem, request.at, request.fields), len(problem.rates)
    with bar(f"batch {batch + 1}", n_rows, request.progress, work * n_rows) as advance:
        one = march(problem, n_paths, request.seed, batch, ntk=request.ntk, at=at, advance=advance)
    return observables.observe(problem, one, request.at, request.fields, request.seed, request.progress)


def gather(problem: Problem, batches: list[Batch], request: Request, n_paths: int | None) -> TrainingCurves:
    """Means over batches, and what the certificate says of them."""
    unopened = LEFT_OUT * problem.tolerances(n_paths or 1)[0]
    curve = lambda rows: widened(over_batches(rows), unopened, len(problem.rates))  # noqa: E731
    prediction = curve([one.prediction for one in batches])
    averages, draws = observables.gathered(batches)
    directions = [max(counts) for counts in zip(*(one.n_directions for one in batches), strict=True)]
    needed = max(one.paths_needed for one in batches)
    stop = min((one.diverged_at for one in batches if one.diverged_at is not None), default=None)
    error = unopened if n_paths is None else relative_error(prediction, problem.readouts, least=problem.least_output)
    kernels = {name: widened(estimate, unopened) for name, estimate in averages.items()}
    if request.ntk:
        kernels["ntk"] = curve([one.ntk for one in batches if one.ntk is not None])
    curves = TrainingCurves(
        prediction, curve([one.loss for one in batches]), kernels, draws,
        residual=float(np.max([one.loss_of_orthogonality for one in batches])), error=error,
        rtol=request.limit(n_paths is not None), n_paths=n_paths,
        diagnostics={"solver": "coordinates" if problem.exact else "paths", "directions": directions}, **divergence(stop),
    )  # fmt: skip
    if n_paths is None or needed <= n_paths:
        return curves
    raised = f"raise `paths` to {needed:.0f} or " if np.isfinite(needed) else ""
    note = f"{UNRESOLVED}{raised}ask for other steps with `at`"
    return replace(curves, paths_needed=needed, notes=(*curves.notes, note))
