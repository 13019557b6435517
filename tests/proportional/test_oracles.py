"""The march against dense fixed points, exact lazy formulas and exact mappings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widefield as wf
from tests.proportional import oracle
from tests.proportional.words import ask
from widefield.theories.proportional.march import structured

CURVES = ("test_loss", "train_loss", "bias", "width_variance", "data_variance")
RATE = np.linspace(0.05, 0.1, 8)

CASES = {
    "gd": ({"depth": 3}, {"data": 1.5}),
    "gd few data": ({"depth": 2}, {"data": 0.6, "centered": True}),
    "sgd": ({"depth": 2}, {"batch": 1.5}),
    "population": ({"depth": 2}, {"centered": True}),
    "widths": ({"depth": 3, "widths": (0.5, 1.0, 2.0)}, {"data": 1.5}),
    "widths, online": ({"depth": 2, "widths": (2.0, 0.5)}, {"batch": 1.5}),
    "channels": ({"depth": 2}, {"data": 1.5, "overlap": [[1.0, 0.3], [0.3, 0.5]]}),
    "channels, online": ({"depth": 2}, {"batch": 1.5, "overlap": [[1.0, 0.3], [0.3, 0.5]]}),
    "residual": ({"depth": 3, "branch": 0.6}, {"data": 1.5}),
    "residual, online": ({"depth": 4, "branch": 0.6}, {"batch": 1.5, "centered": True}),
}
WORDS = {"data": "data_ratio", "batch": "batch_ratio", "overlap": "target_overlap"}


def solve(shape, physics, rate=RATE, richness=0.8, width=0.7, noise=0.2, **options):
    """The library's answer to what `oracle.solve` is asked."""
    shape = dict(shape)
    network = wf.ResNet(**shape) if "branch" in shape else wf.DNN(activation="linear", **shape)
    named = {WORDS.get(name, name): value for name, value in physics.items()}
    common = {"steps": 8, "rate": rate, "richness": richness, "width_ratio": width, "label_noise": noise}
    return ask(wf.proportional, network, **common, **named, **options)


def expected(shape, physics, rate=RATE, richness=0.8, width=0.7, noise=0.2):
    full = np.append(np.broadcast_to(rate, (8,)), 0.0)
    return oracle.solve(steps=8, rate=full, richness=richness, width=width, noise=noise, **shape, **physics)


@pytest.mark.parametrize("name", CASES)
def test_march_is_the_dense_fixed_point(name):
    shape, physics = CASES[name]
    solution, wanted = solve(shape, physics), expected(shape, physics)
    assert solution.status is wf.Status.success and solution.residual < 1e-13
    for curve in CURVES:
        np.testing.assert_allclose(
            solution.data[curve].values.reshape(9, -1), wanted[curve], rtol=0, atol=1e-12, err_msg=curve
        )
    pairs = {
        "feature_correlation": "C_h",
        "gradient_correlation": "C_g",
        "feature_response": "R_hr",
        "gradient_response": "R_gu",
    }
    for field, symbol in pairs.items():
        value = solution.data[field].values
        if value.ndim == 5:
            value = value.swapaxes(2, 3).reshape(len(value), 18, 18)
        scale = np.abs(wanted[symbol]).max()
        np.testing.assert_allclose(value, wanted[symbol], rtol=0, atol=1e-12 * scale, err_msg=field)


@settings(max_examples=8, deadline=None)
@given(
    richness=st.floats(0.05, 3.0), width=st.floats(0.2, 5.0), data=st.floats(0.3, 4.0), noise=st.floats(0, 1, allow_subnormal=False),
    rate=st.floats(0.005, 0.05), centered=st.booleans(),
)  # fmt: skip
def test_march_is_the_dense_fixed_point_for_any_parameters(richness, width, data, noise, rate, centered):
    physics = {"data": data, "centered": centered}
    solution = solve({"depth": 2}, physics, rate, richness, width, noise, throw=False)
    wanted = expected({"depth": 2}, physics, rate, richness, width, noise)
    for curve in CURVES:
        # the oracle divides by the richness squared
        atol = 1e-11 * np.abs(wanted["test_loss"]).max() / min(1.0, richness) ** 2
        np.testing.assert_allclose(solution.data[curve].values[:, None], wanted[curve], rtol=0, atol=atol)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("alpha", [2.0, 0.5])
def test_lazy_networks_follow_marchenko_and_pastur(depth, alpha):
    """γ0 = 0, centered, infinitely wide: linear regression with a kernel depth + 1."""
    solution = ask(
        wf.proportional, wf.DNN(depth, "linear"), richness=0.0, centered=True, data_ratio=alpha, rate=0.05, steps=60,
        label_noise=0.09,
    )  # fmt: skip
    test, train, bias = oracle.marchenko_pastur(alpha=alpha, rate=0.05, kernel=depth + 1, noise=0.09, steps=60)
    np.testing.assert_allclose(solution.test_loss, test, rtol=0, atol=1e-10)
    np.testing.assert_allclose(solution.train_loss, train, rtol=0, atol=1e-10)
    np.testing.assert_allclose(solution.bias, bias, rtol=0, atol=1e-10)
    np.testing.assert_allclose(solution.kernel, depth + 1, rtol=1e-12)


def test_no_digit_is_lost_on_the_way_to_the_lazy_limit():
    """Centered: the distance to richness 0 falls as its square, down to rounding."""
    at = lambda richness: solve({"depth": 2}, {"data": 1.5, "centered": True}, richness=richness)  # noqa: E731
    lazy = at(0.0)
    for richness, bound in ((1e-2, 1e-3), (1e-4, 1e-7), (1e-8, 1e-13)):
        assert np.abs(at(richness).train_loss - lazy.train_loss).max() < bound


def test_structured_data_with_one_eigenvalue_are_isotropic():
    """λ_k = 1/D with γ0/√D and ηD: Appendix E is the online theory."""
    d, network = 50, wf.DNN(2, "linear")
    words = {"steps": 8, "rate": RATE, "richness": 0.8, "label_noise": 0.2}
    flat = ask(wf.proportional, network, **words, width_ratio=0.7, batch_ratio=1.5)
    words |= {"rate": RATE * d, "richness": 0.8 / np.sqrt(d), "spectrum": (np.full(d, 1 / d), np.full(d, 1 / d))}
    same = ask(wf.proportional, network, **words, width=0.7 * d, batch=1.5 * d)
    for curve in (*CURVES, "error_correlation"):
        np.testing.assert_allclose(same.data[curve], flat.data[curve], rtol=0, atol=1e-13)
    np.testing.assert_allclose(same.kernel, flat.kernel, rtol=1e-12)


def test_few_nodes_stand_for_a_long_spectrum(monkeypatch):
    """The Gauss rule against all modes one by one (spectra short enough are not compressed)."""
    k = np.arange(1.0, 401)
    words = {"steps": 8, "rate": RATE, "richness": 0.8, "width": 20, "batch": 10, "spectrum": (k**-1.5, k**-2.2)}
    few = ask(wf.proportional, wf.DNN(2, "linear"), **words)
    monkeypatch.setattr(structured, "N_NODES", ())
    every = ask(wf.proportional, wf.DNN(2, "linear"), **words)
    assert few.certificate.error > 0 and every.certificate.error == 0
    np.testing.assert_allclose(few.test_loss, every.test_loss, rtol=1e-9)


def test_one_residual_layer_has_nothing_to_skip():
    plain = solve({"depth": 1}, {"data": 1.5})
    skip = solve({"depth": 1, "branch": 0.6}, {"data": 1.5})
    for curve in CURVES:
        np.testing.assert_allclose(skip.data[curve], plain.data[curve], rtol=0, atol=1e-13)


@pytest.mark.full
def test_initial_loss_of_deep_residual_networks():
    """1 + σ² + e^{b²}/(ν γ0²) at infinite depth; (1 + β²)^{L−1} at finite depth."""
    network = wf.ResNet(4, "linear", 0.5)
    words = {"steps": 4, "rate": 0.01, "width_ratio": 0.7, "richness": 0.8, "label_noise": 0.2}
    finite = ask(wf.proportional, network, **words)
    np.testing.assert_allclose(finite.test_loss[0], 1.2 + 1.25**3 / (0.7 * 0.64), rtol=1e-12)
    deep = ask(wf.proportional, network, **words, infinite_depth=True)
    exact = 1.2 + np.exp(0.25 * 4) / (0.7 * 0.64)
    assert abs(deep.test_loss[0] - exact) < 2e-4 * exact
    assert abs(deep.test_loss[0] - exact) <= deep.certificate.error * exact  # the error is honest
    np.testing.assert_allclose(np.diagonal(deep.error_correlation) + 0.2, deep.test_loss, rtol=1e-12)


def test_gradient_flow_of_the_lazy_network():
    """Small rates at fixed time: exponentials of the Marchenko–Pastur law."""
    physics = {"richness": 0.0, "centered": True, "data_ratio": 2.0, "label_noise": 0.09}
    flow = ask(wf.proportional, wf.DNN(1, "linear"), rate=0.05, steps=20, flow=True, **physics)
    test, _, _ = oracle.marchenko_pastur(alpha=2.0, rate=0.05, kernel=2, noise=0.09, steps=20, flow=True)
    worst = np.abs(flow.test_loss.values - test).max()
    assert 0 < worst <= flow.certificate.error * 1.09 < 1e-3


def test_correlations_along_a_flow():
    """Lazy, on the population: e^{-2t} for the mean error, so that correlations factorize; features and gradients rest."""
    words = {"richness": 0.0, "centered": True, "rate": 0.05, "steps": 6, "flow": True}
    flow = ask(wf.proportional, wf.DNN(1, "linear"), **words)
    decay = np.exp(-2 * flow.time.values)
    bound = 2 * flow.certificate.error
    np.testing.assert_allclose(flow.error_correlation, np.outer(decay, decay), rtol=0, atol=bound)
    np.testing.assert_allclose(flow.memory_kernel, 2 * np.tri(7, k=-1), rtol=0, atol=bound)
    np.testing.assert_allclose(flow.gradient_correlation[0], 1.0, rtol=0, atol=bound)
    np.testing.assert_allclose(flow.feature_correlation[0], np.outer(decay, decay), rtol=0, atol=bound)
    assert "feature_response" in flow.certificate.left_out


def test_finer_marches_until_the_tolerance_is_met():
    """A coarse rate takes more levels; where they run out the status says so, beside an error that is honest."""
    words = {"richness": 0.0, "centered": True, "data_ratio": 2.0, "label_noise": 0.09, "steps": 5, "flow": True}
    rate = 0.2
    exact, _, _ = oracle.marchenko_pastur(alpha=2.0, rate=rate, kernel=2, noise=0.09, steps=5, flow=True)
    n_marches = []
    for rtol in (1e-2, 1e-4):
        flow = ask(wf.proportional, wf.DNN(1, "linear"), rate=rate, rtol=rtol, **words)
        assert np.abs(flow.test_loss.values - exact).max() <= flow.certificate.error * 1.09 <= rtol * 1.09
        n_marches.append(flow.certificate.diagnostics["marches"])
    assert n_marches[0] < n_marches[1]
    short = ask(wf.proportional, wf.DNN(1, "linear"), rate=rate, rtol=1e-9, throw=False, **words)
    assert short.status is wf.Status.inaccurate and short.certificate.error > 1e-9


def test_causality():
    """What happens later does not change what was before."""
    steady = solve({"depth": 2}, {"data": 1.5})
    other = RATE.copy()
    other[5:] *= 3
    changed = solve({"depth": 2}, {"data": 1.5}, rate=other)
    np.testing.assert_array_equal(steady.test_loss[:6], changed.test_loss[:6])
    assert np.abs(steady.test_loss[6:] - changed.test_loss[6:]).min() > 1e-4


def test_losses_are_the_sum_of_their_parts():
    solution = solve({"depth": 3}, {"data": 1.5})
    parts = solution.bias + solution.width_variance + solution.data_variance + 0.2
    np.testing.assert_allclose(solution.test_loss, parts, rtol=1e-12)
    np.testing.assert_allclose(np.diagonal(solution.error_correlation) + 0.2, solution.test_loss, rtol=1e-12)
    for l in (1, 2, 3):
        assert np.linalg.eigvalsh(solution.feature_correlation.sel(layer=l).values)[0] > -1e-12
