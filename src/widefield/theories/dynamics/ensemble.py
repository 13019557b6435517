"""Batches of paths, and the limits and approximations that are made of several runs."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from widefield.progress import bar
from widefield.solution import Status
from widefield.solvers import richardson
from widefield.theories.dynamics import observables
from widefield.theories.dynamics.answer import Answer, Estimate, over_batches
from widefield.theories.dynamics.lazy import lazy
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.run import DIVERGED, Run, TooFewPaths, run

N_BATCHES = 8
FIRST_PATHS, MOST_PATHS = 1024, 2**17
NOTED = 0.05  # relative error of the outputs above which the certificate has a note
ORTHONORMAL = 1e-6  # directions further from an orthonormal set than this make the result inaccurate
FLOW_LEVELS = 3


@dataclass(frozen=True)
class Sampling:
    """How many paths, and which."""

    paths: int | None
    rtol: float | None
    seed: int
    progress: bool | None


@dataclass(frozen=True)
class Options:
    """How to sample, and what to keep."""

    sampling: Sampling
    ntk: bool
    at: tuple[int, ...]
    wanted: tuple[str, ...]


def full(problem: Problem, options: Options) -> Answer:
    """The march: once for linear networks, otherwise in batches, with as many paths as ``rtol`` asks for."""
    if problem.exact:
        return gather(problem, [one_batch(problem, options, 0, 1)], options, None)
    if options.sampling.rtol is not None:
        return _to_tolerance(problem, options, options.sampling.rtol)
    found = _sampled(problem, options, options.sampling.paths or FIRST_PATHS, options.sampling.paths is not None)
    if found.error <= NOTED:
        return found
    note = f"standard errors of the outputs reach {found.error:.0%} of their size: raise `paths` or give `rtol`"
    return replace(found, notes=(*found.notes, note))


def _sampled(problem: Problem, options: Options, n_paths: int, fixed: bool) -> Answer:
    """Means over batches; twice the paths where directions need them, unless their number is ``fixed``."""
    while True:
        try:
            return gather(problem, all_batches(problem, options, n_paths), options, n_paths)
        except TooFewPaths:
            if fixed or 2 * n_paths > MOST_PATHS:
                raise
        n_paths *= 2


def _to_tolerance(problem: Problem, options: Options, rtol: float) -> Answer:
    """Four times the paths until standard error and bias of the outputs are within ``rtol`` together.

    The bias falls as 1/paths, so that what is left of it is a third of the last change.
    """
    problem = replace(problem, left_out=min(problem.left_out, rtol**2 / 10))
    coarse = max((options.sampling.paths or FIRST_PATHS) // 4, 64)
    before = _sampled(problem, replace(options, ntk=False, at=(), wanted=()), coarse, False)
    while True:
        assert before.n_paths is not None
        found = _sampled(problem, options, 4 * before.n_paths, False)
        if found.status is not Status.success:
            return found
        bias = np.abs(found.prediction.value - before.prediction.value) / 3
        found = replace(found, error=relative_error(found.prediction, problem.readouts, bias))
        if found.error <= rtol:
            return found
        if 16 * before.n_paths > MOST_PATHS:
            note = f"outputs are good to {found.error:.1e}, not to rtol={rtol:g}, with the most paths there are: raise `rtol`"
            return replace(found, status=Status.not_converged, notes=(*found.notes, note))
        before = found


def unfinished(problem: Problem, why: TooFewPaths, n_paths: int | None) -> Answer:
    """No numbers: at some step more directions opened than the paths can tell apart."""
    n_rows, n_states, n_samples = len(problem.rates), *problem.physics.inputs.shape[:2]
    nothing = Estimate(np.full((n_rows, n_states, n_samples, problem.shape.n_outputs), np.nan), None)
    return Answer(
        nothing, Estimate(np.full(n_rows, np.nan), None), status=Status.not_converged, error=np.inf, n_paths=n_paths,
        notes=(f"stopped at step {why.step}: {why}",),
    )  # fmt: skip


def all_batches(problem: Problem, options: Options, n_paths: int) -> list[dict[str, Any]]:
    """Independent batches of paths."""
    return [one_batch(problem, options, n_paths, b) for b in range(N_BATCHES)]


def one_batch(problem: Problem, options: Options, n_paths: int, batch: int) -> dict[str, Any]:
    """One run reduced to what is kept of it."""
    shape = problem.shape
    work = 1e-9 * max(n_paths, 500) * problem.physics.inputs.shape[0] * problem.physics.inputs.shape[1] * 300
    with bar(f"batch {batch + 1}", len(problem.rates), options.sampling.progress, work * len(problem.rates)) as advance:
        one = run(
            problem, shape, n_paths, options.sampling.seed, batch, ntk=options.ntk,
            at=observables.rows_needed(problem, options.at, options.wanted), advance=advance,
        )  # fmt: skip
    seen = observables.observe(
        problem, one, options.at, options.wanted, options.sampling.seed, options.sampling.progress
    )
    return {"run": replace(one, samples={}), "seen": seen}


def gather(problem: Problem, batches: list[dict[str, Any]], options: Options, n_paths: int | None) -> Answer:
    """Means over batches, and what the certificate says of them."""
    runs: list[Run] = [batch["run"] for batch in batches]
    prediction = over_batches([one.prediction for one in runs])
    averages, draws = observables.gathered([batch["seen"] for batch in batches])
    stops = [one.diverged_at for one in runs if one.diverged_at is not None]
    lost = max(one.loss_of_orthogonality for one in runs)
    status = Status.diverged if stops else Status.success if lost <= ORTHONORMAL else Status.inaccurate
    diagnostics: dict[str, Any] = {
        "directions": [max(counts) for counts in zip(*(r.n_directions for r in runs), strict=True)]
    }
    notes: tuple[str, ...] = ()
    if stops:
        diagnostics["diverged_at_step"] = min(stops)
        notes = (f"the loss diverges at step {min(stops)}; later entries are infinite",)
    return Answer(
        prediction, over_batches([one.loss for one in runs]),
        over_batches([one.ntk for one in runs if one.ntk is not None]) if options.ntk else None,
        averages, draws, status, lost, relative_error(prediction, problem.readouts), n_paths, notes,
        diagnostics,
    )  # fmt: skip


def relative_error(prediction: Estimate, readouts: tuple[int, ...] | None = None, bias: Any = 0.0) -> float:
    """The largest standard error of an output, with its ``bias``, relative to the root mean square of outputs at the end.

    Outputs are those of the ``readouts``, or of all states.
    """
    if prediction.stderr is None or not np.isfinite(prediction.value).all():
        return 0.0
    states = slice(None) if readouts is None else list(readouts)
    size = np.sqrt(np.mean(prediction.value[-1, states] ** 2))
    return float((prediction.stderr + bias)[:, states].max() / max(size, 1e-300))


def static(problem: Problem) -> Answer:
    """The lazy limit as an answer."""
    curves, values, kernel = lazy(problem)
    shape = problem.shape
    every = np.zeros((len(curves), problem.network.depth, *curves.shape[2:]))
    every[:, list(shape.readouts)] = curves
    bad = ~(values <= DIVERGED * max(values[0], 1.0))
    facts: dict[str, Any] = {}
    if bad.any():
        step = int(np.argmax(bad))
        every[step:], values[step:] = np.inf, np.inf
        notes = (f"the loss diverges at step {step}; later entries are infinite",)
        facts = {"status": Status.diverged, "diagnostics": {"diverged_at_step": step}, "notes": notes}
    outputs = np.eye(shape.n_outputs)
    spread = np.einsum("cdpq,oz->cozdpq", kernel, outputs).transpose(0, 1, 3, 2, 4, 5)
    n_channels = len(shape.readouts) * shape.n_outputs
    ntk = spread.reshape(n_channels, n_channels, *kernel.shape[2:])
    return Answer(
        Estimate(every, None), Estimate(values, None), Estimate(np.broadcast_to(ntk, (len(curves), *ntk.shape)), None),
        residual=0.0, **facts,
    )  # fmt: skip


def flow(problem: Problem, options: Options) -> Answer:
    """Small steps at fixed time: rates η, η/2, η/4 with the same paths, extrapolated; the error is the last change."""
    lean = replace(options, at=(), wanted=())
    answers: list[Answer] = []
    for k in range(FLOW_LEVELS):
        finer = replace(problem, rates=np.append(np.repeat(problem.rates[:-1] / 2**k, 2**k), problem.rates[-1] / 2**k))
        answers.append(full(finer, lean))
        lean = replace(lean, sampling=replace(lean.sampling, paths=answers[0].n_paths, rtol=None))
    failed = [answer for answer in answers if answer.status is not Status.success]
    if failed:
        return failed[0]
    prediction, change = _limit([answer.prediction for answer in answers])
    loss, _ = _limit([answer.loss for answer in answers])
    ntk = [answer.ntk for answer in answers if answer.ntk is not None]
    return replace(
        answers[-1], prediction=prediction, loss=loss, ntk=_limit(ntk)[0] if ntk else None,
        error=max(change, answers[-1].error),
    )  # fmt: skip


def _limit(levels: list[Estimate]) -> tuple[Estimate, float]:
    """Value at zero rate of curves on grids that halve, and its relative change by the last one."""
    limit, change = richardson.extrapolate([level.value[:: 2**k] for k, level in enumerate(levels)])
    stderr = levels[-1].stderr
    size = max(float(np.sqrt(np.mean(limit[-1] ** 2))), 1e-300)
    found = Estimate(limit, None if stderr is None else stderr[:: 2 ** (len(levels) - 1)])
    return found, float(change.max()) / size
