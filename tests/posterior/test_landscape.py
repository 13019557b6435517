"""Landscapes of nonlinear networks: brute force, linear limits, their own derivative."""

import numpy as np
import pytest
import scipy.special

import widefield as wf

from . import saddle_oracle

UNIT = np.ones((1, 1))
ERF = wf.RNN(3, "erf", weight_variance=2.0)
SAME = wf.Activation(lambda h: h, name="same")  # linear, but not by name: it takes the road of nonlinear networks


@pytest.mark.full
def test_two_states_match_brute_force():
    """A constrained saddle point solved by SciPy on plain Simpson sums; m → −m is a symmetry, dF/dm the field."""
    net, task, step = wf.RNN(2, "erf", weight_variance=1.5), wf.Task(UNIT, np.full(1, 2.0)), 1e-3
    values = [-0.4, 0.0, 0.4 - step, 0.4, 0.4 + step, 0.8]
    found = wf.landscape(net, task, temperature=0.5, values=values)
    free, field, feature = found.free_energy.values, found.field.values, found.feature.values[..., 0, 0]
    for i in (1, 3, 5):
        near = feature[i, 0, 0], feature[i, 1, 1], found.hidden.values[i, 1, 1, 0, 0], 0.9 * field[i]
        exact = saddle_oracle.held_two(scipy.special.erf, 1.0, 1.5, 2.0, 1.0, 0.5, values[i], near)
        np.testing.assert_allclose([free[i], field[i]], exact, atol=2e-6)
    np.testing.assert_allclose([free[0], field[0]], [free[3], -field[3]], atol=1e-6)
    np.testing.assert_allclose((free[4] - free[2]) / (2 * step), field[3], atol=1e-5)
    correlation = feature[:, 0, 1] / np.sqrt(feature[:, 0, 0] * feature[:, 1, 1])
    np.testing.assert_allclose(correlation, values, atol=1e-6)
    free_state = wf.posterior(net, task, temperature=0.5)
    np.testing.assert_allclose([free[1], field[1]], [free_state.free_energy.item(), 0], atol=1e-6)


@pytest.mark.full
def test_its_minima_are_the_solutions():
    """erf at y = 5: the coherent state at the bottom, the incoherent saddle at the top in between."""
    task = wf.Task(UNIT, np.full(1, 5.0))
    coherent, incoherent = (wf.posterior(ERF, task, temperature=0.2, branch=b) for b in ("coherent", "incoherent"))
    feature = coherent.feature.values[..., 0, 0]
    rho = feature[0, 1] / np.sqrt(feature[0, 0] * feature[1, 1])
    found = wf.landscape(ERF, task, temperature=0.2, values=[-rho, 0.0, rho - 0.1, rho, rho + 0.1])
    free, bottom = found.free_energy.values, coherent.free_energy.item()
    np.testing.assert_allclose(free[[0, 1, 3]], [bottom, incoherent.free_energy.item(), bottom], atol=1e-7)
    np.testing.assert_allclose(found.field.values[[0, 1, 3]], 0, atol=1e-6)
    np.testing.assert_allclose(found.feature.values[3], coherent.feature.values, atol=1e-5)
    assert min(free[2], free[4]) > bottom + 1e-4


@pytest.mark.full
def test_the_linear_landscape_is_its_limit():
    task, values = wf.Task(UNIT, np.full(1, np.sqrt(14.0))), [-0.3, 0.0, 0.3, 0.6]
    exact, general = (wf.landscape(wf.RNN(3, phi), task, temperature=1.0, values=values) for phi in ("linear", SAME))
    for name in ("free_energy", "field", "hidden", "feature"):
        np.testing.assert_allclose(general.data[name], exact.data[name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda task: wf.landscape(ERF, task, temperature=0.2), "task"),
        (lambda task: wf.tricritical(ERF, task, temperature=0.2), "network"),
        (lambda task: wf.posterior(ERF, task, temperature=0.2, method="perturbative"), "activation"),
        (lambda task: wf.transition(ERF, task, temperature=0.2, paths=10), "paths"),
    ],
)
def test_bad_input(call, named):
    """Six dimensions are too many for a grid; the perturbation theory is for linear networks."""
    with pytest.raises(ValueError, match=f"`{named}`.*(dimensions|linear|at least)"):
        call(wf.Task(np.eye(2), np.ones(2)))
