"""Training runs: losses, outputs, size of the features, their alignment, and the tangent kernel at the end."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from widefield.plot.style import COLORS, SERIES, Panel, matrix, mean, stderr

if TYPE_CHECKING:
    import xarray as xr

    from widefield.answer.solution import Solution

LOSSES = {"loss": "train", "test_loss": "test"}
N_CURVES = 3


def pictures(solution: "Solution") -> list[Panel]:
    """Losses, outputs and labels, features of every layer and their alignment, final tangent kernel: those there are."""
    fields = solution.data.data_vars
    panels: list[Panel] = []
    losses = {label: fields[name] for name, label in LOSSES.items() if name in fields}
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


def _line(ax: Axes, x: Any, field: "xr.DataArray", color: str, label: str | None) -> None:
    """A curve, or the mean of networks with a tube of its standard error; infinite entries are left out."""
    values = field.transpose("replicate", ...).values if "replicate" in field.dims else field.values[None]
    middle = np.where(np.isfinite(values).all(axis=0), values.mean(axis=0), np.nan)
    ax.plot(x, middle, color=color, label=label)
    if len(values) > 1 and np.isfinite(values).all():
        error = stderr(values)
        ax.fill_between(x, middle - error, middle + error, color=color, alpha=0.25, linewidth=0)


def _losses(ax: Axes, fields: dict[str, "xr.DataArray"]) -> None:
    for (label, field), color in zip(fields.items(), SERIES, strict=False):
        _line(ax, np.arange(field.sizes["step"]), field, color, label)
    ax.set(xlabel="step", ylabel="loss", title="loss", ylim=(0, None))
    ax.legend(loc="best")


def _predictions(ax: Axes, solution: "Solution") -> None:
    """The first samples at the last state that is read out, labels as crosses at the end."""
    field, task = solution.prediction.isel(output=0), solution.task
    states = task.supervised_states(solution.network.depth) if task is not None else (-1,)
    if "state" in field.dims:
        field = field.isel(state=max(states))
    last = field.sizes["step"] - 1
    for k in range(min(N_CURVES, field.sizes["sample"])):
        _line(ax, np.arange(last + 1), field.isel(sample=k), SERIES[k], None)
        if task is not None and task.y is not None:
            label = "label" if k == 0 else None
            ax.plot(
                last,
                task.labels()[k, int(np.argmax(states)), 0],
                "x",
                color=SERIES[k],
                markersize=7,
                label=label,
                clip_on=False,
            )
    ax.axhline(0, color=COLORS["theory"], linewidth=0.5)
    shown = "" if field.sizes["sample"] <= N_CURVES else f" (first {N_CURVES} samples)"
    ax.set(xlabel="step", ylabel="output", title=f"prediction{shown}")
    ax.legend(loc="best")


def _features(ax: Axes, field: "xr.DataArray") -> None:
    """Mean over samples of Φ(t,t), one line per layer or state."""
    time = "at" if "at" in field.dims else "step"
    for dim in (time, "sample", *(["state"] if "state" in field.dims else [])):
        field = _equal(field, dim)
    layers = "state" if "state" in field.dims else "layer"
    size = field.mean("sample")
    x = field[time].values if time in field.coords else np.arange(field.sizes[time])
    for i in range(field.sizes[layers]):
        label = str(i if layers == "state" else i + 1)
        _line(
            ax,
            x,
            size.isel({layers: i}),
            SERIES[i % len(SERIES)],
            label if field.sizes[layers] <= len(SERIES) else None,
        )
    ax.set(xlabel="step", ylabel=r"$\mathrm{tr}\,\Phi(t,t)/P$", title="features")
    if field.sizes[layers] <= len(SERIES):
        ax.legend(loc="best", title=layers, fontsize=7)


def _alignment(ax: Axes, field: "xr.DataArray", ntk: "xr.DataArray | None") -> None:
    """Cosines with the kernel of the labels, one line per layer or state, and of the tangent kernel."""
    layers = "state" if "state" in field.dims else "layer"
    x = np.arange(field.sizes["step"])
    named = field.sizes[layers] <= len(SERIES)
    for i in range(field.sizes[layers]):
        label = str(i if layers == "state" else i + 1) if named else None
        _line(ax, x, field.isel({layers: i}), SERIES[i % len(SERIES)], label)
    if ntk is not None:
        _line(ax, x, ntk, COLORS["theory"], "NTK")
    ax.set(
        xlabel="step", ylabel=r"cosine of $\Phi(t,t)$ with $yy^T$", title="alignment with the labels", ylim=(None, 1.05)
    )
    ax.legend(loc="best", title=layers if named else None, fontsize=7)


def _equal(field: "xr.DataArray", dim: str) -> "xr.DataArray":
    """Entries where ``dim`` and its second copy are equal."""
    import xarray as xr

    same = xr.DataArray(np.arange(field.sizes[dim]), dims=dim)
    return field.isel({f"{dim}_": same}).drop_vars(f"{dim}_", errors="ignore")


def _ntk(ax: Axes, field: "xr.DataArray") -> None:
    """At the last step, of the last readout and the first output."""
    for dim, i in (("readout", -1), ("readout_", -1), ("output", 0), ("output_", 0)):
        if dim in field.dims:
            field = field.isel({dim: i})
    values = mean(field).isel(step=-1).values
    values = np.where(np.isfinite(values), values, np.nan)
    matrix(ax, values, "tangent kernel at the end", r"$K_{\mu\nu}$", ("sample", "sample"))
