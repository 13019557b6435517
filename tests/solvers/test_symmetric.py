"""Matrices factored in place, on the host and on a device, against NumPy's dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widefield.solvers import on_device
from widefield.solvers.conjugate import conjugate_gradients
from widefield.solvers.on_device import DeviceMatrix
from widefield.solvers.symmetric import Cholesky, HostMatrix, Spectral

N, TILE = 70, 32
RNG = np.random.default_rng(3)
ROOT = RNG.normal(size=(N, N))
A, B = ROOT @ ROOT.T / N, RNG.normal(size=(N, 3))


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def on_host(matrix, dtype):
    return HostMatrix(matrix.astype(dtype))


def on_a_device(matrix, dtype):
    made = DeviceMatrix(len(matrix), TILE, dtype)
    padded = np.full((made.n_tiles * TILE,) * 2, np.nan)  # what lies beyond the matrix is not read
    padded[: len(matrix), : len(matrix)] = matrix
    for i in range(made.n_tiles):
        for j in range(i, made.n_tiles):
            block = padded[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE]
            made.write(jnp.asarray(block, dtype), i, j)
    made.seal()
    return made


BOTH = pytest.mark.parametrize("make", [on_host, on_a_device])


@BOTH
@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-11), ("float32", 1e-3)])
def test_factors_again_and_again_and_the_matrix_stays(make, dtype, rtol):
    matrix, b = make(A, dtype), B.astype(dtype)
    np.testing.assert_allclose(matrix.norm, np.linalg.norm(A), rtol=1e-6)
    for ridge in (0.5, 2.0, 0.1):
        whole = A + ridge * np.eye(N)
        factor = Cholesky(matrix, matrix.factor(ridge))
        np.testing.assert_allclose(factor.solve(b), np.linalg.solve(whole, B), rtol=rtol, atol=rtol)
        np.testing.assert_allclose(factor.log_determinant, np.linalg.slogdet(whole)[1], rtol=rtol)
        whitened = factor.whiten(b)
        np.testing.assert_allclose(whitened.T @ whitened, B.T @ np.linalg.solve(whole, B), rtol=rtol)
        np.testing.assert_allclose(matrix.multiply(b), A @ B, rtol=rtol, atol=rtol)


@BOTH
def test_eigenvectors_are_factors_of_every_ridge(make):
    matrix = make(A, "float64")
    matrix.factor(1.0)
    values, vectors = matrix.spectrum()
    np.testing.assert_allclose(values, np.linalg.eigvalsh(A), rtol=1e-10, atol=1e-12)
    factor = Spectral(values, vectors, 0.3)
    np.testing.assert_allclose(factor.solve(B), np.linalg.solve(A + 0.3 * np.eye(N), B), rtol=1e-9)
    np.testing.assert_allclose(factor.log_determinant, np.linalg.slogdet(A + 0.3 * np.eye(N))[1], rtol=1e-11)
    np.testing.assert_allclose(factor.apply(values, B), A @ B, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(matrix.multiply(B), A @ B, rtol=1e-11, atol=1e-12)


@BOTH
def test_what_is_not_positive_has_no_factor(make):
    with pytest.raises(np.linalg.LinAlgError, match="minor"):
        make(A - 1.5 * np.eye(N), "float64").factor(0.0)


def test_the_host_factors_the_array_that_it_is_given():
    array = A.copy()
    HostMatrix(array).factor(0.0)
    np.testing.assert_allclose(np.triu(array), np.linalg.cholesky(A).T, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(np.tril(array, -1), np.tril(A, -1))


def test_a_device_holds_the_matrix_once():
    """What XLA allocates beside its arguments is tiles, and what is written is written in place."""
    n, tile = 2048, 128
    whole, block = (jax.ShapeDtypeStruct((k, k), "float64") for k in (n, tile))
    rows = jax.ShapeDtypeStruct((n, 10), "float64")
    writes = on_device._write.lower(whole, block, 1, 2, n), on_device._place.lower(whole, block, 2, 1)
    reads = on_device._rest_of_tile.lower(whole, 3, 1, tile), on_device._rest_of_rows.lower(whole, rows, 1, tile, True)
    for program in (*writes, *reads):
        memory = program.compile().memory_analysis()
        assert memory.temp_size_in_bytes < 0.1 * 8 * n**2
    for program in writes:
        assert program.compile().memory_analysis().alias_size_in_bytes == 8 * n**2


def test_conjugate_gradients_reach_what_they_say():
    full = A + 0.01 * np.eye(N)
    nearly = np.linalg.inv((full * (1 + 1e-3 * np.cos(np.add.outer(np.arange(N), np.arange(N))))).astype("float32"))
    b = B * [1.0, 1e-12, 1e12]
    solved = conjugate_gradients(lambda v: full @ v, lambda r: nearly @ r, b, 1e-10, 200)
    assert solved.residual <= 1e-10 and solved.steps < 60
    np.testing.assert_allclose(solved.x, np.linalg.solve(full, b), rtol=1e-6)
    few = conjugate_gradients(lambda v: full @ v, lambda r: r, b, 1e-10, 3)
    true = np.linalg.norm(full @ few.x - b, axis=0) / np.linalg.norm(b, axis=0)
    assert few.steps == 3 and few.residual == pytest.approx(true.max()) and few.residual > 1e-10
