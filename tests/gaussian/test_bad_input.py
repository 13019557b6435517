"""Bad input raises a `ValueError` that names the argument and what is allowed."""

import time

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from widefield.gaussian import expectation, kernel_for
from widefield.gaussian.quartic import fourth_moment

NAMES = ("variance", "variance_", "covariance")


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, "one", 1 + 2j, None, [], [1.0, np.nan]])
def test_numbers_must_be_real_and_finite(activation, name, value):
    arguments = dict(zip(NAMES, (1.0, 1.0, 0.5), strict=True)) | {name: value}
    with pytest.raises(ValueError, match=f"`{name}`"):
        expectation(activation, **arguments)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", NAMES[:2])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(value=st.floats(max_value=-5e-324, allow_infinity=False))
def test_variances_must_not_be_negative(activation, name, value):
    arguments = dict(zip(NAMES, (1.0, 1.0, 0.0), strict=True)) | {name: value}
    with pytest.raises(ValueError, match=f"`{name}`"):
        expectation(activation, **arguments)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(q=st.floats(1e-3, 1e3), q_=st.floats(1e-3, 1e3), excess=st.floats(1e-12, 1e3), sign=st.sampled_from([-1, 1]))
def test_the_covariance_must_lie_within_the_variances(activation, q, q_, excess, sign):
    with pytest.raises(ValueError, match="`covariance`"):
        expectation(activation, q, q_, sign * np.sqrt(q * q_) * (1 + excess))


@pytest.mark.parametrize("q, q_, c", [(0.0, 1.0, 1e-9), (1.0, 0.0, -1e-9), (0.0, 0.0, 1e-300)])
def test_a_variable_that_does_not_vary_has_no_covariance(q, q_, c):
    with pytest.raises(ValueError, match="`covariance`"):
        expectation("tanh", q, q_, c)


def test_one_bad_entry_of_many_is_found():
    c = np.zeros((3, 4))
    c[1, 2] = 1.5
    with pytest.raises(ValueError, match="`covariance`.*1.5"):
        expectation("relu", np.ones((3, 1)), np.ones(4), c)


def test_shapes_must_broadcast():
    with pytest.raises(ValueError, match="broadcast"):
        expectation("relu", np.ones(3), np.ones(4), np.zeros(3))


@pytest.mark.parametrize("activation", ["rleu", "", None, 3, np.tanh, ("relu",)])
def test_the_activation_must_be_known(activation):
    with pytest.raises(ValueError, match="`activation`"):
        expectation(activation, 1.0, 1.0, 0.5)


@pytest.mark.parametrize("activation", ["relu", "tanh", "exp"])
@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize(
    "value", [5e-324, 1e-151, 1e151, 1.7e308, 10**400, np.ma.masked_array([1.0], [True]), object()]
)
def test_variances_whose_products_are_no_numbers_are_refused(activation, name, value):
    """relu at variance 1e-300 used to be 0 ± 7e-315: a determinant of rounded products vanishes there."""
    start = time.perf_counter()
    with pytest.raises(ValueError, match=f"`{name}`"):
        expectation(activation, **dict(zip(NAMES, (1.0, 1.0, 0.0), strict=True)) | {name: value})
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("activation", ["relu", "erf", "gelu", "quadratic", "tanh"])
@pytest.mark.parametrize("variance", [1e-150, 1e-60, 1e60])
def test_extreme_variances_scale(activation, variance):
    """Powers of the variance at zero and at the end: φ ~ x or x/2 near zero, and x, sign x or x² far out."""
    given = expectation(activation, variance, variance, variance)
    near = {"relu": 0.5, "erf": 4 / np.pi, "gelu": 0.25, "tanh": 1.0, "quadratic": 3 * variance}[activation] * variance
    far = {"relu": 0.5 * variance, "erf": 1.0, "gelu": 0.5 * variance, "tanh": 1.0, "quadratic": 3 * variance**2}
    exact = near if variance < 1 else far[activation]
    assert abs(given.value - exact) <= given.error + 1e-14 * exact


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("orders", [(10**30, 0), (0, 9), {0, 1}, np.ones(2), "00", np.array(1)])
def test_orders_that_would_never_compile_are_refused(activation, orders):
    with pytest.raises(ValueError, match="`orders"):
        expectation(activation, 1.0, 1.0, 0.5, orders)


@pytest.mark.parametrize("size", [1e-200, 1e200, 1.7e308])
@pytest.mark.parametrize("activation", ["relu", "erf", "tanh", "exp"])
def test_four_nodes_need_moderate_covariances(activation, size):
    with pytest.raises(ValueError, match="`covariance`"):
        fourth_moment(activation, size * np.eye(4)[None])


@pytest.mark.parametrize("largest", [np.nan, np.inf, -1.0, "one", None, 1j])
def test_a_kernel_is_for_a_finite_variance(largest):
    for activation in ("relu", "tanh"):
        with pytest.raises(ValueError, match="`largest`"):
            kernel_for(activation, largest)
    with pytest.raises(ValueError, match="`activation`"):
        kernel_for(None, 1.0)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("orders", [(-1, 0), (0,), (0, 0, 0), (0.5, 0), "no", 1, None, (True, 0)])
def test_orders_must_be_two_whole_numbers(activation, orders):
    with pytest.raises(ValueError, match="`orders"):
        expectation(activation, 1.0, 1.0, 0.5, orders)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("method", ["Closed", "", None, 1, "monte carlo"])
def test_the_method_must_be_known(activation, method):
    with pytest.raises(ValueError, match="`method`"):
        expectation(activation, 1.0, 1.0, 0.5, method=method)


def test_a_road_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="`method`"):
        expectation("tanh", 1.0, 1.0, 0.5, method="closed")


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("rtol", [0.0, -1e-3, np.nan, np.inf, "small", None, 1e-17])
def test_the_tolerance_must_be_reachable(activation, rtol):
    with pytest.raises(ValueError, match="`rtol`"):
        expectation(activation, 1.0, 1.0, 0.5, rtol=rtol)


@pytest.mark.parametrize("name", NAMES)
def test_tracers_are_refused(name):
    arguments = dict(zip(NAMES, (1.0, 1.0, 0.5), strict=True))
    with pytest.raises(ValueError, match=f"`{name}`"):
        jax.jit(lambda x: expectation("relu", **(arguments | {name: x})).value)(0.5)


def test_the_result_is_float64_numpy_of_the_broadcast_shape():
    result = expectation("tanh", np.ones((3, 1), np.float32), np.ones(4), 0)
    assert isinstance(result.value, np.ndarray) and isinstance(result.error, np.ndarray)
    assert result.value.shape == result.error.shape == (3, 4)
    assert result.value.dtype == result.error.dtype == np.float64


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_grids_that_do_not_fit_are_refused_at_once(activation):
    line = np.ones(10**6)
    with pytest.raises(MemoryError, match=r"1000000000000 pairs of `variance` and `variance_` need 80 TB"):
        expectation(activation, line[:, None], line, 0.5)
