"""Networks at finite width: the first order in 1/n."""

from widefield.theories.finite_width.derived.criticality import criticality
from widefield.theories.finite_width.derived.neurons import couplings, neuron_average, neuron_covariance
from widefield.theories.finite_width.solve import finite_width

__all__ = ["couplings", "criticality", "finite_width", "neuron_average", "neuron_covariance"]
