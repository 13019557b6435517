"""`widefield.sweep`: a call at every point of a grid, as one answer."""

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from widefield.answer.certificate import Certificate, SolveError
from widefield.answer.jobs import check_client
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.sweep import workers as many
from widefield.sweep.grid import axes_of, check_over, points_of
from widefield.sweep.point import RAISED, Point, ask
from widefield.sweep.question import Changes, Question, described
from widefield.sweep.store import Store
from widefield.sweep.table import Table

if TYPE_CHECKING:
    from distributed import Client

NOUNS = ("network", "task", "teacher", "training")


def sweep(
    call: str | Callable[..., Any],
    *question: Any,
    over: Mapping[str, Any],
    store: str | os.PathLike | None = None,
    retry: bool = False,
    client: "Client | None" = None,
    workers: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Solution:
    """Ask ``call`` at every point of a grid: one answer with the swept dims in front and a ``status`` at every point.

    ``call`` is a theory, a simulator or what is derived from them, such as ``wf.posterior``, or its name; ``question`` and
    ``options`` are what it takes. ``over`` names what is varied, each with a list of values or, where these are no numbers or
    words, a dict of names and values: an option (``"temperature"``, ``"width"``, ``"seed"``), a field of a noun
    (``"network.weight_variance"``, ``"network.depth"``, ``"training.rate"``), a whole noun (``"network"``), or ``"labels"``, a
    factor on the labels of the task. A readout bias that is equal to the bias follows ``"network.bias_variance"``.

    Fields: those of the call, padded with NaN where points differ in size; ``status`` and ``message``; ``residual`` and
    ``error`` of every point where they exist. Of a `Transition` its points, NaN where there is none, beside its curve. A
    point that fails costs no other: its fields are NaN (``throw=False`` keeps what it reached), the certificate is
    *incomplete* and says which. Where no point has an answer, the first one's error is raised.

    ``store`` is a folder in which every finished point is a file (`widefield.load` reads it): a sweep that was killed goes on
    where it was, to the same bits, and values may be added. A store of another question is refused, a damaged file is made
    again; points that failed are asked again only with ``retry``.

    ``workers`` is a number of processes on this machine, for this call; ``client`` a `dask.distributed.Client`, for any number
    of machines. The answers are the same bits for any number of workers, which have one thread each. The work of a lost
    worker is done by another; where none is left, the call ends, and the store has what was finished.

    Limits: 100 000 points. In process, points run one after the other, with the threads of this process, and share what was
    compiled for their shape.
    """
    begun = time.perf_counter()
    checks.flag("retry", retry)
    if progress is not None:
        checks.flag("progress", progress)
    n_workers = None if workers is None else checks.integer("workers", workers, 1, many.MOST_WORKERS)
    if client is not None:
        check_client(client)
        if n_workers is not None:
            raise ValueError("`workers` makes a client of its own: give `client` or `workers`, not both.")
    asked = Question.of(call, question, options, tuple(check_over(over)))
    axes = axes_of(asked, over)
    fixed = {name: described(value) for name, value in asked.arguments.items() if name not in NOUNS}
    table, left = Table(axes), dict(enumerate(points_of(axes)))
    notes: list[str] = []
    kept = None if store is None else Store(store, asked, tuple(over))
    names = {} if kept is None else {index: kept.name_of(changes) for index, changes in left.items()}
    if kept is not None:
        left = _unfinished(kept, names, table, retry, left, notes)
    with ExitStack() as stack:
        title = f"sweep of {asked.call}"
        advance = stack.enter_context(bar(title, len(left), progress, float(len(left))))
        if n_workers is not None and left:
            client = stack.enter_context(many.local_client(min(n_workers, len(left))))
        for index, point in stack.enter_context(closing(_points(client, asked, left))):
            if kept is not None:
                kept.write(names[index], left[index], point)
            table.add(index, point)
            advance(1, f"{title}, {table.n_failed} failed" if table.n_failed else title)
    made_with = {"call": asked.call, "over": {axis.key: axis.labels for axis in axes}, **fixed}
    return _answer(asked, table, made_with, notes, begun)


def _points(client: "Client | None", asked: Question, left: Mapping[int, Changes]) -> Generator[tuple[int, Point]]:
    """Points as they are finished."""
    if client is not None:
        yield from many.distributed_points(client, asked, left)
        return
    for index, changes in left.items():
        yield index, ask(asked, changes)


def _unfinished(
    kept: Store, names: Mapping[int, str], table: Table, retry: bool, points: dict[int, Changes], notes: list[str]
) -> dict[int, Changes]:
    """The points that are not in the store, once those that are stand in the table."""
    left = {}
    for index, changes in points.items():
        point, damage = kept.read(names[index])
        notes += [damage] * bool(damage)
        if point is None or (retry and point.failed):
            left[index] = changes
        else:
            table.add(index, point)
    if table.points:
        notes.append(f"{len(table.points)} of {len(points)} points were in the store")
    return left


def _answer(
    asked: Question, table: Table, made_with: Mapping[str, Any], notes: Sequence[str], begun: float
) -> Solution:
    """The table as a solution; an error where there is nothing in it."""
    if not table.fields:
        where, point = next(table.failed())
        raise RAISED.get(point.status, SolveError)(f"{point.message} (at {where}; no point of the sweep has an answer)")
    fields, coords = table.arrays()
    certificate = Certificate(
        "sweep",
        table.checks(),
        seed=made_with.get("seed"),
        wall_time=time.perf_counter() - begun,
        options=dict(made_with),
        notes=(*table.notes(), *notes),
        left_out=table.left_out,
    )
    nouns = table.question | {name: asked.arguments[name] for name in NOUNS if name in asked.arguments}
    return make_solution(fields, certificate, coords=coords, throw=False, **nouns)
