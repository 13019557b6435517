"""Files: one NetCDF file gives back the arrays, the certificate and the whole question."""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.solution import Solution, as_fields
from widefield.question.activation import NAMED, Activation, named, unavailable
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.teacher import Teacher
from widefield.question.training import Training

if TYPE_CHECKING:
    import xarray as xr

FORMAT = "widefield-2"
NOUNS = {"task": Task, "teacher": Teacher, "training": Training}


def save(solution: Solution, path: str | os.PathLike) -> Path:
    """Write ``solution`` to ``path``."""
    import xarray as xr

    nouns = {f"/{k}": _as_dataset(noun) for k, noun in solution.question.items() if not isinstance(noun, Network)}
    tree = xr.DataTree.from_dict({"/solution": solution.data} | nouns)
    tree.attrs = {
        "format": FORMAT,
        "fields": json.dumps([str(name) for name in solution.data.data_vars]),
        "certificate": json.dumps(_certificate_dict(solution.certificate)),
        "network": json.dumps(network_dict(solution.network)),
    }
    return write_atomically(path, lambda scratch: tree.to_netcdf(scratch, engine="h5netcdf"))


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


def write_atomically(path: str | os.PathLike, write: Callable[[str], Any]) -> Path:
    """Have ``write`` make a file under a temporary name, flush it to disk and rename it: no half file is left."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"`path` must lie in an existing folder, but {str(path.parent)!r} does not exist.")
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=f".part{path.suffix}")
    os.close(handle)
    try:
        write(scratch)
        with open(scratch, "rb+") as written:
            os.fsync(written.fileno())
        os.chmod(scratch, 0o666 & ~_umask())
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
