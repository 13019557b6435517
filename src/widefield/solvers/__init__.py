"""Numerical methods without physics: minimization, fixed points, Newton, continuation, extrapolation."""
