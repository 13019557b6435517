"""What is asked at every point: a public call by its name, its arguments, and what a point changes of them."""

import hashlib
import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from importlib import metadata
from typing import Any

import jax
import numpy as np

import widefield as wf
from widefield.answer.boundary import NOUNS, check_common
from widefield.question import checks
from widefield.question.activation import source_of
from widefield.question.difference import GRID

SWITCHES = {"progress": False, "throw": False}  # of every point: its failure is a status
DIGITS = 6  # to which a user's function is recognized by its values
Changes = Mapping[str, Any]  # values by the key of their axis


@lru_cache
def call_of(name: str) -> Callable[..., Any] | None:
    """The public call of that name, None where none that answers a question is called so."""
    room, _, last = name.rpartition(".")
    owner = {"": wf, "simulate": wf.simulate}.get(room)
    call = getattr(owner, last, None) if last not in ("load", "sweep") else None
    answers = wf.Solution, wf.Transition
    return call if inspect.isfunction(call) and inspect.signature(call).return_annotation in answers else None


def name_of(call: Any) -> str:
    """The public name of ``call``, which is that name or the function."""
    name, function = call, call
    if inspect.isfunction(call):
        name = f"{'simulate.' * call.__module__.startswith('widefield.simulate')}{call.__name__}"
    if not isinstance(name, str) or (known := call_of(name)) is None or function not in (name, known):
        names = [*dir(wf), *(f"simulate.{name}" for name in wf.simulate.__all__)]
        raise ValueError(
            f"`call` must be a public call that answers a question, or its name ({', '.join(filter(call_of, names))}), "
            f"got {checks.shown(call)}."
        )
    return name


@lru_cache
def taken_by(name: str) -> Mapping[str, inspect.Parameter]:
    """What the call of that name takes."""
    call = call_of(name)
    assert call is not None
    return inspect.signature(call).parameters


@dataclass(frozen=True, eq=False)
class Question:
    """The call and what does not vary of its arguments; ``keep`` what a failed point reached."""

    call: str
    arguments: dict[str, Any]
    keep: bool = False

    @classmethod
    def of(cls, call: Any, given: Sequence[Any], options: Mapping[str, Any], swept: Sequence[str]) -> "Question":
        """The question, once the call is known to take all arguments."""
        name = name_of(call)
        taken = [p for p in taken_by(name).values() if p.name != "progress"]
        nouns = [p.name for p in taken if p.kind is p.POSITIONAL_OR_KEYWORD]
        if len(given) > len(nouns):
            raise ValueError(f"`question` must be at most {', '.join(nouns)} for {name}, got {len(given)} arguments.")
        arguments = dict(zip(nouns, given)) | dict(options)
        for option in options:
            if option not in {p.name for p in taken}:
                words = ", ".join(p.name for p in taken)
                raise ValueError(f"`{option}` is no option of a sweep or of {name}, which takes {words}.")
            if option in nouns[: len(given)]:
                raise ValueError(f"`{option}` is given twice.")
            if option in swept and option not in NOUNS:
                raise ValueError(f"`{option}` is given and swept: give it, or name it in `over`.")
        check_common(arguments)
        keep = not checks.flag("throw", arguments.pop("throw", True))
        return cls(name, arguments, keep)

    def check_complete(self, swept: Collection[str]) -> None:
        """Refuse a question that misses an argument which is not swept either."""
        for p in taken_by(self.call).values():
            if p.default is p.empty and p.name not in {*self.arguments, *swept}:
                raise ValueError(f"`{p.name}` must be given to {self.call}, or swept.")

    def keys(self) -> list[str]:
        """What can be swept: options, nouns, numbers and words in nouns, and a factor on the labels."""
        taken = [name for name in taken_by(self.call) if name not in (*SWITCHES, "store", "client")]
        inside = [
            f"{name}.{f.name}"
            for name in taken
            if isinstance(self.arguments.get(name), checks.Noun)
            for f in fields(self.arguments[name])
            if f.init
        ]
        return taken + inside + ["labels"] * ("task" in taken)

    def at(self, changes: Changes) -> dict[str, Any]:
        """All arguments at a point: whole ones first, then fields of nouns, the labels' factor last."""
        arguments = self.arguments | {key: value for key, value in changes.items() if "." not in key}
        inside: dict[str, dict[str, Any]] = {}
        for key, value in changes.items():
            noun, _, name = key.rpartition(".")
            inside.setdefault(noun, {})[name] = value
        for noun, changed in inside.items():
            if noun:
                arguments[noun] = _with(arguments[noun], changed)
        if "labels" in changes:
            arguments["task"] = _labels_scaled(arguments["task"], arguments.pop("labels"))
        return arguments

    def ask(self, changes: Changes) -> Any:
        """What the call answers at a point."""
        call, taken = call_of(self.call), taken_by(self.call)
        assert call is not None
        return call(**self.at(changes), **{name: off for name, off in SWITCHES.items() if name in taken})


def _with(noun: Any, changed: Mapping[str, Any]) -> Any:
    """A noun with other values of some fields; a readout bias that follows the biases goes on following them."""
    follows = "bias_variance" in changed and "readout_bias_variance" not in changed
    if follows and noun.readout_bias_variance == noun.bias_variances[-1]:
        changed = {**changed, "readout_bias_variance": None}
    return _noted(noun, replace(noun, **changed))


def _labels_scaled(task: Any, factor: Any) -> Any:
    if not isinstance(task, wf.Task) or task.y is None:
        raise ValueError("`labels` is a factor on `y` of the task, which has none.")
    factor = checks.real("labels", factor)
    test = None if task.y_test is None else factor * task.y_test
    return _noted(task, replace(task, y=factor * task.y, y_test=test))


def _noted(before: Any, after: Any) -> Any:
    """What a task says of its arrays as they were given."""
    if isinstance(before, wf.Task):
        after._put(notes=before.notes)
    return after


def described(value: Any) -> Any:
    """``value`` as JSON that is the same for the same value and, arrays being digests, for no other."""
    if isinstance(value, wf.Solution):
        arrays = {str(name): array.values for name, array in value.data.variables.items()}
        return described({"data": arrays, **value.question})
    if isinstance(value, wf.Activation) and value.is_named:
        return [value.name, *value.parameters]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: described(getattr(value, f.name)) for f in fields(value) if f.name != "notes"}
    if isinstance(value, Mapping):
        return {str(key): described(part) for key, part in value.items()}
    if isinstance(value, str | bool | int | float | None):
        return int(value) if isinstance(value, float) and value.is_integer() else value  # 1.0 is 1
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        if array.dtype.kind not in "fiubcU":
            raise ValueError(f"`question` and `options` must not hold arrays of {array.dtype}.")
        return array.item() if not array.ndim else f"{array.dtype} {array.shape} sha256 {_digest(array.tobytes())}"
    if isinstance(value, list | tuple | range):
        return [described(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(map(described, value), key=str)
    if callable(value):
        return {"source": source_of(value), "values": _values_of(value)}
    raise ValueError(
        "`question` and `options` must be nouns, numbers, words, arrays, functions or solutions, which can be asked again at "
        f"every point, got {checks.shown(value)}."
    )


def _values_of(function: Callable[..., Any]) -> Any:
    """What tells functions of the same text apart."""
    for at in ((GRID,), (GRID, GRID[::-1])):
        try:
            with jax.enable_x64(True):
                return np.round(np.asarray(function(*at), dtype=float), DIGITS).tolist()
        except Exception:  # whatever a user's function raises
            continue
    return None


def flat(description: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested descriptions as one, keys joined by points."""
    parts: dict[str, Any] = {}
    for key, value in description.items():
        parts |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return parts


def fixed_part(question: Question, swept: Sequence[str]) -> dict[str, Any]:
    """What all points have in common."""
    head = {"call": question.call, "widefield": metadata.version("widefield"), "swept": sorted(swept)}
    parts = flat(described(question.arguments))
    return head | {
        name: value
        for name, value in parts.items()
        if not any(name == key or name.startswith(f"{key}.") for key in swept)
    }


def digest_of(description: Mapping[str, Any]) -> str:
    """A short name for a description."""
    return _digest(json.dumps(description, sort_keys=True).encode())[:20]


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()
