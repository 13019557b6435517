r"""Pair averages for whole kernel matrices: :math:`\langle\varphi\varphi'\rangle` and its derivative's, entry by entry.

A kernel turns the variances of all nodes into a *table* (leaves of shape (..., node)), then any block of pairs is
made from two pieces of the table and the covariances between them. Closed forms keep the variance alone; a Hermite
series keeps the coefficients of both functions. Pure JAX: differentiable in the variances and the covariances.
"""

import math
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from widefield.activation import Activation
from widefield.gaussian import closed, quadrature, rules

Table = dict[str, Array]
MAX_TERMS = 1024
CHUNK = 16
SPLIT_TERMS, SPLIT_NODES = 256, 32  # for activations with breaks
RESOLVED = 3e-13  # change of the coefficients, relative to the norm, that counts as none
CUT = 1e-13  # of the scale: where an adaptive series stops


class AbstractKernel(eqx.Module):
    """Averages of an activation and of its derivative over pairs of Gaussian nodes."""

    activation: eqx.AbstractVar[Activation]

    def table(self, q: Float[Array, "..."]) -> Table:
        """What the pairs need to know about each node."""
        raise NotImplementedError

    def second_moment(self, q: Float[Array, "..."]) -> Array:
        """<φ²> of each node."""
        raise NotImplementedError

    def pair(self, row: Table, column: Table, c: Array, slope: bool) -> tuple[Array, Array, Array]:
        """(<φφ'>, <φ'φ'>, error estimate relative to the scale); the second is zero where ``slope`` is false."""
        raise NotImplementedError


class ClosedKernel(AbstractKernel):
    """An activation whose pair averages are known in closed form."""

    activation: Activation = eqx.field(static=True)

    def table(self, q):
        return {"variance": q}

    def second_moment(self, q):
        return closed.moment(self.activation, (0, 0), q, q, q)

    def pair(self, row, column, c, slope):
        q, p = row["variance"], column["variance"]
        value = closed.moment(self.activation, (0, 0), q, p, c)
        derivative = closed.moment(self.activation, (1, 1), q, p, c) if slope else jnp.zeros_like(c)
        return value, derivative + 0 * c, jnp.zeros((), c.dtype)


class SeriesKernel(AbstractKernel):
    r"""Hermite series: :math:`\langle\varphi\varphi'\rangle = \sum_k c_k(q)\,c_k(q')\,\rho^k`.

    Error: with :math:`R = \langle\varphi^2\rangle - \sum_{k<K} c_k^2` the tail is at most :math:`|\rho|^K\sqrt{RR'}`,
    by Cauchy–Schwarz. Exact duplicates take :math:`\langle\varphi^2\rangle` itself.
    ``unresolved`` is what the nodes miss of the coefficients at the largest variance; it adds to the error. A function
    that jumps has a delta function in its slope (not ``smooth_slope``), of which the series knows nothing.
    An ``adaptive`` series sums only as many terms as the largest correlation of the block needs, which is faster but
    has no reverse-mode derivative.
    """

    activation: Activation = eqx.field(static=True)
    parity: int = eqx.field(static=True)
    n_terms: int = eqx.field(static=True)
    adaptive: bool = eqx.field(static=True)
    smooth_slope: bool = eqx.field(static=True)
    unresolved: float = eqx.field(static=True)
    nodes: Float[Array, " node"] | None
    weights: Float[Array, " node"] | None
    basis: Float[Array, "node term"] | None

    def table(self, q):
        value, slope = self.activation.function, jax.vmap(jax.grad(self.activation.function))
        slope_of = lambda x: slope(x.reshape(-1)).reshape(x.shape)  # noqa: E731
        table = {"variance": q}
        for name, function, parity in (("value", value, self.parity), ("slope", slope_of, -self.parity)):
            table |= {f"{name}_{key}": leaf for key, leaf in self._expand(function, q, parity).items()}
        return table

    def second_moment(self, q):
        z, weight = self._nodes(q)
        return jnp.sum(weight * self.activation.function(_root(q)[..., None] * z) ** 2, axis=-1)

    def _nodes(self, q):
        return (self.nodes, self.weights) if self.nodes is not None else _split_nodes(self.activation.breaks, q)

    def _expand(self, function, q, parity) -> Table:
        z, weight = self._nodes(q)
        values = function(_root(q)[..., None] * z)
        norm = jnp.sum(weight * values**2, axis=-1)
        if self.basis is None:
            coefficients = _project(weight * values, z, self.n_terms)[_terms(parity)]
        else:
            coefficients = jnp.moveaxis((weight * values) @ self.basis[:, _terms(parity)], -1, 0)
        # The tail is a difference of rounded numbers: never trust it below a few roundings of the norm.
        eps = jnp.finfo(q.dtype).eps
        tail = jnp.sqrt(jnp.maximum(norm - jnp.sum(coefficients**2, axis=0), 16 * eps * norm))
        return {"coefficients": coefficients, "norm": norm, "tail": jax.lax.stop_gradient(tail)}

    def pair(self, row, column, c, slope):
        rho, gap = closed.correlation(row["variance"], column["variance"], c)
        same = (gap == 0) & (rho > 0) & (row["variance"] == column["variance"]) & (row["variance"] > 0)
        rho = rho + 0 * c
        log_rho = jnp.where(same, -jnp.inf, jnp.log1p(-jnp.minimum(gap, 0.9)))
        n_terms = jnp.clip(jnp.log(CUT) / jnp.max(log_rho), 1, self.n_terms) if self.adaptive else self.n_terms
        reach = jnp.exp(n_terms * log_rho)
        value, error = self._sum("value", self.parity, row, column, rho, reach, same, n_terms)
        derivative = jnp.zeros_like(c)
        if slope:
            derivative, more = self._sum("slope", -self.parity, row, column, rho, reach, same, n_terms)
            error = jnp.maximum(error, more)
        return value, derivative, error

    def _sum(self, name, parity, row, column, rho, reach, same, n_terms):
        a, b = row[f"{name}_coefficients"], column[f"{name}_coefficients"]
        norm_a, norm_b = row[f"{name}_norm"], column[f"{name}_norm"]
        count = jnp.ceil(n_terms / (2 if parity else 1)).astype(int) + 1 if self.adaptive else None
        total = _horner_pairs(a, b, rho * rho if parity else rho, count)
        total = total * rho if parity < 0 else total
        total = jnp.where(same, total + jax.lax.stop_gradient(norm_a - total), total)
        scale = jnp.sqrt(jnp.where(norm_a > 0, norm_a, 1)) * jnp.sqrt(jnp.where(norm_b > 0, norm_b, 1))
        tail = row[f"{name}_tail"] * column[f"{name}_tail"] / scale
        # Fewer terms than all leave a tail of at most the whole norm times ρ^n.
        bound = jnp.where(n_terms < self.n_terms, 1.0, tail) if self.adaptive else tail
        blind = jnp.inf if name == "slope" and not self.smooth_slope else self.unresolved
        return total, jax.lax.stop_gradient(bound * reach + blind)


def _root(q):
    """√q with a finite derivative at zero, where a node that does not vary depends on nothing."""
    return jnp.where(q > 0, jnp.sqrt(jnp.where(q > 0, q, 1)), 0)


def _terms(parity: int) -> slice:
    """Which Hermite components a function of this parity has."""
    return {0: slice(None), 1: slice(0, None, 2), -1: slice(1, None, 2)}[parity]


def _horner_pairs(a: Array, b: Array, x: Array, n_terms: Array | None) -> Array:
    """Σ_k a_k b_k x^k, sixteen terms at a time so that they fuse into one pass over the block.

    With ``n_terms`` only about that many are summed: faster, but without a reverse-mode derivative.
    """
    n = -len(a) % CHUNK
    pad = lambda t: jnp.concatenate([t, jnp.zeros((n, *t.shape[1:]), t.dtype)])[::-1]  # noqa: E731
    a, b = (pad(t).reshape(-1, CHUNK, *t.shape[1:]) for t in (a, b))

    def step(j, total):
        rows, columns = a[j], b[j]
        for i in range(CHUNK):
            total = total * x + rows[i] * columns[i]
        return total

    first = 0 if n_terms is None else jnp.maximum(0, len(a) - (n_terms + CHUNK - 1) // CHUNK)
    return jax.lax.fori_loop(first, len(a), step, jnp.zeros_like(x))


def _split_nodes(breaks: tuple[float, ...], q, n_nodes: int = SPLIT_NODES):
    """Nodes on panels that end at the breaks, which lie elsewhere for every variance."""
    safe = jnp.where(q > 0, q, 1)
    centers = jnp.asarray(breaks, q.dtype) / jnp.sqrt(safe)[..., None]
    return rules.panels(jax.lax.stop_gradient(rules.edges(centers, rules.REACH, 8, jnp)), n_nodes, jnp)


def _project(values, z, n_terms):
    """Σ_node values · He_k(z)/√k! by the three-term recurrence, shape (n_terms, ...)."""

    def step(carry, k):
        before, now = carry
        after = (z * now - jnp.sqrt(k) * before) / jnp.sqrt(k + 1)
        return (now, after), jnp.sum(values * now, axis=-1)

    start = (jnp.zeros_like(z), jnp.ones_like(z))
    return jax.lax.scan(step, start, jnp.arange(n_terms, dtype=z.dtype))[1]


def parity_of(activation: Activation) -> int:
    """1 for an even function, −1 for an odd one, 0 otherwise; decided on a grid to rounding."""
    x = np.concatenate([np.linspace(0.0, 3.0, 61), np.geomspace(3.0, 40.0, 20)])
    there, back = (np.asarray(activation.function(jnp.asarray(v))) for v in (x, -x))
    scale = 1e-14 * np.abs(there).max()
    if np.all(np.abs(there - back) <= scale):
        return 1
    return -1 if np.all(np.abs(there + back) <= scale) else 0


@lru_cache(maxsize=16)  # a table takes up to 80 MB
def series_kernel(activation: Activation, level: int, dtype: str, adaptive: bool) -> SeriesKernel:
    """A series that resolves nodes of variance up to 2^level; terms are added until the tail is below 1e-11.

    Levels, not variances: the shapes, and so the compiled code, stay the same from call to call. The number of terms
    stops at 1024; what remains beyond that, and what the nodes cannot resolve, is in the error of each pair.
    """
    with jax.enable_x64(True):
        smooth_slope = not quadrature.factor(activation, 1).deltas
        if activation.breaks:
            unresolved = _split_discrepancy(activation, 2.0**level)
            return SeriesKernel(activation, 0, SPLIT_TERMS, adaptive, smooth_slope, unresolved, None, None, None)
        spacing, n_terms, unresolved = _resolve(activation, 2.0**level)
        z, weight = rules.trapezoid(spacing)
        table = rules.hermite_functions(z, n_terms)
        arrays: Any = [np.asarray(a, dtype) for a in (z, weight, table)]
        return SeriesKernel(activation, parity_of(activation), n_terms, adaptive, smooth_slope, unresolved, *arrays)


def _resolve(activation: Activation, q: float) -> tuple[float, int, float]:
    """The widest spacing at which the coefficients of φ and φ' no longer change when it is halved.

    Returns it with the number of terms and what still changes, relative to the norm. Norms alone would not do: they
    converge for a kink that sits on a node, while the coefficients do not.
    """
    functions = quadrature.factor(activation, 0).function, quadrature.factor(activation, 1).function
    for spacing in rules.SPACINGS:
        z, weight = rules.trapezoid(spacing / 2)
        table = rules.hermite_functions(z, MAX_TERMS)
        n_terms, change = 0, 0.0
        for values in (f(math.sqrt(q) * z) for f in functions):
            fine = (weight * values) @ table
            norm = np.sum(weight * values**2)
            coarse = 2 * (weight[::2] * values[::2]) @ table[::2]
            n_terms = max(n_terms, _terms_needed(fine**2, norm))
            difference = (fine - coarse)[:n_terms]
            change = max(change, float(np.linalg.norm(difference) / math.sqrt(norm)) if norm > 0 else 0.0)
        if change < RESOLVED:
            return spacing, n_terms, 0.0
    return spacing, n_terms, 4 * change


def _split_discrepancy(activation: Activation, q: float) -> float:
    """How much the coefficients on panels split at the breaks change with fewer nodes, where that matters."""
    changes = []
    for order in (0, 1):
        function = quadrature.factor(activation, order).function
        coefficients = []
        for n_nodes in (SPLIT_NODES, SPLIT_NODES - 8):
            z, weight = (np.asarray(a) for a in _split_nodes(activation.breaks, jnp.asarray(q), n_nodes))
            coefficients.append((weight * function(math.sqrt(q) * z)) @ rules.hermite_functions(z, SPLIT_TERMS))
        size = np.linalg.norm(coefficients[0])
        changes.append(float(np.linalg.norm(np.subtract(*coefficients)) / size) if size > 0 else 0.0)
    return 0.0 if max(changes) < RESOLVED else 4 * max(changes)


def _terms_needed(squares: np.ndarray, norm: float) -> int:
    enough = np.flatnonzero(norm - np.cumsum(squares) <= 1e-11 * norm)
    n = int(enough[0]) + 2 if len(enough) else MAX_TERMS
    return min(MAX_TERMS, 16 * math.ceil(n / 16))


def kernel_for(
    activation: Activation, largest: float, dtype: Any = "float64", *, adaptive: bool = False
) -> AbstractKernel:
    """Closed form where there is one, otherwise a series good up to the ``largest`` variance.

    ``adaptive`` makes the series faster at the price of its reverse-mode derivative.
    """
    if closed.has_closed_form(activation):
        return ClosedKernel(activation)
    level = max(-8, math.ceil(math.log2(max(largest, 1e-300))))
    return series_kernel(activation, level, np.dtype(dtype).name, adaptive)
