"""The certificate passes what is right, however small, and sees what is wrong, in whatever matrix."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import widefield as wf
from tests.proportional.test_compressed import CASES, STEPS, problem
from tests.proportional.words import ask
from widefield.theories.proportional.march import march
from widefield.theories.proportional.training_curves import TOLERANCE, check_residual, judge
from widefield.theories.proportional.verification import Vector, residual

RTOL = TOLERANCE["float64"]
CONVERGED = {
    "centered population": {"centered": True, "rate": 0.25},
    "few data": {"data_ratio": 0.3, "rate": 0.1},
}
PARAMETERS = ("rate", "richness", "width", "data_ratio", "label_noise", "target_overlap", "widths")


@pytest.fixture(scope="module")
def right():
    """A problem and its matrices, NumPy."""
    with jax.enable_x64(True):
        one = problem(STEPS, **CASES["gd"])
        return one, jax.tree.map(np.array, march(one.parameters, one.shape))


def changed(state, which, at, factor):
    """``state`` with one entry of matrix ``which`` times ``factor``."""
    leaves, tree = jax.tree.flatten(state)
    leaves[which] = leaves[which].copy()
    leaves[which][at] *= factor
    return tree.unflatten(leaves)


def test_sizes_are_those_of_the_terms():
    rng = np.random.default_rng(0)
    A, x = rng.normal(size=(4, 400)), rng.normal(size=(400, 2))
    product = A @ Vector.of(x)
    np.testing.assert_allclose(product.value, A @ x)
    assert np.all(product.size >= np.abs(product.value)) and np.all(product.size <= np.abs(A) @ np.abs(x))
    nothing = product - product
    assert not nothing.value.any() and np.all(nothing.size == 2 * product.size)


@pytest.mark.parametrize("name", CONVERGED)
def test_converged_runs_are_right(name):
    """Losses are then small differences of terms of order one, relative to themselves all rounding."""
    words = {"steps": STEPS, "richness": 0.8, "width_ratio": 1.0} | CONVERGED[name]
    solution = ask(wf.proportional, wf.DNN(1, "linear"), **words)
    assert solution.train_loss.values[-1] < 1e-8 and solution.residual < 1e-14
    assert len(solution.certificate.notes) == (solution.train_loss.values[-1] < 1e-13)


def test_small_losses_are_noted(right):
    one, state = right
    assert judge(one, state).notes == ()
    small = np.where(np.arange(STEPS + 2)[:, None] < 50, np.ones(5), 1e-13)
    state = state._replace(inputs=state.inputs._replace(losses=small))
    (note,) = judge(one, state).notes
    assert note.startswith("losses carry roundings of terms of order 1")


def test_every_matrix_is_seen(right):
    """One entry off by a millionth: the largest one of row 40 that is not on the diagonal of time."""
    one, state = right
    assert residual(one, state, one.n_rows) < 1e-14
    for which, (path, matrix) in enumerate(jax.tree_util.tree_flatten_with_path(state)[0]):
        if path[-1].name == "losses":
            continue
        at = (40, int(np.argmax(np.abs(matrix[40, :40]))))
        assert matrix[at] != 0
        assert residual(one, changed(state, which, at, 1 + 1e-6), one.n_rows) > 10 * RTOL, jax.tree_util.keystr(path)


@pytest.mark.parametrize("column", range(5))
def test_every_curve_is_seen(column, right):
    one, state = right
    losses = state.inputs.losses.copy()
    losses[40, column] *= 1 + 1e-6
    assert residual(one, state._replace(inputs=state.inputs._replace(losses=losses)), one.n_rows) > 100 * RTOL


def nearby(one, name):
    """The problem with one parameter a millionth away."""
    factor = 1 + 1e-6
    if name == "width":
        return replace(one, width=factor * one.width)
    if name == "widths":
        return replace(one, network=replace(one.network, widths=(1.0, factor)))
    noun = "training" if name in ("rate", "richness") else "teacher"
    value = one.overlap if name == "target_overlap" else getattr(getattr(one, noun), name)
    return replace(one, **{noun: replace(getattr(one, noun), **{name: factor * value})})


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_is_seen(name, right):
    """Matrices that solve the equations of another problem, a millionth away."""
    one, state = right
    assert residual(nearby(one, name), state, one.n_rows) > 100 * RTOL


def test_what_is_no_number_is_seen(right):
    one, state = right
    wrong = changed(state, 0, (40, 3), np.nan)
    assert np.isnan(residual(one, wrong, one.n_rows)) and not check_residual(judge(one, wrong).residual).met
