"""The question: what is refused, with which words, and what is kept of what is accepted."""

import json
from dataclasses import FrozenInstanceError, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widefield as wf
from widefield.answer.files import network_dict, network_from

X = np.arange(12.0).reshape(4, 3) / 10
Y = np.ones(4)
BOTH = pytest.mark.parametrize("make", [wf.DNN, wf.RNN])
many = settings(max_examples=40, deadline=None, derandomize=True)
not_numbers = st.sampled_from([np.nan, np.inf, -np.inf])
negative = st.floats(max_value=-1e-300)


def refused(name, fragment, call, *args, **kwargs):
    """The call raises a ValueError that names the argument in backticks and says what is allowed."""
    with pytest.raises(ValueError) as raised:
        call(*args, **kwargs)
    message = str(raised.value)
    assert f"`{name}" in message and fragment in message, message


# Networks.


@BOTH
@many
@given(depth=st.one_of(st.integers(max_value=0), st.floats(), st.booleans(), st.text(max_size=3), st.none()))
def test_depth_is_a_positive_integer(make, depth):
    refused("depth`", "integer of at least 1", make, depth)


SCALARS = ("weight_variance", "input_variance", "readout_variance", "bias_variance", "readout_bias_variance")


@BOTH
@pytest.mark.parametrize("name", SCALARS)
@many
@given(value=st.one_of(negative, not_numbers, st.sampled_from(["high", 1j, [[1.0]], {}, "", np.array(1j)])))
def test_variances_are_finite_and_not_negative(make, name, value):
    refused(name, "number", make, 3, **{name: value})


@pytest.mark.parametrize("name, length", [("weight_variance", 2), ("input_variance", 3), ("bias_variance", 3)])
@many
@given(where=st.integers(0, 2), value=st.one_of(negative, not_numbers))
def test_variances_of_each_state_are_finite_and_not_negative(name, length, where, value):
    values = np.ones(length)
    values[where % length] = value
    refused(f"{name}[{where % length}]`", "non-negative", wf.DNN, 3, inputs="untied", **{name: values})


@pytest.mark.parametrize("name, length", [("weight_variance", 3), ("input_variance", 4), ("bias_variance", 4)])
@many
@given(n=st.integers(0, 6))
def test_number_of_variances(name, length, n):
    """``weight_variance`` has one value per transition, the others one per state."""
    values = {name: [1.0] * n, "inputs": "untied"}
    if n == length:
        assert len(getattr(wf.DNN(4, **values), name)) == length
    else:
        refused(f"{name}`", f"one number or {length} of them", wf.DNN, 4, **values)


@pytest.mark.parametrize("name, n, sharing", [
    ("weight_variance", 2, "weights"), ("bias_variance", 3, "biases"), ("input_variance", 3, "inputs"),
])  # fmt: skip
def test_tied_parameters_have_one_variance(name, n, sharing):
    refused(f"{name}`", "tied across states", wf.RNN, 3, **{name: [1.0] * n})
    free = wf.RNN(3, **{name: [1.0, 2.0, 3.0][:n], sharing: "untied"})
    assert getattr(free, name) == (1.0, 2.0, 3.0)[:n]


@pytest.mark.parametrize(
    "name, value",
    [
        pytest.param("weight_variance", [1.0, [2.0]]),
        pytest.param("weight_variance", "1.0"),
        pytest.param("weight_variance", ["1", "2"]),
        pytest.param("bias_variance", True),
        pytest.param(
            "readout_variance",
            np.complex128(1 + 1j),
        ),
    ],
)
def test_what_is_not_a_number_is_not_a_variance(name, value):
    refused(name, "number", wf.DNN, 3, **{name: value})


@BOTH
@pytest.mark.parametrize("name", ["weights", "biases", "inputs"])
@pytest.mark.parametrize("value", ["shared", "", None, True, 1])
def test_sharing_is_a_word(make, name, value):
    refused(f"{name}`", "'tied', 'untied'", make, 3, **{name: value})


@BOTH
@pytest.mark.parametrize("activation", ["swish", "ReLU", "", None, 3, jnp.tanh])
def test_unknown_activations(make, activation):
    refused("activation`", "widefield.Activation", make, 3, activation)


def test_unknown_activation_lists_the_known_ones():
    for name in ("relu", "erf", "tanh", "softplus"):
        refused("activation`", name, wf.DNN, 3, "swish")


@pytest.mark.parametrize(
    "call, name, fragment",
    [
        (lambda: wf.Activation(3), "function`", "callable"),
        (lambda: wf.Activation(np.sort), "function`", "JAX array"),
        (lambda: wf.Activation(jnp.sum), "function`", "entry by entry"),
        (lambda: wf.Activation(lambda x: jnp.concatenate([x, x])), "function`", "entry by entry"),
        (lambda: wf.Activation(jnp.tanh, breaks=(0.0, np.nan)), "breaks`", "finite"),
        (lambda: wf.Activation(jnp.tanh, breaks=[[0.0]]), "breaks`", "finite"),
        pytest.param(
            lambda: wf.Activation(jnp.tanh, breaks="zero"), "breaks`", "finite",
        ),
    ],
)  # fmt: skip
def test_bad_user_activations(call, name, fragment):
    refused(name, fragment, call)


def test_a_users_function_is_not_what_its_name_says():
    net = wf.RNN(3, wf.Activation(jnp.tanh, name="linear"))
    task = wf.Task(np.ones((1, 1)), [1.0])
    assert not net.activation.known_as("linear") and wf.RNN(3, "linear").activation.known_as("linear")
    with pytest.raises(ValueError, match="linear"):
        wf.posterior(net, task, temperature=1.0, method="perturbative")
    with pytest.raises(ValueError, match="proportional covers linear networks"):
        wf.proportional(wf.DNN(2, net.activation), wf.Teacher(data_ratio=1.0), wf.Training(0.1, 2), width_ratio=1.0)


def test_unequal_widths_need_untied_weights_and_biases():
    refused("widths`", "equal", wf.RNN, 2, widths=(1.0, 2.0))
    refused("widths`", "equal", wf.DNN, 2, widths=(1.0, 2.0), biases="tied")
    refused("widths`", "one number or 2", wf.DNN, 2, widths=(1.0, 2.0, 3.0))
    refused("widths[1]`", "positive", wf.DNN, 2, widths=(1.0, 0.0))
    assert wf.DNN(2, widths=(1.0, 2.0)).sizes(10) == (10, 20)
    assert wf.RNN(2, widths=(2.0, 2.0)).sizes(10) == (20, 20)
    refused("width`", "integer of at least 1", wf.DNN(2).sizes, 0)


@many
@given(branch=st.one_of(negative, not_numbers, st.sampled_from([0.0, None, "one", True, [1.0]])))
def test_a_branch_is_a_positive_number(branch):
    refused("branch`", "positive", wf.ResNet, 3, branch=branch)


def test_residual_networks_have_untied_weights_of_equal_widths():
    refused("weights`", "untied", wf.ResNet, 3, weights="tied")
    refused("widths`", "equal", wf.ResNet, 2, widths=(1.0, 2.0))
    net = wf.ResNet(3, branch=np.float32(0.5), widths=(2.0, 2.0, 2.0))
    assert (net.kind, net.branch, net.activation.name, net.weights) == ("ResNet", 0.5, "linear", "untied")
    assert type(net.branch) is float and net.sizes(10) == (20, 20, 20)
    assert wf.ResNet(3).branch == 1.0 and wf.DNN(3).branch is wf.RNN(3).branch is None
    assert wf.ResNet(3) != wf.DNN(3, "linear") and wf.ResNet(3) == replace(wf.DNN(3, "linear"), branch=1)
    assert "ResNet: 3 hidden states" in str(net) and "branch     0.5" in str(net) and "branch" not in str(wf.DNN(3))


def test_residual_networks_are_refused_by_the_name_of_the_theory():
    refused("network`", "in prior: it covers DNN and RNN, got a ResNet", wf.ResNet(3).refuse_branch, "prior")
    wf.DNN(3).refuse_branch("prior")


def test_files_keep_the_branch_and_old_ones_have_none():
    for net in (wf.ResNet(2, "tanh", 0.25, bias_variance=0.1), wf.DNN(2)):
        fields = network_dict(net)
        assert network_from(json.loads(json.dumps(fields))) == net
    del fields["branch"]
    assert network_from(fields) == wf.DNN(2)


def test_defaults():
    deep, recurrent = wf.DNN(3), wf.RNN(3)
    for net in (deep, recurrent):
        assert net.weight_variance == net.input_variance == net.readout_variance == 1.0
        assert net.bias_variance == net.readout_bias_variance == 0.0
        assert net.activation.name == "relu" and net.widths == 1.0
    assert (deep.weights, deep.biases, deep.inputs) == ("untied", "untied", "tied")
    assert (recurrent.weights, recurrent.biases, recurrent.inputs) == ("tied", "tied", "tied")
    assert (deep.kind, recurrent.kind) == ("DNN", "RNN")
    assert wf.DNN(3, bias_variance=0.3).readout_bias_variance == 0.3
    assert wf.DNN(3, bias_variance=(0.1, 0.2, 0.3)).readout_bias_variance == 0.3
    assert wf.DNN(3, bias_variance=0.3, readout_bias_variance=0.0).readout_bias_variance == 0.0
    assert wf.DNN(3, readout_variance=None).readout_variance is None


def test_per_state_views():
    net = wf.DNN(3, weight_variance=(1, 2), bias_variance=0.5)
    np.testing.assert_array_equal(net.weight_variances, [1, 2])
    np.testing.assert_array_equal(net.bias_variances, [0.5] * 3)
    np.testing.assert_array_equal(net.input_variances, [1.0] * 3)
    assert wf.DNN(1).weight_variances.shape == (0,) and wf.DNN(1, weight_variance=()).depth == 1


@BOTH
def test_networks_are_frozen_values(make):
    net = make(3, "erf", weight_variance=1.5)
    with pytest.raises(FrozenInstanceError):
        net.depth = 4
    same, other = make(np.int64(3), "erf", weight_variance=np.float32(1.5)), make(3, "erf", weight_variance=1.6)
    assert net == same and hash(net) == hash(same) and net != other
    assert len({net, same, other}) == 2
    assert type(same.depth) is int and type(same.weight_variance) is float
    assert replace(net, weight_variance=1.6) == other
    assert wf.DNN(3) != wf.RNN(3)


def test_the_callers_list_is_not_kept():
    values = [1.0, 2.0]
    net = wf.DNN(3, weight_variance=values)
    values[0] = 9.0
    assert net.weight_variance == (1.0, 2.0)


def test_networks_print():
    net = wf.RNN(4, "tanh", weight_variance=1.25, bias_variance=0.5, readout_variance=2.0, inputs="untied")
    text = str(net)
    for word in ("RNN", "4 hidden states", "tanh", "1.25 (tied)", "1 (untied)", "0.5 (tied)", "readout variance 2"):
        assert word in text, text
    assert "1 hidden state," in str(wf.DNN(1))
    assert "(1, 2)" in str(wf.DNN(3, weight_variance=(1, 2))) and "widths" in str(wf.DNN(2, widths=(1, 2)))
    assert "single neurons" in str(wf.DNN(2, readout_variance=None))
    assert "leaky_relu(0.01)" in str(wf.DNN(2, "leaky_relu"))
    assert text in net._repr_html_() and net._repr_html_().startswith("<pre>")


def test_notebooks_show_the_name_of_a_lambda():
    net = wf.DNN(2, wf.Activation(lambda x: jnp.tanh(x)))
    assert "<lambda>" in str(net) and "&lt;lambda&gt;" in net._repr_html_()


def test_an_activation_is_its_function_not_its_name():
    """A user's function that bears a name of the library is not taken for the library's."""
    impostor = wf.Activation(lambda x: 2 * x, name="relu")
    assert wf.DNN(1, impostor) != wf.DNN(1, "relu")
    output = wf.prior(wf.DNN(1, impostor), wf.Task(X), quantities="output").output
    np.testing.assert_allclose(output, 4 * X @ X.T / 3, rtol=1e-12)


# Tasks.

BAD_ARRAYS = {
    "complex": 1j * X, "object": X.astype(object), "string": X.astype(str), "none in a list": [[1.0, None]],
    "dates": np.full((4, 3), "2020-01-01", "datetime64[D]"), "dict": {"x": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", ["x", "y", "x_test", "y_test"])
@pytest.mark.parametrize("bad", BAD_ARRAYS.values(), ids=BAD_ARRAYS.keys())
def test_arrays_hold_real_numbers(name, bad):
    arrays = {"x": X, "y": X, "x_test": X, "y_test": X} | {name: bad}
    refused(f"{name}`", "real numbers", wf.Task, **arrays)


@pytest.mark.parametrize("name, bad", [("x", [[1.0, 2.0], [3.0]]), ("y", [[1.0], 2.0]), ("supervised", [0, [1]])])
def test_ragged_lists_are_named(name, bad):
    refused(f"{name}`", "", wf.Task, **({"x": X[:2]} | {name: bad}))


@pytest.mark.parametrize("name", ["x", "y", "x_test", "y_test"])
@many
@given(where=st.integers(0, 11), value=not_numbers)
def test_arrays_are_finite(name, where, value):
    bad = X.copy()
    bad.flat[where] = value
    index = tuple(map(int, np.unravel_index(where, X.shape)))
    refused(
        f"{name}`",
        f"finite, got {value} at index {index}",
        wf.Task,
        **{"x": X, "y": X, "x_test": X, "y_test": X, name: bad},
    )


@many
@given(shape=st.lists(st.integers(0, 3), max_size=5).map(tuple))
def test_shapes_of_inputs(shape):
    if len(shape) in (2, 3) and 0 not in shape:
        assert wf.Task(np.ones(shape)).x.shape == shape
    else:
        refused("x`", "(sample, D)", wf.Task, np.ones(shape))


@many
@given(shape=st.lists(st.integers(0, 5), max_size=4).map(tuple))
def test_shapes_of_labels(shape):
    if len(shape) in (1, 2, 3) and 0 not in shape and shape[0] == len(X):
        assert wf.Task(X, np.ones(shape)).y.shape == shape
    else:
        refused("y`", "sample", wf.Task, X, np.ones(shape))


def test_labels_belong_to_supervised_states():
    refused("y`", "`supervised` names 2", wf.Task, X, Y, supervised=(0, 1))
    refused("y`", "`supervised` names 2", wf.Task, X, np.ones((4, 3, 1)), supervised=(0, 1))
    refused("y`", "`supervised`", wf.Task(X, np.ones((4, 3, 1))).supervised_states, 2)
    refused("y`", "no labels", wf.Task(X).labels)


def test_test_data_fit_the_training_data():
    refused("x_test`", "(3,), got (2,)", wf.Task, X, x_test=X[:, :2])
    refused("x_test`", "shape of `x`", wf.Task, X, x_test=np.ones((2, 1, 3)))
    refused("y_test`", "`x_test`", wf.Task, X, y_test=Y)
    refused("y_test`", "4 rows", wf.Task, X, x_test=X, y_test=Y[:3])
    refused("y_test`", "shape of `y`", wf.Task, X, Y, x_test=X, y_test=np.ones((4, 2)))


@many
@given(bad=st.one_of(st.floats(), st.booleans(), st.just("last"), st.just(()), st.just([[0]]), st.just([0.0, 1.0])))
def test_supervised_are_indices(bad):
    refused("supervised`", "state indices", wf.Task, X, supervised=bad)


@many
@given(depth=st.integers(1, 5), state=st.integers(-8, 8))
def test_supervised_within_the_depth(depth, state):
    task = wf.Task(X, supervised=state)
    if -depth <= state < depth:
        assert task.supervised_states(depth) == (state % depth,)
    else:
        refused("supervised`", f"{-depth} … {depth - 1}", task.supervised_states, depth)
        refused("supervised`", f"{-depth} … {depth - 1}", wf.prior, wf.DNN(depth), task)


def test_supervised_only_once():
    for twice in ((0, 0), (2, -1), (0, 1, -3)):
        refused("supervised`", "twice", wf.prior, wf.DNN(3), wf.Task(X, supervised=twice))


def test_inputs_do_not_outlast_the_network():
    refused("x`", "drives 3 states, but the network has depth 2", wf.prior, wf.RNN(2), wf.Task(np.ones((4, 3, 2))))


def test_which_states_are_supervised():
    assert wf.Task(X).supervised_states(3) == wf.Task(X, Y).supervised_states(3) == (2,)
    assert wf.Task(X, np.ones((4, 3, 1))).supervised_states(3) == (0, 1, 2)
    assert wf.Task(X, np.ones((4, 2, 1)), supervised=(-1, 0)).supervised_states(3) == (2, 0)
    assert wf.Task(X, Y, supervised=[0]).supervised == (0,)
    assert wf.Task(X, Y).labels().shape == wf.Task(X, Y[:, None]).labels().shape == (4, 1, 1)


def test_tasks_are_frozen_copies():
    x, y = X.copy(), Y.copy()
    task = wf.Task(x, y, x_test=x, y_test=y)
    x[:] = y[:] = 7.0
    np.testing.assert_array_equal(task.x, X)
    for array in (task.x, task.y, task.x_test, task.y_test):
        assert not np.isin(7.0, array) and array.dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
    with pytest.raises(FrozenInstanceError):
        task.x = X


def test_tasks_print():
    text = str(wf.Task(np.ones((4, 2, 3)), np.ones((4, 1, 5)), supervised=(1,), x_test=np.ones((6, 2, 3))))
    for word in ("4 samples in 3 dimensions", "states 0 … 1", "5 output(s) at states [1]", "6 samples"):
        assert word in text, text
    assert "driving state 0" in str(wf.Task(X)) and "with labels" in str(wf.Task(X, Y, x_test=X, y_test=Y))
    assert str(wf.Task(X)) in wf.Task(X)._repr_html_()


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool", "float16"])
def test_upcasts_are_exact_and_noted(dtype):
    x = (np.arange(12).reshape(4, 3) % 5).astype(dtype)
    solution = wf.prior(wf.DNN(2), wf.Task(x, Y), noise=0.1, quantities="output")
    assert solution.task.x.dtype == np.float64
    np.testing.assert_array_equal(solution.task.x, x.astype(float))
    assert any(note.startswith(f"x: {dtype} input") and "float64" in note for note in solution.notes), solution.notes
    assert not any(note.startswith("y:") for note in solution.notes)
    assert wf.Task(X, Y).notes == ()


@pytest.mark.parametrize(
    "x",
    [
        pytest.param(np.array([[2**53 + 1, 0]])),
        pytest.param(np.array([[np.longdouble(1) / 3]])),
    ],
)
def test_what_float64_cannot_hold_is_refused_or_told(x):
    try:
        task = wf.Task(x)
    except ValueError as error:
        assert "`x`" in str(error)
    else:
        assert "round" in " ".join(task.notes)


# Masks, words, switches, and numbers at the ends of float64: refused or honored, never stripped.

MASKED = np.ma.array(X, mask=np.arange(12).reshape(4, 3) == 5)


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: wf.Task(MASKED), "x"),
        (lambda: wf.Task(list(MASKED)), "x"),
        (lambda: wf.Task(X, MASKED[:, 0]), "y"),
        (lambda: wf.Task(X, supervised=np.ma.array([0, 1])), "supervised"),
        (lambda: wf.DNN(4, weight_variance=MASKED[0]), "weight_variance"),
        (lambda: wf.DNN(4, bias_variance=np.ma.masked), "bias_variance"),
        (lambda: wf.Training(MASKED[0, :3], 3), "rate"),
        (lambda: wf.Training(0.1, 4, batches=MASKED), "batches"),
        (lambda: wf.Teacher(target_overlap=np.ma.array(np.eye(2))), "target_overlap"),
        (lambda: wf.Activation(jnp.tanh, breaks=np.ma.array([0.0])), "breaks"),
    ],
)
def test_masks_are_not_taken_off(call, name):
    refused(f"{name}`", "masked", call)


@pytest.mark.parametrize("value", [5e-324, 1e-310, -5e-324])
def test_numbers_that_jax_takes_for_zero_are_refused(value):
    assert jax.jit(lambda v: v * 1.0)(np.float32(1e-40)) == 0, "the reason: subnormal numbers are flushed"
    refused("richness`", "non-negative", wf.Training, 0.1, 3, richness=value)
    refused("weight_variance`", "number", wf.DNN, 3, weight_variance=value)
    assert wf.Training(0.1, 3, richness=2.3e-308).richness == 2.3e-308 and wf.Training(0.1, 3, richness=0).richness == 0


def test_large_integers():
    refused("depth`", "at least 1 and at most 1000000", wf.DNN, 10**30)
    refused("steps`", "at most", wf.Training, 0.1, 10**30)
    refused("seed`", "integer of at least 0", wf.tasks.gaussian, 2, 2, seed=2**63)
    refused("weight_variance`", "number", wf.DNN, 3, weight_variance=10**400)
    refused("depth`", "integer", wf.DNN, 10**5000)  # Python does not print it
    assert wf.DNN(3, weight_variance=10**30).weight_variance == 1e30


@pytest.mark.parametrize("value", ["False", "no", 0, 1, 1.0, None, [], np.array([True]), np.nan])
def test_switches_are_true_or_false(value):
    for name in ("flow", "centered"):
        refused(f"{name}`", "True or False", wf.Training, 0.1, 3, **{name: value})
        assert getattr(wf.Training(0.1, 3, **{name: np.bool_(True)}), name) is True


def test_only_the_library_says_which_closed_forms_are_known():
    with pytest.raises(TypeError, match="is_named"):
        wf.Activation(jnp.tanh, name="relu", is_named=True)
    changed = replace(wf.DNN(1, "relu").activation, function=jnp.tanh)
    assert not changed.known_as("relu")
    for name, value in (("name", 3), ("source", None), ("parameters", "a"), ("parameters", [np.nan])):
        refused(f"{name}`", "", lambda given: wf.Activation(jnp.tanh, **given), {name: value})


@pytest.mark.parametrize(
    "y, told",
    [
        (np.array([0, 1, 2, 1]), True),
        ([0, 1, 1, 0], True),
        (np.array([[3], [1], [0], [2]]), True),
        (np.array([True, False, True, True]), True),
        (np.array([-1, 1, 1, -1]), False),
        (np.eye(4, dtype=int), False),
        (np.array([0.0, 1.0, 2.0, 1.0]), False),
    ],
)
def test_integer_labels_are_told_to_be_numbers(y, told):
    """Classes would be one column each; with the cross-entropy, one column alone is refused."""
    task = wf.Task(X, y)
    np.testing.assert_array_equal(task.y, np.asarray(y, float))
    assert any("integers are regressed as numbers" in note for note in task.notes) is told
    if task.y.ndim == 1:
        with pytest.raises(ValueError, match="`y` must hold class probabilities over two or more outputs"):
            wf.dynamics(wf.DNN(2, "linear"), task, wf.Training(0.1, 3, loss="cross_entropy"))
    solution = wf.prior(wf.DNN(2, "linear"), task, noise=0.1, quantities="output")
    assert any("integers are regressed" in note for note in solution.notes) is told, "the certificate says so"


def test_nouns_are_short_in_a_traceback():
    task = wf.Task(np.ones((500, 300)), np.ones(500))
    assert repr(task) == "Task(x=<array (500, 300)>, y=<array (500,)>, supervised=None, x_test=None, y_test=None)"
    spectrum = (np.ones(1000), np.ones(1000))
    for noun in (
        wf.Teacher(spectrum=spectrum),
        wf.Training(np.ones(900), 900),
        wf.DNN(900, bias_variance=np.ones(900)),
    ):
        assert len(repr(noun)) < 700 and repr(noun).startswith(type(noun).__name__)
    assert "spectrum=(<array (1000,)>, <array (1000,)>)" in repr(wf.Teacher(spectrum=spectrum))


def test_messages_stay_short():
    with pytest.raises(ValueError) as raised:
        wf.DNN(3, weight_variance=list(range(10**5)))
    assert len(str(raised.value)) < 400
