"""`widefield.compare`: what two Solutions share, if they answer the same question."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from widefield.answer.boundary import names_of, require_memory
from widefield.answer.solution import Solution
from widefield.compare.table import Comparison
from widefield.compare.verdict import Pair, judge_all
from widefield.measures import REPLICATE, check_labels
from widefield.question import checks
from widefield.question.difference import differing_field

if TYPE_CHECKING:
    import xarray as xr

OFFSET = 5.0  # relative differences up to OFFSET · depth/width may be those of a finite network
FIRST_ORDER = ("covariance", "test_prediction", "test_covariance", "log_evidence")  # of finite_width: at its width
COPIES = 3  # of a field (measured: 3.03)
PHYSICS = ("temperature", "noise", "width_ratio", "width", "infinite_depth")  # options that belong to the question


def compare(
    theory: Solution,
    trial: Solution | Sequence[Solution],
    *,
    quantities: Iterable[str] | str | None = None,
    alpha: float = 1e-6,
    resolution: float = 0.1,
    same_question: bool = True,
) -> Comparison:
    r"""Set every quantity that ``theory`` and ``trial`` share side by side: agrees, disagrees, or undecided.

    ``trial`` is a simulation, whose fields have a leading ``replicate`` dim; two of them, at widths n and 2n, which are
    extrapolated (`widefield.simulate.extrapolate`); or a second theory, for which there are relative errors only, unless
    errors are stated: ``<name>_stderr``, by chance (of a trial with replicates these take its place), adds in quadrature;
    ``<name>_error``, the estimate of a deterministic error, is taken off the size of the difference, both sides' added. A
    theory's ``<name>_shift`` at the trial's width is added to it. A simulation of unequal widths has ``<name>_diagonal``:
    it is compared with the theory's equal states. Another network, task, teacher, training or temperature is a
    `ValueError`, unless ``same_question=False``.

    *Disagrees*: an entry is rejected, :math:`|z|` beyond Student's limit with Bonferroni over all entries, or the norm of
    the difference, Bonferroni over the quantities, each with half of ``alpha``. The norm has a rotation test (Langsrud
    2005), exact for Gaussian replicates whatever the correlations of the entries, and more powerful the less correlated
    they are; with stated errors it is :math:`\|\bar x-\theta\|/\|s\|` beyond Student's limit, whose tail is the heaviest
    that such a ratio has (Székely & Bakirov 2003). *Agrees*: nothing is rejected, and relative errors above
    ``resolution`` would have been: the table's resolution is below it.
    *Undecided*, with words that say what to do: neither; or what is rejected is not larger than finite networks may
    differ: relative to the theory, 5 · depth/width (or dimension) at one width, its square (at the geometric mean) where
    two widths or a shift have removed the first order. The factor 5 is a convention, not a bound.
    Limits: the test knows the errors that are stated, and Gaussian means; 1e-6 leaves little to fewer than five
    replicates.
    """
    theory, trial, asked = _checked(theory, trial, quantities, same_question)
    matches = {name: _match(name, theory, trial) for name in _names(theory)}
    pairs = {name: pair for name, pair in matches.items() if pair is not None}
    if not pairs:
        have = [", ".join(map(str, s.data.data_vars)) for s in (theory, trial)]
        raise ValueError(f"The two have no quantity in common: the first has {have[0]}; the second has {have[1]}.")
    chosen = [pairs[checks.choice("quantities", name, pairs)] for name in (pairs if asked is None else asked)]
    need = COPIES * max(pair.trial.nbytes for pair in chosen)
    require_memory(need, "Comparisons of all replicates of `trial`", "Name smaller `quantities`.")
    return judge_all(chosen, alpha=alpha, resolution=resolution)


def equal_states(covariance: "xr.DataArray") -> "xr.DataArray":
    """C^{(a,a)} from C^{(a,b)}, over ``state``."""
    import xarray as xr

    same = xr.DataArray(np.arange(covariance.sizes["state"]), dims="state")
    return covariance.isel(state_=same).drop_vars("state_", errors="ignore")


def _checked(theory: Any, trial: Any, quantities: Any, same_question: Any) -> tuple[Solution, Solution, Any]:
    """Both sides, two widths in one, and the names that are asked for."""
    if isinstance(trial, Sequence):
        if len(trial) != 2 or not all(
            isinstance(one, Solution) and "width" in one.certificate.options for one in trial
        ):
            raise ValueError("`trial` must be a Solution, or two simulations of networks at widths n and 2n.")
        from widefield.simulate import extrapolate

        trial = extrapolate(*sorted(trial, key=lambda one: -one.certificate.options["width"]), throw=False)
    for name, given in (("theory", theory), ("trial", trial)):
        if not isinstance(given, Solution):
            raise ValueError(f"`{name}` must be a Solution, got {type(given).__name__}.")
    if "width" in theory.certificate.options and "wide_width" in trial.certificate.options:
        raise ValueError("`trial` must be one simulation at the theory's `width`: two widths remove what it holds.")
    asked = names_of(quantities)
    if asked == ():
        raise ValueError(f"`quantities` must be names of fields, got {quantities!r}.")
    if checks.flag("same_question", same_question):
        for noun in ("network", "task", "teacher", "training"):
            _check_same(noun, getattr(theory, noun), getattr(trial, noun))
        options, options_ = theory.certificate.options, trial.certificate.options
        for name in (name for name in PHYSICS if name in options and name in options_):
            if options[name] != options_[name]:
                raise ValueError(_different(f"`{name}`", f"{options[name]} and {options_[name]}"))
    return theory, trial, asked


def _check_same(noun: str, first: Any, second: Any) -> None:
    """Raise where two nouns of the question differ, and name the field."""
    if first is None or second is None:
        if first is not second:
            raise ValueError(_different(noun, f"the {'first' if first is None else 'second'} has none"))
    elif differs := differing_field(first, second):
        shown = [np.array2string(np.asarray(v), threshold=6) if np.ndim(v) else str(v) for v in differs[1]]
        raise ValueError(_different(f"`{differs[0]}` of the {noun}", " and ".join(shown)))


def _different(what: str, shown: str) -> str:
    return (
        f"The two answer different questions: {what} differs ({shown}). If that is meant, ask with same_question=False."
    )


def _names(solution: Solution) -> list[str]:
    """Fields that can be compared: numbers that are not themselves errors of others."""
    numbers = [str(name) for name, value in solution.data.data_vars.items() if value.dtype.kind in "fiu"]
    errors = {f"{name}_error" for name in numbers}
    return [name for name in numbers if not name.endswith("_stderr") and name not in errors]


def _match(name: str, theory: Solution, trial: Solution) -> Pair | None:
    """The theory's field ``name`` beside the trial's; beside its equal states, where the trial has only these."""
    field, other = theory.data[name], trial.data.data_vars.get(name)
    by_chance, bounds = _errors(theory, name, "_stderr"), _errors(theory, name, "_error")
    shift = _errors(theory, name, "_shift") if "width" in trial.certificate.options else []
    for change in shift:
        check_labels(name, field, change)
        field = field + change
        by_chance = by_chance + _errors(theory, name, "_shift_stderr")
        bounds = bounds + _errors(theory, name, "_shift_error")
    corrected = bool(shift) or (name in FIRST_ORDER and "width" in theory.certificate.options)
    label = name
    if other is None and {"state", "state_"} <= set(field.dims):
        label, other = f"{name} (equal states)", trial.data.data_vars.get(f"{name}_diagonal")
        field, by_chance, bounds = equal_states(field), [*map(equal_states, by_chance)], [*map(equal_states, bounds)]
    if other is None or {"path", "neuron"} & {*field.dims, *other.dims}:  # draws, not numbers to be equal
        return None
    if REPLICATE not in other.dims:
        by_chance = by_chance + _errors(trial, str(other.name), "_stderr")
    bounds = bounds + _errors(trial, str(other.name), "_error")
    return Pair(label, field, other, by_chance, bounds, *_offset(trial, corrected))


def _offset(trial: Solution, corrected: bool) -> tuple[float, str]:
    """How far finite networks may be from the theory, relative, and what would remove it."""
    options = trial.certificate.options
    strength = OFFSET * trial.network.depth
    if "wide_width" in options:
        left = strength**2 / (options["wide_width"] * options["narrow_width"])
        return left, " at order 1/width²; ask wider networks"
    size = options.get("width", options.get("dimension"))
    if size is None:
        return 0.0, ""
    if corrected:
        return (strength / size) ** 2, " at order 1/width²; ask wider networks"
    if "width" in options:
        return strength / size, " at one width; ask a second one and compare(theory, (wide, narrow))"
    return strength / size, " at one dimension; ask a larger one"


def _errors(solution: Solution, name: str, suffix: str) -> list["xr.DataArray"]:
    return [solution.data[name + suffix]] if name + suffix in solution.data else []
