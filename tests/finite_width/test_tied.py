"""The 1/n theory with tied weights: exact linear networks, the untied limit, page values, structure."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import widefield as wf
from widefield.gaussian import expectation
from widefield.gaussian.quartic import fourth_moment
from widefield.theories.finite_width.expansion import Question
from widefield.theories.finite_width.solve import solve_with
from widefield.theories.finite_width.tied import relu_growth
from widefield.theories.finite_width.tied.exact_linear import exact_linear
from widefield.theories.finite_width.tied.fluctuations import by_state, expand, on_nodes
from widefield.theories.finite_width.tied.residual import residual
from widefield.theories.finite_width.tied.solve import TiedExpansion

ONE = wf.Task(np.ones((1, 4)))


def solve_tied(network, task, *, width, quantities=None, throw=True, **options):
    """The expansion for tied parameters, also where untied ones would take the layer recursion."""
    with jax.enable_x64(True):
        question = Question(network, task, width, 1e-8, **options)
        return solve_with(TiedExpansion(), question, quantities=quantities, throw=throw)


def inputs(n_samples, seed=0, n_driven=None):
    shape = (n_samples, 3) if n_driven is None else (n_samples, n_driven, 3)
    return wf.Task(np.random.default_rng(seed).normal(size=shape))


def last_row(moments, a=-1, sample=0):
    p = moments.nodes.of[a, sample]
    return moments.rows.of[p, p]


LINEAR = {
    "one input": (wf.RNN(4, "linear", weight_variance=0.9, bias_variance=0.3), inputs(1)),
    "untied bias": (wf.RNN(5, "linear", weight_variance=0.9, bias_variance=0.3, biases="untied"), inputs(1)),
    "two sequences": (wf.RNN(4, "linear", weight_variance=1.2, bias_variance=0.3), inputs(2, 1, 3)),
    "untied weights": (wf.RNN(4, "linear", weight_variance=1.2, bias_variance=0.3, weights="untied"), inputs(2, 2, 2)),
    "untied inputs": (wf.RNN(4, "linear", weight_variance=0.7, inputs="untied"), inputs(2, 3, 4)),
    "six states": (wf.RNN(6, "linear", weight_variance=0.9, bias_variance=0.1), inputs(1, 4)),
}


@pytest.mark.parametrize(
    "case", [name if len(name) > 10 else pytest.param(name, marks=pytest.mark.full) for name in LINEAR]
)
def test_linear_is_the_first_order_of_the_exact_polynomials(case):
    network, task = LINEAR[case]
    exact, moments = exact_linear(network, task, 10), expand(network, task)
    a, b, i, j = exact.pairs.T

    def hh(matrix):
        return by_state(matrix, moments.nodes)[a, b, i, j]

    tight = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(hh(moments.nodes.C), exact.mean_coefficients[0], **tight)
    np.testing.assert_allclose(hh(moments.H1), exact.mean_coefficients[1], **tight)
    np.testing.assert_allclose(hh(moments.Vh), np.diagonal(exact.covariance_coefficients[1]), **tight)
    # Ĉ_pq = B + M (w/n) Σ h h one state earlier.
    number = {(s, k): p for p, (s, k) in enumerate((s, k) for s in range(network.depth) for k in range(task.n_samples))}
    pair = np.zeros((len(number), len(number)), int)
    p, q = ([number[s, k] for s, k in zip(*both, strict=True)] for both in ((a, i), (b, j)))
    pair[p, q] = pair[q, p] = np.arange(len(a))
    rows = pair[moments.rows.x, moments.rows.y]
    w = moments.rows.weight
    np.testing.assert_allclose(moments.G1, w * exact.mean_coefficients[1][rows], **tight)
    np.testing.assert_allclose(
        moments.V, w[:, None] * w * exact.covariance_coefficients[1][np.ix_(rows, rows)], **tight
    )
    if network.weights == "tied":
        assert np.abs(moments.T).max() > 1e-3


def test_exact_linear_matches_the_untied_closed_form():
    """Cov(Ĝ, Ĝ) in closed form, any width, C_b = 0."""
    network, n, w = wf.DNN(4, "linear", weight_variance=1.3), 6, 1.3
    task = inputs(1)
    q = np.mean(task.x**2)
    exact = exact_linear(network, task, n)
    at = np.flatnonzero((exact.pairs[:, 0] == 3) & (exact.pairs[:, 1] == 3))[0]
    assert exact.mean[at] == pytest.approx(w**3 * q, rel=1e-14)
    assert exact.covariance[at, at] == pytest.approx((w**3 * q) ** 2 * ((1 + 2 / n) ** 4 - 1), rel=1e-13)


def layer_recursion(network, task):
    """V and G1 of Eqs. (finite_width.3) and (finite_width.4), as written: every layer, all pairs of samples."""
    phi, n, depth = network.activation, task.n_samples, network.depth
    w, b = network.weight_variances, network.bias_variances
    K = b[0] + network.input_variances[0] * task.x @ task.x.T / task.dimension
    V, G = np.zeros((n,) * 4), np.zeros((n, n))
    result = [(K, V, G)]
    index = np.stack(np.meshgrid(*[range(n)] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    for a in range(1, depth):
        F, D, second = pair_derivatives(phi, K)
        four = fourth_moment(phi, K[index[:, :, None], index[:, None, :]])[0].reshape((n,) * 4)
        moved = np.einsum("abcd,cdef,ghef->abgh", D, V, D)
        G = w[a - 1] * (np.einsum("abcd,cd->ab", D, G) + 0.125 * np.einsum("abcdef,cdef->ab", second, V))
        V = w[a - 1] ** 2 * (four - F[:, :, None, None] * F + moved)
        K = b[a] + w[a - 1] * F
        result.append((K, V, G))
    return result


def pair_derivatives(phi, K):
    """<σσ>, D = ½<∂_c∂_d(σ_aσ_b)> and <∂⁴(σ_aσ_b)>, sums over ordered indices."""
    n = len(K)
    F, D, second = np.zeros((n, n)), np.zeros((n,) * 4), np.zeros((n,) * 6)

    def average(a, b, *orders):
        return float(expectation(phi, K[a, a], K[b, b], K[a, b], orders).value)

    for a in range(n):
        for b in range(n):
            F[a, b] = average(a, b, 0, 0)
            for c in {a, b}:
                for d in {a, b}:
                    D[a, b, c, d] = 0.5 * derivative(average, phi, a, b, (c, d))
                    for e in {a, b}:
                        for f in {a, b}:
                            second[a, b, c, d, e, f] = derivative(average, phi, a, b, (c, d, e, f))
    return F, D, second


def derivative(average, phi, a, b, wrt):
    """<∂_{wrt}(σ_a σ_b)>; for one sample by Leibniz, where relu's fourth derivative of σ² vanishes."""
    if a != b:
        return average(a, b, wrt.count(a), wrt.count(b))
    k = len(wrt)
    if phi.name == "relu":
        return 1.0 if k == 2 else 0.0
    return sum(math.comb(k, j) * average(a, a, j, k - j) for j in range(k + 1))


@pytest.mark.parametrize("activation", ["relu", "erf"])
@pytest.mark.parametrize("n_samples", [1, 2])
def test_untied_weights_are_the_layer_recursion(activation, n_samples):
    network = wf.DNN(4, activation, weight_variance=1.6, bias_variance=0.2)
    task = inputs(n_samples, 3)
    solution = solve_tied(network, task, width=100)
    for a, (K, V, G) in enumerate(layer_recursion(network, task)):
        np.testing.assert_allclose(solution.kernel.values[a], K, rtol=1e-13)
        np.testing.assert_allclose(solution.vertex.values[a], V, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(solution.correction.values[a], G, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("activation", ["erf", pytest.param("sin", marks=pytest.mark.full)])
def test_odd_activations_at_equal_states(activation):
    """Untied biases, input at state 0: equal-state entries are the DNN's, lagged ones still fluctuate."""
    options = {"weight_variance": 1.5, "bias_variance": 0.1, "biases": "untied"}
    task = inputs(2, 5)
    tied, untied = (expand(make(5, activation, **options), task) for make in (wf.RNN, wf.DNN))
    for quantity in ("V", "G1"):
        values = []
        for moments in (tied, untied):
            rows = [moments.rows.of[p, q] for layer in moments.nodes.of[1:] for p in layer for q in layer]
            v = getattr(moments, quantity)
            values.append(v[np.ix_(rows, rows)] if v.ndim == 2 else v[rows])
        np.testing.assert_allclose(values[0], values[1], rtol=1e-11, atol=1e-12)
    lagged = tied.rows.of[tied.nodes.of[3, 0], tied.nodes.of[1, 0]]
    assert tied.V[lagged, lagged] > 0.01 and abs(tied.G1[lagged]) > 1e-3


def single_input_vertex(kernel: np.ndarray, weight_variance: float) -> np.ndarray:
    r"""Equal-state V of one input, relu, tied weights, from the covariances C (state, state\_) alone.

    Eq. (finite_width.28), one cumulative sum. The bracket is 5 at θ = 0 and 0 at θ = π/2.
    """
    C = np.asarray(kernel, float)
    q = np.diag(C)
    size = np.sqrt(np.outer(q, q))
    cosine = np.clip(np.divide(C, size, out=np.zeros_like(C), where=size > 0), -1.0, 1.0)
    theta = np.arccos(cosine)
    J2 = 3 * np.sin(theta) * cosine + (math.pi - theta) * (1 + 2 * cosine**2)
    g = float(weight_variance) / 2
    source = g * g * np.outer(q, q) * (2 * J2 / math.pi - 1)
    V = np.zeros_like(C)
    half = np.zeros_like(C)  # Σ_{i<a} g^{a−i} …, then the same along the other axis
    for a in range(1, len(C)):
        half[a] = g * half[a - 1] + source[a - 1]
    for c in range(1, len(C)):
        V[:, c] = g * V[:, c - 1] + half[:, c - 1]
    return V


def test_relu_without_bias_grows_quadratically():
    """V/C² = 5a for the DNN; 17.1, 64.1, 215 at a = 3, 6, 10 for the RNN, at any w."""
    for w in (1.0, 1.7):
        tied, untied = (expand(make(11, "relu", weight_variance=w), ONE) for make in (wf.RNN, wf.DNN))

        def ratio(moments, a):
            return moments.V[last_row(moments, a), last_row(moments, a)] / moments.nodes.C[a, a] ** 2

        for a, value in ((3, 17.1), (6, 64.1), (10, 215.0)):
            assert ratio(untied, a) == pytest.approx(5 * a, rel=1e-12)
            assert ratio(tied, a) == pytest.approx(value, rel=3e-3)
        closed = single_input_vertex(tied.nodes.C, w)
        rows = [last_row(tied, a) for a in range(1, 11)]
        np.testing.assert_allclose(closed[1:, 1:], tied.V[np.ix_(rows, rows)], rtol=1e-11)


@pytest.mark.parametrize(
    ("activation", "w", "biases", "ratios"),
    [
        pytest.param("relu", 1.6, "untied", (1.35, 1.95, 3.08), marks=pytest.mark.full),
        ("relu", 1.6, "tied", (1.74, 2.91, 5.60)),
        pytest.param("relu", 1.2, "untied", (1.29, 1.58, 1.62), marks=pytest.mark.full),
        pytest.param("relu", 1.2, "tied", (1.93, 3.03, 3.94), marks=pytest.mark.full),
        pytest.param("erf", 1.6, "untied", (1.0, 1.0, 1.0), marks=pytest.mark.full),
        ("erf", 1.6, "tied", (1.08, 1.22, 1.45)),
    ],
)
def test_recurrent_to_deep_table(activation, w, biases, ratios):
    options = {"weight_variance": w, "input_variance": w, "bias_variance": 0.2}
    tied = expand(wf.RNN(11, activation, biases=biases, **options), ONE)
    untied = expand(wf.DNN(11, activation, **options), ONE)
    for a, expected in zip((4, 6, 10), ratios, strict=True):
        V = [moments.V[last_row(moments, a), last_row(moments, a)] for moments in (tied, untied)]
        assert V[0] / V[1] == pytest.approx(expected, abs=0.0075)
    if activation == "relu":
        rows = [last_row(tied, a) for a in range(1, 11)]
        closed = single_input_vertex(tied.nodes.C, w)[1:, 1:]
        np.testing.assert_allclose(closed, tied.V[np.ix_(rows, rows)], rtol=1e-11)


@pytest.mark.parametrize(("activation", "V", "G1"), [("relu", 45.94, 16.37), ("erf", 1.4957, 1.230)])
def test_largest_entries_of_the_ensembles(activation, V, G1):
    """Tied biases, A = 6: the page's largest entries, which its ensembles confirm."""
    moments = expand(wf.RNN(7, activation, weight_variance=1.6, input_variance=1.6, bias_variance=0.2), ONE)
    hidden = moments.rows.of[moments.rows.of >= 0]
    assert moments.V[np.ix_(hidden, hidden)].max() == pytest.approx(V, rel=2e-4)
    assert moments.G1[hidden].max() == pytest.approx(G1, rel=5e-4)


@pytest.mark.full
@pytest.mark.parametrize(("biases", "shift", "variance"), [("untied", 47.6, 40.3), ("tied", 91.6, 100.3)])
def test_figure_1_values(biases, shift, variance):
    network = wf.RNN(31, "relu", weight_variance=1.6, input_variance=1.6, bias_variance=0.2, biases=biases)
    moments = expand(network, wf.Task(np.sqrt(2) * np.ones((1, 4))))
    assert moments.nodes.C[-1, -1] == pytest.approx(1.003, abs=5e-4)
    assert moments.H1[-1, -1] == pytest.approx(shift, abs=0.06)
    assert moments.Vh[-1, -1] == pytest.approx(variance, abs=0.06)


@pytest.mark.full
def test_resummed_figure_3():
    """w = 1.73, b = 0, a = 30: E/C and sd/C of the log-normal form with the H1 and Vh of the expansion."""
    moments = expand(wf.RNN(31, "relu", weight_variance=1.73), ONE)
    C, H1, Vh = (matrix[-1, -1] for matrix in (moments.nodes.C, moments.H1, moments.Vh))
    assert Vh / C**2 == pytest.approx(3108, abs=1)
    for n, mean, sd in (
        (1000, 4.50, None),
        (2000, 2.12, None),
        (2800, 1.71, 2.44),
        (5000, 1.35, 1.25),
        (10**4, 1.162, 0.70),
    ):
        mean_, sd_ = relu_growth.lognormal(C, H1, Vh, n)
        assert mean_ / C == pytest.approx(mean, abs=0.006)
        assert sd is None or sd_ / C == pytest.approx(sd, abs=0.01)


def test_unstable_fractions():
    """Figure 3, w = 1.73, between states 20 and 30."""
    for n, percent in ((250, 14.5), (500, 6.7), (1000, 1.7), (2000, 0.14)):
        fraction = relu_growth.unstable_fraction(1.73, n, rate_variance=4.69)
        assert 100 * fraction == pytest.approx(percent, abs=0.06)
    assert relu_growth.unstable_fraction(2.0, 100) == 0.5
    with pytest.raises(ValueError, match="positive"):
        relu_growth.lognormal(0.0, 1.0, 1.0, 10)


@pytest.mark.parametrize("activation", ["relu", "erf", pytest.param("abs", marks=pytest.mark.full)])
def test_duplicate_opposite_and_zero_inputs(activation):
    """Copies of an input copy its entries; an added zero or opposite input leaves the others alone."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(2, 3))
    network = wf.RNN(4, activation, weight_variance=1.5)
    plain = solve_tied(network, wf.Task(x), width=500)
    more = solve_tied(network, wf.Task(np.stack([x[0], x[1], x[0], -x[0], 0 * x[0]])), width=500)
    for name in ("correction", "vertex", "pair_mean", "pair_variance"):
        wide, narrow = getattr(more, name), getattr(plain, name)
        assert np.isfinite(wide.values).all()
        at = {dim: [0, 1] for dim in narrow.dims if dim.startswith("sample")}
        np.testing.assert_allclose(wide.isel(at).values, narrow.values, rtol=1e-9, atol=1e-11)
        copied = {dim: [2, 1] for dim in at}
        np.testing.assert_allclose(wide.isel(copied).values, narrow.values, rtol=1e-9, atol=1e-11)


def test_vertex_is_a_covariance():
    """Symmetric, positive, and invariant under a permutation of the samples."""
    network = wf.RNN(4, "relu", weight_variance=1.6, bias_variance=0.2)
    task = inputs(2, 8, 3)
    solution = solve_tied(network, task, width=100, quantities=("pair_vertex", "vertex", "correction"))
    V = solution.pair_vertex.values
    np.testing.assert_array_equal(V, V.T)
    assert np.linalg.eigvalsh(V).min() > -1e-10 * np.abs(V).max()
    swapped = solve_tied(network, wf.Task(task.x[::-1]), width=100)
    np.testing.assert_allclose(swapped.vertex.values, solution.vertex.values[:, ::-1, ::-1, ::-1, ::-1], rtol=1e-9)
    np.testing.assert_allclose(
        swapped.correction.values, solution.correction.values[:, ::-1, ::-1], rtol=1e-9, atol=1e-12
    )


def test_notes_and_refusals():
    network = wf.RNN(12, "relu", weight_variance=1.9)
    solution = solve_tied(network, ONE, width=20, throw=False)
    assert solution.status is wf.Status.inaccurate and any("not trustworthy" in note for note in solution.notes)
    assert solve_tied(network, ONE, width=solution.certificate.diagnostics["width_needed"]).status is wf.Status.success
    assert any("lognormal resums" in note for note in solution.notes)
    assert solution.certificate.diagnostics["unstable_fraction"] == pytest.approx(
        relu_growth.unstable_fraction(1.9, 20), rel=1e-12
    )
    wide = solve_tied(wf.RNN(3, "relu", weight_variance=1.2), ONE, width=10**6)
    assert not wide.notes
    with pytest.raises(ValueError, match="quadruples"):
        solve_tied(network, ONE, width=20, quadruples=[[0, 0, 0, 0]])
    with pytest.raises(ValueError, match="linear"):
        exact_linear(network, ONE, 10)
    with pytest.raises(ValueError, match="`depth`"):
        exact_linear(wf.RNN(12, "linear"), ONE, 10)


RESIDUAL = {
    "relu, two samples": (wf.RNN(3, "relu", weight_variance=1.6, bias_variance=0.2), inputs(2)),
    "erf, sequence": (wf.RNN(3, "erf", weight_variance=1.6, bias_variance=0.2), inputs(1, 1, 2)),
    "linear, no readout": (wf.RNN(4, "linear", weight_variance=0.9, readout_variance=None), inputs(1)),
    "untied weights": (wf.RNN(3, "relu", weight_variance=1.6, bias_variance=0.2, weights="untied"), inputs(1)),
    "tanh": (wf.RNN(2, "tanh", weight_variance=1.6, bias_variance=0.2), inputs(1)),
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.full] * (case == "tanh")) for case in RESIDUAL])
def test_residual_sees_what_is_wrong(case):
    """Small for what the solve returns, and as large as the mistake for C, V, G1, κ or T that are 1 % off."""
    network, task = RESIDUAL[case]
    with jax.enable_x64(True):
        moments = expand(network, task)
        assert residual(network, task, moments) < 1e-10
        for name in ("V", "G1", "kappa", "T"):
            value = getattr(moments, name)
            if np.any(value):
                wrong = dataclasses.replace(moments, **{name: 1.01 * value})
                assert residual(network, task, wrong) > 1e-4, name
        nodes = dataclasses.replace(moments.nodes, C=1.01 * moments.nodes.C)
        assert residual(network, task, dataclasses.replace(moments, nodes=nodes)) > 1e-4


def test_public_call_reports_its_residual():
    for activation in ("relu", "erf"):
        solution = solve_tied(wf.RNN(3, activation, weight_variance=1.6, bias_variance=0.2), ONE, width=50)
        assert 0 < solution.residual < 1e-10
    still = solve_tied(wf.RNN(2, "relu", weight_variance=0.0, readout_variance=None), ONE, width=50)
    assert still.residual == 0.0


def test_progress_is_shown_on_request(capsys):
    solve_tied(wf.RNN(3, "erf"), ONE, width=50, progress=True)
    assert "four-point averages" in capsys.readouterr().err


def test_readout_is_one_more_untied_layer():
    """Without correlated states the readout is the next layer of a deep network with w → v."""
    deep = wf.DNN(4, "relu", weight_variance=1.3, bias_variance=0.1)
    short = wf.DNN(3, "relu", weight_variance=1.3, bias_variance=0.1, readout_variance=1.3, readout_bias_variance=0.1)
    task = inputs(2, 9)
    full, read = (solve_tied(network, task, width=100) for network in (deep, short))
    for name in ("kernel", "correction", "vertex"):
        np.testing.assert_allclose(getattr(read, name).values[3], getattr(full, name).values[3], rtol=1e-10, atol=1e-12)
    plain = solve_tied(wf.RNN(3, "relu", readout_variance=None), task, width=100)
    assert len(plain.kernel) == 3


def test_on_nodes_leaves_fixed_pairs_at_zero():
    moments = expand(wf.RNN(3, "erf"), ONE)
    matrix = on_nodes(moments.G1, moments.rows)
    assert np.all(matrix[0] == 0) and np.all(matrix[:, 0] == 0)


def test_outputs_at_different_states_of_an_untied_network():
    """Given the first layer the second is Gaussian: Ŷ_01 of relu has mean and variance by the delta method in (φ, φ²).

    The noise of φ² of the first layer acts back on <φ_0φ_1>, though nothing is tied: without T the sign would be wrong.
    """
    w, b, v = 1.4, 0.2, 1.3
    network = wf.DNN(2, "relu", weight_variance=w, bias_variance=b, readout_variance=v, readout_bias_variance=0.1)
    with jax.enable_x64(True):
        moments = expand(network, ONE, read=np.ones((2, 1), bool))
    one, two, three, four = np.sqrt(1.2 / (2 * np.pi)), 0.6, 2 * 1.2**1.5 / np.sqrt(2 * np.pi), 1.5 * 1.2**2
    q = b + w * two
    mean, slope, bend = (k * q**p for k, p in ((1, 0.5), (w / 2, -0.5), (-(w**2) / 4, -1.5)))  # of √q in φ²
    mean, slope, bend = (part / np.sqrt(2 * np.pi) for part in (mean, slope, bend))
    shift = slope * (three - one * two) + 0.5 * one * bend * (four - two**2)
    within = two * (q / 2 - mean**2)
    between = (
        mean**2 * (two - one**2) + 2 * mean * one * slope * (three - one * two) + (one * slope) ** 2 * (four - two**2)
    )
    row = moments.rows.output[0, 1]
    assert moments.response.mean[row] == pytest.approx(one * mean, rel=1e-12)
    assert moments.G1[row] == pytest.approx(v * shift, rel=1e-11)
    assert moments.V[row, row] == pytest.approx(v**2 * (within + between), rel=1e-11)
    assert (moments.G1 - moments.response.R @ moments.T)[row] < 0 < moments.G1[row]
