r"""Eigenvalues of the trained recurrent weights that leave the random bulk.

Given the neurons, the weights are those of least norm that produce them, whose eigenvalues are those of
:math:`w\,\Psi K^{-1}` with :math:`\Psi_{ba} = \langle\varphi^{b-1}h^{a}\rangle`, Eq. (posterior.23), plus what stays random.
That is independent of the neurons, so that it moves no eigenvalue outside its own disc: an eigenvalue is an outlier where
:math:`|z| > \sqrt w`, the radius of the bulk.
"""

import time
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import Solution, make_solution
from widefield.gaussian.kernels import parity_of
from widefield.question.activation import Activation
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.nonlinear import annealed, moments, saddle_map
from widefield.theories.posterior.nonlinear.saddle import COLLAPSED, MAX_DIMENSION, levels_of

NOISE = 1e-10  # of the largest eigenvalue: what lies below is a rounding
EXACT = 1e-9  # residual of an eigenvector
SETTLED = 1e-8  # relative change of a moment from one grid to the next
N_DRAWS, N_BATCHES = 1 << 17, 16
CONSISTENT, SPREAD = 1e-4, 6.0  # how far <φφ> may be from a solution's: of its largest entry, in standard errors


class Spectrum(NamedTuple):
    """``eigenvalues`` (complex, largest first), their standard errors, and what success rests on."""

    eigenvalues: np.ndarray
    stderr: np.ndarray
    checks: dict[str, Check]


@x64
def weight_outliers(solution: Solution, *, throw: bool = True) -> Solution:
    """Predicted outlier eigenvalues of the recurrent weights of a `posterior` solution.

    Fields over ``eigenvalue``, the largest first: ``eigenvalue_real`` and ``eigenvalue_imag`` of the learned part of the
    weights, ``eigenvalue_stderr`` (that of the draws behind a sampled solution, otherwise zero) and ``outlier``, whether
    it lies outside the bulk, whose ``radius`` is the last field.

    Error: that of the solution, whose checks this certificate repeats; the eigenvectors satisfy their equation to 1e-9,
    and for nonlinear networks the features are averaged once more and must be the solution's (to 1e-4, or six standard
    errors). There is no ``rtol`` to choose.
    Limits: tied weights; fluctuations of order 1/√N around the predicted values.
    """
    begun = time.perf_counter()
    network, task = solution.network, solution.task
    if solution.certificate.theory != "posterior" or task is None:
        raise ValueError(f"`solution` must come from widefield.posterior, got {solution.certificate.theory!r}.")
    if solution.certificate.options.get("method") == "perturbative":
        raise ValueError("`solution` must be a stationary state: ask widefield.posterior with method='full'.")
    if network.weights != "tied":
        raise ValueError("`solution` must be of a network with tied weights: untied ones have no common spectrum.")
    problem = core.problem_of(network, task, solution.certificate.options["temperature"])
    w = float(network.weight_variances[0]) if network.depth > 1 else 0.0
    spectrum = _spectrum(solution, problem, network.activation, w)
    z, radius = spectrum.eigenvalues, float(np.sqrt(w))
    certificate = Certificate(
        "weight_outliers",
        dict(solution.certificate.checks) | spectrum.checks,
        solution.certificate.failure,
        wall_time=time.perf_counter() - begun,
        options=dict(solution.certificate.options),
        notes=solution.certificate.notes,
    )
    each = ("eigenvalue",)
    fields = {
        "eigenvalue_real": (each, z.real), "eigenvalue_imag": (each, z.imag), "eigenvalue_stderr": (each, spectrum.stderr),
        "outlier": (each, np.abs(z) > radius), "radius": ((), np.asarray(radius)),
    }  # fmt: skip
    return make_solution(fields, certificate, network, task, throw=throw)


def _spectrum(solution: Solution, problem: core.Problem, activation: Activation, w: float) -> Spectrum:
    names = ("hidden",) if activation.known_as("linear") else ("hidden", "feature")
    missing = [name for name in names if name not in solution.data]
    if missing:
        raise ValueError(f"`solution` must have the fields {list(names)} for its spectrum, {missing} were left out.")
    nodes = lambda name: np.moveaxis(solution.data[name].values, 1, 2).reshape(problem.input_kernel.shape)  # noqa: E731
    if activation.known_as("linear"):
        spectrum = _of_moments(problem, w, nodes("hidden"), nodes("hidden"))
    else:
        sampled = nodes("feature_stderr") if "feature_stderr" in solution.data else None
        spectrum = _nonlinear(problem, activation, w, nodes("feature"), nodes("hidden"), sampled)
    size = np.abs(spectrum.eigenvalues)
    large = size > NOISE * max(1.0, size.max(initial=0))
    return spectrum._replace(eigenvalues=spectrum.eigenvalues[large], stderr=spectrum.stderr[large])


def _of_moments(problem: core.Problem, w: float, feature: np.ndarray, cross: np.ndarray) -> Spectrum:
    """Of w Ψ K^{-1}, largest first; ``cross`` is <φ hᵀ> over nodes."""
    before = np.zeros_like(cross)
    n = problem.n_samples
    before[n:] = cross[:-n]
    K = np.asarray(core.covariance(problem, feature))
    scale = np.sqrt(np.diagonal(K))
    inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0)
    correlations = inverse[:, None] * K * inverse
    K_inverse = inverse[:, None] * np.linalg.pinv(correlations, rcond=1e-11, hermitian=True) * inverse
    matrix = w * before @ K_inverse
    values, vectors = np.linalg.eig(matrix)
    off = np.abs(matrix @ vectors - vectors * values).max(initial=0) / max(1.0, np.abs(matrix).max(initial=0))
    order = np.argsort(-np.abs(values), kind="stable")
    return Spectrum(values[order], np.zeros(len(values)), {"eigenvector": Check(float(off), EXACT)})


def _nonlinear(
    problem: core.Problem,
    activation: Activation,
    w: float,
    feature: np.ndarray,
    hidden: np.ndarray,
    error: np.ndarray | None,
) -> Spectrum:
    """``error`` is the standard error of the features, None where they come from a grid."""
    moment = _cross_moment(problem, activation, feature, hidden)
    mean, n = moment.cross.mean(axis=0), len(moment.cross)
    off, allowed = np.abs(moment.feature.mean(axis=0) - feature), CONSISTENT * np.abs(feature).max()
    if error is not None:
        scatter = moment.feature.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else 0.0
        allowed = allowed + SPREAD * np.hypot(error, scatter)
    if not np.all(off <= allowed):
        raise ValueError(
            f"`solution` must be converged: its density has features up to {off.max():.2g} away from those it states."
        )
    judged = {"features": Check(float(np.max(off / allowed)), 1.0), "cross_moment": Check(moment.change, CONSISTENT)}
    spectrum = _of_moments(problem, w, feature, mean)
    spectrum = spectrum._replace(checks=judged | spectrum.checks)
    if n == 1:
        return spectrum
    rng, spread = np.random.default_rng(0), []
    for cross in moment.cross:  # each batch beside features that are off by their own standard error
        noise = np.triu(rng.normal(size=feature.shape))
        moved = feature + (0 if error is None else (noise + np.triu(noise, 1).T) * error)
        here = _of_moments(problem, w, moved, mean + (cross - mean) / np.sqrt(n)).eigenvalues
        spread.append(np.abs(here[:, None] - spectrum.eigenvalues).min(axis=0))
    return spectrum._replace(stderr=np.sqrt(np.mean(np.square(spread), axis=0)))


class Moment(NamedTuple):
    r"""``cross`` :math:`\Psi = \langle\varphi h^{\mathsf T}\rangle` and ``feature`` :math:`\langle\varphi\varphi^{\mathsf T}\rangle`
    (batch, node, node_) by independent batches of nodes; grids have one.

    ``change`` is the relative change of ``cross`` from the grid before, zero for draws.
    """

    cross: np.ndarray
    feature: np.ndarray
    change: float = 0.0


def _cross_moment(problem: core.Problem, activation: Activation, feature: np.ndarray, hidden: np.ndarray) -> Moment:
    r""":math:`\langle\varphi_a h_b\rangle` over the density of a state (Φ, C), and the features, which must be the state's.

    Method: grids up to four dimensions, until two agree to 1e-8; Sobol draws beyond, annealed ones where their weights
    collapse.
    """
    prior = saddle_map.prior_state(problem, activation)
    frame = saddle_map.saddle_map(problem, activation, None, prior, np.ones(problem.input_kernel.shape, bool))
    state = saddle_map.State(jnp.asarray(feature), jnp.asarray(hidden))
    density, dimension = frame.density(state), frame.dimension
    if dimension > MAX_DIMENSION:
        nodes = moments.draws(dimension, min(N_DRAWS, moments.capacity(dimension)), 0, N_BATCHES)
        cross, products, share = _sums(nodes, activation, density, state.hidden)
        if share < COLLAPSED:
            nodes, _ = annealed.anneal(activation, density, N_DRAWS // (4 * N_BATCHES), 0, N_BATCHES)
            cross, products, _ = _sums(nodes, activation, density, state.hidden)
        return Moment(np.asarray(cross), np.asarray(products))
    before = None
    for make in levels_of(frame, parity_of(activation) != 0):
        cross, products, _ = _sums(make(), activation, density, state.hidden)
        moment = Moment(np.asarray(cross), np.asarray(products))
        change = np.inf if before is None else np.abs(moment.cross - before.cross).max() / np.abs(moment.cross).max()
        before, moment = moment, moment._replace(change=float(change))
        if change <= SETTLED:
            break
    return moment


@eqx.filter_jit
def _sums(
    nodes: moments.Nodes, activation: Activation, density: moments.Density, hidden: Array
) -> tuple[Array, Array, Array]:
    """<φhᵀ> and <φφᵀ> by batch, and the effective share of all nodes."""
    return moments.batch_products(nodes, activation, density, hidden, lambda phi, h: ((phi, h), (phi, phi)))
