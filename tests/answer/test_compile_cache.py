"""What one process has compiled, the next one finds."""

import os
import subprocess
import sys

import pytest

import widefield as wf

COUNT = """
import sys
import jax, jax.monitoring
import widefield as wf
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
jax.jit(lambda x: x + 2)(1.0)  # before, as in a notebook
print(wf.cache_compilations(*sys.argv[1:]))
jax.jit(lambda x: x - 3)(1.0)
print(hits.count("/jax/compilation_cache/cache_hits"))
"""


def run(*argv, **variables):
    env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"} | variables
    child = subprocess.run([sys.executable, "-c", COUNT, *argv], env=env, capture_output=True, text=True, check=True)
    folder, hits = child.stdout.split("\n")[:2]
    return folder, int(hits)


def test_the_next_process_compiles_nothing(tmp_path):
    folder = str(tmp_path / "new" / "folder")
    assert run(folder) == (folder, 0)
    assert run(folder)[1] >= 1


def test_the_user_has_a_folder_for_it(tmp_path):
    folder, _ = run(XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path))
    assert folder.startswith(str(tmp_path))
    assert "widefield" in folder


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`folder`.*cannot be made"):
        wf.cache_compilations(tmp_path / "file" / "x")
