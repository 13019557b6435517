r"""The causal march of the masked field theory: forward at t, output, backward at t, then the update.

Eqs. (dynamics.16), (dynamics.17), with :math:`W` as in `basis`, solve Eqs. (dynamics.3) to (dynamics.6): one matrix for all states where
weights are tied, one per transition where not. That is the whole difference between recurrent and deep networks. Inputs and
trained biases are one kernel :math:`L_0L_0^T` over all (state, sample).

Every array has the paths (or coordinates) on its last axis. A channel is a pair (readout state, output).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from widefield.theories.dynamics.march import basis
from widefield.theories.dynamics.march.basis import Matrices
from widefield.theories.dynamics.march.noise import dot, mirrored

Function = Callable[[Array], Array]


class Shape(NamedTuple):
    """What a compilation depends on, besides the sizes of arrays."""

    activation: Function
    gradient: Any  # of the loss of (prediction, label) by the prediction, both (readout, sample, output)
    matrices: tuple[int, ...]  # which weight matrix leads into state 1, 2, …
    readouts: tuple[int, ...]  # states that are read out, ascending
    n_outputs: int
    exact: bool  # coordinates instead of paths
    shared_inputs: bool = True  # False: those of different states are uncorrelated
    responses: bool = True  # False: A = B = 0
    langevin: bool = False
    momentum: bool = False


class Physics(NamedTuple):
    """Physical parameters; ``inputs`` is L0 (state, sample, direction), ``shares`` the width ratios q of every matrix."""

    richness: Array
    inputs: Array
    weight_variance: Array  # one per transition
    readout_variance: Array
    shares: Array
    labels: Array  # (readout, sample, output)
    decay: Array  # λ
    momentum: Array  # 1/τ, 0 without
    scale: Array  # of the initial weights: one for all, or (2 + matrices,) of inputs, matrices and readout
    temperature: Array
    tolerance: Array  # (forward, backward): variance, relative to a vector's own, below which no new direction opens


class State(NamedTuple):
    """Everything a step needs. ``kept``: how much of the noises is left in the weights."""

    matrices: Matrices
    input_noise: Array
    input_memory: Array
    input_momentum: Array
    readout_noise: Array  # (output, S)
    readout_memory: Array
    readout_momentum: Array
    kept: Array
    prediction: Array  # (readout, sample, output), stepped by the NTK where A = B = 0
    step: Array
    key: Array


class Record(NamedTuple):
    """Row t: predictions of every state (state, sample, output), errors at the readouts, and the site's variables."""

    prediction: Array
    delta: Array  # (readout, sample, output)
    feature: Array  # φ (state, sample, S)
    gradient: Array  # g (channel, state, sample, S)
    preactivation: Array
    pregradient: Array  # z (channel, state, sample, S)


def start(shape: Shape, physics: Physics, noises: tuple[Array, Array, Any], seed: int = 0) -> State:
    """The state before step 0 from white noises: inputs (direction, S), readouts (output, S), two sides as in `basis`."""
    inputs, readouts, white = noises
    zero = jnp.zeros_like
    return State(
        basis.empty(white, inputs.shape[-1], shape.momentum), inputs, zero(inputs), zero(inputs),
        readouts, zero(readouts), zero(readouts), jnp.asarray(1.0, inputs.dtype),
        jnp.zeros((len(shape.readouts), physics.inputs.shape[1], shape.n_outputs), inputs.dtype), jnp.zeros((), int),
        jax.random.key(seed),
    )  # fmt: skip


def initial_scales(physics: Physics, n_matrices: int) -> Array:
    """Of the initial inputs, matrices and readout (2 + matrices,); noises are white, and these multiply them."""
    return jnp.broadcast_to(physics.scale, (2 + n_matrices,))


def step(shape: Shape, physics: Physics, state: State, rate: Array) -> tuple[State, Record]:
    """Row t of all fields, and the state after update t."""
    state, record, expansions = passes(shape, physics, state)
    return learn(shape, physics, state, rate, record, expansions), record


def passes(shape: Shape, physics: Physics, state: State) -> tuple[State, Record, tuple[Array, Array]]:
    """Forward, output and backward: the directions that the step opens, row t of all fields, and the expansions of φ and g."""
    weight = 1.0 if shape.exact else 1.0 / state.input_noise.shape[-1]
    state, hidden, feature, expansions = _forward(shape, physics, state, weight)
    prediction = outputs(shape, physics, state, feature, weight)
    read = prediction[jnp.asarray(shape.readouts)]
    delta = -shape.gradient(read, physics.labels)
    state, gradient, pregradient, returned = _backward(shape, physics, state, hidden, weight)
    return state, Record(prediction, delta, feature, gradient, hidden, pregradient), (expansions, returned)


def learn(
    shape: Shape, physics: Physics, state: State, rate: Array, record: Record, expansions: tuple[Array, Array]
) -> State:
    """The state after update t."""
    state = _update(shape, physics, state, rate, record.delta, record.feature, record.gradient, *expansions)
    if shape.langevin:
        state = _shake(physics, state, rate)
    return state._replace(step=state.step + 1)


def noise_scales(physics: Physics, state: State) -> Array:
    """Of the noises of inputs, matrices and readout by now."""
    return state.kept * initial_scales(physics, len(state.matrices.memory))


def _forward(shape: Shape, physics: Physics, state: State, weight: float):
    """h and φ of every state, opening directions on the way. Also the expansion of every φ but the last."""
    gamma, scales, matrices = physics.richness, noise_scales(physics, state), state.matrices
    n_states, n_samples, _ = physics.inputs.shape
    outer = scales[0] * state.input_noise + gamma * state.input_memory
    first = physics.inputs[0] @ outer
    every = jnp.zeros((n_states, *first.shape), first.dtype)
    expansions = jnp.zeros((n_states - 1, n_samples, matrices.memory.shape[1]), first.dtype)
    carry = (matrices.forward, every.at[0].set(first), every.at[0].set(shape.activation(first)), expansions)

    def one(k, carry):
        forward, hidden, feature, expansions = carry
        m = jnp.asarray(shape.matrices)[k - 1]
        forward, L, rest = basis.expand(forward, matrices.backward, m, feature[k - 1], weight, physics.tolerance[0])
        w, q, scale = physics.weight_variance[k - 1], physics.shares[k - 1], scales[1 + m]
        response = scale / jnp.sqrt(q) if shape.responses else 0.0
        parts = (scale, gamma * jnp.sqrt(w), response)
        acted = basis.act(forward, matrices.backward, matrices.memory, False, m, L, rest, parts)
        h = physics.inputs[k] @ outer + jnp.sqrt(w) * acted
        return forward, hidden.at[k].set(h), feature.at[k].set(shape.activation(h)), expansions.at[k - 1].set(L)

    forward, hidden, feature, expansions = lax.fori_loop(1, n_states, one, carry) if n_states > 1 else carry
    return state._replace(matrices=matrices._replace(forward=forward)), hidden, feature, expansions


def outputs(shape: Shape, physics: Physics, state: State, feature: Array, weight: float) -> Array:
    r""":math:`f = \sqrt v\langle v\varphi\rangle/\gamma_0`; the readout's noise has no average with features that have not moved."""
    if not shape.responses:
        every = jnp.zeros((*feature.shape[:2], shape.n_outputs), feature.dtype)
        return every.at[jnp.asarray(shape.readouts)].set(state.prediction)
    v = physics.readout_variance
    flat = feature.reshape(-1, feature.shape[-1])
    from_noise = state.kept * jnp.ravel(physics.scale)[-1] * dot(flat, state.readout_noise, weight) / physics.richness
    total = jnp.sqrt(v) * from_noise + v * dot(flat, state.readout_memory, weight)
    return total.reshape(*feature.shape[:2], shape.n_outputs)


def read_back(shape: Shape, physics: Physics, state: State, size: tuple[int, ...]) -> Array:
    """What z (channel, state, sample, S) has of the readouts, each at its state."""
    v, scale = physics.readout_variance, noise_scales(physics, state)[-1]
    readout = jnp.sqrt(v) * (scale * state.readout_noise + physics.richness * jnp.sqrt(v) * state.readout_memory)
    channels = [(c, o) for c in shape.readouts for o in range(shape.n_outputs)]
    z = jnp.zeros((len(channels), *size), readout.dtype)
    for i, (c, o) in enumerate(channels):
        z = z.at[i, c].set(readout[o])
    return z


def _backward(shape: Shape, physics: Physics, state: State, hidden: Array, weight: float):
    """g and z (channel, state, sample, S), and the expansion (transition, channel, sample, direction) of every upper g."""
    gamma, scales, matrices = physics.richness, noise_scales(physics, state), state.matrices
    _, slope = jax.jvp(shape.activation, (hidden,), (jnp.ones_like(hidden),))
    channels = [(c, o) for c in shape.readouts for o in range(shape.n_outputs)]
    n_states, n_samples, n_paths = hidden.shape
    pregradient = read_back(shape, physics, state, hidden.shape)
    returned = jnp.zeros((n_states - 1, len(channels), n_samples, matrices.memory.shape[2]), hidden.dtype)
    carry = (matrices.backward, slope[None] * pregradient, pregradient, returned)

    def one(first, highest, i, carry):
        """A state from the one above it, between two readouts, where the channels from ``first`` on are read out above."""
        backward, gradient, pregradient, returned = carry
        k = highest - i
        m = jnp.asarray(shape.matrices)[k]
        vectors = gradient[first:, k + 1].reshape(-1, n_paths)
        backward, L, rest = basis.expand(backward, matrices.forward, m, vectors, weight, physics.tolerance[1])
        w, q, scale = physics.weight_variance[k], physics.shares[k], scales[1 + m]
        response = scale * q if shape.responses else 0.0
        parts = (scale * jnp.sqrt(q), gamma * jnp.sqrt(w) * q, response)
        z = jnp.sqrt(w) * basis.act(backward, matrices.forward, matrices.memory, True, m, L, rest, parts)
        z = z.reshape(-1, n_samples, n_paths)
        gradient, pregradient = gradient.at[first:, k].set(slope[k][None] * z), pregradient.at[first:, k].set(z)
        return backward, gradient, pregradient, returned.at[k, first:].set(L.reshape(*z.shape[:2], -1))

    for low, top in reversed(list(zip((0, *shape.readouts), shape.readouts, strict=False))):
        first = sum(c <= low for c, _ in channels)
        carry = lax.fori_loop(0, top - low, partial(one, first, top - 1), carry) if top > low else carry
    backward, gradient, pregradient, returned = carry
    return state._replace(matrices=matrices._replace(backward=backward)), gradient, pregradient, returned


def _update(
    shape: Shape, physics: Physics, state: State, rate, delta, feature, gradient, expansions, returned
) -> State:
    """Memories after the gradient step, Eq. (dynamics.17): weight decay and momentum act on them as on the weights."""
    channels = [(i, o) for i in range(len(shape.readouts)) for o in range(shape.n_outputs)]
    errors = jnp.stack([delta[i, :, o] for i, o in channels])  # (channel, sample)
    driven = jnp.einsum("cp,ckps->kps", errors, gradient)
    rate = rate + 0 * gradient[0, 0, 0, 0]  # the gradient first: it reads the memories, which XLA would copy otherwise

    def move(memory: Array, momentum: Array, kick: Array) -> tuple[Array, Array]:
        if shape.momentum:
            inertia = physics.momentum * rate
            momentum = kick = (1 - inertia) * momentum + inertia * kick
        return (1 - rate * physics.decay) * memory + rate * kick, momentum

    kick = jnp.einsum("kpd,kps->ds", physics.inputs, driven)
    memory, momentum = move(state.input_memory, state.input_momentum, kick)
    read = feature[jnp.asarray(shape.readouts)]
    readout = move(state.readout_memory, state.readout_momentum, jnp.einsum("kpo,kps->os", delta, read))
    back = jnp.einsum("kcpd,cp->kpd", returned, errors)
    n_matrices = len(set(shape.matrices))
    # which transitions every matrix makes (matrix, transition): all of them where weights are tied, one where not
    transitions = np.argsort(shape.matrices, kind="stable").reshape(n_matrices, -1 if n_matrices else 0)

    def one(m, matrices):
        forward, backward = (jnp.concatenate(part[jnp.asarray(transitions)[m]]) for part in (expansions, back))
        return basis.remember(matrices, m, forward, backward, move)

    matrices = lax.fori_loop(0, n_matrices, one, state.matrices) if n_matrices else state.matrices
    return state._replace(
        matrices=matrices, input_memory=memory, input_momentum=momentum, readout_memory=readout[0],
        readout_momentum=readout[1], kept=state.kept * (1 - rate * physics.decay),
        prediction=_ntk_step(shape, physics, state, rate, delta, feature, gradient),
    )  # fmt: skip


def _shake(physics: Physics, state: State, rate: Array) -> State:
    r"""Langevin noise :math:`\sqrt{2\eta T}` on every weight: what is known of a matrix becomes an Ornstein–Uhlenbeck process.

    Eq. (dynamics.12). Fresh noise is independent of all vectors so far, so that responses only decay; directions that open later find noises
    that have been shaken all along.
    """
    matrices, keep = state.matrices, 1 - rate * physics.decay
    sizes = jnp.sqrt(2 * rate * physics.temperature) / initial_scales(physics, len(matrices.memory))
    key, *keys = jax.random.split(state.key, 5)
    normal = jax.random.normal

    def fresh(key: Array, noise: Array, size: Array, parity: float) -> Array:
        n, n_paths = noise.shape
        return keep * noise + size * mirrored(normal(key, (n, n_paths // 2), noise.dtype), parity)

    def shaken(key: Array, side: basis.Side) -> basis.Side:
        noise = keep * side.noise + sizes[1:-1, None, None] * normal(key, side.noise.shape, side.noise.dtype)
        return side._replace(noise=noise, table=keep * side.table)

    return state._replace(
        key=key, kept=jnp.ones_like(state.kept), input_noise=fresh(keys[0], state.input_noise, sizes[0], 1.0),
        readout_noise=fresh(keys[1], state.readout_noise, sizes[-1], -1.0),
        matrices=matrices._replace(forward=shaken(keys[2], matrices.forward), backward=shaken(keys[3], matrices.backward)),
    )  # fmt: skip


def _ntk_step(shape: Shape, physics: Physics, state: State, rate, delta, feature, gradient) -> Array:
    """Where A = B = 0 the outputs follow the tangent kernel, Eq. (dynamics.27); <zφ> would miss layers."""
    if shape.responses:
        return state.prediction
    weight = 1.0 if shape.exact else 1.0 / feature.shape[-1]
    kernel = tangent_kernel(shape, physics, feature, gradient, weight)
    n_read, n_samples = len(shape.readouts), feature.shape[1]
    errors = jnp.moveaxis(delta, 2, 1).reshape(-1, n_samples)
    moved = jnp.einsum("cdpq,dq->cp", kernel, errors)
    return state.prediction + rate * jnp.moveaxis(moved.reshape(n_read, shape.n_outputs, n_samples), 1, 2)


def tangent_kernel(shape: Shape, physics: Physics, feature: Array, gradient: Array, weight: float) -> Array:
    r"""NTK (channel, channel, sample, sample) :math:`= v\Phi + \sum_{kk'}G^{kk'}(M_{kk'}w\Phi^{k-1,k'-1} + X^{kk'})`, Eq. (dynamics.9)."""
    n_samples = feature.shape[1]
    channels = [(c, o) for c in shape.readouts for o in range(shape.n_outputs)]
    total = jnp.zeros((len(channels), len(channels), n_samples, n_samples), feature.dtype)
    for i, (c, o) in enumerate(channels):
        for j, (d, p) in enumerate(channels):
            if o == p:
                total = total.at[i, j].add(physics.readout_variance * dot(feature[c], feature[d], weight))
    share, root = jnp.sqrt(gradient_shares(physics)), jnp.append(0.0, jnp.sqrt(physics.weight_variance))
    leads, states = (-1, *shape.matrices), range(len(feature))
    coupled = [(k, l, leads[k] == leads[l]) for k in states for l in states[k:]]  # whether one matrix leads into both
    pairs = np.array([pair for pair in coupled if pair[2] or shape.shared_inputs], int)

    def one(i, total):
        k, l, same = jnp.asarray(pairs)[i]
        below = dot(feature[jnp.maximum(k - 1, 0)], feature[jnp.maximum(l - 1, 0)], same * root[k] * root[l] * weight)
        G = weight * share[k] * share[l] * jnp.einsum("aps,bqs->abpq", gradient[:, k], gradient[:, l])
        term = G * (physics.inputs[k] @ physics.inputs[l].T + below)[None, None]
        return total + term + (k != l) * term.transpose(1, 0, 3, 2)

    return lax.fori_loop(0, len(pairs), one, total)


def tangent_between(
    shape: Shape, physics: Physics, one: tuple[Array, ...], other: tuple[Array, ...], weight: float
) -> Array:
    """The same between two sets of inputs, each with its part along L0 (state, sample, direction), φ and g."""
    channels = [(c, o) for c in shape.readouts for o in range(shape.n_outputs)]
    same = np.equal.outer([o for _, o in channels], [o for _, o in channels])
    read = jnp.asarray([c for c, _ in channels])
    total = physics.readout_variance * weight * jnp.einsum("cps,dqs->cdpq", one[1][read], other[1][read])
    total = total * same[:, :, None, None]
    share, root = jnp.sqrt(gradient_shares(physics)), jnp.append(0.0, jnp.sqrt(physics.weight_variance))
    leads, n_states = (-1, *shape.matrices), len(one[1])
    masks = jnp.asarray(np.equal.outer(leads, leads), float)

    def pair(i, total):
        k, l = i // n_states, i % n_states
        below = dot(one[1][jnp.maximum(k - 1, 0)], other[1][jnp.maximum(l - 1, 0)], weight)
        below = masks[k, l] * root[k] * root[l] * below
        G = weight * share[k] * share[l] * jnp.einsum("aps,bqs->abpq", one[2][:, k], other[2][:, l])
        return total + G * (one[0][k] @ other[0][l].T + below)[None, None]

    return lax.fori_loop(0, n_states**2, pair, total)


def label_alignment(labels: Array, feature: Array, weight: float | Array) -> Array:
    """Cosine of the equal-time features of every state with the kernel of the labels, summed over readouts; (state,)."""
    return label_cosine(labels, weight * feature @ jnp.swapaxes(feature, 1, 2))


def label_cosine(labels: Array, kernel: Array) -> Array:
    """Cosine (state,) of kernels (state, sample, sample_) with that of the labels, Eq. (dynamics.14)."""
    target = jnp.einsum("cpo,cqo->pq", labels, labels)
    size = jnp.sqrt(jnp.sum(kernel**2, axis=(1, 2)) * jnp.sum(target**2))
    return jnp.sum(kernel * target[None], axis=(1, 2)) / jnp.where(size > 0, size, 1.0)


def gradient_shares(physics: Physics) -> Array:
    """N_k/N_L of every state: G = γ0² N_L |∂f/∂h^k|² is this times the average of g² over neurons, Eq. (dynamics.13)."""
    above = jnp.cumprod(physics.shares[::-1])[::-1]
    return 1 / jnp.append(above, 1.0)
