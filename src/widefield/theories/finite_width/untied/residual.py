"""The marched layers put back into the recursion, with averages by quadrature, on a few pairs of samples."""

import contextlib
import math

import jax
import numpy as np

from widefield.gaussian import closed, quadrature
from widefield.question.activation import Activation
from widefield.theories.finite_width.untied import recursion
from widefield.theories.finite_width.untied.averages import NEARLY_PARALLEL, Averages, hessian_of
from widefield.theories.finite_width.untied.pair_averages import evaluate, pair_quadrature
from widefield.theories.finite_width.untied.recursion import Layer, Step, Wants

REACH, FINEST = 14.0, 0.02


class OutOfReach(Exception):
    """An average beyond the nodes: tails as those of a high power of the exponential, or steps finer than affordable."""


def residual(activation: Activation, layers: list[Layer], made: list[Step], wants: Wants) -> float | None:
    """Largest violation of the recursions at the first, the last and the widest layer, relative to their scales.

    None where no average could be evaluated again.
    """
    if not made:
        return 0.0
    worst: list[float] = []
    largest = int(np.argmax([np.diag(layer.kernel).max() for layer in layers[:-1]]))
    for a in sorted({0, largest, len(made) - 1}):
        for pair in _choose(layers[a]):
            with contextlib.suppress(OutOfReach):
                worst.append(_pair(activation, layers[a], layers[a + 1], made[a], wants, *pair))
    if wants.tensor and wants.pairs:
        worst += [_tensor(layer) for layer in layers]
    return float(np.max(worst)) if worst else None


def _choose(layer: Layer) -> list[tuple[int, int]]:
    """A sample with itself, and the pair that is least alike."""
    root = np.sqrt(np.maximum(np.diag(layer.kernel), 1e-300))
    least = np.unravel_index(np.argmin(np.abs(layer.kernel / root[:, None] / root)), layer.kernel.shape)
    return sorted({(0, 0), (int(least[0]), int(least[1]))})


def _pair(activation: Activation, layer: Layer, after: Layer, step: Step, wants: Wants, i: int, j: int) -> float:
    """K, V and G1 of one pair against the right-hand sides of its two samples."""
    at = np.ix_([i, j], [i, j])
    averages = by_quadrature(activation, layer.kernel[at], wants)
    size = np.sqrt(np.diag(after.kernel)[[i, j]])
    off = [np.abs(after.kernel[at] - step.source[at] - step.weight * averages.value) / _safe(size[:, None] * size)]
    if wants.pairs:
        left, source = recursion.transport(averages, 0, 1), recursion.pair_source(averages)[0, 1]
        block = recursion.next_block(layer.blocks[i, j], source, left, left, step.weight, step.ratio)
        scale = np.sqrt(np.diag(block))
        # The source is a difference of moments: a rounding of these is as much as it can be known to.
        fourth = np.sqrt(np.diag(averages.square))  # type: ignore[arg-type]
        floor = step.weight * np.array([fourth[0], np.sqrt(fourth[0] * fourth[1]), fourth[1]])
        scale = np.maximum(scale[:, None] * scale, floor[:, None] * floor)
        off.append(np.abs(after.blocks[i, j] - block) / _safe(scale))
    if wants.correction and averages.hessian is not None:
        blocks = layer.blocks[at]
        new = recursion.next_correction(layer.correction[at], blocks, averages, step.weight, step.ratio)
        scale = np.sqrt(np.abs(blocks[..., 1, 1])) + np.abs(new)
        off.append(np.abs(after.correction[at] - new) / _safe(scale * max(step.weight, 1.0)))
    return float(np.max([np.max(v) for v in off]))


def _tensor(layer: Layer) -> float:
    """The full V on pairs against the pair blocks."""
    n, blocks = len(layer.kernel), layer.blocks
    i, j = np.indices((n, n))
    V = recursion.unfold(layer.matrix, n)
    twice = np.stack([V[i, i, i, i], V[i, j, i, j], V[i, i, j, j], V[i, i, i, j]])
    once = np.stack([blocks[..., 0, 0], blocks[..., 1, 1], blocks[..., 0, 2], blocks[..., 0, 1]])
    return float(np.max(np.abs(twice - once)) / _safe(np.max(np.abs(once))))


def _safe(scale):
    return np.where(scale > 0, scale, 1.0)


def by_quadrature(activation: Activation, K: np.ndarray, wants: Wants) -> Averages:
    """The averages of two samples, each pair by a rule of its own."""
    if activation.breaks:
        return _broken(activation, K, wants)
    tables = [[_smooth(activation, K[i, i], K[j, j], K[i, j]) for j in range(2)] for i in range(2)]
    part = {key: np.asarray([[table[key] for table in row] for row in tables]) for key in tables[0][0]}
    curve = 0.5 * part["20"]
    gradient = np.stack([curve, part["11"], curve.T])
    hessian = hessian_of(part["40"], part["31"], part["22"])
    return Averages(part["00"], gradient, hessian, part["cubic"], part["square"], 0.0)


def _smooth(activation: Activation, q: float, p: float, c: float) -> dict[str, float]:
    """All averages of one pair on one grid."""
    # Equal steps, fine enough for a pole at ±π/2 of a preactivation of the larger variance.
    wanted = 0.35 / math.sqrt(max(q, p, 1e-300))
    if wanted < FINEST:
        raise OutOfReach
    z = np.arange(-REACH, REACH, min(0.1, wanted))
    weight = (z[1] - z[0]) * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    size = math.sqrt(q * p)
    rho = c / size if size else 0.0
    spread = math.sqrt(max(0.0, p * (1 - rho**2)))
    left = evaluate(activation, 4, math.sqrt(q) * z)
    right = evaluate(activation, 4, rho * math.sqrt(p) * z[:, None] + spread * z[None, :])
    left, right = ([*part, part[0] ** 2, part[0] ** 3] for part in (left, right))
    for squares in (weight * left[6] ** 2, weight * left[5] ** 2):
        if squares[[0, -1]].max() > 1e-12 * squares.sum():
            raise OutOfReach
    right = [np.sum(weight * values, axis=1) for values in right]
    average = lambda i, j: float(np.sum(weight * left[i] * right[j]))  # noqa: E731
    values = {f"{i}{j}": average(i, j) for i, j in ((0, 0), (2, 0), (1, 1), (4, 0), (3, 1), (2, 2))}
    return values | {"cubic": average(6, 0), "square": average(5, 5)}


def _broken(activation: Activation, K: np.ndarray, wants: Wants) -> Averages:
    """The same with kinks; no Hessian for parallel nodes, where it is infinite."""
    q = np.diag(K)
    a, b, c = pairs = [np.ravel(v) for v in np.broadcast_arrays(q[:, None], q[None, :], K)]

    def average(*orders: int) -> np.ndarray:
        return quadrature.average(activation, orders, *pairs)[0].reshape(K.shape)  # type: ignore[arg-type]

    value = average(0, 0)
    if not wants.vertex:
        return Averages(value, np.zeros((3, *K.shape)), None, None, None, 0.0)
    # A kink at a node that does not vary: no contribution.
    curve = 0.5 * average(2, 0) if q.all() else np.zeros_like(K)
    gradient = np.stack([curve, average(1, 1), curve.T])
    fourth = [[pair_quadrature(activation, p, *triple)[0] for triple in zip(*pairs)] for p in ((3, 1), (2, 2))]
    cubic, square = (np.reshape(v, K.shape) for v in fourth)
    hessian = None
    if wants.correction and not np.any(K[0, 1] ** 2 >= q[0] * q[1] * (1 - NEARLY_PARALLEL**2)):
        with jax.enable_x64(True), np.errstate(all="ignore"):
            parts = [np.asarray(closed.moment(activation, o, a, b, c)) for o in ((4, 0), (3, 1), (2, 2))]
        hessian = hessian_of(*(part.reshape(K.shape) for part in parts))
        hessian[..., [0, 1], [0, 1]] = 0  # a node with itself: the contraction with V vanishes
    return Averages(value, gradient, hessian, cubic, square, 0.0)
