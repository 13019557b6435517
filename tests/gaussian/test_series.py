"""The Hermite series at any orders: against quadrature, between orders, in bulk, and its derivatives through JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widefield as wf
from widefield.gaussian import expectation, kernel_for
from widefield.question.activation import as_activation

from .test_properties import RAMP, SHIFTED, name_of, nodes

N = 6  # the draws change values, never shapes or the largest variance: one compilation serves all
LARGEST = 6.0
few = settings(max_examples=4, deadline=None, derandomize=True)
variances = st.lists(st.floats(-3, 0.7), min_size=N, max_size=N).map(lambda x: np.append(10.0 ** np.array(x), LARGEST))
correlations = st.lists(
    st.one_of(st.floats(-1, 1), st.sampled_from([-1.0, -1 + 1e-9, 0.0, 1 - 1e-9, 1.0])), min_size=N + 1, max_size=N + 1
).map(np.array)


@pytest.mark.parametrize("activation", ["tanh", "silu", SHIFTED], ids=name_of)
@pytest.mark.parametrize("orders", [(2, 0), (1, 2), (3, 1)])
@few
@given(q=variances, q_=variances, rho=correlations)
def test_the_series_agrees_with_quadrature(activation, orders, q, q_, rho):
    c = rho * np.sqrt(q * q_)
    series, exact = (expectation(activation, q, q_, c, orders, method=m) for m in ("auto", "quadrature"))
    assert series.method == "series"
    assert (np.abs(series.value - exact.value) <= series.error + exact.error).all()


@pytest.mark.parametrize("activation, orders", [("tanh", (2, 0)), (SHIFTED, (2, 1))], ids=name_of)
@few
@given(q=variances, q_=variances, ends=st.tuples(correlations, correlations))
def test_prices_theorem_between_orders(activation, orders, q, q_, ends):
    """∂_c raises both orders, ∂_q the first by two: integrated over c, and over q to 2q, nothing is left to tune."""
    i, j = orders
    unit = 0.7 * np.sqrt(q * q_)
    low, high = ends[0] * unit, ends[1] * unit
    v, w = nodes(low, high)
    assert_increment(activation, orders, (q, q_, low), (q, q_, high), (q + 0 * v, q_ + 0 * v, v), w, (i + 1, j + 1))
    v, w = nodes(q, 2 * q)
    along = v, q_ + 0 * v, low + 0 * v
    assert_increment(activation, orders, (q, q_, low), (2 * q, q_, low), along, w / 2, (i + 2, j))


def assert_increment(activation, orders, start, end, along, weight, derived):
    """The change of an average from ``start`` to ``end`` is the integral of the ``derived`` one."""
    first, last = expectation(activation, *start, orders), expectation(activation, *end, orders)
    slope = expectation(activation, *along, derived)
    allowed = first.error + last.error + np.sum(np.abs(weight) * slope.error, axis=0)
    assert (np.abs(last.value - first.value - np.sum(weight * slope.value, axis=0)) <= allowed).all()


@pytest.mark.parametrize("orders", [(2, 0), (2, 1)])
def test_a_kernel_matrix_is_its_entries(orders):
    """Duplicates, opposites, multiples and zeros included, in more than one tile, and as a stack of matrices."""
    x = np.random.default_rng(3).normal(size=(300, 3))
    x[1], x[2], x[3], x[4] = x[0], -x[0], 0.5 * x[0], 0
    x = np.sqrt(LARGEST) * x / np.linalg.norm(x, axis=1).max()
    covariance = x @ x.T
    q = np.diag(covariance)
    matrix = expectation("silu", q[:, None], q, covariance, orders)
    rows, columns = np.indices((6, 6)).reshape(2, -1)
    entries = expectation("silu", q[rows], q[columns], covariance[rows, columns], orders, method="quadrature")
    off = np.abs(matrix.value[rows, columns] - entries.value)
    assert (off <= matrix.error[rows, columns] + entries.error).all()
    stack = expectation("silu", q[:, None], q, np.stack([covariance, covariance]), orders)
    assert (stack.value == matrix.value).all()


def test_opposite_parities_average_to_zero():
    result = expectation("tanh", [0.3, 2.0], [1.0, 2.0], [0.2, 2.0], (2, 1))
    assert (result.value == 0).all()


def test_a_delta_function_is_not_for_the_series():
    with pytest.raises(wf.SolveError):
        expectation(RAMP, 1.0, 1.0, 0.5, (2, 0), method="series")
    assert expectation(RAMP, 1.0, 1.0, 0.5, (2, 0)).method == "quadrature"


# Kernels.


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def test_a_kernel_knows_the_orders_it_was_made_for(float64):
    kernel = kernel_for(as_activation("tanh"), 1.0, orders=(0, 2))
    table = kernel.table(jnp.ones(2))
    with pytest.raises(ValueError, match="`orders`"):
        kernel.average(table, table, jnp.ones(2), (1, 1))
    closed = kernel_for(as_activation("relu"), 1.0, orders=(0, 1, 2, 3, 4))
    table = closed.table(jnp.ones(2))
    value, _ = closed.average(table, table, jnp.full(2, 0.5), (3, 1))
    assert (np.abs(value - expectation("relu", 1.0, 1.0, 0.5, (3, 1)).value) <= 1e-14).all()
    with pytest.raises(ValueError, match="`orders`"):
        closed.average(table, table, jnp.full(2, 0.5), (4, 4))


def test_derivatives_of_a_moment_are_moments(float64):
    """Also for duplicates, opposites and nodes of no variance, and twice."""
    kernel = kernel_for(SHIFTED, 2.0, orders=(0, 1, 2, 3, 4))
    q = np.array([1.3, 2.0, 0.0, 0.0, 1.0, 1e-8])
    q_ = np.array([0.7, 2.0, 1.5, 0.0, 1.0, 1.0])
    c = np.array([0.4, 2.0, 0.0, 0.0, -1.0, 0.5e-4])

    def gradient(q, q_, c):
        return jax.grad(lambda *v: kernel.moment((0, 0), *v).sum(), (0, 1, 2))(q, q_, c)

    found, (second, _, mixed) = jax.jit(lambda *v: jax.jvp(gradient, v, (jnp.ones(N), jnp.zeros(N), jnp.zeros(N))))(
        q, q_, c
    )
    derivatives = {(2, 0): 2 * found[0], (0, 2): 2 * found[1], (1, 1): found[2], (4, 0): 4 * second, (3, 1): 2 * mixed}
    for orders, value in derivatives.items():
        exact = expectation(SHIFTED, q, q_, c, orders, method="quadrature")
        assert (np.abs(value - exact.value) <= exact.error + 1e-11).all(), orders


def test_derivatives_of_the_series_are_right_at_duplicates(float64):
    kernel = kernel_for(as_activation("tanh"), 2.0)
    q = jnp.array([0.1, 2.0])
    along_c = jax.grad(lambda c: kernel.average(kernel.table(q), kernel.table(q), c, (0, 0))[0].sum())(q)
    exact = expectation("tanh", np.asarray(q), np.asarray(q), np.asarray(q), (1, 1))
    assert (np.abs(along_c - exact.value) <= 1e-10).all()
