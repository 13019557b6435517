"""Whole matrices of the recursion for given networks and inputs: variances first, then blocks of samples."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import SolveError, Status
from widefield.answer.progress import bar
from widefield.gaussian import AbstractKernel, RefinedKernel, SeriesKernel, kernel_for
from widefield.gaussian.steepness import note_of
from widefield.question.network import Network
from widefield.theories.prior.core import recursion
from widefield.theories.prior.core.blocks import Target, common_state, place_block, tile_pairs, tile_size

_equal_states = jax.jit(recursion.equal_state_block, static_argnames=("tangent", "dtype"))
_all_states = jax.jit(recursion.all_states_block, static_argnames=("sharing", "tangent", "dtype"))
_overlaps = jax.jit(recursion.overlaps)
_equal_overlaps = jax.jit(recursion.equal_overlaps)
_node_variances = jax.jit(recursion.node_variances, static_argnames="dtype")
table = jax.jit(lambda kernel, q: kernel.table(q))

LARGEST = 1e150  # of a covariance: products of two are taken
REFINED = "pairs beyond the reach of the Hermite series were done by quadrature"


@dataclass(frozen=True)
class Matrices:
    """Filled ``arrays`` by name, the ``variances`` (state, sample) and the ``kernel`` that they were made with.

    ``error`` is the largest error estimate of an average, relative to its scale; None where none was evaluated.
    ``failure`` is what went wrong, and arrays then hold NaN or infinity where nothing is known.
    """

    arrays: dict[str, np.ndarray]
    variances: np.ndarray
    kernel: AbstractKernel
    error: float | None = None
    failure: Status | None = None
    notes: tuple[str, ...] = ()

    @property
    def plain_kernel(self) -> AbstractKernel:
        """The kernel before doubtful pairs were done by quadrature."""
        return self.kernel.series if isinstance(self.kernel, RefinedKernel) else self.kernel


def fill_matrices(
    network: Network, x: np.ndarray, targets: Mapping[str, Target], rtol: float, progress: bool | None = False
) -> Matrices:
    """Arrays for all ``targets``; ``x`` is (sample, driven state, D) and sets the precision."""
    arrays = {name: target.empty(x.dtype) for name, target in targets.items()}
    kernel, q = resolve_kernel(network, x)
    if not float(q.max()) <= LARGEST:  # nor where a variance is not a number
        return Matrices(
            arrays,
            q,
            kernel,
            failure=Status.nonfinite,
            notes=(f"variances reach {q.max():.1e}, more than {LARGEST:.0e}",),
        )
    if not targets:
        return Matrices(arrays, q, kernel, notes=note_of(network.activation))
    try:
        error, kernel = _fill_blocks(network, kernel, q, x, targets, arrays, rtol, progress)
    except SolveError as missed:
        return Matrices(arrays, q, kernel, failure=Status.inaccurate, notes=(str(missed),))
    finite = all(float(array.min()) >= -LARGEST and float(array.max()) <= LARGEST for array in arrays.values())
    notes = (*((REFINED,) if isinstance(kernel, RefinedKernel) else ()), *note_of(network.activation))
    if not finite:
        notes = (*notes, f"covariances reach more than {LARGEST:.0e}")
    return Matrices(arrays, q, kernel, error, None if finite else Status.nonfinite, notes)


def hidden_covariance(network: Network, x: np.ndarray, rtol: float = 1e-10) -> Matrices:
    """``"hidden"``: C over (state, state_, sample, sample_), Eq. (prior.2)."""
    states, samples = range(network.depth), range(len(x))
    return fill_matrices(network, x, {"hidden": Target("hidden", states, states, samples, samples)}, rtol)


def resolve_kernel(network: Network, x: np.ndarray) -> tuple[AbstractKernel, np.ndarray]:
    """The kernel of the activation, fine enough for the largest variance that it meets, and all variances."""
    dtype = x.dtype
    variances = recursion.variances_of(network, dtype)
    power = jnp.asarray(np.einsum("iad,iad->ai", x, x) / x.shape[-1], dtype)
    with np.errstate(over="ignore"):
        first = np.max(network.bias_variances[0] + network.input_variances[0] * np.asarray(power[0]))
    largest = min(float(first), LARGEST)
    while True:
        kernel = kernel_for(network.activation, largest, dtype, adaptive=True)
        q = np.asarray(_node_variances(kernel, variances, power, dtype=dtype.name))
        top = min(float(q.max()), LARGEST)
        if not top > largest or kernel_for(network.activation, top, dtype, adaptive=True) is kernel:
            return kernel, q
        largest = top


class NodeTile(NamedTuple):
    """Some samples, padded by repetition of the last: the kernel's table at all states, and the inputs."""

    table: dict[str, jax.Array]
    x: jax.Array


def node_tile(kernel: AbstractKernel, q: np.ndarray, x: np.ndarray, start: int, tile: int) -> NodeTile:
    """The samples from ``start``; tiles take turns over the devices."""
    samples = np.minimum(np.arange(start, start + tile), len(x) - 1)
    devices = jax.local_devices()
    return put(
        NodeTile(table(kernel, jnp.asarray(q[:, samples])), jnp.asarray(x[samples])),
        devices[start // tile % len(devices)],
    )


def put(value: Any, device: jax.Device) -> Any:
    """``value`` on one of several devices; where there is one it stays where it is."""
    return value if len(jax.local_devices()) == 1 else jax.device_put(value, device)


def device_of(value: Any) -> jax.Device:
    """Where ``value`` is."""
    return next(iter(jax.tree.leaves(value)[0].devices()))


def meet(row: NodeTile, column: NodeTile) -> tuple[NodeTile, NodeTile]:
    """Two tiles on one device, that of the column."""
    return put(row, device_of(column)), column


def in_flight(pairs: Iterable[tuple], start: Callable[..., Any], n: int) -> Iterator[tuple]:
    """Each of ``pairs`` with what ``start`` made of it, in order, ``n`` of them under way."""
    under_way: deque[tuple] = deque()
    for pair in pairs:
        under_way.append((*pair, start(*pair)))
        if len(under_way) == n:
            yield under_way.popleft()
    yield from under_way


def _fill_blocks(
    network: Network,
    kernel: AbstractKernel,
    q: np.ndarray,
    x: np.ndarray,
    targets: Mapping[str, Target],
    arrays: dict[str, np.ndarray],
    rtol: float,
    progress: bool | None,
) -> tuple[float, AbstractKernel]:
    """Go through all blocks of samples; returns the largest error estimate and the kernel that was needed."""
    state = common_state(network.depth, targets.values())
    whole = state is None
    tangent = any(t.field == "tangent" for t in targets.values())
    tile = tile_size(len(x), network.depth if whole else 1)
    pairs = [pair for pair in tile_pairs(len(x), tile) if any(target.reads(*pair) for target in targets.values())]
    block_of = block_maker(network, kernel, q, x, tile, state, tangent)
    refined, worst = None, 0.0
    seconds = 2e-8 * len(x) ** 2 * network.depth * (network.depth if whole else 1) / 2  # worth showing a bar?
    at_once = len(jax.local_devices())
    with bar("prior", len(pairs), progress, seconds=seconds) as advance:
        for rows, columns, block in in_flight(pairs, block_of, at_once):
            if not float(block.error) <= rtol and isinstance(kernel, SeriesKernel):
                refined = refined or RefinedKernel(network.activation, kernel, rtol)
                block = block_of(rows, columns, refined)
            worst = float(np.maximum(worst, block.error))  # unlike max, keeps a NaN
            get = lambda field, b=block, r=rows, c=columns: np.asarray(getattr(b, field))[..., : len(r), : len(c)]  # noqa: E731
            place_block(targets, arrays, get, rows, columns)
            advance(1)
    return worst, refined or kernel


def block_maker(
    network: Network, kernel: AbstractKernel, q: np.ndarray, x: np.ndarray, tile: int, state: int | None, tangent: bool
) -> Callable[..., recursion.Block]:
    """A function of two ranges of samples; with a refined kernel it goes through every state in turn, outside of jit.

    The blocks are those of one ``state`` with itself, which what comes after it does not change, or of all pairs.
    """
    whole, variances, sharing = state is None, recursion.variances_of(network, x.dtype), recursion.sharing_of(network)
    if state is not None:
        variances = jax.tree.map(lambda v: v[: state + 1] if v.ndim else v, variances)
        x = x[:, : state + 1]
    nodes = [node_tile(kernel, q, x, start, tile) for start in range(0, len(x), tile)]

    def block(rows: range, columns: range, refined: RefinedKernel | None = None) -> recursion.Block:
        row, column = meet(nodes[rows.start // tile], nodes[columns.start // tile])
        pair, left, right = (row.table, column.table), row.x, column.x
        overlap = _overlaps(left, right) if whole else _equal_overlaps(left, right)
        options: dict[str, Any] = {"tangent": tangent, "dtype": x.dtype.name}
        if refined is None:
            if whole:
                return _all_states(kernel, variances, sharing, *pair, overlap, **options)
            return _equal_states(kernel, variances, *pair, overlap, **options)
        plain = partial(recursion.all_states_block, sharing=sharing) if whole else recursion.equal_state_block
        with jax.disable_jit():
            return plain(refined, variances, rows=pair[0], columns=pair[1], overlap=overlap, **options)

    return block
