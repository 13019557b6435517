"""Verdicts: metrics between arrays, and a table that sets a theory beside a simulation."""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from widefield import checks
from widefield.solution import Solution

if TYPE_CHECKING:
    import xarray as xr

REPLICATE = "replicate"
ROUNDING = 64 * np.finfo(float).eps
BLOCK_ENTRIES = 1 << 21  # entries of one block of distances: 16 MB


def relative_error(a: Any, b: Any) -> float:
    r"""Frobenius distance of ``b`` from ``a``, relative to ``a``: :math:`\|b-a\|/\|a\|`.

    Not symmetric: ``a`` is the reference. A zero reference gives 0 if ``b`` is zero too, otherwise infinity.
    """
    reference, other = _numbers("a", a), _numbers("b", b)
    if reference.shape != other.shape:
        raise ValueError(f"`b` must have the shape of `a` {reference.shape}, got {other.shape}.")
    _check_labels("relative_error", a, b)
    distance, scale = np.linalg.norm(other - reference), np.linalg.norm(reference)
    if scale == 0:
        return 0.0 if distance == 0 else float("inf")
    return float(distance / scale)


def zscore(theory: Any, samples: Any) -> np.ndarray:
    r"""Student score of every entry: :math:`(\bar s - \text{theory}) / \mathrm{SEM}`, replicates on axis 0.

    Limits: an entry that does not vary over the replicates beyond rounding scores 0 if it equals the theory within
    rounding, otherwise infinity.
    """
    theory, samples = _pair(theory, samples)
    return _scores(theory, samples, _stderr(samples))


def agrees(theory: Any, samples: Any, *, alpha: float = 1e-6) -> bool:
    """Student test of independent ``samples`` (axis 0) against ``theory``, Bonferroni over its entries."""
    scores = zscore(theory, samples)
    return bool(np.all(np.abs(scores) <= student_limit(np.shape(samples)[0], scores.size, alpha)))


def student_limit(n_replicates: float, n_entries: int, alpha: float) -> float:
    """The |z| that ``n_entries`` scores of ``n_replicates`` samples all stay below with probability 1 − ``alpha``.

    Infinitely many replicates (a known standard error) give the normal limit.
    """
    from scipy.special import stdtrit

    if not 0 < alpha < 1:
        raise ValueError(f"`alpha` must lie between 0 and 1, got {alpha!r}.")
    return float(-stdtrit(n_replicates - 1, alpha / (2 * n_entries)))


def alignment(kernel: Any, other: Any) -> Any:
    r"""Cosine of the angle between two kernels, :math:`\langle K,K'\rangle_F/(\|K\|_F\|K'\|_F)`.

    The last two axes are the matrix; leading axes (replicates, states) broadcast, one cosine each.
    """
    return _cosine(*_kernels(kernel, other))


def cka(kernel: Any, other: Any) -> Any:
    r"""Centred kernel alignment (linear CKA): `alignment` of :math:`HKH` and :math:`HK'H`, :math:`H = 1 - 11^T/P`.

    Invariant under rescaling of either kernel and under rotations and shifts of the features behind it. The last two
    axes are the matrix, leading axes broadcast.
    """
    first, second = _kernels(kernel, other)
    return _cosine(_centred("kernel", first), _centred("other", second))


def mmd2(
    samples: Any, other: Any = None, covariance: Any = None, *, length: float = 0.5, unbiased: bool = True
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
    x = _draws("samples", samples, unbiased)
    length = checks.nonnegative("length", length, positive=True)
    if (other is None) == (covariance is None):
        raise ValueError("Give either `other` (a second set of draws) or `covariance` (of the Gaussian), not both.")
    if covariance is not None:
        far, cross = _gaussian_side(x, _covariance(covariance, x.shape[1]), length)
    else:
        y = _draws("other", other, unbiased)
        if y.shape[1] != x.shape[1]:
            raise ValueError(f"`other` must have the dimension of `samples` ({x.shape[1]}), got {y.shape[1]}.")
        far, cross = _within(y, length, unbiased), _pair_sum(x, y, length) / (len(x) * len(y))
    return float(_within(x, length, unbiased) + far - 2 * cross)


@dataclass(frozen=True)
class Row:
    """One quantity of a `Comparison`.

    ``theory``, ``simulation`` and ``stderr`` (of their difference) are those of the entry ``index`` with the largest
    |z| (without standard errors: with the largest difference); ``z_rms`` and ``relative_error`` (of the mean,
    Frobenius) are over all ``n_entries``. ``agrees`` says whether every |z| stays below ``limit``; None where nothing
    has a standard error.
    """

    quantity: str
    index: tuple[tuple[str, int | float | str], ...]
    theory: float
    simulation: float
    stderr: float | None
    z: float | None
    z_rms: float | None
    relative_error: float
    limit: float | None
    agrees: bool | None
    n_entries: int
    n_replicates: int

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON-able data; an infinite number becomes the word ``"inf"`` or ``"-inf"``."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        row["index"] = dict(self.index)
        return {name: str(v) if isinstance(v, float) and not np.isfinite(v) else v for name, v in row.items()}


@dataclass(frozen=True)
class Comparison:
    """A theory beside a simulation (or beside another theory), one `Row` per common quantity."""

    rows: tuple[Row, ...]
    alpha: float

    @property
    def agrees(self) -> bool | None:
        """Whether every quantity with a standard error agrees; None where there is none."""
        verdicts = [row.agrees for row in self.rows if row.agrees is not None]
        return all(verdicts) if verdicts else None

    def __getitem__(self, quantity: str) -> Row:
        for row in self.rows:
            if row.quantity == quantity:
                return row
        raise KeyError(f"{quantity!r} was not compared; compared: {', '.join(row.quantity for row in self.rows)}")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON-able data."""
        return {"alpha": self.alpha, "agrees": self.agrees, "rows": [row.to_dict() for row in self.rows]}

    def __str__(self) -> str:
        return f"{text_table(HEADER, [cells(row) for row in self.rows])}\n{self._footer()}"

    def _repr_html_(self) -> str:
        body = "".join(_html_line("td", cells(row)) for row in self.rows)
        return f"<table><thead>{_html_line('th', HEADER)}</thead><tbody>{body}</tbody></table><p>{self._footer()}</p>"

    def _footer(self) -> str:
        if all(row.z is None for row in self.rows):
            return "No replicates: relative errors only, at the entry of the largest difference."
        n = max(row.n_replicates for row in self.rows)
        counted, limit = (f"{n} replicates; ", "Student") if n else ("", "normal")
        n_entries = sum(row.n_entries for row in self.rows)
        return (
            f"{counted}z at its largest entry, limit: {limit}, α = {self.alpha:g}, Bonferroni over {n_entries} entries."
        )


def compare(
    theory: Solution, trial: Solution, *, quantities: Iterable[str] | str | None = None, alpha: float = 1e-6
) -> Comparison:
    """Set every quantity that ``theory`` and ``trial`` share side by side.

    ``trial`` is a simulation, whose fields have a leading ``replicate`` dim, or a second theory, for which there are
    relative errors only. A field ``<name>_stderr`` of the theory, or of a trial without replicates, adds to the
    standard error of ``<name>`` in quadrature. A simulation of unequal widths has ``<name>_diagonal`` at equal states
    only: it is compared with the theory's equal states. Limits: the test knows sampling errors alone; a finite network
    differs from an infinite one by O(1/width), which many replicates resolve.
    """
    found = {name: _match(name, theory, trial) for name in _names(theory)}
    pairs = {name: pair for name, pair in found.items() if pair is not None}
    if not pairs:
        have = [", ".join(map(str, s.data.data_vars)) for s in (theory, trial)]
        raise ValueError(f"The two have no quantity in common: the first has {have[0]}; the second has {have[1]}.")
    asked = (quantities,) if isinstance(quantities, str) else tuple(pairs if quantities is None else quantities)
    return judge_all([pairs[checks.choice("quantities", name, pairs)] for name in asked], alpha=alpha)


class Pair(NamedTuple):
    """One labelled quantity to compare, and the standard errors that are ``known`` without replicates."""

    quantity: str
    theory: "xr.DataArray"
    trial: "xr.DataArray"
    known: Sequence["xr.DataArray"] = ()


def judge_all(pairs: Iterable[Pair], *, alpha: float = 1e-6) -> Comparison:
    """A row for each pair, Bonferroni over the entries of all of them."""
    pairs = tuple(pairs)
    n_tests = sum(pair.theory.size for pair in pairs)
    return Comparison(tuple(judge(*pair, alpha=alpha, n_tests=n_tests) for pair in pairs), alpha)


def judge(
    quantity: str,
    theory: "xr.DataArray",
    trial: "xr.DataArray",
    known: Sequence["xr.DataArray"] = (),
    *,
    alpha: float = 1e-6,
    n_tests: int | None = None,
) -> Row:
    """The `Row` of one labelled quantity; ``trial`` may have a ``replicate`` dim.

    The ``known`` standard errors add in quadrature to that of the replicates; ``n_tests`` entries share ``alpha`` (by
    default, those of this quantity). Limits: with replicates the limit is Student's even where most of the error is
    known (then the normal one, which is smaller, would do).
    """
    if REPLICATE in theory.dims:
        raise ValueError(f"{quantity}: the first argument has a `replicate` dim; the theory comes first.")
    _check_labels(quantity, theory, trial)
    sampled = REPLICATE in trial.dims
    order = (REPLICATE, *theory.dims) if sampled else theory.dims
    exact, samples = _numbers(quantity, theory), _numbers(quantity, trial.transpose(*order))
    samples = samples if sampled else samples[None]
    n, mean = len(samples), samples.mean(axis=0)
    variance = sum((_numbers(quantity, _like(theory, error)) ** 2 for error in known), np.zeros_like(exact))
    z = stderr = limit = None
    if n > 1 or (variance.any() and not sampled):
        stderr = np.sqrt(variance + (_stderr(samples) ** 2 if n > 1 else 0.0))
        z, limit = _scores(exact, samples, stderr), student_limit(n if n > 1 else np.inf, n_tests or exact.size, alpha)
    worst = np.unravel_index(int(np.argmax(np.abs(mean - exact if z is None else z))), exact.shape)
    return Row(
        quantity=quantity,
        index=tuple((str(d), _label(theory, d, i)) for d, i in zip(theory.dims, worst, strict=True)),
        theory=float(exact[worst]),
        simulation=float(mean[worst]),
        stderr=None if stderr is None else float(stderr[worst]),
        z=None if z is None else float(z[worst]),
        z_rms=None if z is None else float(np.sqrt(np.mean(z**2))),
        relative_error=relative_error(exact, mean),
        limit=limit,
        agrees=None if z is None or limit is None else bool(np.all(np.abs(z) <= limit)),
        n_entries=exact.size,
        n_replicates=n if sampled else 0,
    )


def equal_states(covariance: "xr.DataArray") -> "xr.DataArray":
    """C^{(a,a)} from C^{(a,b)}, over ``state``."""
    import xarray as xr

    same = xr.DataArray(np.arange(covariance.sizes["state"]), dims="state")
    return covariance.isel(state_=same).drop_vars("state_", errors="ignore")


HEADER = ("quantity", "at", "theory", "simulation", "z (limit)", "rms z", "rel. error", "agrees")


def cells(row: Row) -> tuple[str, ...]:
    """A row as the words of a table with the columns ``HEADER``."""
    at = ", ".join(f"{dim} {value}" for dim, value in row.index)
    verdict = {None: "–", True: "yes", False: "no"}[row.agrees]
    error = "" if row.stderr is None else f" ± {row.stderr:.1g}"
    score = "–" if row.z is None else f"{row.z:+.2f} ({row.limit:.1f})"
    rms = "–" if row.z_rms is None else f"{row.z_rms:.2f}"
    values = f"{row.theory:.5g}", f"{row.simulation:.5g}{error}", score, rms, f"{row.relative_error:.1e}"
    return row.quantity, at, *values, verdict


def text_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Left-aligned columns under a ruled header."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "  ".join("─" * width for width in widths), *text[1:]])


def _html_line(tag: str, parts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(part)}</{tag}>" for part in parts) + "</tr>"


def _names(solution: Solution) -> list[str]:
    """Fields that can be compared: numbers that are not themselves errors."""
    numbers = (str(name) for name, value in solution.data.data_vars.items() if value.dtype.kind in "fiu")
    return [name for name in numbers if not name.endswith("_stderr")]


def _match(name: str, theory: Solution, trial: Solution) -> Pair | None:
    """The theory's field ``name`` beside the trial's; beside its equal states, where the trial has only these."""
    field, found = theory.data[name], trial.data.data_vars.get(name)
    errors = [theory.data[f"{name}_stderr"]] if f"{name}_stderr" in theory.data else []
    label = name
    if found is None and {"state", "state_"} <= set(field.dims):
        label, found = f"{name} (equal states)", trial.data.data_vars.get(f"{name}_diagonal")
        field, errors = equal_states(field), [equal_states(error) for error in errors]
    if found is None:
        return None
    if REPLICATE not in found.dims and f"{found.name}_stderr" in trial.data:
        errors.append(trial.data[f"{found.name}_stderr"])
    return Pair(label, field, found, errors)


def _like(reference: "xr.DataArray", array: "xr.DataArray") -> "xr.DataArray":
    _check_labels(str(array.name), reference, array)
    return array.transpose(*reference.dims)


def _check_labels(quantity: str, theory: Any, trial: Any) -> None:
    """Refuse labelled arrays whose dims, sizes or coordinates differ (``replicate`` aside)."""
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


def _label(array: "xr.DataArray", dim: Any, position: Any) -> int | float | str:
    return array.coords[dim].values[position].item() if dim in array.coords else int(position)


def _numbers(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"`{name}` must hold real numbers, got dtype {array.dtype}.")
    if array.size == 0 or np.isnan(array).any():
        raise ValueError(f"`{name}` {'is empty' if array.size == 0 else 'holds NaN'}: nothing can be compared with it.")
    return array.astype(float)


def _pair(theory: Any, samples: Any) -> tuple[np.ndarray, np.ndarray]:
    exact, drawn = _numbers("theory", theory), _numbers("samples", samples)
    if drawn.ndim == 0 or drawn.shape[1:] != exact.shape:
        raise ValueError(f"`samples` must have shape (replicate, *{exact.shape}), got {drawn.shape}.")
    _check_labels("zscore", theory, samples)
    if len(drawn) < 2:
        raise ValueError("`samples` must have at least 2 replicates on axis 0 for a standard error.")
    return exact, drawn


def _stderr(samples: np.ndarray) -> np.ndarray:
    return samples.std(axis=0, ddof=1) / np.sqrt(len(samples))


def _scores(theory: np.ndarray, samples: np.ndarray, stderr: np.ndarray) -> np.ndarray:
    rounding = ROUNDING * max(float(np.abs(theory).max()), float(np.abs(samples).max()))
    fixed = stderr * np.sqrt(len(samples)) <= rounding
    difference = samples.mean(axis=0) - theory
    score = np.divide(difference, stderr, out=np.zeros_like(difference), where=~fixed)
    return np.where(fixed & (np.abs(difference) > rounding), np.copysign(np.inf, difference), score)


def _kernels(kernel: Any, other: Any) -> tuple[np.ndarray, np.ndarray]:
    first, second = _numbers("kernel", kernel), _numbers("other", other)
    for name, array in (("kernel", first), ("other", second)):
        if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
            raise ValueError(f"`{name}` must be a square matrix (or a stack of them), got shape {array.shape}.")
    if first.shape[-1] != second.shape[-1]:
        raise ValueError(f"`other` must have as many samples as `kernel` ({first.shape[-1]}), got {second.shape[-1]}.")
    return first, second


def _cosine(first: np.ndarray, second: np.ndarray) -> Any:
    norms = np.linalg.norm(first, axis=(-2, -1)) * np.linalg.norm(second, axis=(-2, -1))
    if np.any(norms == 0):
        raise ValueError("A kernel that is zero (after centring, for `cka`: constant) has no direction to compare.")
    cosine = np.sum(first * second, axis=(-2, -1)) / norms
    return float(cosine) if np.ndim(cosine) == 0 else cosine


def _centred(name: str, kernel: np.ndarray) -> np.ndarray:
    centred = kernel - kernel.mean(axis=-1, keepdims=True)
    centred = centred - centred.mean(axis=-2, keepdims=True)
    left = np.linalg.norm(centred, axis=(-2, -1))
    if np.any(left <= ROUNDING * np.linalg.norm(kernel, axis=(-2, -1))):
        raise ValueError(f"`{name}` is constant over the samples: nothing is left of it after centring.")
    return centred


def _draws(name: str, samples: Any, unbiased: bool) -> np.ndarray:
    x = _numbers(name, samples)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2:
        raise ValueError(f"`{name}` must have shape (draw,) or (draw, dimension), got {np.shape(samples)}.")
    if unbiased and len(x) < 2:
        raise ValueError(f"`{name}` must have at least 2 draws for the unbiased estimator.")
    return x


def _covariance(covariance: Any, dimension: int) -> np.ndarray:
    K = _numbers("covariance", covariance)
    K = K.reshape(1, 1) if K.ndim == 0 else K
    if K.shape != (dimension, dimension):
        raise ValueError(f"`covariance` must have shape {(dimension, dimension)}, got {K.shape}.")
    if np.abs(K - K.T).max() > 1e-8 * np.abs(K).max():
        raise ValueError("`covariance` must be symmetric.")
    return K


def _gaussian_side(x: np.ndarray, K: np.ndarray, length: float) -> tuple[float, float]:
    """E k(y,y') and the mean over ``x`` of E_y k(x,y), both for y ~ N(0, K), in the eigenbasis of K."""
    values, vectors = np.linalg.eigh(K)
    if values[0] < -1e-8 * max(values[-1], 0.0) - 1e-300:
        raise ValueError(f"`covariance` must be positive semi-definite, its smallest eigenvalue is {values[0]:.3g}.")
    far = np.exp(-0.5 * np.sum(np.log1p(2 * values / length**2)))
    quadratic = (x @ vectors) ** 2 @ (1 / (values + length**2))
    cross = np.exp(-0.5 * np.sum(np.log1p(values / length**2)) - 0.5 * quadratic)
    return float(far), float(cross.mean())


def _within(x: np.ndarray, length: float, unbiased: bool) -> float:
    n = len(x)
    total = _pair_sum(x, x, length)
    return (total - n) / (n * (n - 1)) if unbiased else total / n**2


def _pair_sum(x: np.ndarray, y: np.ndarray, length: float) -> float:
    """Sum of k over all pairs; within one set each block of pairs is visited once."""
    from scipy.spatial.distance import cdist

    step, total = max(1, int(np.sqrt(BLOCK_ENTRIES))), 0.0
    for i in range(0, len(x), step):
        for j in range(i if y is x else 0, len(y), step):
            distances = cdist(x[i : i + step], y[j : j + step], "sqeuclidean")
            block = float(np.exp(distances / (-2 * length**2)).sum())
            total += 2 * block if y is x and j > i else block
    return total
