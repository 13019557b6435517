r"""The saddle point of a nonlinear network with one correlation of its features held at a value.

.. math::
    m(\Phi) = \frac{\mathrm{tr}\,\Phi_{ab}}{\sqrt{\mathrm{tr}\,\Phi_{aa}\,\mathrm{tr}\,\Phi_{bb}}} = m_0, \qquad
    \tilde\Phi = \tfrac v2 S^{\mathsf T}RYRS + \tfrac12\big[M^w w\,(K^{-1}CK^{-1} - K^{-1})\big]^+
    + \eta\,\frac{\partial m}{\partial\Phi}, \qquad \eta = \frac{dF}{dm_0}

Section 2 of theory/posterior with a Lagrange multiplier: the free energy less :math:`\eta\,(m - m_0)` is stationary.
Everything else stays as in `saddle`. The field :math:`\eta` is one more unknown, the constraint one more equation.

Method: Newton's, whose Jacobian also says what a finer grid changes and whether anything else is unstable: its
determinant is :math:`\det(1-J)\,dm/d\eta`, positive at a minimum and, because both factors change their sign there,
where the held correlation alone is unstable.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from widefield.answer.certificate import Status
from widefield.gaussian.kernels import parity_of
from widefield.question.activation import Activation
from widefield.theories.posterior import moments, saddle
from widefield.theories.posterior.converge import unit_of
from widefield.theories.posterior.linearised import Linearised, linearise
from widefield.theories.posterior.nonlinear import MAX_DIMENSION, levels_of
from widefield.theories.posterior.problem import Problem
from widefield.theories.posterior.saddle import SaddleMap, State

HELD = (Status.success, Status.saddle, Status.inaccurate)  # the point was reached, whatever it is worth
ON_THE_WAY, WALK = 1e-4, np.arange(1, 20) / 20  # accuracy and correlations of a walk
SLOW = 0.2  # ratio of successive residuals beyond which the Jacobian is made anew
RETREATS, HALVINGS = 8, 8  # of a step that makes things worse; of the way to a value that is not reached


class Forms(NamedTuple):
    r"""tr Φ_ab, tr Φ_aa and tr Φ_bb as sums over entries of Φ times these."""

    between: Float[Array, "node node"]
    first: Float[Array, "node node"]
    second: Float[Array, "node node"]


def forms_of(problem: Problem, a: int, b: int) -> Forms:
    """The forms of two states' correlation."""
    n = np.arange(problem.n_samples)

    def form(i: int, j: int) -> Array:
        select = np.zeros(problem.drive.shape)
        select[i * len(n) + n, j * len(n) + n] += 0.5
        select[j * len(n) + n, i * len(n) + n] += 0.5
        return jnp.asarray(select)

    return Forms(form(a, b), form(a, a), form(b, b))


def correlation(matrix: Array, forms: Forms) -> tuple[Array, Array]:
    """m and dm/dΦ."""
    x, y, z = (jnp.sum(form * matrix) for form in forms)
    m = x / jnp.sqrt(y * z)
    return m, forms.between / jnp.sqrt(y * z) - 0.5 * m * (forms.first / y + forms.second / z)


class HeldMap(eqx.Module):
    """A `SaddleMap` with the field as last entry of its vector; that entry rests where the correlation is ``target``."""

    map: SaddleMap
    forms: Forms
    target: Float[Array, ""]

    def density(self, state: State, field: Array) -> tuple[moments.Density, Array]:
        """The density under the field, and the correlation."""
        m, slope = correlation(state.feature, self.forms)
        density = self.map.density(state)
        return density._replace(conjugate=density.conjugate + field * slope), m

    def free_energy(self, vector: Array) -> Array:
        state = self.map.unpack(vector[:-1])
        return saddle.free_energy_at(self.map, state, self.density(state, vector[-1])[0])

    def __call__(self, vector: Array, args: None = None) -> Array:
        state = self.map.unpack(vector[:-1])
        density, m = self.density(state, vector[-1])
        return jnp.append(self.map.image(state, density), vector[-1] + self.target - m)


@eqx.filter_jit
def _value(held: Any, vector: Array) -> Array:
    return held(vector)


@eqx.filter_jit
def _free_energy(held: Any, vector: Array) -> Array:
    return held.free_energy(vector)


class Point(NamedTuple):
    """A constrained saddle point: ``vector`` of the map with its field, and what a finer grid says about it."""

    vector: Array
    state: State
    field: float
    free_energy: float
    residual: float
    error: float
    status: Status


class Holder:
    """Finds constrained saddle points one after the other, each from its neighbour, on grids as fine as they need.

    ``make`` says what the last entry of a vector is, by default the field.
    """

    def __init__(
        self,
        problem: Problem,
        activation: Activation,
        along: tuple[int, int],
        rtol: float,
        max_steps: int,
        level: int = 0,
        make: Callable[[SaddleMap, Forms, Array], Any] = HeldMap,
    ):
        self.rtol, self.max_steps, self.level, self.make = rtol, max_steps, level, make
        self.forms = forms_of(problem, *along)
        prior = saddle.prior_state(problem, activation)
        frame = saddle.saddle_map(problem, activation, None, prior, np.ones(problem.drive.shape, bool))
        if frame.basis.embed.shape[1] > MAX_DIMENSION:
            raise ValueError(
                f"`task` must leave at most {MAX_DIMENSION} dimensions, depth times samples, for the landscape of a "
                f"nonlinear network, got {frame.basis.embed.shape[1]}."
            )
        self.frame = frame
        self.levels = levels_of(frame, parity_of(activation) != 0)
        self._nodes: dict[int, moments.Nodes] = {}

    def start(self, state: State) -> tuple[float, Array]:
        """A free stationary state as a point under no field: its correlation and its vector."""
        state = State(*map(jnp.asarray, state))
        return float(correlation(state.feature, self.forms)[0]), jnp.append(self.frame.pack(state), 0.0)

    def reach(self, vector: Array, begin: float, target: float) -> Point:
        """The point at ``target`` from that at ``begin``, by shorter steps where a long one fails."""
        at, step = begin, target - begin
        for _ in range(2**HALVINGS):
            ahead = target if abs(target - at) <= 1.0001 * abs(step) else at + step
            point = self.hold(vector, ahead)
            if point.status not in HELD:
                step *= 0.5
                if abs(step) < abs(target - begin) / 2**HALVINGS:
                    break
                continue
            at, vector = ahead, point.vector
            if at == target:
                break
        return point

    def hold(self, vector: Array, target: float) -> Point:
        """Newton's method on one grid, judged on the next finer one."""
        while True:
            here, there = (self._map(k, target) for k in (self.level, self.level + 1))
            vector, linear, status = newton(here, vector, 0.01 * self.rtol, self.max_steps)
            gap = np.asarray(_value(there, vector)) - np.asarray(vector)
            if status is not Status.success or not np.isfinite(gap).all():
                return self._point(there, vector, gap, np.inf, status)
            error = float(np.abs(linear.solve(gap[None])).max()) / unit_of(vector)
            if error <= self.rtol:
                status = Status.saddle if _is_unstable(linear) and _is_unstable(linearise(here, vector)) else status
                return self._point(there, vector, gap, error, status)
            if self.level + 2 >= len(self.levels):
                return self._point(there, vector, gap, error, Status.inaccurate)
            self.level += 1

    def map_at(self, target: float) -> Any:
        """The map on the present grid."""
        return self._map(self.level, target)

    def _map(self, level: int, target: float) -> Any:
        if level not in self._nodes:
            self._nodes = {k: nodes for k, nodes in self._nodes.items() if k >= level - 1}
            self._nodes[level] = self.levels[level]()
        on = eqx.tree_at(lambda m: m.nodes, self.frame, self._nodes[level], is_leaf=lambda x: x is None)
        return self.make(on, self.forms, jnp.asarray(target))

    def _point(self, held: Any, vector: Array, gap: np.ndarray, error: float, status: Status) -> Point:
        free = float(_free_energy(held, vector))
        residual = float(np.abs(gap).max()) / unit_of(vector)
        return Point(vector, held.map.unpack(vector[:-1]), float(vector[-1]), free, residual, error, status)


def _is_unstable(linear: Linearised) -> bool:
    """Whether an odd number of directions other than the held one leads down."""
    assert linear.matrix is not None, "at most four dimensions"
    return np.linalg.slogdet(np.eye(len(linear.value)) - linear.matrix)[0] < 0


def newton(function: Any, start: Array, tolerance: float, max_steps: int) -> tuple[Array, Linearised, Status]:
    """The fixed point of an `equinox.Module`, with the last Jacobian on the way: one serves as long as it helps."""
    vector, linear, fresh = start, linearise(function, start), True
    off = linear.value - np.asarray(vector)
    for _ in range(max_steps):
        if not np.isfinite(off).all():
            return vector, linear, Status.nonfinite
        if np.abs(off).max() <= tolerance * unit_of(vector):
            return vector, linear, Status.success
        ahead, there = _step(function, vector, linear, off)
        if ahead is None and fresh:
            break
        fresh = ahead is None or bool(np.abs(there).max() > SLOW * np.abs(off).max())
        vector, off = (vector, off) if ahead is None else (ahead, there)
        if fresh and np.abs(off).max() > tolerance * unit_of(vector):
            linear = linearise(function, vector)
    return vector, linear, Status.not_converged


def _step(function, vector: Array, linear: Linearised, off: np.ndarray) -> tuple[Array | None, np.ndarray]:
    """One step of Newton's, shortened until the residual does not grow."""
    step = linear.solve(off[None])[0]
    for _ in range(RETREATS):
        ahead = vector + step
        there = np.asarray(_value(function, ahead)) - np.asarray(ahead)
        if np.isfinite(there).all() and np.abs(there).max() <= np.abs(off).max():
            return ahead, there
        step = 0.5 * step
    return None, off


def walk_to_coherent(problem: Problem, activation: Activation, state: State, max_steps: int) -> State | None:
    """From an unstable incoherent state up the correlation of the last two states, to where its field vanishes."""
    holder = Holder(problem, activation, (problem.depth - 2, problem.depth - 1), ON_THE_WAY, max_steps)
    at, vector = holder.start(state)
    pulled = False
    for size in WALK:
        point = holder.reach(vector, at, size)
        if point.status not in HELD:
            return None
        if pulled and point.field >= 0:
            return point.state
        pulled, at, vector = point.field < 0, size, point.vector
    return None
