"""What a gallery entry makes, and how it is written: NAME.png, NAME.nc and NAME.json beside one another."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widefield.answer.certificate import plain
from widefield.answer.files import write_atomically
from widefield.compare import text_table
from widefield.gallery.points import Points

if TYPE_CHECKING:
    import xarray as xr

    from widefield.plot.style import Figure

Report = Callable[[int, int, str], None]  # how much of the work is done, of how much, and what is under way


@dataclass(frozen=True)
class Work:
    """What an entry is given beside its parameters: whom to tell how far it is, and the points of a run that was stopped."""

    report: Report = lambda done, total, what: None
    points: Points = field(default_factory=lambda: Points(None))

    def jobs(self, total: int) -> Callable[[str], None]:
        """A function to call with a few words before each of ``total`` jobs."""
        count = itertools.count()
        return lambda what: self.report(next(count), total, what)


@dataclass(frozen=True)
class Made:
    """A picture, the data in it, and the numbers that say how well theory and simulation agree.

    ``numbers`` go to the JSON file, ``table`` (its first line the header) to the terminal; ``agrees`` is None where
    agreement is not what the figure is about.
    """

    figure: "Figure"
    data: "xr.Dataset"
    parameters: Any
    numbers: list[dict[str, Any]]
    table: list[tuple[str, ...]]
    agrees: bool | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """The files of a finished entry and its agreement table."""

    name: str
    files: tuple[Path, ...]
    table: list[tuple[str, ...]] = field(repr=False)
    agrees: bool | None
    notes: tuple[str, ...]
    wall_time: float

    def __str__(self) -> str:
        names = ", ".join(path.name for path in self.files)
        notes = [f"note: {note}" for note in self.notes]
        head = f"{self.name}: {self.wall_time:.1f} s, wrote {names} in {self.files[0].parent}"
        return "\n".join([head, text_table(self.table[0], self.table[1:]), *notes])


def store(name: str, made: Made, out: Path, *, title: str, source: str, full: bool, wall_time: float) -> Result:
    """Write the three files, each whole or not at all; the JSON comes last, so that it vouches for the others."""
    from widefield.plot.style import save

    files = tuple(out / f"{name}.{suffix}" for suffix in ("png", "nc", "json"))
    save(made.figure, files[0])
    write_atomically(files[1], made.data.to_netcdf(engine="h5netcdf"))
    content = {
        "name": name,
        "title": title,
        "source": source,
        "mode": "full" if full else "quick",
        "status": "success",
        "agrees": made.agrees,
        "parameters": asdict(made.parameters),
        "notes": made.notes,
        "numbers": made.numbers,
        "wall_time": round(wall_time, 3),
        "versions": {package: metadata.version(package) for package in ("widefield", "jax", "numpy", "scipy")},
    }
    text = json.dumps(finite(plain(content)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(files[2], text.encode())
    return Result(name, files, made.table, made.agrees, made.notes, wall_time)


def finite(value: Any) -> Any:
    """``value`` with the words "inf", "-inf" and "nan" for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
