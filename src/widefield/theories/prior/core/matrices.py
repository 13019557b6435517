"""Whole matrices of the recursion for given networks and inputs: variances first, then blocks of samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import SolveError, Status
from widefield.answer.progress import bar
from widefield.gaussian import AbstractKernel, RefinedKernel, SeriesKernel, kernel_for
from widefield.gaussian.steepness import note_of
from widefield.question.network import Network
from widefield.theories.prior.core import recursion
from widefield.theories.prior.core.blocks import Target, place_block, tile_pairs, tile_size

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


def fill_matrices(
    network: Network, x: np.ndarray, targets: Mapping[str, Target], rtol: float, progress: bool | None = False
) -> Matrices:
    """Arrays for all ``targets``; ``x`` is (sample, driven state, D) and sets the precision."""
    arrays = {name: np.full(target.shape, np.nan, x.dtype) for name, target in targets.items()}
    kernel, q = _resolve_kernel(network, x)
    if not float(q.max()) <= LARGEST:  # nor where a variance is not a number
        return Matrices(
            arrays,
            q,
            kernel,
            failure=Status.nonfinite,
            notes=(f"variances reach {q.max():.1e}, more than {LARGEST:.0e}",),
        )
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


def _resolve_kernel(network: Network, x: np.ndarray) -> tuple[AbstractKernel, np.ndarray]:
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
    whole = any(t.states is not None for t in targets.values())
    tangent = any(t.field == "tangent" for t in targets.values())
    tile = tile_size(len(x), network.depth if whole else 1)
    pairs = [pair for pair in tile_pairs(len(x), tile) if any(target.reads(*pair) for target in targets.values())]
    block_of = _block_maker(network, kernel, q, x, tile, whole, tangent)
    refined, worst = None, 0.0
    seconds = 2e-8 * len(x) ** 2 * network.depth * (network.depth if whole else 1) / 2  # worth showing a bar?
    with bar("prior", len(pairs), progress, seconds=seconds) as advance:
        for rows, columns in pairs:
            block = block_of(rows, columns, None)
            if not float(block.error) <= rtol and isinstance(kernel, SeriesKernel):
                refined = refined or RefinedKernel(network.activation, kernel, rtol)
                block = block_of(rows, columns, refined)
            worst = float(np.maximum(worst, block.error))  # unlike max, keeps a NaN
            get = lambda field, b=block, r=rows, c=columns: np.asarray(getattr(b, field))[..., : len(r), : len(c)]  # noqa: E731
            place_block(targets, arrays, get, rows, columns)
            advance(1)
    return worst, refined or kernel


def _block_maker(
    network: Network, kernel: AbstractKernel, q: np.ndarray, x: np.ndarray, tile: int, whole: bool, tangent: bool
) -> Callable[[range, range, RefinedKernel | None], recursion.Block]:
    """A function of two ranges of samples; with a refined kernel it goes through every state in turn, outside of jit."""
    variances, sharing = recursion.variances_of(network, x.dtype), recursion.sharing_of(network)
    samples = lambda start: np.minimum(np.arange(start, start + tile), len(x) - 1)  # noqa: E731  padded by repetition
    tables = [table(kernel, jnp.asarray(q[:, samples(start)])) for start in range(0, len(x), tile)]

    def block(rows: range, columns: range, refined: RefinedKernel | None) -> recursion.Block:
        left, right = (x[samples(r.start)] for r in (rows, columns))
        pair = tables[rows.start // tile], tables[columns.start // tile]
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
