"""Networks in training: which of them diverged, and their limit of small rates."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from widefield.answer.certificate import Certificate, Check, Status
from widefield.simulate.networks.certify import certify

FLOW_RTOL = 1e-3  # of the limit of small rates
MOST_LEVELS = 8  # rates down to 1/128 of those asked for
FLOW_COPIES = 3  # of every field on the way: at two rates, and the last limit


@dataclass(frozen=True)
class Trained:
    """Fields of replicates in training, and the number of rows that each lasted, out of ``n_rows``.

    ``flow_changes`` by field: what the last halving of the rate changed in the limit of small rates, relative to the
    largest entry; ``divisor`` divides the smallest rate.
    """

    arrays: dict[str, np.ndarray]
    lasted: np.ndarray
    n_rows: int
    flow_changes: dict[str, float] = field(default_factory=dict)
    divisor: int = 1

    @property
    def lost(self) -> np.ndarray:
        """First infinite rows of the replicates that ran away."""
        return self.lasted[self.lasted < self.n_rows]


def in_flow(train: Callable[[int], Trained], judged: Sequence[str]) -> Trained:
    r"""Networks in gradient flow, from ``train``, which divides every rate by its argument and keeps the times of the rows.

    .. math::  C = 2\,C_{\eta/2^{k+1}} - C_{\eta/2^k}

    Method: the same networks at rates :math:`\eta, \eta/2, \eta/4, \dots`, extrapolated linearly, replicate by replicate,
    until the last halving changes the extrapolated fields ``judged`` by less than `FLOW_RTOL` of their largest entry. Rates
    at which a network diverges are passed over. Error: the last change; that of the result is about a fourth of it.
    """
    coarse: Trained | None = None
    limit: Trained | None = None
    for k in range(MOST_LEVELS):
        fine = train(2**k)
        if fine.lost.size:
            coarse = limit = None
            if not fine.lost.min():
                break  # the first weights overflow: a smaller rate changes nothing
            continue
        if coarse is not None:
            before, limit = limit, _extrapolated(coarse, fine, 2**k)
            if before is not None:
                limit = replace(limit, flow_changes=_changes(before.arrays, limit.arrays))
                if max(limit.flow_changes[name] for name in judged) <= FLOW_RTOL:
                    break
        coarse = fine
    return replace(fine, divisor=2**k) if limit is None else limit


@np.errstate(invalid="ignore")
def _extrapolated(coarse: Trained, fine: Trained, divisor: int) -> Trained:
    return replace(fine, arrays={k: 2 * fine.arrays[k] - coarse.arrays[k] for k in fine.arrays}, divisor=divisor)


@np.errstate(invalid="ignore")
def _changes(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> dict[str, float]:
    size = {name: float(np.abs(values).max()) for name, values in after.items()}
    return {name: float(np.abs(after[name] - before[name]).max()) / (size[name] or 1.0) for name in after}


def certify_trained(
    simulator: str,
    trained: Trained,
    began: float,
    *,
    judged: Sequence[str] = (),
    seed: int,
    options: Mapping[str, Any],
    notes: Iterable[str],
    left_out: tuple[str, ...],
) -> Certificate:
    """The certificate of a training; one replicate that ran away makes every mean infinite.

    In gradient flow, where ``judged`` names fields, ``"error"`` is the largest change of one of them.
    """
    lost, checks, said = trained.lost, {}, [*notes]
    diagnostics: dict[str, Any] = {}
    if lost.size and lost.min():  # infinite before any update: the first weights overflowed
        checks["lost"] = Check(lost.size, 0, Status.diverged)
        said.append(f"diverged in {lost.size} of {len(trained.lasted)} replicates, first at step {lost.min()}")
        diagnostics |= {"diverged": int(lost.size), "diverged_at_step": int(lost.min())}
    if judged:
        worst = max((trained.flow_changes.get(name, math.inf) for name in judged), default=math.inf)
        checks["error"] = Check(worst, FLOW_RTOL)
        diagnostics |= {"flow_change": trained.flow_changes, "rate_divided_by": trained.divisor}
        if worst > FLOW_RTOL and not lost.size:
            said.append(
                f"the limit of small rates is good to {worst:.1e} at 1/{trained.divisor} of the rate: lower the rate"
            )
    return certify(
        simulator,
        trained.arrays,
        began,
        seed=seed,
        options=options,
        notes=said,
        left_out=left_out,
        checks=checks,
        diagnostics=diagnostics,
        steps=trained.n_rows - 1,
    )
