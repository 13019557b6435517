r"""Perturbation theory in the labels of a linear network, to second order with all terms.

.. math::
    A_1 &= \mathrm{bwd}(vR_0YR_0), \qquad H_1 = \mathrm{fwd}(H_0A_1H_0), \qquad K_1 = w[H_1^-] \\
    A_2 &= \mathrm{bwd}(B_2 + w[(A_1H_0A_1)^+]), \qquad B_2 = -v^2(R_0H_1R_0YR_0 + \text{transp.}) \\
    H_2 &= \mathrm{fwd}(H_0A_2H_0 + H_0A_1H_0A_1H_0 + K_1A_1H_0 + H_0A_1K_1)

Eqs. (posterior.21), (posterior.22): :math:`A = 2\tilde\Phi`, bwd solves :math:`A = Q + w[A^+]`, fwd solves
:math:`H = Q + w[H^-]`. The poster's propagator term is :math:`w[(A_1H_0A_1)^+]` with its outer indices shifted by one;
it is one of several terms of the same order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from widefield.answer.certificate import Check
from widefield.question.activation import Activation
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.linear import free_energy as linear

PAIRS = ("state", "state_", "sample", "sample_")
NAMES = ("hidden", "conjugate", "hidden_terms", "propagator")
DEFAULT_ORDER, DEFAULT_RTOL, EXACT = 2, 0.5, 1e-10


class Expansion(NamedTuple):
    """H and A order by order in Y, and what the propagator term alone contributes to A2."""

    hidden: tuple[np.ndarray, np.ndarray, np.ndarray]
    conjugate: tuple[np.ndarray, np.ndarray, np.ndarray]
    propagator: np.ndarray


def require_linear(activation: Activation) -> None:
    """Refuse other activations by name."""
    if not activation.known_as("linear"):
        raise ValueError(
            f"`activation` must be linear for the perturbation theory in the labels, which is for linear networks, "
            f"got {activation}."
        )


def perturbative_fields(problem: core.Problem, series: Expansion, order: int) -> dict[str, tuple[tuple[str, ...], Any]]:
    """The fields of `widefield.posterior` with ``method="perturbative"``."""
    pairs = lambda M: core.by_pairs(problem, M)  # noqa: E731
    terms = np.stack([pairs(term) for term in series.hidden[: order + 1]])
    return {
        "hidden": (PAIRS, terms.sum(axis=0)),
        "conjugate": (PAIRS, 0.5 * pairs(sum(series.conjugate[: order + 1], np.zeros_like(series.hidden[0])))),
        "hidden_terms": (("order", *PAIRS), terms),
        "propagator": (PAIRS, 0.5 * pairs(series.propagator)),
    }


def perturbative_checks(problem: core.Problem, series: Expansion, order: int, rtol: float) -> dict[str, Check]:
    """The residual of the exact recursions order by order, and the first term that is left out, relative to the kernel."""
    zeroth, first, second = (float(np.abs(term).max(initial=0)) for term in series.hidden)
    third = second**2 / first if first > 0 else 0.0
    size = max(zeroth, 1e-300)
    error = (first, second, third)[order] / size
    return {"residual": Check(_residual(problem, series), EXACT), "error": Check(error, rtol)}


def expansion(problem: core.Problem) -> Expansion:
    """All terms up to second order."""
    shifted = lambda M: np.asarray(core.shifted(problem, M))  # noqa: E731
    returned = lambda M: np.asarray(core.returned(problem, M))  # noqa: E731
    forward = lambda Q: _sum(shifted, Q, problem.depth)  # noqa: E731
    backward = lambda Q: _sum(returned, Q, problem.depth)  # noqa: E731
    v, H0, y = float(problem.readout), linear.random_kernel(problem), core.all_labels(problem)
    R, Y = _response(problem, H0), y @ y.T
    A1 = backward(v * R @ Y @ R)
    H1 = forward(H0 @ A1 @ H0)
    K1 = shifted(H1)
    B2 = -(v**2) * (R @ H1 @ R @ Y @ R + R @ Y @ R @ H1 @ R)
    path = returned(A1 @ H0 @ A1)
    A2 = backward(B2 + path)
    H2 = forward(H0 @ A2 @ H0 + H0 @ A1 @ H0 @ A1 @ H0 + K1 @ A1 @ H0 + H0 @ A1 @ K1)
    return Expansion((H0, H1, H2), (np.zeros_like(H0), A1, A2), backward(path))


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


def _residual(problem: core.Problem, series: Expansion) -> float:
    r"""Violation of the exact recursions, Eq. (posterior.9), order by order, relative to each order's largest entry."""
    H, A = series.hidden, series.conjugate
    K = [np.asarray(core.shifted(problem, h)) for h in H]
    K[0] = K[0] + problem.input_kernel
    first = K[1] + K[0] @ A[1] @ K[0]
    second = K[2] + K[1] @ A[1] @ K[0] + K[0] @ A[1] @ K[1] + K[0] @ A[2] @ K[0] + K[0] @ A[1] @ H[0] @ A[1] @ K[0]
    off = [np.abs(k - h).max() / max(np.abs(h).max(), 1e-300) for k, h in zip((K[0], first, second), H, strict=True)]
    return float(np.max(off))
