"""Kernel matrices made where they are factored: large tiles, written into one buffer on an accelerator."""

from typing import NamedTuple

import jax
import numpy as np

from widefield.answer.progress import bar
from widefield.gaussian import AbstractKernel, RefinedKernel, SeriesKernel
from widefield.question.network import Network
from widefield.solvers.on_device import DeviceMatrix
from widefield.theories.prior.core.blocks import device_tile, tile_pairs
from widefield.theories.prior.core.matrices import block_maker, in_flight

LAUNCHED = 4  # tiles under way on a device: more would only hold memory
TILES_AT_ONCE = 10 * LAUNCHED
SHARE_OF_DEVICE = 0.95


class DeviceMatrices(NamedTuple):
    """The matrices by field, the kernel that was needed and the largest error estimate of an average."""

    matrices: dict[str, DeviceMatrix]
    kernel: AbstractKernel
    error: float

    @property
    def finite(self) -> bool:
        """Whether all entries are numbers whose products are."""
        return all(np.isfinite(matrix.norm) for matrix in self.matrices.values())


def device_matrices(
    network: Network,
    kernel: AbstractKernel,
    q: np.ndarray,
    x: np.ndarray,
    state: int,
    fields: tuple[str, ...],
    rtol: float,
    progress: bool | None = False,
) -> DeviceMatrices:
    """``fields`` of a state with itself, over all samples of ``x``; pairs that miss ``rtol`` are done by quadrature."""
    tile = device_tile(len(x))
    matrices = {field: DeviceMatrix(len(x), tile, x.dtype) for field in fields}
    block_of = block_maker(network, kernel, q, x, tile, state, "tangent" in fields)
    refined, worst, pairs = None, 0.0, list(tile_pairs(len(x), tile))
    seconds = 1e-10 * len(x) ** 2 * network.depth
    with bar("prior", len(pairs), progress, seconds=seconds) as advance:
        for rows, columns, block in in_flight(pairs, block_of, LAUNCHED):
            if not float(block.error) <= rtol and isinstance(kernel, SeriesKernel):
                refined = refined or RefinedKernel(network.activation, kernel, rtol)
                block = block_of(rows, columns, refined)
            worst = float(np.maximum(worst, block.error))
            for field, matrix in matrices.items():
                matrix.write(
                    jax.device_put(getattr(block, field), matrix.device), rows.start // tile, columns.start // tile
                )
            advance(1)
    for matrix in matrices.values():
        matrix.seal()
    return DeviceMatrices(matrices, refined or kernel, worst)


def free_bytes() -> int | None:
    """Bytes that matrices may take on the accelerator; None where the host is the device, or does not know."""
    if jax.default_backend() == "cpu":
        return None
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return int(SHARE_OF_DEVICE * (stats["bytes_limit"] - stats["bytes_in_use"]))


def needed_bytes(n: int, n_matrices: int, spectral: bool, itemsize: int) -> int:
    """Bytes at the peak: padded matrices, the tiles on the way, and three more of one matrix for its eigenvectors."""
    tile = device_tile(n)
    side = -(-n // tile) * tile
    return itemsize * ((n_matrices + 3 * spectral) * side**2 + TILES_AT_ONCE * tile**2)
