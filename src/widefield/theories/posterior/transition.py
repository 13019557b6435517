r"""The transition from incoherent to coherent recurrent networks, followed from both sides.

Three points have names: the *instability*, at which the incoherent point stops being a minimum; the *equal-free-energy*
point, from which the coherent minimum is the lower one; the *spinodal*, at which the coherent branch ends. At a
second-order transition they coincide, and only the first is reported.
"""

import html
import time
from dataclasses import dataclass
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
from widefield.theories.posterior.follow import ALONG, branches_of, landau, linear_branches

N_FACTORS = 33  # between the smallest and the largest factor that are searched
BRANCHES = ["incoherent", "coherent"]


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
    rtol: float | None = None,
    max_steps: int = 300,
    progress: bool | None = None,
) -> Transition:
    r"""Follow the incoherent and the coherent branch as the labels or the temperature of a task are scaled.

    Sections 7 and 9 of theory/posterior. The incoherent branch is unstable where the softest Hessian eigenvalue vanishes
    or, for nonlinear networks, an eigenvalue of the saddle-point map reaches 1. For linear networks the sign of Landau's
    quartic coefficient there, even modes eliminated, says whether the transition is of second (:math:`b > 0`, exponent
    ½, prefactor from :math:`b`) or of first order; for others the coherent branch on both sides does.

    Method: continuation of each branch from its neighbour, in both directions; ends by bisection.
    Error: points are good to ``rtol`` in the factor where the branch is solved to that.
    Limits: nonlinear networks by quadrature, so depth times samples up to four. Without the symmetry W → −W there is no
    sharp transition, and all points are None.
    """
    begun = time.perf_counter()
    checks.choice("along", along, ALONG)
    points = checks.integer("points", points, 2)
    rtol = None if rtol is None else checks.tolerance("rtol", rtol, 1e-12)
    max_steps = checks.integer("max_steps", max_steps, 1)
    asked = problem.problem_of(network, task, temperature)
    followed = branches_of(asked, network.activation, along, rtol=rtol, max_steps=max_steps)
    with bar("transition", 4, progress, seconds=3.0) as advance:
        facts, notes = _find(followed, advance)
        fields, factors = _curve(followed, facts, points)
        advance(1)
    tolerance = rtol or (1e-10 if network.activation.name == "linear" else 1e-7)
    reached = float(facts["critical"].gradient) if "critical" in facts else 0.0
    certificate = Certificate(
        theory="transition",
        status=Status.success if reached <= tolerance else Status.not_converged,
        residual=reached,
        tolerance=tolerance,
        wall_time=time.perf_counter() - begun,
        options={"temperature": float(temperature), "along": along, "points": points},
        notes=(*task.notes, *notes),
        diagnostics={name: facts.get(name) for name in ("instability", "equal_free_energy", "spinodal", "order")},
    )
    curve = make_solution(fields, certificate, network, task, coords={"factor": factors, "branch": BRANCHES})
    names = ("instability", "equal_free_energy", "spinodal", "order", "exponent", "prefactor")
    return Transition(along, **{name: facts.get(name) for name in names}, curve=curve)


def _find(followed: Any, advance: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The points of the transition and, for the curve, the incoherent point at the instability."""
    if followed is None:
        return {}, ("nothing breaks W → −W spontaneously here (untied weights, or inputs or labels that break it)",)
    up = followed.along == "labels"
    factors = np.geomspace(1 / followed.reach, followed.reach, N_FACTORS)[:: 1 if up else -1]
    cache: dict[float, Any] = {}
    critical = _instability(followed, factors, cache)
    advance(1)
    if critical is None:
        where = f"for factors from {1 / followed.reach:g} to {followed.reach:g}"
        return {}, (f"the incoherent branch stays a minimum, or cannot be followed, {where}",)
    facts: dict[str, Any] = {"instability": critical, "critical": cache[critical]}
    facts |= followed.growth_law(critical, cache[critical])
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
    critical = continuation.crossing(stability, *bracket, rtol=followed.rtol)
    cache[critical] = followed.incoherent(critical, last)
    return critical


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
    if difference(inside) <= 0:  # so close to a tricritical point that the three cannot be told apart
        merged = min(end[0], critical) if up else max(end[0], critical)
        return {"spinodal": merged, "equal_free_energy": merged}
    return {"spinodal": end[0], "equal_free_energy": continuation.crossing(difference, inside, beyond)}


def _curve(followed: Any, facts: dict[str, Any], points: int) -> tuple[dict[str, Any], np.ndarray]:
    """Order parameter, free energy and stability of both branches over factors around the transition."""
    center = facts.get("instability", 1.0)
    spread = np.linspace(-1, 1, points)
    factors = center * 2.0 ** (spread * np.abs(spread))  # from a half to twice, closer together near the transition
    names = ("free_energy", "order_parameter", "stability")
    table = np.full((3, 2, points), np.nan)
    if "critical" in facts:
        up = followed.along == "labels"
        order = np.arange(points)[:: 1 if up else -1]  # from the incoherent side
        there = continuation.follow(followed.incoherent, factors[order], facts["critical"])
        back = _back(followed, factors[order[::-1]], there[::-1])
        for b, (indices, found) in enumerate(((order, there), (order[::-1], back))):
            for i, state in zip(indices, found, strict=True):
                if state is not None:
                    correlation = branches.adjacent_correlation(state.problem, state.kernel)
                    table[:, b, i] = state.free_energy, correlation, state.stability
    return {name: (("branch", "factor"), table[i]) for i, name in enumerate(names)}, factors


def _back(followed: Any, factors: np.ndarray, incoherent: list[Any]) -> list[Any]:
    """The coherent branch from deep inside its phase towards its end; the first one is sought from incoherent states."""
    found: list[Any] = []
    last = None
    for factor, other in zip(factors, incoherent, strict=True):
        ended = last is None and any(state is not None for state in found)
        last = None if ended or other is None else followed.coherent(factor, last or other)
        found.append(last)
    return found


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
    if network.activation.name != "linear":
        raise ValueError(f"`network` must be linear for its tricritical point, got activation {network.activation}.")
    asked = problem.problem_of(network, task, temperature)
    followed = linear_branches(asked, along, tolerance=0.01 * rtol, max_steps=max_steps)
    if followed is None:
        return None

    def quartic(kappa: float) -> float:
        layout = followed.layout._replace(problem=asked._replace(temperature=np.asarray(kappa)))
        cache: dict[float, Any] = {}
        factors = np.geomspace(1 / followed.reach, followed.reach, N_FACTORS)
        critical = _instability(followed._replace(layout=layout), factors, cache)
        return landau(cache[critical]).quartic if critical is not None else -np.inf

    bracket = continuation.first_sign_change(quartic, list(float(temperature) * np.geomspace(1, 1e6, 41)))
    return None if bracket is None else continuation.crossing(quartic, *bracket, rtol=rtol)
