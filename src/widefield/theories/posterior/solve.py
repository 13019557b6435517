"""`widefield.posterior`: the question in, the kernels of a trained network with a certificate out."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from widefield.answer import legacy
from widefield.answer.boundary import choose_quantities, describe_bytes, memory_budget, x64
from widefield.answer.certificate import Certificate, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.posterior import branches, linear, phases, verify
from widefield.theories.posterior import predict as linear_prediction
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.nonlinear import METHODS
from widefield.theories.posterior.unseen import unseen_features

PAIRS = ("state", "state_", "sample", "sample_")
BRANCHES = ("lowest", "incoherent", "coherent")
SOFT = 1e-6  # a map eigenvalue this close to 1 is marginal
DIMS = {
    "prediction": ("state", "sample", "output"), "test_prediction": ("state", "test", "output"), "free_energy": (),
    "energy": (), "entropy": (), "branch": (), "stability": (), "alignment": ("state",), "hidden": PAIRS,
    "feature": PAIRS, "conjugate": PAIRS,
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a solver found, whatever the activation: kernels (node, node_) and what the certificate says of them."""

    hidden: np.ndarray
    feature: np.ndarray
    conjugate: np.ndarray
    energy: float
    entropy: float
    stability: float
    branch: str
    test_feature: np.ndarray | None
    residual: float
    error: float
    steps: int
    tolerance: float | None
    status: Status
    notes: tuple[str, ...] = ()
    diagnostics: dict[str, Any] = field(default_factory=dict)
    feature_stderr: np.ndarray | None = None
    hidden_stderr: np.ndarray | None = None
    test_feature_stderr: np.ndarray | None = None


@x64
def posterior(
    network: Network,
    task: Task,
    *,
    temperature: float,
    branch: str = "lowest",
    method: str = "auto",
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

    Sections 2–4 of theory/posterior. Notation: :math:`\kappa` = ``temperature``, N times the variance of the labels'
    noise; :math:`\mathrm{Var}\,V = v/N^2`; :math:`K` as in `problem`.

    Fields: ``hidden`` <hh>, ``feature`` <φφ>, ``conjugate`` Φ̃ over (state, state_, sample, sample_), ``prediction``
    (state, sample, output) and ``test_prediction`` at all states, supervised or not; ``free_energy`` = ``energy`` +
    ``entropy`` per neuron, zero without labels; ``branch``, ``stability`` (smallest Hessian eigenvalue; 1 − μ for
    nonlinear networks) and ``alignment`` (state), the cosine of the feature kernel with the label kernel.

    ``branch`` asks for the ``"incoherent"`` or ``"coherent"`` stationary point instead of the lowest minimum; all that
    were found are in the certificate. ``method`` is for nonlinear networks: "quadrature" (up to four dimensions, depth
    times samples), "importance" sampling or "mcmc"; ``paths`` fixes the number of draws.

    Method: see the page on the posterior. Linear networks by minimisation, others by Anderson iteration of the saddle.
    Error: the residual is that of the saddle-point equations where H is the identity, on a finer grid, or on fresh
    draws; ``rtol`` is 1e-10, 1e-7 and 1e-2 by default. Sampled fields have ``<name>_stderr``.
    Limits: infinite width at fixed numbers of samples and states; corrections of order 1/N, larger at a transition.
    """
    begun = time.perf_counter()
    checks.choice("branch", branch, BRANCHES)
    checks.choice("method", method, METHODS)
    seed = checks.integer("seed", seed, 0)
    max_steps = checks.integer("max_steps", max_steps, 1)
    core.check(network, task)
    wanted, left_out = _plan(network, task, quantities)
    problem = core.problem_of(network, task, temperature)
    if network.activation.known_as("linear") and method == "auto":
        rtol = 1e-10 if rtol is None else checks.tolerance("rtol", rtol, 1e-13)
        answer = _solve_linear(network, task, problem, branch, rtol, max_steps, progress)
    else:
        paths = None if paths is None else checks.integer("paths", paths, 1024)
        options: dict[str, Any] = {"method": method, "n_paths": paths, "seed": seed, "max_steps": max_steps}
        if rtol is not None:
            options |= dict.fromkeys(("rtol", "sampling_rtol"), checks.tolerance("rtol", rtol, 1e-9))
        answer = _solve_nonlinear(network, task, problem, branch, options, progress)
    asked = {"temperature": float(temperature), "branch": branch, "quantities": list(wanted)}
    certificate = _certificate(answer, asked, task, left_out, seed, begun)
    return make_solution(_named(problem, answer, wanted), certificate, network, task, throw=throw)


def _certificate(answer: Answer, options: dict[str, Any], task: Task, left_out, seed: int, begun: float) -> Certificate:
    return legacy.certificate(
        theory="posterior",
        status=answer.status,
        residual=answer.residual,
        tolerance=answer.tolerance,
        error=answer.error,
        steps=answer.steps,
        seed=seed if answer.feature_stderr is not None else None,
        wall_time=time.perf_counter() - begun,
        options=options,
        notes=(*task.notes, *answer.notes),
        left_out=left_out,
        diagnostics=answer.diagnostics,
    )


def _named(problem: core.Problem, answer: Answer, wanted: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], Any]]:
    """The wanted fields, each with its standard error where it has one."""
    fields = _fields(problem, answer)
    named = {name: (DIMS[name], fields[name]) for name in wanted}
    return named | {f"{n}_stderr": (DIMS[n], fields[f"{n}_stderr"]) for n in wanted if f"{n}_stderr" in fields}


def _plan(network: Network, task: Task, quantities: Iterable[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which fields to return; refuses kernels that do not fit in memory before making any."""
    n_nodes, n_out = network.depth * task.n_samples, task.labels().shape[-1]
    sizes = dict.fromkeys(DIMS, 8) | {name: 8 * n_nodes**2 for name, dims in DIMS.items() if dims == PAIRS}
    sizes |= {"prediction": 8 * n_nodes * n_out, "alignment": 8 * network.depth}
    sizes["test_prediction"] = 8 * network.depth * task.n_test * n_out
    if not task.n_test:
        sizes.pop("test_prediction")
    chosen = choose_quantities(quantities, sizes)
    work = 8 * 30 * n_nodes**2
    if work > memory_budget():
        raise MemoryError(
            f"The kernels of {n_nodes} nodes (depth × samples) need {describe_bytes(work)} to be found, but only "
            f"{describe_bytes(memory_budget())} may be used. Use fewer samples or a smaller depth."
        )
    return chosen


def _solve_linear(network, task, problem, branch, rtol, max_steps, progress) -> Answer:
    n_nodes = len(problem.drive)
    with bar("posterior", branches.N_SEARCHES, progress, seconds=2e-6 * n_nodes**3) as advance:
        points = branches.stationary_points(problem, tolerance=0.1 * rtol, max_steps=max_steps, advance=advance)
    found = _select(points, branch)
    hidden = found.kernel
    conjugate, residual = verify.linear_saddle(problem, hidden, found.layout.root.shape[0] * found.point.shape[-1])
    energy = verify.energy(problem, hidden)
    status = _status(found, residual, rtol, asked=branch != "lowest")
    listed = [{"branch": p.branch, "free_energy": p.free_energy, "stability": p.stability} for p in points]
    notes: tuple[str, ...] = ()
    if status is Status.success and found.stability < branches.UNSTABLE:
        notes = _saddle_note(found)
    return Answer(
        hidden=hidden,
        feature=hidden,
        conjugate=conjugate,
        energy=energy,
        entropy=found.free_energy - energy,
        stability=found.stability,
        branch=found.branch,
        test_feature=linear_prediction.test_kernel(found, network, task) if task.n_test else None,
        residual=residual,
        error=found.gradient,
        steps=found.steps,
        tolerance=rtol,
        status=status,
        notes=notes,
        diagnostics={"branches": listed, "symmetric": branches.is_symmetric(problem)},
    )


def _solve_nonlinear(network, task, problem, branch, options, progress) -> Answer:
    with bar("posterior", phases.N_SEARCHES, progress, seconds=10.0) as advance:
        points = phases.stationary_phases(problem, network.activation, advance=advance, **options)
    chosen = _select(points, branch)
    found, sampled = chosen.found, chosen.found.method != "quadrature"
    unseen = _unseen(network, task, problem, found) if task.n_test and found.status is Status.success else None
    status: Status = found.status
    notes: tuple[str, ...] = ()
    if status is Status.success and chosen.stability < -SOFT:
        status = Status.saddle if branch == "lowest" else status
        notes = _saddle_note(chosen) if branch != "lowest" else ()
    tolerance = options.get("rtol", 1e-2 if sampled else 1e-7)
    if sampled and options["n_paths"] is not None and "rtol" not in options:
        tolerance = None  # the draws are what they are, and the standard errors say what they are worth
    elif status is Status.success and not found.error <= tolerance:
        status = Status.inaccurate
    measured = {"method": found.method, "nodes": found.n_nodes, "map_eigenvalue": found.mu}
    if sampled:
        measured |= {"effective_share": found.ess, "fresh_deviation": found.deviation, "r_hat": found.rhat}
    listed = [{"branch": p.branch, "free_energy": p.free_energy, "stability": p.stability} for p in points]
    return Answer(
        hidden=found.hidden,
        feature=found.feature,
        conjugate=found.conjugate,
        energy=found.energy,
        entropy=found.entropy,
        stability=chosen.stability,
        branch=chosen.branch,
        test_feature=None if unseen is None else unseen.cross,
        residual=found.residual,
        error=found.error,
        steps=found.steps,
        tolerance=tolerance,
        status=status,
        notes=notes,
        diagnostics={"branches": listed, "symmetric": phases.has_symmetry(problem, network.activation), **measured},
        feature_stderr=found.feature_stderr if sampled else None,
        hidden_stderr=found.hidden_stderr if sampled else None,
        test_feature_stderr=unseen.cross_stderr if sampled and unseen is not None else None,
    )


def _unseen(network, task, problem, found):
    x = task.sequences(network.depth, test=True)
    train, test = x[: task.n_samples], x[task.n_samples :]
    drives = core.drive_between(network, test, train), core.drive_between(network, test, test)
    return unseen_features(problem, network.activation, found, *drives)


def _saddle_note(point: Any) -> tuple[str, ...]:
    return (f"the {point.branch} point is a saddle here (stability {point.stability:.3g}), returned as asked",)


def _select(points: list[Any], branch: str) -> Any:
    if branch == "lowest":
        return points[0]
    chosen = [p for p in points if p.branch == branch]
    if not chosen:
        there = sorted({p.branch for p in points})
        raise ValueError(f"`branch` must be one of {there} here: no {branch} stationary point was found.")
    return chosen[0]


def _status(found: branches.Stationary, residual: float, rtol: float, *, asked: bool) -> Status:
    if not (np.isfinite(found.free_energy) and np.isfinite(found.kernel).all()):
        return Status.nonfinite
    if not found.gradient <= 0.1 * rtol:
        return Status.not_converged
    if not residual <= rtol:
        return Status.inaccurate
    if found.stability < branches.UNSTABLE and not asked:
        return Status.saddle
    return Status.success


def _fields(problem: core.Problem, answer: Answer) -> dict[str, Any]:
    """All fields by name."""
    pairs = lambda A: np.ascontiguousarray(np.moveaxis(core.by_state(problem, A), 2, 1))  # noqa: E731
    per_state = lambda f: f.reshape(problem.depth, -1, f.shape[-1])  # noqa: E731
    predict = lambda rows: per_state(np.asarray(core.predict(problem, answer.feature, rows)))  # noqa: E731
    errors = {}
    if answer.feature_stderr is not None and answer.hidden_stderr is not None:
        spread = partial(_prediction_error, problem, answer.feature, answer.feature_stderr)
        errors = {
            "hidden_stderr": pairs(answer.hidden_stderr),
            "feature_stderr": pairs(answer.feature_stderr),
            "prediction_stderr": per_state(spread(answer.feature, answer.feature_stderr)),
        }
        if answer.test_feature is not None:
            errors["test_prediction_stderr"] = per_state(spread(answer.test_feature, answer.test_feature_stderr))
    return errors | {
        "hidden": pairs(answer.hidden),
        "feature": pairs(answer.feature),
        "conjugate": pairs(answer.conjugate),
        "prediction": predict(answer.feature),
        "test_prediction": None if answer.test_feature is None else predict(answer.test_feature),
        "free_energy": answer.energy + answer.entropy,
        "energy": answer.energy,
        "entropy": answer.entropy,
        "branch": answer.branch,
        "stability": answer.stability,
        "alignment": _alignment(problem, answer.feature),
    }


def _prediction_error(problem: core.Problem, feature, feature_error, rows, rows_error) -> np.ndarray:
    r"""Bound on the error of :math:`v\Phi_{*S}Ry` from those of the features, as if all of them conspired."""
    S, v = problem.supervised, float(problem.readout)
    R = np.linalg.inv(v * feature[np.ix_(S, S)] + problem.temperature * np.eye(len(S)))
    pull = np.abs(R @ problem.labels)
    moved = v * feature_error[np.ix_(S, S)] @ pull
    return v * rows_error[:, S] @ pull + v * np.abs(rows[:, S] @ R) @ moved


def _alignment(problem: core.Problem, feature: np.ndarray) -> np.ndarray:
    """Cosine between the features of each state and the labels' kernel, summed over supervised states."""
    y = linear.all_labels(problem).reshape(problem.depth, problem.n_samples, -1)
    target = np.einsum("apo,aqo->pq", y, y)
    blocks = core.by_state(problem, feature)
    own = [blocks[a, :, a] for a in range(problem.depth)]
    size = [np.linalg.norm(block) * np.linalg.norm(target) for block in own]
    return np.asarray([np.sum(b * target) / s if s > 0 else 0.0 for b, s in zip(own, size, strict=True)])
