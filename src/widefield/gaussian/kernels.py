r"""Pair averages for whole kernel matrices: :math:`\langle\varphi^{(i)}\varphi^{(j)}\rangle`, entry by entry.

A kernel turns the variances of all nodes into a *table* (leaves of shape (..., node)), then any block of pairs is
made from two pieces of the table and the covariances between them. Closed forms keep the variance alone; a Hermite
series keeps the coefficients of the derivatives asked for. Pure JAX: differentiable in the variances and the
covariances.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from widefield.answer.boundary import working_dtype
from widefield.gaussian import closed, quadrature, rules
from widefield.gaussian.steepness import derivative, level_of, steepness
from widefield.question import checks
from widefield.question.activation import Activation, as_activation

Table = dict[str, Array]
Orders = tuple[int, int]
MAX_TERMS = 1024
CHUNK = 16
SPLIT_TERMS, SPLIT_NODES = 256, 32  # for activations with breaks
RESOLVED = 3e-13  # change of the coefficients, relative to the norm, that counts as none
CUT = 1e-13  # of the scale: where an adaptive series stops


class Steep(NamedTuple):
    """Edges of panels for a user's function that varies fast, and what these leave unresolved, order by order."""

    edges: tuple[float, ...]
    unresolved: tuple[float, ...]


class AbstractKernel(eqx.Module):
    """Averages of an activation and of its derivatives over pairs of Gaussian nodes."""

    activation: eqx.AbstractVar[Activation]

    def table(self, q: Float[Array, "..."]) -> Table:
        """What the pairs need to know about each node."""
        raise NotImplementedError

    def second_moment(self, q: Float[Array, "..."]) -> Array:
        """<φ²> of each node."""
        raise NotImplementedError

    def average(self, row: Table, column: Table, c: Array, orders: Orders) -> tuple[Array, Array]:
        """<φ^(i)(a)φ^(j)(b)> and an error estimate relative to the scale √(<φ^(i)(a)²><φ^(j)(b)²>)."""
        raise NotImplementedError

    def pair(self, row: Table, column: Table, c: Array, slope: bool) -> tuple[Array, Array, Array]:
        """(<φφ'>, <φ'φ'>, the larger error estimate); the second is zero where ``slope`` is false."""
        value, error = self.average(row, column, c, (0, 0))
        if not slope:
            return value, jnp.zeros_like(c), error
        derivative, more = self.average(row, column, c, (1, 1))
        return value, derivative, jnp.maximum(error, more)


class ClosedKernel(AbstractKernel):
    """An activation whose pair averages are known in closed form."""

    activation: Activation = eqx.field(static=True)

    def table(self, q):
        return {"variance": q}

    def second_moment(self, q):
        return closed.moment(self.activation, (0, 0), q, q, q)

    def average(self, row, column, c, orders):
        if not closed.has_closed_form(self.activation, orders):
            raise ValueError(f"`orders` must have a closed form for {self.activation}, got {orders}.")
        value = closed.moment(self.activation, orders, row["variance"], column["variance"], c)
        return value + 0 * c, jnp.zeros((), c.dtype)


class SeriesKernel(AbstractKernel):
    r"""Hermite series: :math:`\langle\varphi^{(i)}\varphi^{(j)}\rangle = \sum_k c^{(i)}_k(q)\,c^{(j)}_k(q')\,\rho^k`.

    ``orders`` are the derivatives whose coefficients a table holds; any two of them can be averaged.
    Error: with :math:`R_i = \langle\varphi^{(i)2}\rangle - \sum_{k<K} (c^{(i)}_k)^2` the tail is at most
    :math:`|\rho|^K\sqrt{R_iR'_j}`, by Cauchy–Schwarz. Exact duplicates take the one-dimensional average itself, and
    two derivatives of opposite parity average to zero.
    ``unresolved`` is, order by order, what the nodes miss of the coefficients at the largest variance; it adds to the
    error. It is infinite for a derivative with a delta function, of which the series knows nothing.
    An ``adaptive`` series sums only as many terms as the largest correlation of the block needs, which is faster but
    has no reverse-mode derivative.

    Derivatives of `average` through JAX are those of the series term by term: right for positive variances, duplicates
    included, as long as the series of the next order has converged too; at a variance of zero they vanish. `moment`
    differentiates by Price's theorem instead and is right at zero variance as well.
    """

    activation: Activation = eqx.field(static=True)
    orders: tuple[int, ...] = eqx.field(static=True)
    parity: int = eqx.field(static=True)
    n_terms: int = eqx.field(static=True)
    adaptive: bool = eqx.field(static=True)
    unresolved: tuple[float, ...] = eqx.field(static=True)
    nodes: Float[Array, " node"] | None
    weights: Float[Array, " node"] | None
    basis: Float[Array, "node term"] | None
    steep: Steep | None = eqx.field(static=True, default=None)

    def table(self, q):
        z, weight = self._nodes(q)
        x = _root(q)[..., None] * z
        values = {k: _derivative(self.activation.function, k)(x) for k in self.orders}
        table = {"variance": q}
        for i, j in combinations_with_replacement(self.orders, 2):
            if not self._vanishes((i, j)):
                table[f"moment_{i}_{j}"] = jnp.sum(weight * (values[i] * values[j]), axis=-1)
        for k in self.orders:
            weighted, norm, terms = weight * values[k], table[f"moment_{k}_{k}"], _terms(self._parity(k))
            if self.basis is None or self.steep is not None:
                coefficients = _project(weighted, z, self.n_terms)[terms]
            else:
                coefficients = jnp.moveaxis(weighted @ self.basis[:, terms], -1, 0)
            # The tail is a difference of rounded numbers: never trust it below a few roundings of the norm.
            floor = 16 * jnp.finfo(norm.dtype).eps * norm
            tail = jnp.sqrt(jnp.maximum(norm - jnp.sum(coefficients**2, axis=0), floor))
            table |= {f"coefficients_{k}": coefficients, f"tail_{k}": jax.lax.stop_gradient(tail)}
        return table

    def second_moment(self, q):
        z, weight = self._nodes(q)
        return jnp.sum(weight * self.activation.function(_root(q)[..., None] * z) ** 2, axis=-1)

    def average(self, row, column, c, orders):
        if not set(orders) <= set(self.orders):
            raise ValueError(f"`orders` must be among the derivatives {self.orders} of this kernel, got {orders}.")
        rho, gap = closed.correlation(row["variance"], column["variance"], c)
        rho = rho + 0 * c
        if self._vanishes(orders):
            return jnp.zeros_like(rho), jnp.zeros((), rho.dtype)
        same = (gap == 0) & (rho > 0) & (row["variance"] == column["variance"]) & (row["variance"] > 0)
        log_rho = jnp.where(same, -jnp.inf, jnp.log1p(-jnp.minimum(gap, 0.9)))
        n_terms = jnp.clip(jnp.log(CUT) / jnp.max(log_rho), 1, self.n_terms) if self.adaptive else self.n_terms
        factors = [(t[f"coefficients_{k}"], _relative_tail(t, k)) for t, k in zip((row, column), orders, strict=True)]
        (a, tail_a), (b, tail_b) = factors
        parity = self._parity(orders[0])
        count = jnp.ceil(n_terms / (2 if parity else 1)).astype(int) + 1 if self.adaptive else None
        total = _horner_pairs(a, b, rho * rho if parity else rho, count)
        total = total * rho if parity < 0 else total
        moment = row["moment_{}_{}".format(*sorted(orders))]
        total = jnp.where(same, total + jax.lax.stop_gradient(moment - total), total)
        # Fewer terms than all leave a tail of at most the whole norm times ρ^n.
        tail = jnp.where(n_terms < self.n_terms, 1.0, tail_a * tail_b) if self.adaptive else tail_a * tail_b
        unresolved = self.unresolved if self.steep is None else self.steep.unresolved
        blind = max(unresolved[self.orders.index(k)] for k in orders)
        return total, jax.lax.stop_gradient(tail * jnp.exp(n_terms * log_rho) + blind)

    def moment(self, orders: Orders, q: Array, p: Array, c: Array) -> Array:
        """<φ^(i)(a)φ^(j)(b)> of broadcast variances and covariances, with derivatives by Price's theorem.

        ∂_c raises both orders by one and ∂_q the first by two (with a factor ½), so that ``orders`` of the kernel must
        reach as far as derivatives are taken. These are exact at duplicates and where a variance vanishes.
        """
        i, j = orders

        @jax.custom_jvp
        def average(q, p, c):
            return self.average(self.table(q), self.table(p), c + 0 * (q + p), orders)[0]

        @average.defjvp
        def _(primals, tangents):
            dq, dp, dc = tangents
            along_q, along_p, along_c = (self.moment(o, *primals) for o in ((i + 2, j), (i, j + 2), (i + 1, j + 1)))
            return average(*primals), 0.5 * (along_q * dq + along_p * dp) + along_c * dc

        return average(q, p, c)

    def roughness(self, table: Table, order: int) -> Array:
        """√(Σ k c_k²/Σ c_k²) of each node: the product of two is how much a rounding of ρ is magnified."""
        squares = table[f"coefficients_{order}"] ** 2
        k = jnp.arange(self.n_terms, dtype=squares.dtype)[_terms(self._parity(order))]
        norm = table[f"moment_{order}_{order}"]
        return jnp.sqrt(jnp.tensordot(k, squares, 1) / jnp.where(norm > 0, norm, 1))

    def _parity(self, order: int) -> int:
        return self.parity * (-1) ** order

    def _vanishes(self, orders: Orders) -> bool:
        """Whether the two factors have opposite parities."""
        return self.parity != 0 and sum(orders) % 2 == 1

    def _nodes(self, q):
        """z and its weights, (..., node) with as many axes in front as ``q`` has."""
        if self.steep is not None:
            return _split_nodes(self.activation.breaks, q, steep=self.steep.edges)
        if self.nodes is None or self.weights is None:
            return _split_nodes(self.activation.breaks, q)
        in_front = tuple(range(q.ndim))
        return jnp.expand_dims(self.nodes, in_front), jnp.expand_dims(self.weights, in_front)


def _relative_tail(table: Table, order: int) -> Array:
    """√R of each node, relative to its norm."""
    norm = table[f"moment_{order}_{order}"]
    return table[f"tail_{order}"] / jnp.sqrt(jnp.where(norm > 0, norm, 1))


def _derivative(function: Callable, order: int) -> Callable:
    """The ``order``-th derivative of an elementwise function, on arrays."""
    if order == 0:
        return function
    for _ in range(order):
        function = jax.grad(function)
    derived = jax.vmap(function)
    return lambda x: derived(x.reshape(-1)).reshape(x.shape)


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


def _split_nodes(breaks: tuple[float, ...], q, n_nodes: int = SPLIT_NODES, steep: tuple[float, ...] = ()):
    """Nodes on panels that end at the breaks and at the ``steep`` edges, which lie elsewhere for every variance."""
    safe = jnp.where(q > 0, q, 1)
    place = lambda x: jnp.expand_dims(jnp.asarray(x, q.dtype), tuple(range(q.ndim))) / jnp.sqrt(safe)[..., None]  # noqa: E731
    edges = rules.edges(place(breaks or (0.0,)), rules.REACH, 8, jnp)
    if steep:
        more = jnp.clip(place(steep), -rules.REACH, rules.REACH)
        edges = jnp.sort(jnp.concatenate([edges, more], axis=-1), axis=-1)
    return rules.panels(jax.lax.stop_gradient(edges), n_nodes, jnp)


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
    there, back = (derivative(activation.function, 0)(v) for v in (x, -x))
    scale = 1e-14 * np.abs(there).max()
    if np.all(np.abs(there - back) <= scale):
        return 1
    return -1 if np.all(np.abs(there + back) <= scale) else 0


@lru_cache(maxsize=16)  # a table takes up to 80 MB
def series_kernel(
    activation: Activation, level: int, dtype: str, adaptive: bool, orders: tuple[int, ...] = (0, 1)
) -> SeriesKernel:
    """A series that resolves nodes of variance up to 2^level; terms are added until the tail is below 1e-11.

    The number of terms stops at 1024; what remains beyond that, and what the nodes cannot resolve, is in the error of
    each pair. Higher derivatives need finer nodes and more terms: both are found for the ``orders`` in use.
    """
    with jax.enable_x64(True):
        factors = [quadrature.factor(activation, k) for k in orders]
        scans = [steepness(activation, k, level) for k in orders]
        edges, rough = tuple(sorted({x for s in scans for x in s.edges})), any(s.rough is not None for s in scans)
        # Even nodes see what is wider than some spacings, which is most of what is not local, such as a fast sine.
        widest = float(np.diff(edges).min()) / 2.0 ** (level / 2) / 4 if edges else math.inf
        if not activation.breaks and widest > 2 * rules.SPACINGS[-1]:
            edges = ()
        arrays: Any = [None] * 3
        parity, n_terms, spacing, changes = 0, SPLIT_TERMS, rules.SPACINGS[0], [math.inf] * len(orders)
        if edges or activation.breaks:
            changes = [_split_change(activation.breaks, f.function, 2.0**level, edges) for f in factors]
        elif not rough:
            spacing, n_terms, changes = _resolve([f.function for f in factors], 2.0**level, widest)
            parity = parity_of(activation)
        unresolved = tuple(
            math.inf if rough or f.deltas else 0.0 if change < RESOLVED else 4 * change
            for f, change in zip(factors, changes, strict=True)
        )
        steep = Steep(edges, unresolved) if edges else None
        if not activation.breaks:  # also for a steep function, whose even nodes are said to see nothing
            z, weight = rules.trapezoid(spacing)
            arrays = [np.ascontiguousarray(a, dtype) for a in (z, weight, rules.hermite_functions(z, n_terms))]
            unresolved = (math.inf,) * len(orders) if edges else unresolved
        nodes, weights, basis = arrays
        return SeriesKernel(activation, orders, parity, n_terms, adaptive, unresolved, nodes, weights, basis, steep)


def _resolve(functions: list[Callable], q: float, widest: float) -> tuple[float, int, list[float]]:
    """The widest spacing, up to ``widest``, at which the coefficients of all functions no longer change when it is halved.

    Returns it with the number of terms and what still changes, relative to the norms. Norms alone would not do: they
    converge for a kink that sits on a node, while the coefficients do not.
    """
    for spacing in (h for h in rules.SPACINGS if h <= widest):
        z, weight = rules.trapezoid(spacing / 2)
        table = rules.hermite_functions(z, MAX_TERMS)
        n_terms, pairs = 0, []
        for values in (f(math.sqrt(q) * z) for f in functions):
            fine = (weight * values) @ table
            norm = np.sum(weight * values**2)
            enough = np.flatnonzero(norm - np.cumsum(fine**2) <= 1e-11 * norm)
            needed = int(enough[0]) + 2 if len(enough) else MAX_TERMS
            n_terms = max(n_terms, min(MAX_TERMS, 16 * math.ceil(needed / 16)))
            pairs.append((fine - 2 * (weight[::2] * values[::2]) @ table[::2], norm))
        changes = [float(np.linalg.norm(d[:n_terms]) / math.sqrt(norm)) if norm > 0 else 0.0 for d, norm in pairs]
        if max(changes) < RESOLVED:
            break
    return spacing, n_terms, changes


def _split_change(breaks: tuple[float, ...], function: Callable, q: float, edges: tuple[float, ...]) -> float:
    """How much the coefficients on panels split at the breaks change with fewer nodes."""
    coefficients = []
    for n_nodes in (SPLIT_NODES, SPLIT_NODES - 8):
        z, weight = (np.asarray(a) for a in _split_nodes(breaks, jnp.asarray(q), n_nodes, edges))
        coefficients.append((weight * function(math.sqrt(q) * z)) @ rules.hermite_functions(z, SPLIT_TERMS))
    size = np.linalg.norm(coefficients[0])
    return float(np.linalg.norm(np.subtract(*coefficients)) / size) if size > 0 else 0.0


def kernel_for(
    activation: str | Activation,
    largest: float,
    dtype: Any = "float64",
    *,
    adaptive: bool = False,
    orders: tuple[int, ...] = (0, 1),
) -> AbstractKernel:
    """Closed forms where there are, otherwise a series good up to the ``largest`` variance.

    ``orders`` are the derivatives that the series holds. ``adaptive`` makes it faster at the price of its reverse-mode
    derivative.
    """
    checks.reject_tracers(dtype=dtype, orders=orders)
    if not isinstance(orders, tuple) or not orders:
        raise ValueError(f"`orders` must be a tuple of orders of derivatives, got {checks.shown(orders)}.")
    orders = tuple(checks.integer("orders", order, 0) for order in orders)
    activation, dtype, adaptive = as_activation(activation), working_dtype(dtype), checks.flag("adaptive", adaptive)
    largest = checks.nonnegative("largest", largest)
    if closed.has_closed_form(activation):
        return ClosedKernel(activation)
    return series_kernel(activation, level_of(largest), dtype.name, adaptive, orders)
