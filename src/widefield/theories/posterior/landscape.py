r"""The landscape :math:`-\tfrac1N\ln P` over one correlation of the kernel, everything else at its best."""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield import checks
from widefield.boundary import x64
from widefield.network import Network
from widefield.progress import bar
from widefield.solution import Certificate, Solution, Status, make_solution
from widefield.solvers import definite
from widefield.task import Task
from widefield.theories.posterior import linear
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.problem import Array

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
    rtol: float = 1e-8,
    max_steps: int = 200,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Free energy per neuron over the correlation between two states, minimised over the rest of the kernel.

    ``along`` names the states; the correlation is :math:`m = \mathrm{tr}H_{ab}/\sqrt{\mathrm{tr}H_{aa}\mathrm{tr}H_{bb}}`
    and ``values`` are those to visit, from −0.9 to 0.9 by default. Returns ``free_energy``, ``field`` = dF/dm, and
    ``hidden`` over ``correlation``.
    Method: augmented Lagrangian, which holds maxima and barriers as well as minima, each from its neighbour.
    Limits: linear networks with tied weights, or inputs or labels that join states.
    """
    begun = time.perf_counter()
    problem = core.problem_of(network, task, temperature)
    if network.activation.name != "linear":
        raise ValueError(f"`activation` must be linear for the landscape, got {network.activation}.")
    a, b = _states(along, network.depth)
    values = np.linspace(-0.9, 0.9, 37) if values is None else _values(values)
    rtol = checks.tolerance("rtol", rtol, 1e-11)
    root, inverse = linear.roots(linear.random_kernel(problem)[None])
    layout = linear.Joint(problem, root, inverse, np.eye(root.shape[-1])[None])
    forms = [_form(problem, layout, i, j) for i, j in ((a, b), (a, a), (b, b))]
    free, field, kernels, worst = _visit(layout, forms, values, rtol, max_steps, progress)
    pairs = ("correlation", "state", "state_", "sample", "sample_")
    fields = {
        "free_energy": (pairs[:1], free), "field": (pairs[:1], field),
        "hidden": (pairs, np.stack([np.moveaxis(core.by_state(problem, k), 2, 1) for k in kernels])),
    }  # fmt: skip
    certificate = Certificate(
        theory="landscape",
        status=Status.success if worst <= rtol else Status.not_converged,
        residual=worst,
        tolerance=rtol,
        error=worst,
        wall_time=time.perf_counter() - begun,
        options={"temperature": float(temperature), "along": [a, b]},
        notes=task.notes,
    )
    return make_solution(fields, certificate, network, task, coords={"correlation": values}, throw=throw)


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


def _visit(layout, forms, values, rtol, max_steps, progress):
    """All values, outwards from the one closest to zero."""
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
    return free, field, kernels, worst
