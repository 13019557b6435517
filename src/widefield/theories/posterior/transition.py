r"""The transition from incoherent to coherent recurrent networks, followed from both sides.

Three points have names: the *instability*, at which the incoherent point stops being a minimum; the *equal-free-energy*
point, from which the coherent minimum is the lower one; the *spinodal*, at which the coherent branch ends. At a
second-order transition they coincide, and only the first is reported.
"""

import html
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from widefield import checks
from widefield.boundary import x64
from widefield.network import Network
from widefield.progress import bar
from widefield.solution import Certificate, Solution, Status, make_solution
from widefield.solvers import continuation
from widefield.task import Task
from widefield.theories.posterior import branches, problem
from widefield.theories.posterior.follow import ALONG, landau, linear_branches

RANGE = 1e4  # factors on the varied quantity that are searched, up and down
STEP = 1e-3  # relative distance over which the softest eigenvalue is differentiated


@dataclass(frozen=True)
class Transition:
    """Where the incoherent branch gives way to the coherent one; points are factors on what is varied, None if absent.

    The order parameter grows as ``prefactor`` · |λ/λ_c − 1|^``exponent`` with λ the varied quantity (the labels
    squared); it is the largest correlation between adjacent states. ``curve`` has both branches over ``factor``.
    """

    along: str
    instability: float | None
    equal_free_energy: float | None
    spinodal: float | None
    order: str | None
    exponent: float | None
    prefactor: float | None
    curve: Solution

    @property
    def certificate(self) -> Certificate:
        return self.curve.certificate

    def __str__(self) -> str:
        if self.order is None:
            return f"No transition along {self.along}: {' '.join(self.certificate.notes)}"
        show = lambda v: "none" if v is None else f"{v:.8g}"  # noqa: E731
        lines = [f"Transition of {self.order} order along {self.along} (factors on the {self.along} of the task)"]
        for name in ("instability", "equal_free_energy", "spinodal", "exponent", "prefactor"):
            lines.append(f"  {name.replace('_', ' '):<18} {show(getattr(self, name))}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def plot(self, path: str | Path | None = None):
        """Draw order parameter and free energy of both branches."""
        return self.curve.plot(path)


@x64
def transition(
    network: Network,
    task: Task,
    *,
    temperature: float,
    along: str = "labels",
    points: int = 50,
    rtol: float = 1e-10,
    max_steps: int = 200,
    progress: bool | None = None,
) -> Transition:
    r"""Follow the incoherent and the coherent branch as the labels or the temperature of a task are scaled.

    Section 7 of theory/posterior. The incoherent branch is unstable where the softest Hessian eigenvalue vanishes; the
    sign of Landau's quartic coefficient there, even modes eliminated, says whether the transition is of second
    (:math:`b > 0`, exponent ½, prefactor from :math:`b`) or of first order.

    Method: continuation of each branch from its neighbour, in both directions; ends by bisection.
    Error: points are good to ``rtol`` in the factor where the branch is solved to that.
    Limits: linear networks. Without the symmetry W → −W there is no sharp transition, and all points are None.
    """
    begun = time.perf_counter()
    checks.choice("along", along, ALONG)
    points = checks.integer("points", points, 2)
    rtol = checks.tolerance("rtol", rtol, 1e-12)
    asked = problem.problem_of(network, task, temperature)
    followed = linear_branches(asked, along, tolerance=0.01 * rtol, max_steps=checks.integer("max_steps", max_steps, 1))
    with bar("transition", 4, progress, seconds=3.0) as advance:
        facts, notes = _find(followed, advance)
        fields, factors = _curve(followed, facts, points)
        advance(1)
    certificate = Certificate(
        theory="transition",
        status=Status.success,
        residual=_worst(facts),
        tolerance=rtol,
        error=_worst(facts),
        wall_time=time.perf_counter() - begun,
        options={"temperature": float(temperature), "along": along, "points": points},
        notes=(*task.notes, *notes),
        diagnostics={name: facts.get(name) for name in ("instability", "equal_free_energy", "spinodal", "order")},
    )
    curve = make_solution(fields, certificate, network, task, coords={"factor": factors, "branch": BRANCHES})
    names = ("instability", "equal_free_energy", "spinodal", "order", "exponent", "prefactor")
    return Transition(along, **{name: facts.get(name) for name in names}, curve=curve)


BRANCHES = ["incoherent", "coherent"]


def _find(followed: Any, advance: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The points of the transition and, for the curve, the incoherent point at the instability."""
    if followed is None:
        return {}, ("nothing breaks W → −W spontaneously here (untied weights, or inputs or labels that break it)",)
    up = followed.along == "labels"
    factors = np.geomspace(1 / RANGE, RANGE, 81)[:: 1 if up else -1]
    cache: dict[float, Any] = {}
    critical = _instability(followed, factors, cache)
    advance(1)
    if critical is None:
        return {}, (f"the incoherent branch stays a minimum for factors from {1 / RANGE:g} to {RANGE:g}",)
    facts: dict[str, Any] = {"instability": critical, "critical": cache[critical]}
    facts |= _order(followed, critical, cache[critical], power=2 if up else 1)
    advance(1)
    if facts["order"] == "first":
        facts |= _coexistence(followed, critical, cache[critical], up)
    advance(1)
    return facts, ()


def _instability(followed: Any, factors: np.ndarray, cache: dict[float, Any]) -> float | None:
    """The factor at which the incoherent point loses its stability; ``cache`` gets the points met."""
    last = None

    def stability(factor: float) -> float:
        nonlocal last
        last = cache[factor] = followed.incoherent(factor, last)
        return last.stability

    bracket = continuation.first_sign_change(stability, list(map(float, factors)))
    if bracket is None:
        return None
    last = cache[bracket[0]]
    critical = continuation.crossing(stability, *bracket)
    cache[critical] = followed.incoherent(critical, last)
    return critical


def _order(followed: Any, critical: float, point: Any, *, power: int) -> dict[str, Any]:
    """Order, exponent and prefactor from Landau's expansion at the instability."""
    found = landau(point)
    near = [followed.incoherent(critical * (1 + s * STEP) ** (1 / power), point).stability for s in (-2, -1, 1, 2)]
    slope = (near[0] - 8 * near[1] + 8 * near[2] - near[3]) / (12 * STEP)
    if found.quartic <= 0:
        return {"order": "first", "quartic": found.quartic}
    prefactor = found.correlation * np.sqrt(abs(slope) / (4 * found.quartic))
    return {"order": "second", "exponent": 0.5, "prefactor": float(prefactor), "quartic": found.quartic}


def _coexistence(followed: Any, critical: float, point: Any, up: bool) -> dict[str, Any]:
    """Spinodal and equal-free-energy point of a first-order transition."""
    beyond = critical * (1.02 if up else 1 / 1.02)
    start = followed.coherent(beyond, followed.incoherent(beyond, point))
    if start is None:
        return {}
    step, limit = (0.995, 1e-3) if up else (1 / 0.995, 1e3)
    end = continuation.branch_end(followed.coherent, beyond, start, step, limit=limit)
    if end is None:
        return {}
    last = end[1]

    def difference(factor: float) -> float:
        nonlocal last
        coherent = followed.coherent(factor, last)
        last = coherent or last
        return (coherent or last).free_energy - followed.incoherent(factor, point).free_energy

    inside = end[0] * (1 + (1e-9 if up else -1e-9))
    return {"spinodal": end[0], "equal_free_energy": continuation.crossing(difference, inside, beyond), "start": start}


def _curve(followed: Any, facts: dict[str, Any], points: int) -> tuple[dict[str, Any], np.ndarray]:
    """Order parameter, free energy and stability of both branches over factors around the transition."""
    center = facts.get("instability", 1.0)
    factors = center * np.geomspace(0.5, 2.0, points)
    names = ("free_energy", "order_parameter", "stability")
    table = np.full((3, 2, points), np.nan)
    if "critical" in facts:
        up = followed.along == "labels"
        order = np.arange(points)[:: 1 if up else -1]  # from the incoherent side
        there = continuation.follow(followed.incoherent, factors[order], facts["critical"])
        back = continuation.follow(followed.coherent, factors[order[::-1]], there[-1])
        for b, (indices, found) in enumerate(((order, there), (order[::-1], back))):
            for i, state in zip(indices, found, strict=True):
                if state is not None:
                    correlation = branches.adjacent_correlation(state.problem, state.kernel)
                    table[:, b, i] = state.free_energy, correlation, state.stability
    return {name: (("branch", "factor"), table[i]) for i, name in enumerate(names)}, factors


def _worst(facts: dict[str, Any]) -> float:
    return float(facts["critical"].gradient) if "critical" in facts else 0.0


@x64
def tricritical(
    network: Network,
    task: Task,
    *,
    temperature: float,
    along: str = "labels",
    rtol: float = 1e-10,
    max_steps: int = 200,
) -> float | None:
    """The temperature at which the transition changes its order, searched from ``temperature`` upwards; None if never.

    Landau's quartic coefficient at the instability changes its sign there.
    """
    checks.choice("along", along, ("labels",))
    asked = problem.problem_of(network, task, temperature)
    followed = linear_branches(asked, along, tolerance=0.01 * rtol, max_steps=max_steps)
    if followed is None:
        return None

    def quartic(kappa: float) -> float:
        layout = followed.layout._replace(problem=asked._replace(temperature=np.asarray(kappa)))
        cache: dict[float, Any] = {}
        critical = _instability(followed._replace(layout=layout), np.geomspace(1 / RANGE, RANGE, 81), cache)
        return landau(cache[critical]).quartic if critical is not None else -np.inf

    bracket = continuation.first_sign_change(quartic, list(float(temperature) * np.geomspace(1, 1e6, 41)))
    return None if bracket is None else continuation.crossing(quartic, *bracket, rtol=rtol)
