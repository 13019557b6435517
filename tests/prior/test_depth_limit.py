"""`widefield.depth_limit` against closed forms, published values, integrals of its own, and the recursion itself."""

import numpy as np
import pytest
import scipy.optimize

import widefield as wf

Z = np.linspace(-12, 12, 4801)
WEIGHT = np.exp(-(Z**2) / 2) * (Z[1] - Z[0]) / np.sqrt(2 * np.pi)


def mean(function, q):
    """Average over a node of variance q by the trapezoid rule, exact to rounding for the smooth functions used here."""
    return float(WEIGHT @ function(np.sqrt(q) * Z))


def limit(activation, w, b, **options):
    return wf.depth_limit(wf.DNN(3, activation, weight_variance=w, bias_variance=b, **options))


@pytest.mark.parametrize("w, b", [(1.2, 0.3), (0.4, 2.0), (1.9, 0.05)])
def test_relu_fixed_point(w, b):
    """q* = b/(1 − w/2), reached as (w/2)^a; two inputs become one."""
    solution = limit("relu", w, b)
    np.testing.assert_allclose(solution.variance, b / (1 - w / 2), rtol=1e-10)
    np.testing.assert_allclose(solution.susceptibility, w / 2, rtol=1e-12)
    np.testing.assert_allclose(
        [solution.variance_depth_scale, solution.correlation_depth_scale], -1 / np.log(w / 2), rtol=1e-10
    )
    assert solution.correlation == 1.0 and solution.phase == "ordered"
    np.testing.assert_allclose(solution.critical_weight_variance, 2.0, rtol=1e-9)


def test_critical_relu_keeps_its_variance():
    solution = limit("relu", 2.0, 0.0, input_variance=1.7)
    np.testing.assert_allclose(solution.variance, 1.7, rtol=1e-12)
    assert solution.phase == "critical" and solution.susceptibility == 1.0
    assert np.isinf(solution.variance_depth_scale) and np.isinf(solution.correlation_depth_scale)


@pytest.mark.parametrize("w, b", [(2.5, 0.0), (2.1, 0.3), (2.0, 0.1)])
def test_relu_without_bound(w, b):
    solution = limit("relu", w, b)
    assert np.isinf(solution.variance) and solution.phase == "unbounded"
    np.testing.assert_allclose(solution.susceptibility, w / 2, rtol=1e-9)
    assert np.isnan(solution.correlation)
    assert "unbounded" in str(solution)


def test_relu_that_dies_out_does_so_geometrically():
    """Without biases q_a = q_0 (w/2)^a: the limit q* = 0 is approached, never met."""
    solution = limit("relu", 1.0, 0.0)
    assert solution.variance == 0.0 and solution.phase == "ordered"
    np.testing.assert_allclose(solution.susceptibility, 0.5, rtol=1e-12)
    np.testing.assert_allclose(solution.variance_depth_scale, 1 / np.log(2), rtol=1e-10)


TANH = {"phi": np.tanh, "slope": lambda x: np.cosh(x) ** -2.0}


def tanh_edge_of_chaos(b):
    """(q*, w) with q* = w<φ²> + b and w<φ'²> = 1."""
    w_of = lambda q: 1 / mean(lambda x: TANH["slope"](x) ** 2, q)  # noqa: E731
    gap = lambda q: w_of(q) * mean(lambda x: TANH["phi"](x) ** 2, q) + b - q  # noqa: E731
    q = scipy.optimize.brentq(gap, 1e-6, 20.0, xtol=1e-15)
    return q, w_of(q)


def test_tanh_edge_of_chaos():
    """σ_w² = 1.76 at σ_b² = 0.05 (Schoenholz et al. 2017)."""
    q, w = tanh_edge_of_chaos(0.05)
    assert abs(w - 1.76) < 0.005
    solution = limit("tanh", w, 0.05)
    np.testing.assert_allclose(solution.critical_weight_variance, w, rtol=1e-9)
    np.testing.assert_allclose(solution.variance, q, rtol=1e-9)
    np.testing.assert_allclose(solution.susceptibility, 1.0, rtol=1e-9)
    assert solution.phase == "critical" and solution.correlation_depth_scale > 1e8


@pytest.mark.parametrize("activation, critical", [("erf", np.pi / 4), ("sin", 1.0), ("linear", 1.0)])
def test_critical_weight_variance_without_bias_is_one_over_slope_squared(activation, critical):
    """For a saturating odd activation chaos begins at q* = 0: w φ'(0)² = 1."""
    np.testing.assert_allclose(limit(activation, 1.0, 0.0).critical_weight_variance, critical, rtol=1e-7)


@pytest.mark.parametrize(
    "activation",
    [pytest.param(a) for a in ("exp", "quadratic")],
)
def test_no_critical_weight_variance(activation):
    """χ jumps from below 1 to infinity where the fixed point disappears: there is no w at which it is 1."""
    assert np.isnan(limit(activation, 0.05, 0.0).critical_weight_variance)


@pytest.mark.parametrize(
    "activation, w, b, phase",
    [
        ("tanh", 1.3, 0.05, "ordered"),
        ("tanh", 2.5, 0.05, "chaotic"),
        ("relu", 1.5, 0.2, "ordered"),
        pytest.param("erf", 1.6, 0.02, "chaotic"),
    ],
)
def test_deep_networks_reach_the_limit_at_the_predicted_rate(activation, w, b, phase):
    x = np.array([[1.0, 0.4, -0.6], [0.2, -1.1, 0.9]])
    net = wf.RNN(300, activation, weight_variance=w, bias_variance=b, biases="untied")
    solution = wf.depth_limit(net)
    hidden = np.einsum("aaij->aij", wf.prior(net, wf.Task(x), quantities="hidden").hidden.values)
    q, rho = hidden[:, 0, 0], hidden[:, 0, 1] / np.sqrt(hidden[:, 0, 0] * hidden[:, 1, 1])
    assert solution.phase == phase and bool(solution.correlation == 1.0) is (phase == "ordered")
    np.testing.assert_allclose(q[-1], solution.variance, rtol=1e-9)
    np.testing.assert_allclose(rho[-1], solution.correlation, rtol=1e-7)
    for values, end, scale in (
        (q, solution.variance.item(), solution.variance_depth_scale.item()),
        (rho, solution.correlation.item(), solution.correlation_depth_scale.item()),
    ):
        np.testing.assert_allclose(depth_scale(values, end), scale, rtol=0.01)


def depth_scale(values, end):
    """Fitted number of states over which the distance from ``end`` falls by e, where it is small but well resolved."""
    distance = np.abs(values - end)
    fit = np.flatnonzero((distance < 1e-4) & (distance > 1e-9))
    assert len(fit) >= 4
    return -1 / np.polyfit(fit, np.log(distance[fit]), 1)[0]


@pytest.mark.parametrize("w, b", [(0.6, 0.1), pytest.param(1.6, 0.02)], ids=["ordered", "chaotic"])
def test_one_thousand_states(w, b):
    net = wf.DNN(1000, "erf", weight_variance=w, bias_variance=b)
    output = wf.prior(net, wf.Task(np.array([[1.0, 0.4], [0.2, -1.1]])), quantities="output").output.values
    solution = wf.depth_limit(net)
    q = (output - b) * w + b  # one state further
    np.testing.assert_allclose(np.diag(q), solution.variance, rtol=1e-12)
    np.testing.assert_allclose(q[0, 1] / q[0, 0], solution.correlation, rtol=1e-10)


SECOND_MOMENTS = {
    "erf": lambda q: 2 / np.pi * np.arcsin(2 * q / (1 + 2 * q)),
    "sin": lambda q: (1 - np.exp(-2 * q)) / 2,
    "tanh": lambda q: mean(lambda x: np.tanh(x) ** 2, q),
}


@pytest.mark.parametrize("activation", [pytest.param("erf"), pytest.param("sin"), "tanh"])
def test_chaos_does_not_separate_a_sample_from_itself(activation):
    """Correlation one is unstable, but a sample and its copy have no other: their covariance is the variance."""
    x = np.array([[1.0, 0.4, -0.6], [0.2, -1.1, 0.9], [1.0, 0.4, -0.6]])
    output = wf.prior(wf.DNN(60, activation, weight_variance=4.0), wf.Task(x), quantities="output").output.values
    q = (x**2).mean(axis=1)
    for _ in range(60):
        q = 4.0 * np.array([SECOND_MOMENTS[activation](v) for v in q])
    np.testing.assert_allclose(np.diag(output), q / 4, rtol=1e-10)
    np.testing.assert_allclose(output[0, 2], output[0, 0], rtol=1e-12)
    assert output[0, 1] < 0.9 * output[0, 0]


def test_deep_and_recurrent_networks_share_the_limit():
    options = {"weight_variance": 1.6, "bias_variance": 0.02}
    deep, recurrent = (wf.depth_limit(make(4, "erf", **options)).data for make in (wf.DNN, wf.RNN))
    assert deep.identical(recurrent)


def test_certificate():
    solution = limit("erf", 1.6, 0.02)
    assert solution.certificate.theory == "depth_limit" and solution.status is wf.Status.success
    assert solution.residual <= solution.certificate.tolerance
    assert all(field.dims == () for field in solution.data.data_vars.values())


@pytest.mark.parametrize("w, b", [(2.5, 0.0), (2.0, 0.1), (1.0, 0.0), (2.0, 0.0)])
def test_success_is_earned_without_a_fixed_point_too(w, b):
    """Unbounded, vanishing and marginal variances: both checks are there, and within what was asked."""
    certificate = limit("relu", w, b).certificate
    assert set(certificate.checks) == {"residual", "error"} and certificate.options["rtol"] == 1e-10
    assert 0 <= certificate.residual <= 1e-10 and 0 < certificate.error <= 1e-10


@pytest.mark.parametrize("name, values", [("weight_variance", (1.0, 1.5)), ("bias_variance", (0.1, 0.1, 0.2))])
def test_variances_that_change_with_the_state_have_no_limit(name, values):
    with pytest.raises(ValueError, match=f"`{name}` must be the same at every state"):
        wf.depth_limit(wf.DNN(3, **{name: values}))
    constant = wf.depth_limit(wf.DNN(3, **{name: [values[0]] * len(values)}))
    assert constant.data.identical(wf.depth_limit(wf.DNN(3, **{name: values[0]})).data)


def test_bad_questions():
    with pytest.raises(ValueError, match="`network` must be a widefield Network"):
        wf.depth_limit("relu")


def test_depth_one_without_transitions_says_so():
    with pytest.raises(ValueError, match="`weight_variance`"):
        wf.depth_limit(wf.DNN(1, weight_variance=()))
