r"""The coherent branch of a nonlinear network as a function of its order parameter instead of the labels' size.

.. math::  \Phi = \langle\varphi\varphi^{\mathsf T}\rangle, \quad C = \langle hh^{\mathsf T}\rangle, \quad m(\Phi) = m_0
           \qquad\text{for}\quad (\Phi, C, \ln f)

with :math:`f` the factor on the labels or on the temperature. Where the branch ends, two states merge as functions of
:math:`f` and every iteration slows down; as functions of :math:`m_0` nothing happens there but :math:`df/dm_0 = 0`. The
branch leaves the incoherent one at the instability :math:`f_c` as :math:`(f/f_c)^p = 1 + a\,m_0^2 + \dots`, and the sign
of :math:`a` is the order of the transition.

Method: Newton's, each point from its neighbour, judged on a finer grid (`held.Holder`).
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float

from widefield.question.activation import Activation
from widefield.theories.posterior import saddle
from widefield.theories.posterior.held import HELD, Forms, Holder, correlation
from widefield.theories.posterior.linearised import linearise
from widefield.theories.posterior.problem import Problem
from widefield.theories.posterior.saddle import SaddleMap, State

SMALL = (0.05, 0.1, 0.15)  # order parameters at which growth is measured
LARGE = (*np.arange(4, 20) / 20, 0.97)  # those among which the end of a branch is sought
ROOT = 1e-7  # accuracy of an order parameter at a point of the transition
USABLE = 1e-5  # error, relative to the state, with which a point still counts


class OrderedMap(eqx.Module):
    """A `SaddleMap` with the factor's logarithm as last entry, which rests where the correlation is ``target``."""

    map: SaddleMap
    forms: Forms
    target: Float[Array, ""]
    along: str = eqx.field(static=True)

    def at(self, log_factor: Array) -> SaddleMap:
        problem = self.map.problem
        scaled = problem._replace(**{self.along: getattr(problem, self.along) * jnp.exp(log_factor)})
        return eqx.tree_at(lambda m: m.problem, self.map, scaled)

    def free_energy(self, vector: Array) -> Array:
        return saddle.free_energy_of(self.at(vector[-1]), vector[:-1])

    def __call__(self, vector: Array, args: None = None) -> Array:
        m, _ = correlation(self.map.unpack(vector[:-1]).feature, self.forms)
        return jnp.append(self.at(vector[-1])(vector[:-1]), vector[-1] + self.target - m)


class Ordered(NamedTuple):
    """A state of the branch: ``order`` m, the factor's logarithm and its slope in m."""

    order: float
    log_factor: float
    slope: float
    free_energy: float
    state: State
    vector: Array


class LostError(Exception):
    """The branch was not reached."""


class OrderedBranch:
    """Points of the branch by order parameter, each from the nearest one that is known."""

    def __init__(self, problem: Problem, activation: Activation, along: str, rtol: float, max_steps: int):
        states = problem.depth - 2, problem.depth - 1
        make: Any = partial(OrderedMap, along=along)
        self.holder = Holder(problem, activation, states, rtol, max_steps, make=make)
        self.known: list[Ordered] = []

    def leave(self, log_factor: float, state: State) -> None:
        """The first point, from the incoherent state at the instability along the map's odd direction."""
        _, at = self.holder.start(state)
        vector = at.at[-1].set(log_factor)
        m = self.holder.map_at(0.0)
        linear = linearise(m.at(vector[-1]), vector[:-1])
        assert linear.matrix is not None, "at most four dimensions"
        odd = np.flatnonzero(np.tile(saddle.odd_lags(m.map.problem)[m.map.rows, m.map.columns], 2))
        values, vectors = np.linalg.eig(linear.matrix[np.ix_(odd, odd)])
        soft = int(np.argmin(np.abs(values - 1)))
        direction = np.zeros(len(vector))
        direction[odd] = vectors[:, soft].real
        tiny = correlation(m.map.unpack((vector + 1e-4 * direction)[:-1]).feature, m.forms)[0] / 1e-4
        self._keep(SMALL[0], self.holder.hold(vector + direction * SMALL[0] / tiny, SMALL[0]))

    def at(self, order: float) -> Ordered:
        near = min(self.known, key=lambda p: abs(p.order - order))
        if near.order == order:
            return near
        return self._keep(order, self.holder.reach(near.vector, near.order, order))

    def near(self, log_factor: float, side: int) -> State | None:
        """The state next to a factor among the large order parameters, where the branch is stable."""
        found: list[Ordered] = []
        try:
            for m in LARGE[::2]:
                found.append(self.at(float(m)))
                if found[-1].slope * side > 0 and side * (found[-1].log_factor - log_factor) >= 0:
                    break
        except LostError:
            pass
        stable = [point for point in found if point.slope * side > 0]
        return min(stable, key=lambda point: abs(point.log_factor - log_factor)).state if stable else None

    def _keep(self, order: float, point: Any) -> Ordered:
        if point.status not in HELD or not point.error <= USABLE:
            raise LostError
        linear = linearise(self.holder.map_at(order), point.vector)
        last = np.eye(len(point.vector))[-1]
        slope = float(linear.solve(last[None])[0, -1])
        log_factor = float(point.vector[-1])
        self.known.append(Ordered(order, log_factor, slope, point.free_energy, point.state, point.vector))
        return self.known[-1]


def expansion(
    branch: OrderedBranch, log_critical: float, power: int, size: Callable[[State], float]
) -> tuple[float, float]:
    """a of (f/f_c)^power = 1 + a m² + …, and the ratio of another measure of the order to m: both at m² = 0, by a parabola."""
    grown, ratio = [], []
    for m in SMALL:
        point = branch.at(m)
        grown.append(np.expm1(power * (point.log_factor - log_critical)) / m**2)
        ratio.append(size(point.state) / m)
    at_zero = np.linalg.inv(np.vander(np.square(SMALL), increasing=True))[0]
    return float(at_zero @ grown), float(at_zero @ ratio)


def first_order_points(
    branch: OrderedBranch, critical: float, side: int, incoherent: Callable[[float], float]
) -> dict[str, float | None]:
    """Spinodal and equal-free-energy point: where the factor turns back, and where F is that of ``incoherent(f)``.

    Both are the instability ``critical`` where the branch turns back before the smallest order parameter, so close to a
    tricritical point that they cannot be told apart; None where they are not reached.
    """
    factor = lambda m: float(np.exp(branch.at(m).log_factor))  # noqa: E731
    turning = lambda m: side * branch.at(m).slope  # noqa: E731
    excess = lambda m: branch.at(m).free_energy - incoherent(factor(m))  # noqa: E731
    if turning(SMALL[0]) > 0:
        return {"spinodal": critical, "equal_free_energy": critical}
    end = equal = None
    try:
        end = _root(turning, (*SMALL, *LARGE), rising=True)
        equal = None if end is None else _root(excess, (end, *(m for m in LARGE if m > end)), rising=False)
    except LostError:
        pass
    found = {"spinodal": end, "equal_free_energy": equal}
    return {name: None if m is None else factor(m) for name, m in found.items()}


def _root(function: Callable[[float], float], values: Iterable[float], *, rising: bool) -> float | None:
    """The first root of a function that begins negative (``rising``) or positive; None where it has none."""
    before = None
    for value in values:
        passed = (function(value) > 0) == rising
        if passed:
            return None if before is None else float(scipy.optimize.brentq(function, before, value, xtol=ROOT))
        before = value
    return None
