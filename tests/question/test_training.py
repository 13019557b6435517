"""The training and the teacher: checked when made, frozen, and refused by name where a theory does not cover them."""

from dataclasses import FrozenInstanceError, replace

import jax
import numpy as np
import pytest

import widefield as wf


def test_rates_and_times():
    constant = wf.Training(0.1, 3)
    assert constant.rate == 0.1 and constant.richness == 1.0
    np.testing.assert_allclose(constant.rates, [0.1, 0.1, 0.1])
    np.testing.assert_allclose(constant.times, [0, 0.1, 0.2, 0.3])
    falling = wf.Training(lambda t: 1 / (1 + t), 3)
    np.testing.assert_allclose(falling.rates, [1, 1 / 2, 1 / 3])
    np.testing.assert_array_equal(wf.Training(falling.rates, 3).rates, falling.rates)
    assert not falling.rates.flags.writeable


def test_a_training_is_frozen_and_can_be_varied():
    training = wf.Training(0.1, 3, richness=2.0, batches=np.ones((3, 2)))
    with pytest.raises(FrozenInstanceError):
        training.rate = 1.0
    with pytest.raises(ValueError, match="read-only"):
        training.batches[0, 0] = 5
    richer = replace(training, richness=4.0)
    assert (richer.richness, richer.steps, training.richness) == (4.0, 3, 2.0)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"rate": 0.0}, "`rate` must be positive"),
        ({"rate": [0.1, 0.2]}, "`rate` must be a number, 3 of them"),
        ({"rate": "fast"}, "`rate`"),
        ({"rate": lambda: 0.1}, "`rate` must be a function of the step"),
        ({"rate": lambda t: 1 / t}, "`rate` must be a function of the step"),
        ({"steps": 0}, "`steps` must be an integer of at least 1"),
        ({"steps": 2.5}, "`steps`"),
        ({"richness": -1.0}, "`richness`"),
        ({"flow": "False"}, "`flow` must be True or False"),
        ({"centered": 1}, "`centered` must be True or False"),
        ({"loss": "hinge"}, "`loss` must be one of 'squared'"),
        ({"weight_decay": -0.1}, "`weight_decay`"),
        ({"momentum_time": 0.0}, "`momentum_time`"),
        ({"temperature": np.nan}, "`temperature`"),
        ({"batches": np.ones((2, 4))}, "`batches` must have one row per step"),
        ({"batches": -np.ones((3, 4))}, "`batches` must be weights that are not negative"),
        ({"initial_scale": (1, 0, 1)}, "`initial_scale\\[1\\]`"),
        ({"initial_scale": np.ones((2, 2))}, "`initial_scale`"),
    ],
)
def test_bad_trainings_name_the_argument(given, message):
    with pytest.raises(ValueError, match=message):
        wf.Training(**{"rate": 0.1, "steps": 3} | given)


def test_tracers_are_refused():
    with pytest.raises(ValueError, match="`rate` is a JAX tracer"):
        jax.jit(lambda rate: wf.Training(rate, 3).rates)(0.1)


def test_a_theory_refuses_what_it_does_not_cover_by_name():
    plain = wf.Training(0.1, 3)
    plain.refuse("some theory", "weight_decay", "batches", "loss", "initial_scale", "momentum_time")
    for field, value in {"weight_decay": 0.1, "batches": np.ones((3, 2)), "loss": abs, "initial_scale": (1, 2)}.items():
        with pytest.raises(ValueError, match=f"`{field}` of the training is not covered by some theory"):
            replace(plain, **{field: value}).refuse("some theory", "temperature", field)


def test_trainings_print_what_was_changed():
    assert str(wf.Training(0.1, 3)) == "Training: 3 steps, rate 0.1, richness 1, squared loss"
    text = str(wf.Training([0.1, 0.3], 2, weight_decay=0.5, batches=np.eye(2)))
    assert "rates 0.1 … 0.3" in text and "weight_decay 0.5" in text and "batches of 1 samples" in text


def test_an_infinite_ratio_is_left_out():
    for teacher in (wf.Teacher(), wf.Teacher(data_ratio=np.inf), wf.Teacher(batch_ratio=np.inf)):
        assert teacher.data_ratio is None and teacher.batch_ratio is None
        assert "population" in str(teacher)
    assert wf.Teacher(data_ratio=2).data_ratio == 2.0


@pytest.mark.parametrize(
    "given, message",
    [
        ({"data_ratio": 1.0, "batch_ratio": 1.0}, "`data_ratio` .* or `batch_ratio`"),
        ({"data_ratio": 0.0}, "`data_ratio`"),
        ({"label_noise": -1.0}, "`label_noise`"),
        ({"samples": 10}, "`samples` does not go with isotropic data.*`data_ratio`"),
        ({"batch": 10}, "`batch` does not go with isotropic data.*`batch_ratio`"),
        ({"spectrum": ([1.0], [1.0]), "data_ratio": 2.0}, "`data_ratio` does not go with a `spectrum`.*`samples`"),
        ({"spectrum": ([1.0], [1.0], [1.0]), "samples": 2}, "`samples` does not go with .*bulk"),
        ({"spectrum": ([1.0], [1.0]), "samples": 2, "batch": 3}, "`samples` .* or `batch`"),
        ({"spectrum": [1.0, 2.0, 3.0, 4.0]}, "`spectrum` must be"),
        ({"spectrum": ([1.0, -1.0], [1.0, 1.0])}, "`spectrum` must be positive"),
        ({"spectrum": ([1.0, 2.0], [1.0])}, "`spectrum` must be positive eigenvalues and as many"),
        ({"spectrum": ([1.0, 2.0], [1.0, 1.0], [0.5, 0.6])}, "`spectrum\\[2\\]`.*sum to 1"),
        ({"target_overlap": [[1, 2], [3, 4]]}, "`target_overlap` must be a symmetric"),
        ({"target_overlap": [[1, 2], [2, 1]]}, "`target_overlap`.*negative eigenvalues"),
        ({"inputs": "last"}, "`inputs` must be one of 'first'"),
        ({"supervised": 0.5}, "`supervised` must be state indices"),
    ],
)
def test_bad_teachers_name_the_argument(given, message):
    with pytest.raises(ValueError, match=message):
        wf.Teacher(**given)
