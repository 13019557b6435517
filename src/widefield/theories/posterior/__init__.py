"""Bayesian training of wide networks: kernels, transitions, spectra."""

from widefield.theories.posterior.derived.weight_outliers import weight_outliers
from widefield.theories.posterior.solve import posterior
from widefield.theories.posterior.transitions.landscape import landscape
from widefield.theories.posterior.transitions.transition import Transition, transition
from widefield.theories.posterior.transitions.tricritical import tricritical

__all__ = ["Transition", "landscape", "posterior", "transition", "tricritical", "weight_outliers"]
