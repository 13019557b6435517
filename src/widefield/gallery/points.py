"""Finished points of a long run, kept in a file of one line each, so that the run can be taken up again."""

import json
import os
from pathlib import Path
from typing import Any


class Points:
    """Numbers by key, read from ``path`` and appended to it as they come; ``path=None`` keeps them in memory only."""

    def __init__(self, path: Path | None):
        self.path = path
        self.values: dict[str, float] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(line)
        self.n_found = len(self.values)

    def _read(self, line: str) -> None:
        try:
            record = json.loads(line)
            self.values[_word(record["key"])] = float(record["value"])
        except (ValueError, KeyError, TypeError):
            return  # a line cut short by an interruption: its point is computed again

    def get(self, key: dict[str, Any]) -> float | None:
        """The stored number of ``key``, if there is one."""
        return self.values.get(_word(key))

    def add(self, key: dict[str, Any], value: float) -> None:
        """Store a number, on disk before this returns."""
        self.values[_word(key)] = value
        if self.path is None:
            return
        with open(self.path, "ab+") as file:
            if file.tell() and not self._ends_a_line(file):
                file.write(b"\n")
            file.write(json.dumps({"key": key, "value": value}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def _ends_a_line(file: Any) -> bool:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _word(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
