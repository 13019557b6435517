"""Networks in training: which of them diverged, and their limit of small rates."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from widefield.answer.certificate import Certificate, Check, Status
from widefield.simulate.networks.call import Names, certify

FLOW_RTOL = 1e-3  # of the limit of small rates
MOST_LEVELS = 8  # rates down to 1/128 of those asked for
FLOW_COPIES = 3  # of every field on the way: at two rates, and the last limit


@dataclass(frozen=True)
class Trained:
    """Fields of replicates in training, and the number of rows that each ``lasted``, out of ``n_rows``.

    In a flow also what the last halving of the rates ``changed``, by field, relative to its largest entry; ``error``, the
    same of the field that is judged, infinite where there is none; and what ``divided`` the smallest rates.
    """

    arrays: dict[str, np.ndarray]
    lasted: np.ndarray
    n_rows: int
    error: float | None = None
    changed: dict[str, float] = field(default_factory=dict)
    divided: int = 1

    @property
    def lost(self) -> np.ndarray:
        """First infinite rows of the replicates that ran away."""
        return self.lasted[self.lasted < self.n_rows]


def in_flow(train: Callable[[Names, int], Trained], wanted: Names, judged: str) -> Trained:
    r"""Networks in gradient flow. ``train`` makes fields with every rate divided by a number, rows at the same times.

    .. math::  C = 2\,C_{\eta/2^{k+1}} - C_{\eta/2^k}

    Method: the same networks at rates :math:`\eta, \eta/2, \eta/4, \dots`, extrapolated linearly, replicate by replicate,
    until the last halving changes the extrapolated field ``judged`` by less than `FLOW_RTOL` of its largest entry. Rates
    at which a network diverges are passed over. Error: the last change; that of the result is about a fourth of it.
    """
    names = wanted if judged in wanted else (*wanted, judged)
    coarse: Trained | None = None
    limit: Trained | None = None
    for k in range(MOST_LEVELS):
        fine = train(names, 2**k)
        if fine.lost.size:
            coarse = limit = None
            if not fine.lost.min():
                break  # the first weights overflow: a smaller rate changes nothing
            continue
        if coarse is not None:
            with np.errstate(invalid="ignore"):
                arrays = {name: 2 * fine.arrays[name] - coarse.arrays[name] for name in names}
                changed = {} if limit is None else {name: _change(limit.arrays[name], arrays[name]) for name in names}
            limit = replace(fine, arrays=arrays, error=changed.get(judged, math.inf), changed=changed, divided=2**k)
            if changed.get(judged, math.inf) <= FLOW_RTOL:
                break
        coarse = fine
    result = limit or replace(fine, error=math.inf, divided=2**k)
    return replace(result, arrays={name: result.arrays[name] for name in wanted})


def _change(before: np.ndarray, after: np.ndarray) -> float:
    return float(np.abs(after - before).max()) / (float(np.abs(after).max()) or 1.0)


def certify_trained(
    simulator: str,
    trained: Trained,
    began: float,
    *,
    seed: int,
    options: Mapping[str, Any],
    notes: Iterable[str],
    left_out: Names,
) -> Certificate:
    """The certificate of a training: ``"lost"`` counts replicates that diverged, and in a flow there is an ``"error"``."""
    lost, said = trained.lost, [*notes]
    checks: dict[str, Check] = {}
    diagnostics: dict[str, Any] = {}
    if lost.size and lost.min():  # infinite before any update: the first weights overflowed
        checks["lost"] = Check(lost.size, 0, Status.diverged)
        said.append(f"diverged in {lost.size} of {len(trained.lasted)} replicates, first at step {lost.min()}")
        diagnostics |= {"diverged": int(lost.size), "diverged_at_step": int(lost.min())}
    if trained.error is not None:
        checks["error"] = Check(trained.error, FLOW_RTOL)
        diagnostics |= {"flow_change": trained.changed, "rate_divided_by": trained.divided}
        if trained.error > FLOW_RTOL and not lost.size:
            smallest = f"1/{trained.divided} of the rate: lower it"
            said.append(f"the limit of small rates is good to {trained.error:.1e} at {smallest}")
    return certify(
        simulator, trained.arrays, began, seed=seed, options=options, notes=said, left_out=left_out, checks=checks,
        diagnostics=diagnostics, steps=trained.n_rows - 1,
    )  # fmt: skip
