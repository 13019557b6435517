"""Gradient flow as a limit: small steps at fixed time, extrapolated."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import Status
from widefield.solvers import extrapolation
from widefield.theories.dynamics import losses
from widefield.theories.dynamics.curves import Estimate, TrainingCurves, divergence_note, size
from widefield.theories.dynamics.methods.lazy import Lazy
from widefield.theories.dynamics.methods.method import Method
from widefield.theories.dynamics.methods.paths import March, sampled
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.request import Request

FLOW_LEVELS, MOST_LEVELS = 3, 8  # halvings of the rate on the way to gradient flow: least, and most
EVERY_STEP = ("alignment", "ntk_alignment")  # among the kernels; the others are kept at chosen steps
Level = Callable[[Problem, Request, int | None], TrainingCurves]


class Flow(Method):
    """Rates η, η/2, η/4, … of the march with the same paths, extrapolated: Eq. (dynamics.20)."""

    def covers(self, problem: Problem, request: Request) -> bool:
        """The full theory, and the one without responses."""
        return problem.training.flow and request.method in ("full", "independent")

    def solve(self, problem: Problem, request: Request) -> TrainingCurves:
        """Paths are those that the first rate takes."""
        return extrapolated(problem, request, _march)


class LazyFlow(Method):
    """The same limit of the static one."""

    def covers(self, problem: Problem, request: Request) -> bool:
        """The lazy limit along a flow."""
        return problem.training.flow and request.method == "lazy"

    def solve(self, problem: Problem, request: Request) -> TrainingCurves:
        """Every level is cheap."""
        return extrapolated(problem, request, lambda problem, request, n_paths: Lazy().solve(problem, request))


def _march(problem: Problem, request: Request, n_paths: int | None) -> TrainingCurves:
    return March().solve(problem, request) if n_paths is None else sampled(problem, request, n_paths, fixed=True)


def extrapolated(problem: Problem, request: Request, level: Level) -> TrainingCurves:
    """Levels until the last change is within the tolerance.

    Rates down to one at which descent diverges are passed over.
    """
    levels: list[TrainingCurves] = []
    for k in range(MOST_LEVELS):
        finer = replace(problem, rates=_halved(problem.rates, k))
        curves = level(
            finer, replace(request, at=tuple(t * 2**k for t in request.at)), levels[0].n_paths if levels else None
        )
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


def _halved(rates: np.ndarray, k: int) -> np.ndarray:
    """The same times in 2^k times as many steps; the last rate is that of the row after the last update."""
    return np.append(np.repeat(rates[:-1] / 2**k, 2**k), rates[-1] / 2**k)


def _thinned(curves: TrainingCurves, k: int) -> TrainingCurves:
    """The rows that curves of 2^k times as many steps share with those of the steps asked for."""
    every = lambda estimate: estimate.each(lambda v: v[:: 2**k])  # noqa: E731
    kernels = {name: every(e) if name in EVERY_STEP else e for name, e in curves.kernels.items()}
    ntk = None if curves.ntk is None else every(curves.ntk)
    thin = replace(curves, prediction=every(curves.prediction), loss=every(curves.loss), ntk=ntk, kernels=kernels)
    if curves.diverged_at is None or k == 0:
        return thin
    step = -(-curves.diverged_at // 2**k)
    return replace(thin, diverged_at=step, notes=(divergence_note(step, f" even at 1/{2**k} of the rate"),))


def _limit(problem: Problem, request: Request, levels: list[TrainingCurves]) -> TrainingCurves:
    """The extrapolation to zero rate of curves whose rate halves from each to the next; the loss is that of its outputs."""
    last = levels[-1]
    errors = [_output_error(problem, request, levels), *(one.error for one in levels)]

    def limit(estimates: list[Estimate]) -> Estimate:
        value, change = extrapolation.extrapolate([one.value for one in estimates])
        errors.append(_share(change, value))
        return Estimate(value, estimates[-1].stderr)

    ntk = [one.ntk for one in levels if one.ntk is not None]
    tangent = limit(ntk) if ntk else None
    kernels = {name: limit([one.kernels[name] for one in levels]) for name in last.kernels}
    outputs = extrapolation.extrapolate([one.prediction.value for one in levels])[0]
    return replace(
        last, prediction=Estimate(outputs, last.prediction.stderr), loss=Estimate(_loss(problem, outputs), last.loss.stderr),
        ntk=tangent, kernels=kernels, error=float(np.max(errors)),
    )  # fmt: skip


def _output_error(problem: Problem, request: Request, levels: list[TrainingCurves]) -> float:
    """The last change of outputs: of the readouts, relative to their size, and of every state where these are asked for."""
    outputs, change = extrapolation.extrapolate([one.prediction.value for one in levels])
    read = list(problem.readouts)
    error = float(change[:, read].max()) / size(outputs[:, read], problem.least_output)
    return float(np.max([error, _share(change, outputs)])) if "state_prediction" in request.fields else error


def _share(change: np.ndarray, value: np.ndarray) -> float:
    """The largest change relative to the largest entry."""
    return float(np.max(change, initial=0.0) / np.max(np.abs(value), initial=np.finfo(float).tiny))


def _loss(problem: Problem, outputs: np.ndarray) -> np.ndarray:
    """Of the outputs (step, state, sample, output) at every step."""
    read = jnp.asarray(outputs[:, list(problem.readouts), : problem.task.n_samples])
    return np.asarray(jax.vmap(lambda f: losses.total(problem.loss, f, jnp.asarray(problem.labels)))(read))
