"""Networks in training: which of them diverged, and their limit of small rates."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from widefield.answer.certificate import Certificate, Check, Status
from widefield.simulate.networks.certify import certify

FLOW_RTOL = 1e-3  # of the limit of small rates
MOST_LEVELS = 8  # rates down to 1/128 of those asked for
FLOW_COPIES = 3  # of every field on the way: at two rates, and the last limit

Names = tuple[str, ...]


@dataclass(frozen=True)
class Flow:
    """How close the limit of small rates is: what the last halving changed, by field, relative to its largest entry.

    ``error`` is the change of the field that is judged, infinite where there is none; ``divisor`` divides the smallest rate.
    """

    error: float
    changes: dict[str, float]
    divisor: int


@dataclass(frozen=True)
class Trained:
    """Fields of replicates in training, and the number of rows that each ``lasted``, out of ``n_rows``."""

    arrays: dict[str, np.ndarray]
    lasted: np.ndarray
    n_rows: int
    flow: Flow | None = None

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
            before, limit = limit, _extrapolated(coarse, fine)
            changes = {} if before is None else _changes(before.arrays, limit.arrays)
            flow = Flow(changes.get(judged, math.inf), changes, 2**k)
            limit = replace(limit, flow=flow)
            if flow.error <= FLOW_RTOL:
                break
        coarse = fine
    result = limit or replace(fine, flow=Flow(math.inf, {}, 2**k))
    return replace(result, arrays={name: result.arrays[name] for name in wanted})


@np.errstate(invalid="ignore")
def _extrapolated(coarse: Trained, fine: Trained) -> Trained:
    return replace(fine, arrays={name: 2 * fine.arrays[name] - coarse.arrays[name] for name in fine.arrays})


@np.errstate(invalid="ignore")
def _changes(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> dict[str, float]:
    size = {name: float(np.abs(values).max()) for name, values in after.items()}
    return {name: float(np.abs(after[name] - before[name]).max()) / (size[name] or 1.0) for name in after}


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
    lost, flow, said = trained.lost, trained.flow, [*notes]
    checks: dict[str, Check] = {}
    diagnostics: dict[str, Any] = {}
    if lost.size and lost.min():  # infinite before any update: the first weights overflowed
        checks["lost"] = Check(lost.size, 0, Status.diverged)
        said.append(f"diverged in {lost.size} of {len(trained.lasted)} replicates, first at step {lost.min()}")
        diagnostics |= {"diverged": int(lost.size), "diverged_at_step": int(lost.min())}
    if flow is not None:
        checks["error"] = Check(flow.error, FLOW_RTOL)
        diagnostics |= {"flow_change": flow.changes, "rate_divided_by": flow.divisor}
        if flow.error > FLOW_RTOL and not lost.size:
            said.append(
                f"the limit of small rates is good to {flow.error:.1e} at 1/{flow.divisor} of the rate: lower it"
            )
    return certify(
        simulator, trained.arrays, began, seed=seed, options=options, notes=said, left_out=left_out, checks=checks,
        diagnostics=diagnostics, steps=trained.n_rows - 1,
    )  # fmt: skip
