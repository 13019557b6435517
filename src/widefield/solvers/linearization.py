"""The derivative of a map at a point: its leading eigenvalues, and how errors of the map move its fixed point."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
import scipy.sparse.linalg as sparse

Array = Any  # NumPy or JAX, whichever comes in
Map = Callable[[Array], Array]
DENSE = 600  # entries up to which the Jacobian is a matrix
PRODUCTS = 16  # of it with vectors at most at once
FLAT = 1e-11  # relative singular value of 1 − J that counts as a symmetry direction


@dataclass(frozen=True, eq=False)
class Linearization:
    """``value`` of a ``map`` at a point and its derivative J there, a ``matrix`` or only a product with vectors."""

    map: Map
    value: np.ndarray
    push: Callable[[np.ndarray], np.ndarray]
    matrix: np.ndarray | None

    def leading(self, among: np.ndarray | None) -> float:
        """Largest real part of the eigenvalues, within the entries ``among``; −inf where there are none."""
        keep = np.arange(len(self.value)) if among is None else np.flatnonzero(among)
        if not len(keep):
            return -np.inf
        if self.matrix is not None:
            return float(np.linalg.eigvals(self.matrix[np.ix_(keep, keep)]).real.max())

        def push(v: np.ndarray) -> np.ndarray:
            full = np.zeros(len(self.value))
            full[keep] = v.ravel()
            return self.push(full)[keep]

        operator = sparse.LinearOperator((len(keep),) * 2, push, dtype=float)
        return float(sparse.eigs(operator, 1, which="LR", return_eigenvectors=False, tol=1e-6)[0].real)

    def solve(self, right: np.ndarray) -> np.ndarray:
        """(1 − J)⁻¹ applied to each row: how far a perturbation of the map moves the fixed point."""
        n = len(self.value)
        if self.matrix is not None:
            return np.linalg.lstsq(np.eye(n) - self.matrix, right.T, rcond=FLAT)[0].T
        operator = sparse.LinearOperator((n, n), lambda v: v - self.push(v), dtype=float)
        rows = [sparse.gmres(operator, row, rtol=1e-3, restart=80, maxiter=10) for row in right]
        return np.stack([x if info == 0 else np.full(n, np.inf) for x, info in rows])

    def orientation(self) -> int:
        """The sign of det(1 − J): it changes where an odd number of real eigenvalues passes 1."""
        assert self.matrix is not None, "a determinant needs the matrix"
        return int(np.linalg.slogdet(np.eye(len(self.value)) - self.matrix)[0])


def linearize(function: Map, point: Array, *, dense: int = DENSE) -> Linearization:
    """The derivative of ``function``, an `equinox.Module` of one vector, at ``point``; a matrix up to ``dense`` entries."""
    push = lambda v: np.asarray(_push(function, point, v))  # noqa: E731
    if len(point) > dense:
        return Linearization(function, np.asarray(function(point)), push, None)
    n_turns = max(1, -(-len(point) // PRODUCTS))
    directions = np.eye(n_turns * -(-len(point) // n_turns), len(point))  # equal turns: a shorter one compiles again
    value, columns = jax.device_get(_jacobian(function, point, directions, len(directions) // n_turns))
    return Linearization(function, value, push, columns[: len(point)].T)


@eqx.filter_jit
def _push(function: Map, point: Array, v: Array) -> Array:
    return jax.jvp(function, (point,), (v,))[1]


@eqx.filter_jit
def _jacobian(function: Map, point: Array, directions: Array, at_once: int) -> tuple[Array, Array]:
    push = lambda v: jax.jvp(function, (point,), (v,))  # noqa: E731
    values, columns = jax.lax.map(push, directions, batch_size=at_once)
    return values[0], columns
