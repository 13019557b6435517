"""The list that every theory passes. A theory's test file brings its core functions, its call and its question."""

from functools import lru_cache

import jax
import numpy as np
import pytest

import widefield as wf


def assert_same(first, second, *, rtol=1e-12):
    """Two trees of arrays, each leaf relative to its own largest entry."""
    leaves, leaves_ = jax.tree.leaves(first), jax.tree.leaves(second)
    assert len(leaves) == len(leaves_)
    for a, b in zip(leaves, leaves_, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.max(np.abs(b), initial=1e-300))


@lru_cache
def compiled(core):
    """One compilation of a core function for all tests that pass the same object."""
    return jax.jit(core)


@lru_cache
def _gradient(core):
    return jax.jit(jax.grad(lambda args, weights: _dot(weights, core(*args))))


@lru_cache
def _tangent(core):
    return jax.jit(lambda args, d, weights: jax.jvp(lambda *a: _dot(weights, core(*a)), args, d)[1])


def _slope(core, args, weights, d, reverse):
    """The derivative in direction ``d``, and the size of the terms in its sum."""
    if reverse:
        gradient = _gradient(core)(args, weights)
        return _dot(gradient, d), _dot(jax.tree.map(np.abs, gradient), jax.tree.map(np.abs, d))
    alone = [
        tuple(jax.tree.map(lambda v, on=(i == j): on * v, part) for j, part in enumerate(d)) for i in range(len(d))
    ]
    parts = [float(_tangent(core)(args, one, weights)) for one in alone]
    return sum(parts), sum(map(abs, parts))


def _dot(tree, other):
    return sum((a * b).sum() for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True))


def assert_jit_is_plain(core, *args):
    """Compiling changes nothing but roundings."""
    assert_same(compiled(core)(*args), core(*args))


def assert_vmap_is_loop(core, *batch):
    """``batch`` has a leading axis on every leaf."""
    size = len(jax.tree.leaves(batch)[0])
    rows = [compiled(core)(*jax.tree.map(lambda leaf, i=i: leaf[i], batch)) for i in range(size)]
    assert_same(jax.jit(jax.vmap(core))(*batch), jax.tree.map(lambda *leaves: np.stack(leaves), *rows))


def assert_gradient_is_difference(core, *args, along=None, of=None, step=1e-4, rtol=1e-7, reverse=True):
    """The gradient of a random projection of the outputs against fourth-order differences in random directions.

    ``along`` are the indices of the arguments to move, ``of`` those of the outputs to project (all by default). The
    projection has no symmetry, so that a derivative given to the wrong one of two equal inputs is seen. ``reverse=False``
    takes the derivative by forward mode.
    """
    rng = np.random.default_rng(0)
    draw = lambda tree, on: jax.tree.map(lambda leaf: on * rng.normal(size=np.shape(leaf)), tree)  # noqa: E731
    outputs = jax.tree.leaves(compiled(core)(*args))
    weights = [draw(leaf, of is None or i in of) for i, leaf in enumerate(outputs)]
    for _ in range(3):
        d = tuple(draw(arg, along is None or i in along) for i, arg in enumerate(args))
        at = lambda t, d=d: compiled(core)(*jax.tree.map(lambda a, b: a + t * b, args, d))  # noqa: E731
        near, far = (float(_dot(weights, at(k * step)) - _dot(weights, at(-k * step))) for k in (1, 2))
        slope, scale = _slope(core, args, weights, d, reverse)
        np.testing.assert_allclose(slope, (8 * near - far) / (12 * step), rtol=0, atol=rtol * scale)


def assert_certified(solution, theory):
    """An honest success: residual within tolerance, and all that is needed to make the result again."""
    certificate = solution.certificate
    assert certificate.theory == theory and solution.status is wf.Status.success
    assert 0 <= solution.residual <= certificate.tolerance and 0 <= certificate.error <= certificate.tolerance
    assert certificate.tolerance > 0 and certificate.wall_time > 0
    assert {"widefield", "jax", "numpy"} <= set(certificate.versions)
    assert certificate.versions["widefield"] == wf.__version__


def assert_arrays_are_numpy(solution, dtype="float64"):
    """NumPy, because a float64 JAX array that leaves the scope decays at the user's next operation."""
    for name, field in solution.data.data_vars.items():
        assert type(field.values) is np.ndarray and field.dtype == dtype, name


def assert_x64_flag_has_no_say(call):
    """Identical arrays whatever JAX's global flag, which stays as it was."""
    before = jax.config.jax_enable_x64
    usual = call()
    results = []
    for flag in (False, True):
        with jax.enable_x64(flag):
            results.append(call())
        jax.config.update("jax_enable_x64", flag)
        try:
            results.append(call())
            assert jax.config.jax_enable_x64 is flag
        finally:
            jax.config.update("jax_enable_x64", before)
    for result in results:
        assert result.data.identical(usual.data)
        assert_arrays_are_numpy(result)


def assert_rejects_tracers(call, argument, value, core):
    """A public call inside a transformation names the argument and points to the core."""
    for transform, at in ((jax.jit, value), (jax.grad, value), (jax.vmap, np.array([value]))):
        with pytest.raises(ValueError, match=rf"`{argument}(\[\d\])?` is a JAX tracer.*{core}"):
            transform(lambda v: call(v).output.values.sum())(at)


def assert_selects(call, names):
    """``quantities`` gives what is asked for, by itself the same as with all the others."""
    everything = call(quantities=None)
    assert set(everything.data.data_vars) == set(names) and everything.certificate.left_out == ()
    for name in names:
        alone = call(quantities=name)
        assert list(alone.data.data_vars) == [name]
        np.testing.assert_allclose(alone.data[name], everything.data[name], rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="`quantities` must be one of"):
        call(quantities=(names[0], "nonsense"))


def assert_fails_loudly(call, status):
    """`SolveError` with its status and advice; ``throw=False`` returns the same without raising."""
    with pytest.raises(wf.SolveError, match=status.name) as raised:
        call(throw=True)
    assert status.value in str(raised.value)
    assert isinstance(raised.value.solution, wf.Solution)
    assert raised.value.solution.status is status
    partial = call(throw=False)
    assert partial.status is status
    return partial
