"""Training runs: losses, outputs, size of the features, their alignment, and the tangent kernel at the end."""

from functools import partial

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from widefield.answer.solution import Solution
from widefield.plot.style import COLORS, SERIES, Panel, curve, diagonal, matrix, mean, numbered, predictions


def pictures(solution: Solution) -> list[Panel]:
    """Losses, outputs and labels, features of every layer and their alignment, final tangent kernel: those there are."""
    fields = solution.data.data_vars
    panels: list[Panel] = []
    losses = {label: fields[name] for name, label in (("loss", "train"), ("test_loss", "test")) if name in fields}
    if losses:
        panels.append(partial(_losses, fields=losses))
    if "prediction" in fields:
        panels.append(partial(_predictions, solution=solution))
    if "feature_kernel" in fields:
        panels.append(partial(_features, field=fields["feature_kernel"]))
    if "alignment" in fields:
        panels.append(partial(_alignment, field=fields["alignment"], ntk=fields.get("ntk_alignment")))
    if "ntk" in fields:
        panels.append(partial(_ntk, field=fields["ntk"]))
    return panels


def _losses(ax: Axes, fields: dict[str, xr.DataArray]) -> None:
    for (label, field), color in zip(fields.items(), SERIES, strict=False):
        curve(ax, np.arange(field.sizes["step"]), field, color=color, label=label)
    ax.set(xlabel="step", ylabel="loss", title="loss", ylim=(0, None))
    ax.legend(loc="best")


def _predictions(ax: Axes, solution: Solution) -> None:
    """At the last state that is read out, labels at the end."""
    field, task, labels = solution.prediction.isel(output=0), solution.task, None
    states = task.supervised_states(solution.network.depth) if task is not None else (-1,)
    if "state" in field.dims:
        field = field.isel(state=max(states))
    if task is not None and task.y is not None:
        labels = task.labels()[:, int(np.argmax(states)), 0]
    steps = np.arange(field.sizes["step"])
    predictions(ax, steps, field, labels, steps[-1], "step")


def _features(ax: Axes, field: xr.DataArray) -> None:
    """Mean over samples of Φ(t,t), one line per layer or state."""
    time, layers = "at" if "at" in field.dims else "step", "state" if "state" in field.dims else "layer"
    for dim in (time, "sample", *(["state"] if layers == "state" else [])):
        field = diagonal(field, dim)
    x = field[time].values if time in field.coords else np.arange(field.sizes[time])
    for size, color, label in numbered(field.mean("sample")):
        curve(ax, x, size, color=color, label=label)
    ax.set(xlabel="step", ylabel=r"$\mathrm{tr}\,\Phi(t,t)/P$", title="features")
    if label is not None:
        ax.legend(loc="best", title=layers, fontsize=7)


def _alignment(ax: Axes, field: xr.DataArray, ntk: xr.DataArray | None) -> None:
    """Cosines with the kernel of the labels, one line per layer or state, and of the tangent kernel."""
    x = np.arange(field.sizes["step"])
    for cosine, color, label in numbered(field):
        curve(ax, x, cosine, color=color, label=label)
    if ntk is not None:
        curve(ax, x, ntk, color=COLORS["theory"], label="NTK")
    symbol = r"cosine of $\Phi(t,t)$ with $yy^T$"
    ax.set(xlabel="step", ylabel=symbol, title="alignment with the labels", ylim=(None, 1.05))
    layers = "state" if "state" in field.dims else "layer"
    ax.legend(loc="best", title=layers if label is not None else None, fontsize=7)


def _ntk(ax: Axes, field: xr.DataArray) -> None:
    """At the last step, of the last readout and the first output."""
    where = {"readout": -1, "readout_": -1, "output": 0, "output_": 0, "step": -1}
    values = mean(field).isel({dim: i for dim, i in where.items() if dim in field.dims}).values
    matrix(ax, values, "tangent kernel at the end", r"$K_{\mu\nu}$", ("sample", "sample"))
