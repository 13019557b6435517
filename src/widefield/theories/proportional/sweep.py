r"""Many training runs of one shape in one compilation, and what they say about the rate.

On the CPU runs follow each other, since a march is bound by memory; on an accelerator they go side by side.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from widefield.theories.proportional.march import Parameters, Shape, march
from widefield.theories.proportional.problem import Problem
from widefield.theories.proportional.run import diverged_at

N_RATES = 16  # in one call; a search takes several calls of this size, so that it compiles once
ZOOMS = 4


@partial(jax.jit, static_argnames=("shape", "side_by_side"))
def losses(parameters: Parameters, shape: Shape, side_by_side: bool) -> Array:
    """Losses (run, row, 5) of parameters with a leading axis."""
    one = lambda p: march(p, shape).inputs.losses  # noqa: E731
    return jax.vmap(one)(parameters) if side_by_side else lax.map(one, parameters)


def sweep(problems: list[Problem]) -> np.ndarray:
    """Test and train loss (run, row, 2) of runs of one shape, infinite from a divergence on; channels are averaged."""
    shape, n = problems[0].shape, problems[0].n_rows
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(problem.parameters for problem in problems))
    found = np.asarray(losses(stacked, shape, jax.default_backend() != "cpu"))
    curves = found.reshape(len(problems), n + 1, -1, 5)[:, :n, :, :2].mean(axis=2)
    for run in curves:
        stop = diverged_at(run[:, :1])
        if stop is not None:
            run[stop:] = np.inf
    return curves


def at_rates(problem: Problem, rates: np.ndarray) -> np.ndarray:
    """Test loss (rate, row) at several constant rates."""
    runs = [replace(problem, rates=np.full(len(problem.rates), rate)) for rate in rates]
    padded = runs + runs[-1:] * (-len(runs) % N_RATES)
    parts = [sweep(padded[i : i + N_RATES])[..., 0] for i in range(0, len(padded), N_RATES)]
    return np.concatenate(parts)[: len(rates)]


@dataclass(frozen=True)
class Search:
    """Rates, ascending, with the test losses (rate, row) found at them, and the largest stable rate as an interval."""

    rates: np.ndarray
    losses: np.ndarray

    @property
    def stable(self) -> np.ndarray:
        """Whether training at a rate has lowered the loss at the end."""
        return self.losses[:, -1] < self.losses[:, 0]

    @property
    def edge(self) -> tuple[float, float]:
        """The largest stable rate and the next one, which is not."""
        last = int(np.flatnonzero(self.stable)[-1])
        return self.rates[last], self.rates[min(last + 1, len(self.rates) - 1)]

    def best(self, row: int) -> tuple[float, float]:
        """The rate with the smallest loss at a row, from a parabola in its logarithm, and the distance to its neighbours."""
        loss = self.losses[:, row]
        i = int(np.argmin(loss))
        if i in (0, len(loss) - 1) or not np.isfinite(loss[i + 1]):
            near = self.rates[[max(i - 1, 0), min(i + 1, len(loss) - 1)]]
            return float(self.rates[i]), float(np.ptp(near) / 2)
        x, y = np.log(self.rates[i - 1 : i + 2]), loss[i - 1 : i + 2]
        curvature, slope, _ = np.polyfit(x - x[1], y, 2)
        vertex = float(np.clip(-slope / (2 * curvature), x[0] - x[1], x[2] - x[1])) if curvature > 0 else 0.0
        return float(self.rates[i] * np.exp(vertex)), float((self.rates[i + 1] - self.rates[i - 1]) / 2)


def search(problem: Problem, rates: np.ndarray | None = None) -> Search:
    """Sweep a coarse grid, then closer ones around the best rate at the end and around the largest stable one."""
    grid = np.geomspace(1e-4, 10.0, N_RATES) / (problem.depth + 1) if rates is None else np.sort(rates)
    found = Search(grid, at_rates(problem, grid))
    if rates is not None:
        return found
    found = _reach(problem, found)
    for _ in range(ZOOMS):
        fresh = np.concatenate([_around_best(found), _around_edge(found)])
        found = _merge(found, fresh, at_rates(problem, fresh))
    return found


def _reach(problem: Problem, found: Search) -> Search:
    """Extend the grid until it has stable rates on one side and unstable ones on the other."""
    for _ in range(6):
        if found.stable.any() and not found.stable[-1]:
            return found
        factor = 1e4 if found.stable.any() else 1e-4
        fresh = found.rates * factor
        found = _merge(found, fresh, at_rates(problem, fresh))
    raise ValueError(
        f"`rates` have to be given: none between {found.rates[0]:.1e} and {found.rates[-1]:.1e} "
        f"{'is unstable' if found.stable.any() else 'lowers the loss'}."
    )


def _around_best(found: Search) -> np.ndarray:
    i = int(np.argmin(found.losses[:, -1]))
    low, high = found.rates[max(i - 1, 0)], found.rates[min(i + 1, len(found.rates) - 1)]
    return np.geomspace(low, high, N_RATES // 2 + 2)[1:-1]


def _around_edge(found: Search) -> np.ndarray:
    low, high = found.edge
    return np.geomspace(low, high, N_RATES // 2 + 2)[1:-1]


def _merge(found: Search, rates: np.ndarray, more: np.ndarray) -> Search:
    all_rates, first = np.unique(np.concatenate([found.rates, rates]), return_index=True)
    return Search(all_rates, np.concatenate([found.losses, more])[first])
