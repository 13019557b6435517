r"""The equations of the hidden layers, one row of training time after the other.

Every layer is one linear system of two variables, driven by two independent Gaussian processes,

.. math::  h = u + A\,g, \qquad g = r + B\,h,

with :math:`A` lower triangular and :math:`B` strictly so. `Pair` holds its solution :math:`h = P\,(u, r)`,
:math:`g = Q\,(u, r)`: the responses :math:`R_{hr}`, :math:`R_{gu}` are blocks of it, and correlations are
:math:`P\,\mathrm{diag}(C_u, C_r)P^T` (Eqs. (proportional.2) to (proportional.4)). Backward variables are the
scaled ones of `rows`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from widefield.theories.proportional.march import rows
from widefield.theories.proportional.march.rows import Clock, Matrix


class Pair(NamedTuple):
    """:math:`P` and :math:`Q` as (n, 2n): the row; the source :math:`u` or :math:`r` and its step."""

    forward: Array
    backward: Array


def correlate(row: Array, solution: Matrix, C_u: Matrix, C_r: Matrix | None, now: Clock, scales=(1.0, 1.0)) -> Array:
    r"""The row of :math:`P\,\mathrm{diag}(s_uC_u, s_rC_r)P^T` with ``scales`` :math:`s_u, s_r`."""
    return rows.against(weighted(row, C_u, C_r, now, scales), solution, now)


def weighted(row: Array, C_u: Matrix, C_r: Matrix | None, now: Clock, scales=(1.0, 1.0)) -> Array:
    r"""The row of :math:`P\,\mathrm{diag}(s_uC_u, s_rC_r)`.

    Without ``C_r`` that source is the readout's: unit variance at step 0, none later.
    """
    u, r = rows.halves(row)
    readout = jnp.where(jnp.arange(r.shape[1])[None] < len(r), r, 0.0)
    return rows.beside(
        scales[0] * rows.times(u, C_u, now), scales[1] * (readout if C_r is None else rows.times(r, C_r, now))
    )


class Hidden(NamedTuple):
    """One layer: its responses and the correlations :math:`C_h`, :math:`C_d`."""

    pair: Pair
    feature: Array
    gradient: Array


def empty_hidden(n: int, dtype) -> Hidden:
    """A layer before the first step."""
    pair, square = jnp.zeros((n, 2 * n), dtype), jnp.zeros((n, n), dtype)
    return Hidden(Pair(pair, pair), square, square)


def backward(
    layers: tuple[Hidden, ...], C_first: Matrix, B: Array, weights: Array, richness: Array, widths: Array, now: Clock
) -> tuple[tuple[Hidden, ...], Array, Array]:
    r"""Rows :math:`Q_t = (0, e_t) + B_t P`, the last layer first; ``C_first`` is :math:`C_h^0`, ``weights`` the earlier rates.

    Returns the layers and, of the first one, :math:`R_{gu} + \eta C_g^<` and the row of :math:`C_d`.
    """
    done: list[Hidden] = []
    row = B
    for l in reversed(range(len(layers))):
        pair, feature, gradient = layers[l]
        ratio = widths[l + 1] / widths[l] if done else 1.0
        q = rows.times(ratio * B, pair.forward, now) + rows.beside(jnp.zeros_like(now.unit), now.unit)
        pair = pair._replace(backward=rows.put(pair.backward, now, q))
        C_u = layers[l - 1].feature if l else C_first
        row = correlate(q, pair.backward, C_u, done[0].gradient if done else None, now, (1.0, ratio))
        done.insert(0, Hidden(pair, feature, rows.put_symmetric(gradient, now, row)))
        B = rows.halves(q)[0] + weights[None] * rows.congruent_row(done[0].gradient, row, 1.0, richness, now)
    return tuple(done), B, row


def forward(
    layers: tuple[Hidden, ...], C_first: Matrix, A: Array, weights: Array, richness: Array, widths: Array, now: Clock
) -> tuple[Hidden, ...]:
    """Rows :math:`P_t = (e_t, 0) + A_t Q`, the first layer first."""
    done: list[Hidden] = []
    for l, (pair, feature, gradient) in enumerate(layers):
        p = rows.times(A, pair.backward, now) + rows.beside(now.unit, jnp.zeros_like(now.unit))
        pair = pair._replace(forward=rows.put(pair.forward, now, p))
        C_u = done[-1].feature if done else C_first
        last = l == len(layers) - 1
        C_r, ratio = (None, 1.0) if last else (layers[l + 1].gradient, widths[l + 1] / widths[l])
        row = correlate(p, pair.forward, C_u, C_r, now, (1.0, ratio))
        done.append(Hidden(pair, rows.put_symmetric(feature, now, row), gradient))
        A = rows.halves(p)[1] + richness * rows.times_constant(weights[None] * row, 1.0, richness, now)
    return tuple(done)
