"""What `simulate.posterior` promises: fields, first weights, seeds, symmetry, honest status, loud errors."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import widefield as wf
from widefield.answer import boundary
from widefield.simulate.posterior import simulation
from widefield.simulate.posterior.chains import measure
from widefield.simulate.posterior.initial_weights import kernel_of, kernel_weights, prior_weights
from widefield.simulate.posterior.law import is_mirror_symmetric, law_of

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((2, 5)), RNG.standard_normal((2, 2))
TASK = wf.Task(X, Y, x_test=np.stack([X[1], X[0] + X[1]]))
NET = wf.RNN(3, "linear", weight_variance=1.2)
RUN = {"temperature": 0.3, "width": 12, "replicates": 3, "seed": 3, "draws": 12, "warmup": 10}


@pytest.fixture(scope="module")
def solution():
    return wf.simulate.posterior(NET, TASK, **RUN, throw=False)


def test_fields_and_dims(solution):
    cross = ("replicate", "state", "state_", "sample", "sample_")
    assert solution.hidden.dims == solution.feature.dims == solution.squared_correlation.dims == cross
    assert solution.prediction.dims == ("replicate", "state", "sample", "output")
    assert solution.test_prediction.dims == ("replicate", "state", "test", "output")
    assert solution.energy.dims == ("replicate",)
    assert solution.eigenvalue_real.shape == solution.eigenvalue_imag.shape == (3, 12)
    assert solution.hidden.shape == (3, 3, 3, 2, 2) and solution.test_prediction.shape == (3, 3, 2, 2)
    np.testing.assert_allclose(solution.hidden, solution.feature, rtol=1e-12)
    np.testing.assert_allclose(np.einsum("raapp->rap", solution.squared_correlation), 1.0, rtol=1e-12)


def test_linear_networks_predict_linearly(solution):
    """A test input that is a training input, or a sum of two, in every network: the coordinates keep the law."""
    f, g = solution.prediction.values, solution.test_prediction.values
    np.testing.assert_allclose(g[:, :, 0], f[:, :, 1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(g[:, :, 1], f.sum(axis=2), rtol=1e-9, atol=1e-12)


def test_certificate_tells_how_the_chains_did(solution, tmp_path):
    certificate = solution.certificate
    assert certificate.theory == "simulate.posterior" and certificate.seed == 3 and certificate.steps == 12
    for name in ("acceptance", "step_size", "leaps", "r_hat", "effective_draws"):
        assert name in certificate.diagnostics
    judged = {"energy", "hidden", "feature", "prediction", "test_prediction", "coherence"}
    assert set(certificate.diagnostics["r_hat"]) == set(certificate.diagnostics["effective_draws"]) == judged
    assert any("W -> -W" in note for note in solution.notes)
    assert wf.load(solution.save(tmp_path / "a.nc")).certificate == certificate


def test_same_seed_same_numbers_and_chains_do_not_depend_on_each_other(solution):
    again = wf.simulate.posterior(NET, TASK, **RUN, throw=False, quantities=("hidden", "energy"))
    np.testing.assert_array_equal(solution.hidden, again.hidden)
    assert "prediction" not in again.data
    more = wf.simulate.posterior(NET, TASK, **{**RUN, "replicates": 5}, throw=False)
    np.testing.assert_allclose(more.hidden[:3], solution.hidden, rtol=1e-6)
    other = wf.simulate.posterior(NET, TASK, **{**RUN, "seed": 4}, throw=False)
    assert not np.allclose(solution.hidden, other.hidden, rtol=1e-3)


def test_batches_do_not_change_the_chains(solution, monkeypatch):
    monkeypatch.setattr(simulation, "BATCH_NUMBERS", 1)
    single = wf.simulate.posterior(NET, TASK, **RUN, throw=False)
    np.testing.assert_allclose(single.hidden, solution.hidden, rtol=1e-6)


def kernel_of_correlated_states(depth, n_samples):
    """A kernel that no draw of the prior has."""
    mixing = np.random.default_rng(1).standard_normal((depth * n_samples,) * 2) + 2 * np.eye(depth * n_samples)
    return (mixing @ mixing.T).reshape(depth, n_samples, depth, n_samples).swapaxes(1, 2)


@pytest.mark.parametrize("net", [NET, wf.DNN(3, "linear"), wf.RNN(3, "erf"), wf.DNN(3, "relu", inputs="untied")])
@pytest.mark.parametrize("n_driven", [1, 3])
def test_start_reproduces_its_kernel(net, n_driven):
    task = wf.Task(np.random.default_rng(5).standard_normal((2, n_driven, 6)), Y)
    width, kernel = 60, kernel_of_correlated_states(3, 2)
    law = replace(law_of(net, task, 0.3, width), mirror=False)
    flat = kernel_of(kernel, net, 2, width)
    with jax.enable_x64(True):
        weights, mismatch = kernel_weights(flat, net, law, np.random.default_rng(2))
        measured, _ = measure(weights, law)
    assert mismatch < 1e-9
    np.testing.assert_allclose(measured.hidden, kernel, atol=1e-8 * kernel.max())
    middle = np.median([np.linalg.svd(w, compute_uv=False) for w in weights.weights])
    prior = np.median(np.linalg.svd(np.random.default_rng(3).standard_normal((60, 60)), compute_uv=False))
    assert middle == pytest.approx(prior, rel=0.2), "what is not asked for is random as in the prior"


def test_start_from_a_solution_and_what_is_no_kernel(solution):
    run = {**RUN, "draws": 8, "warmup": 0}
    first = wf.simulate.posterior(NET, TASK, **run, start=solution, throw=False)
    assert first.certificate.options["start"] == "kernel"
    hidden = kernel_of_correlated_states(3, 2)
    skew = hidden + np.arange(2)[:, None]
    for bad in (
        "theory",
        hidden[:2, :2],
        -hidden,
        skew,
        wf.simulate.posterior(NET, TASK, **run, quantities="energy", throw=False),
    ):
        with pytest.raises(ValueError, match="`start`"):
            wf.simulate.posterior(NET, TASK, **run, start=bad)
    with pytest.raises(ValueError, match="depth x samples"):
        wf.simulate.posterior(NET, TASK, **{**run, "width": 5}, start=hidden)


def test_mirror_symmetry_is_fixed_only_where_it_is_one():
    odd, even = wf.Task(X, Y, supervised=(1,)), wf.Task(X, np.ones((2, 2, 1)), supervised=(0, 2))
    mixed = wf.Task(X, np.ones((2, 2, 1)), supervised=(1, 2))
    driven = wf.Task(np.ones((2, 2, 3)), Y)
    for task, net, expected in (
        (TASK, NET, True),
        (odd, wf.RNN(3, "erf"), True),
        (even, NET, True),
        (mixed, NET, False),
        (driven, NET, False),
        (TASK, wf.DNN(3, "linear"), False),
        (TASK, wf.RNN(3, "relu"), False),
        (TASK, wf.RNN(1, "linear"), False),
    ):
        assert is_mirror_symmetric(net, task) is expected


def test_the_mirrored_network_is_reported_alike():
    task = wf.Task(X, Y, supervised=(1,))
    net = wf.RNN(3, "erf")
    law = law_of(net, task, 0.3, 9)
    assert law.mirror
    with jax.enable_x64(True):
        weights = prior_weights(net, law, np.random.default_rng(2))
        mirrored = weights._replace(weights=[-w for w in weights.weights])
        (one, _), (other, _), (raw, _) = (
            measure(w, f) for w, f in ((weights, law), (mirrored, law), (mirrored, replace(law, mirror=False)))
        )
        for name in one._fields:
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12, atol=1e-14)
    flips = np.array([[1, -1, 1], [-1, 1, -1], [1, -1, 1]])[:, :, None, None]
    ratio = np.asarray(raw.hidden / one.hidden)
    assert np.allclose(ratio, 1) or np.allclose(ratio, np.broadcast_to(flips, ratio.shape))


def test_disagreeing_chains_are_not_converged():
    stiff = wf.Task(X, 30 * Y)
    with pytest.raises(wf.SolveError, match="R-hat"):
        wf.simulate.posterior(NET, stiff, **{**RUN, "temperature": 0.01, "warmup": 0, "draws": 10})
    lonely = wf.simulate.posterior(NET, TASK, **{**RUN, "replicates": 1}, throw=False)
    assert lonely.status is wf.Status.not_converged and any("replicates" in note for note in lonely.notes)


def test_langevin_reports_its_rate_and_overflow_is_loud():
    solution = wf.simulate.posterior(NET, TASK, **RUN, sampler="sgld", updates=2, throw=False)
    rate = solution.certificate.diagnostics["rate"]
    assert 0 < rate["weights"] == rate["inputs"] == rate["readout"] < 0.1
    plain = wf.simulate.posterior(
        NET, TASK, **RUN, sampler="sgld", updates=2, precondition=False, rate=1e-3, throw=False
    )
    rate, k = plain.certificate.diagnostics["rate"], 0.3 / 12
    assert rate["weights"] == pytest.approx(1e-3 * k / (1.2 / 12))
    assert rate["readout"] == pytest.approx(1e-3 * k * 12**2)
    with pytest.raises(wf.SolveError, match="overflowed"):
        wf.simulate.posterior(NET, TASK, **RUN, sampler="sgld", rate=50.0, updates=20)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"width": 0}, "width"),
        ({"replicates": 0}, "replicates"),
        ({"seed": None}, "seed"),
        ({"draws": 0}, "draws"),
        ({"warmup": -1}, "warmup"),
        ({"sampler": "nuts"}, "sampler"),
        ({"rate": 0.1}, "rate"),
        ({"updates": 5}, "updates"),
        ({"precondition": False}, "precondition"),
        ({"sampler": "sgld", "rate": 0.0}, "rate"),
        ({"sampler": "sgld", "precondition": 1}, "precondition"),
        ({"quantities": ("kernel",)}, "quantities"),
        ({"progress": "yes"}, "progress"),
    ],
)
def test_bad_arguments_are_named(change, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        wf.simulate.posterior(NET, TASK, **{**RUN, **change})


@pytest.mark.parametrize(
    ("net", "name"),
    [
        (wf.RNN(2, bias_variance=0.1, readout_bias_variance=0.0), "bias_variance"),
        (wf.RNN(2, readout_bias_variance=0.1), "readout_bias_variance"),
        (wf.RNN(2, readout_variance=None), "readout_variance"),
        (wf.RNN(2, readout_variance=0.0), "readout_variance"),
        (wf.DNN(2, widths=(1.0, 2.0)), "widths"),
    ],
)
def test_networks_outside_the_posterior_are_named(net, name):
    with pytest.raises(ValueError, match=f"`{name}`.*posterior"):
        wf.simulate.posterior(net, TASK, **RUN)


def test_bad_questions_are_named(monkeypatch):
    with pytest.raises(ValueError, match="`y`.*posterior"):
        wf.simulate.posterior(NET, wf.Task(X), **RUN)
    with pytest.raises(ValueError, match="`network`"):
        wf.simulate.posterior("rnn", TASK, **RUN)
    with pytest.raises(ValueError, match="`task`"):
        wf.simulate.posterior(NET, X, **RUN)
    monkeypatch.setattr(boundary, "memory_budget", lambda: 10**6)
    with pytest.raises(MemoryError, match="`width`"):
        wf.simulate.posterior(NET, TASK, **{**RUN, "width": 1000}, quantities="energy")


def test_progress_is_shown_when_asked(capsys):
    wf.simulate.posterior(NET, TASK, **RUN, progress=True, throw=False)
    assert "3 chains at width 12" in capsys.readouterr().err


@pytest.mark.parametrize(("sampler", "knobs"), [("hmc", "`draws` and `warmup`"), ("sgld", "`updates`")])
def test_chains_that_are_too_short_are_a_status_and_told_what_to_raise(sampler, knobs):
    options = {**RUN, "sampler": sampler} | (
        {"rate": 1e-6, "updates": 1} if sampler == "sgld" else {"warmup": 0, "temperature": 1e-4}
    )
    short = wf.simulate.posterior(NET, TASK, **options, throw=False)
    assert short.status is wf.Status.not_converged
    assert any(knobs in note and "raise" in note for note in short.notes)
    judged = {"energy", "hidden", "feature", "prediction", "test_prediction", "coherence"}
    assert set(short.certificate.diagnostics["r_hat"]) == judged
