"""Bad arguments by the dozen: of any public callable, several at a time, nested, of wrong sizes, wrong in one entry."""

import contextlib
import inspect
import os
import re
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import jax
import numpy as np

import widefield as wf
from fuzz import questions as ask
from fuzz.questions import Question
from fuzz.verdicts import Defect, Slow

TRIES = 25  # a question
NEVER = (np.nan, 1j, "abc", b"x", object(), {"a": 1.0}, {1.0, 2.0}, np.datetime64("2026-01-01"), np.array(["1"]), len)
PERHAPS = (
    None,
    True,
    False,
    0,
    -1,
    0.0,
    -0.5,
    0.5,
    2,
    7,
    1e300,
    -1e300,
    5e-324,
    10**30,
    np.inf,
    -np.inf,
    [],
    (),
    np.float32(0.5),
)
SIZES = ((0,), (1,), (2,), (7,), (0, 3), (3, 0), (1, 1), (2, 3), (3, 3), (1, 2, 3), (2, 2, 2, 2), (1, 1, 1, 1, 1))
PLAIN = {"kind": "DNN", "depth": 1, "activation": "linear"}
NOT_ASKED = ("cache_compilations", "tasks.cifar10", "Solution.plot", "load")  # files and settings: the tests ask these


@lru_cache
def table() -> Any:
    """The valid arguments that the tests keep of every public callable."""
    from tests import test_bad_input

    return test_bad_input


def draw(rng: np.random.Generator) -> Question:
    names = [name for name in sorted(table().BASES) if name not in NOT_ASKED]
    return Question(PLAIN, call={"callable": ask.pick(rng, *names), "tries": int(rng.integers(10**9))})


def bad(rng: np.random.Generator, valid: Any) -> tuple[Any, bool]:
    """A value, and whether it may be meant."""
    kind = rng.random()
    if kind < 0.25:
        return ask.pick(rng, *NEVER), False
    if kind < 0.5:
        return ask.pick(rng, *PERHAPS), True
    if kind < 0.65:  # nested
        inner, meant = (ask.pick(rng, *NEVER), False) if ask.chance(rng, 0.5) else (ask.pick(rng, *PERHAPS), True)
        return ask.pick(rng, [inner], [[inner]], (inner, 1.0), [1.0, inner], [[1.0, 2.0], [inner]]), meant
    if kind < 0.8 or not isinstance(valid, np.ndarray | list | tuple) or not np.size(valid):
        return np.round(rng.normal(size=ask.pick(rng, *SIZES)), 2), True
    if kind < 0.92:  # valid but for one entry
        wrong = ask.pick(rng, np.nan, np.inf, 1j, None, "a")
        array = np.array(valid, dtype=object)
        array.flat[rng.integers(array.size)] = wrong
        with contextlib.suppress(TypeError, ValueError):
            array = array.astype(complex if wrong == 1j else float) if wrong not in (None, "a") else array
        return ask.pick(rng, array, array.tolist()), False
    array = np.asarray(valid)
    return ask.pick(rng, array[:-1], array[..., :-1], array[None], np.concatenate([array, array]), array.T), True


def tries(q: Question) -> Iterator[tuple[dict[str, Any], set[str]]]:
    """Changed arguments, and those of them that cannot be meant."""
    call, given = table().BASES[q.call["callable"]][0], table().base_of(q.call["callable"])
    rng, names = np.random.default_rng(q.call["tries"]), list(inspect.signature(call).parameters)
    for _ in range(TRIES):
        chosen = rng.choice(names, min(len(names), ask.pick(rng, 1, 1, 2, 3)), replace=False)
        changed = {str(name): bad(rng, given.get(name)) for name in chosen}
        text = {name for name in changed if (q.call["callable"], name) in table().TEXT}
        never = {name for name, (_, meant) in changed.items() if not meant} - text
        yield {name: value for name, (value, _) in changed.items()}, never


def offense(name: str, changed: dict[str, Any], never: set[str]) -> str | None:
    """What is wrong with how it is taken."""
    call, given = table().BASES[name][0], table().base_of(name)
    try:
        found = call(**{**given, **changed})
    except Slow:
        raise
    except wf.SolveError:
        return f"solved with {sorted(never)}" if never else None
    except (ValueError, TypeError, MemoryError) as error:
        words = str(error)
        named = any(re.search(rf"`[^`]*\b{re.escape(argument)}\b", words) for argument in changed)
        return None if named else f"{type(error).__name__} that names none: {words[:120]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    if never:
        return f"accepted with {sorted(never)}"
    unknown = table().nan_fields(found) - table().NAN_MEANS.get(name, set())
    return f"NaN in {unknown} beside success" if unknown else None


def refused_by_name(q: Question) -> None:
    """A ValueError, TypeError or MemoryError that names one of them, or an answer without NaN where all may be meant."""
    name, offenses = q.call["callable"], []
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for changed, never in tries(q):
            wrong = offense(name, changed, never)
            if wrong is not None:
                offenses.append(f"{name}({', '.join(f'{k}={v!r:.80}' for k, v in changed.items())}): {wrong}")
    assert os.getcwd() == before and not jax.config.jax_enable_x64
    if offenses:
        raise Defect(f"{len(offenses)} of {TRIES}: " + "; ".join(offenses))
