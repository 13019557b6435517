"""Numerical methods without physics: minimisation, fixed points, continuation."""
