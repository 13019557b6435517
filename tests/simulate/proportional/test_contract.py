"""What `simulate.proportional` promises: seeds, shapes, words for bad input, divergence, files."""

import numpy as np
import pytest

import widefield as wf
from widefield.answer import boundary

from ..calls import proportional as simulate

NET = wf.DNN(2, "linear")
RUN = {"dimension": 10, "width_ratio": 1.2, "richness": 1.0, "rate": 0.05, "steps": 3, "replicates": 3, "seed": 4}
STRUCTURED = {name: RUN[name] for name in ("richness", "rate", "steps", "replicates", "seed")}
SPECTRUM = ([1.0, 0.5, 0.2], [1.0, 0.3, 0.1])
CORRELATIONS = ("feature_correlation", "gradient_correlation")


@pytest.mark.parametrize("data", [{}, {"data_ratio": 0.8}, {"batch_ratio": 0.8}])
def test_same_seed_same_numbers_whatever_the_other_replicates(data):
    run = RUN | data | {"label_noise": 0.1}
    first, again, longer, other = (simulate(NET, **run | change) for change in ({}, {}, {"replicates": 5}, {"seed": 5}))
    asked = simulate(NET, **run, quantities=("test_loss", *CORRELATIONS))
    for field in ("train_loss", "test_loss"):
        np.testing.assert_array_equal(first.data[field], again.data[field])
        np.testing.assert_array_equal(first.data[field], longer.data[field][:3])
        assert not np.allclose(first.data[field], other.data[field])
    np.testing.assert_array_equal(first.test_loss, asked.test_loss)
    assert len(np.unique(first.test_loss[:, 0])) == 3, "replicates must differ"


def test_dims_and_shapes():
    plain = simulate(NET, **RUN, data_ratio=0.8)
    assert plain.train_loss.dims == plain.test_loss.dims == ("replicate", "step")
    assert plain.test_loss.shape == (3, 4) and plain.certificate.left_out == CORRELATIONS
    assert plain.certificate.theory == "simulate.proportional" and plain.status is wf.Status.success
    np.testing.assert_array_equal(plain.data["step"], range(4))
    np.testing.assert_allclose(plain.data["time"], 0.05 * np.arange(4))
    full = simulate(NET, **RUN, target_overlap=np.eye(2), quantities=("test_loss", *CORRELATIONS))
    assert full.test_loss.dims == ("replicate", "step", "output") and full.test_loss.shape == (3, 4, 2)
    for field in CORRELATIONS:
        assert full.data[field].dims == ("replicate", "layer", "step", "step_", "output", "output_")
        np.testing.assert_allclose(full.data[field], full.data[field].values.transpose(0, 1, 3, 2, 5, 4), rtol=1e-13)
    np.testing.assert_array_equal(
        simulate(NET, **RUN, target_overlap=[[1.0]]).test_loss, simulate(NET, **RUN).test_loss
    )
    one = simulate(NET, **RUN, quantities=CORRELATIONS)
    assert one.feature_correlation.dims == ("replicate", "layer", "step", "step_")
    np.testing.assert_array_equal(one.data["layer"], [1, 2])


def test_without_data_both_losses_are_the_populations():
    for data in ({}, {"data_ratio": np.inf}, {"batch_ratio": np.inf}):
        trial = simulate(NET, **RUN, **data, label_noise=0.3)
        np.testing.assert_array_equal(trial.train_loss, trial.test_loss)


def test_rates_by_number_array_and_function():
    constant = simulate(NET, **RUN)
    for rate in ([0.05] * 3, np.full(3, 0.05), lambda step: 0.05):
        np.testing.assert_array_equal(simulate(NET, **RUN | {"rate": rate}).test_loss, constant.test_loss)
    falling = simulate(NET, **RUN | {"rate": lambda step: 0.05 / (1 + step)})
    listed = simulate(NET, **RUN | {"rate": [0.05, 0.025, 0.05 / 3]})
    np.testing.assert_array_equal(falling.test_loss, listed.test_loss)
    np.testing.assert_allclose(falling.data["time"], [0, 0.05, 0.075, 0.075 + 0.05 / 3])


def test_sizes_that_do_not_divide_are_told():
    net = wf.DNN(2, "linear", widths=(1.0, 0.5))
    trial = simulate(net, **RUN | {"width_ratio": 1.5, "data_ratio": 0.77})
    assert trial.certificate.options["sizes"] == [15, 8]
    assert any("0.75 is 8/10" in note for note in trial.notes) and any("0.77 is 8/10" in note for note in trial.notes)
    assert not any("is 12/10" in note for note in simulate(NET, **RUN).notes)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"dimension": 0}, "dimension"),
        ({"dimension": None}, "dimension"),
        ({"width_ratio": 0.0}, "width_ratio"),
        ({"width_ratio": -1.0}, "width_ratio"),
        ({"width_ratio": np.inf}, "width_ratio"),
        ({"width_ratio": None}, "width_ratio"),
        ({"width_ratio": 0.01}, "width_ratio"),
        ({"data_ratio": 0.0}, "data_ratio"),
        ({"data_ratio": np.nan}, "data_ratio"),
        ({"data_ratio": -np.inf}, "data_ratio"),
        ({"batch_ratio": -1.0}, "batch_ratio"),
        ({"data_ratio": 1.0, "batch_ratio": 1.0}, "data_ratio"),
        ({"richness": 0.0}, "richness"),
        ({"richness": 0.0, "centered": True}, "richness"),
        ({"rate": -0.1}, "rate"),
        ({"rate": [0.1, 0.1]}, "rate"),
        ({"rate": [0.1, -0.1, 0.1]}, "rate"),
        ({"rate": lambda step: np.nan}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"steps": 0}, "steps"),
        ({"batch_ratio": 1.0, "flow": True}, "flow"),
        ({"weight_decay": 0.1}, "weight_decay"),
        ({"inputs": "same"}, "inputs"),
        ({"supervised": (0,)}, "supervised"),
        ({"label_noise": -0.1}, "label_noise"),
        ({"centered": 1}, "centered"),
        ({"paired": None}, "paired"),
        ({"width": 5}, "width"),
        ({"batch": 5}, "batch"),
        ({"spectrum": SPECTRUM}, "dimension"),
        ({"target_overlap": np.ones((2, 3))}, "target_overlap"),
        ({"target_overlap": [[1.0, 2.0], [2.0, 1.0]]}, "target_overlap"),
        ({"target_overlap": [[1.0, 0.5], [0.4, 1.0]]}, "target_overlap"),
        ({"target_overlap": np.eye(11)}, "target_overlap"),
        ({"replicates": 0}, "replicates"),
        ({"seed": -1}, "seed"),
        ({"quantities": "bias"}, "quantities"),
        ({"progress": "yes"}, "progress"),
    ],
)
def test_bad_arguments_are_named(change, name):
    with pytest.raises(ValueError) as raised:
        simulate(NET, **RUN | change)
    assert f"`{name}`" in str(raised.value)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"width": 0}, "width"),
        ({"width": None}, "width"),
        ({"batch": 0}, "batch"),
        ({"spectrum": [1.0]}, "spectrum"),
        ({"spectrum": ([1.0, 0.0], [1.0, 1.0])}, "spectrum"),
        ({"spectrum": ([1.0, 0.5], [1.0, -1.0])}, "spectrum"),
        ({"spectrum": ([1.0, 0.5], [1.0])}, "spectrum"),
        ({"dimension": 3}, "dimension"),
        ({"width_ratio": 1.0}, "width_ratio"),
        ({"data_ratio": 1.0}, "data_ratio"),
        ({"target_overlap": np.eye(2)}, "target_overlap"),
        ({"spectrum": (*SPECTRUM, [0.2, 0.3, 0.5])}, "spectrum"),
        ({"samples": 10}, "samples"),
        ({"batch": 2.5}, "batch"),
        ({"batch": 4, "flow": True}, "flow"),
    ],
)
def test_bad_structured_arguments_are_named(change, name):
    with pytest.raises(ValueError) as raised:
        simulate(NET, **STRUCTURED | {"spectrum": SPECTRUM, "width": 5} | change)
    assert f"`{name}`" in str(raised.value)


@pytest.mark.parametrize(
    ("net", "name"),
    [
        ("linear", "network"),
        (wf.RNN(2, "linear"), "network"),
        (wf.DNN(2, "relu"), "activation"),
        (wf.DNN(2, wf.Activation(lambda x: 2 * x, name="linear")), "activation"),
        (wf.DNN(2, "linear", weight_variance=2.0), "weight_variance"),
        (wf.DNN(2, "linear", input_variance=2.0), "input_variance"),
        (wf.DNN(2, "linear", readout_variance=None), "readout_variance"),
        (wf.DNN(2, "linear", bias_variance=0.1), "bias_variance"),
        (wf.DNN(2, "linear", readout_bias_variance=0.1), "readout_bias_variance"),
    ],
)
def test_networks_beyond_the_theory_are_refused_by_name(net, name):
    with pytest.raises(ValueError, match=f"`{name}`") as raised:
        simulate(net, **RUN)
    assert name == "network" or "simulate.proportional" in str(raised.value)


@pytest.mark.parametrize("call", ["prior", "posterior", "finite_width"])
def test_other_simulators_refuse_skip_connections(call):
    task = wf.Task(np.ones((2, 3)), np.ones(2))
    options = {"width": 4, "replicates": 2, "seed": 0} | ({"temperature": 1.0} if call == "posterior" else {})
    with pytest.raises(ValueError, match=f"skip connections in simulate.{call}.*ResNet with branch 0.5"):
        getattr(wf.simulate, call)(wf.ResNet(2, branch=0.5), task, **options)


@pytest.mark.parametrize("data", [{}, {"data_ratio": 0.8}])
@pytest.mark.parametrize("rate", [3.0, 1e200])
def test_divergence_is_loud_and_dated(data, rate):
    run = RUN | data | {"rate": rate, "steps": 60}
    with pytest.raises(wf.SolveError, match="diverged in 3 of 3 replicates, first at step"):
        simulate(NET, **run)
    partial = simulate(NET, **run, quantities=("test_loss", "train_loss", *CORRELATIONS), throw=False)
    first = partial.certificate.diagnostics["diverged_at_step"]
    assert partial.status is wf.Status.diverged and 0 < first < 60
    assert (
        np.isfinite(partial.test_loss[:, :first]).all() and np.isfinite(partial.gradient_correlation[:, :, 0, 0]).all()
    )
    for field in partial.data.data_vars.values():
        assert not np.isnan(field).any()
    assert np.isinf(partial.test_loss[:, -1]).all() and np.isinf(partial.feature_correlation[:, :, -1]).all()


def test_memory_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(boundary, "memory_budget", lambda: 1_000_000)
    with pytest.raises(MemoryError, match="feature_correlation"):
        simulate(NET, **RUN | {"steps": 1000}, quantities="feature_correlation")
    with pytest.raises(MemoryError, match="dimension"):
        simulate(NET, **RUN | {"dimension": 400})


def test_progress_is_shown_when_asked(capsys):
    simulate(NET, **RUN, progress=True)
    assert "3 networks of layers 12, 12" in capsys.readouterr().err
    simulate(NET, **RUN)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("net", [wf.ResNet(2, "linear", 0.5), wf.DNN(2, "linear", widths=(1.0, 0.5))])
def test_save_and_load(net, tmp_path):
    solution = simulate(net, **RUN | {"rate": [0.1, 0.05, 0.02]}, data_ratio=0.8)
    again = wf.load(solution.save(tmp_path / "a.nc"))
    assert again.data.identical(solution.data) and again.network == net and again.certificate == solution.certificate
    structured = simulate(net, **STRUCTURED, spectrum=SPECTRUM, width=6, batch=4)
    again = wf.load(structured.save(tmp_path / "b.nc"))
    assert again.data.identical(structured.data) and again.certificate == structured.certificate


def test_float32_and_integer_spectra_are_accepted():
    exact = simulate(NET, **STRUCTURED, spectrum=([1.0, 0.5], [1.0, 2.0]), width=6)
    single = simulate(NET, **STRUCTURED, spectrum=(np.float32([1, 0.5]), [1, 2]), width=6)
    np.testing.assert_array_equal(exact.test_loss, single.test_loss)
