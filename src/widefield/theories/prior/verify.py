"""The recursion evaluated once more, by quadrature, on a few pairs of samples."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np

from widefield.gaussian import AbstractKernel, RefinedKernel, quadrature
from widefield.network import Network
from widefield.theories.prior import core

_pairs_at_all_states = jax.jit(core.equal_state_pairs)
_second_moment = jax.jit(lambda kernel, q: kernel.second_moment(q))
table = jax.jit(lambda kernel, q: kernel.table(q))


def residual(
    network: Network, kernel: AbstractKernel, q: np.ndarray, x: np.ndarray, output: np.ndarray | None
) -> float:
    """Largest difference from quadrature of the averages used, relative to √(<φ²><φ'²>).

    The pairs: the most and the least correlated at the input among some, and the first sample with itself. The states:
    the first, the last, and the one of largest variance. With ``output`` its entries are compared too.
    """
    variances = core.variances_of(network, x.dtype)
    i, j = _choose(x)
    drive = np.einsum("pad,pad->ap", x[i], x[j]) / x.shape[-1]
    rows, columns = (table(kernel, jnp.asarray(q[:, k])) for k in (i, j))
    refined = isinstance(kernel, RefinedKernel)
    march = core.equal_state_pairs if refined else _pairs_at_all_states
    with jax.disable_jit() if refined else contextlib.nullcontext():
        C, value = (np.asarray(v) for v in march(kernel, variances, rows, columns, jnp.asarray(drive, x.dtype)))
    states = sorted({0, network.depth - 1, int(np.argmax(q.max(axis=1)))})
    exact, scale = _by_quadrature(kernel, q[np.ix_(states, i)], q[np.ix_(states, j)], C[states])
    worst = _relative(value[states] - exact, scale)
    if output is not None and network.readout_variance:
        used = (output[i, j] - network.readout_bias_variance) / network.readout_variance
        worst = max(worst, _relative(used - exact[-1], scale[-1]))
    return worst


def _relative(difference: np.ndarray, scale: np.ndarray) -> float:
    return float(np.max(np.abs(difference) / np.where(scale > 0, scale, 1)))


def _choose(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the pairs to check."""
    some = np.unique(np.linspace(0, len(x) - 1, 32).astype(int))
    norm = np.maximum(np.linalg.norm(x[some, 0], axis=1), 1e-300)
    cosine = x[some, 0] @ x[some, 0].T / norm[:, None] / norm
    np.fill_diagonal(cosine, 0.0)
    places = [np.unravel_index(k, cosine.shape) for k in (np.argmax(cosine), np.argmin(cosine))]
    return np.asarray([0, *(some[i] for i, _ in places)]), np.asarray([0, *(some[j] for _, j in places)])


def _by_quadrature(kernel: AbstractKernel, q, p, c) -> tuple[np.ndarray, np.ndarray]:
    limit = np.sqrt(q) * np.sqrt(p)
    flat = [np.ravel(v).astype(float) for v in (q, p, np.clip(c, -limit, limit))]
    exact, _ = quadrature.average(kernel.activation, (0, 0), *flat)
    norms = [np.asarray(_second_moment(kernel, jnp.asarray(v))) for v in (q, p)]
    return exact.reshape(c.shape), np.sqrt(norms[0] * norms[1])
