"""One labeled quantity of a theory beside that of a simulation: what is rejected, and what would have been."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from widefield import measures
from widefield.compare.table import Comparison, Row
from widefield.question import checks

if TYPE_CHECKING:
    import xarray as xr


class Pair(NamedTuple):
    """One labeled quantity to compare, standard errors ``known`` without replicates, and ``bounds`` of other errors.

    A rejected difference is undecided, for want of ``advice``, where it is relative to the theory not above ``offset``.
    """

    quantity: str
    theory: "xr.DataArray"
    trial: "xr.DataArray"
    known: Sequence["xr.DataArray"] = ()
    bounds: Sequence["xr.DataArray"] = ()
    offset: float = 0.0
    advice: str = ""


def judge_all(pairs: Iterable[Pair], *, alpha: float = 1e-6, resolution: float = 0.1) -> Comparison:
    """A row for each pair, Bonferroni over the entries of all of them."""
    pairs = tuple(pairs)
    n_tests = sum(pair.theory.size for pair in pairs)
    rows = [judge(*pair, alpha=alpha, resolution=resolution, n_tests=n_tests, n_norms=len(pairs)) for pair in pairs]
    return Comparison(tuple(rows), alpha)


def judge(
    quantity: str,
    theory: "xr.DataArray",
    trial: "xr.DataArray",
    known: Sequence["xr.DataArray"] = (),
    bounds: Sequence["xr.DataArray"] = (),
    offset: float = 0.0,
    advice: str = "",
    *,
    alpha: float = 1e-6,
    resolution: float = 0.1,
    n_tests: int | None = None,
    n_norms: int = 1,
) -> Row:
    """The `Row` of one labeled quantity; ``trial`` may have a ``replicate`` dim.

    The ``known`` standard errors add in quadrature to that of the replicates; the ``bounds`` of deterministic errors add
    up and are taken off the difference; ``n_tests`` entries (by default, those of this quantity) and ``n_norms`` share
    ``alpha``. Limits: with replicates the limit is Student's even where most of the error is known (then the normal one,
    which is smaller, would do).
    """
    alpha, resolution = (
        measures.probability("alpha", alpha),
        checks.nonnegative("resolution", resolution, positive=True),
    )
    if measures.REPLICATE in theory.dims:
        raise ValueError(f"{quantity}: the first argument has a `replicate` dim; the theory comes first.")
    measures.check_labels(quantity, theory, trial)
    sampled = measures.REPLICATE in trial.dims
    order = (measures.REPLICATE, *theory.dims) if sampled else theory.dims
    exact, samples = measures.numbers_of(quantity, theory), measures.numbers_of(quantity, trial.transpose(*order))
    samples = samples if sampled else samples[None]
    n, mean, size = len(samples), samples.mean(axis=0), float(np.linalg.norm(exact))
    variance = sum(
        (measures.numbers_of(quantity, _like(theory, error), finite=False) ** 2 for error in known),
        np.zeros_like(exact),
    )
    allowed = sum(
        (np.abs(measures.numbers_of(quantity, _like(theory, error), finite=False)) for error in bounds),
        np.zeros_like(exact),
    )
    z = stderr = limit = p = resolved = agrees = None
    relative, reason = float(np.linalg.norm(mean - exact)) / size if size else None if mean.any() else 0.0, ""
    if n > 1 or (not sampled and (variance.any() or allowed.any())):
        stderr = np.sqrt(variance + (measures.standard_error(samples) ** 2 if n > 1 else 0.0))
        z = measures.scores(exact, samples, stderr, allowed)
        shares = n if n > 1 else np.inf, alpha / (2 * n_norms)
        limit = measures.student_limit(shares[0], 2 * (n_tests or exact.size), alpha)
        if variance.any() or allowed.any():
            excess = np.where(z == 0, 0.0, np.maximum(np.abs(mean - exact) - allowed, 0.0))
            p, resolved = measures.ratio_p(excess, stderr, *shares)
            resolved += float(np.linalg.norm(allowed))
        else:
            p = measures.norm_p(np.where(z == 0, 0.0, samples - exact))
            resolved = measures.norm_resolution(samples, shares[1])
        resolved = resolved / size if size else None if resolved else 0.0
        rejected = bool((np.abs(z) > limit).any() or p < shares[1])
        enough = _enough(float(np.linalg.norm(stderr)) * np.sqrt(n), resolution * size, shares[1]) if n > 1 else ""
        agrees, reason = _judged(rejected, relative, resolved, resolution, offset, advice, enough)
    elif sampled:
        reason = "one replicate has no standard error; ask for more replicates"
    ranked = mean - exact if z is None or not z.any() else z
    worst = np.unravel_index(int(np.argmax(np.abs(ranked))), exact.shape)
    return Row(
        quantity=quantity,
        index=tuple((str(d), _label(theory, d, i)) for d, i in zip(theory.dims, worst, strict=True)),
        theory=float(exact[worst]),
        simulation=float(mean[worst]),
        stderr=None if stderr is None else float(stderr[worst]),
        z=None if z is None else float(z[worst]),
        z_rms=None if z is None else float(np.sqrt(np.mean(z**2))),
        relative_error=relative,
        limit=limit,
        agrees=agrees,
        n_entries=exact.size,
        n_replicates=n if sampled else 0,
        error=float(allowed[worst]),
        p=p,
        resolution=resolved,
        reason=reason,
    )


def _judged(rejected: bool, relative, resolved, wanted: float, offset: float, advice: str, enough: str):
    """The verdict and, where there is none, why and what to do."""
    if rejected and offset and relative is not None and relative <= offset:
        return None, f"resolved, but no more than finite networks may differ ({offset:.2g}){advice}"
    if rejected or (resolved is not None and resolved <= wanted):
        return not rejected, ""
    if resolved is None:
        return None, "the theory is zero, which gives relative errors no scale"
    words = f"nothing is rejected, but an error of {wanted:.2g} would not have been either"
    return None, f"{words}; {enough or 'the stated errors are too large'}"


def _enough(scatter: float, wanted: float, p: float) -> str:
    """How many replicates reject a difference of the norm ``wanted`` where one has the norm ``scatter`` of errors."""
    n = 4
    while wanted > 0 and measures.student_limit(n, 1, p) * scatter > wanted * np.sqrt(n) and n < 1e9:
        n = int(1.1 * n) + 1
    digits = 10 ** (len(str(n)) - 1)
    return f"ask for about {-(-n // digits) * digits} replicates"


def _like(reference: "xr.DataArray", array: "xr.DataArray") -> "xr.DataArray":
    measures.check_labels(str(array.name), reference, array)
    return array.transpose(*reference.dims)


def _label(array: "xr.DataArray", dim: Any, position: Any) -> int | float | str:
    return array.coords[dim].values[position].item() if dim in array.coords else int(position)
