r"""Many training runs of one shape in one compilation, and what they say about the rate.

On the CPU runs follow each other, since a march is bound by memory; on an accelerator they go side by side. Several
devices share them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from widefield.answer.devices import n_devices, on_devices
from widefield.theories.proportional.march.causal import Parameters, Shape, march
from widefield.theories.proportional.problem import Problem, refuse_memory
from widefield.theories.proportional.training_curves import check_memory, diverged_at, march_seconds, train

N_RATES = 16  # in one call; a search takes several calls of this size, so that it compiles once
FEWEST_ZOOMS, MOST_ZOOMS = 4, 8  # each takes the optimum's error down by 2/9, that of the edge by 1/9
N_EXTENSIONS = 6
Advance = Callable[[int], None]


@partial(jax.jit, static_argnames=("shape", "side_by_side", "n"))
def losses(parameters: Parameters, shape: Shape, side_by_side: bool, n: int = 1) -> Array:
    """Losses (run, row, 5) of parameters with a leading axis, shared among ``n`` devices."""
    one = lambda p: march(p, shape).inputs.losses  # noqa: E731
    return on_devices(jax.vmap(one) if side_by_side else partial(lax.map, one), n)(parameters)


def sweep(problems: list[Problem]) -> np.ndarray:
    """Test loss (run, row) of runs of one shape, infinite from a divergence on; channels are averaged."""
    shape, n, side_by_side = problems[0].shape, problems[0].n_rows, jax.default_backend() != "cpu"
    spread = n_devices(len(problems))
    check_memory(problems[0], at_once=len(problems) if side_by_side else spread)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(problem.parameters for problem in problems))
    curves = np.asarray(losses(stacked, shape, side_by_side, spread)).reshape(len(problems), n + 1, -1, 5)
    test_loss = curves[:, :n, :, 0].mean(axis=2)
    for curve in test_loss:
        stop = diverged_at(curve[:, None])
        if stop is not None:
            curve[stop:] = np.inf
    return test_loss


def at_rates(problem: Problem, rates: np.ndarray, advance: Advance) -> np.ndarray:
    """Test loss (rate, row) at several constant rates; ``advance`` is told how many are done."""
    refuse_memory(8 * len(rates) * (problem.n_rows + 1) * 6, f"`rates`: {len(rates)} curves", len(rates), "rates")
    parts = []
    for i in range(0, len(rates), N_RATES):
        some = rates[i : i + N_RATES]
        padded = np.pad(some, (0, N_RATES - len(some)), mode="edge")
        parts.append(sweep([problem.at_rate(rate) for rate in padded]))
        advance(len(some))
    return np.concatenate(parts)[: len(rates)]


def seconds_of(problem: Problem) -> float:
    """Of one run, about."""
    return 0.01 + march_seconds(problem)


@dataclass(frozen=True)
class RateSearch:
    """Rates, ascending, with the test losses (rate, row) at them."""

    problem: Problem
    rates: np.ndarray
    losses: np.ndarray

    @property
    def stable(self) -> np.ndarray:
        """Whether training at a rate has lowered the loss at the end."""
        return self.losses[:, -1] < self.losses[:, 0]

    @property
    def n_diverged(self) -> int:
        """Runs whose loss has left all bounds."""
        return int(np.isinf(self.losses[:, -1]).sum())

    @property
    def edge(self) -> tuple[float, float]:
        """The largest stable rate and how far the next one is, which is not; infinitely far where there is none."""
        last = int(np.flatnonzero(self.stable)[-1]) if self.stable.any() else 0
        rate = float(self.rates[last])
        bracketed = self.stable.any() and last + 1 < len(self.rates)
        return rate, float(self.rates[last + 1] - rate) if bracketed else np.inf

    def best(self, row: int) -> tuple[float, float]:
        """The rate with the smallest loss at a row, from a parabola in its logarithm, and half the distance of its neighbors.

        An optimum at either end of the rates is not bracketed: its error is infinite.
        """
        loss = self.losses[:, row]
        i = int(np.argmin(loss))
        if i in (0, len(loss) - 1):
            return float(self.rates[i]), np.inf
        error = float((self.rates[i + 1] - self.rates[i - 1]) / 2)
        if not np.isfinite(loss[i + 1]):
            return float(self.rates[i]), error
        x, y = np.log(self.rates[i - 1 : i + 2]), loss[i - 1 : i + 2]
        curvature, slope, _ = np.polyfit(x - x[1], y, 2)
        vertex = float(np.clip(-slope / (2 * curvature), x[0] - x[1], x[2] - x[1])) if curvature > 0 else 0.0
        return float(self.rates[i] * np.exp(vertex)), error

    def errors(self) -> list[float]:
        """Of the best rate at the end and of the largest stable one, relative; infinite where one is not bracketed."""
        return [error / rate for rate, error in (self.best(-1), self.edge)]

    def with_rates(self, rates: np.ndarray, advance: Advance) -> "RateSearch":
        """The search with more rates."""
        all_rates, first = np.unique(np.concatenate([self.rates, rates]), return_index=True)
        return replace(
            self, rates=all_rates, losses=np.concatenate([self.losses, at_rates(self.problem, rates, advance)])[first]
        )

    def mismatch(self) -> float:
        """The residual of the best run, marched again by itself, or its distance from the sweep relative to its largest loss."""
        best = int(np.argmin(self.losses[:, -1]))
        training = train(self.problem.at_rate(float(self.rates[best])), progress=False)
        swept, alone = self.losses[best], training.arrays["test_loss"].mean(axis=1)
        finite = np.isfinite(alone) & np.isfinite(swept)
        difference = np.abs(swept[finite] - alone[finite]).max() / alone[finite].max()
        return float(np.maximum(training.residual, difference))  # NaN stays


def search(problem: Problem, rates: np.ndarray | None, advance: Advance, rtol: float = 1.0) -> RateSearch:
    """Sweep a coarse grid, then closer ones around the best rate at the end and around the largest stable one."""
    if rates is not None:
        return RateSearch(problem, rates, at_rates(problem, rates, advance))
    grid = np.geomspace(1e-4, 10.0, N_RATES) / (problem.network.depth + 1)
    sought = RateSearch(problem, grid, at_rates(problem, grid, advance))
    for _ in range(N_EXTENSIONS):  # until there are stable rates on one side and unstable ones on the other
        if sought.stable.any() and not sought.stable[-1]:
            break
        sought = sought.with_rates(sought.rates * (1e4 if sought.stable.any() else 1e-4), advance)
    else:
        raise ValueError(
            f"`rates` have to be given: none between {sought.rates[0]:.1e} and {sought.rates[-1]:.1e} "
            f"{'is unstable' if sought.stable.any() else 'lowers the loss'}."
        )
    for zooms in range(MOST_ZOOMS):
        if zooms >= FEWEST_ZOOMS and max(sought.errors()) <= rtol:
            break
        lowest, last = int(np.argmin(sought.losses[:, -1])), len(sought.rates) - 1
        edge = int(np.flatnonzero(sought.stable)[-1])
        ends = ((max(lowest - 1, 0), min(lowest + 1, last)), (edge, min(edge + 1, last)))
        closer = [np.geomspace(sought.rates[low], sought.rates[high], N_RATES // 2 + 2)[1:-1] for low, high in ends]
        sought = sought.with_rates(np.concatenate(closer), advance)
    return sought
