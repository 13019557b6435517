"""`widefield.criticality` against closed forms, its own definitions on a grid, `depth_limit` and `finite_width`."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from widefield.theories.finite_width import criticality, finite_width

Z = np.linspace(-12, 12, 4801)
WEIGHT = np.exp(-(Z**2) / 2) * (Z[1] - Z[0]) / np.sqrt(2 * np.pi)
FITS = ("kernel_exponent", "vertex_exponent", "vertex_slope", "correction_slope")


def mean(function, q):
    return float(WEIGHT @ function(np.sqrt(q) * Z))


def at(activation, w, b=0.0, **options):
    return criticality(wf.DNN(3, activation, weight_variance=w, bias_variance=b), **options)


def assert_fits(flow, **expected):
    """Each fitted limit within its own error of the expectation, and the error small enough to mean something."""
    for name, value in expected.items():
        error = float(flow.data[f"{name}_error"])
        assert abs(float(flow.data[name]) - value) <= error, name
        assert error < 0.03, name


@pytest.mark.parametrize("w, phase", [(2.0, "critical"), (1.7, "ordered"), (2.2, "unbounded")])
def test_relu(w, phase):
    """V/K² = 5ℓ at any weight variance, G1 = 0; only the kernel knows that it is not critical."""
    flow = at("relu", w, layers=40)
    assert flow.universality == "scale invariant" and flow.phase == phase
    np.testing.assert_allclose(
        flow.vertex_pairs[:, 0, 0, 0, 0] / flow.kernel[:, 0, 0] ** 2, 5 * np.arange(40), rtol=1e-12
    )
    assert flow.vertex_slope_exact == pytest.approx(5.0, rel=1e-12) and flow.correction_slope_exact == 0
    assert flow.depth_to_width == pytest.approx(0.06, rel=1e-12)
    assert flow.parallel_susceptibility == pytest.approx(w / 2, rel=1e-12)
    assert flow.critical_weight_variance == pytest.approx(2.0, rel=1e-9)
    assert_fits(flow, vertex_exponent=1.0, vertex_slope=5.0, correction_slope=0.0)
    assert np.isnan(flow.kernel_exponent) if w != 2 else abs(flow.kernel_exponent) < 1e-9
    np.testing.assert_array_equal(flow.width_needed, -(-50 * np.arange(40) // 3))  # whole numbers, rounded up


def test_angle_of_two_relu_inputs():
    """1 − ρ = 9π²/2ℓ², whatever the first angle: the exponent of the perpendicular direction, up to ln ℓ/ℓ."""
    kernel = at("relu", 2.0, layers=257, correlation=-0.3).kernel.values
    assert kernel[0, 0, 1] == pytest.approx(-0.3, rel=1e-12)
    depth = np.array([64, 128, 256])
    ratio = (1 - kernel[depth, 0, 1]) * depth**2 / (4.5 * np.pi**2)
    assert np.all(np.diff(ratio) > 0) and 0.8 < ratio[-1] < 1


@pytest.mark.parametrize(
    "activation, w, bend", [("tanh", 1.0, 2.0), pytest.param("sin", 1.0, 1.0, marks=pytest.mark.full)]
)
def test_vanishing_class(activation, w, bend):
    """K → 1/|a₁|ℓ, V/K²ℓ → 2/3, G1/Kℓ → −1/3; a slope of 0.7 or an exponent of 0.97 is outside the errors."""
    flow = at(activation, w)
    assert flow.universality == "vanishing" and flow.phase == "critical"
    assert_fits(flow, kernel_exponent=-1, vertex_exponent=1, vertex_slope=2 / 3, correction_slope=-1 / 3)
    assert abs(flow.vertex_slope - 0.7) > flow.vertex_slope_error
    assert abs(flow.vertex_exponent - 0.97) > flow.vertex_exponent_error
    assert flow.vertex_slope_exact == pytest.approx(2 / 3) and flow.depth_to_width == pytest.approx(0.45)
    last = flow.kernel.values[-1, 0, 0] * 255
    assert last == pytest.approx(1 / bend, rel=0.05)


def test_kernel_that_grows_by_its_bias():
    """relu at C_W = 2 with a bias: K = K₀ + bℓ and V = 5 ΣK², hence V/K² → 5ℓ/3."""
    flow = at("relu", 2.0, 0.5, layers=200)
    K = flow.kernel.values[:, 0, 0]
    np.testing.assert_allclose(K, 1.5 + 0.5 * np.arange(200), rtol=1e-12)
    np.testing.assert_allclose(flow.vertex_pairs[1:, 0, 0, 0, 0], 5 * np.cumsum((K[1:] - 0.5) ** 2), rtol=1e-11)
    assert flow.universality == "unbounded" and flow.vertex_slope_exact == pytest.approx(5 / 3)
    assert_fits(flow, kernel_exponent=1, vertex_exponent=1, vertex_slope=5 / 3)


def test_below_criticality_tanh_becomes_linear():
    flow = at("tanh", 0.7, layers=200)
    assert flow.phase == "ordered" and np.isnan(flow.kernel_exponent)
    assert flow.vertex_slope_exact == 2 and abs(flow.vertex_slope - 2) < 1e-3


@pytest.mark.parametrize("w, b, phase", [(1.5, 0.0, "chaotic"), (1.3, 0.1, "ordered")])
def test_off_criticality_the_vertex_saturates(w, b, phase):
    """V/K² → w²(<φ⁴> − <φ²>²)/K²(1 − χ∥²), reached at the rate χ∥; averages on a grid of our own."""
    flow = at("tanh", w, b, layers=100)
    K = float(flow.variance)
    assert flow.universality == "finite" and flow.phase == phase
    chi = w * mean(lambda x: np.cosh(x) ** -4.0 - 2 * np.tanh(x) ** 2 * np.cosh(x) ** -2.0, K)
    assert flow.parallel_susceptibility == pytest.approx(chi, rel=1e-9)
    assert flow.variance_depth_scale == pytest.approx(-1 / np.log(chi), rel=1e-6)
    source = w**2 * (mean(lambda x: np.tanh(x) ** 4, K) - mean(lambda x: np.tanh(x) ** 2, K) ** 2)
    limit = source / (K**2 * (1 - chi**2))
    assert flow.vertex_limit == pytest.approx(limit, rel=1e-8)
    ratio = flow.vertex_pairs.values[:, 0, 0, 0, 0] / flow.kernel.values[:, 0, 0] ** 2
    assert ratio[-1] == pytest.approx(limit, rel=1e-8) and np.isinf(flow.depth_to_width)
    assert_fits(flow, kernel_exponent=0, vertex_exponent=0)
    assert flow.vertex_slope_exact == 0 and abs(flow.vertex_slope) <= flow.vertex_slope_error


def test_agrees_with_the_other_calls():
    """The flow is that of finite_width on the same two inputs, the limits those of depth_limit."""
    net = wf.DNN(12, "erf", weight_variance=0.9, bias_variance=0.05, input_variance=1.3)
    flow = criticality(net, layers=16, correlation=0.2)
    x = np.sqrt(2) * np.array([[1, 0], [0.2, np.sqrt(1 - 0.04)]])
    direct = finite_width(net, wf.Task(x), width=50)
    for name in ("kernel", "correction", "vertex_pairs"):
        np.testing.assert_allclose(flow.data[name][:12], direct.data[name][:12], rtol=1e-12, atol=1e-14)
    limit = wf.depth_limit(net)
    for name in limit.data.data_vars:
        assert flow.data[name].values == limit.data[name].values, name
    # Perturbed by a hair, the kernel returns with the susceptibilities that the call reports.
    K = flow.kernel.values[:, 0, 0] - float(flow.variance)
    assert K[-1] / K[-2] == pytest.approx(float(flow.parallel_susceptibility), rel=0.02)


def test_bad_input_and_short_flows():
    for match, net, options in (
        ("`network`", "relu", {}),
        ("tied", wf.RNN(3, "relu"), {}),
        ("ResNet", replace(wf.DNN(3, "relu"), branch=1.0), {}),
        ("`layers`", wf.DNN(3, "relu"), {"layers": 4}),
        ("`correlation`", wf.DNN(3, "relu"), {"correlation": 1.0}),
        ("`weight_variance`", wf.DNN(3, "relu", weight_variance=(1.0, 2.0)), {}),
    ):
        with pytest.raises(ValueError, match=match):
            criticality(net, **options)
    short = at("linear", 100.0, layers=64)
    assert len(short.layer) < 64 and any("ends at layer" in note for note in short.notes)
    assert set(FITS) <= set(short.data.data_vars) and np.isnan(short.kernel_exponent)
    shorter = at("quadratic", 0.2, layers=32)
    assert len(shorter.layer) < 9 and all(np.isnan(shorter.data[name]) for name in FITS)
    assert np.isnan(shorter.depth_to_width)


@pytest.mark.full
def test_what_is_known_of_no_correction_is_nothing():
    """A ramp has a vertex but no correction: its slope is NaN, not the slope of zeros."""
    ramp = wf.Activation(lambda x: jnp.clip(x, -1, 1), breaks=(-1, 1), name="ramp")
    flow = at(ramp, 1.0, layers=16)
    assert flow.certificate.left_out == ("correction",) and np.isfinite(flow.vertex_slope)
    assert np.isnan(flow.correction_slope) and np.isnan(flow.correction_slope_error)
