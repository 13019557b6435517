"""What `simulate.dynamics` promises: seeds, shapes, words for bad input, divergence, memory, files."""

import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from widefield.answer import boundary
from widefield.simulate.dynamics import problem

from ..calls import dynamics as simulate

RNG = np.random.default_rng(1)
X, Y = RNG.standard_normal((3, 4)), np.array([1.0, -1.0, 1.0])
TASK = wf.Task(X, Y, x_test=X[:2] + 0.5, y_test=Y[:2])
SEQUENCE = wf.Task(RNG.standard_normal((3, 2, 4)), RNG.standard_normal((3, 2, 2)), supervised=(2, 0))
NET = wf.DNN(2, "tanh")
RUN = {"richness": 1.0, "rate": 0.1, "steps": 3, "width": 12, "replicates": 3, "seed": 4}


@pytest.mark.parametrize("options", [{}, {"temperature": 0.3}, {"momentum_time": 0.5}])
def test_same_seed_same_numbers_whatever_the_other_replicates_and_quantities(options):
    run = RUN | options
    first, again, longer, other = (simulate(NET, TASK, **run | c) for c in ({}, {}, {"replicates": 5}, {"seed": 5}))
    for name in first.data.data_vars:
        np.testing.assert_array_equal(first.data[name], again.data[name])
        np.testing.assert_array_equal(first.data[name], longer.data[name][:3])
        assert not np.allclose(first.data[name], other.data[name])
    only = simulate(NET, TASK, **run, quantities="prediction")
    np.testing.assert_array_equal(first.prediction, only.prediction)
    assert list(only.data.data_vars) == ["prediction"]
    assert len(np.unique(first.loss[:, 0])) == 3, "replicates must differ"


def test_batches_change_no_number(monkeypatch):
    together = simulate(wf.RNN(3, "gelu"), SEQUENCE, **RUN)
    monkeypatch.setattr(problem, "BATCH_NUMBERS", 1)
    alone = simulate(wf.RNN(3, "gelu"), SEQUENCE, **RUN)
    for name in together.data.data_vars:
        np.testing.assert_allclose(together.data[name], alone.data[name], rtol=1e-12, atol=1e-13)


def test_dims_of_a_deep_network():
    trial = simulate(NET, TASK, **RUN)
    expected = {
        "loss": ("step",),
        "test_loss": ("step",),
        "prediction": ("step", "sample", "output"),
        "test_prediction": ("step", "test", "output"),
        "state_prediction": ("step", "state", "sample", "output"),
        "ntk": ("step", "sample", "sample_"),
        "alignment": ("layer", "step"),
        "ntk_alignment": ("step",),
        "preactivation": ("layer", "neuron", "sample"),
        "pregradient": ("layer", "neuron", "sample"),
        "feature_kernel": ("layer", "step", "step_", "sample", "sample_"),
        "gradient_kernel": ("layer", "step", "step_", "sample", "sample_"),
    }
    assert {name: trial.data[name].dims[1:] for name in trial.data.data_vars} == expected
    assert all(field.dims[0] == "replicate" for field in trial.data.data_vars.values())
    np.testing.assert_array_equal(trial.data["step"], range(4))
    np.testing.assert_array_equal(trial.data["layer"], [1, 2])
    np.testing.assert_allclose(trial.data["time"], 0.1 * np.arange(4))
    certificate = trial.certificate
    assert certificate.theory == "simulate.dynamics" and certificate.steps == 3 and certificate.left_out == ()
    assert trial.training.loss == "squared" and trial.status is wf.Status.success and certificate.checks["lost"].met


@pytest.mark.parametrize("network", [wf.RNN(3, "tanh"), wf.DNN(3, "tanh")])
def test_dims_of_a_network_with_several_readouts(network):
    trial = simulate(network, SEQUENCE, **RUN)
    pair = ("state", "state_", "step", "step_", "sample", "sample_")
    assert trial.prediction.dims == ("replicate", "step", "state", "sample", "output")
    assert trial.prediction.shape == (3, 4, 3, 3, 2)
    assert trial.ntk.dims == ("replicate", "readout", "readout_", "step", "sample", "sample_", "output", "output_")
    assert trial.feature_kernel.dims == ("replicate", *pair)
    assert trial.gradient_kernel.dims == ("replicate", "readout", "readout_", *pair, "output", "output_")
    np.testing.assert_array_equal(trial.data["readout"], [0, 2])
    assert not trial.gradient_kernel.sel(readout=0, readout_=0, state=1).values.any(), "no gradient behind a readout"
    ntk = trial.ntk.values
    np.testing.assert_allclose(ntk, ntk.transpose(0, 2, 1, 3, 5, 4, 7, 6), atol=1e-13)
    assert simulate(network, wf.Task(SEQUENCE.x, Y), **RUN).feature_kernel.dims == ("replicate", *pair)


def test_unequal_widths_have_kernels_by_layer():
    trial = simulate(wf.DNN(3, "tanh", widths=(0.5, 2.0, 1.0), inputs="untied"), wf.Task(SEQUENCE.x, Y), **RUN)
    assert trial.feature_kernel.dims[1] == "layer" and "preactivation" not in trial.data
    assert any("unequal widths" in note for note in trial.notes)


def test_rates_by_number_array_and_function():
    constant = simulate(NET, TASK, **RUN)
    for rate in ([0.1] * 3, np.full(3, 0.1), lambda step: 0.1):
        np.testing.assert_array_equal(simulate(NET, TASK, **RUN | {"rate": rate}).loss, constant.loss)
    falling = simulate(NET, TASK, **RUN | {"rate": lambda step: 0.1 / (1 + step)})
    np.testing.assert_allclose(falling.data["time"], [0, 0.1, 0.15, 0.15 + 0.1 / 3])


def test_momentum_of_one_step_is_plain_descent():
    plain, quick = simulate(NET, TASK, **RUN), simulate(NET, TASK, **RUN, momentum_time=0.1)
    np.testing.assert_allclose(quick.prediction, plain.prediction, rtol=1e-12)


def test_langevin_noise_alone_is_a_random_walk_of_known_size():
    """Under a loss that does not pull, decay and noise alone set the variance of h."""
    task = wf.Task(np.ones((1, 1)), [0.0])
    run = {"richness": 1e-6, "rate": 0.1, "steps": 40, "width": 2000, "replicates": 4, "seed": 0}
    zero = lambda f, y: 0.0 * jnp.sum(f)  # noqa: E731
    trial = simulate(wf.DNN(1, "linear"), task, **run, temperature=0.5, weight_decay=1.0, loss=zero)
    variance, expected = np.square(trial.preactivation.values).mean(), 1.0
    for _ in range(40):
        expected = 0.9**2 * expected + 2 * 0.1 * 0.5
    assert abs(variance / expected - 1) < 6 * np.sqrt(2 / 8000)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"richness": 0.0}, "richness"),
        ({"rate": -0.1}, "rate"),
        ({"rate": [0.1, 0.1]}, "rate"),
        ({"rate": lambda step: np.nan}, "rate"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.0}, "steps"),
        ({"width": 0}, "width"),
        ({"replicates": 0}, "replicates"),
        ({"seed": -1}, "seed"),
        ({"flow": True, "temperature": 0.1}, "flow"),
        ({"flow": True, "quantities": "forward_response"}, "quantities"),
        ({"batches": np.ones((3, 3))}, "batches"),
        ({"momentum_time": 0.05}, "momentum_time"),
        ({"initial_scale": (1.0, 2.0)}, "initial_scale"),
        ({"flow": "yes"}, "flow"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"momentum_time": 0.0}, "momentum_time"),
        ({"temperature": -0.1}, "temperature"),
        ({"initial_scale": 0.0}, "initial_scale"),
        ({"centered": 1}, "centered"),
        ({"loss": "absolute"}, "loss"),
        ({"loss": lambda f, y: f}, "loss"),
        ({"loss": 3}, "loss"),
        ({"at": [4]}, "at"),
        ({"at": [-5]}, "at"),
        ({"at": 0.5}, "at"),
        ({"at": []}, "at"),
        ({"quantities": "kernel"}, "quantities"),
        ({"quantities": ()}, "quantities"),
        ({"progress": "yes"}, "progress"),
    ],
)
def test_bad_arguments_are_named(change, name):
    with pytest.raises(ValueError) as raised:
        simulate(NET, TASK, **RUN | change)
    assert f"`{name}`" in str(raised.value)


@pytest.mark.parametrize(
    ("net", "task", "options", "name"),
    [
        ("DNN", TASK, {}, "network"),
        (wf.ResNet(2, branch=0.5), TASK, {}, "network"),
        (wf.DNN(2, readout_variance=None), TASK, {}, "readout_variance"),
        (wf.DNN(2, bias_variance=0.1), TASK, {}, "readout_bias_variance"),
        (NET, X, {}, "task"),
        (NET, wf.Task(X), {}, "y"),
        (NET, wf.Task(X, Y, supervised=2), {}, "supervised"),
        (NET, wf.Task(X, 2 * Y), {"loss": "logistic"}, "y"),
        (NET, wf.Task(X, Y, x_test=X, y_test=0 * Y), {"loss": "logistic"}, "y_test"),
        (NET, wf.Task(X, Y), {"loss": "cross_entropy"}, "y"),
        (NET, wf.Task(X, np.ones((3, 2))), {"loss": "cross_entropy"}, "y"),
        (wf.DNN(2, widths=(1.0, 2.0)), wf.Task(SEQUENCE.x, Y), {}, "inputs"),
        (wf.DNN(2, widths=(1.0, 2.0)), wf.Task(X, np.ones((3, 2, 1))), {}, "widths"),
        (wf.DNN(2, widths=(1.0, 2.0)), wf.Task(X, Y, supervised=0), {}, "widths"),
        (wf.DNN(2, widths=(1.0, 2.0)), wf.Task(X, Y), {"quantities": "preactivation"}, "quantities"),
    ],
)
def test_bad_questions_are_named(net, task, options, name):
    with pytest.raises(ValueError) as raised:
        simulate(net, task, **RUN, **options)
    assert f"`{name}`" in str(raised.value)


@pytest.mark.parametrize("rate", [8.0, 1e200])
def test_divergence_is_loud_and_dated(rate):
    net, run = wf.DNN(2, "linear"), RUN | {"rate": rate, "steps": 40}
    with pytest.raises(wf.SolveError, match="diverged in 3 of 3 replicates, first at step"):
        simulate(net, TASK, **run)
    partial = simulate(net, TASK, **run, throw=False)
    first = partial.certificate.diagnostics["diverged_at_step"]
    assert partial.status is wf.Status.diverged and 0 < first < 40
    assert np.isfinite(partial.loss[:, :first]).all() and np.isinf(partial.loss[:, -1]).all()
    assert np.isfinite(partial.feature_kernel[:, :, 0, 0]).all() and np.isinf(partial.ntk[:, -1]).all()
    assert np.isinf(partial.gradient_kernel[:, :, 0, -1]).all() and np.isinf(partial.preactivation).all()
    for field in partial.data.data_vars.values():
        assert not np.isnan(field).any()


def test_one_diverged_network_leaves_the_others_alone():
    run = RUN | {"rate": 0.3, "steps": 60, "replicates": 12}
    partial = simulate(wf.DNN(2, "linear"), TASK, **run, throw=False)
    lost = ~np.isfinite(partial.loss.values[:, -1])
    assert not lost[0] and lost.any(), "the rate must lie between the networks' limits"
    for field in partial.data.data_vars.values():
        assert np.isfinite(field.values[~lost]).all() and not np.isnan(field.values).any()
    calm = simulate(wf.DNN(2, "linear"), TASK, **run | {"replicates": 1})
    np.testing.assert_array_equal(calm.loss, partial.loss[:1])


def test_overflow_at_the_start_is_not_called_divergence():
    with pytest.raises(wf.SolveError, match="nonfinite"):
        simulate(wf.DNN(3, "exp", weight_variance=1e6), TASK, **RUN)


def test_memory_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(boundary, "memory_budget", lambda: 1_000_000)
    with pytest.raises(MemoryError, match="feature_kernel"):
        simulate(NET, TASK, **RUN | {"steps": 1000}, quantities="feature_kernel")
    with pytest.raises(MemoryError, match="width"):
        simulate(NET, TASK, **RUN | {"width": 2000})
    partial = simulate(NET, TASK, **RUN | {"steps": 100})
    assert partial.certificate.left_out == ("feature_kernel", "gradient_kernel") and "ntk" in partial.data


def test_progress_is_shown_when_asked(capsys):
    simulate(NET, TASK, **RUN, progress=True)
    assert "3 networks of layers 12, 12" in capsys.readouterr().err
    simulate(NET, TASK, **RUN)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("net", "task", "at"), [(NET, TASK, None), (wf.RNN(3, "tanh"), SEQUENCE, [0, 3])])
def test_save_and_load(net, task, at, tmp_path):
    solution = simulate(net, task, **RUN | {"rate": [0.1, 0.05, 0.02]}, at=at)
    again = wf.load(solution.save(tmp_path / "a.nc"))
    assert again.data.identical(solution.data) and again.network == net and again.certificate == solution.certificate
    assert again.training.rates.tolist() == [0.1, 0.05, 0.02]


def test_float32_inputs_are_noted():
    exact = simulate(NET, wf.Task(np.float32(X).astype(float), Y), **RUN)
    single = simulate(NET, wf.Task(np.float32(X), Y), **RUN)
    np.testing.assert_array_equal(exact.loss, single.loss)
    assert any("float32" in note for note in single.notes)
