"""Measures of agreement as plain functions on arrays: errors, scores, kernels, distributions."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from widefield.answer.progress import bar
from widefield.question import checks

ROUNDING = 1024 * np.finfo(float).eps  # relative: a solve of some steps amplifies those of its sums
REPLICATE = "replicate"
BLOCK_ENTRIES = 1 << 21  # entries of one block of distances: 16 MB


def relative_error(a: Any, b: Any) -> float:
    r"""Frobenius distance of ``b`` from ``a``, relative to ``a``: :math:`\|b-a\|/\|a\|`.

    Not symmetric: ``a`` is the reference. A zero reference gives 0 if ``b`` is zero too, otherwise infinity.
    """
    reference, other = numbers_of("a", a), numbers_of("b", b)
    if reference.shape != other.shape:
        raise ValueError(f"`b` must have the shape of `a` {reference.shape}, got {other.shape}.")
    check_labels("relative_error", a, b)
    distance, scale = norm(other - reference), norm(reference)
    if scale == 0:
        return 0.0 if distance == 0 else float("inf")
    return float(distance / scale)


def zscore(theory: Any, samples: Any) -> np.ndarray:
    r"""Student score of every entry: :math:`(\bar s - \text{theory}) / \mathrm{SEM}`, replicates on axis 0.

    Limits: an entry that does not vary over the replicates beyond rounding scores 0 if it equals the theory within
    rounding, otherwise infinity.
    """
    exact, drawn = numbers_of("theory", theory), numbers_of("samples", samples)
    if drawn.ndim == 0 or drawn.shape[1:] != exact.shape:
        raise ValueError(
            f"`samples` must have shape (replicate, *{exact.shape}), a row like `theory` for each replicate, got {drawn.shape}."
        )
    check_labels("zscore", theory, samples)
    if len(drawn) < 2:
        raise ValueError("`samples` must have at least 2 replicates on axis 0 for a standard error.")
    return scores(exact, drawn, standard_error(drawn))


def agrees(theory: Any, samples: Any, *, alpha: float = 1e-6) -> bool:
    """Student test of independent ``samples`` (axis 0) against ``theory``, Bonferroni over its entries."""
    scores = zscore(theory, samples)
    return bool(np.all(np.abs(scores) <= student_limit(np.shape(samples)[0], scores.size, alpha)))


def student_limit(n_replicates: float, n_entries: int, alpha: float) -> float:
    """The |z| that ``n_entries`` scores of ``n_replicates`` samples all stay below with probability 1 − ``alpha``.

    Infinitely many replicates (a known standard error) give the normal limit.
    """
    return float(-special.stdtrit(n_replicates - 1, probability("alpha", alpha) / (2 * n_entries)))


def probability(name: str, value: Any) -> float:
    """``value`` as a number between 0 and 1, neither of them."""
    number = checks.nonnegative(name, value, positive=True)
    if number >= 1:
        raise ValueError(f"`{name}` must lie between 0 and 1, got {value!r}.")
    return number


def ratio_p(difference: np.ndarray, stderr: np.ndarray, n_replicates: float, p: float) -> tuple[float, float]:
    """How likely a norm as large is, at most, beside given standard errors; and the norm that has the probability ``p``."""
    scale, size = float(np.linalg.norm(stderr)), float(np.linalg.norm(difference))
    limit = float(-special.stdtrit(n_replicates - 1, p / 2))
    if scale == 0:
        return float(size == 0), 0.0
    return float(2 * special.stdtr(n_replicates - 1, -size / scale)), limit * scale


def norm_p(deviations: np.ndarray) -> float:
    r"""How likely chance makes the mean of ``deviations`` (replicate, entry) from a right theory as large, in norm.

    Rotation test (Langsrud 2005): Gaussian replicates of mean zero, whatever the covariance of their entries, keep their
    law under rotations among replicates, so that :math:`n\|\bar y\|^2 = q^TGq`, :math:`G = YY^T`, :math:`q = 1/\sqrt n`,
    is one draw among those of uniform unit vectors :math:`q`. One entry gives Student's test.
    """
    n, largest = len(deviations), float(np.abs(deviations).max())
    if largest == 0:
        return 1.0
    Y = deviations.reshape(n, -1) / largest
    values = np.linalg.eigvalsh(Y @ Y.T if n <= Y.shape[1] else Y.T @ Y)
    return _quadratic_p(np.concatenate([values, np.zeros(max(0, n - len(values)))]) - n * np.sum(Y.mean(axis=0) ** 2))


def norm_resolution(samples: np.ndarray, p: float) -> float:
    """The smallest norm of an error that `norm_p` puts below ``p``, in the direction in which ``samples`` scatter most."""
    n = len(samples)
    e = (samples - samples.mean(axis=0)).reshape(n, -1)
    values = np.linalg.eigvalsh(e @ e.T if n <= e.shape[1] else e.T @ e)[::-1][: n - 1]
    if not values[0] > 0:
        return 0.0
    others = np.concatenate([values[1:], np.zeros(max(0, n - len(values)))]) / values[0]
    low, high = 0.0, float(-special.stdtrit(n - 1, p / 2)) * np.sqrt(values.sum() / values[0] / (n - 1))
    for _ in range(30):  # of √n‖error‖, in units of the largest scatter
        middle = (low + high) / 2
        above = _quadratic_p(np.concatenate([[1.0], others - middle**2])) > p
        low, high = (middle, high) if above else (low, middle)
    return float(high * np.sqrt(values[0] / n))


def _quadratic_p(a: np.ndarray) -> float:
    """P(Σ a g² > 0) for standard normal g, by the saddle point of its law (Lugannani & Rice 1980)."""
    a = a / np.abs(a).max(initial=np.finfo(float).tiny)
    if a.max() <= 0:
        return 0.0
    if a.sum() >= 0 or a.min() >= 0:  # below the mean, where nobody asks
        return 1.0
    low, high = 0.0, 0.5 / a.max()
    for _ in range(100):  # K' grows from below zero to infinity
        s = (low + high) / 2
        low, high = (s, high) if np.sum(a / (1 - 2 * s * a)) < 0 else (low, s)
    w = np.sqrt(max(np.log1p(-2 * s * a).sum(), 0.0))
    u = s * np.sqrt(2 * np.sum((a / (1 - 2 * s * a)) ** 2))
    if w < 1e-4:
        return 0.5
    return float(np.clip(special.ndtr(-w) + np.exp(-(w**2) / 2) / np.sqrt(2 * np.pi) * (1 / u - 1 / w), 0.0, 1.0))


def alignment(kernel: Any, other: Any) -> Any:
    r"""Cosine of the angle between two kernels, :math:`\langle K,K'\rangle_F/(\|K\|_F\|K'\|_F)`.

    The last two axes are the matrix; leading axes (replicates, states) broadcast, one cosine each.
    """
    first, second = _kernels(kernel, other)
    first, second = (np.ldexp(K, -int(np.frexp(np.abs(K).max())[1])) for K in (first, second))  # squares stay numbers
    norms = np.linalg.norm(first, axis=(-2, -1)) * np.linalg.norm(second, axis=(-2, -1))
    if np.any(norms == 0):
        raise ValueError("A kernel that is zero (after centering, for `cka`: constant) has no direction to compare.")
    cosine = np.sum(first * second, axis=(-2, -1)) / norms
    return float(cosine) if np.ndim(cosine) == 0 else cosine


def cka(kernel: Any, other: Any) -> Any:
    r"""Centered kernel alignment (linear CKA): `alignment` of :math:`HKH` and :math:`HK'H`, :math:`H = 1 - 11^T/P`.

    Invariant under rescaling of either kernel and under rotations and shifts of the features behind it. The last two
    axes are the matrix, leading axes broadcast.
    """
    centered = {}
    for name, K in zip(("kernel", "other"), _kernels(kernel, other), strict=True):
        centered[name] = K - K.mean(axis=-1, keepdims=True)
        centered[name] = centered[name] - centered[name].mean(axis=-2, keepdims=True)
        left = np.linalg.norm(centered[name], axis=(-2, -1))
        if np.any(left <= ROUNDING * np.linalg.norm(K, axis=(-2, -1))):
            raise ValueError(f"`{name}` is constant over the samples: nothing is left of it after centering.")
    return alignment(**centered)


def mmd2(
    samples: Any,
    other: Any = None,
    covariance: Any = None,
    *,
    length: float = 0.5,
    unbiased: bool = True,
    progress: bool | None = None,
) -> float:
    r"""Squared maximum mean discrepancy for the kernel :math:`k(x,y)=\exp(-|x-y|^2/2\ell^2)`.

    ``samples`` (draw, dimension) against either a second set ``other`` or, exactly, :math:`N(0, K)` with
    :math:`K` = ``covariance``:

    .. math:: E\,k(y,y') = |1+2K/\ell^2|^{-1/2}, \qquad
              E_y\,k(x,y) = |1+K/\ell^2|^{-1/2} \exp(-\tfrac12 x^T (K+\ell^2)^{-1} x).

    ``unbiased`` leaves the pairs of a draw with itself out (U statistic, which may be negative); otherwise they count
    (V statistic, never negative). Method: pairs in blocks, so that memory stays small for any number of draws; a
    singular covariance is no special case. Fig. 2 of Segadlo et al. uses ``length=0.5``.
    """
    x = _draws("samples", samples, checks.flag("unbiased", unbiased))
    length = checks.nonnegative("length", length, positive=True)
    if not 1e-150 < length < 1e150:
        raise ValueError(f"`length` must lie between 1e-150 and 1e150, so that its square is a number, got {length:g}.")
    if (other is None) == (covariance is None):
        raise ValueError("Give either `other` (a second set of draws) or `covariance` (of the Gaussian), not both.")
    if progress is not None:
        checks.flag("progress", progress)
    if covariance is not None:
        far, cross = _gaussian_side(x, covariance, length)
        with _pairs(progress, x) as advance:
            return float(_within(x, length, unbiased, advance) + far - 2 * cross)
    y = _draws("other", other, unbiased)
    if y.shape[1] != x.shape[1]:
        raise ValueError(f"`other` must have the dimension of `samples` ({x.shape[1]}), got {y.shape[1]}.")
    with _pairs(progress, x, y) as advance:
        far, cross = _within(y, length, unbiased, advance), _pair_sum(x, y, length, advance) / (len(x) * len(y))
        return float(_within(x, length, unbiased, advance) + far - 2 * cross)


def _pairs(progress: bool | None, *sets: np.ndarray):
    """A bar over the pairs of draws, in millions."""
    n_pairs = sum(
        len(a) * len(b) / (1 if j > i else 2) for i, a in enumerate(sets) for j, b in enumerate(sets) if j >= i
    )
    seconds = 1e-8 * n_pairs * (1 + sets[0].shape[1] / 10)
    return bar("million pairs of draws", max(1, round(n_pairs / 1e6)), progress, seconds)


def numbers_of(name: str, value: Any, *, finite: bool = True) -> np.ndarray:
    """``value`` as float64 numbers; `ValueError` where there are none, or with ``finite`` one of them is infinite."""
    checks.reject_tracers(**{name: value})
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"`{name}` must hold real numbers, but it is no array: {error}") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"`{name}` must hold real numbers, got dtype {array.dtype}.")
    array = array.astype(float)
    wrong = "NaN" if np.isnan(array).any() else "infinite numbers" if finite and not np.isfinite(array).all() else ""
    if array.size == 0 or wrong:
        raise ValueError(f"`{name}` {f'holds {wrong}' if wrong else 'is empty'}: nothing can be compared with it.")
    return array


def norm(array: np.ndarray, axis: tuple[int, int] | None = None) -> Any:
    """Frobenius norm (over ``axis``), which neither overflows nor vanishes where its square would."""
    exponent = int(np.frexp(np.abs(array).max(initial=0.0))[1])
    return np.ldexp(np.linalg.norm(np.ldexp(array, -exponent), axis=axis), exponent)


def standard_error(samples: np.ndarray) -> np.ndarray:
    return samples.std(axis=0, ddof=1) / np.sqrt(len(samples))


def scores(
    theory: np.ndarray, samples: np.ndarray, stderr: np.ndarray, allowed: np.ndarray | float = 0.0
) -> np.ndarray:
    """Differences of the mean over their standard errors; ``allowed`` is taken off their size before."""
    rounding = ROUNDING * max(float(np.abs(theory).max()), float(np.abs(samples).max()))
    fixed = stderr * np.sqrt(len(samples)) <= rounding
    difference = samples.mean(axis=0) - theory
    difference = np.copysign(np.maximum(np.abs(difference) - allowed, 0.0), difference)
    score = np.divide(difference, stderr, out=np.zeros_like(difference), where=~fixed)
    return np.where(fixed & (np.abs(difference) > rounding), np.copysign(np.inf, difference), score)


def _kernels(kernel: Any, other: Any) -> tuple[np.ndarray, np.ndarray]:
    first, second = numbers_of("kernel", kernel), numbers_of("other", other)
    for name, array in (("kernel", first), ("other", second)):
        if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
            raise ValueError(f"`{name}` must be a square matrix (or a stack of them), got shape {array.shape}.")
    if first.shape[-1] != second.shape[-1]:
        raise ValueError(f"`other` must have as many samples as `kernel` ({first.shape[-1]}), got {second.shape[-1]}.")
    return first, second


def _draws(name: str, samples: Any, unbiased: bool) -> np.ndarray:
    x = numbers_of(name, samples)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2:
        raise ValueError(f"`{name}` must have shape (draw,) or (draw, dimension), got {np.shape(samples)}.")
    if unbiased and len(x) < 2:
        raise ValueError(f"`{name}` must have at least 2 draws for the unbiased estimator.")
    return x


def _gaussian_side(x: np.ndarray, covariance: Any, length: float) -> tuple[float, float]:
    """E k(y,y') and the mean over ``x`` of E_y k(x,y), both for y ~ N(0, K), in the eigenbasis of K."""
    K, dimension = numbers_of("covariance", covariance), x.shape[1]
    K = K.reshape(1, 1) if K.ndim == 0 else K
    if K.shape != (dimension, dimension):
        raise ValueError(f"`covariance` must have shape {(dimension, dimension)}, got {K.shape}.")
    if np.abs(K - K.T).max() > 1e-8 * np.abs(K).max():
        raise ValueError("`covariance` must be symmetric.")
    values, vectors = np.linalg.eigh(K)
    if values[0] < -1e-8 * max(values[-1], 0.0) - 1e-300:
        raise ValueError(f"`covariance` must be positive semi-definite, its smallest eigenvalue is {values[0]:.3g}.")
    far = np.exp(-0.5 * np.sum(np.log1p(2 * values / length**2)))
    quadratic = (x @ vectors) ** 2 @ (1 / (values + length**2))
    cross = np.exp(-0.5 * np.sum(np.log1p(values / length**2)) - 0.5 * quadratic)
    return float(far), float(cross.mean())


def _within(x: np.ndarray, length: float, unbiased: bool, advance: Callable[[float], None]) -> float:
    n = len(x)
    total = _pair_sum(x, x, length, advance)
    return (total - n) / (n * (n - 1)) if unbiased else total / n**2


def _pair_sum(x: np.ndarray, y: np.ndarray, length: float, advance: Callable[[float], None]) -> float:
    """Sum of k over all pairs; within one set each block of pairs is visited once."""
    from scipy.spatial.distance import cdist

    step, total = max(1, int(np.sqrt(BLOCK_ENTRIES))), 0.0
    for i in range(0, len(x), step):
        for j in range(i if y is x else 0, len(y), step):
            distances = cdist(x[i : i + step], y[j : j + step], "sqeuclidean")
            block = float(np.exp(distances / (-2 * length**2)).sum())
            total += 2 * block if y is x and j > i else block
            advance(distances.size / 1e6)
    return total


def check_labels(quantity: str, theory: Any, trial: Any) -> None:
    """Refuse labeled arrays whose dims, sizes or coordinates differ (``replicate`` aside)."""
    if not (hasattr(theory, "dims") and hasattr(trial, "dims")):
        return
    dims = [tuple(d for d in array.dims if d != REPLICATE) for array in (theory, trial)]
    if set(dims[0]) != set(dims[1]):
        raise ValueError(f"{quantity}: the dims differ, {dims[0]} in the first and {dims[1]} in the second.")
    for dim in dims[0]:
        sizes = theory.sizes[dim], trial.sizes[dim]
        if sizes[0] != sizes[1]:
            raise ValueError(f"{quantity}: `{dim}` has {sizes[0]} entries in the first and {sizes[1]} in the second.")
        if dim in theory.coords and dim in trial.coords:
            values = theory.coords[dim].values, trial.coords[dim].values
            if not np.array_equal(*values):
                raise ValueError(f"{quantity}: the coordinate `{dim}` differs, {values[0]} and {values[1]}.")
