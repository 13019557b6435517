"""Four-node averages: exact cases, brute-force integrals, Monte Carlo, and gradients against finite differences."""

from itertools import permutations

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

import widefield as wf
from widefield.gaussian import expectation
from widefield.gaussian.quartic import fourth_moment, fourth_moment_and_gradient, fourth_moment_gradient

FUNCTIONS = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "abs": np.abs,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "erf": scipy.special.erf,
    "sin": np.sin,
    "cos": np.cos,
    "rbf": lambda x: np.sqrt(2) * np.sin(np.sqrt(2) * x + np.pi / 4),
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": scipy.special.expit,
}
NAMES = [
    pytest.param(name, marks=pytest.mark.full) if name in ("sigmoid", "leaky_relu") else name for name in FUNCTIONS
]
CHEAP = [name for name in FUNCTIONS if name not in ("tanh", "sigmoid")]
KINKED = ("relu", "abs", "leaky_relu")


def covariances(n, seed, scale=0.4):
    factors = np.random.default_rng(seed).normal(size=(n, 4, 4))
    return scale * np.einsum("bij,bkj->bik", factors, factors)


def from_nodes(nodes):
    """Covariance of four linear combinations of independent normals."""
    nodes = np.asarray(nodes, float)
    return (nodes @ nodes.T)[None]


def test_linear_is_isserlis():
    C = covariances(50, 0)
    exact = C[:, 0, 1] * C[:, 2, 3] + C[:, 0, 2] * C[:, 1, 3] + C[:, 0, 3] * C[:, 1, 2]
    np.testing.assert_allclose(fourth_moment("linear", C)[0], exact, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_independent_pairs_factorize(name):
    C = covariances(3, 1)
    C[:, :2, 2:] = C[:, 2:, :2] = 0
    pairs = [expectation(name, C[:, i, i], C[:, j, j], C[:, i, j]).value for i, j in ((0, 1), (2, 3))]
    value, error = fourth_moment(name, C)
    np.testing.assert_allclose(value, pairs[0] * pairs[1], rtol=1e-9, atol=1e-10)
    assert np.all(np.abs(value - pairs[0] * pairs[1]) <= error + 1e-10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("q", [0.3, 2.0])
def test_one_node(name, q):
    """All four coincide, or two are opposite to the other two: a one-dimensional integral."""
    density = scipy.stats.norm(scale=np.sqrt(q)).pdf
    phi = FUNCTIONS[name]
    for n_opposite in (0, 1, 2):
        sign = np.ones(4)
        sign[:n_opposite] = -1

        def integrand(x, m=n_opposite):
            return density(x) * phi(x) ** (4 - m) * phi(-x) ** m

        exact = sum(scipy.integrate.quad(integrand, *ends, epsabs=1e-13)[0] for ends in ((-30, 0), (0, 30)))
        value, error = fourth_moment(name, q * np.outer(sign, sign)[None])
        assert value[0] == pytest.approx(exact, rel=2e-9, abs=2e-10)
        assert abs(value[0] - exact) <= error[0] + 1e-10


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pattern", ["xxxy", "xxyy", "xyyx"])
def test_two_nodes(name, pattern):
    q, p, c = 0.8, 1.5, -0.6
    small = np.array([[q, c], [c, p]])
    index = ["xy".index(letter) for letter in pattern]
    k = pattern.count("x")
    a = np.sqrt(q)
    b, rest = c / a, np.sqrt(p - c * c / q)
    phi = FUNCTIONS[name]

    def inner(z):
        m = b * z

        def f(y):
            return phi(m + rest * y) ** (4 - k) * np.exp(-0.5 * y * y)

        kink = np.clip(-m / rest, -12, 12)
        return sum(scipy.integrate.quad(f, *ends, epsabs=1e-11, epsrel=1e-10)[0] for ends in ((-12, kink), (kink, 12)))

    def outer(z):
        return phi(a * z) ** k * np.exp(-0.5 * z * z) * inner(z) / (2 * np.pi)

    exact = sum(scipy.integrate.quad(outer, *ends, epsabs=1e-10, epsrel=1e-9)[0] for ends in ((-12, 0), (0, 12)))
    value, _ = fourth_moment(name, small[np.ix_(index, index)][None])
    assert value[0] == pytest.approx(exact, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_monte_carlo(name):
    """Student limit on independent samples; a value 3 % off must be rejected."""
    n_samples, C = 400_000, covariances(4, 3, 0.2)
    rng = np.random.default_rng(4)
    value, _ = fourth_moment(name, C)
    limit = scipy.stats.t.isf(1e-6 / (2 * len(C)), n_samples - 1)
    seen = False
    for b in range(len(C)):
        x = rng.normal(size=(n_samples, 4)) @ np.linalg.cholesky(C[b]).T
        f = FUNCTIONS[name](x).prod(axis=1)
        error = f.std(ddof=1) / np.sqrt(n_samples)
        assert abs(f.mean() - value[b]) <= limit * error
        seen |= abs(f.mean() - 1.03 * value[b]) > limit * error
    assert seen or name not in ("cos", "sigmoid", "abs", "rbf")


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradient_do_not_depend_on_order(name):
    C = covariances(1, 5)
    value, gradient = fourth_moment(name, C)[0], fourth_moment_gradient(name, C)
    for order in list(permutations(range(4)))[1 :: 23 if name in ("tanh", "sigmoid") else 3]:
        again = C[:, order][:, :, order]
        np.testing.assert_allclose(fourth_moment(name, again)[0], value, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(
            fourth_moment_gradient(name, again), gradient[:, order][:, :, order], rtol=1e-8, atol=1e-10
        )


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_finite_difference(name):
    rng = np.random.default_rng(6)
    C = covariances(2, 7)
    step = 1e-4 if name in ("tanh", "sigmoid") else 1e-5
    gradient = fourth_moment_gradient(name, C)
    np.testing.assert_array_equal(gradient, gradient.transpose(0, 2, 1))
    A = rng.normal(size=C.shape)
    direction = np.einsum("bij,bjk,bkl->bil", C, A + A.transpose(0, 2, 1), C)
    up, down = (fourth_moment(name, C + sign * step * direction)[0] for sign in (1, -1))
    slope = 0.5 * np.einsum("bef,bef->b", gradient, direction)
    np.testing.assert_allclose((up - down) / (2 * step), slope, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", CHEAP)
@pytest.mark.parametrize("pattern", ["xxyz", "xyzz", "xxyy", "xxxy", "xxxx"])
def test_gradient_where_nodes_coincide(name, pattern):
    """The merged nodes move; each factor keeps its own row of the gradient."""
    rng = np.random.default_rng(8)
    letters = sorted(set(pattern))
    index = [letters.index(letter) for letter in pattern]
    nodes = rng.normal(size=(len(letters), 3)) * 0.6
    move = rng.normal(size=nodes.shape)

    def C(t):
        return from_nodes((nodes + t * move)[index])

    step = 1e-5
    up, down = (fourth_moment(name, C(sign * step))[0][0] for sign in (1, -1))
    change = (C(step) - C(-step)) / (2 * step)
    slope = 0.5 * np.sum(fourth_moment_gradient(name, C(0)) * change)
    assert (up - down) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("angle", [1e-2, 1e-3, 1e-4, 1e-5, 1e-7, 1e-9])
def test_relu_near_duplicates(angle):
    """Permutations condition in another order, and the duplicate is an angle away."""
    rng = np.random.default_rng(9)
    nodes = rng.normal(size=(4, 4))
    merged = nodes.copy()
    merged[1] = nodes[0]
    nodes[1] = np.cos(angle) * nodes[0] + np.sin(angle) * nodes[1]
    C, at_duplicate = from_nodes(nodes), from_nodes(merged)
    values = [fourth_moment("relu", C[:, order][:, :, order])[0][0] for order in permutations(range(4))]
    assert np.ptp(values) <= 2e-8 * max(values)
    expected = 0.5 * np.sum(fourth_moment_gradient("relu", at_duplicate) * (C - at_duplicate))
    assert values[0] - fourth_moment("relu", at_duplicate)[0][0] == pytest.approx(expected, abs=30 * angle**1.5 + 2e-8)


@pytest.mark.parametrize("name", KINKED)
def test_kinked_values_and_gradients_come_together(name):
    C = covariances(5, 10)
    value, error, gradient = fourth_moment_and_gradient(name, C)
    np.testing.assert_array_equal(value, fourth_moment(name, C)[0])
    np.testing.assert_array_equal(error, fourth_moment(name, C)[1])
    np.testing.assert_array_equal(gradient, fourth_moment_gradient(name, C))


@pytest.mark.parametrize("name", NAMES)
def test_a_node_of_zero_variance_is_a_constant(name):
    C = covariances(1, 11)
    C[:, 3] = C[:, :, 3] = 0
    three = C.copy()
    three[:, 3] = three[:, :, 3] = 0
    value, _ = fourth_moment(name, C)
    at_zero = FUNCTIONS[name](0.0)
    if at_zero == 0:
        assert abs(value[0]) <= 1e-12
    assert np.isfinite(fourth_moment_gradient(name, C)).all()


def test_error_is_honest_for_an_undeclared_kink():
    """relu passed off as a smooth function: the grid converges slowly, and says so."""
    C = covariances(2, 12)
    user = wf.Activation(lambda x: jnp.maximum(x, 0))
    value, error = fourth_moment(user, C)
    exact, _ = fourth_moment("relu", C)
    assert np.all(np.abs(value - exact) <= 3 * error)
    assert np.all(error > 1e-7)


def test_bad_input():
    with pytest.raises(ValueError, match="`covariance`"):
        fourth_moment("relu", np.eye(4))
    with pytest.raises(ValueError, match="symmetric"):
        fourth_moment("relu", np.triu(np.ones((4, 4)))[None])
    with pytest.raises(ValueError, match="`covariance` must lie within"):
        fourth_moment("relu", (2 * np.ones((4, 4)) - 1.5 * np.eye(4))[None])
    ramp = wf.Activation(lambda x: jnp.clip(x, -1, 1), breaks=(-1, 1))
    with pytest.raises(ValueError, match="must be smooth"):
        fourth_moment_gradient(ramp, np.eye(4)[None])
