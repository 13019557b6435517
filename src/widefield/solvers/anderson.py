r"""Anderson acceleration as an `optimistix` fixed-point solver.

.. math::  y_{k+1} = y_k + \beta r_k - (\Delta Y + \beta\,\Delta R)\,\gamma, \qquad
           \gamma = \arg\min_\gamma |r_k - \Delta R\,\gamma|^2, \qquad r_k = f(y_k) - y_k

Type II of Anderson (1965) in the form of Walker & Ni (2011). It converges where plain iteration diverges (map
eigenvalues beyond −1) or crawls (close to +1), and also at unstable fixed points: test stability separately.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

MAX_RETREATS = 30


class AndersonState(eqx.Module):
    """Differences of accepted iterates and of their residuals, and where the last accepted iterate was."""

    steps: Float[Array, "memory n"]
    changes: Float[Array, "memory n"]
    count: Int[Array, ""]
    y: Float[Array, " n"]
    residual: Float[Array, " n"]
    retreats: Int[Array, ""]
    error: Float[Array, ""]


class AndersonSolver(optx.AbstractFixedPointSolver):
    r"""Anderson acceleration with memory, mixing and retreat from iterates where the map is not finite.

    ``damping`` is the mixing β in (0, 1]: 1 trusts the map, small values survive its overshooting. Least squares on
    normalized differences, by QR, with a Tikhonov term of ``regularization`` relative to each column.

    Stops where the *undamped* residual :math:`|f(y) - y| \le` atol + rtol·|f(y)| in ``norm``, and returns the very
    iterate that was tested. A map value that is not finite sends the iterate half way back to the last good one; after
    30 such retreats in a row, or at a start that is not finite, the result is `optimistix.RESULTS.nonlinear_divergence`.
    """

    rtol: float
    atol: float
    memory: int = 6
    damping: float = 1.0
    norm: Callable[[PyTree], Array] = optx.max_norm
    regularization: float = 1e-9

    def __check_init__(self) -> None:
        if self.memory < 1:
            raise ValueError(f"`memory` must be at least 1, got {self.memory}.")
        if not 0 < self.damping <= 1:
            raise ValueError(f"`damping` must lie in (0, 1], got {self.damping}.")

    def init(self, fn, y, args, options, f_struct, aux_struct, tags) -> AndersonState:
        flat, _ = ravel_pytree(y)
        history, none = jnp.zeros((self.memory, flat.size), flat.dtype), jnp.zeros((), int)
        return AndersonState(history, history, none, flat, jnp.zeros_like(flat), none, jnp.array(jnp.inf, flat.dtype))

    def step(self, fn, y, args, options, state, tags) -> tuple[Any, AndersonState, Any]:
        value, aux = fn(y, args)
        flat, unravel = ravel_pytree(y)
        image, _ = ravel_pytree(value)
        residual = image - flat
        good = jnp.all(jnp.isfinite(residual))
        scaled = residual / (self.atol + self.rtol * jnp.abs(image))
        error = jnp.where(good, self.norm(unravel(scaled)), jnp.inf)
        accepted = self._accept(state, flat, residual, error)
        refused = eqx.tree_at(lambda s: (s.retreats, s.error), state, (state.retreats + 1, error))
        new_state = jax.tree.map(lambda a, b: jnp.where(good, a, b), accepted, refused)
        proposal = jnp.where(good, self._propose(accepted), 0.5 * (flat + state.y))
        return unravel(jnp.where(error < 1, flat, proposal)), new_state, aux

    def terminate(self, fn, y, args, options, state, tags) -> tuple[Bool[Array, ""], Any]:
        lost = (state.retreats > MAX_RETREATS) | ((state.retreats > 0) & (state.count == 0))
        result = optx.RESULTS.where(lost, optx.RESULTS.nonlinear_divergence, optx.RESULTS.successful)
        return (state.error < 1) | lost, result

    def postprocess(self, fn, y, aux, args, options, state, tags, result) -> tuple[Any, Any, dict[str, Any]]:
        return y, aux, {"relative_error": state.error}

    def _accept(self, state: AndersonState, y: Array, residual: Array, error: Array) -> AndersonState:
        """The state with one more pair of differences; the oldest pair makes room."""
        first = state.count == 0
        slot = (state.count - 1) % self.memory
        put = lambda history, new: jnp.where(first, history, history.at[slot].set(new))  # noqa: E731
        steps, changes = put(state.steps, y - state.y), put(state.changes, residual - state.residual)
        return AndersonState(steps, changes, state.count + 1, y, residual, jnp.zeros_like(state.retreats), error)

    def _propose(self, state: AndersonState) -> Array:
        """The next iterate from the last accepted one and its history; empty slots are zero and stay unused."""
        size = jnp.linalg.norm(state.changes, axis=1)
        unit = jnp.where(size > 0, size, 1)[:, None]
        steps, changes = state.steps / unit, state.changes / unit
        ridge = self.regularization * jnp.eye(self.memory, dtype=changes.dtype)
        target = jnp.concatenate([state.residual, jnp.zeros(self.memory, changes.dtype)])
        q, r = jnp.linalg.qr(jnp.concatenate([changes.T, ridge]))
        gamma = jax.scipy.linalg.solve_triangular(r, q.T @ target)
        return state.y + self.damping * state.residual - gamma @ (steps + self.damping * changes)
