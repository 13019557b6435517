r"""The input layer for data with a spectrum: one transfer function per eigenvalue, Eq. (proportional.12).

.. math::
    H_k = (1 + \lambda_k K)^{-1}, \quad
    C_v = \sum_k\lambda_k\big[w_k^2(H_k1)(H_k1)^T + H_k\Sigma H_k^T\big] + \tfrac1B\sum_k(1-H_k)E(1-H_k)^T,

with :math:`\Sigma` the covariance of the initial function's part and :math:`E = \mathrm{diag}(C_v + \sigma^2)`; in
:math:`C_h^0` every term has one :math:`\lambda_k` more and :math:`1-H_k` becomes :math:`H_k`. The first sum runs over the
measure :math:`\sum_k\lambda_kw_k^2\delta_{\lambda_k}`, the others over :math:`\sum_k\lambda_k\delta_{\lambda_k}`; each
measure is given by its own nodes. A power-law spectrum has thousands of eigenvalues, but sums over the smooth functions of
the theory need tens: the Gauss rule of the discrete measure, from Lanczos (Golub & Welsch 1969), with its error measured on
decays :math:`e^{-\lambda\tau}` of all the times that training resolves.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.linalg import eigh_tridiagonal

from widefield.theories.proportional.march.isotropic import Source
from widefield.theories.proportional.march.rows import Clock, against, block_now, put, put_symmetric

N_NODES = (24, 36, 54, 80, 120, 180)
SLOWEST = 30.0  # decays are tested up to this many times the training time, in units where the kernel is one


class Modes(NamedTuple):
    """Nodes and weights of the target's measure and of the covariance's."""

    target: Any  # JAX arrays in the march, NumPy before it
    power: Any
    covariance: Any
    weight: Any


class Structured(NamedTuple):
    """State of the input layer. ``transfer``: (n, mode, n)."""

    mean: Array  # (n, mode of the target)
    transfer: Array
    memory: Array
    initial: Array
    noise: Array  # (n,): E/B
    test: Array
    feature: Array
    losses: Array


def empty_structured(n: int, modes: Modes, noisy: bool, dtype) -> Structured:
    """Before the first step; without noise no matrix per mode is kept."""
    square = jnp.zeros((n, n), dtype)
    transfer = jnp.zeros((n, len(modes.covariance), n) if noisy else (0, 0, 0), dtype)
    mean = jnp.zeros((n, len(modes.target)), dtype)
    return Structured(mean, transfer, square, square, jnp.zeros(n, dtype), square, square, jnp.zeros((n, 5), dtype))


def advance_structured(
    state: Structured, K: Array, modes: Modes, source: Source, now: Clock
) -> tuple[Structured, Array, Array]:
    """One step of online descent; returns the state, the response of h⁰ to r and the row of C_h⁰."""
    m = 1 - modes.target[None] * (K @ state.mean)
    state = state._replace(mean=put(state.mean, now, m), memory=put(state.memory, now, K))
    bias, bias_h = (against((modes.power * power)[None] * m, state.mean, now) for power in (1.0, modes.target))
    if not state.transfer.size:
        zero = jnp.zeros_like(K)
        return _finish(state, (bias, zero, zero), (bias_h, zero, zero), source, now), zero, bias_h
    n_modes, n = state.transfer.shape[1:]
    H = now.unit - modes.covariance[:, None] * (K @ state.transfer.reshape(n, -1)).reshape(n_modes, n)
    state = state._replace(transfer=put(state.transfer, now, H[None]))
    weight, node = modes.weight[:, None], modes.covariance[:, None]
    from_width = H @ state.initial
    from_batch = (now.unit - H) * state.noise[None]
    pull = from_batch.T @ (modes.weight / modes.covariance)
    stacked = jnp.stack([weight * from_width, weight * node * from_width, -weight / node * from_batch], axis=0)
    width, width_h, data = against(stacked.reshape(3, -1), state.transfer.reshape(n, -1), now)[:, None]
    data = (data + pull[None]) * now.past[None]
    C_v = bias + width + data
    E = source.batch * (block_now(C_v, now)[0, 0] + source.label_noise)
    state = state._replace(noise=put(state.noise, now, E[None]))
    data_h = against((weight * H * state.noise[None]).reshape(1, -1), state.transfer.reshape(n, -1), now)
    C_h = bias_h + width_h + data_h
    response = -(modes.weight @ H)[None]
    return _finish(state, (bias, width, data), (C_h,), source, now), response, C_h


def _finish(state: Structured, parts, features, source: Source, now: Clock) -> Structured:
    bias, width, data = (block_now(part, now)[0, 0] for part in parts)
    test = bias + width + data + source.label_noise
    losses = put(state.losses, now, jnp.stack([test, test, bias, width, data])[None])
    C_v = sum(parts) + source.label_noise * now.past[None]
    return state._replace(
        test=put_symmetric(state.test, now, C_v),
        feature=put_symmetric(state.feature, now, sum(features)),
        losses=losses,
    )


def compress(eigenvalues: np.ndarray, powers: np.ndarray, longest: float, rtol: float) -> tuple[Modes, float]:
    r"""Rules for :math:`\sum_kp_k\delta_{\lambda_k}` and :math:`\sum_k\lambda_k\delta_{\lambda_k}`, and their error.

    ``longest`` is the total training time, the sum of all rates; ``rtol`` what the error should be below.
    """
    target, power, first = gauss(eigenvalues, powers, longest, rtol)
    covariance, weight, second = gauss(eigenvalues, eigenvalues, longest, rtol)
    return Modes(target, power, covariance, weight), max(first, second)


def error_of(modes: Modes, eigenvalues: np.ndarray, powers: np.ndarray, longest: float) -> float:
    """The error of both rules on decays up to ``longest``, which may be another time than they were made for."""
    rules = ((powers, modes.target, modes.power), (eigenvalues, modes.covariance, modes.weight))
    return max(decay_error((eigenvalues, full), (nodes, weights), longest) for full, nodes, weights in rules)


def gauss(nodes: np.ndarray, weights: np.ndarray, longest: float, rtol: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The shortest rule that meets ``rtol`` on decays up to ``longest``; the measure itself where it is short enough.

    Each eigenvalue counts once, without those of no weight.
    """
    nodes, where = np.unique(nodes, return_inverse=True)
    weights = np.bincount(where, weights)
    nodes, weights = nodes[weights > 0], weights[weights > 0]
    for n in (n for n in N_NODES if n < len(nodes)):
        few = lanczos_rule(nodes, weights, n)
        error = decay_error((nodes, weights), few, longest)
        if error <= rtol:
            return *few, error
    return nodes, weights, 0.0


def decay_error(full: tuple, few: tuple, longest: float) -> float:
    r"""Largest error of :math:`\sum w\,\lambda^je^{-\lambda\tau}`, j = 0, 1, relative to its value without decay."""
    times = np.concatenate([[0.0], np.geomspace(1e-2, 1.0, 30) * SLOWEST * longest])
    worst = 0.0
    for j in (0, 1):
        exact, short = ((w * x**j) @ np.exp(-np.outer(x, times)) for x, w in (full, few))
        worst = max(worst, float(np.max(np.abs(short - exact)) / exact[0]))
    return worst


def lanczos_rule(nodes: np.ndarray, weights: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n-point Gauss rule of a discrete measure; every vector is orthogonalized twice against all before it."""
    basis = np.zeros((n, len(nodes)))
    diagonal, beside = np.zeros(n), np.zeros(n)
    vector = np.sqrt(weights)
    total = vector @ vector
    for j in range(n):
        size = np.sqrt(vector @ vector)
        beside[j] = size
        basis[j] = vector / size
        vector = nodes * basis[j]
        diagonal[j] = basis[j] @ vector
        for _ in range(2):
            vector = vector - basis[: j + 1].T @ (basis[: j + 1] @ vector)
    values, vectors = eigh_tridiagonal(diagonal, beside[1:])
    return values, total * vectors[0] ** 2
