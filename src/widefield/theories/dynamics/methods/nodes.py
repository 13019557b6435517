r"""Deterministic averages over the initial Gaussians of one neuron of a two-layer network.

Smooth activations: a product midpoint rule, whose error falls exponentially for smooth integrands (Gauss–Hermite nodes
miss what training makes steep). Positively homogeneous ones (relu, leaky relu, abs): training scales with the neuron,
and everything reported is quadratic, so that the radius is exact and only angles are left; they are split where a
pre-activation changes sign at the start.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

HOMOGENEOUS = ("relu", "leaky_relu", "abs")
MOST_DIMENSIONS = 3


class Rule(NamedTuple):
    """Values of the standard normal variables (variable, node) and their weights, which add up to one."""

    nodes: np.ndarray
    weights: np.ndarray


def rules(homogeneous: bool, factor: np.ndarray, n_outputs: int, most: int) -> Iterator[Rule]:
    """Rules of doubling resolution with at most ``most`` nodes; ``factor`` (sample, direction) is a root of the input kernel."""
    n_inputs = factor.shape[1]
    n = 1024 if homogeneous and n_inputs + n_outputs == 2 else 64 if homogeneous else 24
    while True:
        rule = sphere(n, factor, n_outputs) if homogeneous else product(n, n_inputs + n_outputs)
        if len(rule.weights) > most:
            return
        yield rule
        n *= 2


def product(n: int, n_dimensions: int) -> Rule:
    """Midpoints of n cells per dimension. The range grows with n, so that a cut tail shows as a change."""
    reach = 6.0 + np.log2(n / 24)
    x = reach * (2 * np.arange(n) + 1 - n) / n
    w = np.exp(-(x**2) / 2)
    w /= w.sum()
    nodes = np.stack([axis.ravel() for axis in np.meshgrid(*[x] * n_dimensions, indexing="ij")])
    weights = w
    for _ in range(n_dimensions - 1):
        weights = np.multiply.outer(weights, w)
    return Rule(nodes, weights.ravel())


def sphere(n: int, factor: np.ndarray, n_outputs: int) -> Rule:
    """Directions on the circle or sphere, at the radius that has the right mean square."""
    n_inputs = factor.shape[1]
    if n_inputs + n_outputs == 2:  # cell boundaries at the axes, where the pre-activation changes sign
        angle = 2 * np.pi * (np.arange(n) + 0.5) / n
        return Rule(np.sqrt(2) * np.stack([np.cos(angle), np.sin(angle)]), np.full(n, 1 / n))
    height, w_height = panels(np.array([-1.0, 0.0, 1.0]), n // 2)
    angle, w_angle = panels(kinks(factor) if n_inputs == 2 else np.array([0.0, 2 * np.pi]), n)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    around = np.sqrt(1 - height**2)[:, None] * circle[:, None, :]
    along = np.broadcast_to(height[:, None], around.shape[1:])[None]
    nodes = np.concatenate([around, along] if n_inputs == 2 else [along, around])
    weights = np.multiply.outer(w_height / 2, w_angle / (2 * np.pi))
    return Rule(np.sqrt(3) * nodes.reshape(3, -1), weights.ravel())


def kinks(factor: np.ndarray) -> np.ndarray:
    """Angles at which a sample's pre-activation changes sign, ascending over one turn."""
    zero = np.arctan2(factor[:, 1], factor[:, 0]) + np.pi / 2
    angles = np.sort(np.concatenate([zero, zero + np.pi]) % (2 * np.pi))
    angles = angles[np.append(True, np.diff(angles) > 1e-6)]
    return np.append(angles, angles[0] + 2 * np.pi)


def panels(edges: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Legendre nodes between neighboring ``edges``, about ``n`` in all and at least 4 in each."""
    pieces = []
    for a, b in pairwise(edges):
        x, w = np.polynomial.legendre.leggauss(max(4, round(n * (b - a) / (edges[-1] - edges[0]))))
        pieces.append((a + (b - a) * (x + 1) / 2, w * (b - a) / 2))
    return np.concatenate([x for x, _ in pieces]), np.concatenate([w for _, w in pieces])
