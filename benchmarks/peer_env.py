"""The peer's environment, built when asked, and its cases, each run in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "peer-requirements.txt"

ONE_THREAD_FLOAT64_CPU = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "NPROC": "1",  # the size of XLA's thread pool: the flags above leave one thread per core
    "OMP_NUM_THREADS": "1",
    "JAX_ENABLE_X64": "1",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def python_3_11() -> str:
    """A Python that the peer's pinned versions have wheels for."""
    found = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
    if found is None:
        raise RuntimeError("the peer's environment needs Python 3.11: put python3.11 on PATH")
    return found


def build(folder: str | Path) -> Path:
    """The Python of the peer's environment in ``folder``, made with venv and pip unless present."""
    folder = Path(folder).absolute()
    python, installed = folder / "bin" / "python", folder / REQUIREMENTS.name
    if installed.exists() and installed.read_text() == REQUIREMENTS.read_text():
        return python
    subprocess.run([python_3_11(), "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", REQUIREMENTS], check=True)
    shutil.copy(REQUIREMENTS, installed)  # last, so that an interrupted build is taken up again
    return python


def run_case(python: str | Path, case: str, *, how: str = "jit", repeats: int = 3) -> dict:
    """The report of ``peer.py`` on ``case``, with the first samples' ``nngp`` and ``ntk``.

    ``status`` is "ok" or "out of memory"; the latter has neither times nor kernels.
    """
    with tempfile.TemporaryDirectory() as scratch:
        kernels = Path(scratch) / "kernels.npz"
        command = [python, "-E", HERE / "peer.py", case, "--how", how]
        command += ["--repeats", str(repeats), "--kernels", kernels]
        finished = subprocess.run(command, env=os.environ | ONE_THREAD_FLOAT64_CPU, capture_output=True, text=True)
        if finished.returncode:
            raise RuntimeError(f"the peer failed on {case}:\n{finished.stderr[-2000:]}")
        report = json.loads(finished.stdout.splitlines()[-1])
        if report["status"] == "ok":
            with np.load(kernels) as arrays:
                report |= arrays
        return report
