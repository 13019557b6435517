"""The static limit: outputs that follow the tangent kernel of the random network, whose kernels do not move."""

from collections.abc import Callable
from contextlib import nullcontext

import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import SolveError
from widefield.gaussian import expectation
from widefield.theories.dynamics.curves import Estimate, TrainingCurves, divergence, size
from widefield.theories.dynamics.march.batch import DIVERGED
from widefield.theories.dynamics.march.kernels import tangent_alignment
from widefield.theories.dynamics.march.responses import weight_mask
from widefield.theories.dynamics.march.step import label_cosine
from widefield.theories.dynamics.memory import KERNELS
from widefield.theories.dynamics.problem import Problem, total_loss
from widefield.theories.dynamics.request import SHOWN, Request, compiling
from widefield.theories.prior.core import Target, fill_matrices

PRIOR_RTOL = 1e-10  # of averages in the random network


def covers(problem: Problem, request: Request) -> bool:
    """The lazy limit of descent."""
    return request.method == "lazy" and not problem.training.flow


def solve(problem: Problem, request: Request) -> TrainingCurves:
    """Outputs by the recursion (dynamics.25); descent does not amplify what an error of the tangent kernel adds at every step."""
    read, n, n_rows = list(problem.readouts), problem.task.n_samples, len(problem.rates)
    tangent, accuracy = _tangent_kernel(problem, request)
    with request.bar("descent", n_rows, 1e-3 * n_rows) as advance:
        prediction, loss = _descent(problem, tangent, advance)
    bad = ~(loss <= DIVERGED * max(loss[0], 1.0))
    stop = int(np.argmax(bad)) if bad.any() else None
    outputs = prediction[:stop, read]
    path = np.linalg.norm(
        np.abs(np.diff(outputs, axis=0)).sum(axis=0)
    )  # a share of the kernel shifts outputs by that of it
    error = accuracy * float(path) / size(outputs, problem.least_output)
    if stop is not None:
        prediction[stop:], loss[stop:] = np.inf, np.inf
    ntk = _over_outputs(problem, tangent[read][:, :, :n])
    ntk = np.broadcast_to(ntk, (n_rows, *ntk.shape))
    kernels = {"ntk": Estimate(ntk)} | _static_kernels(problem, request)
    if "ntk_alignment" in request.fields:
        kernels["ntk_alignment"] = Estimate(tangent_alignment(problem.labels, ntk))
    return TrainingCurves(
        Estimate(prediction), Estimate(loss), kernels, error=error, rtol=request.limit(sampled=False),
        diagnostics={"solver": "static kernel"}, **divergence(stop),
    )  # fmt: skip


@np.errstate(over="ignore", invalid="ignore")  # a divergence is seen in its loss
def _descent(problem: Problem, tangent: np.ndarray, advance: Callable[[int], None]) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (step, state, sample, output) of all inputs and the loss, from the kernel (state, readout, input, sample)."""
    shape, n, read, tau = problem.shape, problem.task.n_samples, list(problem.readouts), problem.training.momentum_time
    labels = jnp.asarray(problem.labels)
    f = np.zeros((len(tangent), tangent.shape[2], shape.n_outputs))
    motion = np.zeros_like(f)
    outputs, values = [], []
    for rate in problem.rates:
        outputs.append(f)
        train = jnp.asarray(f[read][:, :n])
        values.append(float(total_loss(problem.loss, train, labels)))
        delta = -np.asarray(shape.gradient(train, labels))
        kick = np.einsum("cdpq,dqo->cpo", tangent, delta)
        inertia = 1.0 if tau is None else rate / tau
        motion = (1 - inertia) * motion + inertia * kick
        f = f + rate * motion
        advance(1)
    return np.asarray(outputs), np.asarray(values)


def _tangent_kernel(problem: Problem, request: Request) -> tuple[np.ndarray, float]:
    """The prior's NTK (state, readout, input, sample) of training and test inputs with the training ones, and its relative error.

    Rows of states that are not read out are zero unless all are asked for: they need all pairs of states.
    """
    depth, read = problem.network.depth, list(problem.readouts)
    every_state = "state_prediction" in request.fields or len(read) > 1
    x = problem.task.sequences(depth, test=True)
    samples = range(len(x)), range(problem.task.n_samples)
    kernel, error = np.zeros((depth, len(read), *map(len, samples))), 0.0
    if every_state or read != [depth - 1]:
        kernel, error = _random(problem, request, x, Target("tangent", range(depth), read, *samples))
    if read == [depth - 1]:
        kernel[-1, 0], last = _random(problem, request, x, Target("tangent", None, None, *samples))
        error = max(error, last)
    return kernel, error


def _random(problem: Problem, request: Request, x: np.ndarray, target: Target) -> tuple[np.ndarray, float]:
    """A matrix of the random network and its relative error."""
    long = 1e-8 * len(x) ** 2 * problem.network.depth**2 > SHOWN  # then it has a bar of its own
    seconds = compiling(problem.shape.activation, target.field, len(x), problem.network.depth)
    with nullcontext(int) if long else request.bar(f"{target.field} kernel", 1, seconds) as advance:
        matrices = fill_matrices(
            problem.network, x, {target.field: target}, PRIOR_RTOL, request.progress if long else False
        )
        advance(1)
    if matrices.failure is not None:
        raise SolveError(
            f"the {target.field} kernel of the random network is {matrices.failure}: {matrices.failure.value}"
        )
    return matrices.arrays[target.field], matrices.error or 0.0


def _over_outputs(problem: Problem, kernel: np.ndarray) -> np.ndarray:
    """(channel, channel_, …) from one kernel (readout, readout_, …) for all outputs."""
    spread = np.einsum("cd...,oz->codz...", kernel, np.eye(problem.shape.n_outputs))
    return spread.reshape(problem.n_channels, problem.n_channels, *kernel.shape[2:])


def _static_kernels(problem: Problem, request: Request) -> dict[str, Estimate]:
    """Φ and G of the random network at all pairs of the steps asked for, and the cosine of Φ at every step."""
    if not {*KERNELS, "alignment"} & set(request.fields):
        return {}
    depth, times = problem.network.depth, (len(request.at),) * 2
    x = problem.task.sequences(depth)
    everywhere = (range(depth), range(depth), range(len(x)), range(len(x)))
    feature, hidden = (_random(problem, request, x, Target(field, *everywhere))[0] for field in ("feature", "hidden"))

    def at_all_steps(kernel: np.ndarray) -> Estimate:
        """(…, state, state_, at, at_, sample, sample_)."""
        if problem.by_layer:
            kernel = np.stack([kernel[..., k, [k], :, :] for k in range(depth)], axis=-4)
        spread = kernel[..., None, None, :, :]
        return Estimate(np.broadcast_to(spread, (*kernel.shape[:-2], *times, *kernel.shape[-2:])))

    kernels = {}
    if "feature_kernel" in request.fields:
        kernels["feature_kernel"] = at_all_steps(feature)
    if "gradient_kernel" in request.fields:
        kernels["gradient_kernel"] = at_all_steps(_gradient_kernel(problem, hidden))
    if "alignment" in request.fields:
        cosines = label_cosine(jnp.asarray(problem.labels), jnp.asarray([feature[k, k] for k in range(depth)]))
        kernels["alignment"] = Estimate(np.broadcast_to(cosines, (len(problem.rates), depth)))
    return kernels


def _gradient_kernel(problem: Problem, hidden: np.ndarray) -> np.ndarray:
    """G (channel, channel_, state, state_, sample, sample_) of the random network, Eq. (dynamics.26), from the covariance of h."""
    depth, n, read = problem.network.depth, hidden.shape[-1], problem.readouts
    pairs = [(k, l) for k in range(depth) for l in range(depth) if k == l or not problem.by_layer]
    G, slopes = np.zeros((len(read), len(read), depth, depth, n, n)), {}
    for k, l in pairs:
        q, p = np.diag(hidden[k, k])[:, None], np.diag(hidden[l, l])[None, :]
        bound = np.sqrt(q * p)  # a covariance is that of a recursion and may be above it by a rounding
        pair = np.clip(hidden[k, l], -bound, bound)
        slopes[k, l] = expectation(problem.network.activation, q, p, pair, (1, 1)).value
    for i, c in enumerate(read):
        for j, d in enumerate(read):
            for k, l in sorted(pairs, reverse=True):
                pulled = problem.network.readout_variance if (k, l) == (c, d) else 0.0
                if k < c and l < d:
                    pulled = pulled + weight_mask(problem, k + 1, l + 1) * G[i, j, k + 1, l + 1]
                G[i, j, k, l] = slopes[k, l] * pulled
    return _over_outputs(problem, G)
