"""Figures of Segadlo et al. (2022)."""
