"""Batches of paths marched together: one program for all, shared out to several devices."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from widefield.theories.dynamics.march import batch, held_out
from widefield.theories.dynamics.march.batch import Batch, Start
from widefield.theories.dynamics.march.held_out import HeldOut
from widefield.theories.dynamics.march.step import Physics, Shape, State
from widefield.theories.dynamics.problem import Loss, Problem

HELD = HeldOut(None, None, 0, 0)  # type: ignore[arg-type]  # which of its arrays every batch has of its own


def devices(n_batches: int) -> list:
    """Those that batches are shared out to, as many on each."""
    every = jax.devices()
    return every[: max(n for n in range(1, min(n_batches, len(every)) + 1) if n_batches % n == 0)]


@partial(jax.jit, static_argnames=("shape", "loss", "ntk"), donate_argnames="state")
def _step(shape: Shape, loss: Loss, physics: Physics, state: State, rate: Array, ntk: bool, tests, sizes: Array):
    """`batch.one_step` of all batches."""
    one = lambda state, tests: batch.one_step(shape, loss, physics, state, rate, ntk, tests, sizes)  # noqa: E731
    return jax.vmap(one, in_axes=(0, None if tests is None else HELD))(state, tests)


@partial(jax.jit, static_argnames="shape")
def _predict(shape: Shape, physics: Physics, state: State, held: HeldOut, sizes: Array) -> Array:
    one = lambda state, held: held_out.predict(shape, physics, state, held, sizes)  # noqa: E731
    return jax.vmap(one, in_axes=(0, HELD))(state, held)


def march(
    problem: Problem, n_paths: int, seed: int, n_batches: int, ntk: bool, at: range | tuple[int, ...], advance
) -> list[Batch]:
    """Batches 0, 1, … as `batch.march` makes them one by one."""
    shape, physics = problem.shape, batch.physics_of(problem, n_paths)
    starts = [batch.begin(problem, physics, n_paths, seed, b) for b in range(n_batches)]
    mesh = Mesh(np.array(devices(n_batches)), ("batch",))
    shared = lambda trees: jax.device_put(_stacked(trees), NamedSharding(mesh, PartitionSpec("batch")))  # noqa: E731
    tests = None
    if starts[0].tests is not None:
        noises = shared([(one.tests.input_noise, one.tests.noise) for one in starts if one.tests is not None])
        tests = HeldOut(starts[0].tests.known, starts[0].tests.fresh, *noises)
    state = shared([one.state for one in starts])
    rows = [batch.Rows(problem, ntk, at) for _ in starts]
    unseen: np.ndarray = np.zeros((n_batches, problem.network.depth, problem.task.n_test, shape.n_outputs))
    for t, rate in enumerate(problem.rates):
        state = _with_room(shape, starts, state, rows, t, shared)
        size = jnp.asarray(starts[0].sizes[t])
        if tests is not None and shape.responses:
            unseen = np.asarray(_predict(shape, physics, state, tests, size))
        driven = None if shape.responses else tests
        state, record, loss, kernel, aligned, kick = _step(shape, problem.loss, physics, state, rate, ntk, driven, size)
        kept = jax.tree.map(np.asarray, record) if t in at else None
        small = jax.tree.map(np.asarray, (record.prediction, loss, kernel, aligned))
        for b, one in enumerate(rows):
            if one.stop is None:
                f, value, tangent, cosine = _of(small, b)
                one.add(t, f, unseen[b], value, tangent, cosine, _of(kept, b))
        if kick is not None:
            unseen = unseen + rate * np.asarray(kick)[:, :, : problem.task.n_test]
        advance(n_batches)
        if all(one.stop is not None for one in rows):
            break
    weight = 1.0 / n_paths
    return [one.batch(_of(state, b), weight) for b, one in enumerate(rows)]


def _of(tree: Any, b: int) -> Any:
    """What batch ``b`` has of it."""
    return jax.tree.map(lambda leaf: leaf[b], tree)


def _stacked(trees: list) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _with_room(shape: Shape, starts: list[Start], state: State, rows: list, t: int, shared) -> State:
    """Room for the directions of the next step in every batch, each with the noises that it would draw alone."""
    opened = np.stack([np.asarray(side.opened) for side in state.matrices.sides], axis=2)
    short = [b for b, one in enumerate(starts) if rows[b].stop is None and (opened[b] + one.most > one.drawn).any()]
    if not short:
        return state
    for b, one in enumerate(starts):
        one.state = _of(state, b)
        if b in short:
            one.make_room(shape, t)
    most = max(one.state.matrices.memory.shape[1] for one in starts)
    for one in starts:
        while one.state.matrices.memory.shape[1] < most:
            one.state = batch.double(shape, one.state)
    return shared([one.state for one in starts])
