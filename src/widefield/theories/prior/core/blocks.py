"""Whole kernel matrices, block by block of samples: which blocks, and where their pieces go."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TILES = (8, 16, 32, 64, 128, 256)
DEVICE_TILES = (512, 1024, 2048, 4096)
ENTRIES = 2**20  # of one state's row of blocks: 8 MB, so that a block stays near the caches


@dataclass(frozen=True)
class Target:
    """An array to fill: a field of the blocks at given states and samples (``None`` for the last state alone).

    ``joint`` arrays lie in memory as one matrix over (state, sample).
    """

    field: str
    states: Sequence[int] | None
    states_: Sequence[int] | None
    samples: range
    samples_: range
    joint: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the filled array."""
        pairs = len(self.samples), len(self.samples_)
        return pairs if self.states is None else (len(self.states), len(self.states_ or ()), *pairs)

    def empty(self, dtype: Any) -> np.ndarray:
        """The array before it is filled."""
        if not self.joint:
            return np.full(self.shape, np.nan, dtype)
        s, s_, n, n_ = self.shape
        return np.full((s, n, s_, n_), np.nan, dtype).transpose(0, 2, 1, 3)

    def reads(self, rows: range, columns: range) -> bool:
        """Whether a block of samples, or its transpose, has entries of the array."""
        meet = lambda a, b: a.start < b.stop and b.start < a.stop  # noqa: E731
        one, other = (self.samples, self.samples_), (self.samples_, self.samples)
        return any(meet(a, rows) and meet(b, columns) for a, b in (one, other))


def common_state(depth: int, targets: Iterable[Target]) -> int | None:
    """The one state whose blocks with itself are all that is read, if there is one."""
    pairs = {((depth - 1,),) * 2 if t.states is None else (tuple(t.states), tuple(t.states_ or ())) for t in targets}
    (states, states_), *others = pairs
    return None if others or len(states) > 1 or states != states_ else states[0]


def tile_size(n_samples: int, n_states: int) -> int:
    """The tile, of few allowed sizes so that few are compiled, that wastes least on padding and on calls."""
    allowed = [t for t in TILES if t == TILES[0] or n_states * t * t <= ENTRIES]

    def cost(tile: int) -> float:
        n_tiles = -(-n_samples // tile)
        return n_tiles * (n_tiles + 1) / 2 * (tile * tile + 4000 / n_states)

    return min(allowed, key=cost)


def device_tile(n_samples: int) -> int:
    """The tile of an accelerator: the larger the better, as long as little is padded."""
    return min(DEVICE_TILES, key=lambda tile: (-(-n_samples // tile) * tile) ** 2 * (1 + 256 / tile))


def row_tile(n_samples: int, n_states: int) -> int:
    """The tile of few rows, which are not those of the columns."""
    largest = tile_size(10**6, n_states)
    return next((t for t in TILES if n_samples <= t <= largest), largest)


def tile_pairs(n_samples: int, tile: int) -> Iterator[tuple[range, range]]:
    """Pairs of sample ranges that cover the upper triangle."""
    firsts = range(0, n_samples, tile)
    ranges = [range(s, min(s + tile, n_samples)) for s in firsts]
    return ((rows, columns) for i, rows in enumerate(ranges) for columns in ranges[i:])


def place_block(
    targets: Mapping[str, Target],
    arrays: dict[str, np.ndarray],
    block: Callable[[str], np.ndarray],
    rows: range,
    columns: range,
) -> None:
    """Write the pieces of one block, (state, state_, sample, sample_) or (sample, sample_), into every target.

    By symmetry a block of rows × columns is also, transposed in states and samples, the block of columns × rows.
    """
    for name, target in targets.items():
        values = block(target.field)
        _place(arrays[name], target, values, rows, columns)
        if rows != columns:
            axes = (1, 0, 3, 2) if values.ndim == 4 else (1, 0)
            _place(arrays[name], target, values.transpose(axes), columns, rows)


def _place(array: np.ndarray, target: Target, values: np.ndarray, rows: range, columns: range) -> None:
    into, out_of = [], []
    for samples, have in ((target.samples, rows), (target.samples_, columns)):
        first, last = max(samples.start, have.start), min(samples.stop, have.stop)
        if first >= last:
            return
        into.append(slice(first - samples.start, last - samples.start))
        out_of.append(slice(first - have.start, last - have.start))
    if values.ndim == 4 and target.states is None:
        values = values[-1, -1]
    elif values.ndim == 4:
        for axis, states in enumerate((target.states, target.states_)):
            if states is not None and tuple(states) != tuple(
                range(values.shape[axis])
            ):  # all, in order, without a copy
                values = np.take(values, states, axis)
    array[..., into[0], into[1]] = values[..., out_of[0], out_of[1]]
