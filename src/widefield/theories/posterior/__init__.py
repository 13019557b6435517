"""Bayesian training of wide networks: kernels, transitions, spectra."""

from widefield.theories.posterior.solve import posterior

__all__ = ["posterior"]
