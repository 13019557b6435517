r"""The equations of the layers of a residual network, with a cost that grows as the depth.

Neighboring layers are statistically dependent, but one direction at a time suffices (invariant embedding): with
:math:`n^l` independent of :math:`m^l`,

.. math::
    h^l = n^l + \Gamma^l g^l, \qquad g^l = m^l + \Omega^l h^l,

and what joins two layers are again pairs of linear equations: :math:`h^l = n^l + \Gamma^l g^l` with
:math:`g^l = s + bB^lh^l` carries :math:`\Gamma, n` forward, :math:`g^{l+1} = m^{l+1} + \Omega^{l+1}h^{l+1}` with
:math:`h^{l+1} = s' + bA^{l+1}g^{l+1}` carries :math:`\Omega, m` backward: Eqs. (proportional.13) to
(proportional.15), Eq. 74 of Bordelon & Pehlevan (2025) without its responses between all pairs of layers.

Notation: :math:`b` is the branch; :math:`A^{l+1} = R_{hr}^l + \eta\gamma_0 b\,C_h^{l<}`,
:math:`B^l = R_{gu}^{l+1} + \eta\gamma_0 b\,C_g^{l+1<}`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from widefield.theories.proportional.march import rows
from widefield.theories.proportional.march.layers import Pair, correlate
from widefield.theories.proportional.march.rows import Clock, halves


class Stack(NamedTuple):
    """All layers, first axis. ``ahead`` and ``back`` join a layer to the next one."""

    pair: Pair
    ahead: Pair
    back: Pair
    feature: Array  # C_h
    gradient: Array  # C_d
    driven: Array  # N, the covariance of n
    returned: Array  # M, the covariance of m


def empty_stack(depth: int, n: int, dtype) -> Stack:
    """Layers before the first step."""
    zeros = lambda count, columns: jnp.zeros((count, n, columns), dtype)  # noqa: E731
    own, link = (Pair(zeros(count, 2 * n), zeros(count, 2 * n)) for count in (depth, depth - 1))
    return Stack(own, link, link, *(zeros(depth, n),) * 4)


def backward(stack: Stack, B_last: Array, weights: Array, richness: Array, branch: Array, now: Clock):
    r"""Rows of all :math:`g`, the last layer first.

    ``weights`` are the rates at earlier steps. Returns the stack and, of the first layer, :math:`R_{gu} + \eta C_g^<` and
    the row of :math:`C_d`.
    """
    depth = len(stack.feature)
    stack = stack._replace(returned=stack.returned.at[depth - 1].set(jnp.diag(now.first)))

    def one_layer(stack: Stack, Omega: Array, layer) -> tuple[Stack, Array, Array]:
        pair, q = _respond_backward(stack.pair, Omega, layer, now)
        row = correlate(q, pair.backward[layer], stack.driven[layer], stack.returned[layer], now)
        stack = stack._replace(pair=pair, gradient=_symmetric(stack.gradient, layer, row, now))
        return (
            stack,
            halves(q)[0] + weights[None] * rows.congruent_row(stack.gradient[layer], row, 1.0, richness, now),
            row,
        )

    def one_link(index: Array, carry):
        stack, Omega, kick, row = carry
        layer = depth - 2 - index  # the lower one
        B = branch**2 * kick
        ahead, _ = _respond_backward(stack.ahead, B, layer, now)
        back, q = _respond_backward(stack.back, Omega, layer, now)
        M = correlate(q, back.backward[layer], stack.feature[layer], stack.returned[layer + 1], now, (branch**2, 1.0))
        returned = _symmetric(stack.returned, layer, M + branch**2 * row, now)
        stack = stack._replace(ahead=ahead, back=back, returned=returned)
        Omega = halves(q)[0] + B
        stack, kick, row = one_layer(stack, Omega, layer)
        return stack, Omega, kick, row

    stack, kick, row = one_layer(stack, B_last, depth - 1)
    if depth > 1:
        stack, _, kick, row = lax.fori_loop(0, depth - 1, one_link, (stack, B_last, kick, row))
    return stack, kick, row


def forward(stack: Stack, A_first: Array, C_first: Array, weights: Array, richness: Array, branch: Array, now: Clock):
    """Rows of all :math:`h`, the first layer first; ``C_first`` is the row of :math:`C_h^0`."""

    def one_layer(stack: Stack, Gamma: Array, layer) -> tuple[Stack, Array, Array]:
        pair, p = _respond_forward(stack.pair, Gamma, layer, now)
        row = correlate(p, pair.forward[layer], stack.driven[layer], stack.returned[layer], now)
        stack = stack._replace(pair=pair, feature=_symmetric(stack.feature, layer, row, now))
        return stack, halves(p)[1] + richness * rows.times_constant(weights[None] * row, 1.0, richness, now), row

    def one_link(layer: Array, carry):
        stack, Gamma, kick, row = carry
        A = branch**2 * kick
        ahead, p = _respond_forward(stack.ahead, Gamma, layer, now)
        N = correlate(p, ahead.forward[layer], stack.driven[layer], stack.gradient[layer + 1], now, (1.0, branch**2))
        back, _ = _respond_forward(stack.back, A, layer, now)
        driven = _symmetric(stack.driven, layer + 1, N + branch**2 * row, now)
        stack = stack._replace(ahead=ahead, back=back, driven=driven)
        Gamma = halves(p)[1] + A
        stack, kick, row = one_layer(stack, Gamma, layer + 1)
        return stack, Gamma, kick, row

    stack = stack._replace(driven=_symmetric(stack.driven, 0, C_first, now))
    stack, kick, row = one_layer(stack, A_first, 0)
    links = len(stack.feature) - 1
    return lax.fori_loop(0, links, one_link, (stack, A_first, kick, row))[0] if links else stack


def _respond_backward(pairs: Pair, B: Array, layer, now: Clock) -> tuple[Pair, Array]:
    row = B @ pairs.forward[layer] + rows.beside(jnp.zeros_like(now.unit), now.unit)
    return pairs._replace(backward=_put(pairs.backward, layer, now, row)), row


def _respond_forward(pairs: Pair, A: Array, layer, now: Clock) -> tuple[Pair, Array]:
    row = A @ pairs.backward[layer] + rows.beside(now.unit, jnp.zeros_like(now.unit))
    return pairs._replace(forward=_put(pairs.forward, layer, now, row)), row


def _put(stack: Array, layer, now: Clock, row: Array) -> Array:
    """Rows alone are written: setting a whole layer would copy the stack."""
    return lax.dynamic_update_slice(stack, row[None], (layer, now.row, 0))


def _symmetric(stack: Array, layer, row: Array, now: Clock) -> Array:
    row = rows.symmetric_row(row, now)
    return _put(lax.dynamic_update_slice(stack, row.T[None], (layer, 0, now.row)), layer, now, row)
