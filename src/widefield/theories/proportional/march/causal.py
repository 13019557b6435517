r"""The causal march: row :math:`t` of every correlation and response from the rows before it, once, without iteration.

Order inside one step: :math:`g^L \dots g^1`, then :math:`v, \Delta, h^0`, then :math:`h^1 \dots h^L`,
Eqs. (proportional.2) to (proportional.8). Matrices live in buffers of static size that grow in segments, so that early steps do not pay for late ones.

Cost: a row of each matrix times a matrix, about 12 n² numbers read per layer and step (28 n² in residual networks). Long
runs go on in `compressed`, where the same `step` acts on compressed matrices.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from widefield.theories.proportional.march import layers as plain_layers
from widefield.theories.proportional.march import residual_layers, rows
from widefield.theories.proportional.march.isotropic import Inputs, Source, advance_fresh, advance_reused, empty_inputs
from widefield.theories.proportional.march.structured import Modes, Structured, advance_structured, empty_structured

SMALLEST = 64  # rows of the first buffer; the next ones double (compilations count) …
LARGE = 512
GROWTH = 1.25  # … and beyond LARGE grow by this (arithmetic counts)


class Shape(NamedTuple):
    """What a compilation depends on."""

    n_steps: int  # rows, updates + 1
    depth: int
    n_channels: int = 1
    reused: bool = True
    residual: bool = False
    noisy: bool = True  # structured data: finite width or batch


class Parameters(NamedTuple):
    """Physical parameters, all differentiable. ``offset``: 0 for a centered network, 1/richness otherwise.

    ``rate`` has one value per step; ``inverse_width`` is 1/ν (or 1/N with structured data), ``widths`` the relative widths.
    """

    rate: Array
    richness: Array
    offset: Array
    inverse_width: Array
    widths: Array
    source: Source
    branch: Array
    modes: Modes | None = None


class State(NamedTuple):
    """All matrices of a march."""

    inputs: Inputs | Structured
    layers: tuple[plain_layers.Hidden, ...] | residual_layers.Stack


def march(parameters: Parameters, shape: Shape) -> State:
    """All rows. Pure JAX: it can be compiled, mapped over parameters and differentiated."""
    *_, (_, state) = segments(parameters, shape)
    return state


def segments(parameters: Parameters, shape: Shape) -> Iterator[tuple[int, State]]:
    """The march in parts: the number of rows so far, and the matrices in buffers of just that many rows."""
    any_length, start, state = shape._replace(n_steps=0), 0, None
    for size in buffer_sizes(shape.n_steps):
        if state is None:
            state = jax.tree.map(jnp.copy, empty(parameters, shape, size))
        else:
            state = _grown(state, parameters, any_length, size)
        state = _segment(parameters, state, any_length, start, size)
        start = size
        yield size, state


def buffer_sizes(n_steps: int) -> tuple[int, ...]:
    """Steps after which a larger buffer takes over; the last one holds all."""
    sizes = []
    size = SMALLEST
    while size < n_steps / 1.1:
        sizes.append(size)
        size = 2 * size if size < LARGE else 8 * round(GROWTH * size / 8)
    return (*sizes, n_steps)


def empty(parameters: Parameters, shape: Shape, n_steps: int) -> State:
    """Buffers for ``n_steps`` rows."""
    n, dtype = n_steps * shape.n_channels, jnp.result_type(parameters.richness)
    inputs: Inputs | Structured
    if parameters.modes is not None:
        inputs = empty_structured(n, parameters.modes, shape.noisy, dtype)
    else:
        inputs = empty_inputs(n, shape.n_channels, shape.reused, dtype)
    if shape.residual:
        return State(inputs, residual_layers.empty_stack(shape.depth, n, dtype))
    return State(inputs, tuple(plain_layers.empty_hidden(n, dtype) for _ in range(shape.depth)))


@partial(jax.jit, static_argnames=("shape", "n_steps"))
def _grown(state: State, parameters: Parameters, shape: Shape, n_steps: int) -> State:
    """``state`` in buffers for ``n_steps`` rows; rows over (source, step) grow in each source."""

    def padded(path: tuple, new: jax.ShapeDtypeStruct, old: Array) -> Array:
        more = [(0, n - m) for n, m in zip(new.shape, old.shape, strict=True)]
        if not has_sources(path):
            return jnp.pad(old, more)
        more[-1] = (0, more[-1][1] // 2)
        return rows.beside(*(jnp.pad(half, more) for half in rows.halves(old)))

    larger = jax.eval_shape(lambda: empty(parameters, shape, n_steps))
    return jax.tree_util.tree_map_with_path(padded, larger, state)


def has_sources(path: tuple) -> bool:
    """Whether a leaf of a state is a matrix (n, 2n) over the two sources of a pair."""
    return path[-1].name in ("error", "field", "forward", "backward")


@partial(jax.jit, static_argnames=("shape", "start", "stop"), donate_argnames="state")
def _segment(parameters: Parameters, state: State, shape: Shape, start: int, stop: int) -> State:
    return lax.fori_loop(start, stop, lambda t, state: step(parameters, shape, state, t), state)


def step(parameters: Parameters, shape: Shape, state: State, t: Array) -> State:
    """One row of every matrix: backward variables, the input layer, forward variables."""
    layers: Any = state.layers
    inputs, stacked = state.inputs, isinstance(layers, residual_layers.Stack)
    a, gamma, offset = parameters.widths, parameters.richness, parameters.offset
    now = rows.clock(t, len(inputs.losses), shape.n_channels, inputs.losses.dtype)
    weights = now.before * jnp.repeat(parameters.rate[: len(inputs.losses) // shape.n_channels], shape.n_channels)
    B = jnp.tile(jnp.eye(shape.n_channels, dtype=weights.dtype), (1, len(weights) // shape.n_channels)) * weights[None]
    if stacked:
        layers, K, row = residual_layers.backward(layers, B, weights, gamma, parameters.branch, now)
    else:
        layers, kick, row = plain_layers.backward(layers, inputs.feature, B, weights, gamma, a, now)
        K = a[0] / a[-1] * kick
    C_d = layers.gradient[0] if stacked else layers[0].gradient
    initial = parameters.inverse_width * a[0] / a[-1] ** 2 * rows.congruent_row(C_d, row, offset, 1.0, now)
    inputs = inputs._replace(initial=rows.put_symmetric(inputs.initial, now, initial))
    if isinstance(inputs, Structured):
        assert parameters.modes is not None
        inputs, response, C_h = advance_structured(inputs, K, parameters.modes, parameters.source, now)
    else:
        advance = advance_reused if inputs.propagator.size else advance_fresh
        inputs, response, C_h = advance(inputs, K, parameters.source, now)
    A = parameters.inverse_width / a[-1] * rows.times_constant(response, offset, 1.0, now)
    A = A + gamma * rows.times_constant(weights[None] * C_h, 1.0, gamma, now)
    if stacked:
        return State(inputs, residual_layers.forward(layers, A, C_h, weights, gamma, parameters.branch, now))
    return State(inputs, plain_layers.forward(layers, inputs.feature, A, weights, gamma, a, now))
