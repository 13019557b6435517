"""A folder of arrays that are made one by one: each is a file of its own, whole or not there.

A file is what `numpy.load` reads, one line of JSON (what is known about the array, and of which question it is), and a
checksum of everything before it. The folder's manifest says which question its arrays belong to.
"""

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from widefield.answer.boundary import describe_bytes
from widefield.answer.files import CHECKSUM_SIZE, checksum, write_atomically
from widefield.question import checks

FORMAT = "widefield-tiles-1"
MANIFEST = "manifest.json"
Known = dict[str, Any]


class DamagedTile(ValueError):
    """A file has other bytes than were written, or belongs to another question."""


def digest_of(*parts: Any) -> str:
    """A name for arrays and words, the same on every machine."""
    digest = hashlib.sha256()
    for part in parts:
        array = isinstance(part, np.ndarray)
        digest.update(json.dumps((str(part.dtype), part.shape) if array else part, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(part).data if array else b"")
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class TileStore:
    """Arrays by name under ``folder``, which belong to the question with that ``digest``."""

    folder: Path
    digest: str

    def path(self, name: str) -> Path:
        """Where the array of that name lies."""
        return self.folder / f"{name}.npy"

    def write(self, name: str, array: np.ndarray, known: Known) -> None:
        """Write one array, with what is known about it."""
        array = np.ascontiguousarray(array)
        head = io.BytesIO()
        np.lib.format.write_array_header_2_0(head, np.lib.format.header_data_from_array_1_0(array))
        about = json.dumps({"of": self.digest, "name": name, "known": known}).encode() + b"\n"
        content = head.getvalue(), array.reshape(-1).view(np.uint8), about
        path = self.path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, *content, checksum(*content))
        except OSError as error:
            advice = f"{error.strerror or error}; what is finished is kept and the same call goes on from there"
            raise OSError(error.errno, advice, str(path)) from error

    def read(self, name: str) -> tuple[np.ndarray, Known]:
        """An array (not writable) and what is known about it; other bytes than were written are a `DamagedTile`."""
        path = self.path(name)
        content = path.read_bytes()
        body = memoryview(content)[:-CHECKSUM_SIZE]
        if content[len(body) :] != checksum(body):
            raise DamagedTile(f"{path} is damaged: its checksum differs. The call that made it makes it again.")
        head = io.BytesIO(content[:4096])
        np.lib.format.read_magic(head)
        shape, _, dtype = np.lib.format.read_array_header_2_0(head)
        array = np.frombuffer(content, dtype, int(np.prod(shape)), head.tell()).reshape(shape)
        about = json.loads(bytes(body[head.tell() + array.nbytes :]))
        if (about["of"], about["name"]) != (self.digest, name):
            raise DamagedTile(f"{path} belongs to another question or place. The call that made it makes it again.")
        return array, about["known"]

    def ensure(
        self, names: Sequence[str], make: Callable[[], Mapping[str, tuple[np.ndarray, Known]]]
    ) -> dict[str, Known]:
        """Make the arrays that are not there or not whole; returns what is known about all, also which were ``damaged``."""
        known: dict[str, Known] = {}
        damaged = []
        for name in names:
            try:
                known[name] = self.read(name)[1]
            except FileNotFoundError:
                pass
            except DamagedTile:
                damaged.append(name)
        if len(known) < len(names):
            for name, (array, about) in make().items():
                if name not in known:
                    self.write(name, array, about)
                    known[name] = about | {"damaged": name in damaged}
        return known

    def require_room(self, sizes: Mapping[str, float]) -> None:
        """Refuse before any work what the disk cannot hold; ``sizes`` are bytes of parts, some of which may be there."""
        stored = {name: sum(path.stat().st_size for path in (self.folder / name).glob("*.npy")) for name in sizes}
        need, free = sum(max(0, sizes[name] - stored[name]) for name in sizes), shutil.disk_usage(self.folder).free
        if need > free:
            words = f"`store` needs {describe_bytes(need)} more, but {describe_bytes(free)} are free there"
            raise OSError(errno.ENOSPC, f"{words}: take another disk, or fewer quantities or samples", str(self.folder))


def open_store(folder: Any, question: Mapping[str, Any]) -> TileStore:
    """The store of a question, whose parts are named; a folder that holds another question is a ValueError."""
    folder = checks.path("store", folder).absolute()
    if not folder.parent.is_dir() or (folder.exists() and not folder.is_dir()):
        raise ValueError(
            f"`store` must be a folder, or the name of a new one in a folder that exists, got {str(folder)!r}."
        )
    try:
        folder.mkdir(exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise ValueError(f"`store` must be a folder that can be written to, got {str(folder)!r}.")
        if not (folder / MANIFEST).exists():
            if any(not path.name.startswith(".") for path in folder.iterdir()):
                raise ValueError(
                    f"`store` must be empty or hold kernels of this question, but {str(folder)!r} holds other things."
                )
            content = json.dumps({"format": FORMAT, "question": question}, indent=1).encode() + b"\n"
            write_atomically(folder / MANIFEST, content, checksum(content))
        content = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise ValueError(f"`store` cannot be used: {error}.") from error
    if content[-CHECKSUM_SIZE:] != checksum(content[:-CHECKSUM_SIZE]):
        raise ValueError(
            f"`store` has a damaged {MANIFEST}: what {str(folder)!r} holds is not known. Take another folder."
        )
    there = json.loads(content[:-CHECKSUM_SIZE])
    asked = json.loads(json.dumps(question))
    if there["format"] != FORMAT:
        raise ValueError(f"`store` has the format {there['format']!r}, not {FORMAT!r}: take another folder.")
    differs = [f"`{name}`" for name in asked if there["question"].get(name) != asked[name]]
    if differs:
        raise ValueError(
            f"`store` holds kernels of another question, which differs in {', '.join(differs)}: take another folder."
        )
    return TileStore(folder, digest_of(asked))
