"""Pieces of work that leave their results on a disk: one after the other in this process, or on the workers of a cluster."""

import queue
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from threadpoolctl import threadpool_limits

LOOK = 0.5  # seconds between two looks at the cluster
PATIENCE = 60.0  # seconds without any worker, or without the scheduler, before a call gives up
GO_ON = "What is finished is kept, and the same call goes on from there."


class Job(NamedTuple):
    """A call that may be repeated; it begins when those named in ``after`` have ended. What it returns is small."""

    name: str
    call: Callable[[], Any]
    after: tuple[str, ...] = ()


def check_client(client: Any) -> None:
    """Refuse what is not a client of dask, or one that cannot be used."""
    if not any(
        kind.__module__.startswith("distributed.") and kind.__name__ == "Client" for kind in type(client).__mro__
    ):
        raise ValueError(f"`client` must be a dask.distributed.Client, got {type(client).__name__}.")
    if client.asynchronous:
        raise ValueError("`client` must not be asynchronous.")
    if client.status != "running":
        raise ValueError(f"`client` is {client.status}: it must be connected to a scheduler.")


def run(jobs: Sequence[Job], client: Any, advance: Callable[[int], None]) -> dict[str, Any]:
    """What the jobs return, by name. Each stands behind those that it waits for; the first error ends all."""
    results = {}
    with threadpool_limits(1, "blas"):  # what was before comes back at its end
        if client is not None:
            return _on_workers(jobs, client, advance)
        for job in jobs:
            results[job.name] = _perform(job.call)
            advance(1)
        return results


def _perform(call: Callable[[], Any], *after: Any) -> Any:
    """One job, with one thread of BLAS in this process from now on: a sum over threads has other bits."""
    del after
    threadpool_limits(1, "blas")
    with jax.enable_x64(True):
        return call()


def _on_workers(jobs: Sequence[Job], client: Any, advance: Callable[[int], None]) -> dict[str, Any]:
    """Dask begins again what a lost worker was doing; no file is made twice that is whole."""
    from distributed.client import CancelledError, ClosedClientError
    from distributed.comm import CommClosedError

    call_name, futures, results = secrets.token_hex(4), dict[str, Any](), dict[str, Any]()
    ended: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    try:
        for job in jobs:
            after, key = [futures[name] for name in job.after], f"widefield-{call_name}-{job.name}"
            futures[job.name] = client.submit(_perform, job.call, *after, key=key, pure=False)
            futures[job.name].add_done_callback(lambda future, name=job.name: ended.put((name, future)))
        seen = time.monotonic()
        while len(results) < len(jobs):
            try:
                name, future = ended.get(timeout=LOOK)
            except queue.Empty:
                seen = _last_seen(client, seen)
                continue
            results[name], seen = _result(future), time.monotonic()
            advance(1)
        return results
    except (CancelledError, ClosedClientError, CommClosedError):
        raise RuntimeError(f"`client` was closed, or its scheduler, before the work was done. {GO_ON}") from None
    finally:
        if client.status == "running":
            client.cancel(list(futures.values()), force=True)


def _last_seen(client: Any, seen: float) -> float:
    """When there was a worker the last time; a `RuntimeError` where that is long ago."""
    if client.status in ("closing", "closed"):
        raise RuntimeError(f"`client` was closed before the work was done. {GO_ON}")
    if client.status == "running" and client.ncores():
        return time.monotonic()
    if time.monotonic() - seen > PATIENCE:
        what = "has had no worker" if client.status == "running" else "has not been connected to its scheduler"
        raise RuntimeError(f"`client` {what} for {PATIENCE:.0f} s. {GO_ON}")
    return seen


def _result(future: Any) -> Any:
    from distributed.scheduler import KilledWorker

    try:
        return future.result(timeout=PATIENCE)
    except KilledWorker as error:
        lost = f"Workers of `client` die, again and again, at {error.task}: their logs say why, often it is memory."
        raise RuntimeError(f"{lost} {GO_ON}") from None
    except FileNotFoundError as error:
        unseen = "a worker of `client` does not see this file; `store` must be one folder for all machines"
        raise FileNotFoundError(error.errno, unseen, error.filename) from None
