r"""The returned kernels put back into the saddle-point equations, in NumPy and without the solver's coordinates."""

import numpy as np

from widefield.theories.posterior.problem import Problem, by_state


def linear_saddle(problem: Problem, hidden: np.ndarray, rank: int) -> tuple[np.ndarray, float]:
    r"""Φ̃ of a linear network's kernel, and the largest violation of :math:`H^{-1} = K^{-1} - 2\tilde\Phi`, Eq. (posterior.9).

    .. math::  \tilde\Phi = \tfrac v2 S^{\!T}RYRS + \tfrac12[M^w w(K^{-1}HK^{-1} - K^{-1})]^+

    Everything on the range of H, which has ``rank`` dimensions, and in units in which H is the identity.
    """
    if rank == 0:
        return pull(problem, hidden), 0.0
    scale = np.sqrt(np.diagonal(hidden))
    scale = np.where(scale > 0, scale, 1)
    values, vectors = np.linalg.eigh(hidden / scale / scale[:, None])
    values, vectors = values[-rank:], vectors[:, -rank:]
    L = scale[:, None] * vectors * np.sqrt(values)
    J = (vectors / np.sqrt(values)).T / scale
    K_inverse = np.linalg.inv(J @ covariance(problem, hidden) @ J.T)
    back = returned(problem, J.T @ (K_inverse @ K_inverse - K_inverse) @ J)
    conjugate = pull(problem, hidden) + 0.25 * (back + back.T)
    return conjugate, float(np.abs(K_inverse - 2 * L.T @ conjugate @ L - np.eye(rank)).max())


def energy(problem: Problem, feature: np.ndarray) -> float:
    r""":math:`\tfrac12\,\mathrm{tr}\,Y(v\Phi_{SS}+\kappa)^{-1}`."""
    return 0.5 * float(np.sum(problem.labels * _response(problem, feature)))


def covariance(problem: Problem, feature: np.ndarray) -> np.ndarray:
    """K(Φ), written out block by block."""
    K = by_state(problem, np.array(problem.drive))
    blocks = by_state(problem, feature)
    for a in range(1, problem.depth):
        for b in range(1, problem.depth):
            K[a, :, b] += problem.weight[a, b] * blocks[a - 1, :, b - 1]
    return K.reshape(feature.shape)


def returned(problem: Problem, Q: np.ndarray) -> np.ndarray:
    """[M^w w Q]^+, written out block by block."""
    blocks, back = by_state(problem, Q), np.zeros_like(by_state(problem, Q))
    for a in range(problem.depth - 1):
        for b in range(problem.depth - 1):
            back[a, :, b] = problem.weight[a + 1, b + 1] * blocks[a + 1, :, b + 1]
    return back.reshape(Q.shape)


def pull(problem: Problem, feature: np.ndarray) -> np.ndarray:
    r""":math:`\tfrac v2 S^{\!T}RYRS`."""
    Ry = _response(problem, feature)
    full = np.zeros_like(feature)
    full[np.ix_(problem.supervised, problem.supervised)] = 0.5 * problem.readout * Ry @ Ry.T
    return full


def _response(problem: Problem, feature: np.ndarray) -> np.ndarray:
    S = problem.supervised
    return np.linalg.solve(
        problem.readout * feature[np.ix_(S, S)] + problem.temperature * np.eye(len(S)), problem.labels
    )
