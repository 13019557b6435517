"""A progress bar that says what remains."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG = 3.0


@contextmanager
def bar(title: str, total: int, shown: bool | None, seconds: float) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of items finished.

    ``shown=None`` shows the bar on an interactive terminal when the run is estimated to take more than `LONG` seconds.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not (console.is_terminal and seconds > LONG if shown is None else shown):
        yield lambda finished: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("left"), console=console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda finished: progress.advance(task, finished)


@contextmanager
def stages(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yields a function to call with how much is done, of how much, and what is under way; shown on a terminal only."""
    from rich import progress as parts
    from rich.console import Console

    console = Console(stderr=True)
    words, shown = parts.TextColumn("{task.description}"), (parts.BarColumn(bar_width=24), parts.TaskProgressColumn())
    times = parts.TimeElapsedColumn(), parts.TextColumn("left"), parts.TimeRemainingColumn()
    with parts.Progress(
        words, *shown, *times, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total, what: progress.update(
            task, completed=done, total=total, description=f"{title}: {what}"
        )
