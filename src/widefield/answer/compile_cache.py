"""Compiled programs on disk: a shape compiles once on a machine, not once in every process."""

import os
from pathlib import Path

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

from widefield.question import checks


def cache_compilations(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs in ``folder`` from this call on, by default in the user's cache folder, and return it.

    Any number of processes may share it, and it can be deleted at any time. JAX's own settings are changed for the whole process;
    numbers are not. The command line does this by itself, unless ``JAX_COMPILATION_CACHE_DIR`` names another folder.
    """
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise ValueError(f"`folder` must be a path or None, got {checks.shown(folder)}.")
    path = Path(platformdirs.user_cache_dir("widefield")) if folder is None else Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise ValueError(f"`folder` {checks.shown(str(path))} cannot be made: {error}.") from error
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    compilation_cache.reset_cache()  # JAX looks for the folder once, at its first compilation
    return path
