"""The march with noises taken from an explicit W is gradient descent of a network as wide as it has paths."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.dynamics import network
from widefield.theories.dynamics.march import step as march
from widefield.theories.dynamics.march.step import Physics, Shape
from widefield.theories.dynamics.problem import squared

N, P, STEPS, RATE, N_DIRECTIONS = 160, 2, 7, 0.05, 64
GAMMA = 1.5
GRADIENT = jax.vmap(jax.vmap(jax.grad(squared)))


@partial(jax.jit, static_argnames="shape")
def stepped(shape, physics, state):
    return march.step(shape, physics, state, jnp.asarray(RATE))


def white_of(W, matrices, m):
    """What W, matrix m, adds in each open direction to what the directions opened before it on the other side have shown.

    The common opening order is read off the tables: entry (k, j) is filled where j was open when k opened.
    """
    root = np.sqrt(len(W))
    sides = [np.asarray(side.direction[m]) for side in matrices.sides]
    noises = []
    for mine, other, side, act in ((0, 1, matrices.forward, W), (1, 0, matrices.backward, W.T)):
        seen = np.asarray(side.table[m]) != 0
        raw = sides[mine] @ act.T / root
        known = np.where(seen, raw @ sides[other].T / len(W), 0.0)
        noises.append(raw - known @ sides[other])
    return noises


def follow(shape, physics, state, Ws):
    """One step of the march, repeated until the noises of the directions it opens are those of the matrices."""
    for _ in range(2 * len(physics.inputs) + 1):
        after, record = stepped(shape, physics, state)
        noises = [white_of(W, after.matrices, m) for m, W in enumerate(Ws)]
        forward, backward = (jnp.asarray(np.stack(noise)) for noise in zip(*noises, strict=True))
        old = state.matrices
        state = state._replace(
            matrices=old._replace(
                forward=old.forward._replace(noise=forward), backward=old.backward._replace(noise=backward)
            )
        )
    return after, record


@pytest.mark.parametrize("decay", [0.0, 0.4])
@pytest.mark.parametrize(("phi", "matrices", "readouts"), [
    (jnp.tanh, (0, 0), (0, 1, 2)),
    pytest.param(jnp.tanh, (0, 1), (2,), marks=pytest.mark.full),
    pytest.param(jax.nn.relu, (0, 1, 2), (1, 3), marks=pytest.mark.full),
])  # fmt: skip
def test_the_march_on_explicit_weights_is_gradient_descent(phi, matrices, readouts, decay):
    rng = np.random.default_rng(3)
    K, n_matrices = len(matrices) + 1, len(set(matrices))
    with jax.enable_x64(True):
        inputs = jnp.asarray(rng.normal(size=(K, P, 4)))
        labels = jnp.asarray(rng.normal(size=(len(readouts), P)))
        setting = network.Setting(inputs, labels, GAMMA, decay)
        W, U = rng.normal(size=(n_matrices, N, N)), rng.normal(size=(4, N))
        weights = network.Weights(jnp.asarray(W), jnp.asarray(U), jnp.zeros(N))
        first = np.asarray(network.features(phi, matrices, setting, weights)).reshape(-1, N)
        v = rng.normal(size=N)
        v -= first.T @ np.linalg.lstsq(first.T, v, rcond=None)[0]  # the theory's v0 and first features are uncorrelated
        weights = weights._replace(v=jnp.asarray(v))

        shape = Shape(phi, GRADIENT, matrices, readouts, 1, exact=False)
        one = jnp.ones(())
        physics = Physics(
            GAMMA * one,
            inputs,
            jnp.ones(K - 1),
            one,
            jnp.ones(K - 1),
            labels[..., None],
            decay * one,
            0 * one,
            one,
            0 * one,
            jnp.full(2, 1e-20),
        )
        white = (jnp.zeros((n_matrices, N_DIRECTIONS, N)),) * 2
        state = march.start(shape, physics, (jnp.asarray(U), jnp.asarray(v)[None], white))
        for t in range(STEPS):
            hidden = network.features(phi, matrices, setting, weights)
            weights, f = network.update(phi, matrices, readouts, setting, weights, RATE)
            state, record = follow(shape, physics, state, W)
            np.testing.assert_allclose(record.prediction[..., 0], f, rtol=0, atol=1e-12, err_msg=f"step {t}")
            np.testing.assert_allclose(record.feature, hidden, rtol=0, atol=1e-11, err_msg=f"step {t}")
        assert max(int(side.opened.max()) for side in state.matrices.sides) <= N_DIRECTIONS
        assert float(jnp.abs(f).max()) > 0.05
