"""Random numbers: one stream per network and purpose, so that no result depends on how networks are batched."""

from collections.abc import Iterable, Sequence

import numpy as np

HIDDEN, READOUT, CHAIN, DATA, NOISE = range(5)  # purposes
PROBE = 1000  # + step: the sources of responses


def streams(seed: int, replicates: Iterable[int], purpose: int) -> list[np.random.Generator]:
    """One generator per replicate; SFC64 is NumPy's fastest for normal numbers."""
    seeds = (np.random.SeedSequence(seed, spawn_key=(r, purpose)) for r in replicates)
    return [np.random.Generator(np.random.SFC64(s)) for s in seeds]


def normals(rngs: Sequence[np.random.Generator], *shape: int, out: np.ndarray | None = None) -> np.ndarray:
    """Standard normal numbers of shape (replicate, \\*shape), each row from its own stream."""
    out = np.empty((len(rngs), *shape)) if out is None else out
    for rng, row in zip(rngs, out, strict=True):
        rng.standard_normal(out=row)
    return out
