"""Chains from their first weights to averages over their draws, whatever the sampler."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.simulate.networks.forward import Array, Parameters
from widefield.simulate.posterior.law import Law
from widefield.simulate.posterior.measurements import Measurement, measure

CHUNK = 32  # moves between two reports of progress


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
    state: State, law: Law, move: Callable, *, warmup: int, draws: int, advance: Callable[[int], None]
) -> tuple[Chains, State]:
    """``warmup`` moves that may adapt the tuning, then ``draws`` measured ones with it frozen. Also: the last state."""
    kept, total, done = [], None, 0
    while done < warmup + draws:
        warm = done < warmup
        n = min(CHUNK, (warmup if warm else warmup + draws) - done)
        state, sums, traces, moves = _chunk(state, done, n, warm, law, move)
        if not warm:
            kept.append((np.asarray(traces)[:, :n], np.asarray(moves)[:, :n]))
            total = sums if total is None else jax.tree.map(jnp.add, total, sums)
        done += n
        jax.block_until_ready(state.position)
        advance(n * len(state.key))
    mean = jax.tree.map(lambda x: np.asarray(x) / draws, total)
    traces, moves = (np.concatenate(parts, axis=1) for parts in zip(*kept, strict=True))
    return Chains(mean, traces, moves, state.tuning), state


@partial(jax.jit, static_argnames="move")
def _chunk(
    state: State, done: Array, n: Array, warm: Array, law: Law, move: Callable
) -> tuple[State, Measurement, Array, Array]:
    """`_moves` of several chains; a single one is spared the batched loop, which copies all weights at every leap."""
    one = partial(_moves, done=done, n=n, warm=warm, law=law, move=move)
    if len(state.key) > 1:
        return jax.vmap(one)(state)
    return jax.tree.map(lambda x: x[None], one(jax.tree.map(lambda x: x[0], state)))


def _moves(
    state: State, *, done: Array, n: Array, warm: Array, law: Law, move: Callable
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
