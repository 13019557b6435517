"""Claims about Gaussian averages that hold for every covariance; tolerances are the reported errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widefield as wf
from widefield.gaussian import expectation

EPS = np.finfo(float).eps
SHIFTED = wf.Activation(lambda x: jnp.tanh(x - 0.7))
RAMP = wf.Activation(lambda x: jnp.clip(x, -1, 1), breaks=(-1, 1))
ALL = ["relu", "erf", "gelu", "rbf", "tanh", "silu", RAMP, SHIFTED]
MONOTONE = ["relu", "leaky_relu", "erf", "tanh", "softplus", RAMP]
ODD = ["erf", "sin", "tanh", RAMP]
EVEN = ["cos", "abs", "quadratic"]

N = 6  # entries in one call: the draws change values, never shapes
few = settings(max_examples=6, deadline=None, derandomize=True)
exponents = st.lists(st.floats(-3, 3), min_size=N, max_size=N).map(lambda x: 10.0 ** np.array(x))
modest = st.lists(st.floats(-1.5, 0.7), min_size=N, max_size=N).map(lambda x: 10.0 ** np.array(x))
correlations = st.lists(
    st.one_of(st.floats(-1, 1), st.sampled_from([-1.0, -1 + 1e-9, 0.0, 1 - 1e-9, 1.0])), min_size=N, max_size=N
).map(np.array)
points = st.lists(st.lists(st.floats(-3, 3), min_size=2, max_size=2), min_size=N - 2, max_size=N - 2).map(
    lambda x: np.round(x, 3)  # squares of smaller numbers underflow
)


def name_of(activation):
    return str(activation)


def rounding(activation, q, q_, c, orders=(0, 0)):
    """What a rounding of the inputs alone may change, by Price's theorem and Cauchy–Schwarz, doubled."""
    i, j = orders
    slope = np.sqrt(expectation(activation, q, q, q, (i + 1, i + 1)).value)
    slope_ = np.sqrt(expectation(activation, q_, q_, q_, (j + 1, j + 1)).value)
    return 4 * EPS * np.sqrt(q * q_) * slope * slope_


@pytest.mark.parametrize("activation", ALL, ids=name_of)
@pytest.mark.parametrize(
    "orders", [pytest.param((0, 0), marks=pytest.mark.full), (1, 1), pytest.param((1, 0), marks=pytest.mark.full)]
)
@few
@given(q=exponents, q_=exponents, rho=correlations)
def test_exchange_of_the_two_variables(activation, orders, q, q_, rho):
    c = rho * np.sqrt(q * q_)
    one = expectation(activation, q, q_, c, orders)
    other = expectation(activation, q_, q, c, orders[::-1])
    assert (np.abs(one.value - other.value) <= one.error + other.error).all()


@pytest.mark.parametrize(
    "activation", [a if a in ("relu", "tanh") else pytest.param(a, marks=pytest.mark.full) for a in ALL], ids=name_of
)
@few
@given(x=points)
def test_kernel_matrices_are_positive_semi_definite(activation, x):
    x = np.concatenate([x, x[:1], np.zeros((1, 2))])  # a duplicate and a zero
    covariance = x @ x.T
    q = np.diag(covariance)
    for orders in ((0, 0), (1, 1)):
        kernel = expectation(activation, q[:, None], q[None, :], covariance, orders)
        value = (kernel.value + kernel.value.T) / 2
        assert np.linalg.eigvalsh(value)[0] >= -np.linalg.norm(kernel.error) - 8 * EPS * np.trace(value)


@pytest.mark.parametrize("activation", ALL, ids=name_of)
@pytest.mark.parametrize("orders", [(0, 0), (1, 1)])
@few
@given(q=exponents, q_=exponents, rho=correlations)
def test_cauchy_schwarz(activation, orders, q, q_, rho):
    pair = expectation(activation, q, q_, rho * np.sqrt(q * q_), orders)
    own, own_ = expectation(activation, q, q, q, orders), expectation(activation, q_, q_, q_, orders)
    bound = np.sqrt((own.value + own.error) * (own_.value + own_.error))
    assert (np.abs(pair.value) <= bound + pair.error).all()


def nodes(low, high, n=32):
    """Gauss–Legendre points between the arrays ``low`` and ``high``, first axis, and their weights."""
    x, w = np.polynomial.legendre.leggauss(n)
    half = (high - low) / 2
    return (low + high) / 2 + half * x[:, None], half * w[:, None]


@pytest.mark.parametrize("activation", ALL, ids=name_of)
@few
@given(q=modest, q_=modest, ends=st.tuples(correlations, correlations))
def test_the_covariance_derivative_is_the_average_of_slopes(activation, q, q_, ends):
    """∂⟨φφ⟩/∂c = ⟨φ'φ'⟩, integrated over c: a sharper test than a finite difference, with nothing to tune."""
    unit = np.sqrt(q * q_)
    low, high = 0.7 * ends[0] * unit, 0.7 * ends[1] * unit
    c, w = nodes(low, high)
    slope = expectation(activation, q + 0 * c, q_ + 0 * c, c, (1, 1))
    start, end = expectation(activation, q, q_, low), expectation(activation, q, q_, high)
    allowed = start.error + end.error + np.sum(np.abs(w) * slope.error, axis=0)
    allowed += 1e-13 * np.sqrt(expectation(activation, q, q, q).value * expectation(activation, q_, q_, q_).value)
    assert (np.abs(end.value - start.value - np.sum(w * slope.value, axis=0)) <= allowed).all()


@pytest.mark.parametrize(
    "activation",
    [
        "relu",
        "abs",
        "erf",
        "gelu",
        "rbf",
        "tanh",
        *(pytest.param(a, marks=pytest.mark.full) for a in ("softplus", "silu")),
        SHIFTED,
    ],
    ids=name_of,
)
@few
@given(q=modest, q_=modest, rho=correlations)
def test_the_variance_derivative_is_half_the_average_of_a_curvature(activation, q, q_, rho):
    """∂⟨φφ⟩/∂q = ½⟨φ''φ⟩ at fixed c and q', integrated from q to 2q (correlation at most 0.7)."""
    c = 0.7 * rho * np.sqrt(q * q_)
    v, w = nodes(q, 2 * q)
    curvature = expectation(activation, v, q_ + 0 * v, c + 0 * v, (2, 0))
    start, end = expectation(activation, q, q_, c), expectation(activation, 2 * q, q_, c)
    allowed = start.error + end.error + np.sum(w * curvature.error, axis=0) / 2
    allowed += 1e-13 * np.sqrt(
        expectation(activation, 2 * q, 2 * q, 2 * q).value * expectation(activation, q_, q_, q_).value
    )
    assert (np.abs(end.value - start.value - np.sum(w * curvature.value, axis=0) / 2) <= allowed).all()


@pytest.mark.parametrize("activation, sign", [(a, -1) for a in ODD] + [(a, 1) for a in EVEN], ids=name_of)
@few
@given(q=exponents, q_=exponents, rho=correlations)
def test_parity(activation, sign, q, q_, rho):
    c = rho * np.sqrt(q * q_)
    for orders, s in (((0, 0), sign), ((1, 1), -sign)):
        plus, minus = expectation(activation, q, q_, c, orders), expectation(activation, q, q_, -c, orders)
        assert (np.abs(plus.value - s * minus.value) <= plus.error + minus.error).all()


@pytest.mark.parametrize("activation", MONOTONE, ids=name_of)
@few
@given(q=exponents, q_=exponents, rho=correlations)
def test_monotone_activations_keep_the_order_of_covariances(activation, q, q_, rho):
    c = np.sort(rho) * np.sqrt(q[:1] * q_[:1])
    result = expectation(activation, q[:1], q_[:1], c)
    assert (np.diff(result.value) >= -(result.error[1:] + result.error[:-1])).all()


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "abs", "linear"])
@few
@given(q=exponents, q_=exponents, rho=correlations, factor=st.floats(0.1, 10))
def test_homogeneous_activations_scale(activation, q, q_, rho, factor):
    c = rho * np.sqrt(q * q_) * (1 - 8 * EPS)
    one, other = expectation(activation, q, q_, c), expectation(activation, factor * q, factor * q_, factor * c)
    allowed = factor * one.error + other.error + factor * rounding("linear", q, q_, c)
    assert (np.abs(factor * one.value - other.value) <= allowed).all()


def assert_roads_agree(activation, orders, q, q_, rho, *methods):
    one, other = (expectation(activation, q, q_, rho * np.sqrt(q * q_), orders, method=method) for method in methods)
    assert (np.abs(one.value - other.value) <= one.error + other.error).all()


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "abs", "erf", "gelu", "quadratic"])
@pytest.mark.parametrize("orders", [(0, 0), (1, 1)])
@few
@given(q=exponents, q_=exponents, rho=correlations)
def test_closed_form_and_quadrature_agree(activation, orders, q, q_, rho):
    assert_roads_agree(activation, orders, q, q_, rho, "closed", "quadrature")


@pytest.mark.parametrize("activation", ["sin", "cos", "rbf"])
@pytest.mark.parametrize("orders", [(0, 0), (1, 1)])
@few
@given(q=modest, q_=modest, rho=correlations)
def test_closed_form_and_quadrature_agree_for_waves(activation, orders, q, q_, rho):
    assert_roads_agree(activation, orders, q, q_, rho, "closed", "quadrature")  # many periods may be refused


@pytest.mark.parametrize("activation", ["erf", "gelu", "tanh", "sigmoid", "softplus", "silu"])
@pytest.mark.parametrize("orders", [(0, 0), (1, 1)])
@few
@given(q=modest, q_=modest, rho=correlations)
def test_series_and_quadrature_agree(activation, orders, q, q_, rho):
    assert_roads_agree(activation, orders, q, q_, rho, "series", "quadrature")


@pytest.mark.parametrize("activation", ["relu", "erf", "tanh", RAMP], ids=name_of)
def test_a_covariance_of_one_rounding_too_much_is_taken_as_the_limit(activation):
    q, q_ = np.array([0.1, 0.3, 7.0, 1e3]), np.array([0.7, 0.3, 1e-3, 11.0])
    c = np.sqrt(q) * np.sqrt(q_)
    limit, beyond = (expectation(activation, q, q_, x) for x in (c * (1 - 2 * EPS), c * (1 + 2 * EPS)))
    allowed = limit.error + beyond.error + rounding(activation, q, q_, c)
    assert (np.abs(limit.value - beyond.value) <= allowed).all()
