r"""The equations of the input layer: the error :math:`v`, the residuals :math:`\Delta` and the field :math:`h^0`.

.. math::
    v = w_* 1 - r - K h^0, \qquad h^0 = R_\Delta v + u, \qquad R_\Delta = 1 + \tfrac1\alpha R_{vu}R_\Delta,

:math:`\mathrm{cov}\,u = C_\Delta/\alpha` with data that are used again and a fresh :math:`(C_v + \sigma^2)/\alpha_B` at
every step without (then :math:`R_\Delta = 1`). Eqs. (proportional.5) to (proportional.9), after Eqs. 13, 15, 65, 87 of
Bordelon & Pehlevan (2025). :math:`r` is the part of the network's function that its initial weights make,
:math:`K` the memory kernel.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from widefield.theories.proportional.march import rows
from widefield.theories.proportional.march.layers import correlate, weighted
from widefield.theories.proportional.march.rows import Clock, against, beside, halves, put, put_symmetric, times


class Source(NamedTuple):
    """What drives the input layer: label noise, target overlap, 1/α, 1/α_B."""

    label_noise: Array
    overlap: Array
    data: Array
    batch: Array


class Inputs(NamedTuple):
    """State of the input layer. ``error``, ``field``: (n, 2n) in the sources r, u; the means along the targets apart."""

    error: Array
    field: Array
    mean_error: Array
    mean_field: Array
    memory: Array  # K
    propagator: Array  # R_Δ
    initial: Array  # covariance of r
    test: Array  # C_v + σ²
    train: Array  # C_Δ
    feature: Array  # C_h⁰
    losses: Array  # (n, 5)


def empty_inputs(n: int, n_channels: int, reused: bool, dtype) -> Inputs:
    """The input layer before the first step; without reused data some matrices are not needed and stay empty."""
    square = lambda keep=True: jnp.zeros((n, n) if keep else (0, 0), dtype)  # noqa: E731
    pair = lambda keep=True: jnp.zeros((n, 2 * n) if keep else (0, 0), dtype)  # noqa: E731
    mean = jnp.zeros((n, n_channels), dtype)
    train = square() if reused else jnp.zeros((n, n_channels), dtype)
    losses = jnp.zeros((n, 5), dtype)
    return Inputs(
        pair(), pair(reused), mean, mean, square(), square(reused), square(), square(), train, square(), losses
    )


def advance_reused(state: Inputs, K: Array, source: Source, now: Clock) -> tuple[Inputs, Array, Array]:
    """One step of full-batch descent; returns the state, the response of h⁰ to r and the row of C_h⁰."""
    nothing = jnp.zeros_like(now.unit)
    v = -times(K, state.field, now) - beside(now.unit, nothing)
    v_u = halves(v)[1]
    mean_v = jnp.eye(now.n_channels, dtype=K.dtype) - K @ state.mean_field
    state = state._replace(
        error=put(state.error, now, v), mean_error=put(state.mean_error, now, mean_v), memory=put(state.memory, now, K)
    )
    shares = (1.0, source.data)
    pulled = weighted(v, state.initial, state.train, now, shares)
    C_v = against(pulled, state.error, now) + mean_v @ source.overlap @ state.mean_error.T
    R = now.unit + source.data * times(v_u, state.propagator, now)
    state = state._replace(
        test=put_symmetric(state.test, now, C_v + _noise(source, now)), propagator=put(state.propagator, now, R)
    )
    C_D = against(times(R, state.test, now), state.propagator, now)
    state = state._replace(train=put_symmetric(state.train, now, C_D))
    h = times(R, state.error, now) + beside(nothing, now.unit)
    mean_h = R @ state.mean_error
    state = state._replace(field=put(state.field, now, h), mean_field=put(state.mean_field, now, mean_h))
    C_h = correlate(h, state.field, state.initial, state.train, now, shares)
    C_h = C_h + mean_h @ source.overlap @ state.mean_field.T
    return _finish(state, C_h, C_v, C_D, mean_v, *halves(pulled * v), source, now), halves(h)[0], C_h


def advance_fresh(state: Inputs, K: Array, source: Source, now: Clock) -> tuple[Inputs, Array, Array]:
    """One step of online descent on fresh batches, or on the population (1/α_B = 0)."""
    v = -times(K, state.error, now) - beside(now.unit, K)
    v_r, v_u = halves(v)
    mean_v = jnp.eye(now.n_channels, dtype=K.dtype) - K @ state.mean_error
    state = state._replace(
        error=put(state.error, now, v), mean_error=put(state.mean_error, now, mean_v), memory=put(state.memory, now, K)
    )
    bias = mean_v @ source.overlap @ state.mean_error.T
    from_width, noise = times(v_r, state.initial, now), blocks(v_u, state.train)
    C_v = bias + against(beside(from_width, noise), state.error, now)
    C_E = rows.block_now(C_v, now) + source.label_noise * jnp.eye(now.n_channels, dtype=K.dtype)
    state = state._replace(
        test=put_symmetric(state.test, now, C_v + _noise(source, now)),
        train=put(state.train, now, source.batch * 0.5 * (C_E + C_E.T)),
    )
    noise_h = blocks(v_u + now.unit, state.train)
    C_h = bias + against(beside(from_width, noise_h), state.error, now) + noise_h
    C_h = C_h * now.past[None]
    C_D = C_v + _noise(source, now)
    return _finish(state, C_h, C_v, C_D, mean_v, from_width * v_r, noise * v_u, source, now), v_r, C_h


def blocks(row: Array, diagonal: Array) -> Array:
    """A row times the matrix whose (channel, channel) blocks on the diagonal of time are stacked in ``diagonal``."""
    c = len(row)
    steps = diagonal.reshape(-1, c, c)
    return jnp.einsum("ctd,tde->cte", row.reshape(c, -1, c), steps).reshape(row.shape)


def _noise(source: Source, now: Clock) -> Array:
    """The row of σ² 1 1ᵀ, equal channels only, up to now."""
    c, n = now.unit.shape
    tiled = jnp.tile(jnp.eye(c, dtype=now.unit.dtype), (1, n // c))
    return source.label_noise * tiled * now.past[None]


def _finish(state: Inputs, C_h, C_v, C_D, mean_v, width, data, source: Source, now: Clock) -> Inputs:
    losses = (
        jnp.diagonal(rows.block_now(C_v, now)) + source.label_noise,
        jnp.diagonal(rows.block_now(C_D, now)),
        jnp.diagonal(mean_v @ source.overlap @ mean_v.T),
        width.sum(axis=1),
        data.sum(axis=1),
    )
    feature = put_symmetric(state.feature, now, C_h)
    return state._replace(feature=feature, losses=put(state.losses, now, jnp.stack(losses, axis=1)))
