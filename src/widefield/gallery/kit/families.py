"""Families of questions over one parameter: the theory, finite networks, and a nearby wrong theory that must be rejected."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Generic, TypeVar

import numpy as np
import xarray as xr

from widefield.compare import Pair, judge_all
from widefield.gallery.kit.entry import Job, Panels, made
from widefield.gallery.record import Made

Question = TypeVar("Question")


class Experiment(ABC, Generic[Question]):
    """How one question is answered, by theory and by networks."""

    suffix: str  # of the fields of the wrong theory
    wrong_theory: str  # in words

    @property
    @abstractmethod
    def first_seed(self) -> int:
        """Seeds of families are counted from here."""

    @property
    @abstractmethod
    def note(self) -> str:
        """What the points are."""

    @abstractmethod
    def theory(self, question: Question) -> xr.Dataset:
        """Fields at infinite size."""

    @abstractmethod
    def sampled(self, question: Question, seed: int) -> xr.Dataset:
        """The same of networks, with a ``replicate`` dim; takes ``seed`` and the next."""

    @abstractmethod
    def wrong(self, question: Question) -> Question:
        """A question near by, whose theory the networks must reject."""

    @abstractmethod
    def compared(self, field: str, parts: list[xr.DataArray]) -> tuple[str, list[xr.DataArray]]:
        """What a row is called, and the entries of theory, networks (and standard error) that it compares."""

    def parts(self, question: Question, seed: int) -> dict[str, xr.Dataset]:
        """Theory, wrong theory and networks by the suffix of their fields."""
        theories = {"": self.theory(question), f"_{self.suffix}": self.theory(self.wrong(question))}
        return theories | {"_sampled": self.sampled(question, seed)}


@dataclass(frozen=True)
class Family(Generic[Question]):
    """``members`` by their value of ``dim``; fields are called ``<name>_<field>``, rows ``<field> <label>``.

    The i-th member's networks have the seeds ``seed`` + 2i and the next, counted from the experiment's first.
    """

    name: str
    dim: str
    label: str
    fields: tuple[str, ...]
    members: Mapping[Any, Question]
    seed: int = 0


def measure(families: Iterable[Family], experiment: Experiment, job: Job) -> xr.Dataset:
    """All fields of all ``families``; members of different depth are padded with NaN along ``layer``."""
    return padded(xr.merge([_measured(family, experiment, job) for family in families]))


def _measured(family: Family, experiment: Experiment, job: Job) -> xr.Dataset:
    blocks = []
    for i, (value, question) in enumerate(family.members.items()):
        job(f"{family.name}, {family.dim.replace('_', ' ')} {value:g}")
        parts = experiment.parts(question, experiment.first_seed + family.seed + 2 * i)
        named = {
            _named(family.name, str(field), suffix): part[field] for suffix, part in parts.items() for field in part
        }
        blocks.append(xr.Dataset(named).expand_dims({family.dim: [float(value)]}))
    return xr.concat(blocks, family.dim, join="outer")


def _named(name: str, field: str, suffix: str) -> str:
    """The standard errors of the wrong theory are kept apart from those of the right one."""
    plain = field.removesuffix("_stderr")
    return f"{name}_{plain}{suffix}{field.removeprefix(plain)}"


def padded(data: xr.Dataset) -> xr.Dataset:
    """``data`` whose fields say so where they have no layer."""
    for field in data.data_vars.values():
        if "layer" in field.dims and bool(np.isnan(field).any()):
            field.attrs["nan"] = "no such layer"
    return data


def pairs(data: xr.Dataset, families: Iterable[Family], experiment: Experiment) -> Iterator[Pair]:
    """One pair per member and field of every family."""
    for family in families:
        for field, value in product(family.fields, family.members):
            names = [f"{family.name}_{field}{suffix}" for suffix in ("", "_sampled", "_stderr")]
            parts = [data[name].sel({family.dim: value}) for name in names if name in data]
            words, parts = experiment.compared(field, parts)
            yield Pair(f"{words} {family.label.format(f'{value:g}')}", parts[0], parts[1], parts[2:])


def with_wrong_theory(data: xr.Dataset, suffix: str) -> xr.Dataset:
    """``data`` with the fields of the wrong theory in the place of the right ones."""
    end = f"_{suffix}"
    named = {str(name): data[name] for name in data.data_vars}
    return data.assign({name.removesuffix(end): field for name, field in named.items() if name.endswith(end)})


def rejections(pairs: Iterable[Pair]) -> str:
    """In how many rows a theory is rejected."""
    rows = judge_all(pairs).rows
    return f"rejected in {sum(row.agrees is False for row in rows)} of {len(rows)} rows"


def tested(
    panels: Panels,
    data: xr.Dataset,
    p: Any,
    experiment: Experiment,
    compared: Sequence[Family] | Callable[[xr.Dataset], Iterable[Pair]],
    *,
    size: tuple[float, float],
    notes: Iterable[str] = (),
    more: Callable[[xr.Dataset], Iterable[Pair]] = lambda data: (),
    by_column: bool = False,
) -> Made:
    """The entry, judged by the pairs of families (or of a function of the data) and ``more``.

    A note says how much of the wrong theory the comparison rejects.
    """

    def all_pairs(data: xr.Dataset) -> Iterator[Pair]:
        yield from compared(data) if callable(compared) else pairs(data, compared, experiment)
        yield from more(data)

    rejected = rejections(all_pairs(with_wrong_theory(data, experiment.suffix)))
    said = (experiment.note, f"{experiment.wrong_theory} is {rejected}", *notes)
    return made(panels, data, p, all_pairs(data), size=size, notes=said, by_column=by_column)
