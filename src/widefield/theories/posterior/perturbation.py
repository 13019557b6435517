r"""Perturbation theory in the labels of a linear network, to second order with all terms.

.. math::
    A_1 &= \mathrm{bwd}(vR_0YR_0), \qquad H_1 = \mathrm{fwd}(H_0A_1H_0), \qquad K_1 = w[H_1^-] \\
    A_2 &= \mathrm{bwd}(B_2 + w[(A_1H_0A_1)^+]), \qquad B_2 = -v^2(R_0H_1R_0YR_0 + \text{transp.}) \\
    H_2 &= \mathrm{fwd}(H_0A_2H_0 + H_0A_1H_0A_1H_0 + K_1A_1H_0 + H_0A_1K_1)

Section 8 of theory/posterior: :math:`A = 2\tilde\Phi`, bwd solves :math:`A = Q + w[A^+]`, fwd solves
:math:`H = Q + w[H^-]`. The poster's propagator term is :math:`w[(A_1H_0A_1)^+]` with its outer indices shifted by one;
it is one of several terms of the same order.
"""

import time
from collections.abc import Callable

import numpy as np

from widefield.answer import legacy
from widefield.answer.boundary import x64
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.posterior import linear
from widefield.theories.posterior import problem as core

PAIRS = ("state", "state_", "sample", "sample_")


@x64
def perturbation(network: Network, task: Task, *, temperature: float, order: int = 2) -> Solution:
    r"""Kernels of a weakly trained linear network, up to ``order`` 0, 1 or 2 in the labels' kernel Y.

    Returns ``hidden`` up to that order, ``conjugate`` Φ̃ = A/2 likewise, ``hidden_terms`` (order, …) one by one, and
    ``propagator`` = ½ bwd(w[(A1 H0 A1)^+]): which states the labels reach by way of others. Untied weights keep only
    its diagonal in the states, so that states without labels stay unreached.
    Error: none but roundings; what is left out is of the next order in Y.
    Limits: linear networks. Grows wrong where the labels are strong; a phase transition is beyond any order.
    """
    begun = time.perf_counter()
    order = checks.integer("order", order, 0)
    if order > 2:
        raise ValueError(f"`order` must be 0, 1 or 2, got {order}.")
    problem = core.problem_of(network, task, temperature)
    if not network.activation.known_as("linear"):
        raise ValueError(
            f"`activation` must be linear for the perturbation theory in the labels (Section 8 of theory/posterior is "
            f"for linear networks), got {network.activation}."
        )
    H, A, propagator = expansion(problem)
    pairs = lambda M: np.moveaxis(core.by_state(problem, M), 2, 1)  # noqa: E731
    terms = np.stack([pairs(term) for term in H[: order + 1]])
    fields = {
        "hidden": (PAIRS, terms.sum(axis=0)),
        "conjugate": (PAIRS, 0.5 * pairs(sum(A[: order + 1], np.zeros_like(H[0])))),
        "hidden_terms": (("order", *PAIRS), terms),
        "propagator": (PAIRS, 0.5 * pairs(propagator)),
    }
    certificate = legacy.certificate(
        theory="perturbation",
        residual=_residual(problem, H, A),
        tolerance=1e-10,
        wall_time=time.perf_counter() - begun,
        options={"temperature": float(temperature), "order": order},
        notes=task.notes,
    )
    return make_solution(fields, certificate, network, task, coords={"order": np.arange(order + 1)})


def expansion(problem: core.Problem) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """H and A order by order in Y, and what the propagator term alone contributes to A2."""
    shifted = lambda M: np.asarray(core.shifted(problem, M))  # noqa: E731
    returned = lambda M: np.asarray(core.returned(problem, M))  # noqa: E731
    forward = lambda Q: _sum(shifted, Q, problem.depth)  # noqa: E731
    backward = lambda Q: _sum(returned, Q, problem.depth)  # noqa: E731
    v, H0 = float(problem.readout), linear.random_kernel(problem)
    R, Y = _response(problem, H0), _labels(problem)
    A1 = backward(v * R @ Y @ R)
    H1 = forward(H0 @ A1 @ H0)
    K1 = shifted(H1)
    B2 = -(v**2) * (R @ H1 @ R @ Y @ R + R @ Y @ R @ H1 @ R)
    path = returned(A1 @ H0 @ A1)
    A2 = backward(B2 + path)
    H2 = forward(H0 @ A2 @ H0 + H0 @ A1 @ H0 @ A1 @ H0 + K1 @ A1 @ H0 + H0 @ A1 @ K1)
    return [H0, H1, H2], [np.zeros_like(H0), A1, A2], backward(path)


def _sum(step: Callable[[np.ndarray], np.ndarray], Q: np.ndarray, depth: int) -> np.ndarray:
    """Q + step(Q) + step(step(Q)) + …, which ends after as many terms as there are states."""
    total = Q
    for _ in range(depth - 1):
        total = Q + step(total)
    return total


def _response(problem: core.Problem, H0: np.ndarray) -> np.ndarray:
    """(vH0 + κ)^{-1} on the supervised nodes, zero elsewhere."""
    S = problem.supervised
    R = np.zeros_like(H0)
    R[np.ix_(S, S)] = np.linalg.inv(float(problem.readout) * H0[np.ix_(S, S)] + problem.temperature * np.eye(len(S)))
    return R


def _labels(problem: core.Problem) -> np.ndarray:
    y = linear.all_labels(problem)
    return y @ y.T


def _residual(problem: core.Problem, H: list[np.ndarray], A: list[np.ndarray]) -> float:
    """Violation of the exact recursions order by order, relative to each order's largest entry.

    .. math::  H = K + KAK + KAHAK, \\qquad K = uX^- + w[H^-]
    """
    K = [
        problem.drive + np.asarray(core.shifted(problem, H[0])),
        *(np.asarray(core.shifted(problem, h)) for h in H[1:]),
    ]
    first = K[1] + K[0] @ A[1] @ K[0] - H[1]
    second = (
        K[2] + K[1] @ A[1] @ K[0] + K[0] @ A[1] @ K[1] + K[0] @ A[2] @ K[0] + K[0] @ A[1] @ H[0] @ A[1] @ K[0] - H[2]
    )
    off = [
        np.abs(r).max() / max(np.abs(h).max(), 1e-300) for r, h in ((K[0] - H[0], H[0]), (first, H[1]), (second, H[2]))
    ]
    return float(max(off))
