r"""The landscape :math:`-\tfrac1N\ln P` over one correlation of the features, everything else at its best.

Linear networks by minimisation under a constraint, nonlinear ones by the constrained saddle point of `held`.
"""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.answer import legacy
from widefield.answer.boundary import x64
from widefield.answer.certificate import Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.activation import Activation
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.solvers import definite
from widefield.theories.posterior import linear
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.held import HELD, Holder, Point
from widefield.theories.posterior.phases import has_symmetry, solve_phase
from widefield.theories.posterior.problem import Array
from widefield.theories.posterior.saddle import State

STIFFNESS, ROUNDS = 20.0, 60


class Correlation(NamedTuple):
    r""":math:`m = \mathrm{tr}H_{ab}/\sqrt{\mathrm{tr}H_{aa}\,\mathrm{tr}H_{bb}}` as three linear forms of S, held at a target.

    ``multiplier`` is the field that holds it, up to what the stiff spring adds.
    """

    between: Float[Array, "1 rank rank"]
    first: Float[Array, "1 rank rank"]
    second: Float[Array, "1 rank rank"]
    target: Float[Array, ""]
    multiplier: Float[Array, ""]


def correlation(S: Array, held: Correlation) -> tuple[Array, Array]:
    """m and dm/dS."""
    x, y, z = (jnp.sum(form * S) for form in (held.between, held.first, held.second))
    m = x / jnp.sqrt(y * z)
    return m, held.between / jnp.sqrt(y * z) - 0.5 * m * (held.first / y + held.second / z)


def constrained(S: Array, layout: linear.Joint, held: Correlation) -> tuple[Array, Array]:
    """Augmented Lagrangian of the free energy at a given correlation, and its gradient."""
    value, gradient = linear.free_energy(S, layout)
    m, slope = correlation(S, held)
    off = m - held.target
    value = value - held.multiplier * off + 0.5 * STIFFNESS * off**2
    return value, gradient + (STIFFNESS * off - held.multiplier) * slope


@partial(jax.jit, static_argnames="max_steps")
def _hold(S: Array, layout: linear.Joint, held: Correlation, tolerance: Array, max_steps: int):
    """The free energy at the target, by updating the multiplier until the correlation is there."""

    def go_on(c):
        _, _, off, gradient, n = c
        return ((jnp.abs(off) > tolerance) | (gradient > tolerance)) & (n < ROUNDS)

    def body(c):
        S, multiplier, _, _, n = c
        at = held._replace(multiplier=multiplier)
        found = definite.minimise(constrained, S, (layout, at), tolerance=0.1 * tolerance, max_steps=max_steps)
        off = correlation(found.point, at)[0] - held.target
        return found.point, multiplier - STIFFNESS * off, off, found.gradient, n + 1

    big = jnp.asarray(jnp.inf)
    S, multiplier, off, gradient, _ = jax.lax.while_loop(go_on, body, (S, held.multiplier, big, big, 0))
    return S, multiplier, jnp.maximum(jnp.abs(off), gradient), linear.free_energy(S, layout)[0]


@x64
def landscape(
    network: Network,
    task: Task,
    *,
    temperature: float,
    along: tuple[int, int] = (0, 1),
    values: Any = None,
    rtol: float | None = None,
    max_steps: int = 200,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Free energy per neuron over the correlation between two states, at its best over the rest of the kernel.

    ``along`` names the states; the correlation is
    :math:`m = \mathrm{tr}\Phi_{ab}/\sqrt{\mathrm{tr}\Phi_{aa}\mathrm{tr}\Phi_{bb}}` of the features (linear networks: of
    the states) and ``values`` are those to visit, from −0.9 to 0.9 by default. Returns ``free_energy``, ``field`` = dF/dm,
    ``hidden`` and ``feature`` over ``correlation``.
    Method: augmented Lagrangian for linear networks, Newton's method on the saddle point under a field for others; both
    hold maxima and barriers as well as minima, each from its neighbour.
    Error: violation of the constraint and gradient, or what a finer grid changes; ``rtol`` is 1e-8 and 1e-6 by default.
    Limits: nonlinear networks by quadrature, so depth times samples up to four. Where something else than the held
    correlation is unstable the status is ``saddle``.
    """
    begun = time.perf_counter()
    problem = core.problem_of(network, task, temperature)
    a, b = _states(along, network.depth)
    values = np.linspace(-0.9, 0.9, 37) if values is None else _values(values)
    max_steps = checks.integer("max_steps", max_steps, 1)
    is_linear = network.activation.known_as("linear")
    rtol = (
        (1e-8 if is_linear else 1e-6) if rtol is None else checks.tolerance("rtol", rtol, 1e-11 if is_linear else 1e-9)
    )
    visit = _visit_linear if is_linear else partial(_visit_nonlinear, network.activation)
    found = visit(problem, (a, b), values, rtol, max_steps, progress)
    dims = ("correlation", "state", "state_", "sample", "sample_")
    pairs = lambda kernels: (dims, np.stack([np.moveaxis(core.by_state(problem, k), 2, 1) for k in kernels]))  # noqa: E731
    fields = {
        "free_energy": (dims[:1], found.free_energy), "field": (dims[:1], found.field),
        "hidden": pairs(found.hidden), "feature": pairs(found.feature),
    }  # fmt: skip
    certificate = legacy.certificate(
        theory="landscape",
        status=found.status,
        residual=found.residual,
        tolerance=rtol,
        error=found.error,
        wall_time=time.perf_counter() - begun,
        options={"temperature": float(temperature), "along": [a, b]},
        notes=task.notes,
    )
    return make_solution(fields, certificate, network, task, coords={"correlation": values}, throw=throw)


class _Visited(NamedTuple):
    """The landscape at all values, and the worst of its residuals, errors and fates."""

    free_energy: np.ndarray
    field: np.ndarray
    hidden: np.ndarray
    feature: np.ndarray
    residual: float
    error: float
    status: Status


def _states(along: Any, depth: int) -> tuple[int, int]:
    try:
        a, b = (checks.integer("along", state, 0) for state in along)
    except TypeError:
        raise ValueError(f"`along` must be two states such as (0, 1), got {along!r}.") from None
    if max(a, b) >= depth or a == b:
        raise ValueError(f"`along` must be two different states below {depth}, got {along!r}.")
    return a, b


def _values(values: Any) -> np.ndarray:
    array = checks.real_array("values", values, (1,), "correlations")[0]
    if np.any(np.abs(array) >= 1) or np.any(np.diff(array) <= 0):
        raise ValueError("`values` must rise and lie strictly between −1 and 1.")
    return array


def _form(problem: core.Problem, layout: linear.Joint, a: int, b: int) -> np.ndarray:
    """tr H_ab as a form in S."""
    n = problem.n_samples
    select = np.zeros_like(problem.drive)
    select[a * n + np.arange(n), b * n + np.arange(n)] += 0.5
    select[b * n + np.arange(n), a * n + np.arange(n)] += 0.5
    return layout.root.swapaxes(-1, -2) @ select @ layout.root


def _visit_linear(problem, along, values, rtol, max_steps, progress) -> _Visited:
    """All values, outwards from the one closest to zero."""
    root, inverse = linear.roots(linear.random_kernel(problem)[None])
    layout = linear.Joint(problem, root, inverse, np.eye(root.shape[-1])[None])
    a, b = along
    forms = [_form(problem, layout, i, j) for i, j in ((a, b), (a, a), (b, b))]
    free, field = np.full(len(values), np.nan), np.full(len(values), np.nan)
    kernels = np.full((len(values), *layout.problem.drive.shape), np.nan)
    middle = int(np.argmin(np.abs(values)))
    worst = 0.0
    with bar("landscape", len(values), progress, seconds=0.05 * len(values)) as advance:
        for path in (range(middle, len(values)), range(middle - 1, -1, -1)):
            S, multiplier = np.eye(layout.root.shape[-1])[None], np.zeros(())
            for i in path:
                held = Correlation(forms[0], forms[1], forms[2], np.asarray(values[i]), multiplier)
                S, multiplier, off, free[i] = _hold(S, layout, held, rtol, max_steps)
                field[i], worst = multiplier, max(worst, float(off))
                kernels[i] = linear.kernel(layout, np.asarray(S))[0]
                advance(1)
    status = Status.success if worst <= rtol else Status.not_converged
    return _Visited(free, field, kernels, kernels, worst, worst, status)


def _visit_nonlinear(activation: Activation, problem, along, values, rtol, max_steps, progress) -> _Visited:
    """All values, outwards from the free state that the search begins with."""
    holder = Holder(problem, activation, along, rtol, max_steps)
    points: dict[int, Point] = {}
    with bar("landscape", len(values), progress, seconds=20.0 + 2.0 * len(values)) as advance:
        begin, origin = holder.start(_free_state(problem, activation, max_steps))
        first = int(np.searchsorted(values, begin))
        for path in (range(first, len(values)), range(first - 1, -1, -1)):
            at, vector = begin, origin
            for i in path:
                points[i] = holder.reach(vector, at, float(values[i]))
                at, vector = float(values[i]), points[i].vector
                advance(1)
                if points[i].status not in HELD:
                    break
    return _gathered(problem, [points.get(i) for i in range(len(values))])


def _free_state(problem: core.Problem, activation: Activation, max_steps: int) -> State:
    """The state without odd lags where the symmetry allows one, else that which the search from the prior finds."""
    even = has_symmetry(problem, activation)
    found = solve_phase(problem, activation, even=even, method="quadrature", max_steps=max_steps).found
    return State(jnp.asarray(found.feature), jnp.asarray(found.hidden))


def _gathered(problem: core.Problem, points: "list[Point | None]") -> _Visited:
    """Points as arrays, NaN where a path ended before."""
    of = lambda p, name: getattr(p, name) if p is not None and p.status in HELD else np.nan  # noqa: E731
    lost = np.full(problem.drive.shape, np.nan)
    kernel = lambda p, name: np.asarray(getattr(p.state, name)) if of(p, "field") == of(p, "field") else lost  # noqa: E731
    fates = [p.status for p in points if p is not None and p.status is not Status.success]
    return _Visited(
        np.array([of(p, "free_energy") for p in points]),
        np.array([of(p, "field") for p in points]),
        np.stack([kernel(p, "hidden") for p in points]),
        np.stack([kernel(p, "feature") for p in points]),
        max(p.residual for p in points if p is not None),
        max(p.error for p in points if p is not None),
        fates[0] if fates else Status.success,
    )
