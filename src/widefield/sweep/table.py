"""All points as one answer: fields over the grid, padded where they are of different size."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from widefield.answer.boundary import COPIES, require_memory
from widefield.answer.certificate import Check, Status
from widefield.sweep.grid import Axis
from widefield.sweep.point import Point

SHOWN = 5  # failed points in the notes
MEASURED = ("residual", "error")  # of every certificate
Variable = tuple[tuple[str, ...], np.ndarray]


class Table:
    """Points of a grid as they come, and the arrays over the grid that are made of them."""

    def __init__(self, axes: Sequence[Axis]):
        self.axes = axes
        self.shape = tuple(len(axis.values) for axis in axes)
        self.points: dict[int, Point] = {}
        self.fields: dict[int, dict[str, Variable]] = {}
        self.coords: dict[int, dict[str, Variable]] = {}
        self.question: dict[str, Any] = {}  # of the first point that has an answer
        self.n_failed = 0
        self.left_out: tuple[str, ...] = ()  # fields that have other dims at other points

    def add(self, index: int, point: Point) -> None:
        """Take a point; of its answer the arrays alone are kept."""
        self.points[index] = Point(point.status, point.message)
        self.n_failed += point.failed
        if point.solution is None:
            return
        if all(index < other for other in self.fields):
            self.question = point.solution.question
        if not self.fields:
            need = COPIES * int(np.prod(self.shape)) * point.solution.data.nbytes
            require_memory(need, "The fields of all points", "Ask for fewer `quantities` or points of `over`.")
        measured = {name: c.value for name in MEASURED if (c := point.checks.get(name))}
        fields = _variables(point.solution.data.data_vars)
        self.fields[index] = fields | {n: ((), np.asarray(v)) for n, v in measured.items() if n not in fields}
        self.coords[index] = _variables(point.solution.data.coords)

    def failed(self) -> Iterator[tuple[str, Point]]:
        """Points without success, and where they are."""
        for index, point in sorted(self.points.items()):
            if point.failed:
                at = np.unravel_index(index, self.shape)
                yield ", ".join(f"{axis.key}={axis.labels[i]}" for axis, i in zip(self.axes, at)), point

    def notes(self) -> tuple[str, ...]:
        """How many points failed, the first of them, and fields that some points do not have."""
        counts = {name: len(parts) for name, parts in _by_name(self.fields).items()}
        apart = [f"{name} is a field of {n} points alone" for name, n in counts.items() if n < len(self.fields)]
        failed = list(self.failed())
        if not failed:
            return tuple(apart)
        head = f"{len(failed)} of {len(self.points)} points failed; `status` and `message` say why"
        rest = [f"and {len(failed) - SHOWN} more"] * (len(failed) > SHOWN)
        return head, *(f"at {where}: {point.status}, {point.message}" for where, point in failed[:SHOWN]), *rest, *apart

    def arrays(self) -> tuple[dict[str, Variable], dict[str, Variable]]:
        """Fields and coordinates over the grid, the swept dims first."""
        taken = {
            word
            for part in (*self.fields.values(), *self.coords.values())
            for n, v in part.items()
            for word in (n, *v[0])
        }
        dims = _dims_of(self.axes, taken)
        by_name = _by_name(self.fields)
        fields = {name: self._over_grid(dims, parts) for name, parts in by_name.items() if _alike(parts)}
        self.left_out = tuple(name for name in by_name if name not in fields)
        coords: dict[str, Variable] = {dim: ((dim,), axis.labels) for dim, axis in zip(dims, self.axes)}
        for name, parts in _by_name(self.coords).items():
            own, longest = max(parts.values(), key=lambda part: part[1].size)
            if _alike(parts) and all(np.array_equal(longest[tuple(map(slice, v.shape))], v) for _, v in parts.values()):
                coords[name] = own, longest
            elif _alike(parts):  # an index that is another at every point cannot be called like its dim
                coords[f"{name}_values" if own == (name,) else name] = self._over_grid(dims, parts)
        for name in ("status", "message"):
            words = np.array([getattr(self.points[i], name) for i in range(len(self.points))])
            fields[name] = dims, words.reshape(self.shape)
        return fields, coords

    def _over_grid(self, dims: tuple[str, ...], parts: Mapping[int, Variable]) -> Variable:
        """One variable of all points, filled up behind its end; the points agree on its dims."""
        (own,) = {part[0] for part in parts.values()}
        values = [part[1] for part in parts.values()]
        sizes = tuple(max(value.shape[k] for value in values) for k in range(len(own)))
        whole = len(parts) == len(self.points) and all(value.shape == sizes for value in values)
        kind = np.result_type(*(value.dtype for value in values))
        if not whole and kind.kind in "iub":
            kind = np.dtype(float)
        empty: Any = "" if kind.kind == "U" else 0 if whole else np.nan
        array = np.full((len(self.points), *sizes), empty, dtype=kind)
        for index, value in zip(parts, values):
            array[index, ...][tuple(map(slice, value.shape))] = value
        return (*dims, *own), array.reshape(*self.shape, *sizes)

    def checks(self) -> dict[str, Check]:
        """How many points failed."""
        return {"failed": Check(self.n_failed, 0, Status.incomplete)}


def _dims_of(axes: Sequence[Axis], taken: set[str]) -> tuple[str, ...]:
    """Names of the swept dims: the last word of each key, the whole of it where something else is called so."""
    short = [axis.key.rpartition(".")[2] for axis in axes]
    names = []
    for axis, word in zip(axes, short):
        choices = [word] * (short.count(word) == 1) + [axis.key.replace(".", "_")]
        names.append(next((name for name in choices if name not in taken), f"swept_{choices[-1]}"))
    return tuple(names)


def _variables(arrays: Mapping[Any, xr.DataArray]) -> dict[str, Variable]:
    """Dims and values by name; words that come from a file as objects are words."""
    plain = lambda values: values.astype(str) if values.dtype.kind == "O" else values  # noqa: E731
    return {str(name): (tuple(map(str, array.dims)), plain(array.values)) for name, array in arrays.items()}


def _alike(parts: Mapping[int, Variable]) -> bool:
    """Whether a variable has the same dims at all points."""
    return len({dims for dims, _ in parts.values()}) == 1


def _by_name(points: Mapping[int, Mapping[str, Variable]]) -> dict[str, dict[int, Variable]]:
    """Variables of all points by their name."""
    in_order = sorted(points.items())
    names = dict.fromkeys(name for _, part in in_order for name in part)
    return {name: {index: part[name] for index, part in in_order if name in part} for name in names}
