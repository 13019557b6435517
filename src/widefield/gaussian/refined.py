"""A series whose doubtful pairs are done again by quadrature: exact at any variance, at the cost of those pairs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from widefield.activation import Activation
from widefield.gaussian import quadrature
from widefield.gaussian.kernels import AbstractKernel, SeriesKernel
from widefield.solution import SolveError

_pair = jax.jit(lambda series, row, column, c, slope: series.pair(row, column, c, slope), static_argnums=4)


class RefinedKernel(AbstractKernel):
    """Runs on concrete arrays only (under `jax.disable_jit`), because which pairs are doubtful depends on values."""

    activation: Activation = eqx.field(static=True)
    series: SeriesKernel
    rtol: float = eqx.field(static=True)

    def table(self, q):
        return self.series.table(q)

    def second_moment(self, q):
        return self.series.second_moment(q)

    def pair(self, row, column, c, slope):
        with jax.disable_jit(False):
            value, derivative, error = _pair(self.series, row, column, c, slope)
            shape = jnp.broadcast_shapes(c.shape, row["variance"].shape, column["variance"].shape)
            doubtful = np.broadcast_to(~(np.asarray(error) <= self.rtol), shape)
            if not doubtful.any():
                return value, derivative, error
            q, p, pairs = (
                np.broadcast_to(np.asarray(v), shape)[doubtful] for v in (row["variance"], column["variance"], c)
            )
            error = np.where(doubtful, 0.0, np.broadcast_to(np.asarray(error), shape))
            fields = [("value", (0, 0), np.array(value))] + [("slope", (1, 1), np.array(derivative))] * slope
            for name, orders, array in fields:
                array[doubtful], estimate = quadrature.average(self.activation, orders, q, p, pairs)
                norms = (np.broadcast_to(np.asarray(t[f"{name}_norm"]), shape)[doubtful] for t in (row, column))
                relative = estimate / np.sqrt(np.prod(list(norms), axis=0))
                error[doubtful] = np.maximum(error[doubtful], relative)
            self._check(error)
            done = [jnp.asarray(array) for _, _, array in fields]
            return done[0], done[1] if slope else derivative, jnp.asarray(error)

    def _check(self, error: np.ndarray) -> None:
        worst = np.max(error)
        if not worst <= self.rtol:
            raise SolveError(
                f"Averages of {self.activation} are known only to {worst:.1e} of their scale (asked "
                f"rtol={self.rtol:g}). Name every point where the function or its derivative jumps in "
                "Activation(breaks=...), lower the variances, or raise rtol."
            )
