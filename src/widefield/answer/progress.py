"""Progress: one bar on a terminal, a line now and then where the output is redirected."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from widefield.question import checks

LONG = 2.0  # seconds: what is shorter shows nothing unless asked
PAUSE = 10.0  # seconds between two lines
_SHOWN: ContextVar[bool] = ContextVar("_SHOWN", default=False)
Update = Callable[[float, float, str], None]  # how much is done, of how much, and what is under way


@contextmanager
def bar(title: str, total: int, shown: bool | None, seconds: float) -> Iterator[Callable[..., None]]:
    """Yields a function to call with the number of items finished and, where it is to change, the title.

    ``shown=None`` shows the bar on an interactive terminal when the run is estimated to take more than `LONG` seconds.
    """
    from rich.console import Console

    if shown is not None:
        checks.flag("progress", shown)
    done = 0

    def advance(finished: int, title: str = title) -> None:
        nonlocal done
        done += finished
        update(done, total, title)

    console = Console(stderr=True)
    with _display(console, console.is_terminal and seconds > LONG if shown is None else shown, False) as update:
        update(0, total, title)
        yield advance


@contextmanager
def stages(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yields a function to call with how much is done, of how much, and what is under way."""
    from rich.console import Console

    with _display(Console(stderr=True), True, True) as update:
        yield lambda done, total, what: update(done, total, f"{title}: {what}")


@contextmanager
def _display(console, shown: bool, transient: bool) -> Iterator[Update]:
    """One display at a time: what runs inside of it shows nothing of its own."""
    if not shown or _SHOWN.get():
        yield lambda done, total, what: None
        return
    from rich import progress as parts

    token = _SHOWN.set(True)
    try:
        if console.is_terminal:
            words, count = parts.TextColumn("{task.description}"), parts.MofNCompleteColumn()
            left = parts.TimeRemainingColumn(), parts.TextColumn("left")
            with parts.Progress(
                words, parts.BarColumn(), count, *left, console=console, transient=transient
            ) as progress:
                task = progress.add_task("", total=None)
                yield lambda done, total, what: progress.update(task, completed=done, total=total, description=what)
        else:
            lines = _Lines(console)
            yield lines
            if not transient:
                lines.tell()
    finally:
        _SHOWN.reset(token)


class _Lines:
    """How far it is, once in a while."""

    def __init__(self, console):
        self.console, self.told, self.line, self.done = console, time.monotonic(), "", 0.0

    def __call__(self, done: float, total: float, what: str) -> None:
        self.line = f"{what}: {done:g}/{total:g}"
        since = time.monotonic() - self.told
        if since >= PAUSE:
            if self.done < done < total:
                self.line += f", about {since * (total - done) / (done - self.done):.0f} s left"
            self.done = done
            self.tell()

    def tell(self) -> None:
        if self.line:
            self.console.print(self.line, highlight=False, soft_wrap=True)
        self.told, self.line = time.monotonic(), ""
