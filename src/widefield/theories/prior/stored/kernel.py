"""The kernel matrices of a network in tiles of a store, and how each tile is made."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from widefield.answer.certificate import Status
from widefield.answer.files import network_dict
from widefield.answer.jobs import Job
from widefield.answer.tiles import Known, TileStore, digest_of, open_store
from widefield.question.difference import GRID
from widefield.question.network import Network
from widefield.theories.prior import core
from widefield.theories.prior.core import Target

FIELDS = {"output": "readout", "ntk": "tangent"}
SMALLEST, LARGEST = 256, 4096  # rows of a tile
TILES = 16  # along a side, where the sizes allow it: enough for many workers, few enough for products to be large


class Unsolved(Exception):
    """What went wrong in a tile, as a status and notes."""

    def __init__(self, status: Status, *notes: str):
        super().__init__(status, *notes)
        self.status, self.notes = status, notes


@dataclass(frozen=True)
class StoredKernel:
    """``output`` and ``ntk`` of a network, tile by tile; the tile in row i and column j < i stands for both its places."""

    network: Network
    store: TileStore
    inputs: str
    n_samples: int
    tile: int
    rtol: float
    dtype: str

    @property
    def n_tiles(self) -> int:
        """Tiles along a side."""
        return -(-self.n_samples // self.tile)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Rows and columns of tiles on and below the diagonal, column after column."""
        return [(i, j) for j in range(self.n_tiles) for i in range(j, self.n_tiles)]

    def keep_inputs(self, x: np.ndarray) -> dict[str, Known]:
        """Put the training inputs into the store."""
        return keep_rows(self.store, self.inputs, x, self.tile)

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """An array over samples in blocks of rows as large as the tiles."""
        return [rows[start : start + self.tile] for start in range(0, self.n_samples, self.tile)]

    def read(self, field: str, i: int, j: int) -> np.ndarray:
        """The tile in row i and column j of a matrix."""
        return self.store.read(f"{field}/{i:04d}-{j:04d}")[0] if i >= j else self.read(field, j, i).T

    def jobs(self, fields: tuple[str, ...]) -> list[Job]:
        """The jobs that make all tiles of the fields."""
        return [Job(f"kernel-{i}-{j}", partial(self.make, fields, i, j)) for i, j in self.pairs]

    def make(self, fields: tuple[str, ...], i: int, j: int) -> dict[str, Known]:
        """Make the tiles (i, j) that are not there: both fields at once, for each of their pairs is one march."""
        names = {field: f"{field}/{i:04d}-{j:04d}" for field in fields}

        def march() -> dict[str, tuple[np.ndarray, Known]]:
            left, right = (self.store.read(f"{self.inputs}/{k:04d}")[0] for k in (i, j))
            rows, columns = range(len(left)), range(self.tile, self.tile + len(right))
            x = np.concatenate([padded(left, self.tile), padded(right, self.tile)])
            targets = {
                names[field]: Target(FIELDS[field], None, None, rows, columns if i > j else rows) for field in fields
            }
            arrays, known = fill(self.network, x, targets, self.rtol)
            return {name: (array, known) for name, array in arrays.items()}

        return self.store.ensure(list(names.values()), march)


def fill(
    network: Network, x: np.ndarray, targets: dict[str, Target], rtol: float
) -> tuple[dict[str, np.ndarray], Known]:
    """Arrays for all targets and what is known about them; raises `Unsolved` where they are not what was asked for."""
    matrices = core.fill_matrices(network, x, targets, rtol)
    if matrices.failure is not None:
        raise Unsolved(matrices.failure, *matrices.notes)
    return matrices.arrays, {"error": matrices.error, "notes": list(matrices.notes)}


def open_kernel(folder: Any, network: Network, x: np.ndarray, rtol: float) -> StoredKernel:
    """The kernel of training inputs ``x`` in its store."""
    phi = network.activation
    values = (
        [] if phi.is_named else np.round(np.asarray(phi(GRID), float), 9).tolist()
    )  # else it is known by its text alone
    tile = tile_rows(len(x))
    question = {"network": network_dict(network) | {"values": values}, "x": digest_of(x)}
    store = open_store(folder, question | {"dtype": x.dtype.name, "rtol": rtol, "tile": tile})
    return StoredKernel(network, store, "inputs", len(x), tile, rtol, x.dtype.name)


def padded(rows: np.ndarray, length: int) -> np.ndarray:
    """The rows with repetitions of the last: arrays of one shape share what is compiled."""
    return rows[np.minimum(np.arange(length), len(rows) - 1)]


def keep_rows(store: TileStore, name: str, x: np.ndarray, length: int) -> dict[str, Known]:
    """Put inputs into the store, in blocks of that many, where every worker finds them."""
    blocks = {
        f"{name}/{k:04d}": (x[k * length : (k + 1) * length], dict[str, Any]()) for k in range(-(-len(x) // length))
    }
    return store.ensure(list(blocks), lambda: blocks)


def tile_rows(n_samples: int) -> int:
    """Rows of a tile, a power of two that the number of samples alone decides."""
    return int(min(LARGEST, max(SMALLEST, 2 ** np.ceil(np.log2(n_samples / TILES)))))
