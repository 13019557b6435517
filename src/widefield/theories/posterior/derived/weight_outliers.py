r"""Eigenvalues of the trained recurrent weights that leave the random bulk.

Given the neurons, the weights are those of least norm that produce them, plus what stays random,

.. math::  W = \tfrac wN\sum_{ab} h^a\,[K^{-1}]_{ab}\,\varphi(h^{b-1})^{T} + \text{random}, \qquad
           z = \mathrm{eig}\bigl(w\,\Psi K^{-1}\bigr),\quad \Psi_{ba} = \langle\varphi^{b-1}h^{a}\rangle

Eq. (posterior.23). This is the mean of a Gaussian, :math:`W` and the input weights, under the condition that they produce
:math:`h`; what stays random is independent of the neurons, so that it moves no eigenvalue outside its own disc. An
eigenvalue is an outlier where :math:`|z| > \sqrt w`, the radius of the bulk.
"""

import time
from typing import NamedTuple

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import Solution, make_solution
from widefield.question.activation import Activation
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.nonlinear.cross_moment import CONSISTENT, SPREAD, cross_moment

NOISE = 1e-10  # of the largest eigenvalue: what lies below is a rounding
EXACT = 1e-9  # residual of an eigenvector


class Spectrum(NamedTuple):
    """``eigenvalues`` (complex, largest first), their standard errors, the largest residual of an eigenvector, and what
    the density's own features say."""

    eigenvalues: np.ndarray
    stderr: np.ndarray
    residual: float
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
        dict(solution.certificate.checks) | spectrum.checks | {"eigenvector": Check(spectrum.residual, EXACT)},
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
    matrix = w * before @ _pseudo_inverse(np.asarray(core.covariance(problem, feature)))
    values, vectors = np.linalg.eig(matrix)
    residual = float(
        np.abs(matrix @ vectors - vectors * values).max(initial=0) / max(1.0, np.abs(matrix).max(initial=0))
    )
    order = np.argsort(-np.abs(values), kind="stable")
    return Spectrum(values[order], np.zeros(len(values)), residual, {})


def _nonlinear(
    problem: core.Problem,
    activation: Activation,
    w: float,
    feature: np.ndarray,
    hidden: np.ndarray,
    error: np.ndarray | None,
) -> Spectrum:
    """``error`` is the standard error of the features, None where they come from a grid."""
    moment = cross_moment(problem, activation, feature, hidden)
    mean, n = moment.cross.mean(axis=0), len(moment.cross)
    off = _feature_deviation(moment.feature, feature, error)
    checks = {"features": Check(off, 1.0), "cross_moment": Check(moment.change, CONSISTENT)}
    spectrum = _of_moments(problem, w, feature, mean)._replace(checks=checks)
    if n == 1:
        return spectrum
    rng, spread = np.random.default_rng(0), []
    for cross in moment.cross:  # each batch beside features that are off by their own standard error
        noise = np.triu(rng.normal(size=feature.shape))
        moved = feature + (0 if error is None else (noise + np.triu(noise, 1).T) * error)
        here = _of_moments(problem, w, moved, mean + (cross - mean) / np.sqrt(n)).eigenvalues
        spread.append(np.abs(here[:, None] - spectrum.eigenvalues).min(axis=0))
    return spectrum._replace(stderr=np.sqrt(np.mean(np.square(spread), axis=0)))


def _feature_deviation(features: np.ndarray, feature: np.ndarray, error: np.ndarray | None) -> float:
    """How far the features of the solution's own density are from the solution's, in units of what is allowed."""
    off = np.abs(features.mean(axis=0) - feature)
    allowed = CONSISTENT * np.abs(feature).max()
    if error is not None:
        scatter = features.std(axis=0, ddof=1) / np.sqrt(len(features)) if len(features) > 1 else 0.0
        allowed = allowed + SPREAD * np.hypot(error, scatter)
    if not np.all(off <= allowed):
        raise ValueError(
            f"`solution` must be converged: its density has features up to {off.max():.2g} away from those it states."
        )
    return float(np.max(off / allowed))


def _pseudo_inverse(K: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.diagonal(K))
    inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0)
    return inverse[:, None] * np.linalg.pinv(inverse[:, None] * K * inverse, rcond=1e-11, hermitian=True) * inverse
