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

from widefield.answer import legacy
from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.solvers import continuation
from widefield.theories.posterior import branches, problem
from widefield.theories.posterior.follow import ALONG, LinearBranches, branches_of, replicated

N_FACTORS = 33  # between the smallest and the largest factor that are searched
BRANCHES = ["incoherent", "coherent"]
UNTOLD = "sampled: the order is not told, and points close to the instability have large errors"


@dataclass(frozen=True)
class Transition:
    """Where the incoherent branch gives way to the coherent one; points are factors on what is varied, None if absent.

    The order parameter grows as ``prefactor`` · |λ/λ_c − 1|^``exponent`` with λ the varied quantity (the labels
    squared); it is the largest correlation between adjacent states. ``curve`` has both branches over ``factor``.
    ``instability_stderr`` is that of sampled branches, whose order is not told (None).
    """

    along: str
    instability: float | None
    equal_free_energy: float | None
    spinodal: float | None
    order: str | None
    exponent: float | None
    prefactor: float | None
    curve: Solution
    instability_stderr: float | None = None

    @property
    def certificate(self) -> Certificate:
        return self.curve.certificate

    def __str__(self) -> str:
        if self.instability is None:
            return f"No transition along {self.along}: {' '.join(self.certificate.notes)}"
        show = lambda v: "none" if v is None else f"{v:.8g}"  # noqa: E731
        kind = f"Transition of {self.order or 'unknown'} order"
        lines = [f"{kind} along {self.along} (factors on the {self.along} of the task)"]
        for name in ("instability", "equal_free_energy", "spinodal", "exponent", "prefactor"):
            error = f" ± {self.instability_stderr:.2g}" if name == "instability" and self.instability_stderr else ""
            lines.append(f"  {name.replace('_', ' '):<18} {show(getattr(self, name))}{error}")
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
    paths: int | None = None,
    seed: int = 0,
    rtol: float | None = None,
    max_steps: int = 300,
    progress: bool | None = None,
    throw: bool = True,
) -> Transition:
    r"""Follow the incoherent and the coherent branch as the labels or the temperature of a task are scaled.

    Sections 7 and 9 of theory/posterior. The incoherent branch is unstable where the softest Hessian eigenvalue vanishes
    or, for nonlinear networks, an eigenvalue of the saddle-point map reaches 1. For linear networks the sign of Landau's
    quartic coefficient there, even modes eliminated, says whether the transition is of second (:math:`b > 0`, exponent
    ½, prefactor from :math:`b`) or of first order; for others the side does to which the coherent branch leaves.

    Method: continuation of each branch from its neighbour, in both directions; ends by bisection. Nonlinear networks by
    quadrature up to four dimensions, depth times samples, their coherent branch as a function of its order parameter,
    which does not notice where the branch turns back. Beyond, or where ``paths`` is given, on that many draws (65536
    by default), the same ones at every factor; the instability is then the mean over eight sets of them.
    Error: points are good to ``rtol`` in the factor where the branch is solved to that; ``instability_stderr`` if sampled.
    Limits: draws do not tell the order of a transition, because the coherent branch next to it is lost in their
    amplified error: then only the instability is given. Without the symmetry W → −W there is no sharp transition, and all
    points are None.
    """
    begun = time.perf_counter()
    checks.choice("along", along, ALONG)
    points = checks.integer("points", points, 2)
    rtol = None if rtol is None else checks.tolerance("rtol", rtol, 1e-12)
    max_steps = checks.integer("max_steps", max_steps, 1)
    asked = problem.problem_of(network, task, temperature)
    paths = None if paths is None else checks.integer("paths", paths, 1024)
    options: dict[str, Any] = {"paths": paths, "seed": checks.integer("seed", seed, 0)}
    followed = branches_of(asked, network.activation, along, rtol=rtol, max_steps=max_steps, **options)
    with bar("transition", 4, progress, seconds=3.0 if network.activation.known_as("linear") else 100.0) as advance:
        facts, notes = _find(followed, advance)
        fields, factors = _curve(followed, facts, points)
        advance(1)
    certificate = legacy.certificate(
        theory="transition",
        wall_time=time.perf_counter() - begun,
        options={"temperature": float(temperature), "along": along, "points": points},
        notes=(*task.notes, *notes),
        diagnostics={name: facts.get(name) for name in ("instability", "equal_free_energy", "spinodal", "order")},
        seed=seed if _is_sampled(followed) else None,
        **_verdict(followed, facts, rtol),
    )
    coords = {"factor": factors, "branch": BRANCHES}
    curve = make_solution(fields, certificate, network, task, coords=coords, throw=throw)
    names = ("instability", "equal_free_energy", "spinodal", "order", "exponent", "prefactor", "instability_stderr")
    return Transition(along, **{name: facts.get(name) for name in names}, curve=curve)


def _is_sampled(followed: Any) -> bool:
    return getattr(followed, "sampled", False)


def _verdict(followed: Any, facts: dict[str, Any], rtol: float | None) -> dict[str, Any]:
    """Status, residual, tolerance and error of the state at the instability."""
    tolerance = None if _is_sampled(followed) else rtol or (1e-10 if isinstance(followed, LinearBranches) else 1e-7)
    if "critical" not in facts:
        return {"status": Status.success, "residual": 0.0, "tolerance": tolerance}
    reached = float(facts["critical"].gradient)
    if tolerance is None:
        found, error = facts["critical"].found.status, facts["instability_stderr"]
        return {"status": found if np.isfinite(error) else Status.not_converged, "residual": reached, "error": error}
    status = Status.success if reached <= tolerance else Status.not_converged
    return {"status": status, "residual": reached, "tolerance": tolerance}


def _find(followed: Any, advance: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The points of the transition and, for the curve, the incoherent point at the instability."""
    if followed is None:
        return {}, ("nothing breaks W → −W spontaneously here (untied weights, or inputs or labels that break it)",)
    up = followed.along == "labels"
    factors = np.geomspace(1 / followed.reach, followed.reach, N_FACTORS)[:: 1 if up else -1]
    cache: dict[float, Any] = {}
    critical = instability_of(followed, factors, cache)
    advance(1)
    if critical is None:
        where = f"for factors from {1 / followed.reach:g} to {followed.reach:g}"
        return {}, (f"the incoherent branch stays a minimum, or cannot be followed, {where}",)
    facts: dict[str, Any] = {"instability": critical, "critical": cache[critical]}
    if followed.sampled:
        mean, error = replicated(followed, critical, cache[critical])
        advance(2)
        return facts | {"instability": mean, "instability_stderr": error}, (UNTOLD,)
    facts |= followed.growth_law(critical, cache[critical])
    advance(1)
    if facts["order"] == "first" and "spinodal" not in facts:
        facts |= _coexistence(followed, critical, cache[critical], up)
    advance(1)
    return facts, ()


def instability_of(
    followed: Any, factors: np.ndarray, cache: dict[float, Any], start: Any | None = None
) -> float | None:
    """The factor at which the incoherent point loses its stability; ``cache`` gets the points met.

    None where there is no such factor, or where the branch is lost on the way to it. ``start`` is a point near the first.
    """
    last = start

    def stability(factor: float) -> float:
        nonlocal last
        near = next((f for f in cache if abs(f / factor - 1) < 1e-14), None)
        last = cache[factor] = followed.incoherent(factor, last) if near is None else cache[near]
        return last.stability

    bracket = continuation.first_sign_change(stability, list(map(float, factors)))
    if bracket is None or not np.isfinite(cache[bracket[0]].stability):
        return None
    last = cache[bracket[0]]
    try:
        critical = continuation.crossing(lambda f: _finite(stability(f)), *bracket, rtol=followed.rtol)
    except FloatingPointError:
        return None
    cache[critical] = followed.incoherent(critical, last)
    return critical


def _finite(value: float) -> float:
    if not np.isfinite(value):
        raise FloatingPointError("the branch is lost")
    return value


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
        back = _back(followed, factors[order[::-1]], there[::-1], facts.get("ordered"))
        for b, (indices, found) in enumerate(((order, there), (order[::-1], back))):
            for i, state in zip(indices, found, strict=True):
                if state is not None:
                    correlation = branches.adjacent_correlation(state.problem, state.kernel)
                    table[:, b, i] = state.free_energy, correlation, state.stability
    return {name: (("branch", "factor"), table[i]) for i, name in enumerate(names)}, factors


def _back(followed: Any, factors: np.ndarray, incoherent: list[Any], ordered: Any) -> list[Any]:
    """The coherent branch from deep inside its phase towards its end; the first one is sought from incoherent states."""
    found: list[Any] = []
    last = None
    for factor, other in zip(factors, incoherent, strict=True):
        ended = last is None and any(state is not None for state in found)
        if ended or other is None:
            starts = []
        else:
            starts = [followed.seed(factor, other, ordered), other] if last is None else [last]
        tries = (followed.coherent(factor, start) for start in starts if start is not None)
        last = next((state for state in tries if state is not None), None)
        found.append(last)
    return found
