r"""All pair averages of one layer from one expansion: derivatives and powers of a smooth activation in Hermite functions.

.. math::  \langle f(a)g(b)\rangle = \sum_k f_k(q)\,g_k(q')\,\rho^k

A *factor* is ``(power, order)``: :math:`\partial^{\rm order}\varphi^{\rm power}`. NumPy but for the activation itself: nothing is
compiled for a new number of samples. Error: the tail is at most :math:`|\rho|^N\sqrt{RR'}` (Cauchy–Schwarz); pairs beyond
``rtol`` are done again one by one.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widefield.answer.certificate import SolveError
from widefield.gaussian import closed, expectation, quartic, rules
from widefield.gaussian.kernels import level_of, series_kernel
from widefield.question.activation import Activation

EPS = float(np.finfo(float).eps)
NODES = (12, 18)
REACH = 10.0
ELEMENTARY = ("exp", "sin", "cos", "rbf")  # whose four-node averages are elementary
Factor = tuple[int, int]
Pair = tuple[Factor, Factor]


class Expansion(NamedTuple):
    """Coefficients (term, node), values on the nodes, quadrature weights, √<f²>, and what the nodes miss."""

    coefficients: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    norm: np.ndarray
    unresolved: float


def pair_averages(
    activation: Activation, q: np.ndarray, c: np.ndarray, wanted: Sequence[Pair], rtol: float
) -> tuple[dict[Pair, np.ndarray], float]:
    """Averages of all pairs of nodes, (node, node) each, and the largest error relative to √(<f²><g²>)."""
    parts: dict[Factor, Expansion] = {}
    for k in sorted({power for pair in wanted for power, _ in pair}):
        orders = tuple(sorted({order for pair in wanted for power, order in pair if power == k}))
        parts |= _expansions(activation, k, orders, q)
    size = np.sqrt(q)[:, None] * np.sqrt(q)[None, :]
    rho = np.where(size > 0, c / np.where(size > 0, size, 1), 0)
    values, worst = {}, 0.0
    elementary = activation.is_named and activation.name in ELEMENTARY
    for pair in wanted:
        value, error = _average(parts[pair[0]], parts[pair[1]], rho)
        scale = parts[pair[0]].norm[:, None] * parts[pair[1]].norm[None, :]
        floor = np.where(scale > 0, scale, 1)
        doubtful = ~(error <= rtol * floor) | elementary
        if doubtful.any():
            i, j = np.nonzero(doubtful)
            value[doubtful], error[doubtful] = _again(activation, pair, q[i], q[j], c[i, j], rtol)
        values[pair], worst = value, float(np.maximum(worst, np.max(error / floor)))  # unlike max, keeps a NaN
    if not worst <= rtol:
        raise SolveError(
            f"Averages of {activation} are known only to {worst:.1e} of their scale (asked rtol={rtol:g}). Lower the "
            "variances, or raise rtol."
        )
    return values, worst


def _expansions(activation: Activation, k: int, orders: tuple[int, ...], q: np.ndarray) -> dict[Factor, Expansion]:
    """Those of the derivatives of φ, or of φ^k."""
    with jax.enable_x64(True):
        ends = np.asarray(activation.function(jnp.asarray([-1.0, 1.0]) * rules.REACH * math.sqrt(q.max()))) ** k
        if not np.isfinite(ends).all():
            raise OverflowError(f"{activation}^{k} overflows at variance {q.max():g}.")
        kernel = series_kernel(_power(activation, k), level_of(float(q.max())), "float64", False, orders)
        z, weights, basis = (np.asarray(v) for v in (kernel.nodes, kernel.weights, kernel.basis))
        derivatives = evaluate(activation, max(orders), np.sqrt(q)[:, None] * z)
    parts = {}
    for order, unresolved in zip(orders, kernel.unresolved, strict=True):
        values = derivatives[order] ** k
        squares = weights * values**2
        if np.any(squares[:, [0, -1]].max(axis=1) > EPS * squares.sum(axis=1)):  # grows beyond the reach of the nodes
            unresolved = math.inf
        norm = np.sqrt(np.sum(squares, axis=1))
        parts[k, order] = Expansion((weights * values @ basis).T, values, weights, norm, unresolved)
    return parts


@lru_cache
def _power(activation: Activation, k: int) -> Activation:
    """φ^k with the breaks of φ."""
    if k == 1:
        return activation
    return Activation(lambda x: activation.function(x) ** k, activation.breaks, f"{activation.name}^{k}")


def _average(left: Expansion, right: Expansion, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ f_k g_k ρ^k of all pairs, and its absolute error."""
    n_terms = min(len(left.coefficients), len(right.coefficients))
    value = np.zeros_like(rho)
    for a, b in zip(left.coefficients[:n_terms][::-1], right.coefficients[:n_terms][::-1], strict=True):
        value *= rho
        value += a[:, None] * b[None, :]
    tails = []
    for part in (left, right):
        square = part.norm**2
        tails.append(np.sqrt(np.maximum(square - np.sum(part.coefficients[:n_terms] ** 2, axis=0), 16 * EPS * square)))
    rounding = (max(left.unresolved, right.unresolved) + 64 * EPS) * left.norm[:, None] * right.norm[None, :]
    rounding = np.where(np.isnan(rounding), 0, rounding)  # a factor that vanishes
    error = np.abs(rho) ** n_terms * tails[0][:, None] * tails[1][None, :] + rounding
    if left.values.shape == right.values.shape:  # a node with itself: the one-dimensional average
        diagonal = np.diag_indices(len(rho))
        value[diagonal], error[diagonal] = np.sum(left.weights * left.values * right.values, axis=1), np.diag(rounding)
    return value, error


def evaluate(activation: Activation, order: int, x: np.ndarray) -> list[np.ndarray]:
    """φ and its derivatives; shapes are padded to powers of two, each of which is compiled once."""
    flat = np.ravel(x)
    padded = np.pad(flat, (0, 2 ** math.ceil(math.log2(max(len(flat), 1024))) - len(flat)))
    return [np.asarray(v)[: len(flat)].reshape(x.shape) for v in _derivatives(activation, order)(padded)]


@lru_cache
def _derivatives(activation: Activation, order: int):
    functions = [activation.function]
    for _ in range(order):
        functions.append(jax.grad(functions[-1]))
    return jax.jit(jax.vmap(lambda x: tuple(f(x) for f in functions)))


def _again(activation: Activation, pair: Pair, q, p, c, rtol: float) -> tuple[np.ndarray, np.ndarray]:
    """Values and absolute errors of the pairs that the series leaves in doubt, by closed forms or quadrature."""
    (i, order), (j, order_) = pair
    if i == j == 1:
        with np.errstate(invalid="ignore"):  # zero times infinity in the scale of high derivatives
            average = expectation(activation, q, p, c, (order, order_), rtol=rtol)
        return average.value, average.error
    if activation.is_named and activation.name in ELEMENTARY:
        which = np.repeat([0, 1], [i, j])
        two = np.stack([np.stack([q, c], axis=-1), np.stack([c, p], axis=-1)], axis=-2)
        return quartic.fourth_moment(activation, two[:, which[:, None], which[None, :]])
    results = np.asarray([pair_quadrature(activation, (i, j), *triple) for triple in zip(q, p, c, strict=True)])
    return results[:, 0], results[:, 1]


def pair_quadrature(activation: Activation, powers: tuple[int, int], q, p, c) -> tuple[float, float]:
    """<φ(a)^i φ(b)^j> of one pair at two node counts, on panels that shrink towards the breaks (or the origin)."""
    a, b = math.sqrt(q), math.sqrt(p)
    rho = 0.0 if a * b == 0 else min(1.0, max(-1.0, c / (a * b)))
    tau = 1.0
    if a * b:
        with jax.enable_x64(True):
            tau = math.sqrt(float(closed.determinant(*map(jnp.asarray, (q, p, c)))) / (q * p))
    coarse, fine = (_rule(activation, powers, n, a, b, rho, tau) for n in NODES)
    return fine[0], abs(fine[0] - coarse[0]) + 64 * EPS * fine[1]


def _rule(activation: Activation, powers: tuple[int, int], n_nodes: int, a, b, rho, tau) -> tuple[float, float]:
    breaks = np.asarray(activation.breaks or (0.0,))
    levels = 34 if tau < 0.1 and activation.breaks else 2 * math.ceil((math.log2(max(a, b, 1.0)) + 4) / 2)
    scaled = [breaks / s for s in (a, b * rho) if s]
    centers = np.sort(np.concatenate(scaled)) if scaled else np.zeros(1)
    z, weight = rules.panels(rules.edges(centers, REACH, levels), n_nodes)
    with jax.enable_x64(True):
        left, mean = evaluate(activation, 0, a * z)[0] ** powers[0], rho * b * z
        if b * tau == 0:
            right = evaluate(activation, 0, mean)[0] ** powers[1]
        else:
            inner = rules.edges((breaks - mean[:, None]) / (b * tau), REACH, levels)
            y, density = rules.panels(inner, n_nodes)
            values = evaluate(activation, 0, mean[:, None] + b * tau * y)[0] ** powers[1]
            right = np.sum(density * values, axis=-1)
    return float(np.sum(weight * left * right)), float(np.sum(weight * np.abs(left * right)))
