"""What is kept of one batch of paths besides its curves, and how it becomes estimates."""

from collections.abc import Sequence

import numpy as np

from widefield.theories.dynamics import kernels, responses
from widefield.theories.dynamics.answer import Estimate, over_batches
from widefield.theories.dynamics.march import gradient_shares
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.run import Run

AVERAGED = ("feature_kernel", "gradient_kernel", *responses.NAMES, "alignment", "ntk_alignment")
DRAWN = ("preactivation", "pregradient")
N_DRAWN = 1024  # samples that are drawn where linear networks have coordinates
CHANGE = "change of "  # before the name of an extrapolated quantity
NEEDED = "paths needed"  # for what is extrapolated from to be fine enough
Kept = dict[str, np.ndarray]


def rows_needed(problem: Problem, at: tuple[int, ...], wanted: Sequence[str]) -> tuple[int, ...]:
    """Steps at which paths are kept: responses at one step are made of all before it."""
    return tuple(range(len(problem.rates))) if set(wanted) & set(responses.NAMES) else at


def observe(
    problem: Problem, run: Run, at: tuple[int, ...], wanted: Sequence[str], seed: int, progress: bool | None
) -> Kept:
    """Averages over the paths of one run, and samples of h and z, by name; without those that a divergence cut short."""
    n = problem.task.n_samples
    found = {name: value for name, value in _aligned(problem, run).items() if name in wanted}
    chosen = run.at(at)
    complete = len(run.samples) == len(rows_needed(problem, at, wanted))
    if complete and set(wanted) & set(responses.NAMES):
        found |= _responses(problem, run, at, wanted, progress)
    if "feature_kernel" in wanted and complete:
        found["feature_kernel"] = kernels.features(chosen, n, is_simple(problem))
    if "gradient_kernel" in wanted and complete:
        share = np.sqrt(gradient_shares(problem.physics))
        shares = share[:, None] ** 2 if is_simple(problem) else np.outer(share, share)
        kernel = kernels.gradients(chosen, n, is_simple(problem))
        found["gradient_kernel"] = kernel * shares[:, :, None, None, None, None]
    if set(wanted) & set(DRAWN) and complete:
        found |= _drawn(problem, chosen, wanted, seed)
    return found


def _responses(problem: Problem, run: Run, at: tuple[int, ...], wanted: Sequence[str], progress: bool | None) -> Kept:
    both = responses.responses(problem, run, at, is_simple(problem), progress)
    pick = lambda v: v[:, :, :, list(at)][:, :, :, :, list(at)]  # noqa: E731
    found = {name: pick(v) for name, v in zip(responses.NAMES, both.values, strict=True) if name in wanted}
    if both.changes is not None:
        found |= {CHANGE + n: pick(v) for n, v in zip(responses.NAMES, both.changes, strict=True) if n in wanted}
        found[NEEDED] = np.asarray(both.needed)
    return found


def is_simple(problem: Problem) -> bool:
    """A deep network driven at the first state and read out at one: layers suffice, no pairs of states."""
    driven = problem.task.sequences(problem.network.depth).shape[1]
    return problem.network.weights == "untied" and driven == 1 and len(problem.readouts) == 1


def _drawn(problem: Problem, run: Run, wanted: Sequence[str], seed: int) -> Kept:
    """h (at, state, sample, path) and z (at, channel, state, sample, path); coordinates are drawn from."""
    n = problem.task.n_samples
    found = {}
    for name, which in zip(DRAWN, (2, 3), strict=True):
        if name in wanted:
            value = kernels.stack(run, which)[..., :n, :]
            if problem.exact:  # the same noises for both
                value = value @ np.random.default_rng(seed).standard_normal((value.shape[-1], N_DRAWN))
            found[name] = value
    return found


def _aligned(problem: Problem, run: Run) -> Kept:
    """Cosines with the kernel of the labels: of the features of every state (step, state), and of the tangent kernel."""
    found = {} if run.alignment is None else {"alignment": run.alignment}
    if run.ntk is not None:
        found["ntk_alignment"] = kernels.tangent_alignment(problem.labels, run.ntk)
    return found


def gathered(batches: list[Kept]) -> tuple[dict[str, Estimate], Kept]:
    """Means over batches, and all their samples together; what a batch lacks is left out."""
    common = set.intersection(*(set(batch) for batch in batches))
    averages = {name: over_batches([batch[name] for batch in batches]) for name in AVERAGED if name in common}
    for name in averages:
        if CHANGE + name in common:
            averages[name] = _doubted(averages[name], over_batches([batch[CHANGE + name] for batch in batches]))
    draws = {name: np.concatenate([batch[name] for batch in batches], axis=-1) for name in DRAWN if name in common}
    return averages, draws


def _doubted(estimate: Estimate, change: Estimate) -> Estimate:
    """Half of the change that extrapolation made is added to the error."""
    error = 0.0 if estimate.stderr is None else estimate.stderr
    return Estimate(estimate.value, np.hypot(error, change.value / 2))
