"""`widefield.prior`: the question in, kernel matrices with a certificate out."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from widefield.answer.boundary import choose_quantities, describe_bytes, memory_budget, working_dtype, x64
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.solution import Solution, make_solution
from widefield.gaussian import quadrature
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.prior import core
from widefield.theories.prior.core import Target
from widefield.theories.prior.regression import condition
from widefield.theories.prior.residual import residual

PAIRS = ("state", "state_", "sample", "sample_")
REGRESSION = {
    "log_evidence": (),
    "test_prediction": ("state", "test", "output"),
    "test_covariance": ("state", "state_", "test", "test_"),
}


@x64
def prior(
    network: Network,
    task: Task,
    *,
    noise: float = 0.0,
    quantities: Iterable[str] | None = None,
    rtol: float | None = None,
    dtype: Any = "float64",
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Covariances, kernels and regression of an infinitely wide random network.

    .. math::  C^{ab}_{\alpha\beta} = M^b_{ab}b_a + M^w_{ab}w_a\langle\varphi(h^{a-1}_\alpha)\varphi(h^{b-1}_\beta)\rangle
               + M^u_{ab}\tfrac{u_a}{D}x^a_\alpha\!\cdot x^b_\beta

    Eqs. (prior.2), (prior.3), (prior.4), (prior.5), (prior.6), (prior.7); Segadlo et al. (2022), with one mask each for
    weights, biases and inputs.

    Returns the fields ``hidden`` C, ``feature`` <φφ> and ``readout`` v<φφ> + b_out over (state, state\_, sample,
    sample\_), ``output`` (the last readout block) and ``ntk`` over (sample, sample\_); where several states are
    supervised ``ntk`` has all states in front. With labels also ``log_evidence``, and with test inputs
    ``test_prediction`` (state, test, output) and ``test_covariance`` (state, state\_, test, test\_), without noise.

    ``quantities`` names the fields wanted; by default all that fit in memory, and what is left out is named in the
    certificate. ``noise`` is the variance of the labels' noise.

    Method: closed-form averages or Hermite series, in blocks of samples; ``output`` and ``ntk`` alone cost O(depth·P²)
    time and no memory beyond themselves.
    Error: averages are good to ``rtol`` of their scale (1e-10 by default, 1e-4 in float32) or done again by quadrature;
    the residual, within ``rtol`` too, puts entries of the fields back into the recursion, with averages by quadrature,
    and the regression back into its linear equations.
    Limits: infinite width; finite networks differ at order 1/width, deep relu recurrent ones by much more.
    """
    start = time.perf_counter()
    network.refuse_branch("prior")
    noise = checks.nonnegative("noise", noise)
    if isinstance(quantities, Iterable) and not isinstance(quantities, str):
        quantities = tuple(quantities)  # an iterator can be read once
    kind = working_dtype(dtype)
    default, floor = (1e-10, 1e-12) if kind == np.float64 else (1e-4, 1e-5)
    rtol = default if rtol is None else checks.tolerance("rtol", rtol, floor, kind.name)
    plan, needed, left_out = _plan(network, task, quantities)
    tests = any(target.samples.stop > task.n_samples for target in needed.values())
    x = task.sequences(network.depth, test=tests).astype(kind)
    matrices = core.fill_matrices(network, x, needed, rtol, progress)
    failure, notes, verdicts = matrices.failure, matrices.notes, {}
    kernels = {name: matrices.arrays[name] for name in plan if name not in REGRESSION}
    if failure is None:
        train = slice(task.n_samples)
        violation = residual(network, matrices.kernel, matrices.variances[:, train], x[train], kernels)
        verdicts["residual"] = Check(violation, rtol)
    if matrices.error is not None:
        verdicts["error"] = Check(matrices.error, rtol)
    fields: dict[str, Any] = {
        name: (PAIRS if plan[name].states else PAIRS[2:], kernel) for name, kernel in kernels.items()
    }
    if len(kernels) < len(plan) and failure is None and all(check.met for check in verdicts.values()):
        try:
            K, K_test, K_tests = (matrices.arrays.get(name) for name in REGRESSION)
            assert K is not None
            posterior = condition(K, K_test, K_tests, task.labels(), noise)
            verdicts["residual"] = Check(max(violation, posterior.residual), rtol)
            fields |= {name: (REGRESSION[name], posterior.fields[name]) for name in plan if name in REGRESSION}
        except np.linalg.LinAlgError as error:
            failure = Status.not_psd
            notes = (*notes, f"the training kernel plus noise={noise:g} is not positive definite ({error})")
    certificate = Certificate(
        "prior",
        verdicts,
        failure,
        steps=network.depth,
        dtype=kind.name,
        wall_time=time.perf_counter() - start,
        options={"noise": noise, "quantities": list(plan), "rtol": rtol},
        notes=(*task.notes, *notes),
        left_out=left_out,
    )
    return make_solution(fields, certificate, network, task, throw=throw)


def _plan(
    network: Network, task: Task, quantities: Iterable[str] | None
) -> tuple[dict[str, Target], dict[str, Target], tuple[str, ...]]:
    """The arrays asked for, all that are needed for them, and the quantities left out for want of memory."""
    depth, n = network.depth, task.n_samples
    supervised = task.supervised_states(depth)
    task.sequences(depth)
    every, train, test = range(depth), range(n), range(n, n + task.n_test)
    readouts = None if len(supervised) == 1 else every
    targets = {
        "output": Target("readout", None, None, train, train),
        "log_evidence": Target("readout", supervised, supervised, train, train),
        "test_prediction": Target("readout", every, supervised, test, train),
        "test_covariance": Target("readout", every, every, test, test),
        "ntk": Target("tangent", readouts, readouts, train, train),
        "readout": Target("readout", every, every, train, train),
        "hidden": Target("hidden", every, every, train, train),
        "feature": Target("feature", every, every, train, train),
    }
    available = list(targets)
    if task.y is None or task.x_test is None:
        available.remove("test_prediction")
        available.remove("test_covariance")
    if task.y is None:
        available.remove("log_evidence")
    if quadrature.factor(network.activation, 1).deltas:  # a jump: the slope is a delta function, the kernel infinite
        available.remove("ntk")
    sizes = _sizes({name: targets[name] for name in available}, quantities)
    try:
        kept, left_out = choose_quantities(quantities, sizes)
    except MemoryError as error:
        raise MemoryError(f"{error} {_what_fits(task, sizes, quantities)}") from None
    if "log_evidence" not in kept and quantities is None:  # a regression reads what does not fit
        kept = tuple(name for name in kept if name not in REGRESSION)
        left_out = tuple(name for name in sizes if name not in kept)
    if not kept:
        need, free = describe_bytes(sizes["output"]), describe_bytes(memory_budget())
        raise MemoryError(f"Not even `output` ({need}) fits in {free}. {_what_fits(task, sizes, ('output',))}")
    plan = {name: targets[name] for name in kept}
    needed = dict(plan)  # a regression reads K_DD and K_*D
    if any(name in REGRESSION for name in kept):
        needed["log_evidence"] = targets["log_evidence"]
    if "test_covariance" in kept:
        needed["test_prediction"] = targets["test_prediction"]
    return plan, needed, left_out


def _sizes(targets: dict[str, Target], quantities: Iterable[str] | None) -> dict[str, int]:
    """Bytes of every quantity at its peak: a regression has the kernel, a copy with noise, and a factor of it."""
    bytes_of = {name: 8 * int(np.prod(target.shape)) for name, target in targets.items()}
    sizes = {name: (3 if name in REGRESSION else 1) * size for name, size in bytes_of.items()}
    asked = (quantities,) if isinstance(quantities, str) else quantities if isinstance(quantities, tuple) else None
    reader = next((name for name in REGRESSION if name in sizes and name in (asked or ())), None)
    if reader not in (None, "log_evidence"):
        sizes[reader] += sizes["log_evidence"] + (sizes["test_prediction"] if reader == "test_covariance" else 0)
    return sizes


def _what_fits(task: Task, sizes: dict[str, int], quantities: Iterable[str] | None) -> str:
    need = sum(sizes[name] for name in ((quantities,) if isinstance(quantities, str) else quantities or sizes))
    share = float(np.sqrt(memory_budget() / need))
    tests = f" and {int(share * task.n_test)} test inputs" if task.n_test else ""
    return f"About {int(share * task.n_samples)} samples{tests} would fit."
