"""What is kept of one batch of paths besides its curves, and how it becomes estimates."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from widefield.theories.dynamics.curves import Estimate, over_batches
from widefield.theories.dynamics.march import kernels, responses
from widefield.theories.dynamics.march.batch import Arrays, Batch
from widefield.theories.dynamics.march.step import gradient_shares
from widefield.theories.dynamics.problem import Problem

AVERAGED = ("feature_kernel", "gradient_kernel", *responses.NAMES, "alignment", "ntk_alignment")
DRAWN = ("preactivation", "pregradient")
N_DRAWN = 1024  # samples that are drawn where linear networks have coordinates


def rows_needed(problem: Problem, at: tuple[int, ...], fields: Sequence[str]) -> tuple[int, ...]:
    """Steps at which paths are kept: responses at one step are made of all before it."""
    return tuple(range(len(problem.rates))) if set(fields) & set(responses.NAMES) else at


def observe(
    problem: Problem, batch: Batch, at: tuple[int, ...], fields: Sequence[str], seed: int, progress: bool | None
) -> Batch:
    """What the ``fields`` need of one batch: kernels, cosines with that of the labels, samples and responses."""
    averages: Arrays = {}
    if "alignment" in fields:
        averages["alignment"] = batch.alignment
    if "ntk_alignment" in fields and batch.ntk is not None:
        averages["ntk_alignment"] = kernels.tangent_alignment(problem.labels, batch.ntk)
    if len(batch.samples) < len(rows_needed(problem, at, fields)):
        return replace(batch, samples={}, averages=averages)
    chosen, n, by_layer = {t: batch.samples[t] for t in at}, problem.task.n_samples, problem.by_layer
    if "feature_kernel" in fields:
        averages["feature_kernel"] = kernels.features(chosen, batch.weight, n, by_layer)
    if "gradient_kernel" in fields:
        share = np.sqrt(gradient_shares(problem.physics))
        shares = share[:, None] ** 2 if by_layer else np.outer(share, share)
        kernel = kernels.gradients(chosen, batch.weight, n, by_layer)
        averages["gradient_kernel"] = kernel * shares[:, :, None, None, None, None]
    draws = {name: kernels.stack(chosen, name)[..., :n, :] for name in DRAWN if name in fields}
    if problem.exact:  # h and z are made of the same noises
        noise = lambda size: np.random.default_rng(seed).standard_normal((size, N_DRAWN))  # noqa: E731
        draws = {name: value @ noise(value.shape[-1]) for name, value in draws.items()}
    batch = replace(batch, averages=averages, draws=draws)
    if not set(fields) & set(responses.NAMES):
        return replace(batch, samples={})
    values, changes, needed = responses.responses(problem, batch, at, progress)

    def pick(pair: responses.Pair | None) -> Arrays:
        named = zip(responses.NAMES, pair or (), strict=False)
        return {name: v[:, :, :, list(at)][:, :, :, :, list(at)] for name, v in named if name in fields}

    averages |= pick(values)
    return replace(batch, samples={}, averages=averages, changes=pick(changes), paths_needed=needed)


def gathered(batches: list[Batch]) -> tuple[dict[str, Estimate], Arrays]:
    """Means over batches, and all their samples together; what a batch lacks is left out."""
    common = lambda attribute: set.intersection(*(set(getattr(one, attribute)) for one in batches))  # noqa: E731
    averaged, changed, drawn = (common(name) for name in ("averages", "changes", "draws"))
    averages = {name: over_batches([one.averages[name] for one in batches]) for name in AVERAGED if name in averaged}
    for name in changed:  # half of what extrapolation changed is added to the error
        error = 0.0 if averages[name].stderr is None else averages[name].stderr
        change = over_batches([one.changes[name] for one in batches]).value / 2
        averages[name] = Estimate(averages[name].value, np.hypot(error, change))
    draws = {name: np.concatenate([one.draws[name] for one in batches], axis=-1) for name in DRAWN if name in drawn}
    return averages, draws
