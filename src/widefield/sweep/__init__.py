"""Sweeps: one question at every point of a grid, here or on many machines, in files that a killed run goes on from."""

from widefield.sweep.call import sweep

__all__ = ["sweep"]
