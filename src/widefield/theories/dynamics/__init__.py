"""Gradient descent: kernels and predictions of wide networks along training."""

from widefield.theories.dynamics.density import neuron_density
from widefield.theories.dynamics.fixed_point import regularised_prediction
from widefield.theories.dynamics.langevin import equilibrium_network
from widefield.theories.dynamics.parameterization import parameterization, proportional_parameters
from widefield.theories.dynamics.solve import dynamics

__all__ = [
    "dynamics", "equilibrium_network", "neuron_density", "parameterization", "proportional_parameters", "regularised_prediction",
]  # fmt: skip
