"""The march in batches of paths, with as many as the tolerance asks for; in exact coordinates where networks are linear."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from widefield.answer.boundary import memory_budget
from widefield.answer.progress import LONG
from widefield.theories.dynamics import memory
from widefield.theories.dynamics.curves import (
    N_BATCHES,
    Estimate,
    TrainingCurves,
    divergence,
    over_batches,
    relative_error,
    widened,
)
from widefield.theories.dynamics.march import kernels, responses, together
from widefield.theories.dynamics.march.batch import Arrays, Batch, TooFewPaths, march
from widefield.theories.dynamics.march.step import gradient_shares
from widefield.theories.dynamics.memory import DRAWN, FIRST_PATHS
from widefield.theories.dynamics.problem import LEFT_OUT, Problem
from widefield.theories.dynamics.request import AVERAGED, Request, compiling

MOST_PATHS = 2**17
N_DRAWN = 1024  # samples that are drawn where linear networks have coordinates
MOST_KICKED = 2**14  # paths that are taken unasked to resolve kinks
SAMPLE_SECONDS, TEST_SECONDS = 2.5e-7, 2.5e-8  # of a value of a field of a training or test input, on one core
Made = TypeVar("Made")
UNRESOLVED = "responses are smoothed: in some steps neurons move less than kicks at the kinks resolve; "


def covers(problem: Problem, request: Request) -> bool:
    """Everything but the limits: the full theory, and the one without responses, Eq. (dynamics.27)."""
    return request.method in ("full", "independent") and not problem.training.flow


def solve(problem: Problem, request: Request) -> TrainingCurves:
    """Once for linear networks, otherwise in batches, with as many paths as the tolerance asks for."""
    if problem.exact:
        return gather(problem, all_batches(problem, request, None), request, None)
    if request.rtol is not None:
        return _to_tolerance(problem, request, request.rtol)
    if request.paths is not None:
        return with_note(sampled(problem, request, request.paths, fixed=True))
    curves = sampled(problem, request, FIRST_PATHS, fixed=False)
    needed = 1.1 * curves.paths_needed
    if (curves.n_paths or 0) < needed <= MOST_KICKED:  # for kicks at kinks
        curves = sampled(problem, request, 2 ** int(np.ceil(np.log2(needed))), fixed=False)
    while (
        curves.failure is None and curves.error > curves.rtol and may_have(problem, request, 4 * (curves.n_paths or 0))
    ):
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
    return with_enough_paths(problem, request, one, n_paths, fixed)


def may_have(problem: Problem, request: Request, n_paths: int) -> bool:
    """Whether so many paths are allowed, and fit in memory."""
    return n_paths <= MOST_PATHS and memory.needed(problem, request, n_paths) <= memory_budget()


def with_enough_paths(
    problem: Problem, request: Request, make: Callable[[int], Made], n_paths: int, fixed: bool
) -> Made:
    """``make(n_paths)``; twice the paths where directions need them, unless their number is ``fixed``."""
    while True:
        try:
            return make(n_paths)
        except TooFewPaths:
            if fixed or not may_have(problem, request, 2 * n_paths):
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
        last = not may_have(problem, request, 16 * before.n_paths)
        if last or (error <= rtol and not curves.paths_needed):
            return with_note(curves)
        before = curves


def seconds(problem: Problem, request: Request, n_paths: int | None) -> float:
    """What all batches take on one core, without compilation, to a factor of three where it is long."""
    task, depth, n_batches = problem.task, problem.network.depth, 1 if n_paths is None else N_BATCHES
    n_values = max(n_paths or 0, 500) * depth * len(problem.rates)
    followed = 1e-10 * request.responses * responses.n_products(problem, n_paths or 1)
    each = n_values * (SAMPLE_SECONDS * task.n_samples + TEST_SECONDS * task.n_test) + followed
    return 2e-10 * (depth * task.n_samples) ** 3 + n_batches * each


def all_batches(problem: Problem, request: Request, n_paths: int | None) -> list[Batch]:
    """Independent batches of paths, reduced to what is kept of them; a single one of coordinates, where there are no paths."""
    n, n_rows = problem.task.n_samples, len(problem.rates)
    n_batches, title = (1, "coordinates") if n_paths is None else (N_BATCHES, f"{N_BATCHES} × {n_paths} paths")
    rows = range(n_rows) if request.responses else request.at  # responses at one step are made of all before it
    parts = responses.n_passes(problem) * request.responses + 1
    work = compiling(problem.shape, n_paths, n, problem.task.n_test > 0) + seconds(problem, request, n_paths)
    title = f"{title}, about {work:.0f} s" if work > LONG else title
    with request.bar(title, n_batches * parts * n_rows, work) as advance:
        if n_paths is not None and _together(problem, request, n_paths):
            marched = iter(together.march(problem, n_paths, request.seed, n_batches, request.ntk, rows, advance))
        else:
            alone = partial(march, problem, n_paths or 0, request.seed, ntk=request.ntk, at=rows, advance=advance)
            marched = (alone(b) for b in range(n_batches))
        return [_observed(problem, one, request, len(rows), advance) for one in marched]


def _together(problem: Problem, request: Request, n_paths: int) -> bool:
    """Whether all batches are marched at once: where several devices share them, since one gains nothing, and they fit."""
    return len(together.devices(N_BATCHES)) > 1 and (
        N_BATCHES * memory.needed(problem, request, n_paths) <= memory_budget()
    )


def _observed(problem: Problem, batch: Batch, request: Request, n_rows: int, advance) -> Batch:
    """What the fields need of one batch: kernels, cosines with that of the labels, samples and responses."""
    at, fields = request.at, request.fields
    averages: Arrays = {}
    if "alignment" in fields:
        averages["alignment"] = batch.alignment
    if "ntk_alignment" in fields and batch.ntk is not None:
        averages["ntk_alignment"] = kernels.tangent_alignment(problem.labels, batch.ntk)
    if len(batch.samples) < n_rows:
        return replace(batch, samples={}, averages=averages)
    chosen, by_layer = {t: batch.samples[t] for t in at}, problem.by_layer
    if "feature_kernel" in fields:
        averages["feature_kernel"] = kernels.features(chosen, batch.weight, by_layer)
    if "gradient_kernel" in fields:
        share = np.sqrt(gradient_shares(problem.physics))
        shares = share[:, None] ** 2 if by_layer else np.outer(share, share)
        kernel = kernels.gradients(chosen, batch.weight, by_layer)
        averages["gradient_kernel"] = kernel * shares[:, :, None, None, None, None]
    draws = {name: kernels.stack(chosen, name) for name in DRAWN if name in fields}
    if problem.exact:  # h and z are made of the same noises
        noise = lambda size: np.random.default_rng(request.seed).standard_normal((size, N_DRAWN))  # noqa: E731
        draws = {name: value @ noise(value.shape[-1]) for name, value in draws.items()}
    batch = replace(batch, averages=averages, draws=draws)
    if not request.responses:
        return replace(batch, samples={})
    values, changes, needed = responses.responses(problem, batch, at, advance)

    def pick(pair: responses.Pair | None) -> Arrays:
        named = zip(responses.NAMES, pair or (), strict=False)
        return {name: v[:, :, :, list(at)][:, :, :, :, list(at)] for name, v in named if name in fields}

    averages |= pick(values)
    return replace(batch, samples={}, averages=averages, changes=pick(changes), paths_needed=needed)


def gather(problem: Problem, batches: list[Batch], request: Request, n_paths: int | None) -> TrainingCurves:
    """Means over batches, and what the certificate says of them."""
    unopened = LEFT_OUT * problem.tolerances(n_paths or 1)[0]
    curve = lambda rows: widened(over_batches(rows), unopened, len(problem.rates))  # noqa: E731
    prediction = curve([one.prediction for one in batches])
    averages, draws = _gathered(batches)
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
        diagnostics={
            "solver": "coordinates" if problem.exact else "paths", "directions": directions,
            "predicted_seconds": float(f"{seconds(problem, request, n_paths):.2g}"),
        }, **divergence(stop),
    )  # fmt: skip
    if n_paths is None or needed <= n_paths:
        return curves
    raised = f"raise `paths` to {needed:.0f} or " if np.isfinite(needed) else ""
    note = f"{UNRESOLVED}{raised}ask for other steps with `at`"
    return replace(curves, paths_needed=needed, notes=(*curves.notes, note))


def _gathered(batches: list[Batch]) -> tuple[dict[str, Estimate], Arrays]:
    """Means over batches, and all their samples together; what a batch lacks is left out."""
    common = lambda attribute: set.intersection(*(set(getattr(one, attribute)) for one in batches))  # noqa: E731
    averaged, changed, drawn = (common(name) for name in ("averages", "changes", "draws"))
    averages = {name: over_batches([one.averages[name] for one in batches]) for name in AVERAGED if name in averaged}
    for name in changed:  # half of what extrapolation changed is added to the error
        own = averages[name].stderr
        error = np.zeros(()) if own is None else own
        change = over_batches([one.changes[name] for one in batches]).value / 2
        averages[name] = Estimate(averages[name].value, np.hypot(error, change))
    draws = {name: np.concatenate([one.draws[name] for one in batches], axis=-1) for name in DRAWN if name in drawn}
    return averages, draws
