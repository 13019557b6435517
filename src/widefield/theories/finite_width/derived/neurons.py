r"""What the expansion says of some neurons of a layer: couplings of m of them, averages of one, covariances of two.

In averages the spectator neurons cancel. Notation: :math:`H_k` are Hermite tensors of the whitened :math:`y = L^{-1}z`,
:math:`K = LL^{\mathsf T}`; G and V are whitened alike, so that F need not be differentiable.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import Solution, make_solution
from widefield.gaussian import rules
from widefield.question import checks
from widefield.theories.finite_width.expansion import TRUSTED
from widefield.theories.finite_width.untied.recursion import feeding_widths
from widefield.theories.finite_width.untied.solve import PAIR

SINGULAR = 1e-10  # smallest eigenvalue of a correlation matrix that can still be inverted to some digits
INDEPENDENT = 1e-6  # smallest sine of the angle between two samples
REACH = 10.0
LEVELS = 12
NODES = (10, 16)
EPS = float(np.finfo(float).eps)
Array = np.ndarray


def _samples(solution: Any, samples: Sequence[int] | None, needed: tuple[str, ...]) -> list[int]:
    """Indices of the samples that are meant, all by default, in a solution of `finite_width` with the fields ``needed``."""
    theory = solution.certificate.theory if isinstance(solution, Solution) else type(solution).__name__
    if theory != "finite_width":
        raise ValueError(f"`solution` must come from widefield.finite_width, got {theory}.")
    missing = [name for name in needed if name not in solution.data]
    if missing:
        raise ValueError(f"`solution` must hold {', '.join(missing)}: name them in `quantities` of finite_width.")
    n_samples = solution.data.sizes["sample"]
    index = list(range(n_samples)) if samples is None else [checks.integer("samples", s, 0) for s in samples]
    if not index or len(set(index)) < len(index) or max(index) >= n_samples:
        raise ValueError(f"`samples` must be different indices 0 … {n_samples - 1}, got {samples!r}.")
    return index


@x64
def couplings(
    solution: Solution, *, m: int = 1, samples: Sequence[int] | None = None, rtol: float = 1e-6, throw: bool = True
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
    Limits: perturbative in m/n, and a note says where m V/(nK²) exceeds 0.3; m of the width or more is refused. Needs an
    invertible kernel. For v > 0 the quartic action is unbounded below: use it in perturbation theory, never normalize it.
    """
    start = time.perf_counter()
    index = _samples(solution, samples, ("kernel", "correction", "vertex"))
    width, rtol = solution.certificate.options["width"], checks.tolerance("rtol", rtol, 1e-12)
    narrowest, n = min(solution.network.sizes(width)), feeding_widths(solution.network, width)
    if checks.integer("m", m, 1) >= narrowest:
        raise ValueError(
            f"`m` must be well below the width {narrowest}: the couplings are an expansion in m/n, got {m}."
        )
    at = np.ix_(range(len(n)), index, index)
    K, G = (solution.data[name].values[at] for name in ("kernel", "correction"))
    V = solution.data["vertex"].values[np.ix_(range(len(n)), *[index] * 4)]
    inverse, magnified = _inverses(K)
    pull = 0.5 * m * np.einsum("lcd,labcd->lab", inverse, V) + np.einsum("lcd,lacbd->lab", inverse, V)
    shift = (G - pull) / n[:, None, None]
    quartic = np.einsum("lae,lbf,lcg,ldh,lefgh->labcd", *[inverse] * 4, V, optimize=True) / n.reshape(-1, 1, 1, 1, 1)
    fields = {
        "metric": (PAIR, K + shift),
        "quadratic": (PAIR, inverse - inverse @ shift @ inverse),
        "quartic": ((*PAIR, "sample__", "sample___"), quartic),
    }
    relative = np.einsum("laaaa->la", V) / np.einsum("laa->la", K) ** 2 / n[:, None]
    relative = m * float(relative.max())
    notes = (f"beyond the reach of the expansion: m V/(nK²) reaches {relative:.2g}, more than {TRUSTED:g}",)
    error = magnified * max(solution.certificate.error or 0.0, EPS)
    certificate = Certificate(
        "couplings",
        {"residual": Check(_residual(m, K, K + shift, quartic, G, V, n), rtol), "error": Check(error, rtol)},
        solution.failure,
        wall_time=time.perf_counter() - start,
        options={"m": int(m), "samples": index, "width": width, "rtol": rtol},
        notes=notes if relative > TRUSTED else (),
    )
    return make_solution(fields, certificate, solution.network, solution.task, throw=throw)


def _residual(m: int, K: Array, metric: Array, quartic: Array, G: Array, V: Array, n: Array) -> float:
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
    throw: bool = True,
) -> Solution:
    r"""E F of one neuron of a ``layer`` (by default the last) at order 1/n, Eq. (finite_width.11).

    ``function`` takes one array per entry of ``samples`` (one or two sample indices). ``breaks`` are the values of the
    preactivations at which it is not smooth. Scalar fields: ``value`` at the width of ``solution`` with its
    ``value_error``, the ``leading`` part and the coefficient ``correction`` of 1/n.

    Error: the difference between two node counts, relative to √<F²>, within ``rtol`` (1e-8 by default); the error of the
    expansion is not part of it. Limits: two samples must not be parallel.
    """
    return _answer("neuron_average", solution, (function,), samples, layer, breaks, rtol, throw)


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
    throw: bool = True,
) -> Solution:
    r"""Cov of ``function`` of one neuron with ``other`` of another neuron of the same layer, Eq. (finite_width.12).

    Arguments and fields are those of `neuron_average`; the covariance begins at order 1/n, so that ``leading`` is zero.
    Error: as there, relative to √(<F²><F'²>) Σ|V|/2n, the largest that the covariance can be; 1e-8 by default.
    """
    return _answer("neuron_covariance", solution, (function, other), samples, layer, breaks, rtol, throw)


def _answer(
    theory: str,
    solution: Any,
    functions: tuple[Callable, ...],
    samples: Any,
    layer: Any,
    breaks: Any,
    rtol: Any,
    throw: bool,
) -> Solution:
    """Average of one function, or covariance of two, certified by the difference between two node counts."""
    start = time.perf_counter()
    point, rtol = _point(solution, samples, layer), checks.tolerance("rtol", rtol, 1e-13)
    values = []
    for n_nodes in NODES:
        moments = [_moments(function, point, breaks, n_nodes) for function in functions]
        first, last = moments[0], moments[-1]
        if len(functions) == 1:
            leading, scale = first.mean, np.sqrt(first.square)
            correction = 0.5 * np.sum(point.correction * first.two) + np.sum(point.vertex * first.four) / 8
        else:
            leading, scale = 0.0, np.sqrt(first.square * last.square) * np.abs(point.vertex).sum() / (2 * point.n)
            correction = 0.25 * float(np.einsum("ab,abcd,cd->", first.two, point.vertex, last.two))
        values.append(leading + correction / point.n)
    error = abs(values[1] - values[0])
    named = dict(zip(("function", "other"), functions, strict=False))
    certificate = Certificate(
        theory,
        {"error": Check(error / (scale if scale > 0 else 1.0), rtol)},
        solution.failure,
        wall_time=time.perf_counter() - start,
        options={"width": solution.certificate.options["width"]}
        | named
        | {"samples": samples, "layer": layer, "breaks": breaks, "rtol": rtol},
    )
    fields = {"value": values[1], "value_error": error, "leading": leading, "correction": correction}
    arrays = {name: ((), float(value)) for name, value in fields.items()}
    return make_solution(arrays, certificate, solution.network, solution.task, throw=throw)


class Point(NamedTuple):
    """One layer and one or two samples: the Cholesky factor of K, whitened G and V, and the feeding width."""

    root: np.ndarray
    correction: np.ndarray
    vertex: np.ndarray
    n: float


def _point(solution: Any, samples: Sequence[int], layer: int | None) -> Point:
    index = _samples(solution, samples, ("kernel", "correction", "vertex_pairs"))
    if len(index) > 2:
        raise ValueError(f"`samples` must be one or two indices, got {samples!r}.")
    n_layers = solution.data.sizes["layer"]
    layer = n_layers if layer is None else checks.integer("layer", layer, 1)
    if layer > n_layers:
        raise ValueError(f"`layer` must lie in 1 … {n_layers}, got {layer}.")
    K, G = (solution.data[name].values[layer - 1][np.ix_(index, index)] for name in ("kernel", "correction"))
    block = solution.data["vertex_pairs"].values[layer - 1][index[0], index[-1]]
    which = np.array([[0, 1], [1, 2]])[: len(index), : len(index)]
    V = block[which[:, :, None, None], which[None, None]]
    if np.any(np.diag(K) <= 0) or np.linalg.det(K) <= INDEPENDENT**2 * np.prod(np.diag(K)):
        raise ValueError("`samples` must have kernels that are neither zero nor parallel.")
    root = np.linalg.cholesky(K)
    inverse = np.linalg.inv(root)
    V = np.einsum("ae,bf,cg,dh,efgh->abcd", *[inverse] * 4, V)
    n = feeding_widths(solution.network, solution.certificate.options["width"])[layer - 1]
    return Point(root, inverse @ G @ inverse.T, V, float(n))


class Moments(NamedTuple):
    """<F>, <F²>, <F H2> and <F H4> in whitened coordinates."""

    mean: float
    square: float
    two: np.ndarray
    four: np.ndarray


def _moments(function: Callable, point: Point, breaks: Sequence[float], n_nodes: int) -> Moments:
    y, weight = _nodes(point.root, np.sort(np.asarray(breaks, float)), n_nodes)
    z = y @ point.root.T
    values = np.asarray(function(*(jnp.asarray(column) for column in z.T)), float)
    if values.shape != weight.shape:
        raise ValueError(f"`function` must act entry by entry, but turns {weight.shape} into {values.shape}.")
    one = np.eye(y.shape[1])
    weighted = weight * values
    two = np.einsum("x,xa,xb->ab", weighted, y, y)
    four = np.einsum("x,xa,xb,xc,xd->abcd", weighted, y, y, y, y, optimize=True)
    mean = weighted.sum()
    letters = ("abcd", "acbd", "adbc")
    pairs = sum(np.einsum(f"{s[:2]},{s[2:]}->abcd", u, v) for s in letters for u, v in ((one, two), (two, one)))
    whole = sum(np.einsum(f"{s[:2]},{s[2:]}->abcd", one, one) for s in letters)
    return Moments(mean, np.sum(weighted * values), two - mean * one, four - pairs + mean * whole)


def _nodes(root: np.ndarray, breaks: np.ndarray, n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Whitened nodes (node, sample) and weights on panels that end where a preactivation is at a break."""
    y, weight = rules.panels(rules.edges(breaks / root[0, 0], REACH, LEVELS), n_nodes)
    if len(root) == 1:
        return y[:, None], weight
    centers = (breaks - root[1, 0] * y[:, None]) / root[1, 1]
    inner, density = rules.panels(rules.edges(centers, REACH, LEVELS), n_nodes)
    outer = np.broadcast_to(y[:, None], inner.shape)
    return np.stack([outer.ravel(), inner.ravel()], axis=-1), (weight[:, None] * density).ravel()
