"""What is kept of one batch of paths besides its curves, and how it becomes estimates."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from widefield.theories.dynamics.curves import Estimate, over_batches
from widefield.theories.dynamics.march import kernels, responses
from widefield.theories.dynamics.march.batch import Batch, SiteValues
from widefield.theories.dynamics.march.step import gradient_shares
from widefield.theories.dynamics.problem import Problem

AVERAGED = ("feature_kernel", "gradient_kernel", *responses.NAMES, "alignment", "ntk_alignment")
DRAWN = ("preactivation", "pregradient")
N_DRAWN = 1024  # samples that are drawn where linear networks have coordinates
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Observed:
    """Curves of one batch, averages over its paths and samples of h and z, by name; those that a divergence cut short are
    missing. ``changes`` are what extrapolation changed, ``paths_needed`` what would make it fine enough.
    """

    batch: Batch  # without its samples
    averages: Arrays
    draws: Arrays = field(default_factory=dict)
    changes: Arrays = field(default_factory=dict)
    paths_needed: float = 0.0


def rows_needed(problem: Problem, at: tuple[int, ...], fields: Sequence[str]) -> tuple[int, ...]:
    """Steps at which paths are kept: responses at one step are made of all before it."""
    return tuple(range(len(problem.rates))) if set(fields) & set(responses.NAMES) else at


def observe(
    problem: Problem, batch: Batch, at: tuple[int, ...], fields: Sequence[str], seed: int, progress: bool | None
) -> Observed:
    """What the ``fields`` need of one batch."""
    bare = replace(batch, samples={})
    averages = {name: value for name, value in _aligned(problem, batch).items() if name in fields}
    if len(batch.samples) < len(rows_needed(problem, at, fields)):
        return Observed(bare, averages)
    chosen = {t: batch.samples[t] for t in at}
    averages |= _kernels(problem, chosen, batch.weight, fields)
    draws = _drawn(problem, chosen, fields, seed)
    if not set(fields) & set(responses.NAMES):
        return Observed(bare, averages, draws)
    both = responses.responses(problem, batch, at, progress)
    pick = lambda pair: {  # noqa: E731
        name: v[:, :, :, list(at)][:, :, :, :, list(at)]
        for name, v in zip(responses.NAMES, pair, strict=True)
        if name in fields
    }
    changes = {} if both.changes is None else pick(both.changes)
    return Observed(bare, averages | pick(both.values), draws, changes, both.paths_needed)


def _kernels(problem: Problem, samples: dict[int, SiteValues], weight: float, fields: Sequence[str]) -> Arrays:
    n, by_layer, made = problem.task.n_samples, problem.by_layer, {}
    if "feature_kernel" in fields:
        made["feature_kernel"] = kernels.features(samples, weight, n, by_layer)
    if "gradient_kernel" in fields:
        share = np.sqrt(gradient_shares(problem.physics))
        shares = share[:, None] ** 2 if by_layer else np.outer(share, share)
        kernel = kernels.gradients(samples, weight, n, by_layer)
        made["gradient_kernel"] = kernel * shares[:, :, None, None, None, None]
    return made


def _drawn(problem: Problem, samples: dict[int, SiteValues], fields: Sequence[str], seed: int) -> Arrays:
    """h (at, state, sample, path) and z (at, channel, state, sample, path); coordinates are drawn from."""
    draws = {}
    for name in DRAWN:
        if name in fields:
            value = kernels.stack(samples, name)[..., : problem.task.n_samples, :]
            if problem.exact:  # the same noises for both
                value = value @ np.random.default_rng(seed).standard_normal((value.shape[-1], N_DRAWN))
            draws[name] = value
    return draws


def _aligned(problem: Problem, batch: Batch) -> Arrays:
    """Cosines with the kernel of the labels: of the features of every state (step, state), and of the tangent kernel."""
    aligned = {"alignment": batch.alignment}
    if batch.ntk is not None:
        aligned["ntk_alignment"] = kernels.tangent_alignment(problem.labels, batch.ntk)
    return aligned


def gathered(batches: list[Observed]) -> tuple[dict[str, Estimate], Arrays]:
    """Means over batches, and all their samples together; what a batch lacks is left out."""
    common = lambda attribute: set.intersection(*(set(getattr(one, attribute)) for one in batches))  # noqa: E731
    averaged, changed, drawn = (common(name) for name in ("averages", "changes", "draws"))
    averages = {name: over_batches([one.averages[name] for one in batches]) for name in AVERAGED if name in averaged}
    for name in changed:
        averages[name] = _doubted(averages[name], over_batches([one.changes[name] for one in batches]))
    draws = {name: np.concatenate([one.draws[name] for one in batches], axis=-1) for name in DRAWN if name in drawn}
    return averages, draws


def _doubted(estimate: Estimate, change: Estimate) -> Estimate:
    """Half of the change that extrapolation made is added to the error."""
    error = 0.0 if estimate.stderr is None else estimate.stderr
    return Estimate(estimate.value, np.hypot(error, change.value / 2))
