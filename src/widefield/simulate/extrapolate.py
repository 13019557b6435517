"""Two simulations of width n and 2n give the limit of infinite width up to 1/n²."""

import time
from typing import Any

import numpy as np

from widefield.network import Network
from widefield.simulate.certify import certify
from widefield.solution import Solution, make_solution
from widefield.task import Task


def extrapolate(wide: Solution, narrow: Solution) -> Solution:
    r"""Removes the :math:`1/n` offset of finite networks, replicate by replicate.

    .. math::  C = 2\,C_{2n} - C_n

    Notation: ``wide`` has twice the width of ``narrow``; everything else but the seed must agree, and the seeds must
    differ, so that the replicates of the result are independent. Fields that are averages over neurons are combined;
    ``draw`` is left out, since its mean has no offset.

    Method: with :math:`\langle C_n \rangle = C_\infty + c_1/n + O(n^{-2})` the first correction cancels.

    Error: the variance of the result is :math:`4\,\mathrm{Var}\,C_{2n} + \mathrm{Var}\,C_n`, about three times that of
    ``narrow``; its replicates carry it. *Limits*: single replicates need not be positive semi-definite.
    """
    start = time.perf_counter()
    _check(wide, narrow)
    names = [name for name in _fields(wide) if name in _fields(narrow) and name != "draw"]
    if not names:
        raise ValueError("`wide` and `narrow` have no field in common (draw is not extrapolated).")
    arrays = {name: 2 * wide.data[name].values - narrow.data[name].values for name in names}
    pair = {"wide": wide.certificate, "narrow": narrow.certificate}
    options: dict[str, Any] = {f"{k}_width": c.options["width"] for k, c in pair.items()}
    options |= {f"{k}_seed": c.seed for k, c in pair.items()}
    options["replicates"] = wide.certificate.options["replicates"]
    left_out = tuple(name for name in _fields(wide) if name not in names)
    notes = () if wide.task is None else wide.task.notes
    certificate = certify(
        "simulate.extrapolate", arrays, start, seed=None, options=options, notes=notes, left_out=left_out
    )
    fields = {name: (tuple(map(str, wide.data[name].dims)), value) for name, value in arrays.items()}
    return make_solution(fields, certificate, wide.network, wide.task)


def _fields(solution: Solution) -> list[str]:
    """Names of the fields; xarray files ``output`` under coordinates, since it is a dim of ``draw`` too."""
    return [str(name) for name in solution.data.variables if name not in solution.data.indexes]


def _check(wide: Solution, narrow: Solution) -> None:
    for name, solution in (("wide", wide), ("narrow", narrow)):
        if not isinstance(solution, Solution) or solution.certificate.theory != "simulate.prior":
            raise ValueError(f"`{name}` must be a Solution of widefield.simulate.prior.")
    if _key(wide.network) != _key(narrow.network) or not _same_task(wide.task, narrow.task):
        raise ValueError("`wide` and `narrow` must simulate the same network and the same task.")
    options, options_ = wide.certificate.options, narrow.certificate.options
    sizes, sizes_ = (s.network.sizes(s.certificate.options["width"]) for s in (wide, narrow))
    if sizes != tuple(2 * n for n in sizes_):
        raise ValueError(f"`wide` must have twice the width of `narrow`, got layers of {sizes} and {sizes_} neurons.")
    if options["replicates"] != options_["replicates"]:
        raise ValueError(
            "`wide` and `narrow` must have equally many replicates, "
            f"got {options['replicates']} and {options_['replicates']}."
        )
    if wide.certificate.seed == narrow.certificate.seed:
        raise ValueError(f"`wide` and `narrow` must have different seeds, got {wide.certificate.seed} for both.")


def _key(net: Network) -> tuple[Any, ...]:
    """What makes two networks equal; a user's activation that was read from a file is known by its source only."""
    phi = net.activation
    values = {name: value for name, value in vars(net).items() if name != "activation"}
    return (*values.items(), phi.name, phi.parameters, phi.breaks, phi.source)


def _same_task(task: Task | None, other: Task | None) -> bool:
    if task is None or other is None:
        return task is other
    pairs = [(getattr(task, name), getattr(other, name)) for name in ("x", "y", "x_test", "y_test")]
    same = all(a is b if a is None or b is None else np.array_equal(a, b) for a, b in pairs)
    return same and task.supervised == other.supervised
