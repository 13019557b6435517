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

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.solvers import continuation
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.branch_choice import branches_of
from widefield.theories.posterior.branches import (
    Advance,
    Branches,
    GrowthLaw,
    Instability,
    Options,
    S,
    adjacent_correlation,
    at_most,
)  # fmt: skip
from widefield.theories.posterior.transitions.instability import find_instability

NAMES = ("free_energy", "order_parameter", "stability")
POINTS = (
    "instability", "equal_free_energy", "spinodal", "order", "exponent", "prefactor", "instability_stderr",
)  # fmt: skip
MAX_POINTS = 10**5
MARGINAL = 1e-3  # stability at an instability
UNBROKEN = "nothing breaks W → −W spontaneously here (untied weights, or inputs or labels that break it)"
UNTOLD = "sampled: the order is not told, and points close to the instability have large errors"


@dataclass(frozen=True)
class Transition:
    r"""Where the incoherent branch gives way to the coherent one; points are factors on what is varied, None if absent.

    The order parameter, the largest correlation between adjacent states, grows as ``prefactor`` times the power
    ``exponent`` of :math:`|\lambda/\lambda_c - 1|`, with λ the varied quantity (the labels squared). ``curve`` has both
    branches over ``factor``. ``instability_stderr`` is that of sampled branches, whose order is not told (None). Where
    ``instability`` is None there is none among the factors that are searched, 1e-4 to 1e4 (linear) or 1e-2 to 1e2, if the
    certificate says success; otherwise the branch could not be followed.
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

    @classmethod
    def of(cls, curve: Solution) -> "Transition":
        """The transition of its own curve, such as `widefield.load` gives back."""
        if curve.certificate.theory != "transition":
            raise ValueError(f"`curve` must be that of a transition, got a solution of {curve.certificate.theory!r}.")
        points = {name: curve.certificate.diagnostics[name] for name in POINTS}
        return cls(curve.certificate.options["along"], curve=curve, **points)

    @property
    def certificate(self) -> Certificate:
        return self.curve.certificate

    def __str__(self) -> str:
        if self.instability is None:
            established = self.certificate.status is Status.success
            head = "No transition" if established else "A transition could not be looked for"
            return f"{head} along {self.along}: {'; '.join(self.certificate.notes)}"
        show = lambda v: "none" if v is None else f"{v:.8g}"  # noqa: E731
        kind = f"Transition of {self.order or 'unknown'} order"
        lines = [f"{kind} along {self.along} (factors on the {self.along} of the task)"]
        for name in ("instability", "equal_free_energy", "spinodal", "exponent", "prefactor"):
            error = f" ± {self.instability_stderr:.2g}" if name == "instability" and self.instability_stderr else ""
            lines.append(f"  {name.replace('_', ' '):<18} {show(getattr(self, name))}{error}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def save(self, path: str | Path) -> Path:
        """Write the curve with all points: ``Transition.of(widefield.load(path))`` is the transition again."""
        return self.curve.save(path)

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

    Eqs. (posterior.13), (posterior.14), (posterior.15), (posterior.19). The incoherent branch is unstable where the
    softest Hessian eigenvalue vanishes or, for nonlinear networks, an eigenvalue of the saddle-point map reaches 1. For
    linear networks the sign of Landau's quartic coefficient there, even modes eliminated, says whether the transition is
    of second (:math:`b > 0`, exponent ½, prefactor from :math:`b`) or of first order; for others the side does to which
    the coherent branch leaves. Where the incoherent branch ends in a fold before, that is its instability, of first order.

    Method: continuation of each branch from its neighbor, in both directions; ends by bisection. Nonlinear networks by
    quadrature up to four dimensions, depth times samples, their coherent branch as a function of its order parameter.
    Beyond, or where ``paths`` is given, on that many draws (65536 by default), the same ones at every factor; the
    instability is then the mean over eight sets of them.
    Error: states are solved to ``rtol``, by default 1e-10 for linear networks and 1e-7 for others; factors are good to
    that. Sampled ones have ``instability_stderr``, whose share of the instability must be within ``rtol``, by default
    5e-2. The check ``lost`` counts the points that were not reached, and the notes say which. Absence is a success only
    where the incoherent branch stayed a minimum through all factors, 1e-4 to 1e4 (linear) or 1e-2 to 1e2.
    Limits: draws do not tell the order of a transition, because the coherent branch next to it is lost in their
    amplified error. Without the symmetry W → −W there is no sharp transition, and all points are None.
    """
    begun = time.perf_counter()
    points = at_most("points", points, 2, MAX_POINTS)
    options = Options("transition", rtol, max_steps, along, paths=paths, seed=seed)
    branches = branches_of(core.problem_of(network, task, temperature), network.activation, options)
    with bar("transition", 4, progress, seconds=10 * branches.seconds) as advance:
        search = _search(branches, advance)
        fields, factors, n_missing, missing = _curve(branches, search, points)
        advance(1)
    law = search.law
    named = search.mean, law.equal_free_energy, law.spinodal, law.order, law.exponent, law.prefactor, search.stderr
    made_with = {"temperature": float(temperature), "along": along, "points": points, "paths": paths}
    certificate = Certificate(
        "transition",
        search.checks(branches, n_missing),
        seed=seed if branches.sampled else None,
        wall_time=time.perf_counter() - begun,
        options=made_with | {"rtol": branches.rtol, "max_steps": max_steps},
        notes=(*task.notes, *search.notes, *missing),
        diagnostics=dict(zip(POINTS, named, strict=True)),
    )
    coords = {"factor": factors, "branch": ["incoherent", "coherent"]}
    curve = make_solution(fields, certificate, network, task, coords=coords, throw=throw)
    return Transition.of(curve)


@dataclass(frozen=True, eq=False)
class _Search:
    """An instability, how the coherent branch leaves there, and what the search says of itself."""

    instability: Instability
    law: GrowthLaw
    notes: tuple[str, ...]
    mean: float | None = None
    stderr: float | None = None

    def checks(self, branches: Branches, n_missing: int) -> dict[str, Check]:
        """Residual and error of the state at the instability, and what was lost on the way."""
        n_lost = self.instability.lost + self.instability.begins_unstable + len(self.law.lost) + n_missing
        lost = {"lost": Check(n_lost, 0, Status.incomplete)}
        if not branches.symmetric:
            return lost
        state, residual = self.instability.state, Check(self.instability.residual, branches.rtol)
        if state is None:
            return lost | {"residual": residual}
        lost |= {"marginal": Check(abs(state.stability), MARGINAL)}
        if not branches.sampled or self.mean is None or self.stderr is None:
            error = max(state.error, self.instability.fold_error or 0.0)
            return lost | {"residual": residual, "error": Check(error, branches.rtol)}
        return lost | {"error": Check(self.stderr / self.mean, branches.rtol)} | branches.judge(state).checks


def _search(branches: Branches[S], advance: Advance) -> _Search:
    """The points of the transition and, for the curve, the incoherent point at the instability."""
    if not branches.symmetric:
        return _Search(Instability(None, None, 0, 0.0), GrowthLaw(None), (UNBROKEN,))
    instability = find_instability(branches)
    advance(1)
    if instability.factor is None or instability.state is None:
        where = f"factors from {1 / branches.reach:g} to {branches.reach:g}"
        note = f"the incoherent branch stays a minimum for {where}"
        if instability.lost:
            note = f"the incoherent branch could not be followed: {instability.lost} points of {where} were not reached"
            if instability.path:
                last = instability.path[-1]
                note += f"; it is a minimum up to {last.factor:.6g}, where its softest eigenvalue is {last.state.stability:.3g}"
        elif instability.begins_unstable:
            weaker = "smaller labels" if branches.along == "labels" else "a higher temperature"
            note = f"the incoherent state is unstable at the weakest end of {where}: begin with {weaker}"
        return _Search(instability, GrowthLaw(None), (note,))
    replicas = branches.replicas(instability.factor, instability.state)
    stderr = float(np.std(replicas, ddof=1) / np.sqrt(len(replicas))) if branches.sampled else None
    law = branches.growth_law(instability)
    advance(2)
    notes = (*((UNTOLD,) if branches.sampled else ()), *law.lost)
    if instability.folds:
        at = ", ".join(f"{factor:.6g}" for factor in instability.folds)
        notes = (
            *notes,
            f"the incoherent branch ends in a fold at {at}: there are several incoherent states next to it",
        )
    if instability.lost:
        notes = (*notes, f"{instability.lost} factors before the instability were not reached")
    return _Search(instability, law, notes, float(np.mean(replicas)), stderr)


def _curve(
    branches: Branches[S], search: _Search, n_points: int
) -> tuple[dict[str, Any], np.ndarray, int, tuple[str, ...]]:
    """Order parameter, free energy and stability of both branches around the transition, and what is missing of them."""
    critical, center = search.instability.state, search.mean
    if center is None or not np.isfinite(center):
        center = search.instability.factor or 1.0
    spread = np.linspace(-1, 1, n_points)
    factors = center * 2.0 ** (spread * np.abs(spread))  # from a half to twice, closer together near the transition
    table = np.full((len(NAMES), 2, n_points), np.nan)
    fields = {name: (("branch", "factor"), table[i]) for i, name in enumerate(NAMES)}
    if critical is None:
        return fields, factors, 0, ()
    outwards = np.arange(n_points)[:: branches.side]  # from the incoherent side
    inwards = outwards[::-1]
    incoherent = _incoherent_states(branches, factors[outwards], search.instability)
    coherent, stopped = _coherent_states(branches, factors[inwards], incoherent[::-1], search.law)
    for b, (indices, states) in enumerate(((outwards, incoherent), (inwards, coherent))):
        for i, state in zip(indices, states, strict=True):
            if state is not None and branches.reached(state):
                correlation = adjacent_correlation(state.problem, state.hidden)
                table[:, b, i] = state.free_energy, correlation, state.stability

    # Missing are coherent points before the last that was reached, and those where a search stopped short of the end.
    end = {"first": search.law.spinodal, "second": search.instability.factor}.get(search.law.order or "")
    exists = np.full(n_points, True) if end is None else branches.side * (factors[inwards] - end) > 0
    empty = np.array([state is None for state in coherent])
    last = np.max(np.flatnonzero(~empty), initial=-1)
    counts = {
        "incoherent": sum(state is None or not branches.reached(state) for state in incoherent),
        "coherent": int(np.sum(empty & (stopped & exists | (np.arange(n_points) < last)))),
    }
    notes = [f"{n} {branch} points of the curve were not reached" for branch, n in counts.items() if n]
    if empty.all():
        notes.append("no coherent point of the curve was reached")
    return fields, factors, counts["incoherent"] + max(counts["coherent"], int(empty.all())), tuple(notes)


def _incoherent_states(branches: Branches[S], factors: np.ndarray, instability: Instability[S]) -> list[S | None]:
    """The incoherent branch: up to the instability next to where it was followed, beyond from there on."""
    assert instability.factor is not None
    within = branches.side * (instability.factor - factors) > 0
    states: list[S | None] = [branches.incoherent(f, instability.near(f)) for f in factors[within]]
    return states + continuation.trace(branches.incoherent, factors[~within], instability.state)


def _coherent_states(
    branches: Branches[S], factors: np.ndarray, incoherent: list[S | None], law: GrowthLaw[S]
) -> tuple[list[S | None], np.ndarray]:
    """The coherent branch from deep inside its phase towards its end, and where a search for it stopped on its way.

    The first state is sought from incoherent ones, the others from the last one that was reached.
    """
    states: list[S | None] = []
    stopped = np.full(len(factors), False)
    last: S | None = None
    ended = False
    for i, (factor, other) in enumerate(zip(factors, incoherent, strict=True)):
        starts: list[S | None] = []
        if not ended and last is not None:
            starts = [last]
        elif not ended and other is not None:
            starts = [law.guess(factor, other), other]
        found: S | None = None
        for state in (c for start in filter(None, starts) for c in branches.coherent_candidates(factor, start)):
            if branches.on_coherent_branch(state):
                found, stopped[i] = state, False
                break
            stopped[i] |= not branches.reached(state)
        ended = ended or (last is not None and found is None and not stopped[i])
        last = last if found is None else found
        states.append(found)
    return states, stopped
