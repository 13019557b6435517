"""Gradient descent: kernels and predictions of wide networks along training."""

from widefield.theories.dynamics.derived.density import neuron_density
from widefield.theories.dynamics.derived.representer import regularized_prediction
from widefield.theories.dynamics.solve import dynamics

__all__ = ["dynamics", "neuron_density", "regularized_prediction"]
