"""What all tests share."""

import gc
from pathlib import Path

import jax
import pytest

MAPS = Path("/proc/self/maps")
MANY = 30_000  # Linux allows 65530 memory maps a process; a compiled function takes some tens, and one too many aborts


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps():
    """Compiled functions are dropped when a worker has gathered many of them."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY:
        jax.clear_caches()
        gc.collect()
