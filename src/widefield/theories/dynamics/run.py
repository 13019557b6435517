"""One batch of paths from the first step to the last, with buffers that grow as directions open."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from widefield.theories.dynamics import losses, march, paths
from widefield.theories.dynamics.basis import Side
from widefield.theories.dynamics.march import Physics, Record, Shape, State
from widefield.theories.dynamics.problem import Problem

FIRST_DIRECTIONS, LARGE_FIRST = 32, 128
DIVERGED = 1e8


class TooFewPaths(ValueError):
    """As many directions opened as there are paths: averages would be noise."""

    def __init__(self, n_directions: int):
        super().__init__(
            f"`paths` must be at least {4 * n_directions}: weights are known in {n_directions} directions."
        )


@dataclass(frozen=True)
class Run:
    """Curves of one batch, samples at the chosen steps, and how well directions stayed orthonormal."""

    prediction: np.ndarray  # (step, state, sample, output)
    loss: np.ndarray
    ntk: np.ndarray | None  # (step, channel, channel, sample, sample)
    samples: dict[int, tuple]  # step: φ, g, h
    weight: float
    n_directions: tuple[int, ...]
    loss_of_orthogonality: float
    diverged_at: int | None


@partial(jax.jit, static_argnames=("shape", "ntk"))
def _step(shape: Shape, physics: Physics, state: State, rate: Array, ntk: bool) -> tuple[State, Record, Any]:
    state, record = march.step(shape, physics, state, rate)
    weight = 1.0 if shape.exact else 1.0 / record.feature.shape[-1]
    kernel = march.tangent_kernel(shape, physics, record.feature, record.gradient, weight) if ntk else None
    return state, record, kernel


def run(
    problem: Problem, shape: Shape, n_paths: int, seed: int, batch: int, *, ntk: bool, at: tuple[int, ...], advance
) -> Run:
    """March through all steps. ``shape`` is passed in so that batches share one compilation."""
    physics = problem.physics
    state, rng = _begin(problem, shape, physics, n_paths, seed, batch)
    most = _most_new(shape, physics)
    predictions: list[np.ndarray] = []
    values: list[float] = []
    kernels: list[np.ndarray] = []
    samples: dict[int, tuple] = {}
    stop = None
    for t, rate in enumerate(problem.rates):
        state = _make_room(shape, most, state, rng)
        state, record, kernel = _step(shape, physics, state, jnp.asarray(rate), ntk)
        f = np.asarray(record.prediction)
        value = float(
            losses.total(
                problem.loss, record.prediction[jnp.asarray(shape.readouts)][:, : shape.n_train], physics.labels
            )
        )
        if not np.isfinite(f).all() or value > DIVERGED * max(values[0] if values else np.inf, 1.0):
            stop = t
            break
        predictions.append(f)
        values.append(value)
        if ntk:
            kernels.append(np.asarray(kernel))
        if t in at:
            samples[t] = tuple(np.asarray(v) for v in (record.feature, record.gradient, record.preactivation))
        advance(1)
    weight = 1.0 if shape.exact else 1.0 / n_paths
    return Run(
        _to_the_end(predictions, len(problem.rates)), _to_the_end(values, len(problem.rates)),
        _to_the_end(kernels, len(problem.rates)) if ntk else None, samples, weight,
        tuple(int(side.opened) for matrix in state.matrices for side in matrix), _orthogonality(state, weight), stop,
    )  # fmt: skip


def _to_the_end(rows: list, n: int) -> np.ndarray:
    """Rows after a divergence are infinite."""
    found = np.asarray(rows) if rows else np.zeros((0,))
    return np.concatenate([found, np.full((n - len(found), *found.shape[1:]), np.inf)])


def _begin(problem: Problem, shape: Shape, physics: Physics, n_paths: int, seed: int, batch: int):
    """White noises and the state before the first step."""
    n_inputs, n_matrices = physics.inputs.shape[-1], len(set(shape.matrices))
    n = _first_size(shape, physics, len(problem.rates))
    n_outer = n_inputs + shape.n_outputs
    total = n_outer + 2 * n_matrices * n
    if not shape.exact and max(2 * n, 2 * n_outer) > n_paths:
        raise TooFewPaths(max(n, n_outer))
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(batch, 1)))
    if shape.exact:
        noise = jnp.eye(total)
        outer, inner = noise[:n_outer], noise[n_outer:]
    else:
        drawn = paths.sampled(total, n_paths, seed, batch)
        outer = paths.whitened(drawn[:n_outer])
        blocks = [paths.whitened(drawn[n_outer + i * n : n_outer + (i + 1) * n]) for i in range(2 * n_matrices)]
        inner = jnp.concatenate(blocks) if blocks else jnp.zeros((0, n_paths))
    white = inner.reshape(n_matrices, 2, n, inner.shape[-1])
    return march.start(shape, physics, (outer[:n_inputs], outer[n_inputs:], white), n, int(rng.integers(2**31))), rng


def _most_new(shape: Shape, physics: Physics) -> int:
    """Directions that one step may open on one side of one matrix."""
    n_states = max(np.bincount(shape.matrices)) if shape.matrices else 0
    channels = len(shape.readouts) * shape.n_outputs
    return int(n_states * physics.inputs.shape[1] * max(channels, 1))


def _first_size(shape: Shape, physics: Physics, n_rows: int) -> int:
    """Room for two steps at least, and for what long runs will open: every doubling costs a compilation."""
    most = _most_new(shape, physics)
    wanted = max(2 * most, min(most * n_rows // 4, LARGE_FIRST))
    return max(FIRST_DIRECTIONS, 2 ** int(np.ceil(np.log2(max(wanted, 1)))))


def _make_room(shape: Shape, most: int, state: State, rng: np.random.Generator) -> State:
    """Twice the buffer before a step could fill it."""
    if not state.matrices:
        return state
    n = len(state.matrices[0].forward.direction)
    fullest = max(int(side.opened) for matrix in state.matrices for side in matrix)
    return state if fullest + most <= n else _double(shape, state, rng)


def _double(shape: Shape, state: State, rng: np.random.Generator) -> State:
    """Directions for as many again. Coordinates are appended; new paths' noises are whitened against the old ones."""
    n, n_paths = state.matrices[0].forward.direction.shape
    if not shape.exact and 4 * n > n_paths:
        raise TooFewPaths(2 * n)
    n_sides = 2 * len(state.matrices)
    more = n_sides * n if shape.exact else 0
    wide = lambda array: jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, more)])  # noqa: E731

    def grown(side: Side, index: int) -> Side:
        if shape.exact:
            fresh = jnp.zeros((n, n_paths + more)).at[jnp.arange(n), n_paths + index * n + jnp.arange(n)].set(1.0)
        else:
            raw = jnp.asarray(rng.standard_normal((n, n_paths)))
            fresh = paths.whitened(raw - (raw @ side.noise.T / n_paths) @ side.noise)
        tall = lambda array: jnp.pad(wide(array), [(0, n), (0, 0)])  # noqa: E731
        return Side(
            tall(side.direction), jnp.concatenate([wide(side.noise), fresh]), tall(side.memory), tall(side.momentum),
            jnp.pad(side.table, [(0, n), (0, n)]), side.opened,
        )  # fmt: skip

    sides = [side for matrix in state.matrices for side in matrix]
    new = [grown(side, i) for i, side in enumerate(sides)]
    matrices = tuple(march.Matrix(*new[2 * m : 2 * m + 2]) for m in range(len(state.matrices)))
    outer = (
        "input_noise",
        "input_memory",
        "input_momentum",
        "readout_noise",
        "readout_memory",
        "readout_momentum",
        "first_features",
    )
    return state._replace(matrices=matrices, **{name: wide(getattr(state, name)) for name in outer})


def _orthogonality(state: State, weight: float) -> float:
    """Largest deviation of the open directions from an orthonormal set."""
    worst = 0.0
    for side in (side for matrix in state.matrices for side in matrix):
        n = int(side.opened)
        gram = np.asarray(paths.dot(side.direction[:n], side.direction[:n], weight))
        if n and np.isfinite(gram).all():
            worst = max(worst, float(np.abs(gram - np.eye(n)).max()))
    return worst
