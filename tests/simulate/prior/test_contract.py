"""What `simulate.prior` promises: seeds, shapes, methods, memory, loud failure."""

import re
from pathlib import Path

import numpy as np
import pytest

import widefield as wf
from widefield.answer import boundary
from widefield.simulate.prior import cost

X = np.random.default_rng(0).standard_normal((3, 5))
TASK = wf.Task(X)
RUN = {"width": 10, "replicates": 6, "seed": 3}
FIELDS = ("output", "draw", "hidden", "feature", "readout")
CASES = [(kind, method) for kind in (wf.DNN, wf.RNN) for method in ("dense", "weight_free")]


@pytest.mark.parametrize(("kind", "method"), CASES)
def test_same_seed_same_numbers(kind, method):
    net = kind(3, "relu", bias_variance=0.1)
    options = {**RUN, "width": 12, "method": method}
    first, again, other = (wf.simulate.prior(net, TASK, **{**options, "seed": s}) for s in (3, 3, 4))
    for field in FIELDS:
        np.testing.assert_array_equal(first.data[field], again.data[field])
        assert not np.allclose(first.data[field], other.data[field])
    assert first.certificate.seed == 3
    assert len(np.unique(first.output.values[:, 0, 0])) == 6, "replicates must differ"


@pytest.mark.parametrize(("kind", "method"), CASES)
@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_numbers_do_not_depend_on_batches_or_quantities(kind, method, activation, monkeypatch):
    net = kind(3, activation, bias_variance=0.1)
    options = {**RUN, "width": 12, "method": method}
    together = wf.simulate.prior(net, TASK, **options)
    longer = wf.simulate.prior(net, TASK, **{**options, "replicates": 11})
    few = wf.simulate.prior(net, TASK, **options, quantities=("draw",))
    monkeypatch.setattr(cost, "MAX_BATCH", 4)
    batched = wf.simulate.prior(net, TASK, **options)
    for field in FIELDS:
        np.testing.assert_allclose(batched.data[field], together.data[field], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(longer.data[field][:6], together.data[field], rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(few.draw, together.draw)
    assert "output" not in few.data and "hidden" not in few.data


def test_dims_and_shapes():
    solution = wf.simulate.prior(wf.RNN(4, "erf"), TASK, **RUN, n_outputs=2)
    cross = ("replicate", "state", "state_", "sample", "sample_")
    assert solution.hidden.dims == solution.feature.dims == solution.readout.dims == cross
    assert solution.hidden.shape == (6, 4, 4, 3, 3)
    assert solution.output.dims == ("replicate", "sample", "sample_")
    assert solution.draw.dims == ("replicate", "state", "sample", "output") and solution.draw.shape == (6, 4, 3, 2)
    assert solution.certificate.left_out == ("ntk",)
    assert solution.hidden.dtype == np.float64
    np.testing.assert_allclose(solution.hidden, solution.hidden.values.transpose(0, 2, 1, 4, 3), rtol=1e-13)


def test_hidden_and_feature_are_averages_of_the_same_neurons():
    """With a linear activation both are the same; with relu, hidden bounds feature on the diagonal."""
    linear = wf.simulate.prior(wf.RNN(3, "linear"), TASK, **RUN)
    np.testing.assert_allclose(linear.hidden, linear.feature, rtol=1e-13)
    relu = wf.simulate.prior(wf.RNN(3, "relu"), TASK, **RUN)
    diagonal = [np.einsum("rssaa->rsa", v.values) for v in (relu.hidden, relu.feature)]
    assert np.all(diagonal[0] >= diagonal[1])


def test_depth_one():
    for method in ("auto", "dense", "weight_free"):
        solution = wf.simulate.prior(wf.DNN(1, "relu"), TASK, **RUN, method=method)
        assert solution.hidden.shape == (6, 1, 1, 3, 3)


def test_no_readout_layer_reads_neurons():
    net = wf.RNN(3, "relu", bias_variance=0.3, readout_variance=None)
    solution = wf.simulate.prior(net, TASK, **RUN, n_outputs=10)
    np.testing.assert_array_equal(solution.readout, solution.hidden)
    np.testing.assert_allclose(solution.output, solution.hidden[:, -1, -1], rtol=1e-12)
    mean = np.einsum("rsao,rtbo->rstab", solution.draw, solution.draw) / 10
    np.testing.assert_allclose(mean, solution.hidden, rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="n_outputs"):
        wf.simulate.prior(net, TASK, **RUN, n_outputs=11)


@pytest.mark.parametrize("method", ["dense", "weight_free"])
def test_unequal_widths(method):
    net = wf.DNN(3, "erf", widths=(1.0, 0.5, 2.0), bias_variance=0.1)
    solution = wf.simulate.prior(net, TASK, **RUN, method=method)
    assert solution.output.dims == ("replicate", "sample", "sample_")
    assert "hidden" not in solution.data and "readout" not in solution.data
    assert (
        solution.hidden_diagonal.dims == solution.feature_diagonal.dims == ("replicate", "state", "sample", "sample_")
    )
    assert solution.draw.dims == ("replicate", "sample", "output")
    assert any("unequal widths" in note for note in solution.notes)
    ranks = np.linalg.matrix_rank(wf.simulate.prior(net, wf.Task(np.eye(12)), **RUN).feature_diagonal.values)
    assert np.all(ranks == [10, 5, 12]), "rank is bounded by the layer's own width"
    with pytest.raises(ValueError, match="quantities"):
        wf.simulate.prior(net, TASK, **RUN, quantities="hidden")
    with pytest.raises(ValueError, match="inputs"):
        wf.simulate.prior(net, wf.Task(np.ones((2, 3, 4))), **RUN)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"width": 0}, "width"),
        ({"width": 2.5}, "width"),
        ({"replicates": 0}, "replicates"),
        ({"replicates": True}, "replicates"),
        ({"seed": -1}, "seed"),
        ({"seed": None}, "seed"),
        ({"method": "fast"}, "method"),
        ({"n_outputs": 0}, "n_outputs"),
        ({"quantities": ("kernel",)}, "quantities"),
        ({"quantities": ("ntk",), "method": "weight_free"}, "method"),
        ({"progress": "yes"}, "progress"),
    ],
)
def test_bad_arguments_are_named(change, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        wf.simulate.prior(wf.DNN(2), TASK, **{**RUN, **change})


def test_bad_questions_are_named():
    with pytest.raises(ValueError, match="`network`"):
        wf.simulate.prior("relu", TASK, **RUN)
    with pytest.raises(ValueError, match="`task`"):
        wf.simulate.prior(wf.DNN(2), X, **RUN)
    with pytest.raises(ValueError, match="`x`"):
        wf.simulate.prior(wf.DNN(2), wf.Task(np.ones((2, 3, 4))), **RUN)
    with pytest.raises(ValueError, match="`supervised`"):
        wf.simulate.prior(wf.DNN(2), wf.Task(X, supervised=5), **RUN)


def test_overflow_is_loud():
    net = wf.DNN(4, "exp", weight_variance=50.0)
    with pytest.raises(wf.SolveError, match="overflowed"):
        wf.simulate.prior(net, TASK, **RUN)
    partial = wf.simulate.prior(net, TASK, **RUN, throw=False)
    assert partial.status is wf.Status.nonfinite and partial.certificate.checks["lost"].value == 6
    assert np.isfinite(partial.hidden[:, 0, 0]).all()


def test_memory_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(boundary, "memory_budget", lambda: 10_000_000)
    net = wf.DNN(3, "relu")
    with pytest.raises(MemoryError, match="hidden"):
        wf.simulate.prior(net, TASK, **{**RUN, "replicates": 100_000}, quantities="hidden")
    with pytest.raises(MemoryError, match="width"):
        wf.simulate.prior(net, TASK, **{**RUN, "width": 4000}, method="dense", quantities="output")
    some = wf.simulate.prior(net, TASK, **{**RUN, "replicates": 6000}, quantities=None)
    assert "output" in some.data and "readout" in some.certificate.left_out


def test_the_cheaper_method_is_chosen():
    def chosen(net, n_samples, width):
        task = wf.Task(np.ones((n_samples, 4)))
        run = {"width": width, "replicates": 1, "seed": 0, "quantities": "draw"}
        return wf.simulate.prior(net, task, **run).certificate.options["method"]

    assert chosen(wf.DNN(4, "relu"), 5, 300) == "weight_free"
    assert chosen(wf.RNN(4, "relu"), 5, 300) == "weight_free"
    assert chosen(wf.RNN(21, "relu"), 15, 300) == "dense"
    assert chosen(wf.RNN(3, "relu"), 200, 300) == "dense"


def test_large_inputs_enter_through_inner_products():
    x = np.random.default_rng(0).normal(1.0, 1.0, size=(1, 100_000))
    run = {"width": 2000, "replicates": 2, "seed": 0, "quantities": "hidden", "method": "dense"}
    solution = wf.simulate.prior(wf.RNN(2, "relu"), wf.Task(x), **run)
    assert solution.certificate.options["inputs"] == "inner products"
    expected = float(x[0] @ x[0]) / 100_000
    np.testing.assert_allclose(solution.hidden[:, 0, 0, 0, 0], expected, rtol=7 * np.sqrt(2 / 2000))


def test_certificate_tells_the_standard_error(tmp_path):
    solution = wf.simulate.prior(network=wf.DNN(2, "relu"), task=TASK, **{**RUN, "replicates": 50})
    assert solution.certificate.theory == "simulate.prior"
    output = solution.output.values
    stderr = output.std(axis=0, ddof=1) / np.sqrt(50)
    told = solution.certificate.diagnostics["relative_standard_error"]
    assert told["output"] == pytest.approx(stderr.max() / np.abs(output.mean(axis=0)).max(), rel=1e-2)
    assert solution.certificate.residual is solution.certificate.tolerance is None, "a simulation solves no equation"
    assert set(told) == {"output", "hidden", "feature", "readout"} and "residual" not in str(solution)
    assert solution.certificate.checks == {"lost": wf.Check(0.0, 0.0, wf.Status.nonfinite)}
    assert wf.load(solution.save(tmp_path / "a.nc")).certificate == solution.certificate
    lonely = wf.simulate.prior(wf.DNN(2), TASK, **{**RUN, "replicates": 1}).certificate
    assert np.isinf(lonely.diagnostics["relative_standard_error"]["output"])


def test_progress_is_shown_when_asked(capsys):
    wf.simulate.prior(wf.DNN(2), TASK, **RUN, progress=True)
    assert "6 networks of width 10" in capsys.readouterr().err
    wf.simulate.prior(wf.DNN(2), TASK, **RUN)
    assert capsys.readouterr().err == ""


def test_simulation_shares_no_code_with_theories():
    """Only the question and the answer are common."""
    for file in Path(wf.simulate.__file__).parent.rglob("*.py"):
        rooms = re.findall(r"(?:from|import) widefield(?:\.(\w+))?", file.read_text())
        assert set(rooms) <= {"question", "answer", "simulate"}, file.name
