"""The one interface of all ways to solve the dynamics."""

from abc import ABC, abstractmethod

from widefield.theories.dynamics.curves import TrainingCurves
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.request import Request


class Method(ABC):
    """One way from a problem to its training curves. Methods are tried in a declared order; the first that covers solves."""

    @abstractmethod
    def covers(self, problem: Problem, request: Request) -> bool:
        """Whether this method is meant for the problem and has every field that is asked for."""

    @abstractmethod
    def solve(self, problem: Problem, request: Request) -> TrainingCurves | None:
        """The curves with what they are judged by; None where they turn out not to be good enough, and the next method is tried."""
