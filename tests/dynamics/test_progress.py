"""Every way to solve says what remains of it: bars that end where they said they would."""

import time
from contextlib import contextmanager

import numpy as np
import pytest

import widefield as wf
from tests.dynamics.question import predict
from widefield.theories.dynamics import request

X, Y = np.random.default_rng(0).normal(size=(2, 8)), np.array([1.0, -0.5])
TASK, ONE = wf.Task(X, Y), wf.Task(X[:1], Y[:1])
CALLS = {
    "paths": (wf.DNN(2, "tanh"), TASK, {"paths": 64}),
    "responses": (wf.DNN(2, "relu"), TASK, {"paths": 64, "quantities": "forward_response"}),
    "coordinates": (wf.DNN(2, "linear"), TASK, {}),
    "flow": (wf.DNN(2, "linear"), TASK, {"flow": True, "quantities": "loss"}),
    "lazy": (wf.DNN(2, "relu"), TASK, {"method": "lazy"}),
    "closed form": (wf.DNN(2, "linear"), TASK, {"method": "perturbative", "richness": 0.1}),
    "measured": (wf.RNN(2, "linear"), TASK, {"method": "perturbative", "richness": 0.1}),
    "quadrature": (wf.DNN(1, "tanh"), ONE, {"quantities": "loss"}),
}


@pytest.fixture
def bars(monkeypatch):
    """What bars were asked for: [title, total, done, seconds]."""
    asked = []

    @contextmanager
    def recorded(title, total, shown, seconds):
        asked.append([title, total, 0, seconds])
        mine = asked[-1]

        def advance(n):
            mine[2] += n

        yield advance

    monkeypatch.setattr(request, "bar", recorded)
    return asked


@pytest.mark.parametrize("name", CALLS)
def test_bars_end_where_they_said(name, bars):
    network, task, settings = CALLS[name]
    predict(network, task, **{"rate": 0.1, "steps": 3, "throw": False} | settings)
    assert bars and all(total == done for _, total, done, _ in bars)


def test_a_call_that_has_lasted_shows_what_is_left(bars):
    """Whatever the guess of what follows."""
    asked = request.Request("lazy", (), (), begun=time.perf_counter() - 1.01 * request.SHOWN)
    with asked.bar("the rest", 1, 0.0):
        assert bars[-1][3] > request.LONG


def test_the_density_says_what_remains(bars):
    wf.neuron_density(wf.DNN(1, "tanh"), ONE, wf.Training(0.1, 2), nodes=5)
    assert len(bars) > 1 and all(total == done for _, total, done, _ in bars)
