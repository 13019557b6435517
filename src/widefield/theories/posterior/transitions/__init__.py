"""Transitions between branches, and the landscape that they live in."""
