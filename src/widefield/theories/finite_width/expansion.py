"""What both expansions in 1/n have in common: the question, the interface, and how far the first order can be trusted."""

import abc
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from widefield.answer.certificate import Check, SolveError, Status
from widefield.question.network import Network
from widefield.question.task import Task

MAX_QUARTETS = 3000  # four-point averages (per layer, where weights are untied) that are made without being asked for
TRUSTED = 0.3  # of V/(nK²), the variance of a kernel entry relative to its square

Dims = tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """What is asked of an expansion, checked; ``quadruples`` are rows of four sample indices."""

    network: Network
    task: Task
    width: int
    rtol: float
    progress: bool | None = None
    quadruples: np.ndarray | None = None

    @property
    def lengths(self) -> dict[str, int]:
        """Lengths of the axes that all fields share."""
        n_layers = self.network.depth + (self.network.readout_variance is not None)
        return {"layer": n_layers, "state": self.network.depth, "sample": self.task.n_samples}

    @cached_property
    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Different training inputs, and which of them each sample is."""
        return _different(self.points(test=False).sequences(self.network.depth))

    @cached_property
    def inputs_and_tests(self) -> tuple[np.ndarray, np.ndarray]:
        """The same with the test inputs."""
        return _different(self.points(test=True).sequences(self.network.depth))

    def points(self, *, test: bool) -> Task:
        """Training inputs, with ``test`` the test inputs behind them, without labels."""
        x, x_test = self.task.x, self.task.x_test
        return Task(np.concatenate([x, x_test]) if test and x_test is not None else x)


def _different(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    flat = x.reshape(len(x), -1) + 0.0  # no negative zeros
    _, first, back = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return x[first[order]], np.argsort(order)[back.reshape(-1)]


class Quantity(NamedTuple):
    """A field that can be asked for, and why it is not made by default (empty if it is)."""

    dims: Dims
    shape: tuple[int, ...]
    expensive: str = ""

    @property
    def size(self) -> int:
        """Bytes."""
        return 8 * math.prod(self.shape)

    @property
    def growth(self) -> int:
        """The power of the number of samples with which it grows."""
        powers = {"sample": 1, "pair": 2}  # pairs of nodes; the three pairs of two samples are always three
        return sum(powers.get(axis.rstrip("_"), 0) for axis, n in zip(self.dims, self.shape, strict=True) if n != 3)


class Work(NamedTuple):
    """Bytes beside the fields: what is kept, what passes before fields are made, and what a regression takes after."""

    kept: float
    passing: float
    after: float


class ReadoutMoments(NamedTuple):
    """K, G1 and V of outputs: training inputs at the supervised states, then test inputs at the predicted ones.

    Within each part the state runs first. Shapes (output, output\\_) and, for V, four times an output.
    """

    kernel: np.ndarray
    correction: np.ndarray
    vertex: np.ndarray


@dataclass(frozen=True)
class Result:
    """Fields, none where something failed, with what the certificate says of them; ``readout`` for a regression."""

    fields: dict[str, Any]
    checks: dict[str, Check] = field(default_factory=dict)
    failure: Status | None = None
    coords: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    diagnostics: dict[str, Any] = field(default_factory=dict)
    readout: ReadoutMoments | None = None


class AbstractExpansion(abc.ABC):
    """An expansion in 1/n: which fields it has, and how they are made."""

    @abc.abstractmethod
    def available(self, question: Question) -> tuple[dict[str, Quantity], tuple[str, ...]]:
        """Fields by name, the most wanted first, and notes on those that there cannot be."""

    @abc.abstractmethod
    def n_quartets(self, question: Question, *, alone: bool) -> int:
        """Four-point averages that a regression adds to the fields, or takes where it is ``alone``."""

    @abc.abstractmethod
    def predicted_states(self, question: Question) -> tuple[int, ...]:
        """States at which a regression predicts; none where the supervised states cannot be read out."""

    @abc.abstractmethod
    def work(self, question: Question, names: Collection[str], n_points: int, *, readout: bool) -> Work:
        """What `solve` takes for the fields ``names``, of ``n_points`` different inputs."""

    @abc.abstractmethod
    def solve(self, question: Question, names: tuple[str, ...], *, readout: bool) -> Result:
        """The fields ``names`` of the training inputs and, with ``readout``, the moments that a regression needs."""


def quantities_of(dims: Mapping[str, Dims], lengths: Mapping[str, int]) -> dict[str, Quantity]:
    """Quantities from their dims and the lengths of these (copies of an axis end in underscores)."""
    return {name: Quantity(d, tuple(lengths[axis.rstrip("_")] for axis in d)) for name, d in dims.items()}


def failure_of(error: SolveError | OverflowError) -> Status:
    """What an average that could not be made means."""
    return Status.nonfinite if isinstance(error, OverflowError) else Status.inaccurate


def verdict(violation: float | None, error: float, rtol: float) -> tuple[dict[str, Check], tuple[str, ...]]:
    """What success rests on, and notes; ``violation`` of the equations is None where no average could be made again."""
    verdicts = {"error": Check(error, rtol)}
    if violation is None:
        return verdicts, ("no residual: the averages are beyond the reach of the quadrature that would check them",)
    return {"residual": Check(violation, rtol)} | verdicts, ()


def judge(ratio: np.ndarray, width: int) -> tuple[dict[str, Check], tuple[str, ...], dict[str, Any]]:
    """Whether, and how far down, the first order can be trusted; ``ratio`` is V/(nK²) of every layer at this width."""
    ratio = ratio * (1 - 1e-12)  # the width that is needed survives rounding
    beyond = np.flatnonzero(ratio > TRUSTED)
    needed = max(1, math.ceil(width * float(ratio.max()) / TRUSTED))
    verdicts = {"expansion": Check(float(ratio.max()), TRUSTED)}
    diagnostics = {"trusted_layers": int(beyond[0]) if len(beyond) else len(ratio), "width_needed": needed}
    if not len(beyond):
        return verdicts, (), diagnostics
    note = (
        f"beyond the reach of the expansion: V/(nK²) reaches {ratio.max():.2g}, more than {TRUSTED:g} from layer "
        f"{beyond[0] + 1} on, where the first order is not trustworthy; width {needed} or more would do"
    )
    return verdicts, (note,), diagnostics
