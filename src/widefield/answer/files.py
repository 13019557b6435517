"""Files: one NetCDF file gives back the arrays, the certificate and the whole question, or is refused.

A file ends with a checksum of everything before it, which other readers of NetCDF and HDF5 pass over. It is read before
HDF5 sees the file: a damaged one may hang there, or come out as other numbers.
"""

import hashlib
import json
import os
import re
import secrets
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from pydantic import TypeAdapter

from widefield.answer.boundary import COPIES, require_memory
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.solution import Solution, as_fields
from widefield.question import checks
from widefield.question.activation import NAMED, Activation, named, unavailable
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.teacher import Teacher
from widefield.question.training import Training

try:
    import fcntl
except ImportError:  # Windows: what a killed process leaves is not removed
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import xarray as xr

FORMAT = "widefield-3"
NOUNS = {"task": Task, "teacher": Teacher, "training": Training}
CHECKSUM = b"widefield sha256 %s\n"
CHECKSUM_SIZE = len(CHECKSUM % bytes(64))
PART = 2**24  # bytes that are read or written at once


def save(solution: Solution, path: str | os.PathLike) -> Path:
    """Write ``solution`` to ``path``."""
    import xarray as xr

    lazy = sum(field.nbytes for field in solution.data.data_vars.values() if field.chunks)
    if lazy:
        require_memory(COPIES * lazy, "Fields that lie in a store", "Save those that fit, or keep the store.")
    nouns = {f"/{k}": _as_dataset(noun) for k, noun in solution.question.items() if not isinstance(noun, Network)}
    tree = xr.DataTree.from_dict({"/solution": solution.data} | nouns)
    tree.attrs = {
        "format": FORMAT,
        "fields": json.dumps([str(name) for name in solution.data.data_vars]),
        "certificate": json.dumps(_certificate_dict(solution.certificate)),
        "network": json.dumps(network_dict(solution.network)),
    }
    with _in_this_process():  # and in memory: HDF5 that fails to write to a disk ends the interpreter
        content = tree.to_netcdf(engine="h5netcdf")
    return write_atomically(path, content, checksum(content))


def _in_this_process() -> AbstractContextManager[Any]:
    """Where there is a client of dask, xarray asks it for a lock on what it writes, which it does not have for memory."""
    return sys.modules["dask"].config.set(scheduler="threads") if "distributed" in sys.modules else nullcontext()


def checksum(*content: Any) -> bytes:
    """The end of a file that begins with ``content``."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(part)
    return CHECKSUM % digest.hexdigest().encode()


def load(path: str | os.PathLike) -> Solution:
    """Read a file written by `Solution.save`; a file that is damaged, cut off or of another kind is a ValueError.

    Nothing in a file is executed, and no more memory is taken than the file is large.
    """
    import xarray as xr

    path = checks.path("path", path)
    if not path.is_file():
        raise ValueError(f"`path` must be a file written by Solution.save, but {str(path)!r} is none.")
    with open(path, "rb") as file:
        _verify(file, path)
        try:
            _refuse_what_is_not_inside(file)
            with xr.open_datatree(file, engine="h5netcdf") as tree:
                groups = {name: child.to_dataset(inherit=False).load() for name, child in tree.children.items()}
                attrs = dict(tree.attrs)
            if attrs.get("format") != FORMAT:
                raise ValueError(f"its format is {attrs.get('format')!r}, not {FORMAT}")
            return _assemble(groups, attrs)
        except MemoryError:
            raise
        except Exception as error:  # the readers of HDF5, NetCDF and JSON have many kinds
            raise ValueError(f"`path` is no widefield file that can be read: {str(path)!r} ({error!r}).") from error


def _verify(file: BinaryIO, path: Path) -> None:
    """Compare the content with the checksum at its end."""
    size = os.fstat(file.fileno()).st_size - CHECKSUM_SIZE
    file.seek(max(size, 0))
    stated = re.fullmatch(re.escape(CHECKSUM) % b"([0-9a-f]{64})", file.read())
    if size < 0 or stated is None:
        raise ValueError(
            f"`path` is not a file written by Solution.save, or it is damaged or cut off: {str(path)!r} does not end with "
            "a checksum."
        )
    digest = hashlib.sha256()
    file.seek(0)
    for start in range(0, size, PART):
        digest.update(file.read(min(PART, size - start)))
    if digest.hexdigest().encode() != stated[1]:
        raise ValueError(f"`path` is damaged: {str(path)!r} has other bytes than were written (its checksum differs).")
    file.seek(0)


def _refuse_what_is_not_inside(file: BinaryIO) -> None:
    """Links to other files, and arrays that are larger than the file."""
    import h5py

    with h5py.File(file, "r") as root:
        items = _items(root)
        items += [item for group in items if isinstance(group, h5py.Group) for item in _items(group)]
        arrays = [item for item in items if isinstance(item, h5py.Dataset)]
        if any(array.external or array.is_virtual for array in arrays):
            raise ValueError("it has arrays in other files")
        dimension = b"This is a netCDF dimension but not a netCDF variable"
        stored = [array for array in arrays if not bytes(array.attrs.get("NAME", b"")).startswith(dimension)]
        if sum(array.size * array.dtype.itemsize for array in stored) > os.fstat(file.fileno()).st_size:
            raise ValueError("it has arrays that are larger than the file")
    file.seek(0)


def _items(group) -> list[Any]:
    import h5py

    if not all(isinstance(group.get(name, getlink=True), h5py.HardLink) for name in group):
        raise ValueError("it has links to other places")
    return list(group.values())


def write_atomically(path: str | os.PathLike, *content: Any) -> Path:
    """Write a file under a temporary name, flush it to disk and rename it: until then, the old file is there.

    What saves that were killed have left in the folder is removed; a lock tells it from what is being written.
    """
    path = checks.path("path", path)
    if not path.parent.is_dir():
        raise ValueError(f"`path` must lie in an existing folder, but {str(path.parent)!r} does not exist.")
    if path.is_dir():
        raise ValueError(f"`path` must be the name of a file, but {str(path)!r} is a folder.")
    _remove_what_was_left(path.parent)
    file, scratch = _scratch(path.parent)
    with file:
        try:
            for part in content:
                view = memoryview(part)
                while view:
                    view = view[os.write(file.fileno(), view[:PART]) :]
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()
            os.replace(scratch, path)
        except BaseException:
            file.close()
            scratch.unlink(missing_ok=True)
            raise
    return path


def _scratch(folder: Path) -> tuple[BinaryIO, Path]:
    """A new file that is locked as long as it is open."""
    while True:
        scratch = folder / f".widefield-{secrets.token_hex(8)}.part"
        file = open(scratch, "xb", buffering=0)  # noqa: SIM115
        with suppress(OSError):  # a file system without locks: nobody can remove what is not locked
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file, scratch
        file.close()  # removed by another save before it was locked


def _remove_what_was_left(folder: Path) -> None:
    for left in folder.glob(".widefield-*.part") if fcntl is not None else ():
        with suppress(OSError), open(left, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _assemble(groups: "dict[str, xr.Dataset]", attrs: dict[Any, Any]) -> Solution:
    names = json.loads(attrs["fields"])
    data = as_fields(groups["solution"], names)[names]
    given: dict[str, Any] = {name: _noun_from(kind, groups[name]) for name, kind in NOUNS.items() if name in groups}
    certificate, network = (
        _certificate_from(json.loads(attrs["certificate"])),
        network_from(json.loads(attrs["network"])),
    )
    return Solution(data, certificate, network, **given)


def _certificate_dict(certificate: Certificate) -> dict[str, Any]:
    stored = {f.name: getattr(certificate, f.name) for f in fields(certificate)}
    checks = {name: [c.value, c.limit, c.otherwise.name] for name, c in certificate.checks.items()}
    failure = None if certificate.failure is None else certificate.failure.name
    return stored | {"checks": checks, "failure": failure}


def _certificate_from(stored: dict[str, Any]) -> Certificate:
    checks = {name: Check(value, limit, Status[word]) for name, (value, limit, word) in stored["checks"].items()}
    failure = None if stored["failure"] is None else Status[stored["failure"]]
    return TypeAdapter(Certificate).validate_python(stored | {"checks": checks, "failure": failure})


def network_dict(network: Network) -> dict[str, Any]:
    """A network as words and numbers; a user's activation as its name and source text."""
    phi = network.activation
    stored = asdict(replace(network, activation=NAMED["linear"]))
    stored["activation"] = {
        "name": phi.name, "parameters": phi.parameters, "breaks": phi.breaks, "source": phi.source
    }  # fmt: skip
    return stored


def network_from(stored: dict[str, Any]) -> Network:
    """The network that `network_dict` describes."""
    phi = stored["activation"]
    name, parameters, breaks, source = phi["name"], tuple(phi["parameters"]), tuple(phi["breaks"]), phi["source"]
    if source:
        activation = Activation(unavailable("activation", name, source), breaks, name, (), source)
    else:
        activation = named(name, parameters)
    rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items() if k != "activation"}
    return Network(activation=activation, **rest)


def _as_dataset(noun: Task | Teacher | Training) -> "xr.Dataset":
    """Arrays as variables, all other fields as JSON."""
    import xarray as xr

    values = {f.name: getattr(noun, f.name) for f in fields(noun)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    if isinstance(noun, Teacher) and noun.spectrum is not None:
        values.pop("spectrum")
        arrays |= {f"spectrum_{i}": part for i, part in enumerate(noun.spectrum)}
    if isinstance(noun, Training) and callable(noun.loss):
        values["loss"] = {"name": noun.loss_name, "source": noun.loss_source}
    data = xr.Dataset({k: ([f"{k}_{i}" for i in range(v.ndim)], v) for k, v in arrays.items()})
    data.attrs["rest"] = json.dumps({name: value for name, value in values.items() if name not in arrays})
    return data


def _noun_from(kind: type, data: "xr.Dataset") -> Task | Teacher | Training:
    rest = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(data.attrs["rest"]).items()}
    stored: dict[str, Any] = {str(name): data[name].values for name in data.data_vars} | rest
    if kind is Task:
        notes = stored.pop("notes")
        task = Task(**stored)
        task._put(notes=notes)  # of the arrays as they were given
        return task
    if kind is Teacher:
        parts = sorted(name for name in stored if name.startswith("spectrum_"))
        stored["spectrum"] = tuple(stored.pop(name) for name in parts) or None
    elif isinstance(stored["loss"], dict):
        stored["loss"] = unavailable("loss", **stored["loss"])
    return kind(**stored)
