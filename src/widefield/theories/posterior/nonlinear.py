r"""Solves the saddle point of nonlinear networks: nodes, Anderson acceleration, and what the answer is worth.

Method: quadrature where the states of one neuron span at most four dimensions, importance sampling with Sobol draws
beyond, annealed draws where importance weights collapse. Each solve runs on fixed nodes, so that the fixed point is
exact on them; what the nodes miss is measured on others (a finer grid, fresh draws) and propagated.

Error: a moment error ε moves the fixed point by :math:`(1 - J)^{-1}\varepsilon`, with :math:`J` the map's Jacobian. Close
to a transition its eigenvalue μ → 1 and any error grows by 1/(1 − μ): a residual of zero on fixed draws is no evidence.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from widefield.answer.boundary import x64
from widefield.answer.certificate import Status
from widefield.gaussian.kernels import parity_of
from widefield.question import checks
from widefield.question.activation import Activation
from widefield.theories.posterior import annealed, moments, saddle
from widefield.theories.posterior.converge import Converged, grow_labels, iterate, unit_of
from widefield.theories.posterior.linearised import Linearised, linearise
from widefield.theories.posterior.problem import Problem
from widefield.theories.posterior.saddle import SaddleMap, State, report

Method = Literal["auto", "quadrature", "importance", "mcmc"]
METHODS = ("auto", "quadrature", "importance", "mcmc")
MAX_DIMENSION = 4  # of a grid
MAX_DRAWS, FIRST_DRAWS = 1 << 20, 1 << 14
COLLAPSED = 0.05  # effective share of importance draws
TRUSTED = 0.4  # effective share of reweighted draws
ROUNDS = 12  # of annealing and reweighting
DEVIATION = 4.0  # rms of fresh residuals in standard errors, beyond which the errors are not believed


@dataclass(frozen=True, eq=False)
class Saddle:
    r"""A saddle point with its free energy, stability and error. Matrices are over nodes (state, sample), state-major.

    ``feature`` Φ, ``hidden`` C, ``conjugate`` Φ̃, ``covariance`` K. ``feature_stderr`` and ``hidden_stderr`` are
    standard errors, for quadrature the change on a finer grid; both include the amplification by the fixed point.
    ``residual`` is the undamped residual on the finer grid or on fresh draws, in units of the prior's scale, and
    ``deviation`` its root mean square in standard errors (about 1 if these are honest; 0 for quadrature). ``mu`` is
    the largest real part of the map's eigenvalues, ``mu_odd`` that of the odd-lag sector where the state has none of it
    (else NaN): above 1 the state is unstable. ``ess`` is the effective share of the draws, ``rhat`` the annealed ones'.
    ``saddle_map`` can be evaluated further.
    """

    feature: np.ndarray
    hidden: np.ndarray
    conjugate: np.ndarray
    covariance: np.ndarray
    feature_stderr: np.ndarray
    hidden_stderr: np.ndarray
    log_normaliser: float
    energy: float
    entropy: float
    free_energy: float
    free_energy_stderr: float
    residual: float
    deviation: float
    error: float
    mu: float
    mu_odd: float
    ess: float
    rhat: float
    method: str
    n_nodes: int
    steps: int
    status: Status
    saddle_map: SaddleMap


class _Answer(NamedTuple):
    """A fixed point on its nodes, and what other nodes say about it."""

    map: SaddleMap
    vector: Array
    status: Status
    steps: int
    error: np.ndarray  # of every entry of the vector
    residual: float
    deviation: float
    linear: Linearised | None
    ess: float
    rhat: float = np.nan


@x64
def solve_saddle(
    problem: Problem,
    activation: Activation,
    *,
    start: State | tuple | None = None,
    sector: Literal["full", "even"] = "full",
    rtol: float = 1e-7,
    sampling_rtol: float = 1e-2,
    max_steps: int = 300,
    n_paths: int | None = None,
    seed: int = 0,
    method: Method = "auto",
) -> Saddle:
    r"""The saddle point (Φ, C) of a nonlinear network and everything that follows from it.

    ``start`` is a pair (Φ, C), by default the prior; where the labels are too strong for the prior to be a start they
    are grown from zero. ``sector="even"`` keeps odd-lag blocks at zero (the incoherent branch) and needs the symmetry
    W → −W. ``rtol`` bounds residual and grid error in units of the prior's scale, ``sampling_rtol`` the standard error of
    sampled order parameters: draws are added until it is met, or ``n_paths`` of them are taken as they are.

    Never raises for a solve that failed: ``status`` says what happened (``diverged``: the density does not normalise).
    """
    checks.choice("method", method, METHODS)
    checks.choice("sector", sector, ("full", "even"))
    parity = parity_of(activation)
    if sector == "even" and not saddle.has_sign_symmetry(problem, parity):
        raise ValueError("`sector` 'even' needs an odd activation, and inputs and labels at states of one parity.")
    prior = saddle.prior_state(problem, activation)
    odd = saddle.odd_lags(problem)
    pairs = ~odd if sector == "even" else np.ones_like(odd)
    frame = saddle.saddle_map(problem, activation, None, prior, pairs)
    origin = State(*map(jnp.asarray, prior if start is None else start))
    setup = _Setup(frame, frame.pack(origin), start is None, parity != 0, rtol, max_steps, n_paths, sampling_rtol, seed)
    return _finish(problem, setup, _choose(setup, method), parity)


class _Setup(NamedTuple):
    """The map without nodes, where to start, and the options."""

    frame: SaddleMap
    start: Array
    at_prior: bool
    symmetric: bool
    rtol: float
    max_steps: int
    n_paths: int | None
    sampling_rtol: float
    seed: int

    @property
    def dimension(self) -> int:
        return self.frame.basis.embed.shape[1]

    def on(self, nodes: moments.Nodes) -> SaddleMap:
        return eqx.tree_at(lambda m: m.nodes, self.frame, nodes, is_leaf=lambda x: x is None)

    def solve(self, m: SaddleMap, vector: Array, grow: bool) -> Converged:
        """The fixed point; with ``grow`` the labels are raised from weak ones where they are too strong at once."""
        found = iterate(m, vector, 0.1 * self.rtol, self.max_steps)
        if found.status is Status.success or not grow:
            return found
        grown = grow_labels(m, vector, 0.1 * self.rtol, self.max_steps)
        return grown._replace(steps=grown.steps + found.steps)


def _choose(setup: _Setup, method: Method) -> tuple[str, _Answer]:
    if method == "quadrature" or (method == "auto" and setup.dimension <= MAX_DIMENSION):
        if setup.dimension > MAX_DIMENSION:
            raise ValueError(
                f"`method` 'quadrature' covers {MAX_DIMENSION} dimensions, the problem has {setup.dimension}."
            )
        answer = _by_quadrature(setup)
        if method == "quadrature" or answer.status is not Status.inaccurate or setup.dimension < MAX_DIMENSION:
            return "quadrature", answer
    if method in ("auto", "importance", "quadrature"):
        answer = _by_importance(setup)
        if method == "importance" or answer.ess >= COLLAPSED:
            return "importance", answer
    return "mcmc", _by_annealing(setup)


def levels_of(frame: SaddleMap, symmetric: bool) -> list[Callable[[], moments.Nodes]]:
    """The grids that suit a map, coarse ones first; half of each where the activation is ``symmetric``."""
    n_nodes, dimension = frame.basis.embed.shape
    split = frame.activation.breaks == (0.0,) and dimension == n_nodes
    return list(moments.levels(dimension, symmetric, split=split, bounded=not frame.grows))


def _by_quadrature(setup: _Setup) -> _Answer:
    """Solve on a grid, judge on the next finer one, and move there where the two differ."""
    levels = levels_of(setup.frame, setup.symmetric)
    vector, steps, grow = setup.start, 0, setup.at_prior
    for k, (nodes, finer) in enumerate(pairwise(levels)):
        here, there = setup.on(nodes()), setup.on(finer())
        vector, status, more = setup.solve(here, vector, grow)
        steps, grow = steps + more, False
        if status is not Status.success:
            return _Answer(here, vector, status, steps, np.full(len(vector), np.inf), np.inf, 0.0, None, np.nan)
        unit = unit_of(vector)
        gap = np.asarray(report(there, vector).image - vector) / unit
        last = k == len(levels) - 2
        if np.max(np.abs(gap)) > setup.rtol and not last:
            continue
        linear = linearise(there, vector)
        vector = _polished(here, vector, linear)
        gap = np.asarray(report(there, vector).image - vector) / unit
        error = np.abs(linear.solve(gap[None]))[0]
        status = Status.success if np.max(error) <= setup.rtol else Status.inaccurate
        if status is Status.success or last:
            break
    return _Answer(here, vector, status, steps, unit * error, float(np.max(np.abs(gap))), 0.0, linear, np.nan)


def _polished(m: SaddleMap, vector: Array, linear: Linearised) -> Array:
    """One step of Newton's towards the fixed point of ``m``: what the iteration left is no error of the grid."""
    image = lambda v: report(m, v).image - v  # noqa: E731
    off = image(vector)
    ahead = vector + linear.solve(np.asarray(off)[None])[0]
    return ahead if jnp.max(jnp.abs(image(ahead))) < jnp.max(jnp.abs(off)) else vector


def _by_importance(setup: _Setup) -> _Answer:
    """Solve on Sobol draws, more of them until the propagated error is small; judge on fresh ones."""
    n = setup.n_paths or FIRST_DRAWS
    most = min(MAX_DRAWS, moments.capacity(setup.dimension))
    vector, steps = setup.start, 0
    while True:
        here = setup.on(moments.draws(setup.dimension, n, setup.seed))
        vector, status, more = setup.solve(here, vector, setup.at_prior and not steps)
        steps += more
        fresh = lambda n=n: setup.on(moments.draws(setup.dimension, n, setup.seed + 1_000_003))  # noqa: E731
        answer = _judge(here, fresh, vector, status, steps, setup)
        done = setup.n_paths is not None or status is not Status.success or answer.ess < COLLAPSED
        if done or answer.status is Status.success or n >= most:
            return answer
        n = min(most, n * 4)


def _by_annealing(setup: _Setup) -> _Answer:
    """Anneal at a state, solve by reweighting as far as the weights allow, and anneal again there."""
    n_batches = 16
    n = moments.CHUNK * max(1, round((setup.n_paths or 1 << 15) / (moments.CHUNK * n_batches)))
    vector, steps = setup.start, 0

    def draw(at: Array, seed: int) -> tuple[SaddleMap, float]:
        density = setup.frame.density(setup.frame.unpack(at))
        sample = annealed.anneal(setup.frame.activation, density, n, seed, n_batches)
        return setup.on(annealed.nodes_of(sample, setup.frame.activation, density)), sample.rhat

    for turn in range(ROUNDS):
        here, rhat = draw(vector, setup.seed + turn)
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
    fresh = lambda: draw(vector, setup.seed + 1_000_003)[0]  # noqa: E731
    return _judge(here, fresh, vector, status, steps, setup)._replace(rhat=rhat)


def _judge(here: SaddleMap, fresh, vector: Array, status: Status, steps: int, setup: _Setup) -> _Answer:
    """Standard errors by the scatter of batches, propagated through the fixed point; residual on fresh draws."""
    said = report(here, vector)
    ess = float(said.ess)
    if status is not Status.success:
        return _Answer(here, vector, status, steps, np.full(len(vector), np.inf), np.inf, np.inf, None, ess)
    linear = linearise(here, vector)
    scatter = np.asarray(said.image_batches) - np.asarray(vector)
    moved = linear.solve(scatter)
    root = np.sqrt(len(moved))
    error = moved.std(axis=0, ddof=1) / root
    other = np.asarray(report(fresh(), vector).image_batches) - np.asarray(vector)
    gap = other.mean(axis=0)
    own = np.hypot(scatter.std(axis=0, ddof=1), other.std(axis=0, ddof=1)) / root
    deviation = float(np.sqrt(np.mean((gap / np.where(own > 0, own, np.inf)) ** 2)))
    accurate = deviation <= DEVIATION and (
        setup.n_paths is not None or np.max(error) <= setup.sampling_rtol * unit_of(vector)
    )
    status = Status.success if accurate else Status.inaccurate
    return _Answer(
        here, vector, status, steps, error, float(np.max(np.abs(gap))) / unit_of(vector), deviation, linear, ess
    )


def _finish(problem: Problem, setup: _Setup, chosen: tuple[str, _Answer], parity: int) -> Saddle:
    """Free energy, stability and errors of an answer as plain arrays."""
    method, answer = chosen
    said = report(answer.map, answer.vector)
    state, density, log_normaliser, batches = said.state, said.density, said.log_normaliser, said.log_normaliser_batches
    status = answer.status
    if setup.frame.grows and status is Status.success and not said.growth < 0.5:
        status = Status.diverged
    if status in (Status.diverged, Status.nonfinite):
        log_normaliser = jnp.full_like(log_normaliser, jnp.nan)
    parts = saddle.free_energy(answer.map.problem, state, density.conjugate, log_normaliser)
    spread = float(jnp.std(batches, ddof=1) / np.sqrt(len(batches))) if len(batches) > 1 else 0.0
    errors = answer.map.unpack(jnp.asarray(answer.error))
    mu, mu_odd = _stability(problem, setup, answer, parity)
    return Saddle(
        feature=np.asarray(state.feature),
        hidden=np.asarray(state.hidden),
        conjugate=np.asarray(density.conjugate),
        covariance=np.asarray(saddle.covariance(answer.map.problem, state.feature)),
        feature_stderr=np.asarray(errors.feature),
        hidden_stderr=np.asarray(errors.hidden),
        log_normaliser=float(log_normaliser),
        energy=float(parts.energy),
        entropy=float(parts.entropy),
        free_energy=float(parts.free_energy),
        free_energy_stderr=spread,
        residual=answer.residual,
        deviation=answer.deviation,
        error=float(np.max(answer.error)) / unit_of(answer.vector),
        mu=mu,
        mu_odd=mu_odd,
        ess=answer.ess,
        rhat=answer.rhat,
        method=method,
        n_nodes=answer.map.nodes.size,
        steps=answer.steps,
        status=status,
        saddle_map=answer.map,
    )


def _stability(problem: Problem, setup: _Setup, answer: _Answer, parity: int) -> tuple[float, float]:
    """Leading eigenvalues of the full map: all, and in the odd-lag sector where that decouples."""
    if answer.linear is None:
        return np.nan, np.nan
    m, odd = answer.map, saddle.odd_lags(problem)
    state = m.unpack(answer.vector)
    decoupled = saddle.has_sign_symmetry(problem, parity) and not np.any(np.abs(np.asarray(state.feature)[odd]) > 1e-6)
    if not decoupled:
        return answer.linear.leading(None), np.nan
    full, linear = answer.linear.map, answer.linear
    if len(full.rows) * 2 < len(odd) * (len(odd) + 1):
        full = _with_pairs(full, np.ones_like(odd))
        linear = linearise(full, full.pack(state))
    is_odd = np.tile(odd[full.rows, full.columns], 2)
    even, odd_part = linear.leading(~is_odd), linear.leading(is_odd)
    return max(even, odd_part), odd_part


def _with_pairs(m: SaddleMap, pairs: np.ndarray) -> SaddleMap:
    rows, columns = map(jnp.asarray, np.nonzero(np.triu(pairs)))
    return replace(m, rows=rows, columns=columns)
