"""Fields of a simulation: their dims and shapes, the bytes they take, and the arrays that hold them."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

Shape = tuple[tuple[str, ...], tuple[int, ...]]  # dims and lengths
Layout = dict[str, Shape]  # of one replicate's share of every field, the most wanted first


def joined(*parts: Shape) -> Shape:
    """Dims and lengths one after the other."""
    return sum((dims for dims, _ in parts), ()), sum((shape for _, shape in parts), ())


def n_bytes(layout: Layout, replicates: int) -> dict[str, int]:
    """What every field takes."""
    return {name: 8 * replicates * math.prod(shape) for name, (_, shape) in layout.items()}


def labeled(layout: Layout, arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """``arrays``, each with a leading replicate axis, beside their dims."""
    return {name: (("replicate", *layout[name][0]), value) for name, value in arrays.items()}


def batch_size(total: int, most: int) -> int:
    """The size of the fewest batches of at most ``most`` that cover ``total``, as equal as they can be."""
    n_batches = -(-total // min(most, total))
    return -(-total // n_batches)


def blocks(total: int, size: int) -> Iterator[slice]:
    """Slices of at most ``size`` that cover ``total``."""
    return (slice(first, min(first + size, total)) for first in range(0, total, size))
