r"""The input layer for data with a spectrum: one transfer function per eigenvalue, Eq. (proportional.12).

.. math::
    H_k = (1 + \lambda_k K)^{-1}, \quad
    C_v = \sum_k\lambda_k\big[w_k^2(H_k1)(H_k1)^T + H_k\Sigma H_k^T\big] + \tfrac1B\sum_k(1-H_k)E(1-H_k)^T,

with :math:`\Sigma` the covariance of the initial function's part and :math:`E = \mathrm{diag}(C_v + \sigma^2)`; in
:math:`C_h^0` every term has one :math:`\lambda_k` more and :math:`1-H_k` becomes :math:`H_k`. The first sum runs over the
measure :math:`\sum_k\lambda_kw_k^2\delta_{\lambda_k}`, the others over :math:`\sum_k\lambda_k\delta_{\lambda_k}`; each
measure may be given by its own nodes, so that long spectra need few (`gauss_rules`).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from widefield.theories.proportional.march.isotropic import Source
from widefield.theories.proportional.march.rows import Clock, against, block_now, put, put_symmetric


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
