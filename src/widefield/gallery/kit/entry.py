"""From measured data to an entry: cases over parameters, panels on a sheet, pairs that are judged.

In every entry ``p`` are its parameters, and a panel is a function of the axes, the data and ``p``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from string import ascii_lowercase
from typing import Any

import matplotlib
import numpy as np
import xarray as xr

from widefield.compare import HEADER, Pair, Row, cells, judge_all
from widefield.gallery.record import Made
from widefield.plot.style import Figure, Share, house_style, letter, panels

Job = Callable[[str], None]  # to be called with a few words before every job
Panel = Callable[..., None]  # draws on the axes, given data and parameters
Panels = Sequence[Sequence[Panel]]  # rows
Pairs = Iterator[Pair]  # the rows of the table
SMALL_PRINT: dict[Any, Any] = {"legend.fontsize": 7}


def over(dims: Mapping[str, Collection[Any]], one: Callable[..., xr.Dataset], job: Job) -> xr.Dataset:
    """``one(i, *values)`` for the i-th combination of values of ``dims``, as one dataset with these in front."""
    blocks: list[xr.Dataset] = []
    for i, case in enumerate(product(*dims.values())):
        job(", ".join(f"{dim} {value}" for dim, value in zip(dims, case)))
        blocks.append(one(i, *case).expand_dims({dim: [value] for dim, value in zip(dims, case)}))
    for dim, values in reversed([*dims.items()]):
        n = len(values)
        blocks = [xr.concat(blocks[k : k + n], dim, join="outer") for k in range(0, len(blocks), n)]
    return blocks[0]


def cases(data: xr.Dataset, *dims: str) -> Iterator[tuple[Any, ...]]:
    """The values of ``dims`` and, last, the data there, for all of their combinations."""
    for values in product(*(data[dim].values for dim in dims)):
        yield *values, data.sel(dict(zip(dims, values)))


def marks(n_steps: int, count: int) -> np.ndarray:
    """Some steps of a training, closer at the start where most happens, the first and the last one among them."""
    return np.unique(np.round(n_steps * np.linspace(0, 1, count) ** 1.5)).astype(int)


def extrapolated(networks: Callable[[int, int], xr.Dataset], size: int, seed: int, shrink: int = 2) -> xr.Dataset:
    """``networks(size, seed)`` and smaller ones of the next seed, combined so that 1/size cancels."""
    large, small = networks(size, seed), networks(size // shrink, seed + 1)
    return (shrink * large - small) / (shrink - 1)


def sheet(
    rows: Panels,
    data: xr.Dataset,
    p: Any,
    *,
    size: tuple[float, float],
    caption: str = "",
    share: Share = "none",
    by_column: bool = False,
) -> Figure:
    """A figure with one lettered axes for each panel; ``by_column`` the letters run down the columns."""
    with house_style(), matplotlib.rc_context(SMALL_PRINT):
        figure, axes = panels(len(rows), len(rows[0]), size=size, share=share)
        for ax, name in zip(axes.T.flat if by_column else axes.flat, ascii_lowercase):
            letter(ax, name)
        for ax, panel in zip(axes.flat, chain(*rows), strict=True):
            panel(ax, data, p)
        if caption:
            figure.supxlabel(caption, fontsize=8)
    return figure


def made(
    rows: Panels,
    data: xr.Dataset,
    p: Any,
    compared: Iterable[Pair | Row],
    *,
    size: tuple[float, float],
    notes: Iterable[str] = (),
    numbers: Iterable[dict[str, Any]] = (),
    caption: str = "",
    share: Share = "none",
    by_column: bool = False,
) -> Made:
    """The entry with its table: pairs, judged together, and rows that are judged already.

    Further ``numbers`` go to the JSON file alone.
    """
    compared = tuple(compared)
    verdicts = iter(judge_all(pair for pair in compared if isinstance(pair, Pair)))
    judged = [row if isinstance(row, Row) else next(verdicts) for row in compared]
    known = [row.agrees for row in judged if row.agrees is not None]
    figure = sheet(rows, data, p, size=size, caption=caption, share=share, by_column=by_column)
    table = [HEADER, *map(cells, judged)]
    agrees = all(known) if known else None
    return Made(figure, data, p, [*(row.to_dict() for row in judged), *numbers], table, agrees, tuple(notes))
