"""A series whose doubtful pairs are done again by quadrature: good at any variance, at the cost of those pairs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import SolveError
from widefield.gaussian import quadrature
from widefield.gaussian.kernels import AbstractKernel, SeriesKernel
from widefield.question.activation import Activation


class RefinedKernel(AbstractKernel):
    """Runs on concrete arrays only (under `jax.disable_jit`), because which pairs are doubtful depends on values."""

    activation: Activation = eqx.field(static=True)
    series: SeriesKernel
    rtol: float = eqx.field(static=True)

    def table(self, q):
        return self.series.table(q)

    def second_moment(self, q):
        return self.series.second_moment(q)

    def average(self, row, column, c, orders):
        with jax.disable_jit(False):
            value, error = _average(self.series, row, column, c, orders)
            shape = jnp.broadcast_shapes(c.shape, row["variance"].shape, column["variance"].shape)
            error = np.array(np.broadcast_to(np.asarray(error), shape))
            doubtful = ~(error <= self.rtol)
            if not doubtful.any():
                return value, error
            pick = lambda v: np.broadcast_to(np.asarray(v), shape)[doubtful]  # noqa: E731
            value = np.array(value)
            pairs = pick(row["variance"]), pick(column["variance"]), pick(c)
            value[doubtful], estimate = quadrature.average(self.activation, orders, *pairs)
            norms = (pick(t[f"moment_{k}_{k}"]) for t, k in zip((row, column), orders, strict=True))
            error[doubtful] = estimate / np.sqrt(np.prod(list(norms), axis=0))
            worst = np.max(error)
            if not worst <= self.rtol:
                raise SolveError(
                    f"Averages of {self.activation} are known only to {worst:.1e} of their scale (asked "
                    f"rtol={self.rtol:g}). Name every point where the function or its derivative jumps in "
                    "Activation(breaks=...), lower the variances, or raise rtol."
                )
            return jnp.asarray(value), jnp.asarray(error)


_average = jax.jit(lambda series, row, column, c, orders: series.average(row, column, c, orders), static_argnums=4)
