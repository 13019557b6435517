"""`widefield.prior`: the question in, kernel matrices with a certificate out."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from widefield.answer.boundary import working_dtype, x64
from widefield.answer.certificate import Certificate, Check, SolveError, Status
from widefield.answer.solution import Solution, make_solution
from widefield.gaussian import AbstractKernel, RefinedKernel
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.solvers.on_device import DeviceMatrix
from widefield.solvers.symmetric import AbstractMatrix
from widefield.theories.prior import core
from widefield.theories.prior.core.matrices import REFINED
from widefield.theories.prior.plan import REGRESSION, Plan, make_plan, make_regressions
from widefield.theories.prior.predictions import Fields, Source, host_matrix, predict
from widefield.theories.prior.residual import Entries, choose_pairs, residual
from widefield.theories.prior.stored import stored_prior

PAIRS = ("state", "state_", "sample", "sample_")
MOST_SENSITIVE = 1e-3  # of what is solved, to a rounding of the kernel


@x64
def prior(
    network: Network,
    task: Task,
    *,
    noise: Any = 0.0,
    time: Any = None,
    quantities: Iterable[str] | None = None,
    rtol: float | None = None,
    dtype: Any = "float64",
    store: str | os.PathLike | None = None,
    client: Any = None,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Covariances, kernels and regression of an infinitely wide random network.

    .. math::  C^{ab}_{\alpha\beta} = M^b_{ab}b_a + M^w_{ab}w_a\langle\varphi(h^{a-1}_\alpha)\varphi(h^{b-1}_\beta)\rangle
               + M^u_{ab}\tfrac{u_a}{D}x^a_\alpha\!\cdot x^b_\beta

    Eqs. (prior.2), (prior.3), (prior.4), (prior.5), (prior.6), (prior.7), (prior.11); Segadlo et al. (2022), with one mask each for
    weights, biases and inputs.

    Returns the fields ``hidden`` C, ``feature`` <φφ> and ``readout`` v<φφ> + b_out over (state, state\_, sample,
    sample\_), ``output`` (the last readout block) and ``ntk`` over (sample, sample\_); where several states are
    supervised ``ntk`` has all states in front. With labels also ``log_evidence``, and with test inputs
    ``test_prediction`` (state, test, output), ``test_covariance`` (state, state\_, test, test\_), without noise, and
    ``ntk_prediction`` (test, output), with all states in front where several are supervised: the mean of networks trained
    by gradient flow in the linear regime.

    ``quantities`` names the fields wanted; by default all that fit in memory, and what is left out is named in the
    certificate. ``noise`` is the variance of the labels' noise, for ``ntk_prediction`` a weight decay towards the initial
    weights; an array puts a ``noise`` axis in front. ``time`` is how long ``ntk_prediction`` trains, by default forever; an
    array puts a ``time`` axis in front of it.

    With ``store``, a folder, kernels larger than the memory are made and solved in tiles that lie there, by this process
    or by the workers of ``client`` (a dask.distributed Client), and a call that was ended goes on where it was: for
    readouts at the last state, one noise and no ``time``. Fields that do not fit in memory are read from the store when used.

    Method: closed-form averages or Hermite series, in blocks of samples; ``output`` and ``ntk`` alone cost O(depth·P²)
    time and no memory beyond themselves, a regression alone one matrix that is factored in place.
    Error: averages are good to ``rtol`` of their scale (1e-10 by default, 1e-4 in float32) or done again by quadrature;
    the residual, within ``rtol`` too, puts entries of the fields back into the recursion, with averages by quadrature,
    and the regression back into its linear equations. In float32 regressions are refined until (K + noise)α
    differs from y by less than ``rtol`` of it, K in float64; in float64 a rounding of the kernel may move a regression by a
    thousandth at most (check ``sensitivity``).
    Limits: infinite width; finite networks differ at order 1/width, deep relu recurrent ones by much more.
    """
    began = perf_counter()
    network.refuse_branch("prior")
    regressions = make_regressions(noise, time)
    if isinstance(quantities, Iterable) and not isinstance(quantities, str):
        quantities = tuple(quantities)  # an iterator can be read once
    kind = working_dtype(dtype)
    if kind == np.float32 and any(regressions.spectral.values()):
        raise ValueError("`dtype` must be 'float64' at finite times, or for so many noises, got 'float32'.")
    default, floor = (1e-10, 1e-12) if kind == np.float64 else (1e-4, 1e-5)
    rtol = default if rtol is None else checks.tolerance("rtol", rtol, floor, kind.name)
    if store is not None or client is not None:
        if time is not None:
            raise ValueError(
                f"`time` is not covered with `store`: leave one of them out, got time={checks.shown(time)}."
            )
        if "noise" in regressions.dims:
            raise ValueError(f"`noise` must be one number with `store`, got {checks.shown(noise)}.")
        return stored_prior(network, task, noise, quantities, rtol, kind, store, client, progress, throw)
    plan = make_plan(network, task, quantities, regressions, kind.itemsize)
    if time is not None and "ntk_prediction" not in plan.names:
        raise ValueError(f"`time` is read by `ntk_prediction` alone, which is not asked for, got {checks.shown(time)}.")
    x = task.sequences(network.depth, test=plan.tests)
    made = _make(network, task, plan, x.astype(kind, copy=False), rtol, progress)
    found = _regress(made, Source(network, task, plan, regressions, made.kernel, made.variances, x, rtol, progress))
    certificate = Certificate(
        "prior",
        {
            name: Check(value, rtol)
            for name, value in (("residual", found.residual), ("error", found.error))
            if value is not None
        }
        | ({} if found.sensitivity is None else {"sensitivity": Check(found.sensitivity, MOST_SENSITIVE)}),
        found.failure,
        steps=network.depth,
        dtype=kind.name,
        wall_time=perf_counter() - began,
        options={"noise": noise, "quantities": list(plan.names), "rtol": rtol}
        | ({} if time is None else {"time": time}),
        notes=(*task.notes, *found.notes),
        left_out=plan.left_out,
        diagnostics={"refinements": found.steps} if found.steps else {},
    )
    dims = {dim for of_field, _ in found.fields.values() for dim in of_field}
    coords = {name: values for name, values in regressions.coords.items() if name in dims}
    return make_solution(found.fields, certificate, network, task, coords=coords, throw=throw)


@dataclass(frozen=True)
class Made:
    """The kernels to return, those to regress with by field, and how well all of them satisfy the recursion."""

    kernel: AbstractKernel
    variances: np.ndarray
    kernels: dict[str, np.ndarray]
    arrays: dict[str, np.ndarray]
    training: dict[str, AbstractMatrix]
    residual: float | None
    error: float | None
    failure: Status | None
    notes: tuple[str, ...]

    def known(self, rtol: float) -> bool:
        """Whether the kernels are what they should be."""
        numbers = [number for number in (self.residual, self.error) if number is not None]
        return self.failure is None and all(number <= rtol for number in numbers)


class Found(NamedTuple):
    """The fields of the answer and what its certificate says of them."""

    fields: Fields
    residual: float | None
    error: float | None
    failure: Status | None
    notes: tuple[str, ...]
    steps: int = 0
    sensitivity: float | None = None


def _regress(made: Made, source: Source) -> Found:
    """The kernels and, where they are known, the regressions made from them."""
    fields: Fields = {name: (PAIRS if kernel.ndim == 4 else PAIRS[2:], kernel) for name, kernel in made.kernels.items()}
    kernels, failure, notes = source.plan.kernels, made.failure, made.notes
    if not kernels or not made.known(source.rtol):
        return Found(fields, made.residual, made.error, failure, notes)
    if made.variances.dtype != source.x.dtype:  # predictions are read in double precision
        source.kernel, source.q = core.resolve_kernel(source.network, source.x)
    try:
        for name in kernels:
            fields |= predict(source, name, made.training.pop(name), made.arrays)
    except np.linalg.LinAlgError as singular:
        noises = ", ".join(f"{noise:g}" for noise in source.regressions.noises)
        note = f"the training kernel plus noise={noises} is not positive definite ({singular})"
        failure, notes = Status.not_psd, (*notes, note)
    except SolveError as missed:
        failure, notes = Status.inaccurate, (*notes, str(missed))
    residual, error = (
        float(np.max([number for number in numbers if number is not None]))
        for numbers in ((made.residual, source.residual), (made.error, source.error))
    )
    if source.sensitivity > MOST_SENSITIVE:
        notes = (*notes, "the training kernel is nearly singular: add noise, or take out inputs that are nearly equal")
    return Found(fields, residual, error, failure, notes, source.steps, source.sensitivity)


def _make(network: Network, task: Task, plan: Plan, x: np.ndarray, rtol: float, progress: bool | None) -> Made:
    """All kernels that the plan names, on the host and on a device."""
    matrices = core.fill_matrices(network, x, plan.targets, rtol, progress)
    n, failure, notes, errors = task.n_samples, matrices.failure, matrices.notes, [matrices.error]
    kernels = {name: matrices.arrays[name] for name in plan.names if name in matrices.arrays and name not in REGRESSION}
    kernel, q, violation = matrices.kernel, matrices.variances, None
    on_device: dict[str, DeviceMatrix] = {}
    training: dict[str, AbstractMatrix] = {}
    if failure is None:
        try:
            for state, fields in plan.device.items():
                made = core.device_matrices(
                    network, matrices.plain_kernel, q[:, :n], x[:n], state, fields, rtol, progress
                )
                if isinstance(made.kernel, RefinedKernel) and REFINED not in notes:
                    kernel, notes = made.kernel, (*notes, REFINED)
                errors.append(made.error)
                on_device |= _keep(network, plan, state, made.matrices, kernels)
                failure = failure or (None if made.finite else Status.nonfinite)
        except SolveError as missed:
            failure, notes = Status.inaccurate, (*notes, str(missed))
    if failure is None:
        pairs = choose_pairs(x[:n])
        blocks = {f: matrices.arrays[f"{f} of training"] for f in plan.kernels if f not in on_device}
        entries = {(f, 0): matrix.entries(*pairs) for f, matrix in on_device.items()}
        entries |= {(f, k): block[k, k][pairs] for f, block in blocks.items() for k in range(len(plan.supervised))}
        checked = tuple(
            Entries(s, entries.get(("readout", k)), entries.get(("tangent", k))) for k, s in enumerate(plan.supervised)
        )
        violation = residual(network, kernel, q[:, :n], x[:n], kernels, checked)
        training = on_device | {f: host_matrix(block) for f, block in blocks.items()}
    known = [error for error in errors if error is not None]
    error = float(np.max(known)) if known else None
    return Made(matrices.plain_kernel, q, kernels, matrices.arrays, training, violation, error, failure, notes)


def _keep(
    network: Network, plan: Plan, state: int, matrices: dict[str, DeviceMatrix], kernels: dict[str, np.ndarray]
) -> dict[str, DeviceMatrix]:
    """The matrices to regress with; those asked for as fields come back to the host first."""
    for name, field in (("output", "readout"), ("ntk", "tangent")):
        if state == network.depth - 1 and field in matrices and name in plan.names and name not in kernels:
            kernels[name] = matrices[field].to_host()
    regressed = plan.kernels if (state,) == plan.supervised else ()
    return {field: matrix for field, matrix in matrices.items() if field in regressed}
