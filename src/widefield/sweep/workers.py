"""Points on many processes or machines, by dask.distributed."""

import queue
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from widefield.sweep.point import BROKEN, Point, ask
from widefield.sweep.question import Changes, Question

if TYPE_CHECKING:
    from distributed import Client

MOST_WORKERS = 1024
PATIENCE = 60.0  # seconds without any worker until a sweep gives up
LOOK = 1.0  # seconds between two looks at whether anybody still works


@contextmanager
def local_client(n_workers: int) -> "Iterator[Client]":
    """A client of as many processes on this machine."""
    try:
        from widefield.sweep import processes
    except ImportError as error:
        raise ImportError("`workers` needs dask.distributed: pip install 'widefield[cluster]'.") from error
    with processes.local_client(n_workers) as client:
        yield client


def _given(question: Question) -> Question:
    return question


def distributed_points(
    client: "Client", question: Question, asked: Mapping[int, Changes]
) -> Iterator[tuple[int, Point]]:
    """Points as they are finished. The question travels once; dask gives what a lost worker had to another one."""
    name = f"widefield-{uuid.uuid4().hex}"
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    futures: dict[Any, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            base = client.submit(_given, question, key=f"{name}-question", pure=False)
            for index, changes in asked.items():
                future = client.submit(ask, base, changes, key=f"{name}-{index}", pure=False)
                futures[future.key] = index, future
                future.add_done_callback(done.put)
        while futures:
            future = _next(client, done)
            index, _ = futures.pop(future.key)
            yield index, _result(future, client)
    finally:
        with suppress(Exception):  # a client that is closed has nothing left to give up
            client.cancel([future for _, future in futures.values()], force=True)


def _next(client: "Client", done: "queue.SimpleQueue[Any]") -> Any:
    """The next future that is done; an error where nobody is left who could do one."""
    alone = time.monotonic()
    while True:
        try:
            return done.get(timeout=LOOK)
        except queue.Empty:
            pass
        if client.status != "running":
            raise _gone(f"is {client.status}")
        if client.nthreads():
            alone = time.monotonic()
        elif time.monotonic() - alone > PATIENCE:
            raise _gone(f"has had no workers for {PATIENCE:.0f} s")


def _result(future: Any, client: "Client") -> Point:
    """A point, or why its task never ended: a worker that died of it several times, or a question that cannot be sent."""
    if future.status == "finished":
        return future.result()
    if future.status == "error":
        error = future.exception()
        return Point(BROKEN, " ".join(f"{type(error).__name__}: {error}".split()))
    raise _gone(f"is {client.status}, and a point was {future.status}")


def _gone(why: str) -> RuntimeError:
    return RuntimeError(
        f"`client` {why}: the sweep ends here. With store=, finished points are kept: the same call goes on from them."
    )
