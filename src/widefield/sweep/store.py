"""A folder of finished points: one file each, written atomically, so that a sweep that was killed goes on from there."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from widefield.answer.files import load, save, write_atomically
from widefield.question import checks
from widefield.sweep.point import Point, of_answer
from widefield.sweep.question import Changes, Question, described, digest_of, fixed_part

QUESTION = "question.json"
POINT = "sweep_point"  # the attribute of a file that names its point
SHOWN = 3  # differences in a message


class Store:
    """Points of one question: ``<digest>.nc`` where there is an answer, ``<digest>.json`` where there is none.

    ``question.json`` is what all points have in common. Values may be added to an axis later: a point is known by what is
    asked there, not by its place in the grid.
    """

    def __init__(self, path: str | os.PathLike, question: Question, swept: tuple[str, ...]):
        self.folder, self.question = checks.path("store", path), question
        self.fixed = fixed_part(question, swept)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._claim()
        except OSError as error:
            raise ValueError(f"`store` {str(self.folder)!r} cannot be used: {error}.") from error

    def _claim(self) -> None:
        """Make the folder that of this question, or see that it is."""
        manifest = self.folder / QUESTION
        if not manifest.exists():
            if any(not name.startswith(".widefield-") for name in os.listdir(self.folder)):
                raise ValueError(
                    f"`store` must be an empty folder or that of a sweep, but {str(self.folder)!r} is neither."
                )
            write_atomically(manifest, json.dumps(self.fixed, indent=1).encode())
            return
        try:
            there = json.loads(manifest.read_text(encoding="utf-8"))
            words = _differences(there, json.loads(json.dumps(self.fixed)))
        except (ValueError, AttributeError) as error:
            raise ValueError(f"`store` is damaged: {str(manifest)!r} cannot be read ({error}).") from None
        if words:
            raise ValueError(f"`store` {str(self.folder)!r} is that of another question: {'; '.join(words)}.")

    def name_of(self, changes: Changes) -> str:
        """What the files of a point are called."""
        return digest_of({"question": self.fixed, "point": described(changes)})

    def read(self, name: str) -> tuple[Point | None, str]:
        """The point that is stored under a name, if there is one, and what is wrong with its file."""
        answer, failure = self.folder / f"{name}.nc", self.folder / f"{name}.json"
        try:
            if answer.exists():
                solution = load(answer)
                if solution.data.attrs.pop(POINT, None) != name:
                    raise ValueError("it is the answer of another point")
                return of_answer(solution, self.question.keep), ""
            if failure.exists():
                stored = json.loads(failure.read_text(encoding="utf-8"))
                return Point(str(stored["status"]), str(stored["message"])), ""
        except (ValueError, KeyError, TypeError) as error:
            return None, f"a damaged file in the store was made again: {' '.join(str(error).split())}"
        return None, ""

    def write(self, name: str, changes: Changes, point: Point) -> None:
        """Put a finished point into the store, in place of what was there."""
        answer, failure = self.folder / f"{name}.nc", self.folder / f"{name}.json"
        if point.solution is None:
            words = {"status": point.status, "message": point.message, "point": described(changes)}
            write_atomically(failure, json.dumps(words, indent=1).encode())
            answer.unlink(missing_ok=True)
            return
        data = point.solution.data.assign_attrs({POINT: name})
        save(replace(point.solution, data=data), answer)
        failure.unlink(missing_ok=True)


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The first entries in which two questions differ, in words."""
    none = "not there"
    names = [
        name for name in (*there, *(n for n in here if n not in there)) if there.get(name, none) != here.get(name, none)
    ]
    say = lambda part, name: checks.shown(part[name]) if name in part else none  # noqa: E731
    words = [f"its {name} is {say(there, name)}, this one's is {say(here, name)}" for name in names[:SHOWN]]
    return words + [f"and {len(names) - SHOWN} more"] * (len(names) > SHOWN)
