"""Which learning rate, and does it transfer: `widefield.rate_sweep`, `optimal_rate` and `rate_transfer`."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from widefield.answer import legacy
from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Status
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.teacher import Teacher
from widefield.question.training import Training
from widefield.theories.proportional.problem import Problem, problem
from widefield.theories.proportional.sweep import Search, at_rates, search

PARAMETERIZATIONS = ("mup", "ntk")
N_TIMES = 8
FLAT = 0.1  # a drift below this, in powers of width or depth, counts as transfer


def _problem(network: Network, steps: int, **physics: Any) -> Problem:
    return problem(network, rate=1.0, steps=steps, **physics)


@x64
def optimal_rate(
    network: Network,
    teacher: Teacher,
    training: Training,
    *,
    rates: Any = None,
    width_ratio: float = np.inf,
    width: float | None = None,
) -> Solution:
    """The constant rate with the lowest test loss after a number of steps, and the largest stable one.

    Physics as in `widefield.proportional`. ``rates`` restricts the search to those; without, it finds its own grid.

    Fields: ``optimal_rate`` (step) for training times up to ``steps``, ``maximal_rate``, each with its ``_error``, the best
    loss ``test_loss`` (step), and the whole sweep ``sweep`` (rate, step). A rate is stable if the test loss at the last
    step is below that at the start.

    Method: sweeps of the march in one compilation, refined around the optimum at the last step and around the edge of
    stability; a parabola in the logarithm of the rate. Error: half the distance between the neighbouring rates.
    """
    start = time.perf_counter()
    training.refuse(
        "optimal_rate", "batches", "weight_decay", "momentum_time", "temperature", "loss", "initial_scale", "flow"
    )
    richness, steps, centered = training.richness, training.steps, training.centered
    data_ratio, batch_ratio, batch = teacher.data_ratio, teacher.batch_ratio, teacher.batch
    label_noise, spectrum = teacher.label_noise, teacher.spectrum
    physics: dict[str, Any] = dict(
        richness=richness, width_ratio=width_ratio, data_ratio=data_ratio, batch_ratio=batch_ratio,
        label_noise=label_noise, centered=centered, spectrum=spectrum, width=width, batch=batch, target_overlap=None,
    )  # fmt: skip
    found = search(_problem(network, steps, **physics), _rates(rates))
    rows = times(steps)
    best = np.asarray([found.best(row) for row in rows])
    low, high = found.edge
    fields = {
        "optimal_rate": (("step",), best[:, 0]), "optimal_rate_error": (("step",), best[:, 1]),
        "maximal_rate": ((), low), "maximal_rate_error": ((), high - low),
        "test_loss": (("step",), found.losses[:, rows].min(axis=0)), "sweep": (("rate", "step"), found.losses[:, rows]),
    }  # fmt: skip
    certificate = _certificate("optimal_rate", {"steps": steps} | physics, bool(found.stable.all()), start)
    return make_solution(
        fields,
        certificate,
        network,
        None,
        coords={"step": rows, "rate": found.rates},
        teacher=teacher,
        training=training,
    )


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
) -> Solution:
    r"""Whether the best learning rate stays the same as networks become wider or deeper.

    ``over`` is ``"width"`` (``values`` are width ratios) or ``"depth"`` (numbers of layers). ``parameterization``
    ``"mup"`` keeps the richness, ``"ntk"`` has :math:`\gamma_0` = richness/√ν (equal at ν = 1). The branch of a residual
    network is scaled as 1/√depth from the one given, or kept with ``scaled_branch=False``.

    Fields: ``optimal_rate`` (value, step), ``maximal_rate`` (value) with their ``_error``, ``test_loss`` (value, step), and
    the ``drift`` (step) with its error: the power of width or depth with which the optimum moves, fitted. The value dim
    is ``width_ratio`` or ``depth``. Between ``transfers_from`` and ``transfers_to`` (steps, in the diagnostics) the
    drift is below 0.1 in size.

    Method: `optimal_rate` at every value; sweeps over widths share one compilation. Error of the drift: from the errors of
    the rates and the scatter around the power law.
    """
    start = time.perf_counter()
    training.refuse(
        "rate_transfer", "batches", "weight_decay", "momentum_time", "temperature", "loss", "initial_scale", "flow"
    )
    richness, steps, centered = training.richness, training.steps, training.centered
    data_ratio, batch_ratio = teacher.data_ratio, teacher.batch_ratio
    label_noise = teacher.label_noise
    checks.choice("over", over, ("width", "depth"))
    checks.choice("parameterization", parameterization, PARAMETERIZATIONS)
    physics: dict[str, Any] = dict(
        richness=richness, width_ratio=width_ratio, data_ratio=data_ratio, batch_ratio=batch_ratio,
        label_noise=label_noise, centered=centered, spectrum=None, width=None, batch=None, target_overlap=None,
    )  # fmt: skip
    points = _values(over, values, network)
    problems = [_member(network, over, v, steps, parameterization, scaled_branch, physics) for v in points]
    found = [search(one, _rates(rates)) for one in problems]
    rows = times(steps)
    fields, drift = _transfer_fields(found, points, rows, "width_ratio" if over == "width" else "depth")
    options = {"over": over, "parameterization": parameterization, "steps": steps} | physics
    stable = all(one.stable.all() for one in found)
    certificate = _certificate("transfer", options, stable, start, _holds(rows, drift))
    name = "width_ratio" if over == "width" else "depth"
    return make_solution(
        fields, certificate, network, None, coords={"step": rows, name: points}, teacher=teacher, training=training
    )


@x64
def rate_sweep(
    network: Network,
    teacher: Teacher,
    training: Training,
    *,
    rates: Any,
    width_ratios: Sequence[float] = (np.inf,),
    parameterization: str = "mup",
) -> Solution:
    """Test loss over (width_ratio, rate, step): every run in one compilation. Divergent runs are infinite, not errors."""
    start = time.perf_counter()
    training.refuse(
        "rate_sweep", "batches", "weight_decay", "momentum_time", "temperature", "loss", "initial_scale", "flow"
    )
    richness, steps, centered = training.richness, training.steps, training.centered
    data_ratio, batch_ratio = teacher.data_ratio, teacher.batch_ratio
    label_noise = teacher.label_noise
    checks.choice("parameterization", parameterization, PARAMETERIZATIONS)
    physics: dict[str, Any] = dict(
        richness=richness, width_ratio=1.0, data_ratio=data_ratio, batch_ratio=batch_ratio, label_noise=label_noise,
        centered=centered, spectrum=None, width=None, batch=None, target_overlap=None,
    )  # fmt: skip
    grid = _rates(rates)
    assert grid is not None
    widths = _values("width", width_ratios, network)
    members = [_member(network, "width", v, steps, parameterization, True, physics) for v in widths]
    found = np.stack([at_rates(one, grid) for one in members])
    certificate = _certificate(
        "rate_sweep", {"steps": steps, "parameterization": parameterization} | physics, False, start
    )
    fields = {"test_loss": (("width_ratio", "rate", "step"), found)}
    return make_solution(
        fields,
        certificate,
        network,
        None,
        coords={"width_ratio": widths, "rate": grid},
        teacher=teacher,
        training=training,
    )


def times(steps: int) -> np.ndarray:
    """A few training times, evenly spaced in the logarithm, the last one ``steps``."""
    return np.unique(np.round(np.geomspace(1, steps, N_TIMES)).astype(int))


def _member(
    network: Network, over: str, value, steps: int, parameterization: str, scaled: bool, physics: dict
) -> Problem:
    """The problem at one width or depth."""
    if over == "width":
        if parameterization == "ntk" and not np.isfinite(value):
            raise ValueError(
                "`values` must be finite with parameterization='ntk': the richness vanishes at infinite width."
            )
        gamma = physics["richness"] / np.sqrt(value) if parameterization == "ntk" else physics["richness"]
        return _problem(network, steps, **physics | {"width_ratio": value, "richness": gamma})
    if parameterization == "ntk":
        physics = physics | {"richness": physics["richness"] / np.sqrt(physics["width_ratio"])}
    branch = network.branch
    if branch is not None and scaled:
        branch = branch * np.sqrt(network.depth / value)
    return _problem(replace(network, depth=int(value), branch=branch), steps, **physics)


def _values(over: str, values: Any, network: Network) -> np.ndarray:
    points = np.asarray(values)
    if points.ndim != 1 or not len(points) or points.dtype.kind not in "fiu" or (points <= 0).any():
        raise ValueError(f"`values` must be a list of positive numbers, got {values!r}.")
    if over == "depth":
        if points.dtype.kind == "f" and (points != points.round()).any():
            raise ValueError(f"`values` must be whole numbers of layers, got {values!r}.")
        if len(set(network.relative_widths)) > 1:
            raise ValueError("`network` must have equal widths when depths are compared.")
        return points.astype(int)
    return points.astype(float)


def _rates(rates: Any) -> np.ndarray | None:
    if rates is None:
        return None
    grid, _ = checks.real_array("rates", rates, (1,), "a list of rates")
    if (grid <= 0).any():
        raise ValueError(f"`rates` must be positive, got {grid.min():g}.")
    return np.unique(grid)


def _transfer_fields(found: list[Search], points: np.ndarray, rows: np.ndarray, name: str):
    best = np.asarray([[one.best(row) for row in rows] for one in found])
    edges = np.asarray([one.edge for one in found])
    slope, error = drift_of(points.astype(float), best[..., 0], best[..., 1])
    fields = {
        "optimal_rate": ((name, "step"), best[..., 0]), "optimal_rate_error": ((name, "step"), best[..., 1]),
        "maximal_rate": ((name,), edges[:, 0]), "maximal_rate_error": ((name,), np.ptp(edges, axis=1)),
        "test_loss": ((name, "step"), np.stack([one.losses[:, rows].min(axis=0) for one in found])),
        "drift": (("step",), slope), "drift_error": (("step",), error),
    }  # fmt: skip
    return fields, slope


def drift_of(points: np.ndarray, best: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope of ln rate against ln value at every time, and its error from the spread and the scatter."""
    keep = np.isfinite(points)
    x, y = np.log(points[keep]), np.log(best[keep])
    if len(x) < 2:
        return np.zeros(best.shape[1]), np.full(best.shape[1], np.inf)
    centred = x - x.mean()
    slope = centred @ y / (centred @ centred)
    scatter = np.sqrt(np.sum((y - y.mean(axis=0) - np.outer(centred, slope)) ** 2, axis=0) / max(len(x) - 2, 1))
    size = np.maximum(scatter, (spread[keep] / best[keep]).max(axis=0))
    return slope, size / np.sqrt(centred @ centred)


def _holds(rows: np.ndarray, drift: np.ndarray) -> dict[str, Any]:
    """The steps up to the last time for which the drift stays small."""
    flat = np.abs(drift) < FLAT
    if not flat[-1]:
        return {"transfers": False, "drift_at_the_end": float(drift[-1])}
    first = len(flat) - int(np.argmin(flat[::-1])) if not flat.all() else 0
    return {"transfers": True, "transfers_from": int(rows[first]), "transfers_to": int(rows[-1])}


def _certificate(
    theory: str, options: dict, all_stable: bool, start: float, diagnostics: dict | None = None
) -> Certificate:
    notes = ("every rate was stable: maximal_rate is a lower bound",) if all_stable else ()
    shown = {k: v for k, v in options.items() if v is not None and v is not False and k != "spectrum"}
    return legacy.certificate(
        theory=theory, status=Status.success, wall_time=time.perf_counter() - start, options=shown, notes=notes,
        diagnostics=diagnostics or {},
    )  # fmt: skip
