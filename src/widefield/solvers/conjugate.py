"""Preconditioned conjugate gradients for several right-hand sides at once, each with steps of its own."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Product = Callable[[np.ndarray], np.ndarray]


class Solved(NamedTuple):
    """``x`` with the largest |Ax − b|/|b| of a column, evaluated after the last step."""

    x: np.ndarray
    residual: float
    steps: int


def conjugate_gradients(product: Product, precondition: Product, b: np.ndarray, rtol: float, max_steps: int) -> Solved:
    """x with Ax = b, b being (n, column), A = ``product`` and ``precondition`` nearly its inverse."""
    size = np.linalg.norm(b, axis=0)
    size = np.where(size > 0, size, 1.0)
    x, r, steps = np.zeros_like(b), b.copy(), 0
    z = precondition(r / size) * size
    p, overlap = z, np.sum(r * z, axis=0)
    while steps < max_steps and np.max(np.linalg.norm(r, axis=0) / size) > rtol / 2:
        along = product(p)
        curvature = np.sum(p * along, axis=0)
        length = np.divide(overlap, curvature, out=np.zeros_like(overlap), where=curvature > 0)
        if not length.any():
            break
        x, r, steps = x + length * p, r - length * along, steps + 1
        z = precondition(r / size) * size
        before, overlap = overlap, np.sum(r * z, axis=0)
        p = z + np.divide(overlap, before, out=np.zeros_like(overlap), where=before > 0) * p
    return Solved(x, float(np.max(np.linalg.norm(product(x) - b, axis=0) / size)), steps)
