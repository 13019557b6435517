"""Nodes and weights of one-dimensional integrals over the standard normal density."""

import math
from functools import lru_cache

import numpy as np

REACH = 12.8  # Hermite functions of high order need more of the tail than the density itself: exp(-12.8²/4) = 2e-18
SPACINGS = (0.08, 0.04, 0.02, 0.01, 0.005)


@lru_cache
def trapezoid(spacing: float) -> tuple[np.ndarray, np.ndarray]:
    """Equal steps over ±12.8: error exp(−2πd/spacing) for a function analytic within a strip of half-width d."""
    n = round(REACH / spacing)
    z = spacing * np.arange(-n, n + 1)
    return z, spacing * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


@lru_cache
def legendre(n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Legendre nodes and weights on [−1, 1]."""
    return np.polynomial.legendre.leggauss(n_nodes)


def edges(centers, reach: float, levels: int, xp=np):
    """Panel edges over ±reach that hit every center and shrink towards it, halving ``levels`` times.

    ``centers``, sorted along the last axis, has shape (..., n_centers); centers out of reach leave empty panels.
    ``xp`` is the array library, NumPy or jax.numpy.
    """
    bounds = xp.clip(centers, -reach, reach)
    ends = xp.full((*bounds.shape[:-1], 1), reach, dtype=bounds.dtype)
    bounds = xp.concatenate([-ends, bounds, ends], axis=-1)
    n_pieces = bounds.shape[-1] - 1
    pieces, in_front = [], tuple(range(bounds.ndim - 1))
    for i in range(n_pieces):
        left, right = bounds[..., i : i + 1], bounds[..., i + 1 : i + 2]
        fractions = np.expand_dims(_partition(levels, i > 0, i < n_pieces - 1), in_front)
        pieces.append(left + (right - left) * fractions)
    return xp.concatenate(pieces, axis=-1)


@lru_cache
def _partition(levels: int, left: bool, right: bool) -> np.ndarray:
    """Fractions of an interval: eighths, and halvings towards the ends that are centers."""
    ladder = 2.0 ** -np.arange(4, levels + 1)
    towards_left, towards_right = ladder[: len(ladder) * left], 1 - ladder[: len(ladder) * right]
    return np.unique(np.concatenate([np.arange(9) / 8, towards_left, towards_right]))


def panels(edge, n_nodes: int, xp=np):
    """Nodes and density-weighted weights of Gauss–Legendre on every panel, shape (..., panels · n_nodes)."""
    x, w = (np.expand_dims(a, tuple(range(edge.ndim))) for a in legendre(n_nodes))
    half = 0.5 * xp.diff(edge, axis=-1)[..., None]
    middle = 0.5 * (edge[..., 1:] + edge[..., :-1])[..., None]
    z = (middle + half * x).reshape(*edge.shape[:-1], -1)
    weight = (half * w).reshape(*edge.shape[:-1], -1)
    return z, weight * xp.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def hermite_functions(z: np.ndarray, n_terms: int) -> np.ndarray:
    """Normalized probabilists' Hermite polynomials He_k(z)/√k!, shape (len(z), n_terms)."""
    table = np.empty((n_terms, len(z)))  # the recurrence runs along contiguous rows
    table[0] = 1.0
    if n_terms > 1:
        table[1] = z
    for k in range(1, n_terms - 1):
        table[k + 1] = (z * table[k] - math.sqrt(k) * table[k - 1]) / math.sqrt(k + 1)
    return table.T
