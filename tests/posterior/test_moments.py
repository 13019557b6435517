"""Where a grid is put: it covers the density whatever an iterate claims, and however slowly an activation saturates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from widefield.theories.posterior.nonlinear import moments

SAME = wf.Activation(lambda h: h, name="same")


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def averages(activation, pull, hidden, nodes):
    density = moments.Density(jnp.eye(2), jnp.eye(2), jnp.diag(jnp.asarray(pull)))
    return jax.jit(lambda n: moments.averages(n, activation, density, jnp.asarray(hidden)))(nodes)


@pytest.mark.parametrize("size", [1e-8, 1.0])
def test_a_collapsed_iterate_does_not_collapse_its_grid(size):
    """Unit variances, less what is beyond the floor's 4.25 deviations; a grid that shrank too found the iterate again."""
    nodes = moments.grid(2, 0.2, 8.5, True, "whitened")
    found = averages(SAME, [0.0, 0.0], size * np.eye(2), nodes)
    np.testing.assert_allclose(found.hidden, np.eye(2), atol=5e-3 if size < 1 else 1e-9)


@pytest.mark.parametrize("size", [1e-8, 1.0])
def test_nor_do_panels(size):
    found = averages(wf.RNN(1, "relu").activation, [0.0, 0.0], size * np.eye(2), moments.panels(2, 32, 8.0, False))
    np.testing.assert_allclose(found.feature, [[0.5, 0.5 / np.pi], [0.5 / np.pi, 0.5]], atol=5e-3 if size < 1 else 1e-9)


def test_slow_saturation_leaves_wide_tails():
    """φ = 20 tanh(h/20) is linear as far as the density goes: variances 1/(1 − 2Φ̃) = 5, less than 1 % off by saturation.

    Two grids of different reach agree to 1e-9; cut at a displaced peak of unit width they differ by 1e-4.
    """
    slow = wf.Activation(lambda h: 20 * jnp.tanh(h / 20), name="slow")
    hidden = 4.8 * np.eye(2)
    near, far = (averages(slow, [0.4, 0.4], hidden, moments.grid(2, 0.2, reach, True, "saturated")) for reach in (7, 9))
    np.testing.assert_allclose(near.hidden, far.hidden, atol=1e-9)
    assert 4.0 < far.hidden[0, 0] < 5.0
