"""Results: labelled arrays with the certificate that says how far to trust them, and their files."""

import enum
import html
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from widefield import activation as activations
from widefield.network import Network
from widefield.task import Task

if TYPE_CHECKING:
    import xarray as xr

FORMAT = "widefield-1"
Fields = Mapping[str, tuple[tuple[str, ...], Any]]


class Status(enum.Enum):
    """How a solve ended. The value is the advice shown to the user."""

    success = "the result meets its tolerance"
    not_converged = "the iteration stopped before its tolerance: raise max_steps or rtol, or start closer"
    inaccurate = (
        "the re-evaluated residual exceeds the tolerance, or a note names what is not resolved: raise rtol or follow it"
    )
    nonfinite = "a value overflowed or is not a number: lower the variances, the depth or the rate"
    not_psd = "a covariance is not positive definite: add noise, or remove duplicate inputs"
    saddle = "the stationary point is not a minimum: ask for another branch"
    diverged = "the solution grows without bound: lower the rate or the variances"
    too_large = "the result does not fit in memory: ask for fewer quantities or samples"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Certificate:
    """What a result was made with, and how well it satisfies its own equations.

    ``residual`` is re-evaluated after the solve, relative to the natural scale of each equation; ``error`` is the
    largest error estimate met on the way, on the same scale. None means that there is no such thing: a simulation
    solves no equation. ``diagnostics`` are further numbers of a theory or sampler.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    theory: str
    status: Status = Status.success
    residual: float | None = None
    tolerance: float | None = None
    error: float | None = None
    steps: int = 0
    seed: int | None = None
    dtype: str = "float64"
    wall_time: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    diagnostics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", self.versions or dict(_versions()))
        object.__setattr__(self, "options", plain(self.options))
        object.__setattr__(self, "diagnostics", plain(self.diagnostics))

    def __str__(self) -> str:
        judged = self.residual is not None and self.tolerance is not None
        advice = "" if self.status is Status.success and not judged else f" ({self.status.value})"
        lines = [f"{self.theory}: {self.status.name}{advice}"]
        measured = [("residual", self.residual), ("tolerance", self.tolerance), ("error estimate", self.error)]
        shown = ", ".join(f"{name} {value:.1e}" for name, value in measured if value is not None)
        if shown:
            lines.append(f"  measured   {shown}")
        options = ", ".join(f"{k}={v}" for k, v in self.options.items())
        seed = "" if self.seed is None else f", seed {self.seed}"
        lines.append(f"  made with  {options or 'defaults'}{seed}, {self.dtype}, {self.wall_time:.2f} s")
        lines += [f"  note       {note}" for note in self.notes]
        lines += [f"  measured   {name} {value}" for name, value in self.diagnostics.items()]
        if self.left_out:
            lines.append(f"  left out   {', '.join(self.left_out)}")
        return "\n".join(lines)


class SolveError(RuntimeError):
    """A solve that did not succeed; ``solution`` holds what was reached (also with ``throw=False``)."""

    def __init__(self, message: str, solution: "Solution | None" = None):
        super().__init__(message)
        self.solution = solution


@dataclass(frozen=True, eq=False)
class Solution:
    """Labelled arrays ``data`` (an `xarray.Dataset`, each variable also an attribute) and their `Certificate`."""

    data: "xr.Dataset"
    certificate: Certificate
    network: Network
    task: Task | None = None

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
    def residual(self) -> float | None:
        """The residual, re-evaluated after the solve."""
        return self.certificate.residual

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks such as an upcast of the inputs."""
        return self.certificate.notes

    def __str__(self) -> str:
        rows = []
        for name, value in self.data.data_vars.items():
            dims = " × ".join(f"{d} {n}" for d, n in value.sizes.items())
            rows.append(f"    {name:<18} {dims or 'scalar':<44} {_range_of(value.values)}")
        task = [] if self.task is None else [str(self.task)]
        return "\n".join([str(self.certificate), str(self.network), *task, "  fields", *rows])

    def _repr_html_(self) -> str:
        head = "\n".join(map(str, (self.certificate, self.network, self.task or "")))
        return f"<pre>{html.escape(head)}</pre>{self.data._repr_html_()}"

    def plot(self, path: str | os.PathLike | None = None):
        """Draw the main fields; returns the matplotlib figure and, with ``path``, writes it."""
        from widefield import plot

        return plot.solution(self, path)

    def save(self, path: str | os.PathLike) -> Path:
        """Write a NetCDF file: to a temporary name, flushed to disk, then renamed, so that no half file is left."""
        return _write(self, Path(path))


def make_solution(
    fields: Fields,
    certificate: Certificate,
    network: Network,
    task: Task | None,
    *,
    coords: Mapping[str, Any] | None = None,
    throw: bool = True,
) -> Solution:
    """A Solution from named (dims, array) pairs; raises `SolveError` where the status is not success.

    States, steps and replicates are counted from 0 and layers from 1; ``coords`` adds others or replaces these.
    """
    import xarray as xr

    first = {"state": 0, "layer": 1, "step": 0, "replicate": 0}
    arrays = {name: (dims, np.asarray(value)) for name, (dims, value) in fields.items()}
    sizes = {dim: n for dims, value in arrays.values() for dim, n in zip(dims, value.shape, strict=True)}
    counted = {d: first[d.rstrip("_")] + np.arange(n) for d, n in sizes.items() if d.rstrip("_") in first}
    data = xr.Dataset(arrays, coords=counted | dict(coords or {}))
    solution = Solution(_as_fields(data, arrays), certificate, network, task)
    if throw and certificate.status is not Status.success:
        raise SolveError(f"{certificate}\n(throw=False returns what was reached.)", solution)
    return solution


def _as_fields(data: "xr.Dataset", names: Iterable[str]) -> "xr.Dataset":
    """Keep ``names`` as variables: xarray takes `output` for a coordinate where another field has a dim `output`."""
    return data.reset_coords([name for name in names if name in data.coords])


def plain(value: Any) -> Any:
    """``value`` as numbers, words, lists and dicts, as a file keeps it; functions by name."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    return getattr(value, "__name__", repr(value))


def load(path: str | os.PathLike) -> Solution:
    """Read a file written by `Solution.save`."""
    import xarray as xr

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"`path` must be a file written by Solution.save, but {str(path)!r} does not exist.")
    try:
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            groups = {name: child.to_dataset(inherit=False).load() for name, child in tree.children.items()}
            attrs = dict(tree.attrs)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"`path` is not a widefield file: {str(path)!r} ({error}).") from error
    if attrs.get("format") != FORMAT:
        raise ValueError(f"`path` is not a file of format {FORMAT}: {str(path)!r} has {attrs.get('format')!r}.")
    try:
        return _assemble(groups, attrs)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"`path` is a damaged widefield file: {str(path)!r} ({error!r}).") from error


def _assemble(groups: "dict[str, xr.Dataset]", attrs: dict[Any, Any]) -> Solution:
    stored = json.loads(attrs["certificate"])
    certificate = TypeAdapter(Certificate).validate_python(stored | {"status": Status[stored["status"]]})
    names = json.loads(attrs["fields"])
    data = _as_fields(groups["solution"], names)[names]
    task = _task_from(groups["task"]) if "task" in groups else None
    return Solution(data, certificate, _network_from(json.loads(attrs["network"])), task)


def _write(solution: Solution, path: Path) -> Path:
    import xarray as xr

    if not path.parent.is_dir():
        raise ValueError(f"`path` must lie in an existing folder, but {str(path.parent)!r} does not exist.")
    groups: dict[str, xr.Dataset] = {"/solution": solution.data}
    if solution.task is not None:
        groups["/task"] = _task_dataset(solution.task)
    tree = xr.DataTree.from_dict(groups)
    tree.attrs = {
        "format": FORMAT,
        "fields": json.dumps([str(name) for name in solution.data.data_vars]),
        "certificate": json.dumps(asdict(solution.certificate) | {"status": solution.status.name}),
        "network": json.dumps(_network_dict(solution.network)),
    }
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        tree.to_netcdf(temporary, engine="h5netcdf")
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _network_dict(network: Network) -> dict[str, Any]:
    phi = network.activation
    fields = asdict(replace(network, activation=activations.NAMED["linear"]))
    fields["activation"] = {
        "name": phi.name, "parameters": phi.parameters, "breaks": phi.breaks, "source": phi.source
    }  # fmt: skip
    return fields


def _network_from(fields: dict[str, Any]) -> Network:
    phi = fields.pop("activation")
    name, parameters, breaks, source = phi["name"], tuple(phi["parameters"]), tuple(phi["breaks"]), phi["source"]
    known = name in activations.NAMES and not source
    found = activations.named(name, parameters) if known else activations.missing(name, breaks, source)
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return Network(activation=found, **fields)


def _task_dataset(task: Task) -> "xr.Dataset":
    import xarray as xr

    arrays = {name: getattr(task, name) for name in ("x", "y", "x_test", "y_test") if getattr(task, name) is not None}
    data = xr.Dataset({k: ([f"{k}_{i}" for i in range(v.ndim)], v) for k, v in arrays.items()})
    if task.supervised is not None:
        data.attrs["supervised"] = np.asarray(task.supervised)
    if task.notes:
        data.attrs["notes"] = json.dumps(task.notes)
    return data


def _task_from(data: "xr.Dataset") -> Task:
    arrays: dict[str, Any] = {str(name): data[name].values for name in data.data_vars}
    supervised = data.attrs.get("supervised")
    task = Task(**arrays, supervised=None if supervised is None else tuple(np.atleast_1d(supervised).tolist()))
    object.__setattr__(task, "notes", tuple(json.loads(data.attrs.get("notes", "[]"))))
    return task


def _range_of(values: np.ndarray) -> str:
    if values.dtype.kind not in "fiu" or values.size == 0:
        return str(values) if values.ndim == 0 else ""
    if values.ndim == 0:
        return f"{values:.6g}"
    return f"{np.min(values):.4g} … {np.max(values):.4g}"


@lru_cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("widefield", "jax", "numpy", "scipy")}
