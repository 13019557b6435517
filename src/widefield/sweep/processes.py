"""Workers on this machine: processes of one thread each, which end with the scheduler, which ends with this process."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import dask
import distributed
import jax
from distributed.deploy.subprocess import SubprocessWorker

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
XLA_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
QUIET = {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical"}
CACHE = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES",
)


class OwnProcess(SubprocessWorker):
    """A worker, and the nanny that starts it again, in a session of their own: Ctrl-C is for the process that waits.

    It does not import the script of this process again, which would need the guard of multiprocessing there.
    """

    async def _start(self) -> None:
        options = {"nthreads": 1, "memory_limit": 0, "dashboard": False, "env": environment()}
        spec = json.dumps({"cls": "distributed.Nanny", "opts": options})
        command = (sys.executable, "-m", "dask", "spec", self.scheduler, "--spec", spec)
        self.process = await asyncio.create_subprocess_exec(*command, env=os.environ | QUIET, start_new_session=True)


def environment() -> dict[str, str]:
    """Of a worker: one thread, so that the bits are those of any number of workers, and the compile cache of this process."""
    settings = {name: str(getattr(jax.config, name.lower())) for name in CACHE if getattr(jax.config, CACHE[0].lower())}
    return {**ONE_THREAD, **settings, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {XLA_ONE_THREAD}".strip()}


@contextmanager
def local_client(n_workers: int) -> Iterator[distributed.Client]:
    """A client of as many processes, for as long as it is used."""
    worker = {"cls": OwnProcess, "options": {}}
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": ":0"},
    }
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "60s"}),
        distributed.SpecCluster({i: worker for i in range(n_workers)}, scheduler, worker, silence_logs=50) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client
