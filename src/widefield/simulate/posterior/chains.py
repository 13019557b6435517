r"""Chains from their first weights to averages over their draws, whatever the sampler."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.answer.devices import n_devices, on_devices
from widefield.simulate.networks.forward import Array, Parameters, preactivations
from widefield.simulate.posterior.law import Law, label_factor, whitened_labels

CHUNK = 32  # moves between two reports of progress
TRACES = (
    "energy",
    "hidden",
    "feature",
    "prediction",
    "test_prediction",
    "coherence",
)  # one of every field, see `measure`


class Measurement(NamedTuple):
    """Quantities of one network; their averages over a chain are the fields of the result."""

    hidden: Float[Array, "state state_ sample sample_"]
    feature: Float[Array, "state state_ sample sample_"]
    squared_correlation: Float[Array, "state state_ sample sample_"]
    prediction: Float[Array, "state any output"]
    energy: Float[Array, ""]


class State(NamedTuple):
    """Where chains are, how their sampler is tuned, and their random keys; every leaf has a leading chain axis."""

    position: Parameters
    tuning: Any
    key: Array


class Chains(NamedTuple):
    """What is kept of chains: averages over their draws, scalars and (acceptance, work) of each draw, tuning."""

    mean: Measurement  # every leaf has a leading chain axis
    traces: Float[np.ndarray, "chain draw trace"]
    moves: Float[np.ndarray, "chain draw 2"]
    tuning: Any


def run_chains(
    state: State, law: Law, move: Callable, *, warmup: int, draws: int, together: int, advance: Callable[[int], None]
) -> tuple[Chains, State]:
    """``warmup`` moves that may adapt the tuning, then ``draws`` measured ones with it frozen. Also: the last state.

    At most ``together`` moves are one call of JAX, which must not be computing when the interpreter ends.
    """
    kept, total, done = [], None, 0
    while done < warmup + draws:
        warm = done < warmup
        n = min(CHUNK, together, (warmup if warm else warmup + draws) - done)
        state, sums, traces, moves = jax.block_until_ready(_chunk(state, done, n, warm, law, move))
        if not warm:
            kept.append((np.asarray(traces)[:, :n], np.asarray(moves)[:, :n]))
            total = sums if total is None else jax.tree.map(jnp.add, total, sums)
        done += n
        advance(n * len(state.key))
    mean = jax.tree.map(lambda x: np.asarray(x) / draws, total)
    traces, moves = (np.concatenate(parts, axis=1) for parts in zip(*kept, strict=True))
    return Chains(mean, traces, moves, state.tuning), state


@partial(jax.jit, static_argnames="move")
def _chunk(
    state: State, done: Array, n: Array, warm: Array, law: Law, move: Callable
) -> tuple[State, Measurement, Array, Array]:
    """`_moves` of several chains, which all devices share; a single one is spared the batched loop, which copies all
    weights at every leap."""
    one = partial(_moves, move=move)
    if len(state.key) > 1:
        several = jax.vmap(one, in_axes=(0, *4 * (None,)))
        return on_devices(several, n_devices(len(state.key)), shared=4)(state, done, n, warm, law)
    alone = one(jax.tree.map(lambda x: x[0], state), done, n, warm, law)
    return jax.tree.map(lambda x: x[None], alone)


def _moves(
    state: State, done: Array, n: Array, warm: Array, law: Law, *, move: Callable
) -> tuple[State, Measurement, Array, Array]:
    """``n`` moves, at most `CHUNK`: the new state, summed measurements, traces and moves."""
    measurement, trace = jax.eval_shape(lambda p: measure(p, law), state.position)
    sums = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), measurement)
    empty = jnp.zeros((CHUNK, *trace.shape)), jnp.zeros((CHUNK, 2))

    def one(i, carry):
        position, tuning, sums, traces, moves = carry
        position, tuning, moved = move(position, jax.random.fold_in(state.key, done + i), tuning, warm, law)
        measurement, trace = measure(position, law)
        sums = jax.tree.map(jnp.add, sums, measurement)
        return position, tuning, sums, traces.at[i].set(trace), moves.at[i].set(moved)

    position, tuning, *sums_and_more = jax.lax.fori_loop(0, n, one, (state.position, state.tuning, sums, *empty))
    return State(position, tuning, state.key), *sums_and_more


def measure(parameters: Parameters, law: Law) -> tuple[Measurement, Float[Array, " trace"]]:
    r"""Kernels, predictions and energy of one network, and the scalars by which chains are judged, `TRACES`.

    These are the energy, the mean squares of pre-activations and features at the last state, the mean product of
    predictions and labels, the mean test prediction, and the mean correlation of adjacent states.

    Predictions are :math:`V\varphi` where ``parameters`` hold a readout, else their mean over the law of :math:`V`
    given the features, :math:`v\Phi_{*S}(v\Phi_{SS} + \kappa)^{-1}y`: the same average with less noise.
    Where ``law.mirror`` says that :math:`W \to -W` (with :math:`V \to -V` if the labels sit at odd states) is a symmetry,
    each network is reported as the one of the pair with positively correlated adjacent states in the mean.
    """
    n = law.inputs.shape[1]
    hidden = jnp.stack(preactivations(parameters, law.every, law.scales, law.activation, law.sizes))
    feature = law.activation(hidden)
    kernel = _gram(hidden[:, :n])
    variance = jnp.einsum("aapp->ap", kernel)
    inverse = jnp.where(variance > 0, 1 / jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)  # 0: a silent state
    correlation = kernel * inverse[:, None, :, None] * inverse[None, :, None, :]
    adjacent = jnp.einsum("aapp->ap", correlation[:-1, 1:])
    sign = jnp.where(law.mirror & (adjacent.sum() < 0), -1.0, 1.0)
    signs = jnp.where(jnp.arange(len(law.sizes)) % 2 == 1, sign, 1.0)
    factor = label_factor(jnp.concatenate([feature[a, :n] for a in law.supervised]), law)
    labels = whitened_labels(factor, law)
    energy = jnp.sum(labels**2) / 2
    flip = (signs[:, None] * signs[None])[:, :, None, None]
    prediction = _predict(parameters, feature, factor, labels, law)
    measurement = Measurement(
        hidden=flip * kernel,
        feature=flip * _gram(feature[:, :n]),
        squared_correlation=correlation**2,
        prediction=(signs * signs[law.supervised[0]])[:, None, None] * prediction,
        energy=energy,
    )
    states = jnp.asarray(law.supervised)
    fit = jnp.mean(law.labels * prediction[states, :n])
    test = jnp.mean(prediction[states, n:]) if prediction.shape[1] > n else fit
    sizes = (jnp.trace(measurement.hidden[-1, -1]) / n, jnp.trace(measurement.feature[-1, -1]) / n)
    coherence = [jnp.mean(jnp.abs(adjacent))] if adjacent.size else []
    return measurement, jnp.stack([energy, *sizes, fit, test, *coherence])


def _predict(parameters: Parameters, feature: Array, factor: Array, labels: Array, law: Law) -> Array:
    if len(parameters.readout):
        return law.scales.readout * (feature @ parameters.readout[0])
    n = law.inputs.shape[1]
    given = jnp.concatenate([feature[a, :n] for a in law.supervised])
    weights = jax.scipy.linalg.solve_triangular(factor, labels, lower=True, trans="T")
    return law.readout_variance * (feature @ given.T / law.width) @ weights


def _gram(rows: Float[Array, "state sample neuron"]) -> Float[Array, "state state_ sample sample_"]:
    return jnp.einsum("api,bqi->abpq", rows, rows) / rows.shape[2]
