"""What a search that stopped on its way may not be taken for: an answer, an end or an absence."""

import numpy as np
import pytest

import widefield as wf
from widefield.theories.posterior.branches import LandscapePoint
from widefield.theories.posterior.transitions import landscape

UNIT = np.ones((1, 1))


def test_a_lower_state_that_did_not_converge_is_lost():
    network, task = wf.RNN(5, "linear"), wf.Task(UNIT, [4.5 * 0.325])
    stopped = wf.posterior(network, task, temperature=1.0, max_steps=8, throw=False).certificate
    assert stopped.status is wf.Status.incomplete and stopped.checks["lost"].value >= 1
    assert "stopped before they converged" in stopped.notes[-1]
    assert wf.posterior(network, task, temperature=1.0).branch == "coherent"


def test_coherent_points_inside_the_curve_are_lost():
    network, task = wf.RNN(3, "linear"), wf.Task(UNIT, [4.5])
    followed, stopped = (
        wf.transition(network, task, temperature=1.0, points=12, max_steps=n, throw=False).curve for n in (300, 5)
    )
    coherent = [np.isfinite(curve.order_parameter.sel(branch="coherent").values) for curve in (followed, stopped)]
    assert followed.certificate.checks["lost"].value == 0
    n_lost = np.sum(coherent[0] & ~coherent[1])
    assert stopped.certificate.checks["lost"].value == n_lost
    assert (stopped.certificate.status is wf.Status.success) == (n_lost == 0)


def test_a_branch_that_was_not_reached_is_not_absent():
    network, task = wf.RNN(3, "erf", weight_variance=2.0), wf.Task(UNIT, [5.0])
    ask = {"temperature": 0.2, "branch": "coherent", "throw": False}
    stopped = wf.posterior(network, task, max_steps=10, **ask).certificate
    assert stopped.status in (wf.Status.not_converged, wf.Status.incomplete)
    with pytest.raises(ValueError, match="no coherent stationary point"):
        wf.posterior(wf.RNN(3, "linear"), wf.Task(UNIT, [0.1]), **ask)


def test_the_worst_of_a_landscape_keeps_nan():
    point = LandscapePoint(UNIT, UNIT, 0.0, 0.0, 0.0, 0.0)
    for points in ([point, point._replace(residual=np.nan, error=np.nan)], []):
        checks = landscape._checks(list(points), 1e-6)
        assert not checks["residual"].met and not checks["error"].met


def test_options_make_the_answer_again():
    network, task = wf.RNN(3, "linear"), wf.Task(UNIT, [1.0])
    made = wf.posterior(network, task, temperature=1.0, rtol=1e-9, max_steps=200).certificate.options
    assert made["rtol"] == 1e-9 and made["max_steps"] == 200
    assert made["integration"] == "auto" and made["paths"] is None
    made = wf.transition(network, task, temperature=1.0, points=2, max_steps=250).certificate.options
    assert made["max_steps"] == 250 and made["paths"] is None
