"""What `widefield.prior` and its core promise: the list that every theory passes, and the symmetries of the prior."""

import contextlib
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

import widefield as wf
from widefield.answer import boundary
from widefield.gaussian import expectation, kernel_for
from widefield.theories.prior import core

from .. import contracts

ACTIVATIONS = ("relu", "erf", "tanh")
STATES = (0, 1, 2)
CORE = "widefield.theories.prior.core"
FIELDS = ("output", "ntk", "readout", "hidden", "feature")
VARIANCES = {"weight_variance": 1.5, "bias_variance": 0.2, "readout_variance": 1.3, "readout_bias_variance": 0.3}

RNG = np.random.default_rng(11)
X = RNG.uniform(-1, 1, size=(4, 3))
DUPLICATE = np.vstack([X[:3], X[:1]])
TASK = wf.Task(X, RNG.normal(size=(4, 2)), x_test=RNG.uniform(-1, 1, size=(2, 3)))


def network(activation, make=wf.RNN, **changes):
    return make(len(STATES), activation, **VARIANCES | changes)


def joint(field):
    """(state, state_, sample, sample_) as one matrix over (state, sample)."""
    n = field.shape[0] * field.shape[2]
    return field.transpose(0, 2, 1, 3).reshape(n, n)


# The pure core.


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@lru_cache
def cores(activation):
    """The core's functions of (variances, x) for one activation."""
    net = network(activation)
    kernel, sharing = kernel_for(net.activation, 4.0), core.sharing_of(net)

    def all_states(variances, x):
        power = jnp.einsum("iad,iad->ai", x, x) / x.shape[-1]
        table = kernel.table(core.node_variances(kernel, variances, power))
        return core.all_states_block(kernel, variances, sharing, table, table, core.overlaps(x, x))

    def output(variances, x):
        return core.output_kernel(kernel, variances, x)

    return {"output_kernel": output, "all_states_block": all_states}


def point(activation, x=X):
    """Where to evaluate them."""
    return core.variances_of(network(activation)), jnp.asarray(x[:, None])


VARIED, INPUTS = (0,), (1,)
BOTH_ROADS = pytest.mark.parametrize("activation", ["relu", "tanh"])


@BOTH_ROADS
def test_gradient_at_duplicates_in_the_variances(activation, x64):
    """Duplicates stay duplicates when variances change: nothing is singular there, the tangent kernel included."""
    output_kernel = cores(activation)["output_kernel"]
    contracts.assert_gradient_is_difference(output_kernel, *point(activation, DUPLICATE), along=VARIED)


@pytest.mark.parametrize(
    "activation",
    [
        "relu",
        pytest.param("tanh"),
    ],
)
def test_gradient_at_duplicates_in_the_inputs(activation, x64):
    """The covariance is differentiable where two inputs coincide, and each of them has its share."""
    output_kernel = cores(activation)["output_kernel"]
    contracts.assert_gradient_is_difference(output_kernel, *point(activation, DUPLICATE), along=INPUTS, of=(0,))


def test_core_refuses_single_precision_unless_asked(solved):
    net = network("erf")
    x = jnp.asarray(X[:, None], "float32")
    variances, kernel = core.variances_of(net, "float32"), kernel_for(net.activation, 4.0, "float32")
    with pytest.raises(ValueError, match="`x` is float32.*enable_x64.*dtype='float32'"):
        core.output_kernel(kernel, variances, x)
    readout, tangent = jax.jit(partial(core.output_kernel, dtype="float32"))(kernel, variances, x)
    assert readout.dtype == tangent.dtype == jnp.float32
    np.testing.assert_allclose(readout, solved.output, rtol=1e-4)


def test_blocks_refuse_single_precision_unless_asked():
    net = network("erf")
    variances, kernel = core.variances_of(net, "float32"), kernel_for(net.activation, 4.0, "float32")
    table, drive = kernel.table(jnp.ones((3, 4))), jnp.ones((1, 1, 4, 4))
    with pytest.raises(ValueError, match="float32"):
        core.all_states_block(kernel, variances, core.sharing_of(net), table, table, drive)
    with pytest.raises(ValueError, match="float32"):
        core.equal_state_block(kernel, variances, table, table, drive[0])


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_a_kernel_made_in_single_precision_does_not_stay():
    softplus = network("softplus").activation
    with contextlib.suppress(ValueError):
        kernel_for(softplus, 2.0)  # an expert forgets the x64 scope: may raise, must not spoil what follows
    pair = expectation("softplus", 1.7, 1.9, 0.4)
    exact = expectation("softplus", 1.7, 1.9, 0.4, method="quadrature")
    assert abs(pair.value - exact.value) <= pair.error + exact.error


# The public call.


@pytest.fixture(scope="module")
def solved():
    return wf.prior(network("erf"), TASK, noise=0.1)


def test_certificate(solved):
    contracts.assert_certified(solved, "prior")
    contracts.assert_arrays_are_numpy(solved)
    certificate = solved.certificate
    assert certificate.options["noise"] == 0.1
    assert set(certificate.options["quantities"]) == set(solved.data.data_vars)
    assert certificate.dtype == "float64" and certificate.steps == len(STATES)
    assert solved.network == network("erf") and solved.task is TASK


@BOTH_ROADS
def test_certificate_of_other_roads(activation):
    contracts.assert_certified(wf.prior(network(activation), wf.Task(DUPLICATE)), "prior")


def test_dims(solved):
    states, pairs = ("state", "state_"), ("sample", "sample_")
    dims = {name: field.dims for name, field in solved.data.data_vars.items()}
    assert dims["output"] == dims["ntk"] == pairs
    assert dims["readout"] == dims["hidden"] == dims["feature"] == (*states, *pairs)
    assert dims["log_evidence"] == () and dims["test_prediction"] == ("state", "test", "output")
    assert dims["test_covariance"] == (*states, "test", "test_")
    several = wf.prior(network("erf"), wf.Task(X, supervised=(0, -1)), quantities=("ntk", "output"))
    assert several.ntk.dims == (*states, *pairs) and several.output.dims == pairs


def test_quantities_select():
    contracts.assert_selects(lambda **options: wf.prior(network("erf"), wf.Task(X), **options), FIELDS)
    regression = ("log_evidence", "test_prediction", "ntk_prediction", "test_covariance")
    contracts.assert_selects(
        lambda **options: wf.prior(network("erf"), TASK, noise=0.1, **options), (*FIELDS, *regression)
    )
    for name in regression:
        with pytest.raises(ValueError, match="`quantities` must be one of"):
            wf.prior(network("erf"), wf.Task(X), quantities=name)


@pytest.mark.parametrize(
    "quantities",
    [
        (),
        pytest.param(5),
        ("output", 5),
    ],
)
def test_quantities_must_be_names(quantities):
    with pytest.raises(ValueError, match="`quantities`"):
        wf.prior(network("erf"), wf.Task(X), quantities=quantities)


def test_x64_flag_has_no_say():
    task = wf.Task(X.astype("float32"))
    contracts.assert_x64_flag_has_no_say(lambda: wf.prior(network("tanh"), task, quantities="output"))


@BOTH_ROADS
def test_single_precision_on_request(activation):
    fields = ("output", "ntk")
    double, single = (
        wf.prior(network(activation), wf.Task(DUPLICATE), dtype=d, quantities=fields) for d in ("float64", "float32")
    )
    contracts.assert_certified(single, "prior")
    contracts.assert_arrays_are_numpy(single, "float32")
    assert single.certificate.dtype == "float32" and single.certificate.tolerance == 1e-4
    assert "float32" in str(single)
    for name in fields:
        scale = np.abs(double.data[name].values).max()
        np.testing.assert_allclose(single.data[name], double.data[name], rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rtol": 1e-13}, "`rtol` must .*1e-12.*float64"),
        ({"rtol": 1e-6, "dtype": "float32"}, "`rtol` must .*1e-05.*float32"),
        ({"rtol": 0.0}, "`rtol` must be a finite positive number"),
        ({"rtol": 1.0}, "`rtol` must .* below 1"),
        ({"dtype": "float16"}, "`dtype` must be one of 'float64', 'float32'"),
        ({"dtype": np.int64}, "`dtype` must be one of 'float64', 'float32'"),
        pytest.param({"dtype": object()}, "`dtype`"),
        ({"noise": -0.1}, "`noise` must be a finite non-negative number"),
        ({"noise": np.nan}, "`noise` must be a finite non-negative number"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        wf.prior(network("erf"), wf.Task(X), **options)


def test_questions_are_checked():
    with pytest.raises(ValueError, match="`network` must be a widefield Network"):
        wf.prior("relu", TASK)
    with pytest.raises(ValueError, match="`task` must be a widefield.Task"):
        wf.prior(network("erf"), X)


@pytest.mark.parametrize(
    "argument, call, value",
    [
        ("x", lambda v: wf.prior(network("erf"), wf.Task(v * X)), 1.0),
        ("y", lambda v: wf.prior(network("erf"), wf.Task(X, v * X)), 1.0),
        ("noise", lambda v: wf.prior(network("erf"), TASK, noise=v), 1.0),
        ("rtol", lambda v: wf.prior(network("erf"), TASK, rtol=v), 0.1),
        ("weight_variance", lambda v: wf.prior(network("erf", weight_variance=v), TASK), 1.0),
        ("weight_variance", lambda v: wf.prior(network("erf", wf.DNN, weight_variance=v * np.ones(2)), TASK), 1.0),
        pytest.param(
            "weight_variance", lambda v: wf.prior(network("erf", wf.DNN, weight_variance=(v, 1.0)), TASK), 1.0,
        ),
    ],
)  # fmt: skip
def test_tracers_are_pointed_to_the_core(argument, call, value):
    contracts.assert_rejects_tracers(call, argument, value, CORE)


def test_what_does_not_fit_is_left_out_and_named(monkeypatch):
    monkeypatch.setattr(boundary, "memory_budget", lambda: boundary.COPIES * 2 * 16 * 8)
    solution = wf.prior(network("erf"), wf.Task(X))
    assert set(solution.data.data_vars) == {"output", "ntk"}
    assert set(solution.certificate.left_out) == {"readout", "hidden", "feature"}
    assert "left out" in str(solution)
    with pytest.raises(AttributeError, match="left out.*quantities"):
        _ = solution.hidden
    monkeypatch.setattr(boundary, "memory_budget", lambda: 10)
    with pytest.raises(MemoryError, match="Not even `output`.*10 bytes"):
        wf.prior(network("erf"), wf.Task(X))


def overflowing(**options):
    return wf.prior(wf.DNN(12, "exp", weight_variance=50.0), wf.Task(X), **options)


def test_overflow_is_loud():
    partial_solution = contracts.assert_fails_loudly(overflowing, wf.Status.nonfinite)
    assert partial_solution.residual is None, "nothing was solved"


def test_overflow_returns_nothing_invented():
    """A finite number in a partial solution is right; what was not reached is not finite."""
    hidden = overflowing(throw=False).hidden.values
    first = hidden[0, 0]
    known = np.isfinite(first)
    np.testing.assert_allclose(first[known], (X @ X.T / 3)[known], rtol=1e-12)
    assert not np.isfinite(hidden[-1, -1]).any()


def test_singular_regression_is_refused_and_noise_helps():
    task = wf.Task(DUPLICATE, np.arange(4.0), x_test=X[3:])
    call = partial(wf.prior, network("relu"), task)
    partial_solution = contracts.assert_fails_loudly(call, wf.Status.not_psd)
    assert set(partial_solution.data.data_vars) == set(FIELDS), "the kernels themselves are fine"
    noisy = call(noise=0.1)
    contracts.assert_certified(noisy, "prior")
    assert np.isfinite(noisy.log_evidence) and np.isfinite(noisy.test_prediction.values).all()


# Symmetries. Draws change values, never shapes, and inputs have unit largest power: nothing is compiled again.

few = settings(max_examples=5, deadline=None, derandomize=True)
sides = st.floats(-1, 1, allow_subnormal=False)
rows = st.tuples(st.floats(0.1, 1), sides, sides)
inputs = st.tuples(rows, rows, rows).map(lambda x: np.round([*x, x[0]], 3)).map(
    lambda x: x / np.sqrt(np.square(x).mean(axis=1).max())
)  # fmt: skip
ROOT = 1e-6  # the slope of relu has a square root where inputs coincide, and they do so only to rounding
EVERY = pytest.mark.parametrize("activation", ACTIVATIONS)


def prior_at_all_states(activation, x, make=wf.RNN, **changes):
    return wf.prior(network(activation, make, **changes), wf.Task(x, supervised=STATES)).data


@EVERY
@few
@given(x=inputs)
def test_kernels_are_positive_semi_definite(activation, x):
    solution = prior_at_all_states(activation, x)
    for name in ("hidden", "feature", "readout", "ntk"):
        matrix = joint(solution[name].values)
        np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=1e-14 * np.trace(matrix))
        assert np.linalg.eigvalsh(matrix)[0] >= -1e-11 * np.trace(matrix), name


@EVERY
@few
@given(x=inputs, order=st.permutations(range(4)), angles=st.tuples(*[st.floats(0, 6)] * 3))
def test_samples_permute_and_inputs_rotate(activation, x, order, angles):
    before = prior_at_all_states(activation, x)
    rotation = Rotation.from_euler("xyz", angles).as_matrix()
    after = prior_at_all_states(activation, x[list(order)] @ rotation)
    for name in ("hidden", "feature", "readout"):
        expected = before[name].values[..., order, :][..., order]
        np.testing.assert_allclose(after[name], expected, rtol=0, atol=1e-12 * np.abs(expected).max(), err_msg=name)
    ntk, allowed = before.ntk.values[..., order, :][..., order], ROOT if activation == "relu" else 1e-12
    np.testing.assert_allclose(after.ntk, ntk, rtol=0, atol=allowed * np.abs(ntk).max())


@EVERY
@few
@given(x=inputs)
def test_equal_states_do_not_know_whether_weights_are_tied(activation, x):
    tied = prior_at_all_states(activation, x, wf.RNN, biases="untied")
    untied = prior_at_all_states(activation, x, wf.DNN, biases="untied")
    for name in ("hidden", "feature", "readout", "ntk"):
        blocks = [np.einsum("aaij->aij", s[name].values) for s in (tied, untied)]
        np.testing.assert_allclose(*blocks, rtol=0, atol=1e-13 * np.abs(blocks[0]).max(), err_msg=name)


@few
@given(x=inputs, factor=st.floats(1e-3, 1e3))
def test_relu_scales_with_its_inputs(x, factor):
    no_biases = {"bias_variance": 0.0, "readout_bias_variance": 0.0}
    one, other = (prior_at_all_states("relu", s * x, **no_biases) for s in (1.0, factor))
    for name, rtol in {"hidden": 1e-12, "feature": 1e-12, "readout": 1e-12, "ntk": ROOT}.items():
        scale = np.abs(one[name].values).max()
        np.testing.assert_allclose(other[name] / factor**2, one[name], rtol=0, atol=rtol * scale, err_msg=name)
