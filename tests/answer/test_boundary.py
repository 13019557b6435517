"""Which quantities fit, how sizes are told, and which precision is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widefield as wf
from widefield.answer import boundary
from widefield.answer.boundary import choose_quantities, describe_bytes, require_dtype, working_dtype
from widefield.answer.progress import bar

SIZES = {"output": 10, "ntk": 20, "hidden": 1000, "feature": 30}


def test_everything_that_fits_is_kept_in_order_of_interest():
    assert choose_quantities(None, SIZES, budget=10**4) == (tuple(SIZES), ())
    assert choose_quantities(None, SIZES, budget=100) == (("output", "ntk", "feature"), ("hidden",))
    assert choose_quantities(None, SIZES, budget=45) == (("output", "ntk"), ("hidden", "feature"))
    assert choose_quantities(None, SIZES, budget=0) == ((), tuple(SIZES))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=6), st.integers(0, 10**12))
def test_what_is_kept_fits_and_nothing_is_lost(sizes, budget):
    sizes = {f"q{i}": n for i, n in enumerate(sizes)}
    kept, left_out = choose_quantities(None, sizes, budget)
    assert sum(sizes[name] for name in kept) <= budget
    assert sorted(kept + left_out) == sorted(sizes)
    free = budget - sum(sizes[name] for name in kept)
    assert all(sizes[name] > free for name in left_out), "anything left out would still have fitted"


def test_asked_by_name():
    assert choose_quantities("ntk", SIZES, budget=100) == (("ntk",), ())
    assert choose_quantities(["feature", "output"], SIZES, budget=100) == (("feature", "output"), ())
    with pytest.raises(
        ValueError, match="`quantities` must be one of 'output', 'ntk', 'hidden', 'feature', got 'kernel'"
    ):
        choose_quantities(("ntk", "kernel"), SIZES, budget=100)
    with pytest.raises(ValueError, match="`quantities` must name at least one of output"):
        choose_quantities((), SIZES, budget=100)


def test_too_much_asked_by_name_is_refused_with_the_sizes():
    with pytest.raises(MemoryError, match=r"`quantities` need 1.01 kB \(hidden 1 kB, output 10 bytes\), but only 1 kB"):
        choose_quantities(("hidden", "output"), SIZES, budget=1000)


def machine_with(monkeypatch, free):
    monkeypatch.setattr(boundary.psutil, "virtual_memory", lambda: type("Memory", (), {"available": free}))


def test_the_limit_is_four_fifths_of_what_is_free(monkeypatch):
    machine_with(monkeypatch, 1001)
    assert boundary.memory_budget() == 800
    assert choose_quantities(None, SIZES)[1] == ("hidden",), "without a budget the machine's own is used"
    boundary.require_memory(800, "`width` 3", "Lower it.")
    with pytest.raises(
        MemoryError, match=r"^`width` 3 need 801 bytes, but only 800 bytes may be used: 1 kB are free. Low"
    ):
        boundary.require_memory(801, "`width` 3", "Lower it.")
    with pytest.raises(MemoryError, match=r"`quantities` need 1.01 kB .* only 400 bytes may be used: 1 kB are free"):
        choose_quantities(("hidden", "output"), SIZES)


def test_a_call_is_refused_or_answered_by_what_is_free(monkeypatch):
    """The same question on two machines: refused with both numbers on the small one, answered on the other."""
    net, task = wf.DNN(2, "linear"), wf.Task(np.eye(40))
    machine_with(monkeypatch, 40 * 40 * 8 * 10)
    assert wf.prior(net, task, quantities="output").output.shape == (40, 40)
    machine_with(monkeypatch, 40 * 40 * 8)
    with pytest.raises(MemoryError, match=r"`quantities` need .*output.* may be used: 12\.8 kB are free"):
        wf.prior(net, task, quantities="output")


def test_an_interrupt_leaves_the_scope_as_it_was(capsys):
    """Ctrl-C in the middle of a computation with a bar: the flag of JAX is back, and another bar can be shown."""

    @boundary.x64
    def interrupted(progress=None):
        with bar("work", 4, progress, 0.0) as advance:
            advance(1)
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            interrupted(progress=True)
        assert jnp.asarray(1.0).dtype == jnp.float32
    with bar("work", 4, True, 0.0) as advance:
        advance(4)
    assert capsys.readouterr().err.count("work: 4/4") == 1


def test_what_all_public_functions_ask_of_their_arguments():
    @boundary.x64
    def ask(network, task=None, rates=None, quantities=None, progress=None, throw=True):
        return jnp.asarray(1.0).dtype

    net = wf.DNN(2)
    given = {"rates": [0.1, 0.2], "quantities": ("a", "b"), "progress": False, "throw": np.bool_(False)}
    assert (
        ask(net, wf.Task(np.eye(2)), **given) == ask(net, task=wf.Task(np.eye(2)), quantities=iter("ab")) == jnp.float64
    )
    for wrong, words in (
        ({"network": "DNN"}, "`network` must be a widefield Network, got str"),
        ({"task": np.eye(2)}, "`task` must be a widefield Task, got ndarray"),
        ({"throw": "False"}, "`throw` must be True or False, got 'False'"),
        ({"progress": 1}, "`progress` must be True or False, got 1"),
        ({"quantities": 3}, "`quantities` must be names of fields, got 3"),
        ({"quantities": ["a", 3]}, "`quantities` must be names"),
        ({"rates": [[1.0], 2.0]}, "`rates` .*no array"),
        ({"rates": np.ma.array([1.0], mask=True)}, "`rates` .*masked"),
    ):
        with pytest.raises(ValueError, match=words):
            ask(**{"network": net, **wrong})
    with pytest.raises(ValueError, match="`rates` is a JAX tracer"):
        jax.jit(lambda rate: ask(net, rates=[rate]))(1.0)
    with pytest.raises(TypeError, match=r"ask\(\) missing 1 required positional argument: 'network'"):
        ask()


@pytest.mark.parametrize(
    "n_bytes, text",
    [
        (0, "0 bytes"),
        (72, "72 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (123_456, "123 kB"),
        (7_200_000_000, "7.2 GB"),
        (720e9, "720 GB"),
        (2.5e13, "25 TB"),
        pytest.param(999_999, "1 MB"),
        pytest.param(5e15, "5000 TB"),
        (10**400, "1.8e+296 TB"),
    ],
)
def test_sizes_are_told_in_a_persons_unit(n_bytes, text):
    assert describe_bytes(n_bytes) == text


def test_single_precision_is_refused_unless_asked():
    single, double = np.ones(2, "float32"), np.ones(2)
    with jax.enable_x64(True):
        require_dtype("float64", x=jnp.asarray(double), w=double)
        require_dtype("float32", x=jnp.asarray(single))
        with pytest.raises(ValueError, match="`w` is float32, but the computation runs in float64.*enable_x64"):
            require_dtype("float64", x=double, w=single)
        with pytest.raises(ValueError, match="`x` is float64, but the computation runs in float32"):
            require_dtype("float32", x=double)
        with pytest.raises(ValueError, match="`x` is int64"):
            require_dtype("float64", x=jnp.arange(3))
    with pytest.raises(ValueError, match="`x` is float32"):
        require_dtype("float64", x=jnp.ones(2))  # what JAX hands over without x64


def test_single_precision_is_refused_while_tracing():
    with pytest.raises(ValueError, match="`x` is float32"):
        jax.jit(lambda x: require_dtype("float64", x=x))(np.ones(2, "float32"))


def test_working_dtypes():
    assert working_dtype("float64") == working_dtype(float) == working_dtype(np.float64) == np.float64
    assert working_dtype("float32") == working_dtype(jnp.float32) == np.float32
    for wrong in ("float16", "double precision", int, complex, "bfloat16"):
        with pytest.raises(ValueError, match="`dtype` must be one of 'float64', 'float32', got"):
            working_dtype(wrong)


def test_the_scope_is_left_as_it_was():
    @boundary.x64
    def inside(x):
        """Adds one."""
        return jnp.asarray(x) + 1

    assert inside.__name__ == "inside" and inside.__doc__ == "Adds one."
    assert inside(1.0).dtype == jnp.float64
    assert jnp.asarray(1.0).dtype == jnp.float32

    @boundary.x64
    def failing():
        raise KeyError("x")

    with pytest.raises(KeyError):
        failing()
    assert jnp.asarray(1.0).dtype == jnp.float32
