"""Batches of paths, and the limits and approximations that are made of several runs."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from widefield.answer.certificate import Status
from widefield.answer.progress import bar
from widefield.solvers import extrapolation
from widefield.theories.dynamics import observables
from widefield.theories.dynamics.answer import Answer, Estimate, over_batches, widened
from widefield.theories.dynamics.lazy import lazy
from widefield.theories.dynamics.problem import LEFT_OUT, Problem
from widefield.theories.dynamics.run import DIVERGED, Run, TooFewPaths, run

N_BATCHES = 8
FIRST_PATHS, MOST_PATHS = 1024, 2**17
MOST_KICKED = 2**14  # paths that are taken unasked to resolve kinks
NOTED = 0.05  # relative error of the outputs above which the certificate has a note
ORTHONORMAL = 1e-6  # directions further from an orthonormal set than this make the result inaccurate
FLOW_NOTE = f"the error of the outputs is above {NOTED:.0%} of their size: lower the rate or give `rtol`"
UNRESOLVED = "responses are smoothed: in some steps neurons move less than kicks at the kinks resolve; "
FLOW_LEVELS, MOST_LEVELS = 3, 8  # halvings of the rate on the way to gradient flow: usual, and at most


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
    fixed = options.sampling.paths is not None
    found = _sampled(problem, options, options.sampling.paths or FIRST_PATHS, fixed)
    needed = found.diagnostics.get(observables.NEEDED, 0.0)
    if not fixed and (found.n_paths or 0) < 1.1 * needed <= MOST_KICKED:
        found = _sampled(problem, options, 2 ** int(np.ceil(np.log2(1.1 * needed))), fixed)
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
    problem = replace(problem, left_out=min(problem.left_out, rtol / (10 * LEFT_OUT)))
    coarse = 2 * max((options.sampling.paths or FIRST_PATHS) // 8, 32)
    before = _sampled(problem, replace(options, ntk=False, at=(), wanted=()), coarse, False)
    while True:
        assert before.n_paths is not None
        found = _sampled(problem, options, 4 * before.n_paths, False)
        unresolved = observables.NEEDED in found.diagnostics
        if found.status is not Status.success and not unresolved:
            return found
        bias = np.abs(found.prediction.value - before.prediction.value) / 3
        found = replace(found, error=relative_error(found.prediction, problem.readouts, bias, problem.least_output))
        last = 16 * before.n_paths > MOST_PATHS
        if last if unresolved else found.error <= rtol:
            return found
        if last:
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
    unopened = 0.0 if n_paths is None else LEFT_OUT * problem.tolerances(n_paths)[0]
    curve = lambda rows: widened(over_batches(rows), unopened, len(problem.rates))  # noqa: E731
    prediction = curve([one.prediction for one in runs])
    averages, draws = observables.gathered([batch["seen"] for batch in batches])
    averages = {name: widened(estimate, unopened) for name, estimate in averages.items()}
    stops = [one.diverged_at for one in runs if one.diverged_at is not None]
    lost = max(one.loss_of_orthogonality for one in runs)
    status = Status.diverged if stops else Status.success if lost <= ORTHONORMAL else Status.inaccurate
    diagnostics: dict[str, Any] = {
        "road": "coordinates" if problem.exact else "paths",
        "directions": [max(counts) for counts in zip(*(r.n_directions for r in runs), strict=True)],
    }
    notes: tuple[str, ...] = ()
    if stops:
        diagnostics["diverged_at_step"] = min(stops)
        notes = (f"the loss diverges at step {min(stops)}; later entries are infinite",)
    needed = max(float(batch["seen"].get(observables.NEEDED, 0.0)) for batch in batches)
    if n_paths is not None and needed > n_paths:
        raised = f"raise `paths` to {needed:.0f} or " if np.isfinite(needed) else ""
        notes = (*notes, f"{UNRESOLVED}{raised}ask for other steps with `at`")
        diagnostics[observables.NEEDED] = needed
        status = Status.inaccurate if status is Status.success else status
    return Answer(
        prediction, curve([one.loss for one in runs]),
        curve([one.ntk for one in runs if one.ntk is not None]) if options.ntk else None,
        averages, draws, status, lost, relative_error(prediction, problem.readouts, least=problem.least_output), n_paths,
        notes, diagnostics,
    )  # fmt: skip


def relative_error(
    prediction: Estimate, readouts: tuple[int, ...] | None = None, bias: Any = 0.0, least: float = 1e-300
) -> float:
    """The largest standard error of an output, with its ``bias``, relative to the `size` of outputs.

    Outputs are those of the ``readouts``, or of all states.
    """
    if prediction.stderr is None or not np.isfinite(prediction.value).all():
        return 0.0
    states = slice(None) if readouts is None else list(readouts)
    return float((prediction.stderr + bias)[:, states].max()) / size(prediction.value[:, states], least)


def size(outputs: np.ndarray, least: float) -> float:
    """Root mean square of outputs (step, …) at the step where it is largest; ``least`` where they are zero."""
    return max(float(np.sqrt(np.mean(outputs**2, axis=tuple(range(1, outputs.ndim))).max(initial=0.0))), least)


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
    """Small steps at fixed time: rates η, η/2, η/4 with the same paths, extrapolated; the error is the last change.

    Rates down to one at which descent diverges are passed over, and halvings go on where the change is above ``rtol``.
    """
    rtol = options.sampling.rtol
    lean = replace(options, at=(), wanted=())
    answers: list[Answer] = []
    for k in range(MOST_LEVELS):
        found = full(replace(problem, rates=_halved(problem.rates, k)), lean)
        if found.status is not Status.success:
            if found.status is not Status.diverged or k + FLOW_LEVELS >= MOST_LEVELS:
                return _thinned(found, k)
            answers = []
            continue
        answers.append(_thinned(found, k))
        lean = replace(lean, sampling=replace(lean.sampling, paths=answers[0].n_paths, rtol=None))
        if len(answers) >= FLOW_LEVELS:
            limit = _limit(problem, answers)
            if rtol is None or limit.error <= rtol:
                return limit if limit.error <= NOTED or limit.notes else replace(limit, notes=(FLOW_NOTE,))
    note = f"outputs are good to {limit.error:.1e}, not to rtol={rtol:g}: lower the rate, raise `paths` or `rtol`"
    return replace(limit, status=Status.not_converged, notes=(*limit.notes, note))


def _halved(rates: np.ndarray, k: int) -> np.ndarray:
    """The same times in 2^k times as many steps; the last rate is that of the row after the last update."""
    return np.append(np.repeat(rates[:-1] / 2**k, 2**k), rates[-1] / 2**k)


def _thinned(answer: Answer, k: int) -> Answer:
    """The rows that an answer of 2^k times as many steps shares with that of the steps asked for."""
    every = lambda e: Estimate(e.value[:: 2**k], None if e.stderr is None else e.stderr[:: 2**k])  # noqa: E731
    ntk = None if answer.ntk is None else every(answer.ntk)
    found = replace(answer, prediction=every(answer.prediction), loss=every(answer.loss), ntk=ntk)
    stop = answer.diagnostics.get("diverged_at_step")
    if stop is None or k == 0:
        return found
    step = -(-stop // 2**k)
    notes = (f"the loss diverges at step {step} even at 1/{2**k} of the rate; later entries are infinite",)
    return replace(found, notes=notes, diagnostics=answer.diagnostics | {"diverged_at_step": step})


def _limit(problem: Problem, answers: list[Answer]) -> Answer:
    """The extrapolation to zero rate of answers whose rate halves from each to the next."""
    last = answers[-1]

    def limit(levels: list[Estimate]) -> Estimate:
        return Estimate(extrapolation.extrapolate([level.value for level in levels])[0], levels[-1].stderr)

    outputs = [answer.prediction.value[:, list(problem.readouts)] for answer in answers]
    found, change = extrapolation.extrapolate(outputs)
    ntk = [answer.ntk for answer in answers if answer.ntk is not None]
    return replace(
        last, prediction=limit([answer.prediction for answer in answers]), loss=limit([answer.loss for answer in answers]),
        ntk=limit(ntk) if ntk else None, error=max(float(change.max()) / size(found, problem.least_output), *(answer.error for answer in answers)),
    )  # fmt: skip
