"""Linear equations with a symmetric matrix in tiles, of which a few are in memory at a time.

A matrix is a function of two numbers that gives the tile in that row and column of tiles; only tiles on and below the
diagonal are asked for. Sums run in one order, so that the bits depend on the size of the tiles alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

Tiles = Callable[[int, int], np.ndarray]


def factor_tile(matrix: Tiles, factor: Tiles, shift: float, i: int, j: int) -> np.ndarray:
    """One tile of the Cholesky factor of matrix + shift, from those to its left (left-looking).

    Error: raises `numpy.linalg.LinAlgError` where a tile on the diagonal is not positive definite.
    """
    rest = np.array(matrix(i, j), float)
    if i == j:
        rest[np.diag_indices(len(rest))] += shift
    for k in range(j):
        left = factor(i, k)
        rest -= left @ (left if i == j else factor(j, k)).T
    if i == j:
        return scipy.linalg.cholesky(rest, lower=True, overwrite_a=True, check_finite=False)
    return scipy.linalg.solve_triangular(factor(j, j), rest.T, lower=True, overwrite_b=True, check_finite=False).T


def solve_lower(factor: Tiles, right: list[np.ndarray]) -> list[np.ndarray]:
    """L⁻¹ times the blocks ``right`` of rows."""
    solved: list[np.ndarray] = []
    for i, rest in enumerate(right):
        for k, known in enumerate(solved):
            rest = rest - factor(i, k) @ known
        solved.append(scipy.linalg.solve_triangular(factor(i, i), rest, lower=True, check_finite=False))
    return solved


def solve_upper(factor: Tiles, right: list[np.ndarray]) -> list[np.ndarray]:
    """L⁻ᵀ times the blocks ``right`` of rows."""
    solved = list(right)
    for j in reversed(range(len(right))):
        for i in range(j + 1, len(right)):
            solved[j] = solved[j] - factor(i, j).T @ solved[i]
        solved[j] = scipy.linalg.solve_triangular(factor(j, j), solved[j], lower=True, trans="T", check_finite=False)
    return solved


class Product(NamedTuple):
    """Blocks of rows of a matrix times a vector, and the matrix's Frobenius norm."""

    rows: list[np.ndarray]
    norm: float


def multiply(matrix: Tiles, right: list[np.ndarray]) -> Product:
    """The symmetric matrix times the blocks ``right`` of rows."""
    rows = [np.zeros(block.shape) for block in right]
    square = 0.0
    for i in range(len(right)):
        for j in range(i + 1):
            tile = matrix(i, j).astype(float, copy=False)
            rows[i] += tile @ right[j]
            if i != j:
                rows[j] += tile.T @ right[i]
            square += (1 if i == j else 2) * float(np.sum(tile * tile))
    return Product(rows, float(np.sqrt(square)))
