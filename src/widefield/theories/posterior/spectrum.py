r"""Eigenvalues of the trained recurrent weights that leave the random bulk.

Given the neurons, the weights are those of least norm that produce them, plus what stays random,

.. math::  W = \tfrac wN\sum_{ab} h^a\,[K^{-1}]_{ab}\,\varphi(h^{b-1})^{T} + \text{random}, \qquad
           z = \mathrm{eig}\bigl(w\,\Psi K^{-1}\bigr),\quad \Psi_{ba} = \langle\varphi^{b-1}h^{a}\rangle

With one input at the first state this is Section 7's :math:`H_{1:L-1,1:L-1}^{-1}H_{1:L-1,2:L}`. An eigenvalue is an
outlier where :math:`|z| > \sqrt w`, the radius of the bulk.
"""

from typing import NamedTuple

import numpy as np

from widefield.boundary import x64
from widefield.solution import Solution
from widefield.theories.posterior import problem as core
from widefield.theories.posterior import verify


class Spectrum(NamedTuple):
    """``outliers`` (complex, largest first), all ``eigenvalues`` of the learned part, ``radius`` of the bulk."""

    outliers: np.ndarray
    eigenvalues: np.ndarray
    radius: float


@x64
def spectrum(solution: Solution) -> Spectrum:
    """Predicted outlier eigenvalues of the recurrent weights of a `posterior` solution.

    Limits: tied weights and a linear activation; fluctuations of order 1/√N around the predicted values.
    """
    network, task = solution.network, solution.task
    if solution.certificate.theory != "posterior" or task is None:
        raise ValueError(f"`solution` must come from widefield.posterior, got {solution.certificate.theory!r}.")
    if network.weights != "tied":
        raise ValueError("`solution` must be of a network with tied weights: untied ones have no common spectrum.")
    if network.activation.name != "linear":
        raise ValueError(f"`solution` must be of a linear network for its spectrum, got {network.activation}.")
    problem = core.problem_of(network, task, solution.certificate.options["temperature"])
    hidden = np.moveaxis(solution.hidden.values, 1, 2).reshape(problem.drive.shape)
    K = verify.covariance(problem, hidden)
    before = np.zeros_like(hidden)
    n = problem.n_samples
    before[n:] = hidden[:-n]
    w = float(network.weight_variances[0]) if network.depth > 1 else 0.0
    eigenvalues = np.linalg.eigvals(w * before @ _pseudo_inverse(K))
    eigenvalues = eigenvalues[np.argsort(-np.abs(eigenvalues))]
    eigenvalues = eigenvalues[np.abs(eigenvalues) > 1e-10 * max(1.0, np.abs(eigenvalues).max(initial=0))]
    return Spectrum(eigenvalues[np.abs(eigenvalues) > np.sqrt(w)], eigenvalues, float(np.sqrt(w)))


def _pseudo_inverse(K: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.diagonal(K))
    inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0)
    return inverse[:, None] * np.linalg.pinv(inverse[:, None] * K * inverse, rcond=1e-11, hermitian=True) * inverse
