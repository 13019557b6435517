"""One batch of paths from the first step to the last, with buffers that grow as directions open."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from widefield.answer.boundary import describe_bytes, memory_budget
from widefield.theories.dynamics.curves import to_the_end
from widefield.theories.dynamics.march import basis, held_out, step
from widefield.theories.dynamics.march.basis import Side
from widefield.theories.dynamics.march.noise import added, mirrored, sampled_blocks, whitened
from widefield.theories.dynamics.march.step import Physics, Record, Shape, State
from widefield.theories.dynamics.problem import Loss, Problem, total_loss

FIRST_DIRECTIONS, LARGE_FIRST = 32, 128  # noises drawn at first
ROOM = 2**22  # numbers in a buffer, unless more directions open
DIVERGED = 1e8
Arrays = dict[str, np.ndarray]
OVERFLOW = "`network` overflows before the first update: lower its variances or the inputs `x`."


class TooFewPaths(ValueError):
    """As many directions opened as paths can tell apart: averages would be noise. ``step`` is None before the first one."""

    def __init__(self, n_directions: int, least: int, step: int | None = None):
        self.step = step
        super().__init__(f"`paths` must be at least {least}: weights are known in {n_directions} directions.")


class SiteValues(NamedTuple):
    """Values on the paths: φ, h (state, sample, S) and g, z (channel, state, sample, S)."""

    feature: np.ndarray
    gradient: np.ndarray
    preactivation: np.ndarray
    pregradient: np.ndarray


@dataclass(frozen=True)
class Batch:
    """Curves of one batch of paths, samples at the chosen steps, and how well directions stayed orthonormal.

    Once observed it has averages and samples of h and z by name in place of ``samples``; those that a divergence cut short
    are missing. ``changes`` are what extrapolation changed, ``paths_needed`` what would make it fine enough.
    """

    prediction: np.ndarray  # (step, state, sample, output)
    loss: np.ndarray
    ntk: np.ndarray | None  # (step, channel, channel, sample, sample)
    alignment: np.ndarray  # (step, state)
    samples: dict[int, SiteValues]  # by step
    weight: float
    n_directions: tuple[int, ...]
    loss_of_orthogonality: float
    diverged_at: int | None
    averages: Arrays = field(default_factory=dict)
    draws: Arrays = field(default_factory=dict)
    changes: Arrays = field(default_factory=dict)
    paths_needed: float = 0.0


def one_step(shape: Shape, loss: Loss, physics: Physics, state: State, rate: Array, ntk: bool, tests, sizes: Array):
    """Also the loss, the tangent kernel, the alignment, and what moves the outputs of ``tests`` where A = B = 0."""
    state, record, expansions = step.passes(shape, physics, state)
    kick = held_out.tangent_kick(shape, physics, state, tests, sizes, record) if tests else None
    state = step.learn(shape, physics, state, rate, record, expansions)
    read = record.prediction[jnp.asarray(shape.readouts)]
    weight = 1.0 if shape.exact else 1.0 / record.feature.shape[-1]
    kernel = step.tangent_kernel(shape, physics, record.feature, record.gradient, weight) if ntk else None
    aligned = step.label_alignment(physics.labels, record.feature, weight)
    return state, record, total_loss(loss, read, physics.labels), kernel, aligned, kick


# in place: the arrays of the state are large
_step = partial(jax.jit, static_argnames=("shape", "loss", "ntk"), donate_argnames="state")(one_step)


@dataclass
class Start:
    """A batch before its first step, and what it draws when directions open."""

    state: State
    drawn: np.ndarray  # noises (matrix, side)
    rng: np.random.Generator
    most: int  # directions that a step may open
    sizes: np.ndarray  # deviations (row, inputs and matrices) of noises that no direction has met
    tests: held_out.HeldOut | None

    def make_room(self, shape: Shape, t: int) -> None:
        """Noises for the directions that step t may open."""
        self.state, self.drawn = _make_room(shape, self.most, self.state, self.drawn, self.rng, self.sizes[t, 1:])


class Rows:
    """Rows of one batch as they are made, until one diverges."""

    def __init__(self, problem: Problem, ntk: bool, at: Sequence[int]):
        self.problem, self.ntk, self.at = problem, ntk, at
        self.rows: list[tuple] = []
        self.samples: dict[int, SiteValues] = {}
        self.stop: int | None = None

    def add(self, t: int, prediction, unseen, loss, kernel, aligned, record: Record | None) -> None:
        """Row t, with the outputs ``unseen`` (state, test, output) and the ``record`` of steps that are kept."""
        f = np.concatenate([prediction, np.asarray(unseen)[:, : self.problem.task.n_test]], axis=1)
        if diverges(f, float(loss), self.rows[0][1] if self.rows else None):
            self.stop = t
            return
        self.rows.append((f, float(loss), np.asarray(kernel) if self.ntk else np.zeros(()), np.asarray(aligned)))
        if record is not None:
            site = (record.feature, record.gradient, record.preactivation, record.pregradient)
            self.samples[t] = SiteValues(*(np.asarray(v) for v in site))

    def batch(self, state: State, weight: float) -> Batch:
        """All of it, with what the last ``state`` says of the directions."""
        n_rows = len(self.problem.rates)
        prediction, loss, ntk, alignment = (to_the_end(column, n_rows) for column in zip(*self.rows, strict=True))
        return Batch(
            prediction, loss, ntk if self.ntk else None, alignment, self.samples, weight,
            tuple(map(int, _opened(state).ravel())), _orthogonality(state, weight), self.stop,
        )  # fmt: skip


def physics_of(problem: Problem, n_paths: int) -> Physics:
    """With the tolerances of so many paths."""
    return problem.physics._replace(tolerance=jnp.asarray(problem.tolerances(n_paths), jnp.float64))


def march(problem: Problem, n_paths: int, seed: int, batch: int, *, ntk: bool, at: Sequence[int], advance) -> Batch:
    """March through all steps, keeping samples at the steps ``at``."""
    shape, physics = problem.shape, physics_of(problem, n_paths)
    start = begin(problem, physics, n_paths, seed, batch)
    tests, rows = start.tests, Rows(problem, ntk, at)
    unseen: Any = np.zeros((problem.network.depth, problem.task.n_test, shape.n_outputs))  # outputs of test inputs
    for t, rate in enumerate(problem.rates):
        record = None  # the last one's memory is free again
        start.make_room(shape, t)
        size = jnp.asarray(start.sizes[t])
        if tests is not None and shape.responses:
            unseen = held_out.predict(shape, physics, start.state, tests, size)
        driven = None if shape.responses else tests
        start.state, record, loss, kernel, aligned, kick = _step(
            shape, problem.loss, physics, start.state, rate, ntk, driven, size
        )
        rows.add(t, record.prediction, unseen, loss, kernel, aligned, record if t in at else None)
        if rows.stop is not None:
            break
        if kick is not None:
            unseen = unseen + rate * np.asarray(kick)[:, : problem.task.n_test]
        advance(1)
    return rows.batch(start.state, 1.0 if shape.exact else 1.0 / n_paths)


def diverges(outputs: np.ndarray, loss: float, first: float | None) -> bool:
    """Whether a row is not finite or its loss far above the ``first``; raises where that is the first row (None)."""
    finite = np.isfinite(outputs).all() and np.isfinite(loss)
    if not finite and first is None:
        raise ValueError(OVERFLOW)
    return not finite or (first is not None and loss > DIVERGED * max(first, 1.0))


def begin(problem: Problem, physics: Physics, n_paths: int, seed: int, batch: int) -> Start:
    """White noises and the state before the first step."""
    shape = problem.shape
    n_inputs, n_matrices, n_rows = physics.inputs.shape[-1], len(set(shape.matrices)), len(problem.rates)
    most = most_new(shape, physics.inputs.shape[1])
    n = first_directions(most, n_rows)
    n_outer = n_inputs + shape.n_outputs
    n_fresh = problem.inputs.test_roots[1].shape[2] if problem.task.n_test else 0
    least = max(most, n_inputs, shape.n_outputs, n_fresh)
    if not shape.exact and least > most_noises(n_paths):
        raise TooFewPaths(least, 4 * least)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(batch, 1)))
    if shape.exact:
        noise = jnp.eye(n_outer + 2 * n_matrices * n)
        inner = noise[n_outer:].reshape(n_matrices, 2, n, len(noise))
        inputs, readouts, white = noise[:n_inputs], noise[n_inputs:n_outer], [inner[:, 0], inner[:, 1]]
    else:
        room, n = _room(n, most * n_rows, n_paths), min(n, most_noises(n_paths))
        blocks = sampled_blocks([n_inputs, shape.n_outputs] + [n] * (2 * n_matrices), n_paths // 2, seed, batch)
        inputs, readouts = (mirrored(whitened(next(blocks)), parity) for parity in (1.0, -1.0))
        white = [jnp.zeros((n_matrices, room, n_paths // 2)) for _ in range(2)]
        for i, block in enumerate(blocks):  # both sides of the first matrix, of the second, …
            white[i % 2] = added(white[i % 2], block, i // 2, 0, 1.0)
    state = step.start(shape, physics, (inputs, readouts, (white[0], white[1])), int(rng.integers(2**31)))
    drawn, sizes = np.full((n_matrices, 2), n), _noise_sizes(problem, physics, n_matrices)
    tests = held_out.held_out(problem.inputs, shape, state, drawn, seed, batch) if problem.task.n_test else None
    return Start(state, drawn, rng, most, sizes, tests)


def most_noises(n_paths: int) -> int:
    """White noises that pairs of paths can tell apart, with some to spare."""
    return 3 * n_paths // 8


def enough_paths(n_noises: int, n_paths: int) -> int:
    """``n_paths``, doubled until they can tell so many noises apart."""
    return n_paths * 2 ** max(0, int(np.ceil(np.log2(max(8 * n_noises / (3 * n_paths), 1)))))


def most_new(shape: Shape, n_samples: int) -> int:
    """Directions that one step may open on one side of one matrix."""
    n_states = max(np.bincount(shape.matrices)) if shape.matrices else 0
    return int(n_states * n_samples * max(len(shape.readouts) * shape.n_outputs, 1))


def first_directions(most: int, n_rows: int) -> int:
    """Room for two steps at least, and for what long runs will open: every doubling costs a compilation."""
    wanted = max(2 * most, min(most * n_rows // 4, LARGE_FIRST))
    return max(FIRST_DIRECTIONS, 2 ** int(np.ceil(np.log2(max(wanted, 1)))))


def _room(n: int, most: int, n_paths: int) -> int:
    """Rows of the buffers: as many as may open, within what ``n_paths`` allow and some memory. Another size compiles again."""
    limit = min(most, max(LARGE_FIRST, ROOM // n_paths))
    while n < limit and 4 * n <= n_paths:
        n *= 2
    return n


def _opened(state: State) -> np.ndarray:
    """Directions (matrix, side) that are open."""
    return np.stack([np.asarray(side.opened) for side in state.matrices.sides], axis=1)


def _make_room(
    shape: Shape, most: int, state: State, drawn: np.ndarray, rng: np.random.Generator, sizes: np.ndarray
) -> tuple[State, np.ndarray]:
    """Twice the noises of a side before a step could open more directions than are ``drawn`` (matrix, side) there.

    New ones are whitened against those there are; ``sizes`` (matrix,) is what the deviation of these has become by now.
    """
    short = _opened(state) + most > drawn
    if not short.any():
        return state, drawn
    more = drawn * np.where(short | shape.exact, 2, 1)
    _, n_rows, n_paths = state.matrices.forward.direction.shape
    if not shape.exact:
        more = np.minimum(more, most_noises(n_paths))
        if (_opened(state) + most > more).any():
            raise TooFewPaths(int(_opened(state).max()), 2 * n_paths, int(state.step))
    if more.max() > n_rows:
        state = double(shape, state)
    if shape.exact:
        return state, more
    noises = [side.noise for side in state.matrices.sides]
    for m, i in np.argwhere(more > drawn):
        raw = rng.standard_normal((more[m, i] - drawn[m, i], noises[i].shape[2]))
        noises[i] = added(noises[i], raw, int(m), int(drawn[m, i]), sizes[m])
    forward, backward = (side._replace(noise=noise) for side, noise in zip(state.matrices.sides, noises, strict=True))
    return state._replace(matrices=state.matrices._replace(forward=forward, backward=backward)), more


def _noise_sizes(problem: Problem, physics: Physics, n_matrices: int) -> np.ndarray:
    """Standard deviation (row, inputs and matrices) of the noise of a direction that has not opened: one, until it is shaken."""
    scales = np.asarray(step.initial_scales(physics, n_matrices))[:-1]
    decay, temperature = problem.training.weight_decay, problem.training.temperature
    variance, rows = np.ones(1 + n_matrices), []
    for rate in problem.rates:
        rows.append(np.sqrt(variance))
        if temperature:
            variance = (1 - rate * decay) ** 2 * variance + 2 * rate * temperature / scales**2
    return np.array(rows)


def double(shape: Shape, state: State) -> State:
    """Buffers for as many again; coordinates are appended."""
    n_matrices, n, n_paths = state.matrices.forward.direction.shape
    need = 4 * 8 * n_matrices * 2 * n * n_paths * (2 if shape.exact else 1)
    if need > memory_budget():
        raise MemoryError(
            f"at step {int(state.step)} weights are known in more than {n // 2} directions, and room for twice as many needs "
            f"{describe_bytes(need)}, but only {describe_bytes(memory_budget())} may be used: take fewer samples or steps."
        )
    more = 2 * n_matrices * n if shape.exact else 0
    wide = lambda array: jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, more)])  # noqa: E731
    square = lambda array: jnp.pad(array, [(0, 0), (0, n * bool(array.shape[1])), (0, n)])  # noqa: E731

    def grown(side: Side, index: int) -> Side:
        fresh = jnp.zeros((n_matrices, n, side.noise.shape[2] + more))
        if shape.exact:
            m, i = np.ogrid[:n_matrices, :n]
            fresh = fresh.at[m, i, n_paths + (2 * m + index) * n + i].set(1.0)
        noise = jnp.concatenate([wide(side.noise), fresh], axis=1)
        direction = jnp.pad(wide(side.direction), [(0, 0), (0, n), (0, 0)])
        return side._replace(direction=direction, noise=noise, table=square(side.table))

    old = state.matrices
    matrices = basis.Matrices(grown(old.forward, 0), grown(old.backward, 1), square(old.memory), square(old.momentum))
    outer = [f"{end}_{kind}" for end in ("input", "readout") for kind in ("noise", "memory", "momentum")]
    return state._replace(matrices=matrices, **{name: wide(getattr(state, name)) for name in outer})


def _orthogonality(state: State, weight: float) -> float:
    """Largest deviation of the open directions from an orthonormal set."""
    worst = 0.0
    for side in state.matrices.sides:
        for direction, n in zip(np.asarray(side.direction), np.asarray(side.opened), strict=True):
            open_ones = direction[:n]
            gram = weight * open_ones @ open_ones.T
            if n and np.isfinite(gram).all():
                worst = max(worst, float(np.abs(gram - np.eye(n)).max()))
    return worst
