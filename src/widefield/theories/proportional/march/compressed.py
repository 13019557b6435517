r"""The march over many steps: rows that are complete are compressed, and time grows more slowly than :math:`T^3`.

Correlations and responses are smooth away from the diagonal. After each block of rows its earlier columns are factorized
(`rows.Blocks`) with an error below `ROUNDINGS` of the matrix' largest entry, whatever rank that takes: a matrix that is not
smooth costs time, never digits. The rows themselves are kept as they were computed and returned.

Plain networks; residual ones and structured data with noise take the dense march of `causal`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from widefield.theories.proportional.march.causal import (
    LARGE,
    Parameters,
    Shape,
    State,
    empty,
    has_sources,
    segments,
    step,
)
from widefield.theories.proportional.march.rows import Blocks, CausalPast, SymmetricPast

BLOCK = 128  # rows: at some thousand steps what is read whole and what is read through factors cost the same
RANK, MORE = 16, 8  # of the first factors; added while it does not suffice
ROUNDINGS = 1024  # of the largest entry, allowed to a factorization; the rows themselves carry some hundred

SYMMETRIC = ("initial", "test", "train", "feature", "gradient")
CAUSAL = ("memory", "propagator")


def marched(parameters: Parameters, shape: Shape) -> Iterator[tuple[int, State | None]]:
    """One run: the number of rows so far, and the matrices at least in the end; compressed where that is there and pays."""
    plain = not shape.residual and (parameters.modes is None or not shape.noisy)
    many = shape.n_steps * shape.n_channels > 1.25 * LARGE
    return (compressed_segments if plain and many else segments)(parameters, shape)


def compressed_segments(parameters: Parameters, shape: Shape) -> Iterator[tuple[int, State | None]]:
    """Like `causal.segments`; there are matrices (NumPy, dense) with the last part only.

    A march that has left all bounds ends there, later losses are infinite.
    """
    c, m = shape.n_channels, BLOCK // shape.n_channels * shape.n_channels
    done = LARGE // BLOCK * m // c
    *_, (_, dense) = segments(parameters, shape._replace(n_steps=done))
    whole = jax.eval_shape(lambda: empty(parameters, shape, shape.n_steps))
    leaves: list[tuple[tuple, jax.ShapeDtypeStruct]]
    tree: Any
    leaves, tree = jax.tree_util.tree_flatten_with_path(whole)
    records = [Record.of(path, leaf) for path, leaf in leaves]
    keep(records, dense, 0, done * c, m)
    yield done, None
    while done < shape.n_steps and bounded(records):
        size = capacity(done * c // m, -(-shape.n_steps * c // m))
        stop = min(done + m // c, shape.n_steps)
        rates = jnp.pad(parameters.rate, (0, max(0, size * m // c - len(parameters.rate))))
        pasts = tuple(r.past(size, m, rank_of(records, r.kind)) if r.kind else None for r in records)
        moving = tree.unflatten([r.moving(size * m, m) for r in records])
        moving = _fill(parameters._replace(rate=rates), moving, pasts, shape._replace(n_steps=0), done, stop)
        keep(records, moving, done * c, stop * c, m)
        done = stop
        yield done, None
    state = tree.unflatten([record.rows for record in records])
    state.inputs.losses[done * c :] = np.inf
    yield done, state


def capacity(n_complete: int, n_blocks: int) -> int:
    """Blocks that the buffers hold after ``n_complete``; few sizes, since each is compiled."""
    size = LARGE // BLOCK
    while size <= n_complete:
        size *= 2
    return min(size, n_blocks)


@partial(jax.jit, static_argnames="shape", donate_argnames="moving")
def _fill(parameters: Parameters, moving: State, pasts: tuple, shape: Shape, start: int, stop: int) -> State:
    """Rows from ``start`` to ``stop``; what is complete goes in but not out."""
    tree, is_blocks = jax.tree.structure(moving), lambda leaf: isinstance(leaf, Blocks)

    def one(t: Array, moving: State) -> State:
        parts = zip(jax.tree.leaves(moving), pasts, strict=True)
        whole = [leaf if past is None else Blocks(leaf, past) for leaf, past in parts]
        after = step(parameters, shape, jax.tree.unflatten(tree, whole), t)
        return jax.tree.map(lambda leaf: leaf.live if is_blocks(leaf) else leaf, after, is_leaf=is_blocks)

    return lax.fori_loop(start, stop, one, moving)


@dataclass
class Record:
    """One quantity of the march: all its rows, and the factors of its complete blocks."""

    rows: np.ndarray  # (n, source·n), or (n, …) without a second time
    kind: type[CausalPast] | type[SymmetricPast] | None
    n_sources: int
    factors: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    largest: float = 0.0

    @staticmethod
    def of(path: tuple, leaf: jax.ShapeDtypeStruct) -> "Record":
        """Before the first step; noise that is fresh at every step has no second time."""
        name, rows, sources = path[-1].name, np.zeros(leaf.shape, leaf.dtype), has_sources(path)
        if not rows.size or not (sources or (rows.ndim == 2 and rows.shape[0] == rows.shape[1])):
            return Record(rows, None, 1)
        kind = SymmetricPast if name in SYMMETRIC else CausalPast if sources or name in CAUSAL else None
        return Record(rows, kind, 2 if sources else 1)

    def columns(self, low: int, high: int) -> np.ndarray:
        """Columns of every source, (n, source, column)."""
        return self.rows.reshape(len(self.rows), self.n_sources, -1)[..., low:high]

    def keep(self, values: np.ndarray, start: int, stop: int) -> None:
        """Write rows ``start`` to ``stop``."""
        self.largest = float(np.maximum(self.largest, np.abs(values).max(initial=0.0)))  # NaN stays
        if self.kind is None:
            self.rows[start:stop] = values
            return
        values = values.reshape(stop - start, self.n_sources, -1)[..., :stop]
        self.columns(0, stop)[start:stop] = values
        if self.kind is SymmetricPast:
            self.rows[:start, start:stop] = values[:, 0, :start].T

    def past(self, size: int, m: int, rank: int) -> CausalPast | SymmetricPast:
        """Room for ``size`` blocks, with those that are complete."""
        assert self.kind is not None
        s, dtype = self.n_sources, self.rows.dtype
        diagonal, left = np.zeros((size, m, s * m), dtype), np.zeros((size, m, rank), dtype)
        right = np.zeros((size, rank, s, size * m), dtype)
        for k, (u, v) in enumerate(self.factors):
            low, high, r = k * m, (k + 1) * m, u.shape[1]
            diagonal[k] = self.columns(low, high)[low:high].reshape(m, -1)
            left[k, :, :r], right[k, :r, :, :low] = u, v.reshape(r, s, low)
        return self.kind(*(jnp.asarray(a) for a in (diagonal, left, right.reshape(size * rank, -1))))

    def moving(self, n: int, m: int) -> Array:
        """Empty rows to be filled, or what has no second time so far."""
        if self.kind is not None:
            return jnp.zeros((m, self.n_sources * n), self.rows.dtype)
        more = max(0, n - len(self.rows)) if self.rows.size else 0
        return jnp.array(np.pad(self.rows, [(0, more)] + [(0, 0)] * (self.rows.ndim - 1))[:n])


def keep(records: list[Record], state: State, start: int, stop: int, m: int) -> None:
    """Rows ``start`` to ``stop``, the first ones of ``state``'s matrices, and the factors of complete blocks of ``m`` rows."""
    for record, leaf in zip(records, jax.tree.leaves(state), strict=True):
        values = np.asarray(leaf)
        record.keep(values[: stop - start] if record.kind else values[start:stop], start, stop)
    if bounded(records):
        for low in range(start, stop - m + 1, m):
            for record in (r for r in records if r.kind):
                block = record.columns(0, low)[low : low + m].reshape(m, -1)
                tolerance = ROUNDINGS * np.finfo(block.dtype).eps * record.largest
                record.factors.append(factors(block, tolerance, rank_of(records, record.kind)))


def bounded(records: list[Record]) -> bool:
    """Whether products of two entries are still numbers."""
    return all(record.largest < np.sqrt(np.finfo(record.rows.dtype).max) for record in records)


def rank_of(records: list[Record], kind: type | None) -> int:
    """Matrices of a kind share their rank: fewer compilations."""
    return max((u.shape[1] for record in records if record.kind is kind for u, _ in record.factors), default=RANK)


def factors(block: np.ndarray, tolerance: float, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Left (m, r) and right (r, n) whose product is ``block`` to ``tolerance`` in every entry, r at least ``rank``.

    Random directions find the range; the error is then measured, and more of them are taken if it is too large.
    """
    rank = min(rank, len(block))
    if not block.size:
        return np.zeros((len(block), rank), block.dtype), np.zeros((rank, 0), block.dtype)
    probes = np.random.default_rng(rank).standard_normal((block.shape[1], rank)).astype(block.dtype)
    left = np.linalg.qr(block @ probes)[0]
    right = left.T @ block
    if rank == len(block) or np.abs(left @ right - block).max() <= tolerance:
        return left, right
    return factors(block, tolerance, rank + MORE)
