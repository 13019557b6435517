"""Output covariance and tangent kernel against neural-tangents: time, memory, agreement, accuracy."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fresh
import numpy as np
import peer_env
import reference
from cases import CASES, N_COMPARED, Case
from memory import process_mb
from tables import met, number, table

import widefield as wf

REPEATS = 3
ACCURACY = 1e-10
REFERENCE_ERROR = 1e-12
ACCURATE = ("status", "accuracy")  # targets of the second table
QUANTITIES = {"nngp": "output", "ntk": "ntk"}
"""The peer's names and ours."""


@dataclass(frozen=True)
class Target:
    """At least ``speed`` times as fast as the peer under jit, in at most a ``share`` of its memory or ``mb``."""

    speed: float | None = None
    share: float | None = None
    mb: float | None = None

    def __str__(self) -> str:
        parts = (
            self.speed and f">= {self.speed:g}x",
            self.share and f"{self.share:.0%} memory",
            self.mb and f"< {self.mb:g} MB",
        )
        return ", ".join(part for part in parts if part)


TARGETS = {
    "relu": Target(speed=10, share=1 / 3),
    "erf": Target(speed=4),
    "tanh": Target(speed=100),
    "tanh-large": Target(mb=1000),
}
MODES = {"relu": ("jit", "eager", "blocks"), "erf": ("jit", "eager", "blocks"), "tanh": ("jit", "blocks")}
"""How the peer is called; jit alone where it does not fit in memory."""


def ask(case: Case, task: wf.Task) -> wf.Solution:
    """The case as a question to widefield, which answers even where it doubts the answer."""
    w = case.weight_variance
    net = wf.DNN(
        case.n_hidden,
        case.activation,
        weight_variance=w,
        input_variance=w,
        readout_variance=w,
        bias_variance=case.bias_variance,
    )
    return wf.prior(net, task, quantities=tuple(QUANTITIES.values()), progress=False, throw=False)


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Times and memory of widefield on one case, and the first samples' kernels."""
    case = CASES[name]
    task = wf.Task(case.inputs())
    before = process_mb("VmRSS")
    report: dict[str, Any] = dict(fresh.times({name: partial(ask, case, task)}, repeats)[name])
    report["memory_mb"] = fresh.peak_mb(before)
    first = np.s_[:N_COMPARED, :N_COMPARED]
    solution = ask(case, task)
    report["status"] = solution.certificate.status.name
    found = {peer: getattr(solution, ours).values for peer, ours in QUANTITIES.items()}
    report["error"] = diagonal_error(case, found) if case.activation == "relu" else None
    return report | {name: kernel[first].tolist() for name, kernel in found.items()}


def diagonal_error(case: Case, kernels: dict[str, Any]) -> dict[str, float]:
    """Largest relative error on the diagonal, which is known for relu; kernels of the first samples will do."""
    exact = reference.relu_diagonals(case)
    diagonals = {name: np.diag(kernels[name]) for name in QUANTITIES}
    return {name: float(np.max(np.abs(d / exact[name][: len(d)] - 1))) for name, d in diagonals.items()}


def run(name: str, peer: Path | None) -> dict[str, Any]:
    """Everything about one case; ``peer`` is the peer's Python.

    As many warm calls on both sides. widefield runs before and after the peer, and the slower of the two runs counts.
    """
    ours = fresh.call(measure, name=name, repeats=REPEATS)
    peers = {}
    if peer:
        modes = MODES.get(name, ("jit",))
        peers = {how: peer_env.run_case(peer, name, how=how, repeats=REPEATS) for how in modes}
        again = fresh.call(measure, name=name, repeats=REPEATS)
        ours = max(ours, again, key=lambda report: report["warm_seconds"])
    done = {how: report for how, report in peers.items() if report["status"] == "ok"}
    error, peer_error = _errors(CASES[name], ours, done.get("jit"))
    row = {
        "case": name,
        "widefield": _numbers(ours),
        "peer": {how: _numbers(report) for how, report in peers.items()},
        "difference": difference(ours, done["jit"]) if "jit" in done else None,
        "error": error,
        "peer_error": peer_error,
    }
    return row | {"met": judge(row)}


def _numbers(report: dict[str, Any]) -> dict[str, Any]:
    """A report without its kernels."""
    return {key: value for key, value in report.items() if key not in (*QUANTITIES, "error")}


def _errors(case: Case, ours: dict[str, Any], theirs: dict[str, Any] | None) -> tuple[Any, Any]:
    """Errors of widefield and of the peer, None where there is no reference."""
    if case.activation == "relu":
        return ours["error"], theirs and diagonal_error(case, theirs)
    if case.activation == "tanh":
        exact = _exact(case)
        return difference(ours, exact), theirs and difference(theirs, exact)
    return None, None


def _exact(case: Case) -> dict[str, np.ndarray]:
    """Kernels by brute force, checked against half the spacing on two samples."""
    exact = reference.kernels(case, N_COMPARED)
    finer = reference.kernels(case, 2, reference.SPACING / 2)
    change = difference(finer, {name: kernel[:2, :2] for name, kernel in exact.items()})
    if max(change.values()) > REFERENCE_ERROR:
        raise RuntimeError(f"the reference for {case} has not converged: {change}")
    return exact


def difference(kernels: dict[str, Any], others: dict[str, Any]) -> dict[str, float]:
    """Largest difference of the kernels, relative to the root of the product of the diagonal entries."""
    found = {}
    for name in QUANTITIES:
        kernel, other = np.asarray(kernels[name]), np.asarray(others[name])
        scale = np.sqrt(np.outer(np.diag(other), np.diag(other)))
        found[name] = float(np.max(np.abs(kernel - other) / scale))
    return found


def speed(row: dict[str, Any], how: str) -> float | None:
    """How many times faster than the peer."""
    theirs = row["peer"].get(how, {}).get("warm_seconds")
    return theirs and theirs / row["widefield"]["warm_seconds"]


def best(row: dict[str, Any]) -> str | None:
    """The peer's fastest mode."""
    done = {how: report["warm_seconds"] for how, report in row["peer"].items() if report["status"] == "ok"}
    return min(done, key=lambda how: done[how]) if done else None


def judge(row: dict[str, Any]) -> dict[str, bool | None]:
    """Which targets were met; None where the peer is needed and absent."""
    target, memory = TARGETS[row["case"]], row["widefield"]["memory_mb"]
    answers: dict[str, bool | None] = {"status": row["widefield"]["status"] == "success"}
    if target.speed:
        faster = speed(row, "jit")
        answers["speed"] = None if faster is None else faster >= target.speed
    if target.share:
        theirs = row["peer"].get("jit", {}).get("memory_mb")
        answers["share"] = None if theirs is None else memory <= target.share * theirs
    if target.mb:
        answers["mb"] = memory < target.mb
    if row["error"]:
        answers["accuracy"] = max(row["error"].values()) <= ACCURACY
    return answers


def show(rows: list[dict[str, Any]]) -> str:
    """Both tables: speed and memory, then accuracy."""
    fast = ("case", "s", "compile s", "peer jit s", "peer best s", "ratio jit", "ratio best", "MB", "peer jit MB")
    title = "Kernels: widefield, and neural-tangents as the peer"
    speeds = table(title, (*fast, "peer best MB", "target", "met"), map(_speed_cells, rows))
    header = ("case", "peer - widefield", "widefield error", "peer error", "target", "status", "met")
    note = "Accuracy: nngp, ntk; errors of tanh against a trapezoid rule, of relu on the diagonal, which is known"
    return speeds + "\n\n" + table(note, header, map(_accuracy_cells, rows))


def _speed_cells(row: dict[str, Any]) -> list[Any]:
    ours, how = row["widefield"], best(row)
    jit, chosen = row["peer"].get("jit", {}), row["peer"].get(how, {})
    failed = jit.get("status") if jit.get("status") != "ok" else None
    return [
        row["case"],
        ours["warm_seconds"],
        ours["compile_seconds"],
        failed or jit.get("warm_seconds"),
        f"{number(chosen['warm_seconds'])} {how}" if how else None,
        speed(row, "jit"),
        speed(row, how) if how else None,
        ours["memory_mb"],
        jit.get("memory_mb"),
        chosen.get("memory_mb"),
        str(TARGETS[row["case"]]),
        met(answer for name, answer in row["met"].items() if name not in ACCURATE),
    ]


def _accuracy_cells(row: dict[str, Any]) -> list[str]:
    pairs = [row[name] for name in ("difference", "error", "peer_error")]
    cells = [f"{pair['nngp']:.0e}, {pair['ntk']:.0e}" if pair else "–" for pair in pairs]
    target = f"<= {ACCURACY:.0e}" if "accuracy" in row["met"] else "–"
    answers = [row["met"][name] for name in ACCURATE if name in row["met"]]
    return [row["case"], *cells, target, row["widefield"]["status"], met(answers)]
