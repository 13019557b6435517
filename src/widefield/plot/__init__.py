"""Pictures of solutions. Imported only when something is drawn, so that matplotlib stays out of `import widefield`."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from widefield.plot.style import KERNEL_MAP, MARKERS, SERIES, Figure, house_style, panels, save, stderr

if TYPE_CHECKING:
    import xarray as xr

    from widefield.solution import Solution

N_CURVES = 3
N_ANNOTATED = 4
N_TICKED = 6
N_WHOLE_TICKS = 12
# field: symbol of the covariance between states a, b (first that is present is drawn) and of the matrix over samples
STATE_FIELDS = {"hidden": "C", "feature": r"\Phi", "readout": "R"}
KERNEL_FIELDS = {"output": "K", "ntk": r"\Theta"}


def solution(solution: "Solution", path: str | os.PathLike | None = None) -> Figure:
    """Draw the variance along states, the covariance between states and the kernel matrices of a prior.

    A theory is drawn as lines, a simulation as markers with tubes of the standard error over its replicates. Returns
    the matplotlib figure; with ``path`` it is also written.
    """
    fields = {str(name): value for name, value in solution.data.data_vars.items()}
    draw = _state_panels(fields) + _kernel_panels(fields)
    if not draw:
        raise ValueError(
            f"There is no picture for a solution with only {', '.join(fields)}; "
            f"it needs one of {', '.join([*STATE_FIELDS, *KERNEL_FIELDS])}."
        )
    with house_style():
        figure, axes = panels(1, len(draw), size=(3.3, 3.0))
        for ax, (function, *arguments) in zip(axes[0], draw, strict=True):
            function(ax, solution, *arguments)
        figure.suptitle(_title(solution), fontsize=10)
    if path is not None:
        save(figure, path)
    return figure


def _state_panels(fields: dict[str, "xr.DataArray"]) -> list[tuple[Any, ...]]:
    name = next((n for n in STATE_FIELDS if n in fields), None)
    if name is None or fields[name].sizes["state"] < 2:
        return []
    return [(_variance, fields[name], STATE_FIELDS[name]), (_cross_state, fields[name], STATE_FIELDS[name])]


def _kernel_panels(fields: dict[str, "xr.DataArray"]) -> list[tuple[Any, ...]]:
    chosen = [(_kernel, fields[name], symbol) for name, symbol in KERNEL_FIELDS.items() if name in fields]
    name = next((n for n in STATE_FIELDS if n in fields), None)
    if not chosen and name is not None and (fields[name].sizes["sample"] > 1 or fields[name].sizes["state"] < 2):
        chosen = [(_kernel, fields[name], STATE_FIELDS[name])]
    return chosen


def _variance(ax: Axes, solution: "Solution", field: "xr.DataArray", symbol: str) -> None:
    n_states, n_samples = field.sizes["state"], field.sizes["sample"]
    states, every = np.arange(n_states), -(-n_states // 16)
    for k in range(min(n_samples, N_CURVES)):
        # over states, diagonal in both: C^{aa} of one sample
        curve = np.diagonal(_ordered(field.isel(sample=k, sample_=k)), axis1=-2, axis2=-1)
        color, label = SERIES[k], rf"$\alpha={k}$" if n_samples > 1 else None
        if "replicate" in field.dims:
            mean, error = curve.mean(axis=0), stderr(curve)
            marker = MARKERS[solution.network.kind]
            ax.plot(states, mean, marker=marker, linestyle="none", markevery=every, color=color, label=label)
            ax.fill_between(states, mean - error, mean + error, color=color, alpha=0.25, linewidth=0)
        else:
            ax.plot(states, curve, color=color, label=label)
    low, high = ax.get_ylim()
    low = min(low, 0.0) if low < 0.6 * high else low
    ax.set_ylim(low, high + 0.4 * (high - low) * (n_samples > 1))  # room for the legend
    ax.set(xlabel="state $a$", ylabel=rf"variance ${symbol}^{{(a,a)}}_{{\alpha\alpha}}$", title="along the states")
    _whole_ticks(ax, n_states, "x")
    if n_samples > 1:
        title = f"the first {N_CURVES} of {n_samples} samples" if n_samples > N_CURVES else None
        ax.legend(title=title, loc="upper center", ncols=N_CURVES, columnspacing=1, handlelength=1.2)


def _cross_state(ax: Axes, solution: "Solution", field: "xr.DataArray", symbol: str) -> None:
    block = _ordered(_mean(field).isel(sample=0, sample_=0))
    _matrix(ax, block, f"between states{_of_first(field)}", rf"${symbol}^{{(a,b)}}$", ("state $b$", "state $a$"))


def _kernel(ax: Axes, solution: "Solution", field: "xr.DataArray", symbol: str) -> None:
    at_last = {dim: -1 for dim in ("state", "state_", "readout", "readout_") if dim in field.dims}
    block = _mean(field).isel(at_last).transpose("sample", "sample_").values
    last = r"^{(\mathrm{last})}" if at_last else ""
    axes_names = (r"sample $\beta$", r"sample $\alpha$")
    _matrix(ax, block, f"kernel ({field.name})", rf"${symbol}{last}_{{\alpha\beta}}$", axes_names)


def _matrix(ax: Axes, values: np.ndarray, title: str, symbol: str, names: tuple[str, str]) -> None:
    image = ax.imshow(values, cmap=KERNEL_MAP, interpolation="nearest", aspect="equal")
    ax.set(xlabel=names[0], ylabel=names[1], title=title)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    for which, n in zip("xy", values.shape[::-1], strict=True):
        _whole_ticks(ax, n, which)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label=symbol)
    if max(values.shape) <= N_ANNOTATED:
        middle = (values.min() + values.max()) / 2
        for (i, j), value in np.ndenumerate(values):
            color = "black" if value > middle else "white"
            ax.text(j, i, f"{value:.3g}", ha="center", va="center", fontsize=7, color=color)


def _whole_ticks(ax: Axes, n: int, which: str) -> None:
    """States and samples are counted: no ticks between whole numbers."""
    if n <= N_WHOLE_TICKS:
        (ax.set_xticks if which == "x" else ax.set_yticks)(range(0, n, 1 if n <= N_TICKED else 2))


def _ordered(field: "xr.DataArray") -> np.ndarray:
    leading = ("replicate",) if "replicate" in field.dims else ()
    return field.transpose(*leading, "state", "state_").values


def _mean(field: "xr.DataArray") -> "xr.DataArray":
    return field.mean("replicate", keep_attrs=True) if "replicate" in field.dims else field


def _of_first(field: "xr.DataArray") -> str:
    return r", $\alpha=\beta=0$" if field.sizes["sample"] > 1 else ""


def _title(solution: "Solution") -> str:
    network = solution.network
    states = f"{network.depth} state{'s' * (network.depth > 1)}"
    return f"{solution.certificate.theory}: {network.kind}, {states}, {network.activation}"
