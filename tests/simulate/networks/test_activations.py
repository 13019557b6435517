"""The simulator's own activations are those of the library."""

import jax
import mpmath
import numpy as np
import pytest

import widefield as wf
from widefield.question.activation import NAMED, leaky_relu, monomial
from widefield.simulate.networks.activations import activate, erf

SMALL = np.geomspace(1e-100, 1, 500)
H = np.concatenate([np.linspace(-9, 9, 20_001), SMALL, -SMALL, [0.0]])
BATCH = H.reshape(2, -1, 1)
ACTIVATIONS = [*NAMED.values(), leaky_relu(-2.5), leaky_relu(0.0), monomial(3)]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_equal_to_the_jax_function(activation):
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(activation.function)(BATCH))
        values = activate(activation, BATCH, n_padded=3)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, exact, rtol=1e-15, atol=0)
    assert not np.shares_memory(values, BATCH)


def test_erf_against_high_precision():
    x = np.concatenate([np.linspace(-6.5, 6.5, 301), [1e-300, 1e-8, np.nextafter(0.5, 0), 0.5]])
    with jax.enable_x64(True):
        values = np.asarray(erf(jax.numpy.asarray(x)))
        special = np.asarray(erf(jax.numpy.asarray([np.inf, -np.inf, np.nan, -0.0])))
    np.testing.assert_allclose(values, [float(mpmath.erf(value)) for value in x], rtol=6e-16, atol=0)
    assert special[:2].tolist() == [1, -1] and np.isnan(special[2]) and np.signbit(special[3])


def test_a_user_function_is_not_mistaken_for_a_named_one():
    mine = wf.Activation(lambda h: 2 * h, name="relu")
    with jax.enable_x64(True):
        np.testing.assert_array_equal(activate(mine, BATCH, n_padded=2), 2 * BATCH)
