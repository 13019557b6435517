"""Which quantities fit, how sizes are told, and which precision is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from widefield.answer import boundary
from widefield.answer.boundary import choose_quantities, describe_bytes, require_dtype, working_dtype

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


def test_the_budget_is_half_of_what_is_free(monkeypatch):
    free = type("Memory", (), {"available": 1001})
    monkeypatch.setattr(boundary.psutil, "virtual_memory", lambda: free)
    assert boundary.memory_budget() == 500
    assert choose_quantities(None, SIZES)[1] == ("hidden",), "without a budget the machine's own is used"


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
