"""The factor at which the incoherent state stops being a minimum, or the knowledge that there is none.

The incoherent branch is followed from weak labels to strong ones in steps over which it hardly changes: where several
incoherent states exist, a longer step would end on another of them. It stops being a minimum where its softest
eigenvalue passes zero, or where it meets an unstable state and both vanish: a *fold*, its own spinodal. A fold beyond
which another incoherent minimum is met is passed.
"""

import numpy as np

from widefield.solvers import continuation
from widefield.theories.posterior.branches import Branches, Instability, Known, S, fold_factor

N_FACTORS = 33  # between the smallest and the largest factor that are searched
NEIGHBORS = 0.1  # change of a kernel, in units of its variances, up to which two states are of one branch
PATIENCE = 3  # factors in a row that are not reached, after which a search is given up
MAX_STEPS = 300  # from one factor to the next
COARSE, MARGINAL = 1e-2, 0.05  # a step that is not reached is made shorter only where the stability is almost gone
BEYOND = (1e-8, 1e-6, 1e-4)  # a fold, where another state is looked for
FLAT = 1e-3  # stability at a root, as a share of those around it


def find_instability(branches: Branches[S]) -> Instability[S]:
    """The first instability from weak labels to strong ones, over the whole range of factors."""
    factors = np.geomspace(1 / branches.reach, branches.reach, N_FACTORS)[:: branches.side]
    return _between(branches, factors, None)


def instability_near(branches: Branches[S], low: float, high: float, start: S) -> Instability[S]:
    """The instability between two factors, from a state near the lower one."""
    return _between(branches, np.geomspace(low, high, 4), start)


def _between(branches: Branches[S], factors: np.ndarray, start: S | None) -> Instability[S]:
    """The first factor at which no incoherent state that is met on the way is a minimum any more."""
    path: list[Known[S]] = []
    folds: list[float] = []
    here: Known[S] | None = None
    lost = in_a_row = 0
    for goal in map(float, factors):
        if here is None:
            state = branches.incoherent(goal, start)
            if branches.reached(state) and state.stability < 0:
                return Instability(None, None, lost, state.residual, begins_unstable=True)
            here = Known(goal, state) if branches.reached(state) else None
            path += [] if here is None else [here]
        while here is not None and here.factor != goal:
            met, ahead = _walk(branches, here, goal)
            path += met
            if ahead is not None and branches.reached(ahead.state) and _are_neighbors(path[-1].state, ahead.state):
                root = _root(branches, path[-1], ahead)
                if root is not None:
                    lost += not branches.reached(root.state)
                    return Instability(*root, lost, root.state.residual, folds=tuple(folds), path=tuple(path))
                met, ahead = _walk(branches, path[-1], ahead.factor, closely=True)
                path += met
            here = path[-1]
            if ahead is None:
                continue
            for beyond in BEYOND:  # right behind a fold a search may stop where the state was
                if not branches.reached(ahead.state) and here.state.stability <= MARGINAL:
                    factor = here.factor * float(np.exp(branches.side * beyond))
                    ahead = Known(factor, branches.incoherent(factor, here.state))
            if not branches.reached(ahead.state) and here.state.stability > MARGINAL:
                here, start = None, None
            elif branches.reached(ahead.state) and ahead.state.stability >= 0:
                folds.append(here.factor)
                here = ahead
                path.append(here)
            else:
                factor, error = _fold(branches, path)
                known = Known(factor, here.state)
                return Instability(
                    *known, lost, here.state.residual, fold_error=error, folds=(*folds, factor), path=tuple(path)
                )
        lost, in_a_row = (lost, 0) if here is not None else (lost + 1, in_a_row + 1)
        if in_a_row >= PATIENCE:
            break
    residual = float(np.max([known.state.residual for known in path], initial=0.0)) if path else np.inf
    return Instability(None, None, lost, residual, folds=tuple(folds), path=tuple(path))


def _root(branches: Branches[S], here: Known[S], ahead: Known[S]) -> Known[S] | None:
    """Where the stability passes zero between two neighbors; None where it jumps."""
    before, after = (continuation.Sample(known.factor, known.state.stability, known.state) for known in (here, ahead))
    root = continuation.crossing(branches.stability, before, after, rtol=branches.crossing_rtol)
    if root is None or abs(root.number) > FLAT * (before.number - after.number):
        return None
    return Known(root.value, branches.incoherent(root.value, root.solution))


def _fold(branches: Branches[S], path: list[Known[S]]) -> tuple[float, float]:
    """The factor at the fold in which a path ends, and its relative error."""

    def stability(factor: float) -> float:
        start = min(path, key=lambda known: abs(np.log(known.factor / factor))).state
        state = branches.incoherent(factor, start)
        return state.stability if branches.reached(state) else np.nan

    return fold_factor(path[-1].factor, -branches.side, stability)


def _walk(
    branches: Branches[S], here: Known[S], goal: float, *, closely: bool = False
) -> tuple[list[Known[S]], Known[S] | None]:
    """The minima from a known one towards a goal, and what lies ahead of the last, None where that is the goal.

    The steps become shorter where a state is not reached, is no neighbor or, ``closely``, is unstable.
    """
    met: list[Known[S]] = []
    step = np.log(goal / here.factor)
    for _ in range(MAX_STEPS):
        rest = np.log(goal / here.factor)
        factor = goal if abs(step) >= abs(rest) else here.factor * float(np.exp(step))
        ahead = Known(factor, branches.incoherent(factor, here.state))
        reached, stable = branches.reached(ahead.state), ahead.state.stability >= 0
        neighbors = reached and _are_neighbors(here.state, ahead.state)
        if neighbors and stable:
            met.append(ahead)
            here, step = ahead, 2 * step
            if factor == goal:
                return met, None
            continue
        step = 0.5 * min(step, rest, key=abs)
        smallest = COARSE if not reached and here.state.stability > MARGINAL else branches.crossing_rtol
        if (neighbors and not closely) or abs(step) < smallest:
            break
    return met, ahead


def _are_neighbors(one: S, other: S) -> bool:
    scale = np.sqrt(np.maximum(np.diagonal(one.hidden), 0))
    scale = np.where(scale > 0, scale, 1)
    return bool(np.max(np.abs(other.hidden - one.hidden) / scale / scale[:, None], initial=0.0) <= NEIGHBORS)
