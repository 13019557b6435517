"""Finished points of a long run, kept in a file of one line each, so that the run can be taken up again."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


class Points:
    """Values by key, read from ``path`` and appended to it as they come; ``path=None`` keeps them in memory only.

    A value is whatever JSON can hold but None: a number (infinite or NaN too), a word, nested lists and dicts of these.
    Arrays are stored as ``array.tolist()``; tuples come back as lists, whether they were read from the file or not.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.values: dict[str, Any] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError, KeyError, TypeError):  # a line cut short: its point is computed again
                    self._read(line)
        self.n_stored = len(self.values)

    def _read(self, line: str) -> None:
        record = json.loads(line)
        self.values[_word(record["key"])] = record["value"]

    def get(self, key: dict[str, Any]) -> Any:
        """The stored value of ``key``, None if there is none."""
        return self.values.get(_word(key))

    def add(self, key: dict[str, Any], value: Any) -> None:
        """Store a value, on disk before this returns."""
        if value is None:
            raise ValueError("`value` must not be None, which stands for a point that is missing.")
        line = json.dumps({"key": key, "value": value})
        self._read(line)
        if self.path is None:
            return
        with open(self.path, "ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _word(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
