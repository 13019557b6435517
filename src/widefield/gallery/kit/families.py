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
    """How one question is answered, by theory and by networks.

    ``suffix`` ends the fields of the wrong theory, which is called ``wrong_theory``; seeds of families are counted from
    ``first_seed``; ``note`` says what the points are.
    """

    suffix: str
    wrong_theory: str
    first_seed: Any
    note: Any

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
    measured = []
    for family in families:
        blocks = []
        for i, (value, question) in enumerate(family.members.items()):
            job(f"{family.name}, {family.dim.replace('_', ' ')} {value:g}")
            fields = {}
            for suffix, part in experiment.parts(question, experiment.first_seed + family.seed + 2 * i).items():
                for field in map(str, part):  # standard errors of the wrong theory are kept apart from the right one's
                    plain = field.removesuffix("_stderr")
                    fields[f"{family.name}_{plain}{suffix}{field.removeprefix(plain)}"] = part[field]
            blocks.append(xr.Dataset(fields).expand_dims({family.dim: [float(value)]}))
        measured.append(xr.concat(blocks, family.dim, join="outer"))
    return padded(xr.merge(measured))


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

    A note says how much of the wrong theory, put in the place of the right one, the comparison rejects.
    """

    def all_pairs(data: xr.Dataset) -> Iterator[Pair]:
        yield from compared(data) if callable(compared) else pairs(data, compared, experiment)
        yield from more(data)

    end = f"_{experiment.suffix}"
    named = {str(name): field for name, field in data.data_vars.items()}
    wrong = data.assign({name.removesuffix(end): field for name, field in named.items() if name.endswith(end)})
    said = (experiment.note, f"{experiment.wrong_theory} is {rejections(all_pairs(wrong))}", *notes)
    return made(panels, data, p, all_pairs(data), size=size, notes=said, by_column=by_column)
