"""Positive definite matrices factored where they stand: one buffer holds the factor in one triangle, the matrix in the other."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack

ROWS = 512  # copied at a time from one triangle to the other


class AbstractMatrix(ABC):
    """A symmetric matrix A, to be factored with something added to its diagonal, again and again.

    The triangle that the factor leaves alone, and the diagonal kept beside it, are A for as long as the buffer lives.
    """

    n: int
    norm: float
    eps: float
    diagonal: Any

    @abstractmethod
    def factor(self, ridge: float) -> np.ndarray:
        """Cholesky's factor L of A + ridge, in place; its diagonal. Raises `LinAlgError` where there is none."""

    @abstractmethod
    def solve(self, b: np.ndarray) -> np.ndarray:
        """(A + ridge)⁻¹b with the factor."""

    @abstractmethod
    def whiten(self, b: np.ndarray) -> np.ndarray:
        """L⁻¹b with the factor."""

    @abstractmethod
    def multiply(self, b: np.ndarray) -> np.ndarray:
        """Ab, from what the factor left alone."""

    @abstractmethod
    def spectrum(self) -> tuple[np.ndarray, Any]:
        """Eigenvalues and eigenvectors of A; the buffer then holds neither factor nor, alone, the matrix."""


class HostMatrix(AbstractMatrix):
    """In the memory of the host, with LAPACK; the array given is its buffer."""

    def __init__(self, array: np.ndarray):
        self.n = len(array)
        self.buffer = array.T  # LAPACK counts along columns: of a symmetric matrix this is another name, not a copy
        self.diagonal = np.diag(array).copy()
        self.eps = float(np.finfo(array.dtype).eps)
        self.norm = float(np.linalg.norm(array.reshape(-1)))
        self._factored = False
        self._at = np.arange(self.n)

    def factor(self, ridge: float) -> np.ndarray:
        if self._factored:
            self._restore()
        self.buffer[self._at, self._at] = self.diagonal + self.buffer.dtype.type(ridge)
        (potrf,) = lapack.get_lapack_funcs(("potrf",), (self.buffer,))
        factor, info = potrf(self.buffer, lower=1, clean=0, overwrite_a=1)
        assert np.shares_memory(factor, self.buffer)
        self._factored = True
        if info > 0:
            raise np.linalg.LinAlgError(f"the leading minor of order {info} is not positive")
        return self.buffer[self._at, self._at]

    def _restore(self) -> None:
        """The factor's triangle from the other one."""
        for start in range(0, self.n, ROWS):
            stop = min(start + ROWS, self.n)
            self.buffer[start:stop, :start] = self.buffer[:start, start:stop].T
            block = np.triu(self.buffer[start:stop, start:stop], 1)
            self.buffer[start:stop, start:stop] = block + block.T

    def solve(self, b: np.ndarray) -> np.ndarray:
        (potrs,) = lapack.get_lapack_funcs(("potrs",), (self.buffer,))
        return potrs(self.buffer, b, lower=1)[0]

    def whiten(self, b: np.ndarray) -> np.ndarray:
        (trtrs,) = lapack.get_lapack_funcs(("trtrs",), (self.buffer,))
        return trtrs(self.buffer, b, lower=1)[0]

    def multiply(self, b: np.ndarray) -> np.ndarray:
        (symm,) = blas.get_blas_funcs(("symm",), (self.buffer,))
        shift = self.diagonal - self.buffer[self._at, self._at]
        return symm(1.0, self.buffer, b, lower=0) + shift[:, None] * b

    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        if self._factored:
            self._restore()
        self.buffer[self._at, self._at] = self.diagonal
        syevr, size = lapack.get_lapack_funcs(("syevr", "syevr_lwork"), (self.buffer,))
        work, whole, _ = size(self.n, lower=1)
        values, vectors, *_, info = syevr(self.buffer, lower=1, overwrite_a=1, lwork=int(work), liwork=int(whole))
        self._factored = True
        if info:
            raise np.linalg.LinAlgError(f"eigenvalues were not found (LAPACK's info is {info})")
        return values, vectors


@dataclass(frozen=True)
class Cholesky:
    """A + ridge by its factor, for as long as the matrix is not factored anew."""

    matrix: AbstractMatrix
    diagonal: np.ndarray

    @property
    def pivots(self) -> np.ndarray:
        """The squared diagonal of the factor."""
        return self.diagonal**2

    @property
    def log_determinant(self) -> float:
        """ln det(A + ridge)."""
        return float(2 * np.sum(np.log(self.diagonal.astype(float))))

    def solve(self, b: np.ndarray) -> np.ndarray:
        """(A + ridge)⁻¹b."""
        return self.matrix.solve(b)

    def whiten(self, b: np.ndarray) -> np.ndarray:
        """Some R with RᵀR = (A + ridge)⁻¹, times b."""
        return self.matrix.whiten(b)


@dataclass(frozen=True)
class Spectral:
    """A + ridge by the eigenvalues and eigenvectors of A, NumPy's or JAX's."""

    values: np.ndarray
    vectors: Any
    ridge: float

    @property
    def pivots(self) -> np.ndarray:
        """Eigenvalues of A + ridge."""
        return self.values + self.ridge

    @property
    def log_determinant(self) -> float:
        """ln det(A + ridge)."""
        return float(np.sum(np.log(self.pivots)))

    def apply(self, gain: np.ndarray, b: np.ndarray) -> np.ndarray:
        """f(A)b, ``gain`` being f at the eigenvalues, one column per right-hand side or one for all."""
        rotated = np.asarray(self.vectors.T @ b)
        return np.asarray(self.vectors @ (gain.reshape(len(gain), -1) * rotated))

    def solve(self, b: np.ndarray) -> np.ndarray:
        """(A + ridge)⁻¹b."""
        return self.apply(1 / self.pivots, b)

    def whiten(self, b: np.ndarray) -> np.ndarray:
        """Some R with RᵀR = (A + ridge)⁻¹, times b."""
        return np.asarray(self.vectors.T @ b) / np.sqrt(self.pivots)[:, None]
