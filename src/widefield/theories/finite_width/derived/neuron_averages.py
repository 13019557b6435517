r"""Averages of any function of one neuron, and covariances between two, at order 1/n.

Eqs. (finite_width.11), (finite_width.12): the spectator neurons cancel. Notation: :math:`H_k` are Hermite tensors of the
whitened :math:`y = L^{-1}z`, :math:`K = LL^{\mathsf T}`; G and V are whitened alike, so that F need not be differentiable.
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
from widefield.theories.finite_width.untied.recursion import feeding_widths

REACH = 10.0
LEVELS = 12
NODES = (10, 16)
INDEPENDENT = 1e-6  # smallest sine of the angle between two samples


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
    theory = solution.certificate.theory if isinstance(solution, Solution) else type(solution).__name__
    if theory != "finite_width" or "vertex_pairs" not in solution.data or "correction" not in solution.data:
        raise ValueError(
            "`solution` must come from widefield.finite_width and hold kernel, correction and vertex_pairs."
        )
    n_layers, n_samples = solution.data.sizes["layer"], solution.data.sizes["sample"]
    index = [checks.integer("samples", s, 0) for s in samples]
    if not 1 <= len(index) <= 2 or len(set(index)) < len(index) or max(index) >= n_samples:
        raise ValueError(f"`samples` must be one or two different indices 0 … {n_samples - 1}, got {samples!r}.")
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
