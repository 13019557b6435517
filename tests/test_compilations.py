"""What compiles: another value of a physical parameter nothing at all, another depth a handful of programs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import jax
import numpy as np
import pytest

import widefield as wf

COMPILED: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: COMPILED.append(event) if event.endswith("backend_compile_duration") else None
)


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The programs that JAX asks XLA for, from a cache or not."""
    COMPILED.clear()
    yield COMPILED


RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(2, 3)), RNG.normal(size=2)
TASK, UNIT = wf.Task(X, Y, x_test=X[:1] + 0.3), wf.Task(np.ones((1, 1)), np.ones(1))
VARIANCES = {"weight_variance": 1.4, "readout_variance": 1.2}
LINEAR, ERF, TANH = wf.RNN(3, "linear", **VARIANCES), wf.RNN(2, "erf", **VARIANCES), wf.DNN(2, "tanh", **VARIANCES)
TEACHER, TRAINING = wf.Teacher(data_ratio=1.5, label_noise=0.2), wf.Training(0.05, 8, richness=0.8)
POSTERIOR = {"task": TASK, "temperature": 0.3}
WIDTH = {"task": TASK, "width": 60, "noise": 0.1}
QUESTIONS = {
    "prior": (wf.prior, {"network": TANH, "task": TASK, "noise": 0.1}, "noise weight_variance labels inputs"),
    "finite_width": (wf.finite_width, {"network": TANH, **WIDTH}, "noise weight_variance labels"),
    "linear": (wf.posterior, {"network": LINEAR, **POSTERIOR}, "temperature weight_variance readout_variance labels"),
    "untied": (wf.posterior, {"network": wf.DNN(3, "linear"), **POSTERIOR}, "temperature weight_variance labels"),
    "erf": (wf.posterior, {"network": ERF, **POSTERIOR}, "temperature weight_variance readout_variance labels"),
    "transition": (wf.transition, {"network": LINEAR, "task": UNIT, "temperature": 0.3}, "temperature weight_variance"),
    "proportional": (
        wf.proportional,
        {"network": wf.DNN(2, "linear"), "teacher": TEACHER, "training": TRAINING, "width_ratio": 0.7},
        "width_ratio rate richness data_ratio label_noise",
    ),
}


def changed(question: dict, name: str) -> dict:
    """The question with another value of one parameter."""
    if name in question:
        return question | {name: 1.1 * question[name]}
    if name == "labels":
        return question | {"task": replace(question["task"], y=1.1 * question["task"].y)}
    if name == "inputs":
        return question | {"task": replace(question["task"], x=0.97 * question["task"].x)}
    for noun in ("network", "teacher", "training"):
        if hasattr(question.get(noun), name):
            return question | {noun: replace(question[noun], **{name: 1.1 * getattr(question[noun], name)})}
    raise AssertionError(name)


def test_programs_are_counted():
    with compilations() as programs:
        jax.jit(lambda x: 2 * x + 1)(np.ones(3))
    assert len(programs) == 1


@pytest.mark.parametrize("name", QUESTIONS)
def test_another_value_compiles_nothing(name):
    call, question, parameters = QUESTIONS[name]
    call(**question)
    for parameter in parameters.split():
        with compilations() as programs:
            call(**changed(question, parameter))
        assert not programs, f"{len(programs)} programs for another {parameter}"


@pytest.mark.parametrize(
    ("network", "task", "most"),
    [(LINEAR, TASK, 3), (wf.DNN(3, "linear"), TASK, 3), (wf.DNN(2, "tanh"), UNIT, 5)],
    ids=["linear", "untied", "tanh"],
)
def test_another_depth_compiles_few_programs(network, task, most):
    wf.posterior(network, task, temperature=0.3)
    with compilations() as programs:
        wf.posterior(replace(network, depth=network.depth + 1), task, temperature=0.3)
    assert 0 < len(programs) <= most
