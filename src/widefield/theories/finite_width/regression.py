"""`widefield.regression`: what a network of finite width predicts after seeing labels."""

import time
from typing import Any

import numpy as np

from widefield.answer import legacy
from widefield.answer.boundary import x64
from widefield.answer.certificate import Status
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.finite_width.condition import Regression, condition
from widefield.theories.finite_width.solve import finite_width

TRUSTED = 0.3  # of the variance of the log likelihood over networks
DIMS = {
    "test_prediction": ("state", "test", "output"),
    "test_prediction_correction": ("state", "test", "output"),
    "test_covariance": ("state", "state_", "test", "test_", "output", "output_"),
    "test_covariance_correction": ("state", "state_", "test", "test_", "output", "output_"),
    "log_evidence": (),
    "log_evidence_correction": (),
}


@x64
def regression(
    network: Network,
    task: Task,
    *,
    width: int,
    noise: float,
    rtol: float = 1e-8,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Bayesian regression with a random network of finite ``width``, corrected at order 1/n.

    The prior of the outputs is not Gaussian: over training and test points they have the covariance :math:`K + G_1/n` and
    the connected four-point function :math:`V/n`. The posterior given labels with ``noise`` variance is

    .. math::
        \langle f_*\rangle = \mu + \tfrac1n\left[\mu'\!\cdot G_1 + \tfrac12\mu''\!:V + \mu'\!\cdot V\cdot(\ln L)'\right], \qquad
        \mu = K_{*D}(K_{DD}+\sigma^2)^{-1}y

    with derivatives in the covariance, and likewise for the covariance of :math:`f_*`, to which the variance of
    :math:`\mu` over networks adds :math:`\mu_i'V\mu_j'/n`: it couples the outputs. Derivation:
    `widefield.theories.finite_width.condition`.

    Fields: ``test_prediction`` (state, test, output), ``test_covariance`` (state, state\_, test, test\_, output,
    output\_), without noise, and ``log_evidence``, all at this width, and the coefficients of 1/n of each as
    ``…_correction``. ``state`` is the last one only, so that the fields of `widefield.prior` subtract.

    Method: K, G1 and V of all points from `widefield.finite_width` (deep or tied weights), then directional
    derivatives along the modes of V. Cost: C(P+3, 4) four-point averages for P training and test points.
    Error: the residual is the larger of that of finite_width and of the linear solve.
    Limits: first order in 1/n; labels at the last state; few points. The expansion needs the log likelihood to vary
    little between networks: its variance ``evidence_variance`` stands in the diagnostics, and beyond 0.3 a note says so.
    Many labels with little noise need a larger width than the prior does.
    """
    start = time.perf_counter()
    noise = _check(network, task, noise)
    points = Task(task.x if task.x_test is None else np.concatenate([task.x, task.x_test]))
    quantities = ("kernel", "correction", "vertex")
    below = finite_width(network, points, width=width, quantities=quantities, rtol=rtol, progress=progress, throw=throw)
    n = network.sizes(width)[-1]
    facts: dict[str, Any] = {"status": below.status, "residual": below.residual, "error": below.certificate.error}
    found = None
    if below.status is Status.success:
        facts, found = _condition(below, task, noise, n, rtol, facts)
    fields = {name: (DIMS[name], value) for name, value in _values(found, task, n).items()}
    certificate = legacy.certificate(
        theory="regression",
        tolerance=rtol,
        steps=network.depth,
        wall_time=time.perf_counter() - start,
        options={"width": int(width), "noise": noise},
        **facts | {"notes": (*task.notes, *below.notes, *facts.get("notes", ()))},
    )
    last = [network.depth - 1]
    coords = {"state": last, "state_": last} if task.n_test else {}
    return make_solution(fields, certificate, network, task, coords=coords, throw=throw)


def _check(network: Any, task: Any, noise: Any) -> float:
    if not isinstance(network, Network):
        raise ValueError(
            f"`network` must be a widefield Network such as widefield.DNN(...), got {type(network).__name__}."
        )
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a widefield.Task, got {type(task).__name__}.")
    if task.y is None:
        raise ValueError("`task` must have labels `y` for a regression, got none.")
    if network.readout_variance is None:
        raise ValueError("`network` must have a readout for a regression, got readout_variance=None.")
    supervised = task.supervised_states(network.depth)
    if supervised != (network.depth - 1,):
        raise ValueError(f"`supervised` must be the last state for a regression at finite width, got {supervised}.")
    return checks.nonnegative("noise", noise)


def _condition(below: Solution, task: Task, noise: float, n: int, rtol: float, facts: dict[str, Any]):
    """The posterior, and what the certificate says of it."""
    K, G1, V = (below.data[name].values[-1] for name in ("kernel", "correction", "vertex"))
    try:
        found = condition(K, G1, V, task.labels()[:, 0], noise)
    except np.linalg.LinAlgError as error:
        note = f"the training kernel plus noise={noise:g} is not positive definite ({error})"
        return facts | {"status": Status.not_psd, "notes": (note,)}, None
    spread = found.spread / n
    facts = facts | {"diagnostics": {"evidence_variance": spread}}
    residuals = [v for v in (facts["residual"], found.residual) if v is not None]
    facts["residual"] = max(residuals)
    if not facts["residual"] <= rtol:
        facts["status"] = Status.inaccurate
    if spread > TRUSTED:
        note = (
            f"beyond the reach of the expansion: the log likelihood varies between networks by {spread:.2g}, more than "
            f"{TRUSTED:g}; width {int(np.ceil(found.spread / TRUSTED))}, more noise or fewer labels would do"
        )
        facts["notes"] = (note,)
    return facts, found


def _values(found: Regression | None, task: Task, n: int) -> dict[str, Any]:
    """Fields by name; NaN where there is no posterior."""
    n_test, n_outputs = task.n_test, task.labels().shape[2]
    if found is None:
        nothing = np.full((1, n_test, n_outputs), np.nan)
        every = np.full((1, 1, n_test, n_test, n_outputs, n_outputs), np.nan)
        values = dict(zip(DIMS, (nothing, nothing, every, every, np.nan, np.nan), strict=True))
    else:
        mean, covariance = found.mean_correction, found.covariance_correction
        gaussian = np.multiply.outer(found.covariance, np.eye(n_outputs))
        values = {
            "test_prediction": (found.mean + mean / n)[None],
            "test_prediction_correction": mean[None],
            "test_covariance": (gaussian + covariance / n)[None, None],
            "test_covariance_correction": covariance[None, None],
            "log_evidence": found.evidence + found.evidence_correction / n,
            "log_evidence_correction": found.evidence_correction,
        }
    return {name: value for name, value in values.items() if n_test or not name.startswith("test")}
