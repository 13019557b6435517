"""Deep networks at first order in 1/n: closed forms, the printed equations, symmetries, and hard inputs."""

import dataclasses
import math
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import widefield as wf
from widefield.theories.finite_width import finite_width

from .literal import linear_covariance, literal

RNG = np.random.default_rng(5)
X = RNG.normal(size=(3, 4))
VARIANCES = {"weight_variance": 1.4, "bias_variance": 0.15, "readout_variance": 1.2, "readout_bias_variance": 0.05}
WIDTHS = (1.0, 1.5, 0.5)
FUNCTIONS = {"erf": scipy.special.erf, "tanh": np.tanh, "sin": np.sin}
PAIRS = ("kernel", "correction", "vertex_pairs")


def first_kernel(x, bias):
    return bias + x @ x.T / x.shape[1]


@lru_cache
def solved(activation, depth=3, n_samples=3, quantities=None, **changes):
    net = wf.DNN(depth, activation, **VARIANCES | changes)
    return finite_width(net, wf.Task(X[:n_samples]), width=40, quantities=quantities)


def linear_vertex(K):
    return np.einsum("ac,bd->abcd", K, K) + np.einsum("ad,bc->abcd", K, K)


# Closed forms.


@pytest.mark.parametrize("widths", [(1.0, 1.0, 1.0), (0.7, 2.0, 1.1)])
def test_linear(widths):
    """V/n = (Σ 1/n_ℓ)(K13 K24 + K14 K23) and no correction."""
    net = wf.DNN(3, "linear", weight_variance=(0.8, 1.3), readout_variance=1.7, widths=widths)
    solution = finite_width(net, wf.Task(X), width=100)
    inverse = np.cumsum([0.0, *(1 / n for n in net.sizes(100))])
    expected = np.stack([s * linear_vertex(K) for s, K in zip(inverse, solution.kernel.values, strict=True)])
    np.testing.assert_allclose(solution.connected, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(solution.correction, 0, atol=1e-14)
    np.testing.assert_allclose(solution.kernel[-1], 0.8 * 1.3 * 1.7 * X @ X.T / 4, rtol=1e-13)


@pytest.mark.parametrize("widths", [(1.0,) * 6, (0.5, 2.0, 1.0, 1.5, 0.8, 1.0)])
def test_relu_single_input(widths):
    """V/n = 5K² Σ 1/n_ℓ at the critical weight variance."""
    net = wf.DNN(6, "relu", weight_variance=2.0, readout_variance=2.0, widths=widths)
    solution = finite_width(net, wf.Task(X[:1]), width=200)
    inverse = np.cumsum([0.0, *(1 / n for n in net.sizes(200))])
    K = first_kernel(X[:1], 0.0)[0, 0]
    np.testing.assert_allclose(solution.connected.values.ravel(), 5 * K**2 * inverse, rtol=1e-12)
    np.testing.assert_allclose(solution.kurtosis.values.ravel(), 15 * inverse, rtol=1e-12)
    np.testing.assert_allclose(solution.correction, 0, atol=1e-13)


def test_relu_angle_of_two_inputs():
    """<a+² b+²> = (3 sinθ cosθ + (π−θ)(1 + 2cos²θ)) qq'/2π, and the first correction of the off-diagonal."""
    net = wf.DNN(2, "relu", weight_variance=2.0, readout_variance=2.0)
    solution = finite_width(net, wf.Task(X[:2]), width=50, quantities=PAIRS)
    K = solution.kernel.values[0]
    cos = K[0, 1] / math.sqrt(K[0, 0] * K[1, 1])
    angle = math.acos(cos)
    square = K[0, 0] * K[1, 1] / (2 * math.pi) * (3 * math.sin(angle) * cos + (math.pi - angle) * (1 + 2 * cos**2))
    pair = solution.vertex_pairs.sel(layer=2, pair="11", pair_="22").values[0, 1]
    assert pair == pytest.approx(4 * (square - K[0, 0] * K[1, 1] / 4), rel=1e-12)
    assert np.all(solution.correction.values[:2] == 0) and solution.correction.values[2, 0, 1] != 0
    np.testing.assert_allclose(np.diagonal(solution.correction.values[2]), 0, atol=1e-14)


def test_tanh_at_criticality():
    """V/(K²ℓ) → 2/3; the 1/ℓ that is left at depth is extrapolated away."""
    solution = finite_width(wf.DNN(40, "tanh"), wf.Task(X[:1]), width=100, quantities=("ratio",))
    ratio = 100 * solution.ratio.values
    layer = solution.layer.values - 1
    extrapolated = 2 * ratio[40] / layer[40] - ratio[20] / layer[20]
    assert abs(extrapolated - 2 / 3) < 0.02


# The printed equations.


@pytest.mark.parametrize("activation", ["erf", "tanh", "sin"])
def test_stable_form_is_the_printed_one(activation):
    """Two inputs at good conditioning, unequal widths, biases."""
    solution = solved(activation, n_samples=2, quantities=(*PAIRS, "vertex"), widths=WIDTHS)
    K = first_kernel(X[:2], 0.15)
    expected = literal(FUNCTIONS[activation], K, (1.4, 1.4, 1.2), (0.15, 0.15, 0.05), (40, 60, 20))
    for name, value in zip(("kernel", "vertex", "correction"), expected, strict=True):
        np.testing.assert_allclose(solution.data[name], value, rtol=1e-9, atol=1e-10, err_msg=name)
    n = np.array([np.inf, 40, 60, 20])[:, None, None]
    np.testing.assert_allclose(
        solved(activation, n_samples=2, widths=WIDTHS).covariance, expected[0] + expected[2] / n, rtol=1e-8
    )


def test_three_inputs_of_the_printed_form():
    """The full tensor, with four-point averages over three different samples."""
    solution = solved("erf", depth=2)
    expected = literal(scipy.special.erf, first_kernel(X, 0.15), (1.4, 1.2), (0.15, 0.05), (20, 20), spacing=0.3)
    np.testing.assert_allclose(solution.vertex, expected[1], rtol=0, atol=1e-8)
    np.testing.assert_allclose(solution.correction, expected[2], rtol=0, atol=1e-8)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_near_duplicates_approach_duplicates(activation):
    """Up to condition 1e20 the distance to the results of duplicates is at most of the order of the gap."""
    net = wf.DNN(3, activation, weight_variance=1.5)
    inputs = {gap: np.stack([X[0], X[0] + gap * X[1], X[2]]) for gap in (0.0, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-2)}
    solution = {gap: finite_width(net, wf.Task(x), width=100, quantities=PAIRS).data for gap, x in inputs.items()}
    same = solution[0.0].correction.values[-1]
    np.testing.assert_allclose(same[0], same[1], atol=1e-15)
    assert np.abs(same).max() > 1e-3
    for gap, data in solution.items():
        for name in PAIRS:
            np.testing.assert_allclose(
                data[name], solution[0.0][name], rtol=0, atol=30 * gap + 1e-10, err_msg=f"{name} {gap}"
            )


# Inputs that defeat an inverse.


def test_opposite_and_zero_inputs():
    """An odd network maps −x to −z, so every entry follows by a sign; a zero input stays zero without biases."""
    x = np.stack([X[0], -X[0], np.zeros(4), X[1]])
    solution = finite_width(wf.DNN(3, "tanh", weight_variance=1.5), wf.Task(x), width=20)
    G, V = solution.correction.values, solution.vertex.values
    np.testing.assert_allclose(G[:, 0, 1], -G[:, 0, 0], atol=1e-14)
    np.testing.assert_allclose(G[:, 0, 3], -G[:, 1, 3], atol=1e-14)
    np.testing.assert_allclose(V[:, 0, 1, 0, 3], -V[:, 0, 0, 0, 3], atol=1e-9)
    assert np.all(G[:, 2] == 0)
    np.testing.assert_allclose(V[:, 2], 0, atol=1e-15)


def test_collinear_relu_inputs_are_scaled_copies():
    """Positive homogeneity without biases: x → 2x doubles z, exactly along the whole flow."""
    x = np.stack([X[0], 2 * X[0], X[1], 3 * X[1]])
    solution = finite_width(wf.DNN(4, "relu", weight_variance=1.7), wf.Task(x), width=100, quantities=PAIRS)
    G, V = solution.correction.values, solution.vertex_pairs.values
    np.testing.assert_allclose(G[:, 1, 3], 6 * G[:, 0, 2], rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(V[:, 1, 3, 1, 1], 36 * V[:, 0, 2, 1, 1], rtol=1e-10)
    np.testing.assert_allclose(V[:, 0, 1, 1, 1], 4 * V[:, 0, 0, 1, 1], rtol=1e-7)
    np.testing.assert_allclose(G[:, 0, 1], 0, atol=1e-10)


def test_more_inputs_than_dimensions():
    x = np.random.default_rng(1).normal(size=(6, 2))
    solution = finite_width(wf.DNN(3, "erf"), wf.Task(x), width=20, quantities=PAIRS)
    alone = finite_width(wf.DNN(3, "erf"), wf.Task(x[2:4]), width=20, quantities=PAIRS)
    for name in PAIRS:
        np.testing.assert_allclose(
            solution.data[name].values[:, 2:4, 2:4], alone.data[name].values, rtol=1e-11, atol=1e-14
        )


# Symmetries.


@settings(max_examples=6, deadline=None)
@given(st.permutations(range(3)), st.sampled_from(["relu", "erf"]))
def test_samples_may_be_permuted(order, activation):
    whole = solved(activation)
    moved = finite_width(wf.DNN(3, activation, **VARIANCES), wf.Task(X[list(order)]), width=40)
    at = np.ix_(range(4), order, order)
    np.testing.assert_allclose(moved.correction, whole.correction.values[at], rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(moved.vertex, whole.vertex.values[np.ix_(range(4), *[order] * 4)], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "erf", "tanh", "linear"])
def test_vertex_is_a_covariance(activation):
    """Symmetric in each pair and under their exchange, positive semi-definite over pairs, and the same on pairs alone."""
    solution = solved(activation)
    V = solution.vertex.values
    for axes in ((0, 2, 1, 3, 4), (0, 1, 2, 4, 3), (0, 3, 4, 1, 2)):
        np.testing.assert_allclose(V, V.transpose(axes), atol=1e-14)
    i, j = np.triu_indices(3)
    matrix = V[:, i, j][:, :, i, j]
    assert np.linalg.eigvalsh(matrix).min() > -1e-9 * matrix.max()
    blocks = solution.vertex_pairs.values
    np.testing.assert_allclose(blocks[..., 1, 1], V[:, *np.indices((3, 3)), *np.indices((3, 3))], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(
        solution.kernel_variance, blocks[..., 1, 1] / np.array([np.inf, 40, 40, 40])[:, None, None]
    )


def test_chosen_quadruples_are_entries_of_the_tensor():
    rows = [(0, 1, 2, 0), (2, 2, 0, 1), (0, 0, 0, 0), (1, 0, 0, 2)]
    net, task = wf.DNN(3, "relu", **VARIANCES), wf.Task(X)
    solution = finite_width(net, task, width=40, quadruples=rows, quantities=("vertex_quadruples",))
    with pytest.raises(wf.SolveError, match="beyond the reach"):
        finite_width(net, task, width=4, quadruples=rows, quantities=("vertex_quadruples",))
    expected = solved("relu").vertex.values[:, *np.transpose(rows)]
    np.testing.assert_allclose(solution.vertex_quadruples, expected, rtol=1e-10, atol=1e-13)
    assert list(solution.data.quadruple.values[:1]) == ["(0,1)(2,0)"]


def test_inputs_at_later_layers_only_add_to_the_kernel():
    """Driven at two states: the same as a network whose second bias is the second input's variance, for one sample."""
    x = np.zeros((1, 2, 4))
    x[0, 0] = X[0]
    x[0, 1] = 2.0
    driven = finite_width(wf.DNN(3, "erf", inputs="untied"), wf.Task(x), width=20, quantities=PAIRS)
    biased = finite_width(wf.DNN(3, "erf", bias_variance=(0.0, 4.0, 0.0)), wf.Task(X[:1]), width=20, quantities=PAIRS)
    for name in PAIRS:
        np.testing.assert_allclose(driven.data[name].values, biased.data[name].values, rtol=1e-12)


def test_hidden_state_is_read_directly():
    with_readout = solved("erf", quantities=PAIRS)
    net = wf.DNN(3, "erf", **VARIANCES | {"readout_variance": None})
    solution = finite_width(net, wf.Task(X), width=20, quantities=PAIRS)
    for name in PAIRS:
        np.testing.assert_allclose(solution.data[name], with_readout.data[name].values[:3], rtol=1e-12)


@pytest.mark.full
def test_user_functions_and_kinks():
    """A user's tanh is tanh; a hard tanh has a vertex but no correction."""
    mine = finite_width(
        wf.DNN(2, wf.Activation(lambda x: jnp.tanh(x)), **VARIANCES), wf.Task(X[:2]), width=20, quantities=PAIRS
    )
    named = finite_width(wf.DNN(2, "tanh", **VARIANCES), wf.Task(X[:2]), width=20, quantities=PAIRS)
    for name in PAIRS:
        np.testing.assert_allclose(mine.data[name], named.data[name], rtol=1e-12)
    ramp = wf.Activation(lambda x: jnp.clip(x, -1, 1), breaks=(-1, 1), name="ramp")
    solution = finite_width(wf.DNN(2, ramp), wf.Task(X[:1]), width=20)
    assert "correction" not in solution.data and solution.notes
    sd = math.sqrt(solution.kernel.values[0, 0, 0])
    moment = lambda k: scipy.integrate.quad(lambda z: (sd * z) ** k * scipy.stats.norm.pdf(z), 0, 1 / sd)[0]  # noqa: E731
    mean, fourth = (2 * (moment(k) + scipy.stats.norm.sf(1 / sd)) for k in (2, 4))
    assert solution.vertex.values[1].item() == pytest.approx(fourth - mean**2, rel=1e-9)


# The public call.


@pytest.mark.parametrize("quantities", [None, "ratio", "correction", "vertex"])
def test_beyond_the_trusted_depth_there_is_no_success(quantities):
    """V/(nK²) = 5 · 8/n of relu: 0.3 is the limit, and the width that meets it is named; the kernel alone has no width."""
    net = wf.DNN(8, "relu", weight_variance=2.0, readout_variance=2.0)
    solve = lambda n, **options: finite_width(net, wf.Task(X[:1]), width=n, quantities=quantities, **options)  # noqa: E731
    with pytest.raises(wf.SolveError, match="beyond the reach of the expansion.*width 134 or more would do"):
        solve(40)
    narrow = solve(40, throw=False)
    assert narrow.status is wf.Status.inaccurate
    assert (
        narrow.certificate.checks["expansion"].value == pytest.approx(1.0)
        and not narrow.certificate.checks["expansion"].met
    )
    assert narrow.certificate.diagnostics == {"trusted_layers": 3, "width_needed": math.ceil(5 * 8 / 0.3)}
    assert solve(134).status is wf.Status.success and solve(133, throw=False).status is wf.Status.inaccurate
    assert finite_width(net, wf.Task(X[:1]), width=1, quantities="kernel").status is wf.Status.success


def test_the_needed_width_survives_rounding():
    """5 · 6/n = 0.3 exactly at n = 100, whatever the roundings of V."""
    net = wf.DNN(6, "relu", weight_variance=2.0, readout_variance=2.0)
    narrow = finite_width(net, wf.Task(X[:1]), width=1, throw=False)
    assert narrow.status is wf.Status.inaccurate and narrow.certificate.diagnostics["width_needed"] == 100
    assert finite_width(net, wf.Task(X[:1]), width=100).status is wf.Status.success


def test_many_samples_leave_the_tensor_out():
    x = np.random.default_rng(0).normal(size=(20, 3))
    solution = finite_width(wf.DNN(2, "relu"), wf.Task(x), width=50)
    assert solution.certificate.left_out == ("vertex", "connected") and "vertex_pairs" in solution.data


def test_bad_input_is_named():
    net, task = wf.DNN(2, "relu"), wf.Task(X)
    for match, changes in (
        ("`width`", {"width": 0}),
        ("`quadruples`", {"quadruples": [(0, 1, 2)]}),
        ("`quadruples`", {"quadruples": [(0, 1, 2, 3)]}),
        ("`quantities` must be one of", {"quantities": "nonsense"}),
        ("`rtol`", {"rtol": 0.0}),
    ):
        with pytest.raises(ValueError, match=match):
            finite_width(net, task, **{"width": 10} | changes)
    with pytest.raises(ValueError, match="finite_width.*ResNet"):
        finite_width(dataclasses.replace(net, branch=1.0), task, width=10)
    step = wf.Activation(lambda x: jnp.where(x > 0, 1.0, 0.0), breaks=(0.0,), name="step")
    with pytest.raises(ValueError, match="finite_width"):
        finite_width(wf.DNN(2, step), task, width=10)


def test_exact_covariance_contains_the_leading_order():
    """The exact form at widths N·(7, 20, 11) approaches V/n like 1/N²."""
    net = wf.DNN(3, "linear", widths=(7.0, 20.0, 11.0))
    off = []
    for width in (10, 20):
        solution = finite_width(net, wf.Task(X), width=width)
        exact = linear_covariance(solution.kernel.values[-1], net.sizes(width))
        off.append(np.abs(solution.connected.values[-1] - exact).max())
    assert off[0] / off[1] == pytest.approx(4, rel=0.1)
