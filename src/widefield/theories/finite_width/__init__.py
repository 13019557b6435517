"""Networks at finite width: the first order in 1/n."""

from widefield.theories.finite_width.couplings import couplings
from widefield.theories.finite_width.criticality import criticality
from widefield.theories.finite_width.neurons import Average, neuron_average, neuron_covariance
from widefield.theories.finite_width.regression import regression
from widefield.theories.finite_width.solve import finite_width

__all__ = [
    "Average",
    "couplings",
    "criticality",
    "finite_width",
    "neuron_average",
    "neuron_covariance",
    "regression",
]
