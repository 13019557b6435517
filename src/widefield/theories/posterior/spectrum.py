r"""Eigenvalues of the trained recurrent weights that leave the random bulk.

Given the neurons, the weights are those of least norm that produce them, plus what stays random,

.. math::  W = \tfrac wN\sum_{ab} h^a\,[K^{-1}]_{ab}\,\varphi(h^{b-1})^{T} + \text{random}, \qquad
           z = \mathrm{eig}\bigl(w\,\Psi K^{-1}\bigr),\quad \Psi_{ba} = \langle\varphi^{b-1}h^{a}\rangle

This is the mean of a Gaussian, :math:`W` and the input weights, under the condition that they produce :math:`h`; what
stays random is independent of the neurons, so that it moves no eigenvalue outside its own disc. With one input at the
first state and a linear activation it is Section 7's :math:`H_{1:L-1,1:L-1}^{-1}H_{1:L-1,2:L}`. An eigenvalue is an
outlier where :math:`|z| > \sqrt w`, the radius of the bulk.
"""

from typing import NamedTuple

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.solution import Solution
from widefield.question.activation import Activation
from widefield.theories.posterior import problem as core
from widefield.theories.posterior import verify
from widefield.theories.posterior.cross import CONSISTENT, SPREAD, cross_moment


class Spectrum(NamedTuple):
    """``outliers`` (complex, largest first), all ``eigenvalues`` of the learned part, ``radius`` of the bulk.

    ``stderr`` of each eigenvalue is that of the draws behind a sampled solution, otherwise zero.
    """

    outliers: np.ndarray
    eigenvalues: np.ndarray
    radius: float
    stderr: np.ndarray


@x64
def spectrum(solution: Solution) -> Spectrum:
    """Predicted outlier eigenvalues of the recurrent weights of a `posterior` solution.

    Error: that of the solution; for nonlinear networks the features are averaged once more and must be the solution's.
    Limits: tied weights; fluctuations of order 1/√N around the predicted values.
    """
    network, task = solution.network, solution.task
    if solution.certificate.theory != "posterior" or task is None:
        raise ValueError(f"`solution` must come from widefield.posterior, got {solution.certificate.theory!r}.")
    if network.weights != "tied":
        raise ValueError("`solution` must be of a network with tied weights: untied ones have no common spectrum.")
    problem = core.problem_of(network, task, solution.certificate.options["temperature"])
    nodes = lambda name: np.moveaxis(solution.data[name].values, 1, 2).reshape(problem.drive.shape)  # noqa: E731
    w = float(network.weight_variances[0]) if network.depth > 1 else 0.0
    if network.activation.known_as("linear"):
        hidden = nodes("hidden")
        eigenvalues = _eigenvalues(problem, w, hidden, hidden)
        error = np.zeros(len(eigenvalues))
    else:
        _need(solution, ("hidden", "feature"))
        sampled = nodes("feature_stderr") if "feature_stderr" in solution.data else None
        eigenvalues, error = _nonlinear(problem, network.activation, w, nodes("feature"), nodes("hidden"), sampled)
    large = np.abs(eigenvalues) > 1e-10 * max(1.0, np.abs(eigenvalues).max(initial=0))
    eigenvalues, error = eigenvalues[large], error[large]
    return Spectrum(eigenvalues[np.abs(eigenvalues) > np.sqrt(w)], eigenvalues, float(np.sqrt(w)), error)


def _need(solution: Solution, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in solution.data]
    if missing:
        raise ValueError(f"`solution` must have the fields {list(names)} for its spectrum, {missing} were left out.")


def _eigenvalues(problem: core.Problem, w: float, feature: np.ndarray, cross: np.ndarray) -> np.ndarray:
    """Of w Ψ K^{-1}, largest first; ``cross`` is <φ hᵀ> over nodes."""
    before = np.zeros_like(cross)
    n = problem.n_samples
    before[n:] = cross[:-n]
    found = np.linalg.eigvals(w * before @ _pseudo_inverse(verify.covariance(problem, feature)))
    return found[np.argsort(-np.abs(found), kind="stable")]


def _nonlinear(problem, activation: Activation, w: float, feature, hidden, error) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and their standard errors; ``error`` is that of the features, None where they come from a grid."""
    found = cross_moment(problem, activation, feature, hidden)
    _check_features(found.feature, feature, error)
    eigenvalues = _eigenvalues(problem, w, feature, found.cross.mean(axis=0))
    if len(found.cross) == 1:
        return eigenvalues, np.zeros(len(eigenvalues))
    n, rng = len(found.cross), np.random.default_rng(0)
    spread = []
    for cross in found.cross:  # each batch beside features that are off by their own standard error
        noise = np.triu(rng.normal(size=feature.shape))
        moved = feature + (0 if error is None else (noise + np.triu(noise, 1).T) * error)
        mean = found.cross.mean(axis=0)
        here = _eigenvalues(problem, w, moved, mean + (cross - mean) / np.sqrt(n))
        spread.append(np.abs(here[:, None] - eigenvalues).min(axis=0))
    return eigenvalues, np.sqrt(np.mean(np.square(spread), axis=0))


def _check_features(found: np.ndarray, feature: np.ndarray, error: np.ndarray | None) -> None:
    """The features that the solution's own density has must be the solution's."""
    off = np.abs(found.mean(axis=0) - feature)
    allowed = CONSISTENT * np.abs(feature).max()
    if error is not None:
        own = found.std(axis=0, ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0.0
        allowed = allowed + SPREAD * np.hypot(error, own)
    if not np.all(off <= allowed):
        raise ValueError(
            f"`solution` must be converged: its density has features up to {off.max():.2g} away from those it states."
        )


def _pseudo_inverse(K: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.diagonal(K))
    inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0)
    return inverse[:, None] * np.linalg.pinv(inverse[:, None] * K * inverse, rcond=1e-11, hermitian=True) * inverse
