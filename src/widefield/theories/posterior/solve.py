"""`widefield.posterior`: the question in, the kernels of a trained network with a certificate out."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from widefield.answer.boundary import choose_quantities, x64
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.branch_choice import branches_of
from widefield.theories.posterior.branches import Branches, Judged, Options, S, StationaryState
from widefield.theories.posterior.derived.perturbation import perturbative
from widefield.theories.posterior.start import start_of

PAIRS = ("state", "state_", "sample", "sample_")
DIMS = {
    "prediction": ("state", "sample", "output"), "test_prediction": ("state", "test", "output"), "free_energy": (),
    "energy": (), "entropy": (), "branch": (), "stability": (), "alignment": ("state",), "hidden": PAIRS,
    "feature": PAIRS, "conjugate": PAIRS,
}  # fmt: skip


@x64
def posterior(
    network: Network,
    task: Task,
    *,
    temperature: float,
    method: str = "full",
    order: int | None = None,
    branch: str = "lowest",
    start: Solution | None = None,
    integration: str = "auto",
    paths: int | None = None,
    seed: int = 0,
    quantities: Iterable[str] | None = None,
    rtol: float | None = None,
    max_steps: int = 300,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Kernels and predictions of a wide network after Bayesian training, with features learned.

    .. math::
        -\tfrac1N\ln P(\Phi,\tilde\Phi) = \tfrac12\mathrm{tr}\,Y(v\Phi_{SS}+\kappa)^{-1} + \mathrm{tr}\,\tilde\Phi\Phi
        - \ln\!\int\!dh\,\mathcal N(h;0,K(\Phi))\,e^{\varphi^{T}\tilde\Phi\varphi}

    Eq. (posterior.4), its saddle point Eq. (posterior.5) and predictions Eq. (posterior.6). Notation: :math:`\kappa` =
    ``temperature``, N times the variance of the labels' noise; :math:`\mathrm{Var}\,V = v/N^2`; :math:`K` as in `problem`.

    Fields: ``hidden`` <hh>, ``feature`` <φφ>, ``conjugate`` Φ̃ over (state, state\_, sample, sample\_), ``prediction``
    (state, sample, output) and ``test_prediction`` at all states, supervised or not; ``free_energy`` = ``energy`` +
    ``entropy`` per neuron, zero without labels; ``branch``, ``stability`` (smallest Hessian eigenvalue; 1 − μ for
    nonlinear networks) and ``alignment`` (state), the cosine of the feature kernel with the label kernel.

    ``branch`` asks for the ``"incoherent"`` or ``"coherent"`` stationary point instead of the lowest minimum; all that
    were met are in the certificate. ``integration`` is for nonlinear networks: "quadrature" (up to four dimensions, depth
    times samples), "importance" sampling or "annealed" draws; ``paths`` fixes the number of draws.

    ``start`` is the posterior of a neighboring question, with as many states and samples, such as the one before in a
    sweep: the first search begins there instead of at the random network, and there again where it fails or ends in a
    saddle. All other searches, the choice among what they find, and every check are the same. A nonlinear network without the
    symmetry W → −W has that one search alone: where it has several minima, the branch of the start is followed.

    ``method="perturbative"`` expands the kernels of a *linear* network in the labels' kernel Y up to ``order`` 0, 1 or 2
    (default), Eqs. (posterior.21), (posterior.22). Fields: ``hidden`` and ``conjugate`` up to that order,
    ``hidden_terms`` (order, …) one by one, and ``propagator`` = ½ bwd(w[(A1 H0 A1)^+]): which states the labels reach by
    way of others, with untied weights only its diagonal in the states.

    Method: linear networks by minimization from several starts, others by Anderson iteration of the saddle.
    Error: the residual is that of the saddle-point equations where H is the identity, on a finer grid, or on fresh
    draws; ``rtol`` bounds it and the error estimate, by default 1e-10, 1e-7 and 1e-2. Sampled fields have
    ``<name>_stderr``, and their ``error`` is a 95 % limit, that of the worst entry relative to the prior's scale; with ``paths`` and without ``rtol`` these are all that is promised, and the fresh residual must lie
    within four of them. Perturbative kernels satisfy the recursions to 1e-10, and the first term that is left out is at
    most ``rtol`` of the kernel, by default 0.5.
    Limits: infinite width at fixed numbers of samples and states; corrections of order 1/N, larger at a transition. The
    perturbative kernels are wrong where the labels are strong; a phase transition is beyond any order.
    """
    checks.choice("branch", branch, ("lowest", "incoherent", "coherent"))
    options = Options("posterior", rtol, max_steps, integration=integration, paths=paths, seed=seed)
    if checks.choice("method", method, ("full", "perturbative")) == "perturbative":
        search = {"branch": (branch, "lowest"), "integration": (integration, "auto"), "paths": (paths, None)}
        search["start"] = (None if start is None else "a start", None)
        for name, (given, default) in search.items():
            if given != default:
                raise ValueError(
                    f"`{name}` must be {default!r} for method='perturbative', which has one state, got {given!r}."
                )
        return perturbative(network, task, temperature, order, quantities, rtol, throw)
    if order is not None:
        raise ValueError(f"`order` is for method='perturbative', got {order!r} with method='full'.")
    begun = time.perf_counter()
    core.check(network, task)
    begin = None if start is None else start_of(start, network, task)
    wanted, left_out = _plan(network, task, quantities)
    problem = core.problem_of(network, task, temperature)
    branches = branches_of(problem, network.activation, options)
    with bar("posterior", branches.n_searches, progress, seconds=branches.seconds) as advance:
        states = branches.stationary_states(advance, begin)
    begun_at = () if start is None else ("the first search began at a given solution",)
    state = _select(states, branch, branches)
    judged = branches.judge(state)
    lost, lost_notes = _lost(states, state, branch, branches)
    unstable, notes = _instability(state, judged, asked=branch != "lowest")
    test: tuple[np.ndarray, np.ndarray | None] = np.full((network.depth * task.n_test, len(state.hidden)), np.nan), None
    if task.n_test and judged.failure is None:
        test = branches.test_features(state, network, task)
    fields = _fields(problem, state, judged, *test)
    made_with = {"temperature": float(temperature), "branch": branch, "integration": integration, "paths": paths}
    listed = [{"branch": s.branch, "free_energy": s.free_energy, "stability": s.stability} for s in states]
    certificate = Certificate(
        "posterior",
        judged.checks | lost | unstable,
        judged.failure,
        steps=state.steps,
        seed=seed if judged.feature_stderr is not None else None,
        wall_time=time.perf_counter() - begun,
        options=made_with
        | {"rtol": branches.rtol if rtol is None else rtol, "max_steps": max_steps, "quantities": list(wanted)},
        notes=(*task.notes, *notes, *lost_notes, *begun_at),
        left_out=left_out,
        diagnostics={"branches": listed, "symmetric": branches.symmetric} | judged.diagnostics,
    )
    chosen = {name: (DIMS[name], fields[name]) for name in wanted}
    chosen |= {f"{n}_stderr": (DIMS[n], fields[f"{n}_stderr"]) for n in wanted if f"{n}_stderr" in fields}
    return make_solution(chosen, certificate, network, task, throw=throw)


def _plan(network: Network, task: Task, quantities: Iterable[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which fields to return; refuses kernels that do not fit in memory before making any."""
    n_nodes, n_out = network.depth * task.n_samples, task.labels().shape[-1]
    sizes = {name: 8 * n_nodes**2 if dims == PAIRS else 8 for name, dims in DIMS.items()}
    sizes |= {"prediction": 8 * n_nodes * n_out, "alignment": 8 * network.depth}
    sizes["test_prediction"] = 8 * network.depth * task.n_test * n_out
    if not task.n_test:
        sizes.pop("test_prediction")
    return choose_quantities(quantities, sizes)


def _select(states: list[S], branch: str, branches: Branches[S]) -> S:
    """The lowest of the branch, a minimum where it has one, or else the nearest to stationary of the searches that stopped
    on their way."""
    chosen = [state for state in states if branch in ("lowest", state.branch)]
    if chosen:
        minima = [state for state in chosen if branches.converged(state) and state.stability > 0]
        return (chosen if branch == "lowest" else minima or chosen)[0]
    stopped = [state for state in states if not branches.converged(state)]
    if not stopped:
        there = sorted({state.branch for state in states})
        raise ValueError(f"`branch` must be one of {there} here: no {branch} stationary point was found.")
    return min(stopped, key=lambda state: state.residual if np.isfinite(state.residual) else np.inf)


def _lost(states: list[S], chosen: S, branch: str, branches: Branches[S]) -> tuple[dict[str, Check], tuple[str, ...]]:
    """Searches that stopped on their way: wherever they were, they may have led to what is asked for."""
    stopped = [state for state in states if state is not chosen and not branches.converged(state)]
    if branch == "incoherent":  # a coherent search leads nowhere else
        stopped = [state for state in stopped if chosen.branch != branch or state.branch == branch]
    n_lost = len(stopped) + (branch not in ("lowest", chosen.branch))
    note = f"{n_lost} searches stopped before they converged: raise max_steps"
    if branch not in ("lowest", chosen.branch):
        note = f"no {branch} point was reached: {note}"
    return {"lost": Check(n_lost, 0, Status.incomplete)}, (note,) if n_lost else ()


def _instability(state: StationaryState, judged: Judged, *, asked: bool) -> tuple[dict[str, Check], tuple[str, ...]]:
    """A saddle is no answer to a question for the lowest minimum; one that was asked for is noted."""
    if judged.failure is not None or not np.isfinite(state.stability):
        return {}, ()
    if not asked:
        return {"instability": Check(float(np.maximum(0.0, -state.stability)), judged.unstable, Status.saddle)}, ()
    if state.stability >= -judged.unstable:
        return {}, ()
    return {}, (f"the {state.branch} point is a saddle here (stability {state.stability:.3g}), returned as asked",)


def _fields(
    problem: core.Problem, state: StationaryState, judged: Judged, test: np.ndarray, test_stderr: np.ndarray | None
) -> dict[str, Any]:
    """All fields by name, and the standard errors of those that are sampled."""
    per_state = lambda f: f.reshape(problem.depth, -1, f.shape[-1])  # noqa: E731
    predict = lambda rows: per_state(np.asarray(core.predict(problem, state.feature, rows)))  # noqa: E731
    fields = {
        "hidden": core.by_pairs(problem, state.hidden),
        "feature": core.by_pairs(problem, state.feature),
        "conjugate": core.by_pairs(problem, judged.conjugate),
        "prediction": predict(state.feature),
        "test_prediction": predict(test) if len(test) else None,
        "free_energy": judged.energy + judged.entropy,
        "energy": judged.energy,
        "entropy": judged.entropy,
        "branch": state.branch,
        "stability": state.stability,
        "alignment": _alignment(problem, state.feature),
    }
    if judged.feature_stderr is None or judged.hidden_stderr is None:
        return fields
    known = state.feature, judged.feature_stderr
    fields |= {
        "hidden_stderr": core.by_pairs(problem, judged.hidden_stderr),
        "feature_stderr": core.by_pairs(problem, judged.feature_stderr),
        "prediction_stderr": per_state(_prediction_error(problem, *known, *known)),
    }
    if test_stderr is not None:
        fields["test_prediction_stderr"] = per_state(_prediction_error(problem, *known, test, test_stderr))
    return fields


def _prediction_error(
    problem: core.Problem, feature: np.ndarray, feature_error: np.ndarray, rows: np.ndarray, rows_error: np.ndarray
) -> np.ndarray:
    r"""Bound on the error of :math:`v\Phi_{*S}Ry` from those of the features, as if all of them conspired."""
    S, v = problem.supervised, float(problem.readout)
    R = np.linalg.inv(v * feature[np.ix_(S, S)] + problem.temperature * np.eye(len(S)))
    pull = np.abs(R @ problem.labels)
    moved = v * feature_error[np.ix_(S, S)] @ pull
    return v * rows_error[:, S] @ pull + v * np.abs(rows[:, S] @ R) @ moved


def _alignment(problem: core.Problem, feature: np.ndarray) -> np.ndarray:
    """Cosine between the features of each state and the labels' kernel, summed over supervised states."""
    y = core.all_labels(problem).reshape(problem.depth, problem.n_samples, -1)
    target = np.einsum("apo,aqo->pq", y, y)
    blocks = core.by_state(problem, feature)
    each = [blocks[a, :, a] for a in range(problem.depth)]
    size = [np.linalg.norm(block) * np.linalg.norm(target) for block in each]
    return np.asarray([np.sum(b * target) / s if s > 0 else 0.0 for b, s in zip(each, size, strict=True)])
