r"""Averages over the density of one neuron's states, Gaussian times the exponential of a quadratic form of features.

Eq. (posterior.5). Notation: :math:`h = Rz` with :math:`K = RR^{\mathsf T}`; a node set gives unit points :math:`y` with
logarithmic weights, spread to :math:`z = Uy`. Grids and random draws differ in nothing but points and weights, so one
function averages over both and derivatives with respect to :math:`K` and :math:`\tilde\Phi` come for free.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import special, stats
from scipy.stats import qmc

from widefield.gaussian import rules
from widefield.question.activation import Activation

Spread = Literal["whitened", "saturated", "axes", "fixed"]
CHUNK = 1024  # nodes that are averaged at a time
MAX_ENTRIES = 1 << 23  # numbers in a buffer of points
BALLS = {1: 2.0, 2: np.pi, 3: 4 * np.pi / 3, 4: np.pi**2 / 2}  # volumes of unit balls
TAIL = 7.0  # standard deviations that a grid reaches
N_SCAN = 65  # points along a line on which the density's extent is read
FLOOR = 0.25  # variance that a grid covers at least, in units of the prior's


class Nodes(eqx.Module):
    r"""Unit points :math:`y` and the logarithms of what each stands for: a volume, or one over the draws' density.

    ``spread``: "whitened" points follow the covariance of :math:`z`; "saturated" ones reach as far as the density
    does along each axis, as suits bounded activations; "axes" points the standard deviation of each entry of
    :math:`h` (so that a break at zero stays where it is); "fixed" points are :math:`z` itself. ``floor`` bounds the
    spread from below, in units of the prior's variance: a grid that shrank with an iterate would find it again.
    ``n_batches`` equal batches are independent of each other. Of the chunks the first ``n_chunks`` count: the buffer's
    size depends on the dimension alone, so that finer grids and more draws need no new compilation.
    """

    points: Float[Array, "chunk node dimension"]
    log_weight: Float[Array, "chunk node"]
    n_chunks: Int[Array, ""]
    spread: Spread = eqx.field(static=True)
    n_batches: int = eqx.field(static=True)
    floor: float = eqx.field(static=True)

    @property
    def size(self) -> int:
        return int(np.sum(np.isfinite(self.log_weight)))


class Averages(NamedTuple):
    r""":math:`\langle\varphi\varphi^{\mathsf T}\rangle`, :math:`\langle hh^{\mathsf T}\rangle`,
    :math:`\ln\int\!\mathcal N(h;0,K)\,e^{\varphi\tilde\Phi\varphi}` and the effective number of nodes."""

    feature: Array
    hidden: Array
    log_normalizer: Array
    ess: Array


class Density(NamedTuple):
    r"""What fixes :math:`p(h)`: ``factor`` :math:`R`, its left inverse ``whitener`` and ``conjugate`` :math:`\tilde\Phi`."""

    factor: Float[Array, "node dimension"]
    whitener: Float[Array, "dimension node"]
    conjugate: Float[Array, "node node"]


class Frame(NamedTuple):
    r"""How unit points become :math:`h = Ty` and :math:`z = Uy`, and :math:`\ln|U|`."""

    to_hidden: Float[Array, "node dimension"]
    to_white: Float[Array, "dimension dimension"]
    log_volume: Float[Array, ""]


def frame(nodes: Nodes, activation: Activation, density: Density, hidden: Array) -> Frame:
    r"""Spread the points after an estimate ``hidden`` of :math:`\langle hh^{\mathsf T}\rangle`, which is no variable."""
    hidden = jax.lax.stop_gradient(hidden)
    if nodes.spread == "fixed":
        return Frame(density.factor, jnp.eye(density.factor.shape[1], dtype=hidden.dtype), jnp.zeros((), hidden.dtype))
    if nodes.spread == "axes":
        variance = jnp.sum(jax.lax.stop_gradient(density.factor) ** 2, axis=1)
        scale = jnp.sqrt(jnp.maximum(jnp.diag(hidden), nodes.floor * variance))
        white = density.whitener * scale[None]
        return Frame(jnp.diag(scale), white, jnp.linalg.slogdet(white)[1])
    whitener = jax.lax.stop_gradient(density.whitener)
    values, vectors = jnp.linalg.eigh(whitener @ hidden @ whitener.T)
    if nodes.spread == "saturated":
        scale = _extent(activation, jax.lax.stop_gradient(density), values, vectors) / TAIL
    else:
        scale = jnp.sqrt(jnp.clip(values, nodes.floor, 1e6))
    white = (vectors * scale[None]) @ vectors.T
    return Frame(density.factor @ white, white, jnp.sum(jnp.log(scale)))


def _reach(activation: Activation, density: Density, directions: Array, widest: Array) -> Array:
    """Where along each direction in z (rows) the density falls below exp(−TAIL²/2) of its top, at most ``widest``."""
    r = jnp.linspace(0.0, 1.0, N_SCAN, dtype=widest.dtype)[:, None] * widest[None]
    z = r[..., None] * directions[None]
    phi = activation.function(z @ density.factor.T)
    height = jnp.sum(phi * (phi @ density.conjugate), axis=-1) - 0.5 * jnp.sum(z * z, axis=-1)
    height = height - jnp.max(height, axis=0, keepdims=True) + 0.5 * TAIL**2
    last = jnp.max(jnp.where(height > 0, jnp.arange(N_SCAN)[:, None], 0), axis=0)
    here, there = (jnp.take_along_axis(height, i[None], axis=0)[0] for i in (last, jnp.minimum(last + 1, N_SCAN - 1)))
    return (last + jnp.where(there < 0, here / (here - there), 0.0)) / (N_SCAN - 1) * widest


def _extent(activation: Activation, density: Density, values: Array, vectors: Array) -> Array:
    r"""Half axes of an ellipsoid, along those of :math:`\langle zz^{\mathsf T}\rangle`, that holds the density.

    Each is between a displaced peak of unit width and the tail of a Gaussian of the same variance, which is what an
    activation leaves that hardly saturates; all grow until the diagonals fit, along which saturation sets in later.
    """
    peak, widest = TAIL + jnp.sqrt(jnp.clip(values - 1, 0.0, 1e6)), TAIL * jnp.sqrt(jnp.clip(values, 1.0, 1e6))
    axes = jnp.maximum(peak, _reach(activation, density, vectors.T, widest))
    signs = np.array([n for n in itertools.product((-1.0, 0.0, 1.0), repeat=len(values)) if n > (0,) * len(values)])
    diagonals = jnp.asarray(signs / np.linalg.norm(signs, axis=1, keepdims=True), axes.dtype)
    longest = jnp.full(len(diagonals), jnp.sqrt(len(values)), axes.dtype)
    return axes * jnp.maximum(1.0, jnp.max(_reach(activation, density, (diagonals * axes[None]) @ vectors.T, longest)))


def log_terms(
    activation: Activation, density: Density, frame: Frame, points: Array, log_weight: Array
) -> tuple[Array, Array, Array]:
    """Logarithm of each node's share of the normalizer, its pre-activations and its features."""
    h, z = points @ frame.to_hidden.T, points @ frame.to_white.T
    phi = activation.function(h)
    tilt = jnp.sum(phi * (phi @ density.conjugate), axis=-1)
    gauss = -0.5 * jnp.sum(z * z, axis=-1) - 0.5 * z.shape[-1] * jnp.log(2 * jnp.pi)
    return log_weight + gauss + tilt + frame.log_volume, h, phi


Pairs = Callable[[Array, Array], tuple[tuple[Array, Array], tuple[Array, Array]]]
SQUARES: Pairs = lambda phi, h: ((phi, phi), (h, h))  # noqa: E731


class _Sums(NamedTuple):
    """Weighted sums of each chunk, in units of its largest weight exp(``top``): of weights, their squares, two products."""

    top: Array
    weight: Array
    square: Array
    first: Array
    second: Array


def _chunk_sums(nodes: Nodes, activation: Activation, density: Density, hidden: Array, pairs: Pairs = SQUARES) -> _Sums:
    placed, n = frame(nodes, activation, density, hidden), len(hidden)
    count, dtype = len(nodes.points), hidden.dtype

    def add(c, sums):
        log_term, h, phi = log_terms(activation, density, placed, nodes.points[c], nodes.log_weight[c])
        top = jax.lax.stop_gradient(jnp.max(log_term))
        weight = jnp.exp(log_term - top)
        products = [(weight[:, None] * a).T @ b for a, b in pairs(phi, h)]
        new = _Sums(top, jnp.sum(weight), jnp.sum(weight * weight), *products)
        return jax.tree.map(lambda total, part: total.at[c].set(part), sums, new)

    scalar, matrix = jnp.zeros(count, dtype), jnp.zeros((count, n, n), dtype)
    start = _Sums(jnp.full(count, -jnp.inf, dtype), scalar, scalar, matrix, matrix)
    return jax.lax.fori_loop(0, nodes.n_chunks, add, start)


def _combine(sums: _Sums, member: Array) -> Averages:
    """Averages over the chunks that are members."""
    top = jax.lax.stop_gradient(jnp.max(jnp.where(member, sums.top, -jnp.inf)))
    unit = jnp.where(member, jnp.exp(sums.top - top), 0)
    total = unit @ sums.weight
    symmetric = lambda a: 0.5 * (a + a.T) / total  # noqa: E731
    feature, hidden = (symmetric(jnp.tensordot(unit, a, 1)) for a in (sums.first, sums.second))
    return Averages(feature, hidden, top + jnp.log(total), total**2 / (unit**2 @ sums.square))


def averages(nodes: Nodes, activation: Activation, density: Density, hidden: Array) -> Averages:
    """Self-normalized averages over all nodes."""
    sums = _chunk_sums(nodes, activation, density, hidden)
    return _combine(sums, jnp.isfinite(sums.top))


def all_averages(nodes: Nodes, activation: Activation, density: Density, hidden: Array) -> tuple[Averages, Averages]:
    """The same, and by each independent batch alone with the batch in front: their scatter is the sampling error."""
    sums = _chunk_sums(nodes, activation, density, hidden)
    batch = jnp.arange(len(nodes.points)) * nodes.n_batches // nodes.n_chunks
    result = jax.vmap(lambda b: _combine(sums, batch == b))(jnp.arange(nodes.n_batches))
    result = result._replace(log_normalizer=result.log_normalizer + jnp.log(nodes.n_batches))
    return _combine(sums, jnp.isfinite(sums.top)), result


def batch_products(
    nodes: Nodes, activation: Activation, density: Density, hidden: Array, pairs: Pairs
) -> tuple[Array, Array, Array]:
    """Averages of two products by batch (batch, node, node_), and the effective share of all nodes."""
    sums = _chunk_sums(nodes, activation, density, hidden, pairs)
    unit = jnp.exp(sums.top - jnp.max(sums.top))
    batch = jnp.arange(len(nodes.points)) * nodes.n_batches // nodes.n_chunks
    member = unit[None] * (batch[None] == jnp.arange(nodes.n_batches)[:, None])
    total = (member @ sums.weight)[:, None, None]
    share = (unit @ sums.weight) ** 2 / (unit**2 @ sums.square) / (nodes.n_chunks * CHUNK)
    return jnp.tensordot(member, sums.first, 1) / total, jnp.tensordot(member, sums.second, 1) / total, share


def capacity(dimension: int) -> int:
    """Most nodes of a buffer: enough for two dimensions, bounded by memory for many."""
    if dimension <= 2:
        return 1 << (13 if dimension == 1 else 18)
    return 1 << min(21, int(np.log2(MAX_ENTRIES / dimension)))


def make_nodes(points, log_weight, spread: Spread = "whitened", n_batches: int = 1, floor: float = FLOOR) -> Nodes:
    """Nodes in chunks; the last is filled up with points of no weight."""
    size, dimension = points.shape
    count = -(-size // CHUNK)
    if count % n_batches:
        raise ValueError(f"{size} nodes in chunks of {CHUNK} do not make {n_batches} equal batches.")
    room = max(count, capacity(dimension) // CHUNK) * CHUNK
    all_points, all_weights = np.zeros((room, dimension)), np.full(room, -np.inf)
    all_points[:size], all_weights[:size] = points, log_weight
    shape = room // CHUNK, CHUNK
    arrays = all_points.reshape(*shape, dimension), all_weights.reshape(shape), np.asarray(count)
    y, log_w, n_chunks = jax.device_put(arrays)  # jnp.asarray would compile once per shape
    return Nodes(y, log_w, n_chunks, spread, n_batches, floor)


def grid(dimension: int, spacing: float, reach: float, half: bool, spread: Spread = "whitened") -> Nodes:
    """Equal steps within a ball; ``half`` of it where the density is even. No node lies on an axis.

    Error: exponentially small in 1/spacing for smooth activations, while the density's narrowest structure is wider
    than a few steps; compare with another spacing.
    """
    n = int(np.ceil(reach / spacing))
    axis = spacing * (np.arange(-n, n) + 0.5)
    first = axis[axis > 0] if half else axis
    points = np.stack(np.meshgrid(first, *[axis] * (dimension - 1), indexing="ij"), axis=-1).reshape(-1, dimension)
    points = points[np.sum(points**2, axis=1) <= reach**2]
    return make_nodes(points, np.full(len(points), dimension * np.log(spacing) + half * np.log(2)), spread)


def panels(dimension: int, n_nodes: int, reach: float, half: bool) -> Nodes:
    """Gauss–Legendre on both sides of zero along each entry of h: spectral for activations with a break at zero."""
    x, w = rules.legendre(n_nodes)
    side, weight = 0.5 * reach * (x + 1), np.log(0.5 * reach * w)
    axis, log_w = np.concatenate([-side[::-1], side]), np.concatenate([weight[::-1], weight])
    first = (side, weight + np.log(2)) if half else (axis, log_w)
    rest = [(axis, log_w)] * (dimension - 1)
    columns = [np.meshgrid(*[pair[k] for pair in (first, *rest)], indexing="ij") for k in (0, 1)]
    points = np.stack(columns[0], axis=-1).reshape(-1, dimension)
    return make_nodes(points, np.sum(columns[1], axis=0).reshape(-1), "axes")


def draws(dimension: int, n_samples: int, seed: int, n_batches: int = 16) -> Nodes:
    """Scrambled Sobol points of a multivariate Student density, in independent scramblings.

    Its tails are heavier than any Gaussian's, so that weights stay bounded, and its covariance is at least about the
    prior's: a saturating activation leaves the prior's tails. ``n_samples`` is rounded up to a power of two per batch.
    """
    power = max(int(np.log2(CHUNK)), int(np.ceil(np.log2(n_samples / n_batches))))
    freedom = max(10.0, 2.0 * dimension)
    batches = []
    for batch in range(n_batches):
        rng = np.random.default_rng([seed, batch])
        batches.append(qmc.Sobol(dimension + 1, scramble=True, rng=rng).random_base2(power))
    u = np.clip(np.concatenate(batches), 1e-15, 1 - 1e-15)
    y = special.ndtri(u[:, :-1]) / np.sqrt(stats.chi2.ppf(u[:, -1:], freedom) / freedom)
    log_density = stats.multivariate_t.logpdf(y, np.zeros(dimension), np.eye(dimension), freedom)
    return make_nodes(y, -log_density - np.log(len(y)), "whitened", n_batches, 0.8)


def levels(dimension: int, half: bool, *, split: bool, bounded: bool) -> Iterator[Callable[[], Nodes]]:
    """Finer and finer rules as long as they fit, with alternating reach so that a cut tail shows.

    ``split`` panels at zero, otherwise a grid, which for ``bounded`` activations follows displaced peaks.
    """
    spread: Spread = "saturated" if bounded else "whitened"
    for level in range(16):
        reach = TAIL + (0.0 if level % 2 else 0.5) + (not bounded)
        if split:
            n_nodes = round(16 * 2 ** (level / 2))
            size, make = (2 * n_nodes) ** dimension, partial(panels, dimension, n_nodes, reach + 0.5, half)
        else:
            spacing = 0.4 * 2 ** (-level / 2)
            size = (0.5 if half else 1) * BALLS[dimension] * (reach / spacing) ** dimension
            make = partial(grid, dimension, spacing, reach, half, spread)
        if level > 1 and size > capacity(dimension):
            return
        yield make
