"""What every simulator shares of a call: checks, dims and bytes of its fields, and how far its numbers can be trusted."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from widefield.answer import boundary
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.progress import bar
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task

Shape = tuple[tuple[str, ...], tuple[int, ...]]  # dims and lengths
Layout = dict[str, Shape]  # of one replicate's share of every field, the most wanted first
Names = tuple[str, ...]
CHUNK = 10**6  # numbers looked at together
CERTIFY_COPIES = 4  # of what is looked at together
LARGEST = 2**63 - 1  # an index of an array
SINGLE = "draw"  # a field of single neurons of mean zero: no relative error


def check_call(
    simulator: str, network: Any, task: Any, *, replicates: Any, seed: Any, progress: Any, throw: Any
) -> tuple[int, int]:
    """Raise where the network, the task, or an option that all simulators take makes no sense; replicates and seed."""
    if not isinstance(network, Network):
        raise ValueError(f"`network` must be a widefield.Network (DNN or RNN), got {type(network).__name__}.")
    network.refuse_branch(simulator)
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a widefield.Task, got {type(task).__name__}.")
    return check_options(replicates=replicates, seed=seed, progress=progress, throw=throw)


def check_options(*, replicates: Any, seed: Any, progress: Any, throw: Any) -> tuple[int, int]:
    """Raise where one of the options that all simulators take makes no sense; replicates and seed as plain integers."""
    if progress is not None:
        checks.flag("progress", progress)
    checks.flag("throw", throw)
    return count("replicates", replicates, 1), checks.integer("seed", seed, 0)


def count(name: str, value: Any, minimum: int) -> int:
    """``value`` as an int of at least ``minimum`` that could count the entries of an array."""
    number = checks.integer(name, value, minimum)
    if number > LARGEST:
        raise ValueError(f"`{name}` must be an integer from {minimum} to 2**63 - 1, got {value!r:.40}.")
    return number


def choose(quantities: Any, sizes: Mapping[str, int], room: int = 0) -> tuple[Names, Names]:
    """The fields that are asked for, or, by default, those that fit beside ``room`` bytes; and what is left out."""
    if quantities is not None:  # what does not fit is refused with everything else
        return boundary.choose_quantities(quantities, dict(sizes), budget=len(sizes) * max(sizes.values()) ** 2)
    wanted, left_out = boundary.choose_quantities(None, dict(sizes), boundary.memory_budget() - room)
    return wanted or (min(sizes, key=lambda name: sizes[name]),), left_out


def peak_bytes(layout: Layout, wanted: Iterable[str], replicates: int, working: int, copies: int = 1) -> int:
    """What ``copies`` of the fields take beside what is larger: ``working`` on them, or judging the largest of them."""
    each = [8 * math.prod(layout[name][1]) for name in wanted]
    judged = max(min(max(8 * CHUNK, one), replicates * one) for one in each)
    return copies * replicates * sum(each) + max(working, CERTIFY_COPIES * judged)


def refuse_memory(simulator: str, need: Callable[..., int], sizes: Mapping[str, int], what: str) -> None:
    """Raise where the bytes that ``need`` tells of the ``sizes`` are not there: what of each size would fit instead."""
    may_use = boundary.memory_budget()
    needed = need(**sizes)
    if needed <= may_use:
        return
    fits = []
    for name, size in sizes.items():
        low, high = 0, size
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if need(**{**sizes, name: middle}) <= may_use else (low, middle)
        fits += [f"`{name}` {low}"] if low else []
    smaller = f"{' or '.join(fits)} would fit" if fits else f"Lower {', '.join(f'`{name}`' for name in sizes)}"
    advice = f"{smaller}; or ask for fewer quantities, samples, states or steps."
    boundary.require_memory(needed, f"Networks of {simulator}", advice, parts=what, budget=may_use)


def require(simulator: str, network: Network, **wanted: float) -> None:
    """Raise where a variance of the network is not the one that ``simulator`` covers."""
    for name, value in wanted.items():
        given = getattr(network, name)
        if given is None or np.any(np.asarray(given) != value):
            raise ValueError(f"`{name}` must be {value} in {simulator}, got {given}.")


def check_shared_inputs(network: Network, sizes: tuple[int, ...], n_driven: int) -> None:
    """Tied input weights need driven states of one width."""
    if network.inputs == "tied" and len(set(sizes[:n_driven])) > 1:
        raise ValueError(f"`inputs` must be 'untied': {n_driven} driven states of unequal widths {sizes} share no U.")


def joined(*parts: Shape) -> Shape:
    """Dims and lengths one after the other."""
    return sum((dims for dims, _ in parts), ()), sum((shape for _, shape in parts), ())


def n_bytes(layout: Layout, replicates: int) -> dict[str, int]:
    """What every field takes."""
    return {name: 8 * replicates * math.prod(shape) for name, (_, shape) in layout.items()}


def labeled(layout: Layout, arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[Names, np.ndarray]]:
    """``arrays``, each with a leading replicate axis, beside their dims."""
    return {name: (("replicate", *layout[name][0]), value) for name, value in arrays.items()}


def batch_size(total: int, most: int) -> int:
    """The size of the fewest batches of at most ``most`` that cover ``total``, as equal as they can be."""
    n_batches = -(-total // min(most, total))
    return -(-total // n_batches)


def blocks(total: int, size: int) -> Iterator[slice]:
    """Slices of at most ``size`` that cover ``total``."""
    return (slice(first, min(first + size, total)) for first in range(0, total, size))


def timed_bar(
    title: str, total: int, shown: bool | None, seconds: float
) -> AbstractContextManager[Callable[[int], None]]:
    """A progress bar that says how long it will take where that is hours or more."""
    for unit, length in (("years", 3.15e7), ("days", 86400.0), ("hours", 3600.0)):
        if seconds > length:
            return bar(f"{title}, about {seconds / length:.3g} {unit}", total, shown, seconds)
    return bar(title, total, shown, seconds)


def certify(
    simulator: str,
    arrays: Mapping[str, np.ndarray],
    began: float,
    *,
    seed: int | None,
    options: Mapping[str, Any],
    notes: Iterable[str] = (),
    left_out: Names = (),
    checks: Mapping[str, Check] | None = None,
    diagnostics: Mapping[str, Any] | None = None,
    steps: int = 0,
) -> Certificate:
    """The certificate of ``arrays``, each with a leading replicate axis, whose making began at ``began``.

    A simulation solves no equation: success rests on ``"lost"``, the number of networks whose values are not finite, which
    must be zero, and on what a simulator adds to ``checks`` (there ``"lost"`` may also name another status). Standard
    errors of the mean over replicates, relative to the largest entry of each field, stand in the diagnostics.
    """
    bad = np.zeros(len(next(iter(arrays.values()))), dtype=bool)
    for values in arrays.values():
        for block in blocks(len(values), max(1, CHUNK // values[0].size)):
            bad[block] |= ~np.isfinite(values[block]).reshape(block.stop - block.start, -1).all(axis=1)
    n_lost = int(bad.sum())
    judged = {"lost": Check(n_lost, 0, Status.nonfinite)} | dict(checks or {})
    overflowed = n_lost and judged["lost"].otherwise is Status.nonfinite
    errors = {name: float(f"{_relative_error(v):.3g}") for name, v in arrays.items() if name != SINGLE and not n_lost}
    return Certificate(
        simulator,
        judged,
        steps=steps,
        seed=seed,
        wall_time=time.perf_counter() - began,
        options=dict(options),
        notes=(*notes, *([f"values overflowed in {n_lost} of {len(bad)} networks"] if overflowed else [])),
        left_out=left_out,
        diagnostics=({} if n_lost else {"relative_standard_error": errors}) | dict(diagnostics or {}),
    )


def _relative_error(values: np.ndarray) -> float:
    """Largest standard error of the mean over replicates, in units of the largest mean; infinite for one replicate."""
    n = len(values)
    if n == 1:
        return math.inf
    mean = values.mean(axis=0)
    squares = np.zeros_like(mean)
    for block in blocks(n, max(1, CHUNK // mean.size)):
        squares += np.square(values[block] - mean).sum(axis=0)
    largest = np.abs(mean).max()
    return float(np.sqrt(squares.max() / (n * (n - 1))) / largest) if largest else 0.0
