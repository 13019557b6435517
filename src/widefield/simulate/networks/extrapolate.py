"""Two simulations of width n and 2n give the limit of infinite width up to 1/n²."""

import time
from typing import Any

import numpy as np

from widefield.answer.certificate import Check, Status
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.difference import differing_field
from widefield.simulate.networks.call import SINGLE, certify, refuse_memory

NAME = "simulate.extrapolate"
AS_WIDE = {"neuron", "eigenvalue"}  # dims as long as the network is wide
MAY_DIFFER = ("width", "sizes", "method", "inputs", "n_outputs")  # how the same law was sampled


def extrapolate(wide: Solution, narrow: Solution, *, throw: bool = True) -> Solution:
    r"""Removes the :math:`1/n` offset of finite networks, replicate by replicate.

    .. math::  C = 2\,C_{2n} - C_n

    Notation: ``wide`` has twice the width of ``narrow``; both come from the same function of `widefield.simulate`.
    Everything else but the seed must agree, and the seeds must differ, so that the replicates of the result are
    independent. Fields that are averages over neurons are combined; fields of single neurons (``draw``) and spectra are left out.

    Method: with :math:`\langle C_n \rangle = C_\infty + c_1/n + O(n^{-2})` the first correction cancels.
    Error: success means that both simulations succeeded and that no value overflows; the variance of the result is
    :math:`4\,\mathrm{Var}\,C_{2n} + \mathrm{Var}\,C_n`, about three times that of ``narrow``; its replicates carry it.
    Limits: single replicates need not be positive semi-definite.
    """
    began = time.perf_counter()
    checks.flag("throw", throw)
    _check(wide, narrow)
    names = [name for name in _averages(wide) if name in _averages(narrow)]
    if not names:
        raise ValueError("`wide` and `narrow` have no average over neurons in common.")
    n_bytes = 2 * sum(wide.data[name].nbytes for name in names)
    refuse_memory(NAME, lambda replicates: n_bytes, {"replicates": wide.data.sizes["replicate"]}, ", ".join(names))
    with np.errstate(invalid="ignore"):  # networks that overflowed are counted below
        arrays = {name: 2 * wide.data[name].values - narrow.data[name].values for name in names}
    options: dict[str, Any] = {"simulation": wide.certificate.theory}
    for which, c in (("wide", wide.certificate), ("narrow", narrow.certificate)):
        options |= {f"{which}_width": c.options["width"], f"{which}_seed": c.seed}
    options |= {k: v for k, v in wide.certificate.options.items() if k not in MAY_DIFFER}
    failed = [s.status for s in (wide, narrow) if s.status is not Status.success]
    certificate = certify(
        NAME,
        arrays,
        began,
        seed=None,
        options=options,
        notes=() if wide.task is None else wide.task.notes,
        left_out=tuple(str(name) for name in wide.data.data_vars if name not in names),
        checks={"failed": Check(len(failed), 0, failed[0] if failed else Status.incomplete)},
    )
    return make_solution(
        {name: (tuple(map(str, wide.data[name].dims)), value) for name, value in arrays.items()},
        certificate,
        wide.network,
        wide.task,
        teacher=wide.teacher,
        training=wide.training,
        coords={str(name): coord for name, coord in wide.data[names].coords.items()},
        throw=throw,
    )


def _averages(solution: Solution) -> list[str]:
    """Names of the fields that are averages over neurons, one per replicate."""
    averages = {str(k): v for k, v in solution.data.data_vars.items() if k != SINGLE and not AS_WIDE & {*v.dims}}
    return [name for name, v in averages.items() if v.dims[:1] == ("replicate",) and v.dtype.kind == "f"]


def _check(wide: Solution, narrow: Solution) -> None:
    for name, solution in (("wide", wide), ("narrow", narrow)):
        theory = solution.certificate.theory if isinstance(solution, Solution) else ""
        if not theory.startswith("simulate.") or theory == NAME or "width" not in solution.certificate.options:
            raise ValueError(f"`{name}` must be a Solution of a function of widefield.simulate that takes a `width`.")
    kinds = wide.certificate.theory, narrow.certificate.theory
    if kinds[0] != kinds[1]:
        raise ValueError(f"`wide` and `narrow` must be simulations of the same kind, got {kinds[0]} and {kinds[1]}.")
    for noun in ("network", "task", "teacher", "training"):
        first, second = getattr(wide, noun), getattr(narrow, noun)
        if (first is None) != (second is None):
            raise ValueError(f"`wide` and `narrow` must have the same {noun}: one has none.")
        if first is not None and (differs := differing_field(first, second)):
            raise ValueError(f"`wide` and `narrow` must have the same {noun}: `{differs[0]}` differs.")
    sizes, sizes_ = (s.network.sizes(s.certificate.options["width"]) for s in (wide, narrow))
    if sizes != tuple(2 * n for n in sizes_):
        raise ValueError(f"`wide` must have twice the width of `narrow`, got layers of {sizes} and {sizes_} neurons.")
    options, options_ = wide.certificate.options, narrow.certificate.options
    for name in sorted((options.keys() | options_.keys()) - set(MAY_DIFFER)):
        if options.get(name) != options_.get(name):
            given = f"got {options.get(name)} and {options_.get(name)}"
            raise ValueError(f"`wide` and `narrow` must have the same `{name}`, {given}.")
    if wide.certificate.seed == narrow.certificate.seed:
        raise ValueError(f"`wide` and `narrow` must have different seeds, got {wide.certificate.seed} for both.")
