"""The memory that a question takes, predicted before any of it is allocated."""

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from widefield.answer.boundary import memory_budget, require_memory
from widefield.theories.dynamics import inputs
from widefield.theories.dynamics.curves import N_BATCHES
from widefield.theories.dynamics.march import batch, held_out, responses
from widefield.theories.dynamics.problem import PER_STEP, Problem

if TYPE_CHECKING:
    from widefield.theories.dynamics.request import Request

KERNELS, DRAWN = ("feature_kernel", "gradient_kernel"), ("preactivation", "pregradient")
COMPILED = 1.5e8  # bytes that compilations take
LEAST_PATHS = 64  # that can be asked for
COPIES = 3 * N_BATCHES + 2  # of an average over batches: theirs, stacked, and their distances from the mean
LEVELS = 6  # richnesses at which orders are measured
FIRST_PATHS, BLOCK = 1024, 8192  # paths at first; nodes whose whole history is held at once


def sizes(
    problem: Problem, method: str, n_steps: int, chosen: bool, n_paths: int, asked: tuple[str, ...] | None
) -> dict[str, int]:
    """Bytes of every field that the method has, with what it is made of, the most wanted first.

    Responses are made on request alone.
    """
    task, depth, channels, n = problem.task, problem.network.depth, problem.n_channels, problem.task.n_samples
    n_all, n_rows = n + task.n_test, len(problem.rates) * (4 if problem.training.flow else 1)
    copies = COPIES * (LEVELS if method == "perturbative" else 1)
    if problem.exact or method == "lazy":
        copies = 2 if method == "perturbative" else 3
    curve = 8 * n_rows * n_all * depth * problem.labels.shape[2] * copies
    made = {"loss": 8 * n_rows * copies, "prediction": curve}
    if task.n_test:
        made["test_prediction"] = curve
    if task.y_test is not None:
        made["test_loss"] = 8 * n_rows * copies
    if depth > 1 and method in ("full", "lazy"):
        made["state_prediction"] = curve
    ntk = 8 * channels**2 * n**2 * (1 if method == "lazy" else n_rows * copies)
    made |= {"ntk": ntk, "alignment": 8 * n_rows * depth * copies, "ntk_alignment": ntk}
    two_times = 8 * depth * (1 if problem.by_layer else depth) * n_steps**2 * n**2 * copies
    held = 1 if problem.exact else max(n_paths, BLOCK if depth == 1 and method == "full" else 0)
    samples = 0 if method == "lazy" else 8 * n_steps * depth * n * held * (3 + 3 * channels)
    made |= {"feature_kernel": two_times + samples, "gradient_kernel": channels**2 * two_times + samples}
    if method == "lazy":  # these are made of the prior's kernels between all states
        between = 16 * depth**2 * n_all * n
        made |= {name: made[name] + between for name in (*KERNELS, "alignment", "state_prediction") if name in made}
    if method in ("full", "independent") and not problem.training.flow:
        drawn = 2 * 8 * depth * n * n_paths * N_BATCHES * (n_steps if chosen else 1)
        made |= {"preactivation": drawn, "pregradient": drawn * channels}
        if set(asked or ()) & set(responses.NAMES):
            made |= responses.sizes(problem, n_steps, n_paths)
    return made


def _rank(problem: Problem, n: int) -> int:
    """Most directions of the inputs of so many samples."""
    depth, driven = problem.network.depth, problem.task.sequences(problem.network.depth).shape
    return min(depth * n, driven[1] * driven[2] + depth * bool(problem.network.bias_variances.any()))


def first_paths(problem: Problem, n: int | None = None) -> int:
    """As many paths as the first step needs, of the task or of ``n`` samples."""
    n = n or problem.task.n_samples
    least = max(batch.most_new(problem.shape, n), _rank(problem, n), problem.shape.n_outputs)
    return batch.enough_paths(least, FIRST_PATHS)


def solving(problem: Problem, method: str, n_paths: int | None, n_samples: int | None = None) -> float:
    """Bytes of the solve, whatever is asked for, with as many samples as the task has or ``n_samples``.

    Where ``n_paths`` is None there are as many paths as the first step needs.
    """
    task, network, shape = problem.task, problem.network, problem.shape
    n = n_samples or task.n_samples
    n_all, depth, flow = n + task.n_test, network.depth, problem.training.flow
    n_rows, compiled = len(problem.rates) * (4 if flow else 1), COMPILED * (2 if flow else 1)
    rows = n_rows * (PER_STEP + 8 * n_all * depth * shape.n_outputs)
    matrix, kernels = 8 * n * n_all, depth * len(problem.readouts)
    if method == "lazy":
        return COMPILED / 3 + rows + (3 + kernels) * matrix
    if method == "perturbative" and problem.exact and problem.by_layer:  # in closed form
        return COMPILED + rows + (4 + kernels) * matrix + 6 * 8 * n_rows * (n**2 + n_all)
    if method == "full" and problem.white and n_samples is None:  # two samples stand for all
        return 3 * 8 * n**2 + solving(problem, method, n_paths, 2)
    asked = n_paths
    rank, n_matrices, most = _rank(problem, n), len(set(shape.matrices)), batch.most_new(shape, n)
    n_directions = batch.first_directions(most, n_rows)
    if problem.exact:
        n_paths = rank + shape.n_outputs + 2 * n_matrices * n_directions
        start, buffers = 4.0 * n_paths**2, 4.0 * n_matrices * n_directions * n_paths
    else:
        n_paths = n_paths or first_paths(problem, n)
        start = (
            2.0 * n_paths * (rank + shape.n_outputs + 2 * n_matrices * min(n_directions, batch.most_noises(n_paths)))
        )
        n_directions = min(
            max(n_directions, 2 ** int(np.ceil(np.log2(max(min(3, n_rows) * most, 1))))), batch.most_noises(n_paths)
        )
        buffers = 4.0 * n_matrices * n_directions * n_paths
    site = depth * n * n_paths * (4.5 + 4.5 * problem.n_channels) * (1.75 if depth > 2 else 1)
    square = float(depth * n) ** 2  # of the kernel of inputs, whose root is made first
    test = 4.0 * depth * task.n_test * (rank + depth) + 5 * depth * held_out.block_size(task.n_test, n_paths) * n_paths
    marched = max(5 * 8 * square, 8 * (square + max(start, site + buffers + 6 * rank * n_paths) + test))
    gaussians = rank + shape.n_outputs
    if method == "full" and depth == 1 and not problem.exact and gaussians <= 3 and asked is None:  # two rules at least
        quadrature = (
            8.0
            * (8192 if network.activation.breaks else 48**gaussians)
            * (2 * (n + inputs.BLOCK * (task.n_test > 0)) + 10)
        )
        marched = max(marched, quadrature) if quadrature < memory_budget() else marched
    return compiled + rows + marched


def needed(problem: Problem, request: "Request", n_paths: int | None = None) -> float:
    """Bytes of the whole answer, with as many paths as were asked for or ``n_paths``."""
    n_paths, n_steps = n_paths or request.paths, len(request.at)
    made = sizes(problem, request.method, n_steps, request.at_chosen, n_paths or first_paths(problem), request.fields)
    shared = made["ntk_alignment"] if {"ntk", "ntk_alignment"} <= set(request.fields) else 0
    return solving(problem, request.method, n_paths) + sum(made[name] for name in request.fields) - shared


def refuse(problem: Problem, method: str, paths: int | None) -> None:
    """Raise `MemoryError` where the solve alone is too large, with what would fit."""
    need, most = solving(problem, method, paths), memory_budget()
    if need <= most:
        return
    n = problem.task.n_samples
    fit = lambda key, top: max(bisect_right(range(1, top), most, key=key), 0)  # noqa: E731
    n_paths = 0 if paths is None else fit(lambda s: solving(problem, method, s), paths)
    if n_paths >= LEAST_PATHS:
        name, advice = f"{paths:g} `paths`", f"{n_paths} paths"
    elif solving(problem, method, paths, 1) <= most:
        name, advice = f"The {n} samples of `task`", f"{fit(lambda m: solving(problem, method, paths, m), n)} samples"
    else:
        name, advice = "The steps, states and test inputs", "Fewer of them"
    require_memory(need, name, f"{advice} would fit.", budget=most)
