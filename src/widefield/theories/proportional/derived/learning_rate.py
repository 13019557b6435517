"""Which learning rate, and does it transfer: `widefield.optimal_rate`, `rate_transfer` and `rate_sweep`."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Fields, Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.teacher import Teacher
from widefield.question.training import Training
from widefield.theories.proportional.derived.rate_search import FEWEST_ZOOMS, N_RATES, RateSearch, search, seconds_of
from widefield.theories.proportional.march.structured import error_of
from widefield.theories.proportional.problem import LARGEST, Problem, check_training, pose
from widefield.theories.proportional.training_curves import check_memory, check_residual

PARAMETERIZATIONS = ("mup", "ntk")
N_TIMES = 8
DEEPEST = 100_000
FLAT = 0.1  # a drift below this, in powers of width or depth, counts as transfer
SMALLEST_RTOL = 1e-5  # what the zooms reach
SPECTRUM_LIMIT = 1e-6  # far below what moves a rate by SMALLEST_RTOL


@x64
def optimal_rate(
    network: Network,
    teacher: Teacher,
    training: Training,
    *,
    width_ratio: float = np.inf,
    width: float | None = None,
    rates: Any = None,
    rtol: float = 1e-2,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    """The constant rate with the lowest test loss after a number of steps, and the largest stable one.

    The question is that of `widefield.proportional`; the search replaces ``training.rate``. ``rates`` restricts it to
    those; without, it makes a grid of its own.

    Fields: ``optimal_rate`` (step) for training times up to ``training.steps``, ``maximal_rate``, each with its ``_error``,
    the best loss ``test_loss`` (step), and the whole sweep ``sweep`` (rate, step). A rate is stable if the test loss at the
    last step is below that at the start. Losses of several channels are averaged.

    Method: sweeps in one compilation, refined around the optimum at the last step and around the edge of stability; a
    parabola in the logarithm of the rate.
    Error: half the distance between the neighboring rates, for the largest stable rate the distance of the next one.
    ``error`` in the certificate is that of both at the last step, relative; its limit is ``rtol``, 1e-2 by default (the
    search goes on until it is met; earlier times are not refined). An optimum at the end of the rates, or a largest
    stable rate that none above it bounds, is ``unbracketed``, its error infinite and the status incomplete. ``residual``
    is that of the best run, marched again; ``spectrum`` the error of a spectrum's Gauss rule at the largest stable rate
    (limit 1e-6).
    Limits: runs that diverge have infinite losses; they are counted. Beyond the first edge of stability the loss after
    few steps is a jagged function of the rate, and the optimum may lie there.
    """
    start = time.perf_counter()
    problem = _posed(network, teacher, training, "optimal_rate", width_ratio=width_ratio, width=width)
    rtol = checks.tolerance("rtol", rtol, SMALLEST_RTOL)
    (sought,) = _searches([problem], _rates(rates), progress, rtol)
    rows = _reported_steps(training)
    fields: Fields = {name: (dims, value[0]) for name, (dims, value) in _rate_fields([sought], rows).items()}
    fields = {**fields, "sweep": (("rate", "step"), sought.losses[:, rows])}
    options = {"width_ratio": width_ratio, "width": width, "rates": rates, "rtol": rtol}
    certificate = _certificate("optimal_rate", [sought], options, start, rtol)
    coords = {"step": rows, "rate": sought.rates}
    return make_solution(fields, certificate, network, teacher=teacher, training=training, coords=coords, throw=throw)


@x64
def rate_transfer(
    network: Network,
    teacher: Teacher,
    training: Training,
    *,
    over: str,
    values: Sequence[float],
    parameterization: str = "mup",
    scaled_branch: bool = True,
    rates: Any = None,
    width_ratio: float = np.inf,
    rtol: float = 1e-2,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Whether the best learning rate stays the same as networks become wider or deeper.

    ``over`` is ``"width"`` (``values`` are width ratios) or ``"depth"`` (numbers of layers). ``parameterization``
    ``"mup"`` keeps the richness, ``"ntk"`` has :math:`\gamma_0` = richness/√ν, Eq. (proportional.18). The branch of a
    residual network is scaled as 1/√depth from the one given, or kept with ``scaled_branch=False``.

    Fields: ``optimal_rate`` (value, step), ``maximal_rate`` (value) with their ``_error``, ``test_loss`` (value, step), and
    the ``drift`` (step) with its error: the power of width or depth with which the optimum moves, fitted,
    Eq. (proportional.19). The value dim is ``width_ratio`` or ``depth``. Between ``transfers_from`` and ``transfers_to``
    (steps, in the diagnostics) the drift is below 0.1 in size.

    Method: `optimal_rate` at every value; sweeps over widths share one compilation.
    Error: that of the rates as in `optimal_rate`, the largest of all values beside ``rtol`` (1e-2 by default). Error of the
    drift: from the errors of the rates and the scatter around the power law; no limit is set to it.
    Limits: isotropic data.
    """
    start = time.perf_counter()
    checks.choice("over", over, ("width", "depth"))
    rtol = checks.tolerance("rtol", rtol, SMALLEST_RTOL)
    points = _values(over, values, network)
    if len(set(points[np.isfinite(points)])) < 2:
        raise ValueError(f"`values` must hold at least two finite ones, or nothing can drift, got {values!r}.")
    if over == "width" and checks.ratio("width_ratio", width_ratio) is not None:
        raise ValueError(f"`width_ratio` goes with over='depth'; over='width' takes `values`, got {width_ratio!r}.")
    scaled = checks.flag("scaled_branch", scaled_branch)
    ask = partial(_posed, teacher=teacher, training=training, theory="rate_transfer", parameterization=parameterization)
    if over == "width":
        problems = [ask(network, name="values", width_ratio=ratio) for ratio in points]
    else:
        grown, width = [network.depth / depth for depth in points], float(network.relative_widths[0])
        branches = [network.branch and network.branch * np.sqrt(ratio if scaled else 1.0) for ratio in grown]
        deeper = [replace(network, depth=int(d), branch=b, widths=width) for d, b in zip(points, branches, strict=True)]
        problems = [ask(one, width_ratio=width_ratio) for one in deeper]
    searches = _searches(problems, _rates(rates), progress, rtol)
    rows, dim = _reported_steps(training), "width_ratio" if over == "width" else "depth"
    fields: Fields = {name: ((dim, *dims), value) for name, (dims, value) in _rate_fields(searches, rows).items()}
    drift, error = drift_of(points.astype(float), fields["optimal_rate"][1], fields["optimal_rate_error"][1])
    fields = {**fields, "drift": (("step",), drift), "drift_error": (("step",), error)}
    options = {"over": over, "parameterization": parameterization, "rates": rates, "rtol": rtol}
    options |= {"width_ratio": width_ratio, "scaled_branch": scaled} if over == "depth" else {}
    flat = np.abs(drift) < FLAT
    transfer: dict[str, Any] = {"transfers": False, "drift_at_the_end": float(drift[-1])}
    if flat[-1]:
        first = len(flat) - int(np.argmin(flat[::-1])) if not flat.all() else 0
        transfer = {"transfers": True, "transfers_from": int(rows[first]), "transfers_to": int(rows[-1])}
    certificate = _certificate("rate_transfer", searches, options, start, rtol, transfer)
    coords = {"step": rows, dim: points}
    return make_solution(fields, certificate, network, teacher=teacher, training=training, coords=coords, throw=throw)


@x64
def rate_sweep(
    network: Network,
    teacher: Teacher,
    training: Training,
    *,
    rates: Any,
    width_ratios: Sequence[float] = (np.inf,),
    parameterization: str = "mup",
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    """Test loss over (width_ratio, rate, step), every run in one compilation.

    ``rates`` replace ``training.rate``; ``parameterization`` as in `rate_transfer`. Losses of several channels are averaged.
    Error: ``residual`` is that of the best run at every width, marched again, and its distance from the sweep; a march is
    exact in the limit.
    Limits: isotropic data. Runs that diverge are expected in a sweep: their losses are infinite from there on, a note says
    how many and from which rate. A width at which every run diverges is no success.
    """
    start = time.perf_counter()
    grid, points = _rates(rates), _values("width", width_ratios, network, "width_ratios")
    if grid is None:
        raise ValueError("`rates` must be a list of rates, got None.")
    question = (network, teacher, training, "rate_sweep", parameterization, "width_ratios")
    sweeps = _searches([_posed(*question, width_ratio=ratio) for ratio in points], grid, progress)
    certificate = _certificate("rate_sweep", sweeps, {"parameterization": parameterization}, start)
    fields = {"test_loss": (("width_ratio", "rate", "step"), np.stack([one.losses for one in sweeps]))}
    coords = {"width_ratio": points, "rate": grid}
    return make_solution(fields, certificate, network, teacher=teacher, training=training, coords=coords, throw=throw)


def _searches(
    problems: list[Problem], rates: np.ndarray | None, progress: bool | None, rtol: float = 1.0
) -> list[RateSearch]:
    """A search for each problem, all of whose runs are seen to fit before the first; a grid of its own has about 80."""
    for problem in problems:
        check_memory(problem)
    n_runs = len(problems) * (N_RATES * (1 + FEWEST_ZOOMS) if rates is None else len(rates))
    seconds = n_runs / len(problems) * sum(map(seconds_of, problems))
    with bar(f"{n_runs} rates", n_runs, progress, seconds) as advance:
        return [search(problem, rates, advance, rtol) for problem in problems]


def _posed(
    network, teacher, training, theory: str, parameterization: str = "mup", name: str = "width_ratio", **sizes: Any
) -> Problem:
    """The problem with a rate of one, which the search replaces; the argument ``name`` gave the width ratio."""
    checks.choice("parameterization", parameterization, PARAMETERIZATIONS)
    if "width" not in sizes and teacher.spectrum is not None:
        raise ValueError(f"`spectrum` of the teacher is not covered by {theory}: it has no ratios.")
    if parameterization == "ntk" and not np.isfinite(sizes["width_ratio"]):
        raise ValueError(
            f"`{name}` must be finite with parameterization='ntk': the richness vanishes at infinite width."
        )
    check_training(training, theory)
    training.refuse(theory, "flow")
    if isinstance(training.rate, np.ndarray):
        raise ValueError(
            f"`rate` of the training is a schedule; {theory} looks for a constant rate and covers no other."
        )
    richness = training.richness / np.sqrt(sizes["width_ratio"]) if parameterization == "ntk" else training.richness
    return pose(network, teacher, replace(training, rate=1.0, richness=richness), theory=theory, **sizes)


def _values(over: str, values: Any, network: Any, name: str = "values") -> np.ndarray:
    points = np.asarray(values)
    if points.dtype.kind not in "fiu" or points.ndim != 1 or not len(points) or not (points > 0).all():
        raise ValueError(f"`{name}` must be a list of positive numbers, got {values!r}.")
    if over == "depth":
        if (points.dtype.kind == "f" and (points != points.round()).any()) or points.max() > DEEPEST:
            raise ValueError(f"`values` must be whole numbers of layers, at most {DEEPEST}, got {values!r}.")
        if len(set(network.relative_widths)) > 1:
            raise ValueError("`network` must have equal widths when depths are compared.")
        return points.astype(int)
    finite = points[np.isfinite(points)]
    if len(finite) and not 1 / LARGEST <= finite.min() <= finite.max() <= LARGEST:
        raise ValueError(f"`{name}` must lie between {1 / LARGEST:g} and {LARGEST:g}, or be infinite, got {values!r}.")
    return points.astype(float)


def _rates(rates: Any) -> np.ndarray | None:
    if rates is None:
        return None
    grid, _ = checks.real_array("rates", rates, (1,), "a list of rates")
    if (grid <= 0).any():
        raise ValueError(f"`rates` must be positive, got {grid.min():g}.")
    return np.unique(grid)


def _reported_steps(training: Training) -> np.ndarray:
    """A few training times, evenly spaced in the logarithm, the last one ``steps``."""
    return np.unique(np.round(np.geomspace(1, training.steps, N_TIMES)).astype(int))


def _rate_fields(searches: list[RateSearch], rows: np.ndarray) -> Fields:
    """Best and largest stable rates with their errors, and the best loss: (search, …) arrays with the dims behind."""
    best = np.asarray([[one.best(row) for row in rows] for one in searches])
    edges = np.asarray([one.edge for one in searches])
    return {
        "optimal_rate": (("step",), best[..., 0]), "optimal_rate_error": (("step",), best[..., 1]),
        "maximal_rate": ((), edges[:, 0]), "maximal_rate_error": ((), edges[:, 1]),
        "test_loss": (("step",), np.stack([one.losses[:, rows].min(axis=0) for one in searches])),
    }  # fmt: skip


def drift_of(points: np.ndarray, best: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope of ln rate against ln value at every time, and its error from the spread and the scatter."""
    keep = np.isfinite(points)
    x, y = np.log(points[keep]), np.log(best[keep])
    centered = x - x.mean()
    slope = centered @ y / (centered @ centered)
    scatter = np.sqrt(np.sum((y - y.mean(axis=0) - np.outer(centered, slope)) ** 2, axis=0) / max(len(x) - 2, 1))
    size = np.maximum(scatter, (spread[keep] / best[keep]).max(axis=0))
    return slope, size / np.sqrt(centered @ centered)


def _certificate(
    theory: str, searches: list[RateSearch], options: dict[str, Any], start: float, rtol=None, diagnostics=None
) -> Certificate:
    """Success rests on the best runs; with ``rtol`` also on how well the optima and largest stable rates are known."""
    measured = {"residual": check_residual(float(np.max([one.mismatch() for one in searches])))}
    n_runs, n_diverged = sum(len(one.rates) for one in searches), sum(one.n_diverged for one in searches)
    notes = []
    if n_diverged:
        first = min(one.rates[np.isinf(one.losses[:, -1])][0] for one in searches if one.n_diverged)
        notes.append(f"{n_diverged} of {n_runs} runs diverged, from rate {first:.3g} on: their losses are infinite")
    nothing = sum(one.n_diverged == len(one.rates) for one in searches)
    if nothing and rtol is None:
        measured["all_diverged"] = Check(nothing, 0, Status.diverged)
        notes.append(f"every run diverged in {nothing} of {len(searches)} searches: lower the rates")
    if rtol is not None:
        errors = np.array([error for one in searches for error in one.errors()])
        known = np.isfinite(errors)
        measured["error"] = Check(float(errors[known].max(initial=0.0)), rtol)
        measured["unbracketed"] = Check(int((~known).sum()), 0, Status.incomplete)
        if not known.all():
            notes.append(
                "an optimum or a largest stable rate lies at the end of the rates: it is a bound; widen `rates`"
            )
        for one in searches:
            modes, spectrum = one.problem.modes, one.problem.teacher.spectrum
            if modes is not None and spectrum is not None:  # the rule for a long one was made for a rate of one
                longest = max(1.0, one.edge[0]) * one.problem.training.steps
                error = error_of(modes, spectrum[0], spectrum[1], longest)
                measured["spectrum"] = Check(error, SPECTRUM_LIMIT)
    return Certificate(
        theory, measured, steps=searches[0].problem.training.steps,
        wall_time=time.perf_counter() - start, notes=tuple(notes),
        options={name: value for name, value in options.items() if value is not None},
        diagnostics={"runs": n_runs, "diverged": n_diverged, **(diagnostics or {})},
    )  # fmt: skip
