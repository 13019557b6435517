"""Langevin training at long times: random networks of other variances (Appendix K.2), and the posterior (K.3)."""

import numpy as np
import pytest

import widefield as wf
from tests.dynamics.question import predict

RNG = np.random.default_rng(4)
X, Y = RNG.normal(size=(2, 4)), np.array([1.0, -0.5])
TASK = wf.Task(X, Y)
NOISE = {"weight_decay": 1.0, "temperature": 0.6}
RATE, STEPS, LAG = 0.1, 40, 5  # 0.9^80 = 2e-4 of the initial variance is left
full = pytest.mark.full


def ask(network, at, richness=1e-3, **changes):
    options = {"rate": RATE, "steps": STEPS, "at": at, "quantities": ("feature_kernel", "gradient_kernel")}
    return predict(network, TASK, richness=richness, progress=False, **NOISE | options | changes)


def far(found, name, right, at=(-1, -1)):
    """Largest deviation in standard errors over 8 batches."""
    value, error = (found.data[key].values[:, at[0], at[1]] for key in (name, f"{name}_stderr"))
    return np.abs((value - right) / error).max()


def test_variances_are_those_of_the_stationary_law():
    """θ ← (1 − ηλ)θ + √(2ηT)ξ, iterated on the variance."""
    variance = 1.0
    for _ in range(4000):
        variance = (1 - 0.3 * 0.5) ** 2 * variance + 2 * 0.3 * 0.2
    network = wf.DNN(
        3, "tanh", weight_variance=(1.0, 2.0), input_variance=0.5, bias_variance=0.1, readout_bias_variance=0.0
    )
    conversion = wf.convert.equilibrium(network, wf.Training(0.3, 1, weight_decay=0.5, temperature=0.2))
    assert conversion.status is wf.Status.success and conversion.certificate.residual < 1e-14
    found = conversion.network
    np.testing.assert_allclose(found.weight_variances, np.array([1.0, 2.0]) * variance)
    np.testing.assert_allclose(found.input_variances, 0.5 * variance)
    np.testing.assert_allclose(found.bias_variances, 0.1 * variance)
    assert found.readout_variance == pytest.approx(variance) and found.readout_bias_variance == 0
    with pytest.raises(ValueError, match="`weight_decay` must be a finite positive number"):
        wf.convert.equilibrium(network, wf.Training(0.3, 1, temperature=0.2))
    with pytest.raises(ValueError, match="`network` must be a widefield.Network"):
        wf.convert.equilibrium(None, wf.Training(0.3, 1, weight_decay=0.5, temperature=0.2))


@pytest.mark.parametrize("depth", [1, pytest.param(2, marks=full)])
def test_linear_kernels_at_two_times(depth):
    """Φ^l(τ) = (s²ρ^τ)^l K^x and G^l(τ) = (s²ρ^τ)^{L+1−l}, Eqs. 113–114, in steps; not those of the first weights."""
    size = 2 * RATE * NOISE["temperature"] / (1 - (1 - RATE) ** 2)
    found = ask(wf.DNN(depth, "linear"), [STEPS - LAG, STEPS], paths=4096)
    layers, K = np.arange(1, depth + 1)[:, None, None], X @ X.T / 4
    for at, left in (((-1, -1), 1.0), ((-1, 0), (1 - RATE) ** LAG)):
        kernels = lambda s: ((s * left) ** layers * K, (s * left) ** (depth + 1 - layers) * np.ones((2, 2)))  # noqa: B023, E731
        for name, right, wrong in zip(("feature_kernel", "gradient_kernel"), kernels(size), kernels(1.0), strict=True):
            assert far(found, name, right, at) < 7, "Student with 7 degrees of freedom, some dozen entries"
            assert far(found, name, wrong, at) > 7


@full
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_nonlinear_kernels_are_those_of_the_prior(name):
    network = wf.DNN(2, name)
    found = ask(network, [STEPS], paths=4096)
    random = wf.prior(wf.convert.equilibrium(network, wf.Training(RATE, 1, **NOISE)).network, TASK).feature.values
    right = np.stack([random[l, l] for l in range(2)])
    assert far(found, "feature_kernel", right) < 7
    usual = wf.prior(network, TASK).feature.values
    assert far(found, "feature_kernel", np.stack([usual[l, l] for l in range(2)])) > 7


@full
def test_two_linear_layers_find_the_posterior():
    """Appendix K.3's dictionary: width first, time second, as the Gibbs law with time first."""
    gamma, temperature, decay, rate, steps = 1.5, 0.2, 0.3, 0.05, 800
    training = wf.Training(rate, steps, richness=gamma, temperature=temperature, weight_decay=decay)
    bayes = wf.convert.bayes(wf.DNN(1, "linear"), training)
    u, v, kappa = bayes.network.input_variances[0], bayes.network.readout_variance, bayes.temperature
    right = wf.posterior(bayes.network, TASK, temperature=kappa)
    runs = []
    for seed in range(8):
        options = {"paths": 256, "seed": seed, "quantities": "prediction", "progress": False, "throw": False}
        found = wf.dynamics(wf.DNN(1, "linear"), TASK, training, **options)
        runs.append(found.prediction.values[steps // 2 :, :, 0].mean(axis=0))
    error = np.std(runs, axis=0, ddof=1) / np.sqrt(len(runs))
    value, f = np.mean(runs, axis=0), right.prediction.values[-1, :, 0]
    step = rate * decay  # the relative shift of variances by a finite step is half of this
    assert np.all(np.abs(value - f) < 7 * error + step * np.abs(f - Y))
    lazy = X @ X.T / 4 * u * v
    assert np.abs(value - lazy @ np.linalg.solve(lazy + kappa * np.eye(2), Y)).max() > 14 * error.max(), (
        "features learn"
    )
