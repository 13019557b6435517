"""The command line: ``widefield gallery list`` and ``widefield gallery run NAME...``."""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn

from cyclopts import App, CycloptsError, Parameter

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

app = App(
    name="widefield",
    help="Field theories of wide neural networks as numbers you can trust.",
    version=lambda: f"widefield {metadata.version('widefield')}",
    suppress_keyboard_interrupt=False,
)
gallery_app = App(name="gallery", help="Published figures by name: theory, simulation, agreement.")
app.command(gallery_app)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The console command. Exits with 0, with 1 where a run failed, with 2 where it was called wrongly."""
    from rich.console import Console

    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        errors = Console(stderr=True)
        code = app(tokens, exit_on_error=False, error_console=errors, result_action="return_value")
    except CycloptsError:  # already printed
        code = USAGE
    except KeyboardInterrupt:
        _complain("interrupted")
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else OK)


@gallery_app.command(name="list")
def list_entries() -> int:
    """Show the figures that can be made."""
    from widefield import gallery
    from widefield.compare import text_table

    rows = [(entry.name, entry.title, entry.source, entry.full_time) for entry in gallery.ENTRIES.values()]
    print(text_table(("name", "what it shows", "source", "with --full"), rows))
    return OK


@gallery_app.command
def run(
    *names: Annotated[str, Parameter(help="Figures to make; see `widefield gallery list`.")],
    full: Annotated[
        bool, Parameter(negative="", help="The published parameters; `gallery list` says how long that takes.")
    ] = False,
    out: Annotated[Path, Parameter(help="Folder for the PNG, NetCDF and JSON files.")] = Path("figures"),
) -> int:
    """Make figures: NAME.png, its data NAME.nc and its agreement numbers NAME.json."""
    from widefield import gallery
    from widefield.answer.certificate import SolveError
    from widefield.answer.compile_cache import cache_compilations
    from widefield.answer.progress import stages

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        with suppress(ValueError):  # a home that cannot be written
            cache_compilations()
    try:
        if not names:
            raise ValueError(f"Name at least one figure: {', '.join(gallery.ENTRIES)}.")
        entries = [gallery.find(name) for name in dict.fromkeys(names)]
        _writable(out)
    except ValueError as error:
        return _complain(str(error), USAGE)
    code = OK
    for entry in entries:
        try:
            with stages(entry.name) as report:
                result = entry.run(full=full, out=out, report=report)
            print(f"{entry.title} ({entry.source})\n{result}\n")
        except (SolveError, ValueError, OSError, MemoryError, ImportError) as error:
            code = _complain(f"{entry.name} failed: {error}")
    return code


def _writable(out: Path) -> None:
    """Make the folder now, so that a run of minutes does not end at a file that cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(dir=out)
    except OSError as error:
        raise ValueError(f"--out {str(out)!r} cannot be written: {error.strerror or error}.") from error
    os.close(handle)
    os.unlink(probe)


def _complain(message: str, code: int = FAILED) -> int:
    print(f"widefield: {message}", file=sys.stderr)
    return code
