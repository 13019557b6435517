"""What the certificate says of sampled results: the meaning of ``rtol``, and notes beside large errors."""

from functools import partial

import jax
import numpy as np
import pytest

import widefield as wf
from tests import contracts
from tests.dynamics.question import predict
from widefield.gallery.bordelon22.fig_1 import FULL, images
from widefield.theories.dynamics.curves import Estimate, relative_error
from widefield.theories.dynamics.march.batch import march
from widefield.theories.dynamics.methods import paths
from widefield.theories.dynamics.problem import Problem, problem

RNG = np.random.default_rng(0)
TASK = wf.Task(RNG.normal(size=(2, 8)), RNG.normal(size=2))
TANH = wf.DNN(2, "tanh")
RICH = wf.Task(3 * RNG.normal(size=(3, 8)), 3 * RNG.normal(size=3))


def ask(network=TANH, task=TASK, **changes):
    physics = {"richness": 1.3, "rate": 0.1, "steps": 7, "quantities": "prediction", "progress": False}
    return predict(network, task, **physics | changes)


def rms(outputs):
    """At the step where it is largest."""
    return np.sqrt(np.mean(outputs**2, axis=(1, 2)).max())


def test_a_tolerance_is_met_or_the_status_says_not():
    met = ask(paths=256, rtol=0.2)
    assert met.status is wf.Status.success and 0 < met.certificate.error <= 0.2
    assert met.certificate.options["paths"] == 256, "a quarter of the paths shows the bias"
    chance = 2.3646 * rms(met.prediction_stderr.values) / rms(met.prediction.values)
    assert met.certificate.error > chance, "the bias is added to the limit of chance"


def test_a_tolerance_out_of_reach_is_not_converged(monkeypatch):
    monkeypatch.setattr(paths, "MOST_PATHS", 256)
    partial = contracts.assert_fails_loudly(
        lambda throw: ask(paths=256, rtol=1e-5, throw=throw), wf.Status.not_converged
    )
    assert partial.certificate.error > 1e-5 and "not to rtol=1e-05" in " ".join(partial.certificate.notes)


def test_no_success_beside_an_error_above_the_default():
    """What was not asked for is judged too: ten percent of the outputs, with the paths given or with more."""
    assert ask(paths=256).certificate.checks["error"].limit == 0.1 and not ask(paths=256).certificate.notes
    rich = {"task": RICH, "richness": 4.0, "rate": 0.3, "steps": 3}
    few = contracts.assert_fails_loudly(lambda throw: ask(paths=64, throw=throw, **rich), wf.Status.not_converged)
    assert few.certificate.error > 0.1 and "raise `paths` or `rtol`" in " ".join(few.certificate.notes)


def test_paths_are_raised_until_the_default_is_met(monkeypatch):
    rich = {"task": RICH, "richness": 4.0, "rate": 0.3, "steps": 3}
    monkeypatch.setattr(paths, "FIRST_PATHS", 64)
    more = ask(**rich)
    assert more.certificate.error <= 0.1 and more.certificate.options["paths"] > 64


def test_the_relative_error_is_a_limit_on_the_readouts():
    """Student's 97.5 % quantile at seven degrees of freedom is 2.3646 (tables), on root mean squares."""
    value, stderr = np.ones((3, 2, 2, 1)), np.full((3, 2, 2, 1), 0.5)
    stderr[:, 1], stderr[1, 1] = 0.1, [[0.3], [0.4]]
    assert relative_error(Estimate(value, stderr), (1,)) == pytest.approx(2.3646 * np.sqrt(0.125), rel=1e-4)
    assert relative_error(Estimate(value, stderr), (1,), 0.2) == pytest.approx(2.3646 * np.sqrt(0.125) + 0.2, rel=1e-4)
    assert relative_error(Estimate(2 * value, stderr), (0, 1)) == pytest.approx(2.3646 * np.sqrt(0.1875) / 2, rel=1e-4)


@pytest.mark.full
def test_errors_with_a_tolerance_cover_the_truth():
    """Against many more paths: the certificate's error, for nearly all seeds, is above the true deviation."""
    truth = ask(paths=32768, seed=99).prediction.values
    size, covered = rms(truth), []
    for seed in range(12):
        found = ask(paths=256, rtol=0.02, seed=seed)
        covered.append(rms(found.prediction.values - truth) <= size * found.certificate.error)
    assert np.mean(covered) >= 0.75


@pytest.mark.full
def test_what_deep_networks_leave_out_is_small_against_their_error(monkeypatch):
    """Eight layers, five digits: outputs with a share of 1e-12 left out, same noises, differ by a third of the error at most."""
    digits = images(FULL)
    task = wf.Task(digits.x[::2], digits.labels()[::2, 0, 0])
    call = {"richness": 1.0, "rate": 0.03, "steps": 40, "paths": 1024, "quantities": "prediction", "progress": False}
    found = predict(wf.DNN(8, "tanh"), task, **call)
    monkeypatch.setattr(Problem, "tolerances", lambda self, n_paths: (1e-12, 1e-12))
    right = predict(wf.DNN(8, "tanh"), task, **call)
    gap = np.abs(found.prediction - right.prediction).max()
    assert 0 < gap < found.prediction_stderr.max() / 3


def test_more_directions_than_paths_is_a_status():
    task = wf.Task(RNG.normal(size=(6, 8)), RNG.normal(size=6))
    ask = {"richness": 3.0, "rate": 0.1, "steps": 30, "paths": 128, "quantities": "prediction", "progress": False}
    with pytest.raises(wf.SolveError, match=r"stopped at step \d+: `paths` must be at least 256") as caught:
        predict(TANH, task, **ask)
    assert caught.value.solution.status is wf.Status.not_converged
    assert np.isnan(caught.value.solution.prediction).all()
    many = wf.Task(RNG.normal(size=(30, 40)), RNG.normal(size=30))
    with pytest.raises(ValueError, match="`paths` must be at least 120"):
        predict(TANH, many, **ask | {"paths": 64})


@pytest.mark.parametrize("depth", [2, 6])
def test_standard_errors_are_those_of_other_seeds(depth):
    """Against many more paths: z of order one over seeds, so that errors are neither too small nor too large."""
    names = ("prediction", "ntk", "feature_kernel", "gradient_kernel")
    call = partial(ask, network=wf.DNN(depth, "tanh"), quantities=names)
    truth, z = call(paths=16384, seed=99), {name: [] for name in names}
    for seed in range(10):
        found = call(paths=256, seed=seed)
        for name in names:
            error = np.hypot(found.data[f"{name}_stderr"], truth.data[f"{name}_stderr"]).values
            gap = (found.data[name] - truth.data[name]).values
            z[name].append((gap[error > 1e-12] / error[error > 1e-12]).ravel())
    for name, found in z.items():
        assert 0.6 < np.sqrt(np.mean(np.concatenate(found) ** 2)) < 1.8, name  # Student with 7 degrees of freedom: 1.18


def test_deep_networks_start_at_the_tangent_kernel_of_the_prior():
    """Errors of layers that no average has in the theory would add up: unpaired paths were off by factors at this depth."""
    network = wf.DNN(48, "tanh")
    found = predict(network, TASK, richness=1.3, rate=0.1, steps=1, quantities="ntk", progress=False)
    exact, error = wf.prior(network, TASK, quantities="ntk").ntk.values, found.ntk_stderr.values[0]
    assert np.all(np.abs(found.ntk.values[0] - exact) < 5 * error) and error.max() < 0.02 * exact.max()


@pytest.mark.parametrize("tied", [False, True])
def test_paths_of_a_pair_are_mirror_images(tied):
    """Before training moves anything: the same features, opposite gradients."""
    network = wf.DNN(3, "tanh", weights="tied" if tied else "untied")
    asked = problem(network, TASK, wf.Training(0.1, 2))
    with jax.enable_x64(True):
        found = march(asked, 256, 0, 0, ntk=False, at=(0, 2), advance=lambda n: None)
    feature, gradient, *_ = found.samples[0]
    np.testing.assert_allclose(feature[..., :128], feature[..., 128:], atol=1e-12)
    np.testing.assert_allclose(gradient[..., :128], -gradient[..., 128:], atol=1e-12)
    assert np.abs(np.subtract(*np.split(found.samples[2][0], 2, axis=-1))).max() > 0.1, "training tells them apart"
