r"""The returned kernels put back into the saddle-point equations, without the solver's coordinates."""

import numpy as np

from widefield.theories.posterior.problem import Problem, covariance, label_response, returned


def linear_saddle(problem: Problem, hidden: np.ndarray, rank: int) -> tuple[np.ndarray, float]:
    r"""Φ̃ of a linear network's kernel, Eq. (posterior.5), and the largest violation of Eq. (posterior.9).

    .. math::  \tilde\Phi = \tfrac v2 S^{\!T}RYRS + \tfrac12[M^w w(K^{-1}HK^{-1} - K^{-1})]^+, \qquad
               H^{-1} = K^{-1} - 2\tilde\Phi

    Everything on the range of H, which has ``rank`` dimensions, where H is the identity, and in units of the largest term.
    """
    pull = np.asarray(label_response(problem, hidden)[1])
    if rank == 0:
        return pull, 0.0
    scale = np.sqrt(np.diagonal(hidden))
    scale = np.where(scale > 0, scale, 1)
    values, vectors = np.linalg.eigh(hidden / scale / scale[:, None])
    values, vectors = values[-rank:], vectors[:, -rank:]
    L = scale[:, None] * vectors * np.sqrt(values)
    J = (vectors / np.sqrt(values)).T / scale
    K_inverse = np.linalg.inv(J @ np.asarray(covariance(problem, hidden)) @ J.T)
    back = np.asarray(returned(problem, J.T @ (K_inverse @ K_inverse - K_inverse) @ J))
    conjugate = pull + 0.25 * (back + back.T)
    pulled = 2 * L.T @ conjugate @ L
    size = max(1.0, np.abs(K_inverse).max(), np.abs(pulled).max())
    return conjugate, float(np.abs(K_inverse - pulled - np.eye(rank)).max() / size)
