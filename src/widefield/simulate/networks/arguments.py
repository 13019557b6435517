"""What every simulator checks of its call."""

from typing import Any

from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task


def check_call(simulator: str, network: Any, task: Any, *, replicates: Any, seed: Any, progress: Any) -> None:
    """Raise where the network, the task, or one of the options that all simulators take makes no sense."""
    if not isinstance(network, Network):
        raise ValueError(f"`network` must be a widefield.Network (DNN or RNN), got {type(network).__name__}.")
    network.refuse_branch(simulator)
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a widefield.Task, got {type(task).__name__}.")
    check_options(replicates=replicates, seed=seed, progress=progress)


def check_options(*, replicates: Any, seed: Any, progress: Any) -> None:
    """Raise where one of the options that all simulators take makes no sense."""
    checks.integer("replicates", replicates, 1)
    checks.integer("seed", seed, 0)
    if progress is not None:
        checks.flag("progress", progress)


def check_shared_inputs(network: Network, sizes: tuple[int, ...], n_driven: int) -> None:
    """Tied input weights need driven states of one width."""
    if network.inputs == "tied" and len(set(sizes[:n_driven])) > 1:
        raise ValueError(f"`inputs` must be 'untied': {n_driven} driven states of unequal widths {sizes} share no U.")
