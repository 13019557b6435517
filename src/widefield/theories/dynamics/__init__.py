"""Gradient descent: kernels and predictions of wide networks along training."""

from widefield.theories.dynamics.parameterization import parameterization, proportional_parameters
from widefield.theories.dynamics.solve import dynamics

__all__ = ["dynamics", "parameterization", "proportional_parameters"]
