r"""Perturbation theory in the labels of a linear network, to second order with all terms, Eqs. (posterior.21),
(posterior.22): :math:`A = 2\tilde\Phi`, bwd solves :math:`A = Q + w[A^+]`, fwd solves :math:`H = Q + w[H^-]`."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from widefield.answer.boundary import choose_quantities
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.linear import free_energy as linear

PAIRS = ("state", "state_", "sample", "sample_")
DEFAULT_RTOL, EXACT = 0.5, 1e-10


class Expansion(NamedTuple):
    """H and A order by order in Y, and what the propagator term alone contributes to A2."""

    hidden: tuple[np.ndarray, np.ndarray, np.ndarray]
    conjugate: tuple[np.ndarray, np.ndarray, np.ndarray]
    propagator: np.ndarray


def perturbative(
    network: Network,
    task: Task,
    temperature: float,
    order: int | None,
    quantities: Any,
    rtol: float | None,
    throw: bool,
) -> Solution:
    """`widefield.posterior` with ``method="perturbative"``."""
    begun = time.perf_counter()
    order = checks.integer("order", 2 if order is None else order, 0)
    if order > 2:
        raise ValueError(f"`order` must be 0, 1 or 2, got {order}.")
    rtol = DEFAULT_RTOL if rtol is None else checks.tolerance("rtol", rtol, 1e-12)
    problem = core.problem_of(network, task, temperature)
    if not network.activation.known_as("linear"):
        raise ValueError(
            f"`activation` must be linear for the perturbation theory in the labels, which is for linear networks, "
            f"got {network.activation}."
        )
    size = 8 * len(problem.input_kernel) ** 2
    sizes = {"hidden": size, "conjugate": size, "hidden_terms": (order + 1) * size, "propagator": size}
    wanted, left_out = choose_quantities(quantities, sizes)
    series = expansion(problem)
    # The first term that is left out, relative to the kernel.
    zeroth, first, second = (float(np.abs(term).max(initial=0)) for term in series.hidden)
    third = second**2 / first if first > 0 else 0.0
    error = (first, second, third)[order] / max(zeroth, 1e-300)
    made_with = {"temperature": float(temperature), "method": "perturbative", "order": order}
    certificate = Certificate(
        "posterior",
        {"residual": Check(_residual(problem, series), EXACT), "error": Check(error, rtol)},
        wall_time=time.perf_counter() - begun,
        options=made_with | {"quantities": list(wanted)},
        notes=task.notes,
        left_out=left_out,
    )
    pairs = lambda M: core.by_pairs(problem, M)  # noqa: E731
    terms = np.stack([pairs(term) for term in series.hidden[: order + 1]])
    fields = {
        "hidden": (PAIRS, terms.sum(axis=0)),
        "conjugate": (PAIRS, 0.5 * pairs(sum(series.conjugate[: order + 1], np.zeros_like(series.hidden[0])))),
        "hidden_terms": (("order", *PAIRS), terms),
        "propagator": (PAIRS, 0.5 * pairs(series.propagator)),
    }
    coords = {"order": np.arange(order + 1)} if "hidden_terms" in wanted else None
    return make_solution({n: fields[n] for n in wanted}, certificate, network, task, coords=coords, throw=throw)


def expansion(problem: core.Problem) -> Expansion:
    """All terms up to second order."""
    shifted = lambda M: np.asarray(core.shifted(problem, M))  # noqa: E731
    returned = lambda M: np.asarray(core.returned(problem, M))  # noqa: E731

    def resolved(step: Callable[[np.ndarray], np.ndarray], Q: np.ndarray) -> np.ndarray:
        """Q + step(Q) + step(step(Q)) + …, which ends after as many terms as there are states."""
        total = Q
        for _ in range(problem.depth - 1):
            total = Q + step(total)
        return total

    forward, backward = partial(resolved, shifted), partial(resolved, returned)
    v, H0, y, S = float(problem.readout), linear.random_kernel(problem), core.all_labels(problem), problem.supervised
    R, Y = np.zeros_like(H0), y @ y.T
    R[np.ix_(S, S)] = np.linalg.inv(v * H0[np.ix_(S, S)] + problem.temperature * np.eye(len(S)))
    A1 = backward(v * R @ Y @ R)
    H1 = forward(H0 @ A1 @ H0)
    K1 = shifted(H1)
    B2 = -(v**2) * (R @ H1 @ R @ Y @ R + R @ Y @ R @ H1 @ R)
    path = returned(A1 @ H0 @ A1)
    A2 = backward(B2 + path)
    H2 = forward(H0 @ A2 @ H0 + H0 @ A1 @ H0 @ A1 @ H0 + K1 @ A1 @ H0 + H0 @ A1 @ K1)
    return Expansion((H0, H1, H2), (np.zeros_like(H0), A1, A2), backward(path))


def _residual(problem: core.Problem, series: Expansion) -> float:
    r"""Violation of the exact recursions, Eq. (posterior.9), order by order, relative to each order's largest entry."""
    H, A = series.hidden, series.conjugate
    K = [np.asarray(core.shifted(problem, h)) for h in H]
    K[0] = K[0] + problem.input_kernel
    first = K[1] + K[0] @ A[1] @ K[0]
    second = K[2] + K[1] @ A[1] @ K[0] + K[0] @ A[1] @ K[1] + K[0] @ A[2] @ K[0] + K[0] @ A[1] @ H[0] @ A[1] @ K[0]
    off = [np.abs(k - h).max() / max(np.abs(h).max(), 1e-300) for k, h in zip((K[0], first, second), H, strict=True)]
    return float(np.max(off))
