"""Newton's method for fixed points: one Jacobian serves as long as it helps."""

from typing import NamedTuple

import equinox as eqx
import numpy as np

from widefield.solvers.linearization import Array, Linearization, Map, linearize

SLOW = 0.2  # ratio of successive residuals beyond which the Jacobian is made anew
RETREATS = 8  # halvings of a step that makes things worse


class FixedPoint(NamedTuple):
    """Where the iteration ended, and the last Jacobian on the way; ``finite`` is false where the map was not."""

    vector: np.ndarray
    jacobian: Linearization
    converged: bool
    finite: bool = True


def unit_of(vector: Array) -> float:
    """The scale of a vector whose entries are in natural units: 1, or its largest entry where that is larger."""
    return max(1.0, float(np.max(np.abs(vector))))


@eqx.filter_jit
def evaluate(function: Map, vector: Array) -> Array:
    """A map's value, compiled once per kind of map."""
    return function(vector)


def fixed_point(function: Map, start: Array, tolerance: float, max_steps: int) -> FixedPoint:
    """The fixed point of an `equinox.Module` near ``start``, to ``tolerance`` in units of `unit_of`."""
    vector, jacobian, fresh = np.asarray(start), linearize(function, start), True
    off = jacobian.value - vector
    for _ in range(max_steps):
        if not np.isfinite(off).all():
            return FixedPoint(vector, jacobian, False, finite=False)
        if np.abs(off).max() <= tolerance * unit_of(vector):
            return FixedPoint(vector, jacobian, True)
        step = jacobian.solve(off[None])[0]
        for _ in range(RETREATS):  # shorter, until the residual does not grow
            ahead = vector + step
            there = np.asarray(evaluate(function, ahead)) - ahead
            better = np.isfinite(there).all() and np.abs(there).max() <= np.abs(off).max()
            if better:
                break
            step = 0.5 * step
        if not better and fresh:
            break
        fresh = not better or bool(np.abs(there).max() > SLOW * np.abs(off).max())
        vector, off = (ahead, there) if better else (vector, off)
        if fresh and np.abs(off).max() > tolerance * unit_of(vector):
            jacobian = linearize(function, vector)
    return FixedPoint(vector, jacobian, False)
