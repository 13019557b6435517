r"""The returned kernels put back into the saddle-point equations, in NumPy and without the solver's coordinates."""

import numpy as np

from widefield.theories.posterior.problem import Problem, by_state


def linear_residual(problem: Problem, hidden: np.ndarray, conjugate: np.ndarray, rank: int) -> float:
    r"""Largest violation of the two equations of a linear network, in units in which H is the identity.

    .. math::  H^{-1} = K^{-1} - 2\tilde\Phi, \qquad
               \tilde\Phi = \tfrac v2 S^{\!T}RYRS + \tfrac12[M^w w(K^{-1}HK^{-1} - K^{-1})]^+
    """
    if rank == 0:
        return 0.0
    scale = np.sqrt(np.diagonal(hidden))
    scale = np.where(scale > 0, scale, 1)
    values, vectors = np.linalg.eigh(hidden / scale / scale[:, None])
    values, vectors = values[-rank:], vectors[:, -rank:]
    L = scale[:, None] * vectors * np.sqrt(values)
    J = (vectors / np.sqrt(values)).T / scale
    K_inverse = np.linalg.inv(J @ _covariance(problem, hidden) @ J.T)
    first = K_inverse - 2 * L.T @ conjugate @ L - np.eye(rank)
    back = _returned(problem, J.T @ (K_inverse @ K_inverse - K_inverse) @ J)
    second = L.T @ (2 * conjugate - 2 * _pull(problem, hidden) - back) @ L
    return float(max(np.abs(first).max(), np.abs(second).max()))


def _covariance(problem: Problem, H: np.ndarray) -> np.ndarray:
    K = by_state(problem, np.array(problem.drive))
    blocks = by_state(problem, H)
    for a in range(1, problem.depth):
        for b in range(1, problem.depth):
            K[a, :, b] += problem.weight[a, b] * blocks[a - 1, :, b - 1]
    return K.reshape(H.shape)


def _returned(problem: Problem, Q: np.ndarray) -> np.ndarray:
    blocks, back = by_state(problem, Q), np.zeros_like(by_state(problem, Q))
    for a in range(problem.depth - 1):
        for b in range(problem.depth - 1):
            back[a, :, b] = problem.weight[a + 1, b + 1] * blocks[a + 1, :, b + 1]
    return back.reshape(Q.shape)


def _pull(problem: Problem, H: np.ndarray) -> np.ndarray:
    S = problem.supervised
    noisy = problem.readout * H[np.ix_(S, S)] + problem.temperature * np.eye(len(S))
    Ry = np.linalg.solve(noisy, problem.labels)
    pull = np.zeros_like(H)
    pull[np.ix_(S, S)] = 0.5 * problem.readout * Ry @ Ry.T
    return pull
