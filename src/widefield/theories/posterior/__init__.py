"""Bayesian training of wide networks: kernels, transitions, spectra."""

from widefield.theories.posterior.landscape import landscape
from widefield.theories.posterior.parameters import BayesParameters, bayes_parameters
from widefield.theories.posterior.perturbation import perturbation
from widefield.theories.posterior.solve import posterior
from widefield.theories.posterior.spectrum import Spectrum, spectrum
from widefield.theories.posterior.transition import Transition, transition
from widefield.theories.posterior.tricritical import tricritical

__all__ = [
    "BayesParameters",
    "Spectrum",
    "Transition",
    "bayes_parameters",
    "landscape",
    "perturbation",
    "posterior",
    "spectrum",
    "transition",
    "tricritical",
]
