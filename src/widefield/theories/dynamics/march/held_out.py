r"""Test inputs, which train nothing: read from the weights of a step, Eqs. (dynamics.37), (dynamics.38).

What training has made of the weights is in the state of the march. A test input needs the law of its own fields at one
step given that state: its features have a part along the directions of the training features, on which the matrix is
known, and a rest, which finds a fresh noise and the responses of the gradients so far. Nothing that is reported reads how test inputs
correlate with each other or from step to step, so that these noises are drawn once for all of them, and no
direction opens. The cost is linear in their number; a block of them is held at a time.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from widefield.theories.dynamics.inputs import Inputs
from widefield.theories.dynamics.march import basis, step
from widefield.theories.dynamics.march.noise import dot, mirrored, sampled_blocks, whitened
from widefield.theories.dynamics.march.step import Physics, Record, Shape, State

VALUES, MOST_VALUES = 2**16, 2**22  # of a field that are worked on together: in a processor's cache, on an accelerator
LEAST, MOST = 16, 256  # test inputs of a block


class HeldOut(NamedTuple):
    """Test inputs in blocks, and the noises that what is fresh in them meets."""

    known: Array  # (block, state, test, direction) of L0
    fresh: Array  # (block, state, test, fresh direction)
    input_noise: Array  # (fresh direction, S)
    noise: Array  # (transition, S)


def held_out(inputs: Inputs, shape: Shape, state: State, drawn: np.ndarray, seed: int, batch: int) -> HeldOut:
    """Test inputs for the paths of ``state``, of whose noises so many are ``drawn`` (matrix, side)."""
    n_paths = state.input_noise.shape[-1]
    known, fresh = inputs.test_roots
    size = block_size(known.shape[1], n_paths)
    n_blocks = -(-known.shape[1] // size)

    def blocks(array: np.ndarray) -> Array:
        padded = np.pad(array, [(0, 0), (0, n_blocks * size - array.shape[1]), (0, 0)])
        return jnp.asarray(np.moveaxis(padded.reshape(len(array), n_blocks, size, array.shape[2]), 1, 0))

    n_fresh, n_transitions = fresh.shape[2], len(shape.matrices)
    if shape.exact:  # what is fresh has no average with anything else
        return HeldOut(blocks(known), blocks(fresh), jnp.zeros((n_fresh, 0)), jnp.zeros((n_transitions, 0)))
    half = n_paths // 2
    before = len(state.input_noise) + len(state.readout_noise) + int(drawn.sum())
    input_noise, noise = sampled_blocks([n_fresh, n_transitions], half, seed, batch, 2, after=before)
    input_noise = _beside(input_noise, state.input_noise[:, :half])
    for m in sorted(set(shape.matrices)):
        mine, others = np.flatnonzero(np.equal(shape.matrices, m)), state.matrices.forward.noise[m, : drawn[m, 0]]
        noise = noise.at[mine].set(_beside(noise[mine], others))
    return HeldOut(blocks(known), blocks(fresh), mirrored(input_noise, 1.0), mirrored(noise, 1.0))


def _beside(noise: Array, others: Array) -> Array:
    """``noise`` whitened, and without correlations with as many ``others`` as leave it room."""
    if not len(noise):
        return noise
    others = others[: max(noise.shape[1] - 2 * len(noise), 0)]
    return whitened(noise - dot(noise, others, 1 / noise.shape[1]) @ others)


def block_size(n_tests: int, n_paths: int) -> int:
    """How many test inputs are worked on together."""
    values = VALUES if jax.default_backend() == "cpu" else MOST_VALUES
    return int(min(np.clip(values // max(n_paths, 1), LEAST, MOST), n_tests))


@partial(jax.jit, static_argnames="shape")
def predict(shape: Shape, physics: Physics, state: State, held: HeldOut, sizes: Array) -> Array:
    """f (state, test, output) at the step that ``state`` is about to take.

    ``sizes`` (inputs, matrices): what the deviation of the noise of a direction that has not opened has become.
    """
    weight = 1.0 if shape.exact else 1.0 / state.input_noise.shape[-1]

    def one(block: tuple[Array, Array]) -> Array:
        feature = shape.activation(_hidden(shape, physics, state, held, block, sizes, weight))
        return step.outputs(shape, physics, state, feature, weight)

    return _joined(lax.map(one, (held.known, held.fresh)))


def tangent_kick(shape: Shape, physics: Physics, state: State, held: HeldOut, sizes: Array, record: Record) -> Array:
    """Σ K Δ (state, test, output) of this step at the readouts, which outputs follow where A = B = 0, Eq. (dynamics.27).

    ``state`` has the weights before the update, and the directions of the step.
    """
    weight = 1.0 if shape.exact else 1.0 / state.input_noise.shape[-1]
    n_read, n_samples = len(shape.readouts), record.delta.shape[1]
    errors = jnp.moveaxis(record.delta, 2, 1).reshape(-1, n_samples)
    train = physics.inputs, record.feature, record.gradient

    def one(block: tuple[Array, Array]) -> Array:
        hidden = _hidden(shape, physics, state, held, block, sizes, weight)
        test = block[0], shape.activation(hidden), _gradient(shape, physics, state, hidden, weight)
        moved = jnp.einsum("cdpq,dq->cp", step.tangent_between(shape, physics, test, train, weight), errors)
        moved = jnp.moveaxis(moved.reshape(n_read, shape.n_outputs, -1), 1, 2)
        return jnp.zeros((len(hidden), *moved.shape[1:])).at[jnp.asarray(shape.readouts)].set(moved)

    return _joined(lax.map(one, (held.known, held.fresh)))


def _joined(blocks: Array) -> Array:
    """(state, test, output), with what fills the last block."""
    return jnp.moveaxis(blocks, 0, 1).reshape(blocks.shape[1], -1, blocks.shape[3])


def _hidden(
    shape: Shape, physics: Physics, state: State, held: HeldOut, block: tuple[Array, Array], sizes: Array, weight: float
) -> Array:
    """h (state, test, S) of a block."""
    (known, fresh), gamma, scales = block, physics.richness, step.noise_scales(physics, state)
    forward, backward, memory = state.matrices.forward, state.matrices.backward, state.matrices.memory
    trained = scales[0] * state.input_noise + gamma * state.input_memory
    h = known @ trained
    if not shape.exact:
        h = h + fresh @ (scales[0] * sizes[0] * held.input_noise)
    tied = len(set(shape.matrices)) < len(shape.matrices)
    own = jnp.zeros((len(shape.matrices), *h.shape[1:]), h.dtype) if tied else jnp.zeros((0, *h.shape[1:]), h.dtype)

    def one(k, carry):
        h, own = carry
        m = jnp.asarray(shape.matrices)[k - 1]
        empty = jnp.zeros((h.shape[1], memory.shape[1]), h.dtype)
        along, rest = basis.project(forward, m, empty, shape.activation(h[k - 1]), weight)
        w, q, scale = physics.weight_variance[k - 1], physics.shares[k - 1], scales[1 + m]
        parts = (scale, gamma * jnp.sqrt(w), scale / jnp.sqrt(q) if shape.responses else 0.0)
        responses = basis.overlaps_with_noise(backward, m, rest, weight)
        acted = basis.act(forward, backward, memory, False, m, along, responses, parts)
        if not shape.exact:
            own, amounts = _expanded(shape, own, rest, k - 1, m, weight)
            acted = acted + scale * sizes[1 + m] * amounts @ held.noise
        return h.at[k].add(jnp.sqrt(w) * acted), own

    return lax.fori_loop(1, len(h), one, (h, own))[0] if len(h) > 1 else h


def _gradient(shape: Shape, physics: Physics, state: State, hidden: Array, weight: float) -> Array:
    """g (channel, state, test, S) but for fresh noises, which have no average with the gradients of training inputs."""
    forward, backward, memory = state.matrices.forward, state.matrices.backward, state.matrices.memory
    gamma, scales = physics.richness, step.noise_scales(physics, state)
    slope = jax.jvp(shape.activation, (hidden,), (jnp.ones_like(hidden),))[1]
    z = step.read_back(shape, physics, state, hidden.shape)
    n_channels, n_states, n_tests, n_paths = z.shape

    def one(i, z):
        k = n_states - 2 - i
        m, w, q = jnp.asarray(shape.matrices)[k], physics.weight_variance[k], physics.shares[k]
        vectors = (slope[k + 1][None] * z[:, k + 1]).reshape(-1, n_paths)
        empty = jnp.zeros((len(vectors), memory.shape[2]), z.dtype)
        along, _ = basis.project(backward, m, empty, vectors, weight)
        parts = (scales[1 + m] * jnp.sqrt(q), gamma * jnp.sqrt(w) * q, 0.0)
        acted = basis.act(backward, forward, memory, True, m, along, jnp.zeros((len(vectors), memory.shape[1])), parts)
        return z.at[:, k].add(jnp.sqrt(w) * acted.reshape(n_channels, n_tests, n_paths))

    return slope[None] * (lax.fori_loop(0, n_states - 1, one, z) if n_states > 1 else z)


def _expanded(shape: Shape, own: Array, rest: Array, transition: Array, m: Array, weight: float) -> tuple[Array, Array]:
    """How much of every transition's noise a ``rest`` (test, S) meets, (test, transition).

    Where a matrix acts on several states of one input, their rests overlap: ``own`` (transition, test, S) are the directions of
    each input so far.
    """
    amounts = jnp.zeros((len(rest), len(shape.matrices)), rest.dtype)
    if len(own):
        amounts = weight * jnp.einsum("jbs,bs->bj", own, rest) * (jnp.asarray(shape.matrices) == m)[None]
        rest = rest - jnp.einsum("bj,jbs->bs", amounts, own)
    size = jnp.sqrt(weight * jnp.sum(rest**2, axis=1))
    if len(own):
        own = own.at[transition].set(rest / jnp.where(size > 0, size, 1.0)[:, None])
    return own, amounts.at[:, transition].set(size)
