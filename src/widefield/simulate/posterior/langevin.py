r"""Langevin dynamics of all weights, readout included: noisy gradient descent with weight decay, as networks train."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from widefield.simulate.networks.forward import Array, Parameters, forward
from widefield.simulate.posterior.hmc import normals
from widefield.simulate.posterior.law import Law

SAFE_FRACTION = 0.1  # of the time of the fastest mode: its variance is then 5 % too large
POWER_STEPS = 30
MAX_UPDATES = 2000


class Pace(NamedTuple):
    """``rates`` per parameter, in units of its relaxation under the prior; ``updates`` between two draws."""

    rates: Parameters
    updates: Array


def move(
    position: Parameters, key: Array, pace: Pace, warm: Bool[Array, ""], law: Law
) -> tuple[Parameters, Pace, Float[Array, "2"]]:
    r"""Euler-Maruyama updates between two draws, for standardized weights :math:`\xi = G^{-1/2}\theta`.

    .. math::  \xi \leftarrow \xi - \eta\,(\nabla_\xi E/K + \xi) + \sqrt{2\eta}\,z

    Notation: :math:`\eta` is the parameter's rate. With :math:`\eta = \text{rate}\cdot K/G` this is
    :math:`d\theta = -\nabla E\,dt - K G^{-1}\theta\,dt + \sqrt{2K}\,dB`; equal rates precondition it with
    :math:`G/K`, which changes the path and not the stationary law. *Error*: :math:`O(\eta)`, no accept step.
    """
    stiffness = law.width / (2 * law.temperature)
    slope = jax.grad(lambda q, law: stiffness * jnp.sum((_outputs(q, law) - law.labels) ** 2))

    def update(i, q):
        noise = normals(jax.random.fold_in(key, i), q)
        drift = slope(q, law)
        return jax.tree.map(lambda x, g, z, r: x - r * (g + x) + jnp.sqrt(2 * r) * z, q, drift, noise, pace.rates)

    position = jax.lax.fori_loop(0, pace.updates, update, position)
    return position, pace, jnp.stack([jnp.ones(()), pace.updates.astype(float)])


def pace_of(position: Parameters, law: Law, *, rate: float | None, updates: int | None, precondition: bool) -> Pace:
    r"""Rates of all weights, and as many updates per move as forget the recurrent weights' prior once.

    One unit of ``rate`` is 1 for each parameter if preconditioned, else :math:`K/G`. By default it is `SAFE_FRACTION`
    over the largest curvature of :math:`E/K + |\xi|^2/2` at ``position``, in this metric.
    """
    relative = jax.tree.map(lambda _: np.ones(()), position)
    if not precondition:
        k = float(law.temperature) / law.width
        variances = [np.atleast_1d(np.square(getattr(law.scales, name))) for name in ("weights", "inputs", "readout")]
        weights, inputs, readout = (np.divide(k, v, out=np.zeros_like(v), where=v > 0) for v in variances)
        per_use = lambda rates, drawn: [np.asarray(rates[i]) for i in range(len(drawn))]  # noqa: E731
        relative = Parameters(
            weights=per_use(weights, position.weights),
            input_weights=per_use(inputs, position.input_weights),
            biases=[],
            readout=[np.asarray(readout[0]), np.zeros(())],
        )
    if rate is None:
        fastest = max(float(r) for r in jax.tree.leaves(relative))
        rate = SAFE_FRACTION / (fastest + float(_largest_curvature(position, relative, law)))
    rates = jax.tree.map(lambda r: rate * r, relative)
    slow = (rates.weights or rates.input_weights)[0]
    return Pace(rates, np.asarray(updates or int(np.clip(1 / max(float(slow), 1e-12), 1, MAX_UPDATES))))


def _largest_curvature(position: Parameters, relative: Parameters, law: Law) -> Float[Array, ""]:
    r"""Of :math:`\frac N\kappa J D J^\top` (Gauss-Newton), by power iteration."""
    value, push = jax.linearize(lambda q: _outputs(q, law), position)
    pull = jax.linear_transpose(push, position)

    def multiply(_, state):
        image = push(jax.tree.map(lambda g, r: r * g, *pull(state[0]), relative))
        norm = jnp.sqrt(jnp.sum(image**2))
        return image / jnp.where(norm > 0, norm, 1.0), norm

    start = jnp.asarray(np.random.default_rng(0).standard_normal(value.shape))
    _, norm = jax.lax.fori_loop(0, POWER_STEPS, multiply, (start / jnp.sqrt(jnp.sum(start**2)), jnp.zeros(())))
    return law.width / law.temperature * norm


def _outputs(parameters: Parameters, law: Law) -> Float[Array, "supervised sample output"]:
    return forward(parameters, law.inputs, law.scales, law.activation, law.sizes, law.supervised)
