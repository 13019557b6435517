"""Gradient descent: kernels and predictions of wide networks along training."""

from widefield.theories.dynamics.solve import dynamics

__all__ = ["dynamics"]
