"""Nonlinear networks: the saddle point as a fixed point of moments of one neuron's density."""
