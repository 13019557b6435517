"""Results and their files: what is written comes back, nothing half-written stays, and errors say what there is."""

import copy
import math
import os
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from widefield.answer.certificate import Check
from widefield.answer.solution import make_solution
from widefield.question.activation import leaky_relu, monomial

X = np.random.default_rng(0).normal(size=(3, 4))
TASK = wf.Task(X, np.arange(6).reshape(3, 2), x_test=X[:2].astype("float32"), y_test=np.ones((2, 2)))
NET = wf.DNN(3, "gelu", weight_variance=(1.0, 1.0 / 3), bias_variance=0.2, widths=(1, 2, 1))


def ramp(x):
    return jnp.clip(x, -1, 1)


RAMP = wf.Activation(ramp, breaks=(-1, 1))


def made(network=NET, task=TASK, *, teacher=None, training=None, arrays=None, throw=True, **certificate):
    """A solution with made-up numbers of every kind that theories return."""
    arrays = arrays or {
        "kernel": (("state", "state_", "sample"), np.arange(12.0).reshape(2, 2, 3) / 7),
        "infinite": (("sample",), np.array([np.inf, np.nan, -0.0])),
        "output": (("sample",), np.arange(3.0)),
        "prediction": (("sample", "output"), np.ones((3, 2))),  # a field and a dim may share a name
        "count": ((), np.int64(3)),
        "phase": ((), "ordered"),
        "single": (("sample",), np.ones(3, "float32")),
    }
    certificate = {"checks": {"residual": Check(1e-13, 1e-10)}} | certificate
    nouns = {"teacher": teacher, "training": training}
    return make_solution(arrays, wf.Certificate("demo", **certificate), network, task, **nouns, throw=throw)


@pytest.fixture(scope="module")
def solved():
    return wf.prior(wf.RNN(2, "erf", bias_variance=0.1), TASK, noise=0.1)


# Files.


def test_everything_comes_back(tmp_path):
    solution = made()
    read = wf.load(solution.save(tmp_path / "a.nc"))
    assert read.data.identical(solution.data)
    assert {k: v.dtype.kind for k, v in read.data.items()} == {k: v.dtype.kind for k, v in solution.data.items()}
    assert read.network == NET and hash(read.network) == hash(NET)
    assert read.certificate == solution.certificate


def test_fields_keep_their_order(tmp_path):
    solution = made()
    read = wf.load(solution.save(tmp_path / "a.nc"))
    assert list(read.data.data_vars) == list(solution.data.data_vars)
    assert str(read) == str(solution)


def test_a_real_solution_comes_back(tmp_path, solved):
    read = wf.load(solved.save(tmp_path / "a.nc"))
    assert read.data.identical(solved.data) and read.certificate == solved.certificate
    again = wf.prior(read.network, read.task, noise=read.certificate.options["noise"])
    assert again.data.identical(solved.data), "the file holds all that is needed to make the result again"


@pytest.mark.parametrize(
    "task",
    [
        TASK,
        wf.Task(X),
        wf.Task(X, np.ones((3, 2, 1)), supervised=(-1, 0)),
        wf.Task(X, np.ones(3), supervised=1),
        wf.Task(np.ones((2, 3, 4)), supervised=(0, 2)),
        None,
    ],
)
def test_tasks_come_back(tmp_path, task):
    read = wf.load(made(task=task).save(tmp_path / "a.nc")).task
    if task is None:
        assert read is None
        return
    for name in ("x", "y", "x_test", "y_test"):
        before, after = getattr(task, name), getattr(read, name)
        assert (before is None) == (after is None)
        if before is not None:
            np.testing.assert_array_equal(after, before)
            assert not after.flags.writeable
    assert (read.supervised, read.notes) == (task.supervised, task.notes)


@pytest.mark.parametrize(
    "network",
    [
        wf.RNN(1),
        wf.RNN(4, "tanh", readout_variance=None, bias_variance=0.1, readout_bias_variance=0.7),
        wf.DNN(3, "quadratic", weight_variance=(0.1, 1e-300), inputs="untied", input_variance=(1, 2, 3)),
        wf.DNN(2, monomial(3), widths=(1, 0.5)),
        wf.DNN(2, leaky_relu(0.3)),
        pytest.param(
            wf.DNN(2, "leaky_relu"),
        ),
    ],
)
def test_networks_come_back(tmp_path, network):
    read = wf.load(made(network).save(tmp_path / "a.nc")).network
    assert read == network
    assert [type(getattr(read, f.name)) for f in fields(read)] == [
        type(getattr(network, f.name)) for f in fields(network)
    ]


def wobble(f, y):
    return ((f - y) ** 4).sum()


@pytest.mark.parametrize(
    "training",
    [
        wf.Training(0.1, 5),
        wf.Training(lambda t: 1 / (t + 1), 4, richness=0.3, flow=True, centered=True, loss="logistic"),
        wf.Training(
            [0.1, 0.2], 2, weight_decay=0.1, momentum_time=3.0, temperature=0.5, initial_scale=(1, 2, 3),
            batches=np.eye(2, 3),
        ),
    ],
)  # fmt: skip
def test_trainings_come_back(tmp_path, training):
    read = wf.load(made(training=training).save(tmp_path / "a.nc")).training
    for name in (f.name for f in fields(training)):
        np.testing.assert_equal(getattr(read, name), getattr(training, name))
    assert str(read) == str(training)
    np.testing.assert_array_equal(read.times, training.times)


def test_a_user_s_loss_is_kept_as_text(tmp_path):
    read = wf.load(made(training=wf.Training(0.1, 5, loss=wobble)).save(tmp_path / "a.nc"))
    assert read.training.loss_name == "wobble" and "** 4" in read.training.loss_source
    with pytest.raises(ValueError, match=r"wobble(.|\n)*\*\* 4"):
        read.training.loss(1.0, 2.0)
    again = wf.load(read.save(tmp_path / "b.nc")).training
    assert again.loss_source == read.training.loss_source


@pytest.mark.parametrize(
    "teacher",
    [
        wf.Teacher(),
        wf.Teacher(data_ratio=2.0, label_noise=0.1, target_overlap=[[1, 0.5], [0.5, 2]]),
        wf.Teacher(batch_ratio=0.5, supervised=(-1, 0), inputs="sequence"),
        wf.Teacher(spectrum=([2.0, 1.0], [0.5, 0.5]), batch=16),
        wf.Teacher(spectrum=([2.0, 1.0], [0.5, 0.5], [0.25, 0.75]), data_ratio=3.0),
    ],
)
def test_teachers_come_back(tmp_path, teacher):
    read = wf.load(made(task=None, teacher=teacher).save(tmp_path / "a.nc"))
    for name in (f.name for f in fields(teacher)):
        np.testing.assert_equal(getattr(read.teacher, name), getattr(teacher, name))
    assert str(read.teacher) == str(teacher) and set(read.question) == {"network", "teacher"}


def test_certificates_come_back(tmp_path):
    solution = made(
        checks={"residual": Check(math.inf, 1e-10), "lost": Check(2, 0, wf.Status.incomplete)}, steps=7, seed=2**40, dtype="float32", wall_time=0.1 + 0.2,
        options={"noise": math.inf, "at": (1, 2), "nothing": None, "yes": True, "name": "φ", "deep": {"a": [math.inf]}},
        notes=("a note", "zwölf"), left_out=("hidden",), failure=wf.Status.saddle, throw=False,
    )  # fmt: skip
    read = wf.load(solution.save(tmp_path / "a.nc"))
    assert read.certificate == solution.certificate
    assert read.certificate.options["deep"] == {"a": [math.inf]} and read.certificate.options["at"] == [1, 2]
    assert read.status is wf.Status.saddle and read.certificate.notes == ("a note", "zwölf")
    unknown = {"residual": Check(math.nan, 1e-10)}
    nan = wf.load(made(checks=unknown, options={"x": math.nan}, throw=False).save(tmp_path / "b.nc")).certificate
    assert nan.status is wf.Status.inaccurate and math.isnan(nan.residual) and math.isnan(nan.options["x"])


def test_certificates_hold_plain_values():
    """NumPy numbers and functions become what a file can keep."""
    options = made(
        options={"n": np.int64(3), "rate": np.float32(0.5), "at": np.arange(2), "loss": ramp}
    ).certificate.options
    assert options == {"n": 3, "rate": 0.5, "at": [0, 1], "loss": "ramp"}
    assert type(options["n"]) is int and type(options["rate"]) is float


@pytest.mark.parametrize(
    "activation", [RAMP, wf.Activation(ramp, breaks=(-1, 1), name="hard"), wf.Activation(ramp, name="relu")]
)
def test_user_activations_are_kept_as_text(tmp_path, activation):
    net = wf.DNN(2, activation)
    read = wf.load(made(net).save(tmp_path / "a.nc"))
    phi = read.network.activation
    assert (phi.name, phi.breaks) == (activation.name, activation.breaks)
    assert "jnp.clip(x, -1, 1)" in phi.source
    assert str(read.network) == str(net) and activation.name in str(read)
    for evaluate in (lambda: phi(1.0), lambda: wf.prior(read.network, wf.Task(X), quantities="output")):
        with pytest.raises(ValueError, match=rf"{activation.name}.*saved by name and source(.|\n)*jnp.clip"):
            evaluate()
    again = wf.load(read.save(tmp_path / "b.nc")).network.activation
    assert again.source == phi.source


def test_saving_again_replaces_the_file(tmp_path):
    path = tmp_path / "a.nc"
    made(seed=1).save(path)
    assert made(seed=2).save(str(path)) == path
    assert os.listdir(tmp_path) == ["a.nc"] and wf.load(str(path)).certificate.seed == 2
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask, "readable like any other new file"


# Objects.


def test_fields_are_attributes(solved):
    np.testing.assert_array_equal(solved.output, solved.data["output"])
    assert solved.test_prediction.dims == ("state", "test", "output")
    assert {"output", "hidden", "certificate", "save"} <= set(dir(solved))
    assert solved.status is solved.certificate.status and solved.notes == solved.certificate.notes
    assert solved.residual == solved.certificate.residual


def test_unknown_fields_are_answered_with_what_there_is():
    solution = made(left_out=("hidden",))
    with pytest.raises(AttributeError, match="no field 'hiden'.*It has: kernel, infinite, output") as raised:
        _ = solution.hiden
    assert "left out" not in str(raised.value)
    with pytest.raises(AttributeError, match=r"no field 'hidden'.*left out.*quantities=\('hidden',\).*It has: kernel"):
        _ = solution.hidden
    assert not hasattr(solution, "_private") and not hasattr(solution, "__array__")


def test_states_and_steps_count_from_zero_and_layers_from_one():
    dims = ("layer", "layer_", "step", "state", "replicate", "sample")
    data = made(arrays={"a": (dims, np.zeros((2, 2, 2, 2, 2, 2)))}).data
    first = {d: int(data.coords[d][0]) for d in dims[:-1]}
    assert first == {"layer": 1, "layer_": 1, "step": 0, "state": 0, "replicate": 0}
    assert "sample" not in data.coords


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_solutions_can_be_copied(clone, solved):
    other = clone(solved)
    assert other.data.identical(solved.data) and other.certificate == solved.certificate
    assert other.network == solved.network, "other processes must find the same network"


def test_solutions_are_frozen(solved):
    for target, name in ((solved, "data"), (solved.certificate, "residual"), (solved, "new")):
        with pytest.raises(FrozenInstanceError):
            setattr(target, name, None)


def test_solutions_print(solved):
    text = str(solved)
    for word in (
        "prior: success",
        "RNN: 2 hidden states, activation erf",
        "Task: 3 samples",
        "hidden",
        "state 2 × state_ 2",
    ):
        assert word in text, text
    assert f"{solved.log_evidence.item():.6g}" in text
    html = solved._repr_html_()
    assert "prior: success" in html and "<pre>" in html and "output" in html
    assert "nan" not in str(made(arrays={"empty": (("sample",), np.zeros(0))}))


def test_failure_carries_what_was_reached():
    for status in wf.Status:
        if status is wf.Status.success:
            continue
        with pytest.raises(wf.SolveError) as raised:
            made(failure=status, notes=("it went wrong",))
        message, partial = str(raised.value), raised.value.solution
        assert status.name in message and status.value in message and "it went wrong" in message
        assert "throw=False" in message
        assert partial.status is status and partial.data.identical(made().data)
        assert made(failure=status, throw=False).status is status
    assert isinstance(raised.value, RuntimeError) and wf.SolveError("alone").solution is None


def test_certificates_are_values():
    one, other = made(seed=1).certificate, made(seed=1).certificate
    assert one == other and replace(one, seed=2) != other
    assert one.versions["widefield"] == wf.__version__ and {"jax", "numpy", "scipy"} <= set(one.versions)


def test_certificates_do_not_share_their_versions():
    assert made().certificate.versions is not made().certificate.versions
