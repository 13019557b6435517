r"""The landscape :math:`-\tfrac1N\ln P` over one correlation of the features, everything else at its best."""

import time
from typing import Any

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.branch_choice import branches_of
from widefield.theories.posterior.branches import LandscapePoint, Options

DIMS = ("correlation", "state", "state_", "sample", "sample_")


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
    the states), Eq. (posterior.17), and ``values`` are those to visit, from −0.9 to 0.9 by default. Returns
    ``free_energy``, ``field`` = dF/dm, ``hidden`` and ``feature`` over ``correlation``.
    Method: augmented Lagrangian for linear networks, Newton's method on the saddle point under a field for others; both
    hold maxima and barriers as well as minima, each from its neighbor.
    Error: violation of the constraint and gradient, or what a finer grid changes; ``rtol`` is 1e-8 and 1e-6 by default.
    Values that were not reached are NaN and counted by the check ``lost``.
    Limits: nonlinear networks by quadrature, so depth times samples up to four. Where something else than the held
    correlation is unstable the status is ``saddle``.
    """
    begun = time.perf_counter()
    options = Options("landscape", rtol, max_steps)
    core.check(network, task)
    pair = _states(along, network.depth)
    values = checks.real_array(
        "values", np.linspace(-0.9, 0.9, 37) if values is None else values, (1,), "correlations"
    )[0]
    if np.any(np.abs(values) >= 1) or np.any(np.diff(values) <= 0):
        raise ValueError("`values` must rise and lie strictly between −1 and 1.")
    problem = core.problem_of(network, task, temperature)
    branches = branches_of(problem, network.activation, options)
    with bar("landscape", len(values), progress, seconds=(2 + 0.2 * len(values)) * branches.seconds) as advance:
        points = branches.landscape(pair, values, advance)
    certificate = Certificate(
        "landscape",
        _checks(points, branches.rtol),
        wall_time=time.perf_counter() - begun,
        options={"temperature": float(temperature), "along": list(pair), "rtol": branches.rtol},
        notes=task.notes,
    )
    coords = {"correlation": values}
    return make_solution(_fields(problem, points), certificate, network, task, coords=coords, throw=throw)


def _checks(points: list[LandscapePoint | None], rtol: float) -> dict[str, Check]:
    """The worst of all points; NaN where one of them is."""
    reached = [point for point in points if point is not None]
    largest = lambda name: float(np.max([getattr(p, name) for p in reached])) if reached else np.inf  # noqa: E731
    return {
        "lost": Check(len(points) - len(reached), 0, Status.incomplete),
        "residual": Check(largest("residual"), rtol, Status.not_converged),
        "error": Check(largest("error"), rtol),
        "unstable": Check(sum(not p.stable for p in reached), 0, Status.saddle),
    }


def _fields(problem: core.Problem, points: list[LandscapePoint | None]) -> dict[str, Any]:
    """Points as arrays, NaN where a path ended before."""
    nothing = np.full(problem.input_kernel.shape, np.nan)
    each = lambda name, missing: [missing if p is None else getattr(p, name) for p in points]  # noqa: E731
    pairs = lambda name: np.stack([core.by_pairs(problem, matrix) for matrix in each(name, nothing)])  # noqa: E731
    numbers = {name: (DIMS[:1], np.array(each(name, np.nan))) for name in ("free_energy", "field")}
    return numbers | {name: (DIMS, pairs(name)) for name in ("hidden", "feature")}


def _states(along: Any, depth: int) -> tuple[int, int]:
    try:
        states = tuple(along)
    except TypeError:
        states = ()
    if len(states) != 2:
        raise ValueError(f"`along` must be two states such as (0, 1), got {along!r}.")
    a, b = (checks.integer("along", state, 0) for state in states)
    if max(a, b) >= depth or a == b:
        raise ValueError(f"`along` must be two different states below {depth}, got {along!r}.")
    return a, b
