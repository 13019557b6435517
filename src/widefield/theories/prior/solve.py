"""`widefield.prior`: the question in, kernel matrices with a certificate out."""

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer import legacy
from widefield.answer.boundary import choose_quantities, describe_bytes, memory_budget, working_dtype, x64
from widefield.answer.certificate import SolveError, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.gaussian import AbstractKernel, RefinedKernel, SeriesKernel, kernel_for, quadrature
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.prior import core, regression
from widefield.theories.prior.blocks import Target, fill, tile_pairs, tile_size
from widefield.theories.prior.verify import residual, table

PAIRS = ("state", "state_", "sample", "sample_")
REGRESSION = ("log_evidence", "test_prediction", "test_covariance")

_equal_states = jax.jit(core.equal_state_block, static_argnames=("tangent", "dtype"))
_all_states = jax.jit(core.all_states_block, static_argnames=("sharing", "tangent", "dtype"))
_overlaps = jax.jit(core.overlaps)
_equal_overlaps = jax.jit(core.equal_overlaps)
_node_variances = jax.jit(core.node_variances, static_argnames="dtype")


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

    Eqs. 31–37 and 48–49 of Segadlo et al. (2022); one mask each for weights, biases and inputs.

    Returns the fields ``hidden`` C, ``feature`` <φφ> and ``readout`` v<φφ> + b_out over (state, state_, sample,
    sample_), ``output`` (the last readout block) and ``ntk`` over (sample, sample_); where several states are
    supervised ``ntk`` has all states in front. With labels also ``log_evidence``, and with test inputs
    ``test_prediction`` (state, test, output) and ``test_covariance`` (state, state_, test, test_), without noise.

    ``quantities`` names the fields wanted; by default all that fit in memory, and what is left out is named in the
    certificate. ``noise`` is the variance of the labels' noise.

    Method: closed-form averages or Hermite series, in blocks of samples; ``output`` and ``ntk`` alone cost O(depth·P²)
    time and no memory beyond themselves.
    Error: averages are good to ``rtol`` of their scale (1e-10 by default, 1e-4 in float32) or done again by quadrature; the residual re-evaluates the
    recursion by quadrature on sample pairs.
    Limits: infinite width; finite networks differ at order 1/width, deep relu recurrent ones by much more.
    """
    start = time.perf_counter()
    _check(network, task)
    noise = checks.nonnegative("noise", noise)
    kind = working_dtype(dtype)
    default, floor = (1e-10, 1e-12) if kind == np.float64 else (1e-4, 1e-5)
    rtol = default if rtol is None else checks.tolerance("rtol", rtol, floor, kind.name)
    plan, left_out = _plan(network, task, quantities)
    fields, facts = _solve(network, task, plan, noise, rtol, kind, progress)
    certificate = legacy.certificate(
        theory="prior",
        tolerance=rtol,
        dtype=kind.name,
        steps=network.depth,
        wall_time=time.perf_counter() - start,
        options={"noise": noise, "quantities": list(plan)},
        left_out=left_out,
        **facts | {"notes": (*task.notes, *facts["notes"])},
    )
    return make_solution(fields, certificate, network, task, throw=throw)


def _check(network: Any, task: Any) -> None:
    if not isinstance(network, Network):
        raise ValueError(
            f"`network` must be a widefield Network such as widefield.RNN(...), got {type(network).__name__}."
        )
    network.refuse_branch("prior")
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a widefield.Task, got {type(task).__name__}.")


def _plan(network: Network, task: Task, quantities: Iterable[str] | None) -> tuple[dict[str, Target], tuple[str, ...]]:
    """The arrays to fill, by name, and the quantities left out for want of memory."""
    depth, n = network.depth, task.n_samples
    supervised = task.supervised_states(depth)
    task.sequences(depth)
    every, train, test = range(depth), range(n), range(n, n + task.n_test)
    readouts = None if len(supervised) == 1 else every
    targets = {
        "output": [Target("readout", None, None, train, train)],
        "log_evidence": [Target("readout", supervised, supervised, train, train)],
        "test_prediction": [Target("readout", every, supervised, test, train)],
        "test_covariance": [Target("readout", every, every, test, test)],
        "ntk": [Target("tangent", readouts, readouts, train, train)],
        "readout": [Target("readout", every, every, train, train)],
        "hidden": [Target("hidden", every, every, train, train)],
        "feature": [Target("feature", every, every, train, train)],
    }
    available = [name for name in targets if name not in REGRESSION or _has(task, name)]
    if quadrature.factor(network.activation, 1).deltas:  # a jump: the slope is a delta function, the kernel infinite
        available.remove("ntk")
    sizes = {name: 8 * sum(int(np.prod(t.shape)) for t in targets[name]) for name in available}
    kept, left_out = choose_quantities(quantities, sizes)
    if not kept:
        raise MemoryError(
            f"Not even `output` ({describe_bytes(sizes['output'])}) fits in {describe_bytes(memory_budget())}."
        )
    return {name: targets[name][0] for name in kept}, left_out


def _has(task: Task, name: str) -> bool:
    return task.y is not None and (name == "log_evidence" or task.x_test is not None)


def _solve(network, task, plan, noise, rtol, dtype, progress):
    """Fields of the solution, and what the certificate says of them."""
    targets = dict(plan)
    wants_regression = [name for name in plan if name in REGRESSION]
    supervised = task.supervised_states(network.depth)
    train = range(task.n_samples)
    if wants_regression:
        targets["log_evidence"] = Target("readout", supervised, supervised, train, train)
    if "test_covariance" in plan and "test_prediction" not in plan:
        test = range(task.n_samples, task.n_samples + task.n_test)
        targets["test_prediction"] = Target("readout", range(network.depth), supervised, test, train)
    x = task.sequences(network.depth, test=any(t.samples.stop > task.n_samples for t in targets.values())).astype(dtype)
    arrays = {name: np.full(t.shape, np.nan, dtype) for name, t in targets.items()}
    kernel, q = resolve_kernel(network, x, dtype)
    facts: dict[str, Any] = {"status": Status.success, "notes": ()}
    fields = {
        name: (PAIRS if t.states else PAIRS[2:], arrays[name]) for name, t in plan.items() if name not in REGRESSION
    }
    if not np.isfinite(q).all():
        return fields, facts | {"status": Status.nonfinite}
    try:
        facts["error"], kernel = _fill_blocks(network, kernel, q, x, targets, arrays, rtol, progress)
    except SolveError as error:
        return fields, facts | {"status": Status.inaccurate, "notes": (str(error),)}
    if not all(np.isfinite(a).all() for a in arrays.values()):
        return fields, facts | {"status": Status.nonfinite}
    if isinstance(kernel, RefinedKernel):
        facts["notes"] = ("pairs beyond the reach of the Hermite series were done by quadrature",)
    returned = {name: arrays[name] for name in fields}
    facts["residual"] = residual(network, kernel, q[:, : task.n_samples], x[: task.n_samples], returned)
    if not facts["residual"] <= rtol:
        return fields, facts | {"status": Status.inaccurate}
    return _regress(task, arrays, wants_regression, noise, fields, facts)


def _regress(task, arrays, wanted, noise, fields, facts):
    if not wanted:
        return fields, facts
    try:
        result = regression.condition(
            arrays["log_evidence"], arrays.get("test_prediction"), arrays.get("test_covariance"), task.labels(), noise
        )
    except np.linalg.LinAlgError as error:
        note = f"the training kernel plus noise={noise:g} is not positive definite ({error})"
        return fields, facts | {"status": Status.not_psd, "notes": (*facts["notes"], note)}
    dims = {
        "log_evidence": (),
        "test_prediction": ("state", "test", "output"),
        "test_covariance": ("state", "state_", "test", "test_"),
    }
    return fields | {name: (dims[name], result[name]) for name in wanted}, facts


def resolve_kernel(network: Network, x: np.ndarray, dtype: np.dtype) -> tuple[AbstractKernel, np.ndarray]:
    """The kernel of the activation, fine enough for the largest variance that it meets, and all variances."""
    variances = core.variances_of(network, dtype)
    power = jnp.asarray(np.einsum("iad,iad->ai", x, x) / x.shape[-1], dtype)
    largest = float(np.max(network.bias_variances[0] + network.input_variances[0] * np.asarray(power[0])))
    while True:
        kernel = kernel_for(network.activation, largest, dtype, adaptive=True)
        q = np.asarray(_node_variances(kernel, variances, power, dtype=dtype.name))
        top = float(q.max())
        if (
            not np.isfinite(top)
            or top <= largest
            or kernel_for(network.activation, top, dtype, adaptive=True) is kernel
        ):
            return kernel, q
        largest = top


def _fill_blocks(network, kernel, q, x, targets, arrays, rtol, progress):
    """Go through all blocks of samples; returns the largest error estimate and the kernel that was needed."""
    whole = any(t.states is not None for t in targets.values())
    tangent = any(t.field == "tangent" for t in targets.values())
    tile = tile_size(len(x), network.depth if whole else 1)
    pairs = list(tile_pairs(len(x), tile))
    variances, sharing = core.variances_of(network, x.dtype), core.sharing_of(network)
    block_of = partial(_block, kernel, variances, sharing, _tables(kernel, q, tile), x, tile, whole, tangent)
    careful, worst = None, 0.0
    with bar("prior", len(pairs), progress, seconds=_seconds(len(x), network.depth, whole)) as advance:
        for rows, columns in pairs:
            block = block_of(rows, columns, None)
            if not float(block.error) <= rtol and isinstance(kernel, SeriesKernel):
                careful = careful or RefinedKernel(network.activation, kernel, rtol)
                block = block_of(rows, columns, careful)
            worst = float(np.maximum(worst, block.error))  # unlike max, keeps a NaN
            get = lambda field, b=block, r=rows, c=columns: np.asarray(getattr(b, field))[..., : len(r), : len(c)]  # noqa: E731
            fill(targets, arrays, get, rows, columns)
            advance(1)
    return worst, careful or kernel


def _tables(kernel: AbstractKernel, q: np.ndarray, tile: int) -> list[dict[str, jax.Array]]:
    """The kernel's tables at all states, one per tile of samples, the last one padded by repetition."""
    tables = []
    for start in range(0, q.shape[1], tile):
        part = q[:, start : start + tile]
        tables.append(table(kernel, jnp.asarray(np.pad(part, ((0, 0), (0, tile - part.shape[1])), mode="edge"))))
    return tables


def _block(kernel, variances, sharing, tables, x, tile, whole, tangent, rows, columns, careful) -> core.Block:
    """One block of samples; with a ``careful`` kernel every state in turn, outside of jit."""
    left, right = (_tile(x, r.start, tile) for r in (rows, columns))
    row, column = tables[rows.start // tile], tables[columns.start // tile]
    drive = _overlaps(left, right) if whole else _equal_overlaps(left, right)
    if careful is None:
        if whole:
            return _all_states(kernel, variances, sharing, row, column, drive, tangent=tangent, dtype=x.dtype.name)
        return _equal_states(kernel, variances, row, column, drive, tangent=tangent, dtype=x.dtype.name)
    with jax.disable_jit():
        if whole:
            return core.all_states_block(careful, variances, sharing, row, column, drive, tangent)
        return core.equal_state_block(careful, variances, row, column, drive, tangent)


def _tile(x: np.ndarray, start: int, tile: int) -> np.ndarray:
    """Inputs of one tile, the last one padded by repetition."""
    part = x[start : start + tile]
    return np.pad(part, ((0, tile - len(part)), (0, 0), (0, 0)), mode="edge") if len(part) < tile else part


def _seconds(n_samples: int, depth: int, whole: bool) -> float:
    """A rough guess of the run time, to decide whether a progress bar is worth showing."""
    return 2e-8 * n_samples**2 * depth * (depth if whole else 1) / 2
