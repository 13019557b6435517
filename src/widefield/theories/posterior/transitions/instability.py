"""The factor at which the incoherent state stops being a minimum, or the knowledge that there is none."""

from dataclasses import dataclass
from typing import Generic

import numpy as np

from widefield.solvers import continuation
from widefield.theories.posterior.branches import Branches, S

N_FACTORS = 33  # between the smallest and the largest factor that are searched


@dataclass(frozen=True, eq=False)
class Instability(Generic[S]):
    """``factor`` and incoherent ``state`` of the instability, None where none was reached.

    There is none only where nothing was ``lost`` on the way: values at which the branch could not be followed.
    ``residual`` is that at the instability or, where there is none, the largest on the way.
    """

    factor: float | None
    state: S | None
    lost: int
    residual: float
    begins_unstable: bool = False


def find_instability(branches: Branches[S]) -> Instability[S]:
    """The first instability from weak labels to strong ones, over the whole range of factors."""
    factors = np.geomspace(1 / branches.reach, branches.reach, N_FACTORS)[:: branches.side]
    return _between(branches, factors, None)


def instability_near(branches: Branches[S], low: float, high: float, start: S) -> Instability[S]:
    """The instability between two factors, from a state near the lower one."""
    return _between(branches, np.geomspace(low, high, 4), start)


def _between(branches: Branches[S], factors: np.ndarray, start: S | None) -> Instability[S]:
    scan = continuation.scan(branches.stability, map(float, factors), start)
    if scan.bracket is None:
        reached = [sample.solution.residual for sample in scan.samples if np.isfinite(sample.number)]
        residual = float(np.max(reached)) if reached else np.inf
        return Instability(None, None, scan.lost, residual, begins_unstable=scan.samples[0].number < 0)
    critical = continuation.crossing(branches.stability, *scan.bracket, rtol=branches.crossing_rtol)
    if critical is None:
        return Instability(None, None, scan.lost + 1, np.inf)
    state = branches.incoherent(critical.value, critical.solution)
    lost = scan.lost + (not branches.reached(state))
    return Instability(critical.value, state, lost, state.residual)
