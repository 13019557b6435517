r"""The interface of a branch: what a transition, a landscape or a posterior needs to know of stationary states.

With tied weights, an input that drives states of one parity and labels on states of one parity, :math:`W \to -W` is a
symmetry. The *incoherent* state has no correlations at odd lags and is stationary at every label strength, so that a
vanishing gradient says nothing; *coherent* states have correlations between adjacent states. Linear networks
(`linear.branches`) and all others (`nonlinear.branches`) find, follow and judge both in their own way.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from widefield.answer.certificate import Check, Status
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.posterior.problem import Problem, by_state, is_tied
from widefield.theories.posterior.start import Start

BESIDE = np.geomspace(1e-6, 5e-5, 5)  # a fold, where it is read off
COHERENT = 1e-6  # adjacent-state correlation from which a branch is called coherent
MAX_STEPS, MAX_SEED = 10**9, 2**62
Advance = Callable[[int], object]


def at_most(name: str, value: Any, minimum: int, maximum: int) -> int:
    """``value`` as an int between two others."""
    if checks.integer(name, value, minimum) > maximum:
        raise ValueError(f"`{name}` must be an integer from {minimum} to {maximum}, got {value!r}.")
    return int(value)


@dataclass(frozen=True)
class Options:
    """What was asked for, as the public calls take it; ``question`` is the name of the call, which sets the defaults."""

    question: str
    rtol: float | None
    max_steps: int
    along: str = "labels"
    integration: str = "auto"
    paths: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        at_most("max_steps", self.max_steps, 1, MAX_STEPS)
        checks.choice("along", self.along, ("labels", "temperature"))
        checks.choice("integration", self.integration, ("auto", "quadrature", "importance", "annealed"))
        at_most("seed", self.seed, 0, MAX_SEED)
        if self.paths is not None:
            checks.integer("paths", self.paths, 1024)
        if self.rtol is not None:
            checks.nonnegative("rtol", self.rtol, positive=True)

    def relative_tolerance(self, rtols: Mapping[str, tuple[float, float]]) -> float:
        """What was asked, or the default of the question; ``rtols`` has that and the smallest that can be met."""
        default, smallest = rtols[self.question]
        return default if self.rtol is None else checks.tolerance("rtol", self.rtol, smallest)


@dataclass(frozen=True, eq=False)
class StationaryState:
    """A stationary point of the free energy; matrices over nodes (state, sample), state-major.

    ``residual`` is that of the equations that were solved, ``stability`` is zero where the state turns unstable.
    """

    problem: Problem
    hidden: np.ndarray
    feature: np.ndarray
    free_energy: float
    residual: float
    error: float
    stability: float
    steps: int

    @property
    def branch(self) -> str:
        """``"coherent"`` where one weight matrix correlates adjacent states; all others are ``"incoherent"``."""
        coherent = is_tied(self.problem) and adjacent_correlation(self.problem, self.hidden) > self.noise
        return "coherent" if coherent else "incoherent"

    @property
    def noise(self) -> float:
        """The adjacent correlation from which on a state is called coherent."""
        return COHERENT


S = TypeVar("S", bound=StationaryState)


class Judged(NamedTuple):
    """A state put back into its equations: its conjugate field, the parts of its free energy, and what they are worth.

    ``unstable`` is how negative a stability still counts as zero; standard errors are None where nothing is drawn.
    """

    conjugate: np.ndarray
    energy: float
    entropy: float
    checks: dict[str, Check]
    failure: Status | None
    diagnostics: dict[str, Any]
    unstable: float
    feature_stderr: np.ndarray | None = None
    hidden_stderr: np.ndarray | None = None


class GrowthLaw(NamedTuple, Generic[S]):
    """How the coherent branch leaves the incoherent one; ``guess`` gives starts on it, ``lost`` says what was not reached."""

    order: str | None
    exponent: float | None = None
    prefactor: float | None = None
    spinodal: float | None = None
    equal_free_energy: float | None = None
    guess: Callable[[float, S], S | None] = lambda factor, near: None
    lost: tuple[str, ...] = ()


class Known(NamedTuple, Generic[S]):
    """A factor and its incoherent state."""

    factor: float
    state: S


@dataclass(frozen=True, eq=False)
class Instability(Generic[S]):
    """``factor`` and incoherent ``state`` of the instability, None where none was reached.

    There is none only where nothing was ``lost`` on the way: values at which the branch could not be followed.
    ``residual`` is that at the instability or, where there is none, the largest on the way. ``fold_error`` is that of the
    factor where the branch ends there, else None; ``folds`` are all factors at which it ended, ``path`` what it was
    followed through.
    """

    factor: float | None
    state: S | None
    lost: int
    residual: float
    begins_unstable: bool = False
    fold_error: float | None = None
    folds: tuple[float, ...] = ()
    path: tuple[Known[S], ...] = ()

    @property
    def folded(self) -> bool:
        return self.fold_error is not None

    def near(self, factor: float) -> S:
        """The state of the path next to a factor."""
        return min(self.path, key=lambda known: abs(np.log(known.factor / factor))).state


class LandscapePoint(NamedTuple):
    """The best state at one value of the correlation; ``stable`` where nothing but that correlation is unstable."""

    hidden: np.ndarray
    feature: np.ndarray
    free_energy: float
    field: float
    residual: float
    error: float
    stable: bool = True


class Branches(Protocol[S]):
    """The stationary states of one problem, and its two branches as functions of a factor on the labels or temperature.

    ``rtol`` is what states are solved to, ``crossing_rtol`` what factors are found to, ``reach`` how far factors are
    searched, ``temperature_span`` how far temperatures are for a tricritical point, and in how many steps, ``quartic_share``
    of ``rtol`` what these are found to; ``seconds`` is how long one search takes at most. States of ``sampled`` branches
    come from the same draws at every factor, so that a branch is a smooth function of it. ``symmetric``: W → −W is a
    symmetry that a coherent state breaks.
    """

    temperature_span: ClassVar[tuple[float, int]]
    quartic_share: ClassVar[float]
    problem: Problem
    along: str
    rtol: float
    crossing_rtol: float
    reach: float
    sampled: bool
    seconds: float
    n_searches: int
    symmetric: bool

    def stationary_states(self, advance: Advance, start: Start | None = None) -> list[S]:
        """States from several starts, the lowest free energy first, those that did not converge last; with ``start`` the
        first search begins there."""

    def converged(self, state: S) -> bool:
        """Whether the search for a stationary state ended there and did not stop on its way."""

    def judge(self, state: S) -> Judged:
        """The state put back into its equations."""

    def test_features(self, state: S, network: Network, task: Task) -> tuple[np.ndarray, np.ndarray | None]:
        """Features (test node, training node) of inputs that were not trained on, with standard errors where drawn."""

    def reached(self, state: S) -> bool:
        """Whether the state solves its equations well enough for its branch to be followed."""

    def incoherent(self, factor: float, start: S | None = None) -> S:
        """The state without odd lags, from the random network or from a state nearby."""

    def coherent_candidates(self, factor: float, start: S) -> Iterator[S]:
        """States that searches for the coherent one reach from ``start``, whatever they are."""

    def on_coherent_branch(self, state: S) -> bool:
        """Whether a candidate is a coherent minimum that its branch can be followed from."""

    def growth_law(self, instability: Instability[S]) -> GrowthLaw[S]:
        """Order, exponent and the other points of the transition with this instability, which was reached."""

    def quartic(self, critical: float, state: S) -> tuple[float, float]:
        """A number with the sign of Landau's quartic coefficient at the instability, and its error."""

    def at_temperature(self, temperature: float) -> "Branches[S]":
        """The same problem at another temperature."""

    def landscape(self, pair: tuple[int, int], values: np.ndarray, advance: Advance) -> list[LandscapePoint | None]:
        """The best state at each value of the correlation of a pair of states, None where a path ended before."""

    def replicas(self, critical: float, state: S) -> np.ndarray:
        """The instability from independent sets of draws; those of deterministic branches are all the same one."""
        return np.array([critical])

    def stability(self, factor: float, start: S | None) -> tuple[float, S]:
        """Of the incoherent state, NaN where it was not reached; what `solvers.continuation` evaluates."""
        state = self.incoherent(factor, start)
        return (state.stability if self.reached(state) else np.nan), state

    @property
    def side(self) -> int:
        """The side of the instability on which networks are coherent: 1 for larger factors."""
        return 1 if self.along == "labels" else -1

    @property
    def power(self) -> int:
        """λ is the varied quantity, but the square of the labels."""
        return 2 if self.along == "labels" else 1


def fold_factor(last: float, side: int, stability: Callable[[float], float]) -> tuple[float, float]:
    """The factor at a fold next to ``last``, with a branch of minima towards ``side``, and its relative error.

    There its logarithm is a smooth function of the stability σ without a linear term: a polynomial through states beside
    it, because a search that stops at a small gradient goes too far. Error: the change from one point less.
    """
    sigma = np.array([stability(last * float(np.exp(side * distance))) for distance in BESIDE])
    if not np.isfinite(sigma).all() or len(set(sigma)) < len(sigma):
        return last, np.inf
    shifts = []
    for n in (len(sigma) - 1, len(sigma)):
        terms = np.vander(sigma[:n] / sigma.max(), n + 1, increasing=True)[:, np.arange(n + 1) != 1]
        shifts.append(np.linalg.solve(terms, side * BESIDE[:n])[0])
    return last * float(np.exp(shifts[1])), float(abs(shifts[1] - shifts[0]))


def adjacent_correlation(problem: Problem, kernel: np.ndarray, scale: np.ndarray | None = None) -> float:
    """The largest correlation between adjacent states, over all pairs of samples: the order parameter.

    ``scale`` is the kernel that has the variances, the same one by default.
    """
    deviation = np.sqrt(np.maximum(np.diagonal(kernel if scale is None else scale), 0))
    deviation = np.where(deviation > 0, deviation, np.inf)
    blocks = by_state(problem, kernel / deviation / deviation[:, None])
    return float(np.max([np.abs(blocks[a, :, a + 1]).max() for a in range(problem.depth - 1)], initial=0.0))


def adjacent_trace(problem: Problem, kernel: np.ndarray) -> float:
    """Σ_a tr H_{a,a+1}: of the two states ±W, that is chosen where it is positive."""
    blocks = by_state(problem, kernel)
    return float(sum(np.trace(blocks[a, :, a + 1]) for a in range(problem.depth - 1)))


def correlated(problem: Problem, matrix: np.ndarray, rho: float, growth: float = 1.0) -> np.ndarray:
    r""":math:`s^{(a+b)/2+1}R_a\,\rho^{|a-b|}R_b` with :math:`R_a` the roots of a matrix's equal-state blocks, :math:`s` the growth."""
    blocks, states = by_state(problem, matrix), np.arange(problem.depth)

    def root(A: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(A)
        return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T

    roots = np.stack([root(blocks[a, :, a]) * growth ** ((a + 1) / 2) for a in states])
    lags = np.where(states[:, None] == states, 1.0, rho ** np.abs(states[:, None] - states))
    return np.einsum("apq,brq,ab->apbr", roots, roots, lags).reshape(matrix.shape)
