"""Independent rows of work on all devices of this process."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def n_devices(rows: int) -> int:
    """As many of the devices as ``rows`` can be shared among evenly."""
    return max(n for n in range(1, len(jax.devices()) + 1) if rows % n == 0)


def on_devices(function: Callable[..., Any], n: int, *, shared: int = 0) -> Callable[..., Any]:
    """``function`` with the leading axis of its arguments and results split over ``n`` devices.

    The last ``shared`` arguments are given to every device whole. Each device runs the same program on its rows, which are not
    mixed: the numbers are those of one device. To be called inside of `jax.jit`.
    """
    if n == 1:
        return function
    mesh = Mesh(np.asarray(jax.devices()[:n]), "rows")
    split, whole = PartitionSpec("rows"), PartitionSpec()

    def spread(*arguments: Any) -> Any:
        own = len(arguments) - shared
        specs = (*(split,) * own, *(whole,) * shared)
        return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(*arguments)

    return spread
