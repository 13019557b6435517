"""Rows of kernels times weights, tile by tile: what a prediction reads of a kernel, of which nothing is kept."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.progress import bar
from widefield.gaussian import AbstractKernel, RefinedKernel, SeriesKernel
from widefield.question.network import Network
from widefield.theories.prior.core import recursion
from widefield.theories.prior.core.blocks import TILES, device_tile, row_tile, tile_size
from widefield.theories.prior.core.matrices import NodeTile, device_of, meet, node_tile, put

_weighted_rows = jax.jit(recursion.weighted_rows, static_argnames=("sharing", "states_", "tangent", "dtype"))


def weighted_rows(
    network: Network,
    kernel: AbstractKernel,
    q: np.ndarray,
    x: np.ndarray,
    rows: range,
    columns: range,
    weights: np.ndarray,
    states: Sequence[int],
    states_: tuple[int, ...],
    *,
    tangent: bool,
    rtol: float,
    progress: bool | None = False,
) -> tuple[np.ndarray, float]:
    """Σ K^{ab}_{αβ} W^b_β over the states and samples of the columns, and the largest error estimate of an average.

    K is the covariance of the readouts or, with ``tangent``, the tangent kernel; ``weights`` are (state\\_, sample\\_,
    weight), the sums (state, sample, weight).
    """
    tile, tile_ = _tiles(network.depth if len(states_) > 1 else 1, len(rows), len(columns))
    variances, sharing = recursion.variances_of(network, x.dtype), recursion.sharing_of(network)
    options: dict[str, Any] = {"states_": states_, "tangent": tangent, "dtype": x.dtype.name}
    refined = RefinedKernel(network.activation, kernel, rtol) if isinstance(kernel, SeriesKernel) else None
    nodes = _node_tiles(kernel, q, x, columns, tile_)
    parts = _on_their_devices(nodes, weights.astype(x.dtype), tile_)

    def product(row: NodeTile, j: int, plain: bool = False) -> tuple[Any, Any]:
        left, right = meet(row, nodes[j])
        call = recursion.weighted_rows if plain else _weighted_rows
        averages = refined if plain and refined is not None else kernel
        pair = left.table, right.table, left.x, right.x
        return call(averages, variances, sharing, *pair, parts[j], jnp.asarray(states), **options)

    sums, worst = np.zeros((len(states), len(rows), weights.shape[-1]), x.dtype), 0.0
    starts = range(0, len(rows), tile)
    with bar("kernel rows", len(starts), progress, seconds=1e-8 * len(rows) * len(columns) * len(states)) as advance:
        for start in starts:
            (row,) = _node_tiles(kernel, q, x, rows[start : start + tile], tile)
            for j, (value, error) in enumerate([product(row, j) for j in range(len(nodes))]):
                if refined is not None and not float(error) <= rtol:
                    with jax.disable_jit():
                        value, error = product(row, j, plain=True)
                worst = float(np.maximum(worst, error))  # unlike max, keeps a NaN
                sums[:, start : start + tile] += np.asarray(value)[:, : len(rows) - start]
            advance(1)
    return sums, worst


def _node_tiles(kernel: AbstractKernel, q: np.ndarray, x: np.ndarray, samples: range, tile: int) -> list[NodeTile]:
    these = slice(samples.start, samples.stop)
    return [node_tile(kernel, q[:, these], x[these], start, tile) for start in range(0, len(samples), tile)]


def _on_their_devices(nodes: list[NodeTile], weights: np.ndarray, tile: int) -> list[jax.Array]:
    """The weights of every tile of columns; samples that only fill the last tile have none."""
    missing = len(nodes) * tile - weights.shape[1]
    parts = np.split(np.pad(weights, ((0, 0), (0, missing), (0, 0))), len(nodes), axis=1)
    return [put(jnp.asarray(part), device_of(node)) for part, node in zip(parts, nodes, strict=True)]


def _tiles(n_states: int, n_rows: int, n_columns: int) -> tuple[int, int]:
    if jax.default_backend() != "cpu" and n_states == 1:
        return device_tile(n_rows), device_tile(n_columns)
    return row_tile(n_rows, n_states), min(tile_size(n_columns, n_states), TILES[-1])
