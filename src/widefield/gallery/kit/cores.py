"""The few computations that figures need and that have no public call."""

from collections.abc import Callable
from typing import Any

import widefield as wf
from widefield.simulate.dynamics.convolution import train as train_convolutional
from widefield.theories.finite_width.tied.exact_linear import exact_linear
from widefield.theories.proportional.march.causal import march
from widefield.theories.proportional.problem import pose

__all__ = ["compiled_march", "exact_linear", "train_convolutional"]


def compiled_march(
    network: wf.Network, teacher: wf.Teacher, training: wf.Training, width_ratio: float
) -> Callable[[], Any]:
    """The march of `widefield.proportional`, compiled; to be made and called in an x64 scope."""
    import jax

    asked = pose(network, teacher, training, width_ratio=width_ratio)
    parameters = asked.parameters
    compiled = jax.jit(march, static_argnames="shape").lower(parameters, asked.shape).compile()
    return lambda: jax.block_until_ready(compiled(parameters))
