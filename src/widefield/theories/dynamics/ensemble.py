"""Batches of paths, and the limits and approximations that are made of several runs."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from widefield.progress import bar
from widefield.solution import Status
from widefield.solvers import richardson
from widefield.theories.dynamics import kernels
from widefield.theories.dynamics.answer import Answer, Estimate, over_batches
from widefield.theories.dynamics.lazy import lazy
from widefield.theories.dynamics.march import gradient_shares
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.run import DIVERGED, Run, TooFewPaths, run

N_BATCHES = 8
FIRST_PATHS, MOST_PATHS = 1024, 2**17
ORTHONORMAL = 1e-6  # directions further from an orthonormal set than this make the result inaccurate
SMALL = 0.05  # richness at which the leading order is measured
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
    """The march: once for linear networks, otherwise in batches whose paths double until ``rtol`` is met."""
    if problem.exact:
        return _gather(problem, [_batch(problem, options, 0, 1)], options, None)
    n_paths = options.sampling.paths or FIRST_PATHS
    while True:
        try:
            batches = _batches(problem, options, n_paths)
        except TooFewPaths:
            if options.sampling.paths is not None or 2 * n_paths > MOST_PATHS:
                raise
            n_paths *= 2
            continue
        found = _gather(problem, batches, options, n_paths)
        enough = (
            options.sampling.rtol is None or found.error <= options.sampling.rtol or found.status is not Status.success
        )
        if enough or 2 * n_paths > MOST_PATHS:
            break
        n_paths *= 2
    if not enough:
        return replace(found, status=Status.not_converged)
    return found


def _batches(problem: Problem, options: Options, n_paths: int) -> list[dict[str, Any]]:
    return [_batch(problem, options, n_paths, b) for b in range(N_BATCHES)]


def _batch(problem: Problem, options: Options, n_paths: int, batch: int) -> dict[str, Any]:
    """One run reduced to what is kept of it."""
    shape = problem.shape
    work = 1e-9 * max(n_paths, 500) * problem.physics.inputs.shape[0] * problem.physics.inputs.shape[1] * 300
    with bar(f"batch {batch + 1}", len(problem.rates), options.sampling.progress, work * len(problem.rates)) as advance:
        one = run(
            problem, shape, n_paths, options.sampling.seed, batch, ntk=options.ntk, at=options.at, advance=advance
        )
    n = problem.task.n_samples
    kept: dict[str, Any] = {"run": replace(one, samples={})}
    complete = len(one.samples) == len(options.at)
    if "feature_kernel" in options.wanted and complete:
        kept["feature_kernel"] = kernels.features(one, n)
    if "gradient_kernel" in options.wanted and complete:
        share = np.sqrt(gradient_shares(problem.physics))
        kept["gradient_kernel"] = kernels.gradients(one, n) * np.outer(share, share)[:, :, None, None, None, None]
    if "preactivation" in options.wanted and one.samples:
        kept["preactivation"] = _paths(problem, one.samples[max(one.samples)][2][:, :n], options.sampling.seed)
    return kept


def _paths(problem: Problem, h: np.ndarray, seed: int) -> np.ndarray:
    """Samples (state, path, sample); coordinates of linear networks are drawn from."""
    if problem.exact:
        h = h @ np.random.default_rng(seed).standard_normal((h.shape[-1], FIRST_PATHS))
    return h.swapaxes(1, 2)


def _gather(problem: Problem, batches: list[dict[str, Any]], options: Options, n_paths: int | None) -> Answer:
    runs: list[Run] = [batch["run"] for batch in batches]
    prediction = over_batches([one.prediction for one in runs])
    names = [name for name in ("feature_kernel", "gradient_kernel") if all(name in batch for batch in batches)]
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
        {name: over_batches([batch[name] for batch in batches]) for name in names},
        np.concatenate([b["preactivation"] for b in batches], axis=1) if all("preactivation" in b for b in batches) else None,
        status, lost, relative_error(prediction), n_paths, notes, diagnostics,
    )  # fmt: skip


def relative_error(prediction: Estimate) -> float:
    """The largest standard error of a prediction, relative to their root mean square at the end."""
    if prediction.stderr is None or not np.isfinite(prediction.value).all():
        return 0.0
    size = np.sqrt(np.mean(prediction.value[-1] ** 2))
    return float(prediction.stderr.max() / max(size, 1e-300))


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


def perturbative(problem: Problem, options: Options) -> Answer:
    r"""To leading order in the squared richness: :math:`f_0 + \gamma_0^2f_2`.

    The static solution is exact; :math:`f_2` is measured at small richness, with the same paths at each, and a Richardson
    step removes the next order.
    """
    lean = Options(replace(options.sampling, rtol=None), options.ntk, (), ())
    at = lambda gamma: full(replace(problem, richness=gamma), lean)  # noqa: E731
    near, half, none = at(SMALL), at(SMALL / 2), at(SMALL / 100)
    base = static(problem)
    failed = [answer for answer in (base, near, half, none) if answer.status is not Status.success]
    if failed:
        return failed[0]

    def corrected(name: str) -> Estimate:
        zero, one, two = (getattr(answer, name).value for answer in (none, near, half))
        square = SMALL**2 * np.array([1.0, 1 / 4]) - (SMALL / 100) ** 2
        slope = (4 * (two - zero) / square[1] - (one - zero) / square[0]) / 3
        return Estimate(getattr(base, name).value + problem.richness**2 * slope, None)

    return replace(base, prediction=corrected("prediction"), loss=corrected("loss"), ntk=corrected("ntk") if options.ntk else None,
                   residual=near.residual, n_paths=near.n_paths)  # fmt: skip


def flow(problem: Problem, options: Options) -> Answer:
    """Small steps at fixed time: rates η, η/2, η/4 with the same paths, extrapolated; the error is the last change."""
    lean = replace(options, at=(), wanted=())
    answers = []
    for k in range(FLOW_LEVELS):
        finer = replace(problem, rates=np.append(np.repeat(problem.rates[:-1] / 2**k, 2**k), problem.rates[-1] / 2**k))
        answers.append(full(finer, lean))
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
