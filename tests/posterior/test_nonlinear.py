"""`widefield.posterior` of nonlinear networks as a user calls it; `test_saddle` has the oracles of its solver."""

from functools import partial

import numpy as np
import pytest
import scipy.special

import widefield as wf

from .. import contracts
from . import oracle, saddle_oracle

ERF = wf.RNN(3, "erf", weight_variance=2.0)
UNIT = np.ones((1, 1))


@pytest.fixture(scope="module")
def coherent():
    task = wf.Task(UNIT, np.full(1, 5.0), x_test=np.array([[1.0], [-1.0], [0.5]]))
    return wf.posterior(ERF, task, temperature=0.2)


def test_erf_is_coherent_at_strong_labels(coherent):
    """y = 5: Φ12 = 0.19488, from an independent program."""
    contracts.assert_certified(coherent, "posterior")
    np.testing.assert_allclose(coherent.feature.values[0, 1, 0, 0], 0.19488, atol=1e-5)
    assert coherent.branch == "coherent" and coherent.stability > 0
    listed = {point["branch"]: point for point in coherent.certificate.diagnostics["branches"]}
    assert listed["incoherent"]["stability"] < 0
    assert listed["incoherent"]["free_energy"] > listed["coherent"]["free_energy"]


def test_test_inputs_that_were_trained_on_are_predicted_alike(coherent):
    """The training input, its mirror image (odd activation), and one in between."""
    train, test = coherent.prediction.values[:, 0, 0], coherent.test_prediction.values[:, :, 0]
    np.testing.assert_allclose(test[:, 0], train, atol=1e-6)
    np.testing.assert_allclose(test[:, 1], -train, atol=1e-6)
    assert np.all((test[:, 2] > 0) & (test[:, 2] < train))


@pytest.mark.full
def test_the_linear_theory_and_the_general_one_agree():
    """The same linear question by minimization and by quadrature of the saddle point."""
    net, task = wf.RNN(3, "linear"), wf.Task(UNIT, np.full(1, 2.0))
    exact = wf.posterior(net, task, temperature=1.0)
    general = wf.posterior(net, task, temperature=1.0, integration="quadrature")
    for name in ("hidden", "feature", "conjugate", "prediction", "energy", "entropy"):
        scale = np.abs(exact.data[name].values).max()
        np.testing.assert_allclose(general.data[name], exact.data[name], atol=1e-5 * scale, err_msg=name)
    assert general.branch == exact.branch == "incoherent"


def test_fixed_draws_come_with_their_errors():
    rng = np.random.default_rng(0)
    task = wf.Task(rng.normal(size=(2, 3)), np.array([0.5, -0.5]), x_test=rng.normal(size=(1, 3)))
    solution = wf.posterior(wf.DNN(3, "tanh"), task, temperature=0.5, paths=1 << 13, seed=1)
    certificate = solution.certificate
    assert certificate.diagnostics["integration"] == "importance" and certificate.seed == 1
    assert certificate.tolerance is None and 0.3 < certificate.checks["fresh_deviation"].value < 3
    for name in ("hidden", "feature", "prediction", "test_prediction"):
        assert np.all(solution.data[f"{name}_stderr"].values >= 0), name
    unsupervised = solution.prediction.values[:2]
    assert np.all(np.abs(unsupervised) <= 5 * solution.prediction_stderr.values[:2] + 1e-12)


def test_draws_that_miss_the_tolerance_say_so():
    task = wf.Task(np.eye(2), np.array([0.5, -0.5]))
    call = partial(wf.posterior, wf.DNN(3, "tanh"), task, temperature=0.5, paths=1024, rtol=1e-5)
    contracts.assert_fails_loudly(call, wf.Status.inaccurate)


def test_a_density_that_does_not_normalize_says_so():
    """h² pulls harder than any Gaussian holds."""
    call = partial(wf.posterior, wf.DNN(1, "quadratic"), wf.Task(UNIT, np.full(1, 50.0)), temperature=0.1)
    partial_solution = contracts.assert_fails_loudly(call, wf.Status.diverged)
    assert not np.isfinite(partial_solution.free_energy)


# Spectra of the recurrent weights.


def test_the_outlier_of_erf_networks_matches_brute_force(coherent, tmp_path):
    """W maps φ(h^t) to h^{t+1}: eigenvalues of <φφᵀ>⁻¹<φ h₊ᵀ> over the first two states, from a plain grid."""
    one = lambda name: coherent.data[name].values[..., 0, 0]  # noqa: E731
    K = np.pad(2.0 * one("feature")[:2, :2], ((1, 0), (1, 0)))
    K[0, 0] = 1.0
    cross = saddle_oracle.cross_three(scipy.special.erf, K, one("conjugate"))
    exact = np.linalg.eigvals(np.linalg.solve(one("feature")[:2, :2], cross[:2, 1:]))
    exact = exact[np.argsort(-np.abs(exact))]
    found = wf.weight_outliers(coherent)
    np.testing.assert_allclose(oracle.eigenvalues(found), exact, atol=1e-6)
    assert found.outlier.sum() == 1 and found.radius == np.sqrt(2.0) and np.all(found.eigenvalue_stderr == 0)
    assert found.certificate.theory == "weight_outliers" and found.certificate.checks["features"].value < 1
    back = wf.load(found.save(tmp_path / "outliers.nc"))
    assert back.data.identical(found.data) and back.certificate == found.certificate


def test_the_spectrum_needs_what_it_reads(coherent):
    from dataclasses import replace

    with pytest.raises(ValueError, match="`solution` must have the fields"):
        wf.weight_outliers(replace(coherent, data=coherent.data.drop_vars("feature")))
    off = coherent.data.assign(feature=1.01 * coherent.feature)
    with pytest.raises(ValueError, match="`solution` must be converged"):
        wf.weight_outliers(replace(coherent, data=off))


@pytest.mark.full
def test_the_spectrum_of_the_linear_theory_and_of_the_general_one_agree():
    same = wf.Activation(lambda h: h, name="same")
    task = wf.Task(UNIT, np.full(1, np.sqrt(14.0)))
    exact, general = (wf.posterior(wf.RNN(3, phi), task, temperature=1.0) for phi in ("linear", same))
    assert general.branch == exact.branch == "coherent"
    np.testing.assert_allclose(
        *(oracle.eigenvalues(wf.weight_outliers(solution)) for solution in (general, exact)), rtol=1e-6
    )


@pytest.mark.full
def test_sampled_spectra_come_with_their_errors():
    """Two orthogonal samples of which one has no label: that of the other alone, from six dimensions of draws."""
    alone = wf.weight_outliers(wf.posterior(ERF, wf.Task(UNIT, np.full(1, 8.0)), temperature=0.2)).eigenvalue_real[0]
    task = wf.Task(np.sqrt(2) * np.eye(2), np.array([8.0, 0.0]))
    found = wf.weight_outliers(wf.posterior(ERF, task, temperature=0.2, paths=1 << 16))
    assert 0 < found.eigenvalue_stderr[0] < 0.05
    assert abs(found.eigenvalue_real[0] - alone) < 5 * found.eigenvalue_stderr[0]
