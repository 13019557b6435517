"""Richardson extrapolation: known orders, and an error estimate that does not flatter."""

import numpy as np
import pytest

from widefield.solvers.extrapolation import extrapolate


@pytest.mark.parametrize("n", [2, 3, 4])
def test_as_many_powers_vanish_as_there_are_halvings(n):
    """A polynomial of degree n − 1 in h is met exactly by n values; h^n is not."""
    coefficients = np.array([2.0, -1.0, 0.5, 3.0])[:n]
    h = 0.5 ** np.arange(n)
    values = [np.polynomial.polynomial.polyval(x, coefficients) for x in h]
    np.testing.assert_allclose(extrapolate(values)[0], 2.0, rtol=1e-13)
    spoiled = [v + x**n for v, x in zip(values, h, strict=True)]
    assert abs(extrapolate(spoiled)[0] - 2.0) > 1e-3


def test_the_order_is_the_number_of_values():
    """Of e^h at h, h/2, h/4: the error falls as h³."""
    error = lambda h: abs(extrapolate([np.exp(h), np.exp(h / 2), np.exp(h / 4)])[0] - 1)  # noqa: E731
    orders = [np.log2(error(h) / error(h / 2)) for h in (0.2, 0.1)]
    np.testing.assert_allclose(orders, 3, atol=0.1)


def test_its_error_estimate_covers_its_error():
    h = 0.3 * 0.5 ** np.arange(4)
    values = [np.array([np.exp(x), 1 / (1 + x), np.cos(x)]) for x in h]
    limit, error = extrapolate(values)
    assert np.all(np.abs(limit - 1) <= error) and np.all(error < 1e-2)


def test_one_value_is_its_own_limit():
    limit, error = extrapolate([np.array([1.5])])
    assert limit == 1.5 and error == 0
