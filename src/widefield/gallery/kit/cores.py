"""The few computations that figures need and that have no public call."""

from collections.abc import Callable
from typing import Any

import widefield as wf
from widefield.simulate.convolution import train as train_convolutional
from widefield.theories.finite_width.recurrent_linear import exact_linear
from widefield.theories.proportional.march import march
from widefield.theories.proportional.problem import problem

__all__ = ["compiled_march", "exact_linear", "train_convolutional"]


def compiled_march(
    network: wf.Network, teacher: wf.Teacher, training: wf.Training, width_ratio: float
) -> Callable[[], Any]:
    """The march of `widefield.proportional`, compiled; to be made and called in an x64 scope."""
    import jax

    asked = problem(
        network, rate=training.rate, steps=training.steps, richness=training.richness, width_ratio=width_ratio,
        data_ratio=teacher.data_ratio, batch_ratio=None, label_noise=0.0, centered=False, spectrum=None, width=None,
        batch=None, target_overlap=None,
    )  # fmt: skip
    parameters = asked.parameters
    compiled = jax.jit(march, static_argnames="shape").lower(parameters, asked.shape).compile()
    return lambda: jax.block_until_ready(compiled(parameters))
