"""What can come of a question, how far an answer may be from its judge, and how a failure is made small."""

import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

import widefield as wf
from fuzz.questions import Question

VERDICTS = ("agreed", "refused", "slow", "defect")
LONGEST = 90  # seconds of the processor for a question, and ten times as many on the clock
ALPHA = 1e-7  # of a Student test, shared by its entries: an hour asks some thousand of them


class Refused(Exception):
    """The library says by name that it does not answer."""


class Defect(Exception):
    """The library and its judge disagree, or an answer is not one."""


class Slow(Exception):
    """The question takes longer than it is worth."""


@dataclass(frozen=True)
class Judge:
    """``draw`` makes a random question, ``check`` returns if the answer is right."""

    name: str
    draw: Callable[[np.random.Generator], Question]
    check: Callable[[Question], None]


def answer(call: Callable[..., Any], *nouns: Any, gaps: bool = False, **options: Any) -> Any:
    """The answer; a refusal must name an argument or a status, and success must not hold NaN unless it may have ``gaps``."""
    try:
        solution = call(*nouns, progress=False, **options)
    except ValueError as error:
        if re.search(r"`\w+", str(error)):
            raise Refused(f"ValueError: {error}") from error
        raise Defect(f"a ValueError that names no argument: {error}") from error
    except wf.SolveError as error:
        status = error.solution.certificate.status
        if status is wf.Status.success or status.name not in str(error):
            raise Defect(f"a SolveError that does not say its status: {error}") from error
        raise Refused(f"SolveError: {status.name}") from error
    for name, values in solution.data.data_vars.items():
        if not gaps and values.dtype.kind == "f" and np.isnan(values.values).any():
            raise Defect(f"success with NaN in {name}")
    return solution


def close(what: str, found: Any, expected: Any, limit: Any) -> None:
    """Entry by entry within ``limit``."""
    found, expected = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
    if found.shape != expected.shape:
        raise Defect(f"{what}: shape {found.shape}, the judge has {expected.shape}")
    off, limit = np.abs(found - expected), np.broadcast_to(limit, found.shape) + 1e-300
    if not (off <= limit).all():
        at = np.unravel_index(int(np.argmax(np.where(np.isnan(off), np.inf, off / limit))), off.shape)
        said = f"{found[at]:.10g}, the judge has {expected[at]:.10g}, limit {limit[at]:.1e}"
        raise Defect(f"{what}: {said}, entry {tuple(map(int, at))}")


def student(what: str, theory: Any, samples: np.ndarray, *, stderr: Any = 0.0, bound: Any = 0.0) -> None:
    """Replicates along axis 0 against ``theory`` with its own standard error and a ``bound`` of what is not chance."""
    theory, n = np.asarray(theory, dtype=float), len(samples)
    error = np.hypot(samples.std(axis=0, ddof=1) / np.sqrt(n), stderr)
    limit = stats.t.isf(ALPHA / (2 * max(1, theory.size)), n - 1) * error + bound + 1e-9 * np.abs(theory).max()
    close(what, theory, samples.mean(axis=0), limit)


def outcome(judge: Judge, question: Question) -> tuple[str, str]:
    """One of ``VERDICTS``, and the words; warnings and exceptions of other kinds are defects."""

    def stop(*_: Any) -> None:
        raise Slow(f"longer than {LONGEST} s")

    timers = {signal.SIGALRM: (signal.ITIMER_REAL, 10 * LONGEST), signal.SIGPROF: (signal.ITIMER_PROF, LONGEST)}
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            judge.check(question)
        return "agreed", ""
    except (Refused, Slow, Defect) as why:
        return type(why).__name__.lower(), str(why)
    except Exception as error:
        return "defect", f"{type(error).__name__}: {error}"
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def smaller(q: Question) -> Iterator[Question]:
    """Simpler questions near by: fewer samples, less depth, plainer words."""
    n, depth, plain = len(q.x), q.network["depth"], ("linear", "relu", "tanh")
    for kept in (range(n // 2), range(n // 2, n), *([j for j in range(n) if j != i] for i in range(n))):
        if 0 < len(kept) < n:
            yield replace(q, x=[q.x[i] for i in kept], y=q.y and [q.y[i] for i in kept])
    for less in sorted({1, depth // 2, depth - 1} & set(range(1, depth))):
        yield replace(q, network=q.network | {"depth": less})
    now = q.network["activation"]
    for activation in plain[: plain.index(now) if now in plain else None]:
        yield replace(q, network=q.network | {"activation": activation})
    for name in ("network", "training", "teacher"):
        words = getattr(q, name)
        for key in set(words) - {"kind", "depth", "activation", "rate", "steps"}:
            yield replace(q, **{name: {k: v for k, v in words.items() if k != key}})
    if q.x_test:
        yield replace(q, x_test=None)


def kind(words: str) -> str:
    """What two failures of one cause have in common."""
    return re.sub(r"\d+", "", words.split(":")[0])


def shrink(judge: Judge, question: Question, words: str, seconds: float) -> tuple[Question, str]:
    """The smallest question that is found to fail in the same way, and its words."""
    stop, candidates = time.process_time() + seconds, smaller(question)
    while time.process_time() < stop and (candidate := next(candidates, None)):
        verdict, said = outcome(judge, candidate)
        if verdict == "defect" and kind(said) == kind(words):
            question, words, candidates = candidate, said, smaller(candidate)
    return question, words


def script(judge: Judge, question: Question) -> str:
    """A program that asks this one question again, from the top of the repository."""
    lines = [
        "from fuzz.__main__ import replay",
        "from fuzz.questions import Question",
        "",
        f"replay({judge.name!r}, Question(",
    ]
    fields = [f"    {name}={value!r}," for name, value in vars(question).items() if value not in ({}, [], None)]
    return "\n".join([*lines, *fields, "))"])
