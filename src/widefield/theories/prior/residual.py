"""The returned fields put back into the recursion, with averages by quadrature, on a few entries."""

import contextlib
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widefield.gaussian import AbstractKernel, RefinedKernel, quadrature
from widefield.question.network import Network
from widefield.theories.prior import core
from widefield.theories.prior.core.matrices import table

N_ENTRIES = 4

_pairs_at_all_states = jax.jit(core.equal_state_pairs)


class Entries(NamedTuple):
    """What was made of a ``state`` with itself at the pairs of samples that `choose_pairs` names; None where nothing was."""

    state: int
    readout: np.ndarray | None
    tangent: np.ndarray | None


def residual(
    network: Network,
    kernel: AbstractKernel,
    q: np.ndarray,
    x: np.ndarray,
    fields: dict[str, np.ndarray],
    entries: tuple[Entries, ...] = (),
) -> float:
    """Largest violation of Eqs. (prior.2), (prior.3), (prior.4), (prior.5), each relative to the scale of its equation.

    ``entries`` are of kernels that are not among the ``fields``.
    """
    pairs = choose_pairs(x)
    tangent = fields["ntk"] if "ntk" in fields and fields["ntk"].ndim == 2 else None
    last = Entries(network.depth - 1, *(None if v is None else v[pairs] for v in (fields.get("output"), tangent)))
    violations = [_single_states(network, kernel, q, x, pairs, (last, *entries))]
    if "hidden" in fields:
        violations.append(_all_states(network, kernel, q, x, fields))
    return float(np.max(violations))


def _single_states(network, kernel, q, x, pairs, entries) -> float:
    """Readouts and tangent kernels of three pairs: the most and least alike at the input, and a sample with itself."""
    i, j = pairs
    overlap = np.einsum("pad,pad->ap", x[i], x[j]) / x.shape[-1]
    rows, columns = (table(kernel, jnp.asarray(q[:, k])) for k in (i, j))
    refined = isinstance(kernel, RefinedKernel)
    march = core.equal_state_pairs if refined else _pairs_at_all_states
    with jax.disable_jit() if refined else contextlib.nullcontext():
        marched = march(kernel, core.variances_of(network, x.dtype), rows, columns, jnp.asarray(overlap, x.dtype))
    C, theta, value = (np.asarray(v, float) for v in marched)
    states = sorted({*(e.state for e in entries), int(np.argmax(q.max(axis=1)))})
    exact, scale = _average(kernel, 0, q[np.ix_(states, i)], q[np.ix_(states, j)], C[states])
    worst = [_violation(value[states] - exact, scale)]
    v, bias = network.readout_variance, network.readout_bias_variance
    for s, readout, tangent in entries if v else ():
        at = states.index(s)
        if readout is not None:
            worst.append(_violation(readout - v * exact[:, at] - bias, v * scale[at] + bias))
        if tangent is not None:
            slope, size = _average(kernel, 1, q[s, i], q[s, j], C[s])
            off = tangent - (v * value[s] + bias + v * slope * theta[s])
            worst.append(_violation(off, v * scale[at] + bias + v * size * np.abs(theta[s])))
    return float(np.max(worst))


def _all_states(network, kernel, q, x, fields) -> float:
    """Entries of all fields at random states and samples, against the right-hand sides made from other entries."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(network.depth, size=(2, N_ENTRIES))
    a[-1], b[-1] = network.depth - 1, max(0, network.depth - 2)
    i, j = rng.integers(len(x), size=(2, N_ENTRIES))
    all_hidden = fields["hidden"].astype(float)
    hidden, past = all_hidden[a, b, i, j], all_hidden[a - 1, b - 1, i, j]
    weight, source = _right_hand_side(network, x, a, b, i, j)
    before = np.where((a > 0) & (b > 0), weight, 0)
    average, _ = _average(kernel, 0, q[a - 1, i], q[b - 1, j], past)
    size = np.sqrt(q[a, i]) * np.sqrt(q[b, j])
    worst = [_violation(hidden - source - before * average, size)]
    value, scale = _average(kernel, 0, q[a, i], q[b, j], hidden)
    if "feature" in fields:
        worst.append(_violation(fields["feature"][a, b, i, j] - value, scale))
    v, bias = network.readout_variance, network.readout_bias_variance
    if v and "readout" in fields:
        readout = fields["readout"]
        worst.append(_violation(readout[a, b, i, j] - v * value - bias, v * scale + bias))
        if "ntk" in fields and fields["ntk"].ndim == 4:
            slope, steep = _average(kernel, 1, q[a, i], q[b, j], hidden)
            earlier = (fields["ntk"] - readout)[a - 1, b - 1, i, j] / v
            expected = readout[a, b, i, j] + v * slope * (hidden + before * earlier)
            off = fields["ntk"][a, b, i, j] - expected
            worst.append(_violation(off, np.abs(expected[0]) + v * steep * size))
    return float(np.max(worst))


def _right_hand_side(network, x, a, b, i, j) -> tuple[np.ndarray, np.ndarray]:
    """The masked weight variance, and the bias and input part of the covariance, at some entries."""
    same = a == b
    masks = {name: np.ones_like(same) if tied else same for name, tied in core.sharing_of(network)._asdict().items()}
    weight = masks["weights"] * np.concatenate([[0.0], network.weight_variances])[a]
    n_driven = x.shape[1]
    driven = (a < n_driven) & (b < n_driven)
    overlap = np.einsum("pd,pd->p", x[i, np.minimum(a, n_driven - 1)], x[j, np.minimum(b, n_driven - 1)]) / x.shape[-1]
    inputs = np.where(driven, masks["inputs"] * network.input_variances[a] * overlap, 0)
    return weight, masks["biases"] * network.bias_variances[a] + inputs


def choose_pairs(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the pairs to check."""
    some = np.unique(np.linspace(0, len(x) - 1, 32).astype(int))
    if len(some) == 1:
        return some, some
    norm = np.maximum(np.linalg.norm(x[some, 0], axis=1), 1e-300)
    cosine = x[some, 0] @ x[some, 0].T / norm[:, None] / norm
    diagonal = np.eye(len(some), dtype=bool)
    ends = np.argmax(np.where(diagonal, -np.inf, cosine)), np.argmin(np.where(diagonal, np.inf, cosine))
    rows, columns = np.unravel_index(np.asarray(ends), cosine.shape)
    return np.asarray([0, *some[rows]]), np.asarray([0, *some[columns]])


def _average(kernel: AbstractKernel, order: int, q, p, c) -> tuple[np.ndarray, np.ndarray]:
    """<φ^(k)φ^(k)> by quadrature, stacked for the covariance and some roundings to either side, and its scale.

    Where φ^(k) jumps, the average changes like √(1 − ρ) near duplicates: a rounding of C is worth 1e-8 there.
    """
    jumps = quadrature.factor(kernel.activation, order + 1).deltas
    shift = 16 * np.finfo(q.dtype).eps * np.sqrt(q * p)
    average = partial(quadrature.average, kernel.activation, (order, order))
    norms = [average(*[np.ravel(np.asarray(v, float))] * 3)[0] for v in (q, p)]
    around = [
        average(*(np.ravel(np.asarray(v, float)) for v in (q, p, c + step * shift)))[0].reshape(c.shape)
        for step in ((0, -1, 1) if jumps else (0,))
    ]
    return np.stack(around), np.sqrt(norms[0] * norms[1]).reshape(c.shape)


def _violation(off: np.ndarray, scale: np.ndarray) -> float:
    """Largest distance of zero from the interval that the entries span along the first axis, relative to ``scale``."""
    distance = np.maximum(0, np.maximum(off.min(axis=0), -off.max(axis=0)))
    return float(np.max(distance / np.where(scale > 0, scale, 1)))
