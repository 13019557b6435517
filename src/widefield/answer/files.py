"""Files: one NetCDF file gives back the arrays, the certificate and the whole question, or is refused.

A file is NetCDF to every other reader. Behind that stand an index of what it holds and where (JSON), the length of the index
and a checksum of everything before it, which readers of NetCDF and HDF5 pass over. `load` reads these alone: HDF5 that is
given a damaged or crafted file may hang, crash, allocate, or return other numbers.
"""

import hashlib
import io
import json
import math
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

FORMAT = "widefield-4"
NOUNS = {"task": Task, "teacher": Teacher, "training": Training}
CHECKSUM = b"widefield sha256 %s\n"
CHECKSUM_SIZE = len(CHECKSUM % bytes(64))
LENGTH_SIZE = 8  # bytes of the length of the index
KINDS = "biufcU"  # of arrays: numbers, words
PART = 2**24  # bytes that are read or written at once


def save(solution: Solution, path: str | os.PathLike) -> Path:
    """Write ``solution`` to ``path``."""
    import xarray as xr

    path = checks.path("path", path)
    require_memory(
        COPIES * solution.data.nbytes, "A file that is made in memory, and its fields,", "Save fewer fields."
    )
    data = solution.data
    if any(field.chunks for field in data.data_vars.values()):  # they lie in a store
        data = data.compute(scheduler="threads")
    nouns = {k: _as_dataset(noun) for k, noun in solution.question.items() if not isinstance(noun, Network)}
    groups = {"solution": data} | nouns
    tree = xr.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
    stated = {
        "format": FORMAT,
        "certificate": _certificate_dict(solution.certificate),
        "network": network_dict(solution.network),
    }
    tree.attrs = {"format": FORMAT} | {name: json.dumps(stated[name]) for name in ("certificate", "network")}
    with _without_cluster():
        netcdf = tree.to_netcdf(engine="h5netcdf")  # in memory: HDF5 that fails to write to a disk ends the interpreter
        places, rest = _places(netcdf, groups)
    index = json.dumps(stated | {"groups": places}, default=lambda value: np.asarray(value).tolist()).encode()
    content = netcdf, *rest, index, len(index).to_bytes(LENGTH_SIZE, "little")
    return write_atomically(path, *content, checksum(*content))


def _without_cluster() -> AbstractContextManager[object]:
    """Where a client of dask is at work, xarray would ask its cluster for a lock on every array."""
    dask = sys.modules.get("dask")
    return nullcontext() if dask is None else dask.config.set(scheduler="synchronous")


def checksum(*content: Any) -> bytes:
    """The end of a file that begins with ``content``."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(part)
    return CHECKSUM % digest.hexdigest().encode()


def _places(netcdf: memoryview, groups: "dict[str, xr.Dataset]") -> tuple[dict[str, Any], list[bytes]]:
    """Where every array lies, and the bytes of those that NetCDF stores in another form than NumPy, which come behind it."""
    import h5py

    rest: list[bytes] = []
    end = len(netcdf)
    places: dict[str, Any] = {}
    with h5py.File(io.BytesIO(netcdf), "r") as file:
        for group, data in groups.items():
            arrays = {}
            for name, variable in data.variables.items():
                values = np.asarray(variable.values, str if variable.dtype.kind == "O" else None)
                offset = _offset(file[group].get(str(name)), netcdf, values)
                if offset is None:
                    rest.append(values.tobytes())
                    offset, end = end, end + values.nbytes
                place = {"dims": variable.dims, "dtype": values.dtype.str, "shape": values.shape, "offset": offset}
                arrays[str(name)] = place | {"attrs": dict(variable.attrs), "field": name in data.data_vars}
            places[group] = {"arrays": arrays, "attrs": dict(data.attrs)}
    return places, rest


def _offset(stored: Any, netcdf: memoryview, values: np.ndarray) -> int | None:
    """Where the bytes of ``values`` begin in ``netcdf``, if they are there as they are."""
    if values.size == 0 or getattr(stored, "dtype", None) != values.dtype or stored.shape != values.shape:
        return None
    offset = stored.id.get_offset()
    if offset is None or netcdf[offset : offset + values.nbytes] != _bytes_of(values):
        return None
    return offset


def _bytes_of(values: np.ndarray) -> np.ndarray:
    """The bytes of an array; its own, where it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view("u1")


def load(path: str | os.PathLike) -> Solution:
    """Read a file written by `Solution.save`; a file that is damaged, cut off or of another kind is a ValueError.

    Nothing in a file is executed, and arrays take no more memory than the file is large.
    """
    path = checks.path("path", path)
    if not path.is_file():
        raise ValueError(f"`path` must be a file written by Solution.save, but {str(path)!r} is none.")
    require_memory(path.stat().st_size, f"The fields in {str(path)!r}", "Use a machine with more memory.")
    with open(path, "rb") as file:
        size = _verify(file, path)
        try:
            return _assemble(file, size)
        except (MemoryError, OSError):
            raise
        except Exception as error:  # what is not as it should be fails in many ways
            raise ValueError(f"`path` is no widefield file that can be read: {str(path)!r} ({error!r}).") from error


def _verify(file: BinaryIO, path: Path) -> int:
    """Compare the content with the checksum at its end; the size of the content."""
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
    return size


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
        if scratch.exists():
            return file, scratch
        file.close()  # removed by another save before it was locked


def _remove_what_was_left(folder: Path) -> None:
    for left in folder.glob(".widefield-*.part") if fcntl is not None else ():
        with suppress(OSError), open(left, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _assemble(file: BinaryIO, size: int) -> Solution:
    import xarray as xr

    index = _index(file, size)
    groups = index["groups"]
    places = [place for group in groups.values() for place in group["arrays"].values()]
    if sum(np.dtype(place["dtype"]).itemsize * math.prod(map(abs, place["shape"])) for place in places) > size:
        raise ValueError("it has arrays that are larger than the file")
    if not all(0 <= place["offset"] <= size for place in places):
        raise ValueError("it has arrays outside of the file")
    arrays = {name: {k: _array(file, place) for k, place in group["arrays"].items()} for name, group in groups.items()}
    given: dict[str, Any] = {
        name: _noun_from(kind, arrays[name], groups[name]["attrs"]) for name, kind in NOUNS.items() if name in groups
    }
    stored = groups["solution"]
    variables = {k: (place["dims"], arrays["solution"][k], place["attrs"]) for k, place in stored["arrays"].items()}
    coordinates = {name: variables.pop(name) for name, place in stored["arrays"].items() if not place["field"]}
    data = as_fields(xr.Dataset(variables, coordinates, stored["attrs"]), variables)[list(variables)]
    certificate, network = _certificate_from(index["certificate"]), network_from(index["network"])
    return Solution(data, certificate, network, **given)


def _index(file: BinaryIO, size: int) -> dict[str, Any]:
    file.seek(max(size - LENGTH_SIZE, 0))
    length = int.from_bytes(file.read(LENGTH_SIZE), "little")
    if length > size - LENGTH_SIZE:
        raise ValueError("it has no index")
    file.seek(size - LENGTH_SIZE - length)
    index = json.loads(file.read(length))
    if index["format"] != FORMAT:
        raise ValueError(f"its format is {index['format']!r}, not {FORMAT}")
    return index


def _array(file: BinaryIO, place: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(place["dtype"])
    if dtype.kind not in KINDS:
        raise ValueError(f"it has an array of {dtype}")
    array = np.empty(place["shape"], dtype)
    if array.size:
        file.seek(place["offset"])
        if file.readinto(_bytes_of(array)) != array.nbytes:  # type: ignore[attr-defined]
            raise ValueError("it has an array that ends behind the file")
    for kind, code, largest in (("U", "u4", sys.maxunicode), ("b", "u1", 1)):
        if dtype.kind == kind and _bytes_of(array).view(code).max(initial=0) > largest:
            raise ValueError(f"it has an array that is no {dtype}")
    return array


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


def _noun_from(kind: type, arrays: dict[str, Any], attrs: dict[str, Any]) -> Task | Teacher | Training:
    stored = arrays | {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(attrs["rest"]).items()}
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
