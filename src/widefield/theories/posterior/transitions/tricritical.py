r"""Where a transition changes its order: the sign of Landau's quartic coefficient at the instability.

Second order where it is positive, first order where negative, all other order parameters eliminated, Eq. (posterior.14).
Where there is no free energy to expand it has the sign with which the coherent branch leaves, Eq. (posterior.19).
"""

import time
from functools import partial
from typing import Any, Generic, NamedTuple

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.solvers import continuation
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.branch_choice import branches_of
from widefield.theories.posterior.branches import Branches, Instability, Options, S
from widefield.theories.posterior.transitions.instability import find_instability, instability_near

MARGIN = 1.02  # around where the next instability is sought


class Quartic(NamedTuple, Generic[S]):
    """Landau's coefficient up to a positive factor, with its error, at one temperature's instability."""

    temperature: float
    instability: Instability[S]
    error: float = np.inf


@x64
def tricritical(
    network: Network,
    task: Task,
    *,
    temperature: float,
    along: str = "labels",
    rtol: float | None = None,
    max_steps: int = 300,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""The temperature at which the transition changes its order, searched from ``temperature`` upwards.

    Fields: ``temperature``, NaN where there is none, and ``factor``, that on the labels at its instability. The
    diagnostics say what was established: ``order`` at the lower end, and ``exists``.

    Method: the sign of Landau's quartic coefficient at the instability, Eq. (posterior.14), from derivatives of the free
    energy; for nonlinear networks that of :math:`a` in Eq. (posterior.19), from order parameters up to 0.15.
    Error: ``rtol``, by default 1e-10 for linear networks and 1e-4 for others, whose :math:`a` has an error of its own; the
    estimate is what is left of the coefficient, and its error, over its slope.
    Limits: temperatures up to a factor 10⁶ (linear) or 10³; depth times samples at most 4 for nonlinear networks. A
    search that loses the branch is ``incomplete``, not an absence.
    """
    begun = time.perf_counter()
    checks.choice("along", along, ("labels",))
    options = Options("tricritical", rtol, max_steps, along)
    branches = branches_of(core.problem_of(network, task, temperature), network.activation, options)
    if branches.sampled and branches.symmetric:
        raise ValueError(
            "`network` must be linear, or its depth times samples at most 4 dimensions, for a tricritical point; ask "
            "`transition` for the instability."
        )
    reach, n_steps = branches.temperature_span
    with bar("temperatures", n_steps, progress, seconds=6 * branches.seconds) as advance:
        evaluate = partial(_quartic, branches, advance)
        values = float(temperature) * np.geomspace(1, reach, n_steps)
        scan = continuation.scan(evaluate, map(float, values)) if branches.symmetric else continuation.Scan(())
        root = None
        if scan.bracket is not None:
            root = continuation.crossing(evaluate, *scan.bracket, rtol=branches.quartic_share * branches.rtol)
    n_lost, judged, note, order = _verdict(branches, scan, root)
    certificate = Certificate(
        "tricritical",
        {"lost": Check(n_lost, 0, Status.incomplete)} | judged,
        wall_time=time.perf_counter() - begun,
        options={"temperature": float(temperature), "along": along, "rtol": branches.rtol},
        notes=(*task.notes, note),
        diagnostics={"exists": root is not None, "order": order},
    )
    point = (np.nan, np.nan) if root is None else (root.value, root.solution.instability.factor)
    fields = {"temperature": ((), np.asarray(point[0])), "factor": ((), np.asarray(point[1], float))}
    return make_solution(fields, certificate, network, task, throw=throw)


def _quartic(
    branches: Branches[S], advance: Any, temperature: float, near: Quartic[S] | None
) -> tuple[float, Quartic[S]]:
    """The coefficient at a temperature, NaN where its instability is lost, −inf where there is no transition."""
    hotter = branches.at_temperature(temperature)
    instability: Instability[S] | None = None
    if near is not None and near.instability.factor is not None and near.instability.state is not None:
        # Next to the last one, which moves by less than the temperature.
        share, factor = temperature / near.temperature, near.instability.factor
        low, high = factor * min(1.0, share) / MARGIN, factor * max(1.0, share) * MARGIN
        instability = instability_near(hotter, low, high, near.instability.state)
    if instability is None or instability.factor is None:
        instability = find_instability(hotter)
    advance(1)
    if instability.factor is None or instability.state is None:
        absent = instability.lost == 0 and not instability.begins_unstable and near is None
        return (-np.inf if absent else np.nan), Quartic(temperature, instability)
    if instability.folded:
        return -1.0, Quartic(temperature, instability, 0.0)
    value, error = hotter.quartic(instability.factor, instability.state)
    return value, Quartic(temperature, instability, error)


def _verdict(
    branches: Branches, scan: continuation.Scan, root: continuation.Sample | None
) -> tuple[int, dict[str, Check], str, str | None]:
    """What the search established: how much was lost, what else success rests on, a note, and the order it begins with."""
    if not branches.symmetric:
        return 0, {}, "there is no transition: nothing breaks W → −W spontaneously here", None
    first, last = scan.samples[0], scan.samples[-1]
    order = None if not np.isfinite(first.number) else ("second" if first.number > 0 else "first")
    lost = scan.lost + (scan.bracket is not None and root is None)
    if lost:
        return lost, {}, f"the branch was lost at temperatures next to {last.value:g}", order
    if root is None:
        residual = float(np.max([sample.solution.instability.residual for sample in scan.samples]))
        note = f"the transition is of {order} order from temperature {first.value:g} to {last.value:g}"
        if order is None:
            note = f"there is no transition at temperature {first.value:g}"
        elif order == "first":
            note = f"the transition is of first order already at temperature {first.value:g}: begin with a lower one"
        return 0, {"residual": Check(residual, branches.rtol)}, note, order
    before, after = scan.bracket or (first, last)
    slope = abs(before.number - after.number) / np.log(after.value / before.value)
    residual, error = root.solution.instability.residual, (abs(root.number) + root.solution.error) / slope
    judged = {"residual": Check(residual, branches.rtol), "error": Check(error, branches.rtol)}
    return 0, judged, "the transition is of second order below and of first order above", order
