r"""Solves the saddle point of nonlinear networks: nodes, Anderson acceleration, and what the result is worth.

Quadrature where the states of one neuron span at most four dimensions, importance sampling with Sobol draws beyond,
annealed draws where importance weights collapse. Each solve runs on fixed nodes, so that the fixed point is exact on
them; what the nodes miss is measured on others (a finer grid, fresh draws) and propagated: a moment error ε moves the
fixed point by :math:`(1 - J)^{-1}\varepsilon`, Eq. (posterior.16), which grows without bound towards a transition.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from widefield.answer.boundary import x64
from widefield.answer.certificate import Status
from widefield.gaussian.kernels import parity_of
from widefield.question.activation import Activation
from widefield.solvers.linearization import Linearization, linearize
from widefield.solvers.newton import unit_of
from widefield.theories.posterior.nonlinear import annealed, moments, saddle_map
from widefield.theories.posterior.nonlinear.saddle_map import Converged, SaddleMap, State, grow_labels, iterate, report
from widefield.theories.posterior.nonlinear.stationary import Saddle, SaddleOptions
from widefield.theories.posterior.problem import Problem, has_sign_symmetry, odd_lags

MAX_DIMENSION = 4  # of a grid
MAX_DRAWS, FIRST_DRAWS = 1 << 20, 1 << 14
COLLAPSED = 0.05  # effective share of importance draws
TRUSTED = 0.4  # effective share of reweighted draws
ROUNDS = 12  # of annealing and reweighting
LIMIT = float(stats.t.ppf(0.975, 15))  # 95 %, of a mean over 16 batches, in standard errors
DEVIATION = 4.0  # rms of fresh residuals in standard errors, beyond which the errors are not believed
FRESH = 1_000_003  # between the seeds of draws that are solved on and of those that judge


class _Solved(NamedTuple):
    """A fixed point on the nodes of its map, and what other nodes say about it; ``error`` is of every entry."""

    map: SaddleMap
    vector: np.ndarray
    status: Status
    steps: int
    error: np.ndarray
    residual: float
    deviation: float
    jacobian: Linearization | None
    ess: float
    rhat: float = np.nan


@x64
def solve_saddle(
    problem: Problem,
    activation: Activation,
    options: SaddleOptions | None = None,
    *,
    start: State | tuple | None = None,
    sector: Literal["full", "even"] = "full",
) -> Saddle:
    r"""The saddle point (Φ, C) of a nonlinear network, Eq. (posterior.5), and everything that follows from it.

    ``start`` is a pair (Φ, C), by default the prior; where the labels are too strong for the prior to be a start they
    are grown from zero. ``sector="even"`` keeps odd-lag blocks at zero (the incoherent branch) and needs the symmetry
    W → −W. Never raises for a solve that failed: ``status`` says what happened (``diverged``: the density does not
    normalize).
    """
    parity, odd = parity_of(activation), odd_lags(problem)
    if sector == "even" and not (parity == -1 and has_sign_symmetry(problem)):
        raise ValueError("`sector` 'even' needs an odd activation, and inputs and labels at states of one parity.")
    prior = saddle_map.prior_state(problem, activation)
    frame = saddle_map.saddle_map(problem, activation, None, prior, ~odd if sector == "even" else np.ones_like(odd))
    origin = frame.pack(State(*map(np.asarray, prior if start is None else start)))
    setup = _Setup(frame, origin, start is None, parity != 0, options or SaddleOptions())
    return _finish(problem, setup, *_integrate(setup), parity)


class _Setup(NamedTuple):
    """The map without nodes, where to start, and the options."""

    frame: SaddleMap
    start: np.ndarray
    at_prior: bool
    symmetric: bool
    options: SaddleOptions

    def solve(self, m: SaddleMap, vector: np.ndarray, grow: bool) -> Converged:
        """The fixed point; with ``grow`` the labels are raised from weak ones where they are too strong at once."""
        limits = 0.1 * self.options.rtol, self.options.max_steps
        point = iterate(m, vector, *limits)
        if point.status is Status.success or not grow:
            return point
        grown = grow_labels(m, vector, *limits)
        return grown._replace(steps=grown.steps + point.steps)


def _integrate(setup: _Setup) -> tuple[str, _Solved]:
    integration, dimension = setup.options.integration, setup.frame.dimension
    if integration == "quadrature" or (integration == "auto" and dimension <= MAX_DIMENSION):
        if dimension > MAX_DIMENSION:
            raise ValueError(
                f"`integration` 'quadrature' covers {MAX_DIMENSION} dimensions, the problem has {dimension}."
            )
        solved = _by_quadrature(setup)
        if integration == "quadrature" or solved.status is not Status.inaccurate or dimension < MAX_DIMENSION:
            return "quadrature", solved
    if integration in ("auto", "importance"):
        solved = _by_importance(setup)
        if integration == "importance" or solved.ess >= COLLAPSED:
            return "importance", solved
    return "annealed", _by_annealing(setup)


def levels_of(frame: SaddleMap, symmetric: bool) -> list[Callable[[], moments.Nodes]]:
    """The grids that suit a map, coarse ones first; half of each where the activation is ``symmetric``."""
    split = frame.activation.breaks == (0.0,) and frame.dimension == len(frame.basis.embed)
    return list(moments.levels(frame.dimension, symmetric, split=split, bounded=not frame.grows))


def _by_quadrature(setup: _Setup) -> _Solved:
    """Solve on a grid, judge on the next finer one, and move there where the two differ."""
    levels = levels_of(setup.frame, setup.symmetric)
    vector, steps, grow, rtol = setup.start, 0, setup.at_prior, setup.options.rtol
    for k, (nodes, finer) in enumerate(pairwise(levels)):
        here, there = setup.frame.on(nodes()), setup.frame.on(finer())
        vector, status, more = setup.solve(here, vector, grow)
        steps, grow = steps + more, False
        if status is not Status.success:
            return _Solved(here, vector, status, steps, np.full(len(vector), np.inf), np.inf, 0.0, None, np.nan)
        unit, last = unit_of(vector), k == len(levels) - 2
        gap = (report(there, vector).image - vector) / unit
        if np.max(np.abs(gap)) > rtol and not last:
            continue
        jacobian = linearize(there, vector)
        # One step of Newton's towards the fixed point on this grid: what the iteration left is no error of the grid.
        off = report(here, vector).image - vector
        ahead = vector + jacobian.solve(off[None])[0]
        if np.max(np.abs(report(here, ahead).image - ahead)) < np.max(np.abs(off)):
            vector = ahead
        gap = (report(there, vector).image - vector) / unit
        error = np.abs(jacobian.solve(gap[None]))[0]
        status = Status.success if np.max(error) <= rtol else Status.inaccurate
        if status is Status.success or last:
            break
    return _Solved(here, vector, status, steps, unit * error, float(np.max(np.abs(gap))), 0.0, jacobian, np.nan)


def _by_importance(setup: _Setup) -> _Solved:
    """Solve on Sobol draws, more of them until the propagated error is small; judge on fresh ones."""
    options, frame = setup.options, setup.frame
    n = options.n_paths or FIRST_DRAWS
    most = min(MAX_DRAWS, moments.capacity(frame.dimension))
    vector, steps = setup.start, 0
    while True:
        here = frame.on(moments.draws(frame.dimension, n, options.seed))
        vector, status, more = setup.solve(here, vector, setup.at_prior and not steps)
        steps += more
        fresh = lambda n=n: frame.on(moments.draws(frame.dimension, n, options.seed + FRESH))  # noqa: E731
        solved = _judge(here, fresh, vector, status, steps, options)
        done = options.n_paths is not None or status is not Status.success or solved.ess < COLLAPSED
        if done or solved.status is Status.success or n >= most:
            return solved
        n = min(most, n * 4)


def _by_annealing(setup: _Setup) -> _Solved:
    """Anneal at a state, solve by reweighting as far as the weights allow, and anneal again there."""
    n_batches, options, frame = 16, setup.options, setup.frame
    n = moments.CHUNK * max(1, round((options.n_paths or 1 << 15) / (moments.CHUNK * n_batches)))
    vector, steps = setup.start, 0

    def draw(at: np.ndarray, seed: int) -> tuple[SaddleMap, float]:
        nodes, rhat = annealed.anneal(frame.activation, saddle_map.density_at(frame, at), n, seed, n_batches)
        return frame.on(nodes), rhat

    for turn in range(ROUNDS):
        here, rhat = draw(vector, options.seed + turn)
        solved, status, more = setup.solve(here, vector, False)
        steps += more
        share, ess = 1.0, float(report(here, solved).ess)
        while not ess >= TRUSTED and share > 1e-3:
            share *= 0.5
            ess = float(report(here, vector + share * (solved - vector)).ess)
        vector = vector + share * (solved - vector)
        if share == 1.0 and status is Status.success:
            break
    status = status if share == 1.0 else Status.not_converged
    fresh = lambda: draw(vector, options.seed + FRESH)[0]  # noqa: E731
    return _judge(here, fresh, vector, status, steps, options)._replace(rhat=rhat)


def _judge(
    here: SaddleMap,
    fresh: Callable[[], SaddleMap],
    vector: np.ndarray,
    status: Status,
    steps: int,
    options: SaddleOptions,
) -> _Solved:
    """Standard errors by the scatter of batches, propagated through the fixed point; residual on fresh draws."""
    said = report(here, vector)
    ess = float(said.ess)
    if status is not Status.success:
        return _Solved(here, vector, status, steps, np.full(len(vector), np.inf), np.inf, np.inf, None, ess)
    jacobian, unit = linearize(here, vector), unit_of(vector)
    scatter = said.image_batches - vector
    root = np.sqrt(len(scatter))
    error = jacobian.solve(scatter).std(axis=0, ddof=1) / root
    other = report(fresh(), vector).image_batches - vector
    gap = other.mean(axis=0)
    noise = np.hypot(scatter.std(axis=0, ddof=1), other.std(axis=0, ddof=1)) / root
    deviation = float(np.sqrt(np.mean((gap / np.where(noise > 0, noise, np.inf)) ** 2)))
    residual = float(np.max(np.abs(gap))) / unit
    enough = options.n_paths is not None or np.maximum(LIMIT * np.max(error) / unit, residual) <= options.sampling_rtol
    status = Status.success if deviation <= DEVIATION and enough else Status.inaccurate
    return _Solved(here, vector, status, steps, error, residual, deviation, jacobian, ess)


def _finish(problem: Problem, setup: _Setup, integration: str, solved: _Solved, parity: int) -> Saddle:
    """Free energy, stability and errors of a fixed point as plain arrays."""
    said, m, status = report(solved.map, solved.vector), solved.map, solved.status
    if setup.frame.grows and status is Status.success and not said.growth < 0.5:
        status = Status.diverged
    lost = status in (Status.diverged, Status.nonfinite)
    log_normalizer = np.nan if lost else said.log_normalizer
    energy, entropy = saddle_map.free_energy(m.problem, said.state, said.density.conjugate, log_normalizer)
    batches = said.log_normalizer_batches
    errors = m.unpack(solved.error)
    mu = _leading_eigenvalue(problem, solved, parity)
    assert m.nodes is not None
    return Saddle(
        problem=problem,
        feature=said.state.feature,
        hidden=said.state.hidden,
        conjugate=np.asarray(said.density.conjugate),
        feature_stderr=errors.feature,
        hidden_stderr=errors.hidden,
        energy=float(energy),
        entropy=float(entropy),
        free_energy=float(energy + entropy),
        free_energy_stderr=float(np.std(batches, ddof=1) / np.sqrt(len(batches))) if len(batches) > 1 else 0.0,
        residual=solved.residual,
        deviation=solved.deviation,
        error=(1.0 if integration == "quadrature" else LIMIT) * float(np.max(solved.error)) / unit_of(solved.vector),
        mu=mu,
        stability=1 - mu,
        ess=solved.ess,
        rhat=solved.rhat,
        integration=integration,
        n_nodes=m.nodes.size,
        steps=solved.steps,
        status=status,
        saddle_map=m,
    )


def _leading_eigenvalue(problem: Problem, solved: _Solved, parity: int) -> float:
    """Of the full map; sector by sector where the odd lags decouple."""
    if solved.jacobian is None:
        return np.nan
    odd, state = odd_lags(problem), solved.map.unpack(solved.vector)
    symmetric = parity == -1 and has_sign_symmetry(problem)
    if not symmetric or np.any(np.abs(state.feature[odd]) > 1e-6):
        return solved.jacobian.leading(None)
    jacobian, full = solved.jacobian, solved.jacobian.map
    assert isinstance(full, SaddleMap)
    if len(full.rows) * 2 < len(odd) * (len(odd) + 1):
        rows, columns = np.nonzero(np.triu(np.ones_like(odd)))
        full = replace(full, rows=rows, columns=columns)
        jacobian = linearize(full, full.pack(state))
    is_odd = np.tile(odd[full.rows, full.columns], 2)
    return max(jacobian.leading(~is_odd), jacobian.leading(is_odd))
