"""Results: labeled arrays with the certificate that says how far to trust them."""

import html
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from widefield.answer.certificate import Certificate, SolveError, Status
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.teacher import Teacher
from widefield.question.training import Training

if TYPE_CHECKING:
    import xarray as xr

Fields = Mapping[str, tuple[tuple[str, ...], Any]]


@dataclass(frozen=True, eq=False)
class Solution:
    """Labeled arrays ``data`` (an `xarray.Dataset`, each variable also an attribute) and their `Certificate`.

    ``network``, ``task`` or ``teacher``, and ``training`` are the question that it answers.
    """

    data: "xr.Dataset"
    certificate: Certificate
    network: Network
    task: Task | None = None
    teacher: Teacher | None = None
    training: Training | None = None

    def __getattr__(self, name: str) -> "xr.DataArray":
        if name.startswith("_") or name in ("data", "certificate"):  # not there yet while a copy is being made
            raise AttributeError(name)
        if name in self.data:
            return self.data[name]
        have = ", ".join(map(str, self.data.data_vars))
        hint = ""
        if name in self.certificate.left_out:
            hint = f" It was left out; ask for it with quantities=({name!r},)."
        raise AttributeError(f"This solution has no field {name!r}.{hint} It has: {have}.")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *map(str, self.data.data_vars)]

    @property
    def status(self) -> Status:
        """How the solve ended."""
        return self.certificate.status

    @property
    def failure(self) -> Status | None:
        """The status where it is not success, None where it is: what is derived from this answer inherits it."""
        return None if self.status is Status.success else self.status

    @property
    def residual(self) -> float | None:
        """The residual, re-evaluated after the solve."""
        return self.certificate.residual

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks such as an upcast of the inputs."""
        return self.certificate.notes

    @property
    def question(self) -> dict[str, Network | Task | Teacher | Training]:
        """What was asked, by the name of each noun."""
        nouns = {name: getattr(self, name) for name in ("network", "task", "teacher", "training")}
        return {name: noun for name, noun in nouns.items() if noun is not None}

    def __str__(self) -> str:
        rows = []
        for name, value in self.data.data_vars.items():
            dims = " × ".join(f"{d} {n}" for d, n in value.sizes.items())
            entries = "on disk" if value.chunks else _range_of(value.values)
            rows.append(f"    {name:<18} {dims or 'scalar':<44} {entries}")
        return "\n".join([str(self.certificate), *map(str, self.question.values()), "  fields", *rows])

    def _repr_html_(self) -> str:
        head = "\n".join(map(str, (self.certificate, *self.question.values())))
        return f"<pre>{html.escape(head)}</pre>{self.data._repr_html_()}"

    def plot(self, path: str | os.PathLike | None = None):
        """Draw the main fields; returns the matplotlib figure and, with ``path``, writes it."""
        from widefield import plot

        return plot.solution(self, path)

    def save(self, path: str | os.PathLike) -> Path:
        """Write a NetCDF file with the whole question; `widefield.load` reads it."""
        from widefield.answer import files

        return files.save(self, path)


def make_solution(
    fields: Fields,
    certificate: Certificate,
    network: Network,
    task: Task | None = None,
    *,
    teacher: Teacher | None = None,
    training: Training | None = None,
    coords: Mapping[str, Any] | None = None,
    throw: bool = True,
) -> Solution:
    """A Solution from named (dims, array) pairs; raises `SolveError` where the status is not success.

    States, steps and replicates are counted from 0 and layers from 1; ``coords`` adds others or replaces these.
    """
    import xarray as xr

    first = {"state": 0, "layer": 1, "step": 0, "replicate": 0}
    lazy = lambda value: hasattr(value, "dask")  # noqa: E731  read from a disk when it is used
    arrays = {name: (dims, v if lazy(v) else np.asarray(v)) for name, (dims, v) in fields.items()}
    sizes = {dim: n for dims, value in arrays.values() for dim, n in zip(dims, value.shape, strict=True)}
    counted = {d: first[d.rstrip("_")] + np.arange(n) for d, n in sizes.items() if d.rstrip("_") in first}
    data = xr.Dataset(arrays, coords=counted | dict(coords or {}))
    solution = Solution(as_fields(data, arrays), certificate, network, task, teacher, training)
    if throw and certificate.status is not Status.success:
        raise SolveError(f"{certificate}\n(throw=False returns what was reached.)", solution)
    return solution


def as_fields(data: "xr.Dataset", names: Iterable[str]) -> "xr.Dataset":
    """Keep ``names`` as variables: xarray takes `output` for a coordinate where another field has a dim `output`."""
    return data.reset_coords([name for name in names if name in data.coords])


def _range_of(values: np.ndarray) -> str:
    if values.dtype.kind not in "fiu" or values.size == 0:
        return str(values) if values.ndim == 0 else ""
    if values.ndim == 0:
        return f"{values:.6g}"
    return f"{np.min(values):.4g} … {np.max(values):.4g}"
