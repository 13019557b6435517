"""The answer of a sweep: every point is what its call answers alone, and bad input is refused before any work."""

import inspect
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from tests.sweep.question import NET, OVER, TASK, here
from widefield.sweep import call as calls
from widefield.sweep import question as questions
from widefield.sweep import table
from widefield.sweep.question import call_of, described

X = TASK.x
LINEAR, LABELED = wf.RNN(3, "linear"), wf.Task(X[:1], [1.0])
TEACHER, TRAINING = wf.Teacher(data_ratio=1.5), wf.Training(0.05, 4)


def assert_point(swept, alone, **where):
    """The fields of one point are those of its own call, to the bit; what is longer elsewhere is NaN behind the end."""
    for name, field in alone.data.data_vars.items():
        values = swept.data[name].sel(where).values
        own = values[tuple(map(slice, field.shape))]
        np.testing.assert_array_equal(own, field.values, err_msg=str(name))
        assert np.isfinite(values).sum() == np.isfinite(field.values).sum() if field.dtype.kind == "f" else True


def test_every_point_is_its_own_call():
    answer = here()
    for variance in OVER["network.weight_variance"]:
        for noise in (0.1, 0.7):
            alone = wf.prior(replace(NET, weight_variance=variance), TASK, noise=noise)
            assert_point(answer, alone, weight_variance=variance, noise=noise)
    assert answer.data.output.dims[:2] == ("weight_variance", "noise")
    assert answer.network is NET and answer.task is TASK


def test_labels_depths_words_and_nouns():
    over = {"labels": [0.5, 2.0], "network.depth": [1, 3], "network.activation": ["relu", "linear"]}
    answer = wf.sweep(wf.prior, NET, TASK, over=over, quantities=("hidden", "test_prediction"))
    task = wf.Task(X, 2 * TASK.y, x_test=TASK.x_test, y_test=2 * TASK.y_test)
    for depth in (1, 3):
        net = replace(NET, depth=depth, activation=wf.DNN(1, "linear").activation)
        alone = wf.prior(net, task, quantities=("hidden", "test_prediction"))
        assert_point(answer, alone, labels=2.0, depth=depth, activation="linear")
    assert answer.data.state.values.tolist() == [0, 1, 2]
    nets = {"shallow": wf.DNN(1, "relu"), "tied": wf.RNN(2, "linear")}
    answer = wf.sweep("prior", task=TASK, over={"network": nets}, quantities="output")
    assert_point(answer, wf.prior(nets["tied"], TASK, quantities="output"), network="tied")


def test_fields_of_some_points_are_named():
    """Readouts at two states give another tangent kernel, over more dims; test predictions are missing without test inputs."""
    both = wf.Task(X, np.ones((3, 2, 1)))
    answer = wf.sweep("prior", NET, over={"task": {"one": TASK, "two": both}})
    assert answer.certificate.left_out == ("ntk",) and "ntk" not in answer.data
    assert "test_prediction is a field of 1 points alone" in answer.notes
    assert np.isnan(answer.data.test_prediction.sel(task="two")).all()


def test_numbers_of_jax_and_of_many_digits():
    answer = wf.sweep("prior", NET, TASK, over={"noise": jnp.array([0.5, 0.25])}, quantities={"output"})
    assert answer.data.noise.values.tolist() == [0.5, 0.25]
    trials = {"seed": [10**30, 3]}
    answer = wf.sweep("simulate.prior", NET, TASK, over=trials, width=4, replicates=2, quantities="output")
    assert answer.data.seed.values.tolist() == [0, 1] and answer.data.status.values.tolist() == ["refused", "success"]


def test_a_readout_bias_follows_the_bias():
    answer = wf.sweep("prior", NET, TASK, over={"network.bias_variance": [0.0, 0.4]}, quantities="output")
    alone = wf.prior(wf.DNN(2, "relu", weight_variance=1.4, bias_variance=0.4), TASK, quantities="output")
    assert_point(answer, alone, bias_variance=0.4)
    apart = replace(NET, readout_bias_variance=0.3)
    answer = wf.sweep("prior", apart, TASK, over={"network.bias_variance": [0.4]}, quantities="output")
    alone = wf.prior(replace(apart, bias_variance=0.4), TASK, quantities="output")
    assert_point(answer, alone, bias_variance=0.4)


def test_times_that_differ_are_kept_at_every_point():
    over = {"training.rate": [0.05, 0.1], "training.steps": [2, 4]}
    answer = wf.sweep("proportional", wf.DNN(2, "linear"), TEACHER, TRAINING, over=over, quantities="test_loss")
    assert answer.data.step.values.tolist() == [0, 1, 2, 3, 4]
    assert answer.data.time.sel(rate=0.1, steps=4).values == pytest.approx(0.1 * np.arange(5))
    assert np.isnan(answer.data.test_loss.sel(steps=2)).sum() == 2 * 2


def test_a_transition_is_its_points():
    over = {"temperature": [0.1, 1.0], "network": {"tied": LINEAR, "untied": wf.DNN(3, "linear")}}
    answer = wf.sweep("transition", task=LABELED, over=over, points=3)
    alone = wf.transition(LINEAR, LABELED, temperature=1.0, points=3)
    point = answer.data.sel(temperature=1.0, network="tied")
    assert (float(point.instability), point.order.item()) == (alone.instability, alone.order)
    np.testing.assert_array_equal(point.factor_values, alone.curve.data.factor)
    assert np.isnan(answer.data.instability.sel(network="untied")).all()
    assert (answer.data.order.sel(network="untied") == "").all() and answer.status is wf.Status.success


def test_a_point_that_fails_is_a_status(tmp_path):
    loud = wf.DNN(2, "relu", weight_variance=1e200)
    over = {"network": {"loud": loud, "quiet": NET}, "noise": [-1.0, 0.1]}
    answer = wf.sweep("prior", task=TASK, over=over)
    status = answer.data.status.to_series()
    assert status["loud", 0.1] == "nonfinite" and status["quiet", 0.1] == "success"
    assert (answer.data.status.sel(noise=-1.0) == "refused").all()
    assert "`noise`" in answer.data.message.sel(network="quiet", noise=-1.0).item()
    assert np.isnan(answer.data.output.sel(network="loud")).all()
    assert np.isfinite(answer.data.output.sel(network="quiet", noise=0.1)).all()
    assert answer.status is wf.Status.incomplete and answer.certificate.checks["failed"].value == 3
    assert any("at network=loud, noise=0.1: nonfinite" in note for note in answer.notes)
    assert wf.load(answer.save(tmp_path / "sweep.nc")).data.identical(answer.data)


def test_what_a_failed_point_reached_may_be_kept():
    question, over = (wf.DNN(2, "linear"), TEACHER, TRAINING), {"training.rate": [0.05, 1e80]}
    answer = wf.sweep("proportional", *question, over=over, throw=False)
    alone = wf.proportional(*question[:2], wf.Training(1e80, 4), throw=False)
    assert alone.status is wf.Status.diverged and answer.data.status.values.tolist() == ["success", "diverged"]
    assert_point(answer, alone, rate=1e80)
    assert np.isfinite(answer.data.test_loss.sel(rate=1e80, step=0))
    assert np.isnan(wf.sweep("proportional", *question, over=over).data.test_loss.sel(rate=1e80)).all()


def test_a_defect_in_one_point_costs_no_other(monkeypatch):
    plain = wf.prior.__wrapped__

    def broken(network, task, **options):
        if network.weight_variance == 1.0:
            raise ZeroDivisionError("broken")
        return plain(network, task, **options)

    broken.__signature__ = inspect.signature(wf.prior)
    monkeypatch.setattr(questions, "call_of", lambda name: jax.enable_x64(True)(broken))
    status = here().data.status
    assert (status.sel(weight_variance=1.0) == "error").all() and (status.sel(weight_variance=2.0) == "success").all()


def test_nothing_but_failures_is_an_error():
    with pytest.raises(ValueError, match="`noise` must be.*-1.*no point of the sweep has an answer"):
        wf.sweep("prior", NET, TASK, over={"noise": [-1.0, -2.0]})
    with pytest.raises(wf.SolveError, match="weight_variance=1e"):
        wf.sweep("prior", NET, TASK, over={"network.weight_variance": [1e200, 1e201]}, rtol=1e-8)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"depth": [1]}, "`over` must name what prior is asked, got 'depth'. It has:.*network.depth"),
        ({"network.depht": [1]}, "`over` must name what prior is asked"),
        ({"noise": []}, "'noise' must be a list of values.*got none"),
        ({"noise": 0.1}, "'noise' must be a list of values"),
        ({"noise": "ab"}, "'noise' must be a list of values"),
        ({"noise": {0.1, 0.2}}, "'noise' must be a list of values"),
        ({"noise": (n for n in [0.1])}, "'noise' must be a list of values, or a dict.*got <generator"),
        ({"noise": np.ones((2, 2))}, "'noise' must be a list of values"),
        ({"noise": np.ma.array([1.0, 2.0], mask=[True, False])}, "'noise' must be a list of values"),
        ({"noise": [0.1, np.nan]}, "'noise' must be.*got NaN"),
        ({"noise": [0.1, 0.1]}, "'noise' must be different values"),
        ({"noise": {1: 0.1}}, "names of 'noise' must be words"),
        ({"noise": range(10**5 + 1)}, "at most 100000 points, got 100001"),
        ({"network.depth": [2, 0]}, "'network.depth' cannot be 0: `depth` must be"),
        ({"network.weight_variance": [1.0, "a"]}, "'network.weight_variance' cannot be 'a': `weight_variance"),
        ({"network": [NET, 3]}, "'network' cannot be 3: `network` must be a widefield Network"),
        ({"labels": [1.0, "a"]}, "'labels' cannot be 'a': `labels`"),
        ({}, "`over` must be a dict"),
        ([("noise", [1.0])], "`over` must be a dict"),
    ],
)
def test_axes_that_are_none(over, words, monkeypatch):
    monkeypatch.setattr(calls, "ask", None)  # nothing is asked
    with pytest.raises(ValueError, match=words):
        wf.sweep("prior", NET, TASK, over=over)


def test_arguments_that_are_none():
    for call in ("nonsense", "load", "sweep", "cka", wf.cka, print, lambda: 0, 3):
        with pytest.raises(ValueError, match="`call` must be a public call"):
            wf.sweep(call, NET, TASK, over=OVER)
    for options, words in (
        ({"nosie": 1.0}, "`nosie` is no option of a sweep or of prior"),
        ({"noise": 1.0}, "`noise` is given and swept"),
        ({"network": NET}, "`network` is given twice"),
        ({"client": 3}, "`client` must be a dask.distributed.Client"),
        ({"workers": 0}, "`workers` must be an integer of at least 1"),
        ({"retry": 1}, "`retry` must be True or False"),
    ):
        with pytest.raises(ValueError, match=words):
            here(**options)
    with pytest.raises(
        ValueError, match="`question` and `options` must be .* asked again at every point, got <generator"
    ):
        here(quantities=(name for name in ("output",)))
    with pytest.raises(ValueError, match="`temperature` must be given to posterior, or swept"):
        wf.sweep("posterior", LINEAR, LABELED, over={"labels": [1.0]})
    with pytest.raises(ValueError, match="`over`: 'labels' cannot be 1.0: `labels` is a factor on `y`"):
        wf.sweep("prior", NET, wf.Task(X), over={"labels": [1.0]})


def test_a_trace_is_refused_by_name():
    for over, options in (({"noise": [0.1]}, {"rtol": 1.0}), ({"rtol": [0.1, 1.0]}, {"noise": 1.0})):
        name = next(iter(options))
        with pytest.raises(ValueError, match=f"`{name}` is a JAX tracer"):
            jax.jit(lambda v, over=over, name=name: wf.sweep("prior", NET, TASK, over=over, **{name: v}))(1.0)
    with pytest.raises(ValueError, match="`over` is a JAX tracer"):
        jax.jit(lambda v: wf.sweep("prior", NET, TASK, over={"noise": v}))(np.ones(2))


def test_the_whole_result_is_seen_to_fit(monkeypatch):
    monkeypatch.setattr(table, "COPIES", 10**12)
    with pytest.raises(MemoryError, match="fields of all points need"):
        here()


def test_functions_of_the_same_text_are_told_apart():
    made = [wf.Activation(lambda z, a=a: a * z, name="ramp") for a in (1.0, 1.0, 2.0)]
    first, same, other = (described(one) for one in made)
    assert first == same != other
    assert described(np.float64(2)) == described(2) == described(2.0) != described(True)


@pytest.mark.parametrize(
    ("call", "question", "over", "options"),
    [
        ("posterior", (LINEAR, LABELED), {"labels": [0.5, 0.7, 0.9], "temperature": [0.5, 0.6]}, {}),
        ("prior", (NET, TASK), OVER, {}),
        ("proportional", (wf.DNN(2, "linear"), TEACHER, TRAINING), {"training.rate": [0.01, 0.02], "width_ratio": [1.0, 2.0]}, {}),
        ("dynamics", (wf.DNN(2, "linear"), TASK, TRAINING), {"training.rate": [0.01, 0.02], "training.richness": [0.5, 1.0]}, {}),
    ],
)  # fmt: skip
def test_points_of_one_shape_compile_once(call, question, over, options):
    """A second sweep over other numbers meets nothing new."""
    compiled = []
    wf.sweep(call, *question, over=over, **options)
    listen = lambda event, seconds, **rest: compiled.append(event) if "backend_compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        wf.sweep(call, *question, over={key: [1.1 * v for v in values] for key, values in over.items()}, **options)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled, f"{call_of(call)} compiled again"
