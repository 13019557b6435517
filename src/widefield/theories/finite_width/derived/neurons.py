r"""What the expansion says of some neurons of a layer: couplings of m of them, averages of one, covariances of two.

In averages the spectator neurons cancel. Notation: :math:`H_k` are Hermite tensors of the whitened :math:`y = L^{-1}z`,
:math:`K = LL^{\mathsf T}`; G and V are whitened alike, so that F need not be differentiable.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from widefield.answer.boundary import require_memory, x64
from widefield.answer.certificate import Certificate, Check
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.gaussian import rules
from widefield.question import checks
from widefield.theories.finite_width.expansion import TRUSTED
from widefield.theories.finite_width.untied.recursion import feeding_widths
from widefield.theories.finite_width.untied.solve import PAIR

SINGULAR = 1e-10  # smallest eigenvalue of a correlation matrix that can still be inverted to some digits
INDEPENDENT = 1e-6  # smallest sine of the angle between two samples
REACH = 10.0
END = 9.8  # beyond which the nodes count as their end
LEVELS = 12
SHIFTED = np.array([0.0, 0.382])
RULES = {  # by the number of samples: fractions at which every panel is split, and nodes; the first rule gives the value
    1: ((np.arange(64) / 64, 16), (np.zeros(1), 16), (SHIFTED, 10)),
    2: ((np.arange(2) / 2, 12), (np.zeros(1), 16), (SHIFTED, 8)),
}
BLOCK = 2**18  # nodes at a time
MOST_NODES = 1e9
EPS = float(np.finfo(float).eps)
Array = np.ndarray


def _samples(solution: Any, samples: Any, needed: tuple[str, ...], most: int | None = None) -> list[int]:
    """The sample indices that are meant, in a solution of `finite_width` with the fields ``needed``."""
    theory = solution.certificate.theory
    if theory != "finite_width":
        raise ValueError(f"`solution` must come from widefield.finite_width, got {theory}.")
    missing = [name for name in needed if name not in solution.data]
    if missing:
        raise ValueError(f"`solution` must hold {', '.join(missing)}: name them in `quantities` of finite_width.")
    n_samples = solution.data.sizes["sample"]
    most = n_samples if most is None else min(most, n_samples)
    allowed = f"`samples` must be one to {most} different indices 0 … {n_samples - 1}"
    if isinstance(samples, str | bytes) or not isinstance(samples, Iterable) or getattr(samples, "ndim", 1) != 1:
        raise ValueError(f"{allowed}, got {samples!r:.100}.")
    index = [checks.integer("samples", s, 0) for s in islice(samples, most + 1)]
    if not 1 <= len(index) <= most or len(set(index)) < len(index) or max(index) >= n_samples:
        raise ValueError(f"{allowed}, got {samples!r:.100}.")
    return index


@x64
def couplings(
    solution: Solution,
    *,
    m: int = 1,
    samples: Sequence[int] | None = None,
    rtol: float = 1e-6,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Quadratic and quartic couplings of ``m`` neurons of every layer, to first order in 1/n.

    .. math::
        S = \tfrac12 g^{ab}\sum_{i \le m} z_{ia}z_{ib} - \tfrac18 v^{(ab)(cd)}\sum_{i,j \le m} z_{ia}z_{ib}z_{jc}z_{jd}, \qquad
        g_{ab} = K_{ab} + \tfrac1n\left[G_{ab} - K^{cd}\left(\tfrac m2 V_{(ab)(cd)} + V_{(ac)(bd)}\right)\right]

    Eqs. (finite_width.8), (finite_width.9), (finite_width.10): the couplings run with the number ``m`` of neurons kept.
    Fields over (layer, sample, sample\_, …): ``metric`` :math:`g_{ab}`, ``quadratic`` :math:`g^{ab}` (its inverse to first
    order), ``quartic`` :math:`v^{(ab)(cd)} = V^{(ab)(cd)}/n` with indices raised by the inverse kernel.

    ``solution`` comes from `widefield.finite_width` and holds ``kernel``, ``correction`` and ``vertex``. ``samples``
    marginalizes over all other samples; the couplings of a part are not entries of the couplings of the whole.
    Error: within ``rtol`` (1e-6 by default) are the residual, which computes K + G/n and V/n back from the couplings, each
    relative to its scale, and the error of the kernels magnified by the condition number of their correlations.
    Limits: perturbative in m/n, no success where m V/(nK²) exceeds 0.3; m of the width or more is refused. Needs an
    invertible kernel. For v > 0 the quartic action is unbounded below: use it in perturbation theory, never normalize it.
    """
    start = time.perf_counter()
    rtol = checks.tolerance("rtol", rtol, 1e-12)
    every = range(solution.data.sizes.get("sample", 0))
    index = _samples(solution, every if samples is None else samples, ("kernel", "correction", "vertex"))
    width = solution.certificate.options["width"]
    narrowest, n = min(solution.network.sizes(width)), feeding_widths(solution.network, width)
    if checks.integer("m", m, 1) >= narrowest:
        raise ValueError(
            f"`m` must be well below the width {narrowest}: the couplings are an expansion in m/n, got {m}."
        )
    need = 8 * 8 * len(n) * len(index) ** 4
    require_memory(need, f"Couplings of {len(index)} `samples`", "Name fewer of them.")
    every_layer = range(len(n))
    K, G = (solution.data[name].values[np.ix_(every_layer, index, index)] for name in ("kernel", "correction"))
    V = solution.data["vertex"].values[np.ix_(every_layer, *[index] * 4)]
    inverse, magnified = _inverses(K)
    parts, residuals = [], []
    with bar("couplings", len(n), progress, 2e-8 * len(n) * len(index) ** 5) as advance:
        for layer in every_layer:
            at = slice(layer, layer + 1)
            parts.append(_at_layer(m, K[at], G[at], V[at], inverse[at], n[at]))
            residuals.append(_residual(m, K[at], G[at], V[at], n[at], parts[-1][0], parts[-1][2]))
            advance(1)
    metric, quadratic, quartic = (np.concatenate(values) for values in zip(*parts, strict=True))
    fields = {
        "metric": (PAIR, metric),
        "quadratic": (PAIR, quadratic),
        "quartic": ((*PAIR, "sample__", "sample___"), quartic),
    }
    relative = np.einsum("laaaa->la", V) / np.einsum("laa->la", K) ** 2 / n[:, None]
    relative = m * float(relative.max()) * (1 - 1e-12)
    note = (
        f"beyond the reach of the expansion: m V/(nK²) reaches {relative:.2g}, more than {TRUSTED:g}; a solution of width "
        f"{math.ceil(width * relative / TRUSTED)} or more would do"
    )
    error = magnified * max(solution.certificate.error or 0.0, EPS)
    certificate = Certificate(
        "couplings",
        {
            "residual": Check(float(np.max(residuals)), rtol),
            "error": Check(error, rtol),
            "expansion": Check(relative, TRUSTED),
        },
        solution.failure,
        wall_time=time.perf_counter() - start,
        options={"m": int(m), "samples": index, "width": width, "rtol": rtol},
        notes=(note,) if relative > TRUSTED else (),
    )
    return make_solution(fields, certificate, solution.network, solution.task, throw=throw)


def _at_layer(m: int, K: Array, G: Array, V: Array, inverse: Array, n: Array) -> tuple[Array, Array, Array]:
    """g, its inverse to first order, and v, Eqs. (finite_width.9), (finite_width.10)."""
    pull = 0.5 * m * np.einsum("lcd,labcd->lab", inverse, V) + np.einsum("lcd,lacbd->lab", inverse, V)
    shift = (G - pull) / n[:, None, None]
    quartic = np.einsum("lae,lbf,lcg,ldh,lefgh->labcd", *[inverse] * 4, V, optimize=True) / n.reshape(-1, 1, 1, 1, 1)
    return K + shift, inverse - inverse @ shift @ inverse, quartic


def _residual(m: int, K: Array, G: Array, V: Array, n: Array, metric: Array, quartic: Array) -> float:
    """The two- and four-point functions of the action, to first order, against K + G/n and V/n."""
    loops = m * np.einsum("labcd,lea,lfb,lcd->lef", quartic, K, K, K, optimize=True)
    loops += 2 * np.einsum("labcd,lea,lfc,lbd->lef", quartic, K, K, K, optimize=True)
    two = metric + loops / 2 - K - G / n[:, None, None]
    four = np.einsum("labcd,lea,lfb,lgc,lhd->lefgh", quartic, *[K] * 4, optimize=True) - V / n.reshape(-1, 1, 1, 1, 1)
    scale = np.einsum("laa->la", K).max(axis=1)
    spread = np.abs(V).max(axis=(1, 2, 3, 4)) / n
    relative = np.abs(four).max(axis=(1, 2, 3, 4)) / np.where(spread > 0, spread, 1.0)
    return float(np.max([np.abs(two).max(axis=(1, 2)) / scale, relative]))


def _inverses(K: Array) -> tuple[Array, float]:
    """Inverse kernels, and by how much they magnify an error: the condition number of the correlations."""
    root = np.sqrt(np.einsum("laa->la", K))
    least, largest = 0.0, 1.0
    if root.all():
        eigenvalues = np.linalg.eigvalsh(K / root[:, :, None] / root[:, None, :])
        least, largest = float(eigenvalues.min()), float(eigenvalues.max())
    if least < SINGULAR:
        raise ValueError(
            "`samples` must be linearly independent: an action exists only for an invertible kernel, and the smallest "
            f"eigenvalue of its correlations is {least:.1e}. Leave out duplicate, opposite and zero inputs."
        )
    return np.linalg.inv(K), largest / least


@x64
def neuron_average(
    solution: Solution,
    function: Callable[..., Any],
    *,
    samples: Sequence[int] = (0,),
    layer: int | None = None,
    breaks: Sequence[float] = (0.0,),
    rtol: float = 1e-8,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""E F of one neuron of a ``layer`` (by default the last) at order 1/n, Eq. (finite_width.11).

    ``function`` takes one array per entry of ``samples`` (one or two sample indices). ``breaks`` are the values of the
    preactivations at which it is not smooth. Scalar fields: ``value`` at the width of ``solution`` with its
    ``value_error``, the ``leading`` part and the coefficient ``correction`` of 1/n.

    Error: the largest difference between three rules (a finer and a shifted one), and what the ends of the nodes carry,
    relative to √<F²>, within ``rtol`` (1e-8 by default); the error of the expansion is not part of it. Limits: two samples
    must not be parallel; what is narrower than a thousandth of a standard deviation (two samples: a thirtieth) needs
    ``breaks`` to be seen.
    """
    options = {"samples": samples, "layer": layer, "breaks": breaks, "rtol": rtol}
    return _answer("neuron_average", solution, {"function": function}, options, progress, throw)


@x64
def neuron_covariance(
    solution: Solution,
    function: Callable[..., Any],
    other: Callable[..., Any],
    *,
    samples: Sequence[int] = (0,),
    layer: int | None = None,
    breaks: Sequence[float] = (0.0,),
    rtol: float = 1e-8,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Cov of ``function`` of one neuron with ``other`` of another neuron of the same layer, Eq. (finite_width.12).

    Arguments and fields are those of `neuron_average`; the covariance begins at order 1/n, so that ``leading`` is zero.
    Error: as there, relative to √(<F²><F'²>) Σ|V|/2n, the largest that the covariance can be; 1e-8 by default.
    """
    options = {"samples": samples, "layer": layer, "breaks": breaks, "rtol": rtol}
    return _answer("neuron_covariance", solution, {"function": function, "other": other}, options, progress, throw)


class Point(NamedTuple):
    """One layer and one or two samples: the Cholesky factor of K, whitened G and V, and the feeding width."""

    root: Array
    correction: Array
    vertex: Array
    n: float


class Moments(NamedTuple):
    """<F>, √<F²>, <F H2> and <F H4> in whitened coordinates, and what the end of the nodes carries of them over √<F²>."""

    mean: float
    size: float
    two: Array
    four: Array
    end: float


def _answer(
    theory: str, solution: Any, functions: dict[str, Callable], options: dict[str, Any], progress: Any, throw: Any
) -> Solution:
    """Average of one function, or covariance of two, certified by the differences between three rules."""
    start = time.perf_counter()
    rtol, breaks = checks.tolerance("rtol", options["rtol"], 1e-13), _breaks(options["breaks"])
    for name, function in functions.items():
        if not callable(function):
            raise ValueError(f"`{name}` must be a function of arrays, got {function!r:.100}.")
    point = _point(solution, options["samples"], options["layer"])
    splits, last = RULES[len(point.root)], len(functions) - 1
    total = sum(_n_nodes(split, n, breaks, len(point.root)) for split, n in splits) * len(functions)
    if total > MOST_NODES:
        raise ValueError(
            f"`breaks` must be fewer: {len(breaks)} of them take {total:.1g} nodes, of which {MOST_NODES:.0g} may be."
        )
    values, errors, leading = [], [], 0.0
    with bar(theory, total, progress, 3e-7 * total) as advance:
        for split, n_nodes in splits:
            moments = [_moments(name, f, point, breaks, split, n_nodes, advance) for name, f in functions.items()]
            first, other = moments[0], moments[last]
            if last:
                correction = 0.25 * float(np.einsum("ab,abcd,cd->", first.two, point.vertex, other.two))
                scale = first.size * other.size * np.abs(point.vertex).sum() / (2 * point.n)
            else:
                correction = 0.5 * np.sum(point.correction * first.two) + np.sum(point.vertex * first.four) / 8
                leading, scale = first.mean, first.size
            values.append((leading + correction / point.n, leading, correction))
            errors.append(scale * sum(part.end for part in moments))
    error = max(abs(value[0] - values[0][0]) for value in values) + max(errors)
    certificate = Certificate(
        theory,
        {"error": Check(error / (scale if scale > 0 else 1.0), rtol)},
        solution.failure,
        wall_time=time.perf_counter() - start,
        options={"width": solution.certificate.options["width"], **functions, **options},
    )
    fields = dict(zip(("value", "leading", "correction"), values[0], strict=True)) | {"value_error": error}
    arrays = {name: ((), float(value)) for name, value in fields.items()}
    return make_solution(arrays, certificate, solution.network, solution.task, throw=throw)


def _breaks(breaks: Any) -> Array:
    array = np.atleast_1d(np.asarray(breaks))
    if array.ndim != 1 or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise ValueError(f"`breaks` must be finite numbers such as (-1, 1), got {breaks!r:.100}.")
    return np.unique(array.astype(float))


def _point(solution: Any, samples: Any, layer: Any) -> Point:
    index = _samples(solution, samples, ("kernel", "correction", "vertex_pairs"), most=2)
    n_layers = solution.data.sizes["layer"]
    layer = n_layers if layer is None else checks.integer("layer", layer, 1)
    if layer > n_layers:
        raise ValueError(f"`layer` must lie in 1 … {n_layers}, got {layer}.")
    K, G = (solution.data[name].values[layer - 1][np.ix_(index, index)] for name in ("kernel", "correction"))
    block = solution.data["vertex_pairs"].values[layer - 1][index[0], index[-1]]
    which = np.array([[0, 1], [1, 2]])[: len(index), : len(index)]
    V = block[which[:, :, None, None], which[None, None]]
    if np.any(np.diag(K) <= 0) or not np.linalg.det(K) > INDEPENDENT**2 * np.prod(np.diag(K)):
        raise ValueError("`samples` must have kernels that are neither zero nor parallel.")
    root = np.linalg.cholesky(K)
    inverse = np.linalg.inv(root)
    V = np.einsum("ae,bf,cg,dh,efgh->abcd", *[inverse] * 4, V)
    n = feeding_widths(solution.network, solution.certificate.options["width"])[layer - 1]
    return Point(root, inverse @ G @ inverse.T, V, float(n))


def _moments(
    name: str,
    function: Callable,
    point: Point,
    breaks: Array,
    split: Array,
    n_nodes: int,
    advance: Callable[[int], None],
) -> Moments:
    """Sums over the nodes, block by block."""
    dim = len(point.root)
    mean, square, end = 0.0, 0.0, 0.0
    two, four = np.zeros((dim,) * 2), np.zeros((dim,) * 4)
    for y, weight in _blocks(point.root, breaks, split, n_nodes):
        values = _values(name, function, y @ point.root.T)
        weighted = weight * values
        mean += weighted.sum()
        square += np.sum(weighted * values)
        two += np.einsum("x,xa,xb->ab", weighted, y, y)
        four += np.einsum("x,xa,xb,xc,xd->abcd", weighted, y, y, y, y, optimize=True)
        largest = np.abs(y).max(axis=1)
        end += np.sum(np.where(largest > END, np.abs(weighted) * largest**4, 0.0))
        advance(len(y))
    one, size = np.eye(dim), np.sqrt(square)
    letters = ("abcd", "acbd", "adbc")
    pairs = sum(np.einsum(f"{s[:2]},{s[2:]}->abcd", u, v) for s in letters for u, v in ((one, two), (two, one)))
    whole = sum(np.einsum(f"{s[:2]},{s[2:]}->abcd", one, one) for s in letters)
    return Moments(mean, size, two - mean * one, four - pairs + mean * whole, end / (size if size > 0 else 1.0))


def _values(name: str, function: Callable, z: Array) -> Array:
    """``function`` at the nodes ``z`` (node, sample), finite and real."""
    try:
        values = np.asarray(function(*(jnp.asarray(column) for column in z.T)))
    except Exception as error:  # whatever a user's function raises
        raise ValueError(
            f"`{name}` must act on arrays, one per entry of `samples` ({z.shape[1]}), but raised: {error}"
        ) from error
    if values.shape != z.shape[:1]:
        raise ValueError(f"`{name}` must act entry by entry, but turns {z.shape[:1]} into {values.shape}.")
    if values.dtype.kind not in "fiub":
        raise ValueError(f"`{name}` must return real numbers, got dtype {values.dtype}.")
    if not np.isfinite(values).all():
        at = int(np.argmin(np.isfinite(values)))
        raise ValueError(
            f"`{name}` must be finite at every preactivation, got {values[at]} at {tuple(z[at].tolist())}."
        )
    return values.astype(float)


def _n_nodes(split: Array, n_nodes: int, breaks: Array, dim: int) -> int:
    """About as many as `_blocks` makes."""
    return (rules.edges(np.zeros(1), REACH, LEVELS).size * (len(breaks) + 1) * len(split) * n_nodes) ** dim


def _blocks(root: Array, breaks: Array, split: Array, n_nodes: int) -> Iterator[tuple[Array, Array]]:
    """Whitened nodes (node, sample) and weights on panels that end where a preactivation is at a break."""

    def rule(centers: Array) -> tuple[Array, Array]:
        edge = rules.edges(centers, REACH, LEVELS)
        finer = edge[..., :-1, None] + np.diff(edge)[..., None] * split
        return rules.panels(np.concatenate([finer.reshape(*edge.shape[:-1], -1), edge[..., -1:]], axis=-1), n_nodes)

    y, weight = rule(breaks / root[0, 0])
    if len(root) == 1:
        for part in np.array_split(np.arange(len(y)), len(y) // BLOCK + 1):
            yield y[part, None], weight[part]
        return
    for part in np.array_split(np.arange(len(y)), len(y) ** 2 // BLOCK + 1):
        inner, density = rule((breaks - root[1, 0] * y[part, None]) / root[1, 1])
        outer = np.broadcast_to(y[part, None], inner.shape)
        yield np.stack([outer.ravel(), inner.ravel()], axis=-1), (weight[part, None] * density).ravel()
