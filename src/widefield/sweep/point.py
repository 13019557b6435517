"""One point: its answer or, where it has none, a status and a message."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from widefield.answer.certificate import Certificate, Check, SolveError, Status
from widefield.answer.solution import Solution
from widefield.sweep.question import Changes, Question

SUCCESS, REFUSED, TOO_LARGE, BROKEN = "success", "refused", "too_large", "error"
RAISED = {REFUSED: ValueError, TOO_LARGE: MemoryError}  # where no point has an answer


@dataclass(frozen=True, eq=False)
class Point:
    """``status`` is that of the certificate, or ``"refused"`` (bad input), ``"too_large"``, ``"error"``."""

    status: str
    message: str = ""
    solution: Solution | None = None

    @property
    def failed(self) -> bool:
        return self.status != SUCCESS

    @property
    def checks(self) -> Mapping[str, Check]:
        return {} if self.solution is None else self.solution.certificate.checks


def ask(question: Question, changes: Changes) -> Point:
    """The answer at a point. Nothing but an interrupt leaves this function."""
    try:
        return of_answer(question.ask(changes), question.keep)
    except SolveError as error:
        if error.solution is not None:
            return of_answer(error.solution, question.keep)
        return Point(BROKEN, _line(error))
    except MemoryError as error:
        return Point(TOO_LARGE, _line(error))
    except (ValueError, TypeError) as error:
        return Point(REFUSED, _line(error))
    except Exception as error:  # a defect in one point costs no other
        return Point(BROKEN, f"{type(error).__name__}: {_line(error)}")


def of_answer(answer: Any, keep: bool) -> Point:
    """The point of an answer; what a failed one reached only where that is to be kept."""
    solution = _as_solution(answer)
    if solution.status is Status.success:
        return Point(SUCCESS, solution=solution)
    return Point(solution.status.name, _reason(solution.certificate), solution if keep else None)


def _as_solution(answer: Any) -> Solution:
    """A transition is its curve, with its points as further fields (NaN where there is none)."""
    if isinstance(answer, Solution):
        return answer
    curve = answer.curve
    known = {
        f.name: getattr(answer, f.name) for f in fields(answer) if f.name not in ("curve", *curve.certificate.options)
    }
    numbers = {name: np.nan if value is None else value for name, value in known.items()}
    numbers["order"] = answer.order or ""
    return replace(curve, data=curve.data.assign({name: ((), value) for name, value in numbers.items()}))


def _reason(certificate: Certificate) -> str:
    """Why an answer is no success, in one line."""
    missed = [f"{name} {c.value:.1e} above {c.limit:.1e}" for name, c in certificate.checks.items() if not c.met]
    return "; ".join([certificate.status.value, *missed, *certificate.notes])


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
