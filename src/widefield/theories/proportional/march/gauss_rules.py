r"""Few nodes for long spectra: Gauss rules of the two measures that structured data enter by.

A power-law spectrum has thousands of eigenvalues, but sums :math:`\sum_kw_kf(\lambda_k)` over the smooth functions of the
theory need tens of nodes: the Gauss rule of the discrete measure, from Lanczos (Golub & Welsch 1969). Its error is
measured on decays :math:`e^{-\lambda\tau}` of all the times that training resolves.
"""

import numpy as np
from scipy.linalg import eigh_tridiagonal

from widefield.theories.proportional.march.structured import Modes

N_NODES = (24, 36, 54, 80, 120, 180)
SLOWEST = 30.0  # decays are tested up to this many times the training time, in units where the kernel is one


def compress(eigenvalues: np.ndarray, powers: np.ndarray, longest: float, rtol: float) -> tuple[Modes, float]:
    r"""Rules for :math:`\sum_kp_k\delta_{\lambda_k}` and :math:`\sum_k\lambda_k\delta_{\lambda_k}`, and their error.

    ``longest`` is the total training time, the sum of all rates; ``rtol`` what the error should be below.
    """
    target, power, first = gauss(eigenvalues, powers, longest, rtol)
    covariance, weight, second = gauss(eigenvalues, eigenvalues, longest, rtol)
    return Modes(target, power, covariance, weight), max(first, second)


def error_of(modes: Modes, eigenvalues: np.ndarray, powers: np.ndarray, longest: float) -> float:
    """The error of both rules on decays up to ``longest``, which may be another time than they were made for."""
    rules = ((powers, modes.target, modes.power), (eigenvalues, modes.covariance, modes.weight))
    return max(decay_error((eigenvalues, full), (nodes, weights), longest) for full, nodes, weights in rules)


def gauss(nodes: np.ndarray, weights: np.ndarray, longest: float, rtol: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The shortest rule that meets ``rtol`` on decays up to ``longest``; the measure itself where it is short enough."""
    nodes, weights = _merged(nodes, weights)
    for n in N_NODES:
        if n >= len(nodes):
            break
        few = lanczos_rule(nodes, weights, n)
        error = decay_error((nodes, weights), few, longest)
        if error <= rtol:
            return *few, error
    return nodes, weights, 0.0


def decay_error(full: tuple, few: tuple, longest: float) -> float:
    r"""Largest error of :math:`\sum w\,\lambda^je^{-\lambda\tau}`, j = 0, 1, relative to its value without decay."""
    times = np.concatenate([[0.0], np.geomspace(1e-2, 1.0, 30) * SLOWEST * longest])
    worst = 0.0
    for j in (0, 1):
        exact, short = ((w * x**j) @ np.exp(-np.outer(x, times)) for x, w in (full, few))
        worst = max(worst, float(np.max(np.abs(short - exact)) / exact[0]))
    return worst


def lanczos_rule(nodes: np.ndarray, weights: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n-point Gauss rule of a discrete measure; every vector is orthogonalized twice against all before it."""
    basis = np.zeros((n, len(nodes)))
    diagonal, beside = np.zeros(n), np.zeros(n)
    vector = np.sqrt(weights)
    total = vector @ vector
    for j in range(n):
        size = np.sqrt(vector @ vector)
        beside[j] = size
        basis[j] = vector / size
        vector = nodes * basis[j]
        diagonal[j] = basis[j] @ vector
        for _ in range(2):
            vector = vector - basis[: j + 1].T @ (basis[: j + 1] @ vector)
    values, vectors = eigh_tridiagonal(diagonal, beside[1:])
    return values, total * vectors[0] ** 2


def _merged(nodes: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each eigenvalue once, without those of no weight."""
    values, where = np.unique(nodes, return_inverse=True)
    summed = np.bincount(where, weights)
    return values[summed > 0], summed[summed > 0]
