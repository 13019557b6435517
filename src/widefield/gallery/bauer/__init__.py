"""Panels of the poster of Bauer et al., and the questions it leaves open."""
