"""What all tests share: shapes and axes that are checked, one compile cache for a run, few memory maps."""

import gc
import os
import tempfile
from pathlib import Path

import jax
import jaxtyping
import pytest

import tests.shapes

jaxtyping.jaxtyped = tests.shapes.where_annotated  # what the hook puts on every function
jaxtyping.install_import_hook("widefield", "tests.shapes.checked")

CACHE = "JAX_COMPILATION_CACHE_DIR"
MAPS = Path("/proc/self/maps")
MANY = 30_000  # Linux allows 65530 memory maps a process; a compiled function takes some tens, and one too many aborts


def pytest_configure(config):
    """Axes are written, not promoted; the workers of a run share what they compile, in a folder that goes with it."""
    jax.config.update("jax_numpy_rank_promotion", "raise")
    if CACHE not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="widefield-compiled-")
        os.environ[CACHE] = folder.name
        config.add_cleanup(folder.cleanup)
    jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps():
    """Compiled functions are dropped when a worker has gathered many of them."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY:
        jax.clear_caches()
        gc.collect()
