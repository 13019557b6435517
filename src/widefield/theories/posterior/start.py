"""Where a search for stationary states begins when a neighbor's answer is given."""

from typing import Any, NamedTuple

import numpy as np

from widefield.answer.certificate import Status
from widefield.answer.solution import Solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task


class Start(NamedTuple):
    """Kernels over nodes (state, sample), state-major, and whether they are those of a coherent state."""

    feature: np.ndarray
    hidden: np.ndarray
    coherent: bool


def start_of(solution: Any, network: Network, task: Task) -> Start:
    """The kernels of a posterior; refuses by name what is none, has failed, or has another shape."""
    if not isinstance(solution, Solution):
        raise ValueError(f"`start` must be a Solution of widefield.posterior, got {checks.shown(solution)}.")
    certificate = solution.certificate
    if certificate.theory != "posterior" or certificate.options.get("method") == "perturbative":
        raise ValueError(f"`start` must come from widefield.posterior with method='full', got {certificate.theory!r}.")
    if solution.status is not Status.success:
        raise ValueError(f"`start` must be a success, got a solution with status {solution.status.name!r}.")
    missing = [name for name in ("feature", "hidden", "branch") if name not in solution.data]
    if missing:
        raise ValueError(f"`start` must have the fields feature, hidden and branch; {missing} were left out of it.")
    shape = solution.data["feature"].shape
    if shape[0] != network.depth or shape[-1] != task.n_samples:
        raise ValueError(
            f"`start` must have the states and samples of this question, {network.depth} and {task.n_samples}, "
            f"got {shape[0]} and {shape[-1]}."
        )
    over_nodes = lambda name: _over_nodes(solution.data[name].values)  # noqa: E731
    return Start(over_nodes("feature"), over_nodes("hidden"), solution.data["branch"].item() == "coherent")


def _over_nodes(kernel: np.ndarray) -> np.ndarray:
    """A field (state, state_, sample, sample_) as a matrix."""
    return np.moveaxis(kernel, 1, 2).reshape(2 * (kernel.shape[0] * kernel.shape[2],))
