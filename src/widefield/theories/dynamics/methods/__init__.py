"""Ways to solve the dynamics: modules of two functions, tried in order; the first that covers a question solves it."""

from typing import Protocol

from widefield.theories.dynamics.curves import TrainingCurves
from widefield.theories.dynamics.methods import flow, lazy, paths, perturbative, two_layers, whitened
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.request import Request


class Method(Protocol):
    """One way from a problem to its training curves."""

    def covers(self, problem: Problem, request: Request) -> bool:
        """Whether this method is meant for the problem and has every field that is asked for."""

    def solve(self, problem: Problem, request: Request) -> TrainingCurves | None:
        """The curves with what they are judged by; None where they are not good enough, and the next method is tried."""


ORDER: tuple[Method, ...] = (lazy, perturbative, two_layers, whitened, flow, paths)
