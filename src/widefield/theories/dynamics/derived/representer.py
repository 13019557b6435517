"""Where training with weight decay ends: the representer theorem of the final tangent kernel."""

import time
from typing import Any

import numpy as np

from widefield.answer.boundary import memory_budget, require_memory
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks

SOLVED = 1e-10  # largest residual of the linear equations, relative to the labels


def regularized_prediction(
    solution: Solution,
    *,
    step: int = -1,
    degree: int | None = None,
    test_kernel: Any = None,
    rtol: float = 1e-3,
    throw: bool = True,
) -> Solution:
    r"""Outputs at the fixed point of descent with weight decay, from the tangent kernel there.

    .. math:: f(x) = k(x)^T(K + \lambda\kappa)^{-1}y

    Eq. (dynamics.32); Eq. 98 of Bordelon & Pehlevan (2022). ``solution`` is one of `widefield.dynamics` with the field ``ntk``,
    whose task has the labels and whose training the weight decay. Notation: :math:`K` is its ``ntk`` at ``step``,
    :math:`k` ``test_kernel`` (test, sample), as a user may know it; :math:`\lambda` the weight decay; the
    network is homogeneous of ``degree`` :math:`\kappa` in its weights, by default depth + 1, that of linear and relu networks
    without biases that are driven at the first state.

    Fields: ``prediction`` (sample, output) and, with ``test_kernel``, ``test_prediction`` (test, output).
    Error: the largest distance from the ``prediction`` of the solution at that step, relative to their root mean square: zero
    at a fixed point of linear networks, whatever the rate. It is at most ``rtol``, 1e-3 by default, or the training has not
    come to rest or the theorem does not hold. ``residual``: that of the linear equations, relative to the labels.
    Limits: the squared loss, one readout; relu neurons come to rest at :math:`h = 0`, where the slope is undefined and only
    :math:`f = v\Phi\Delta/\lambda` holds.
    """
    start = time.perf_counter()
    checks.flag("throw", throw)
    K, y, f = _question(solution, step)
    advice = f"{int(np.sqrt(memory_budget() / 32))} equations would fit."
    require_memory(4 * K.nbytes, f"The {len(K)} equations of `solution`", advice)
    kappa = _degree(solution) if degree is None else checks.integer("degree", degree, 1)
    rtol = checks.tolerance("rtol", rtol, 1e-12)
    assert solution.training is not None and solution.task is not None
    system = K + solution.training.weight_decay * kappa * np.eye(len(K))
    try:
        weights = np.linalg.solve(system, y.ravel())
    except np.linalg.LinAlgError:
        raise ValueError("`solution` must have an invertible ntk where the weight decay is zero.") from None
    right = (K @ weights).reshape(y.shape)
    size = lambda v: float(np.sqrt(np.mean(v**2)))  # noqa: E731
    fields = {"prediction": (("sample", "output"), right)}
    if test_kernel is not None:
        between, _ = checks.real_array("test_kernel", test_kernel, (2,), "a (test, sample) array")
        if y.shape[1] > 1:
            raise ValueError(f"`test_kernel` is for one output, and the solution has {y.shape[1]}.")
        if between.shape[1] != len(y):
            raise ValueError(f"`test_kernel` must have {len(y)} columns, one per sample, got shape {between.shape}.")
        fields["test_prediction"] = (("test", "output"), between @ weights.reshape(y.shape))
    residual = float(np.abs(system @ weights - y.ravel()).max()) / max(size(y), 1e-300)
    certificate = Certificate(
        "regularized_prediction",
        {"residual": Check(residual, SOLVED), "error": Check(float(np.abs(right - f).max()) / max(size(f), 1e-300), rtol)},
        solution.failure, wall_time=time.perf_counter() - start, options={"step": step, "degree": kappa, "rtol": rtol}, notes=solution.notes,
    )  # fmt: skip
    return make_solution(fields, certificate, solution.network, solution.task, training=solution.training, throw=throw)


def _question(solution: Any, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The kernel over (sample, output), the labels and the outputs (sample, output) at ``step``."""
    if not isinstance(solution, Solution) or solution.training is None or solution.task is None:
        raise ValueError("`solution` must be one of widefield.dynamics.")
    if not {"ntk", "prediction"} <= set(solution.data):
        raise ValueError('`solution` must have the fields of `quantities=("prediction", "ntk")`.')
    if solution.training.loss != "squared":
        raise ValueError(f"`solution` must have the squared loss, got {solution.training.loss_name!r}.")
    y = solution.task.labels()
    if y.shape[1] > 1:
        raise ValueError(f"`solution` must have one supervised state, got {y.shape[1]}.")
    n_rows = solution.training.steps + 1
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or not -n_rows <= step < n_rows:
        raise ValueError(f"`step` must be one between 0 and {n_rows - 1}, got {step!r}.")
    ntk, y = solution.ntk.values[step], y[:, 0]
    if y.shape[1] > 1:  # (sample, sample_, output, output_)
        ntk = ntk.transpose(0, 2, 1, 3).reshape(y.size, y.size)
    return ntk, y, solution.prediction.values[step]


def _degree(solution: Solution) -> int:
    network, task = solution.network, solution.task
    assert task is not None
    plain = not np.any(network.bias_variances) and task.sequences(network.depth).shape[1] == 1
    homogeneous = network.activation.is_named and network.activation.name in ("linear", "relu", "leaky_relu", "abs")
    if not plain or not homogeneous or task.supervised_states(network.depth) != (network.depth - 1,):
        raise ValueError(
            "`degree` must be given unless the network is linear or relu-like, without biases, driven at the first state and "
            "read out at the last: it is the network's degree of homogeneity in its weights."
        )
    return network.depth + 1
