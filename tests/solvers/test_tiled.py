"""Linear equations in tiles against the same with whole matrices."""

import numpy as np
import pytest

from widefield.solvers import tiled

RNG = np.random.default_rng(3)
ROOT = RNG.normal(size=(50, 60))
MATRIX, NOISE, RIGHT = ROOT @ ROOT.T, 0.3, RNG.normal(size=(50, 2))


def tiles(matrix, size):
    """Tiles on and below the diagonal; others are an error, for they are not stored."""

    def tile(i, j):
        assert i >= j
        return matrix[i * size : (i + 1) * size, j * size : (j + 1) * size]

    return tile


def factorized(matrix, size, noise=NOISE):
    n = -(-len(matrix) // size)
    made = {}
    for j in range(n):
        for i in range(j, n):
            made[i, j] = tiled.factor_tile(tiles(matrix, size), lambda *at: made[at], noise, i, j)
    return made


@pytest.mark.parametrize("size", [7, 16, 50, 64])
def test_equations_are_solved(size):
    made = factorized(MATRIX, size)
    factor = lambda i, j: made[i, j]  # noqa: E731
    blocks = [RIGHT[start : start + size] for start in range(0, 50, size)]
    whole = MATRIX + NOISE * np.eye(50)
    L = np.linalg.cholesky(whole)
    lower = tiled.solve_lower(factor, blocks)
    np.testing.assert_allclose(np.concatenate(lower), np.linalg.solve(L, RIGHT), rtol=1e-10)
    solved = tiled.solve_upper(factor, lower)
    np.testing.assert_allclose(np.concatenate(solved), np.linalg.solve(whole, RIGHT), rtol=1e-10)
    product = tiled.multiply(tiles(MATRIX, size), solved)
    np.testing.assert_allclose(np.concatenate(product.rows), RIGHT - NOISE * np.concatenate(solved), atol=1e-10)
    assert product.norm == pytest.approx(np.linalg.norm(MATRIX), rel=1e-12)


def test_what_is_not_positive_definite_is_told():
    with pytest.raises(np.linalg.LinAlgError):
        factorized(MATRIX, 16, noise=-2 * np.linalg.eigvalsh(MATRIX)[0])
