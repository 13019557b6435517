"""The prior: variance along the states, covariance between states, kernel matrices; of theory and simulation."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from widefield.plot.style import MARKERS, OTHER_MARKER, SERIES, Panel, matrix, mean, stderr, whole_ticks

if TYPE_CHECKING:
    import xarray as xr

    from widefield.answer.solution import Solution

N_CURVES = 3
# field: symbol of the covariance between states a, b (first that is present is drawn) and of the matrix over samples
STATE_FIELDS = {"hidden": "C", "feature": r"\Phi", "readout": "R"}
KERNEL_FIELDS = {"output": "K", "ntk": r"\Theta"}


def pictures(solution: "Solution") -> list[Panel]:
    """A theory is drawn as lines, a simulation as markers with tubes of the standard error over its replicates."""
    fields = {str(name): value for name, value in solution.data.data_vars.items()}
    return _state_panels(fields, MARKERS.get(solution.network.kind, OTHER_MARKER)) + _kernel_panels(fields)


def _state_panels(fields: dict[str, "xr.DataArray"], marker: str) -> list[Panel]:
    name = next((n for n in STATE_FIELDS if n in fields), None)
    if name is None or fields[name].sizes["state"] < 2:
        return []
    field, symbol = fields[name], STATE_FIELDS[name]
    variance = partial(_variance, field=field, symbol=symbol, marker=marker)
    return [variance, partial(_cross_state, field=field, symbol=symbol)]


def _kernel_panels(fields: dict[str, "xr.DataArray"]) -> list[Panel]:
    chosen = {name: symbol for name, symbol in KERNEL_FIELDS.items() if name in fields}
    name = next((n for n in STATE_FIELDS if n in fields), None)
    if not chosen and name is not None and (fields[name].sizes["sample"] > 1 or fields[name].sizes["state"] < 2):
        chosen = {name: STATE_FIELDS[name]}
    return [partial(_kernel, field=fields[name], symbol=symbol) for name, symbol in chosen.items()]


def _variance(ax: Axes, field: "xr.DataArray", symbol: str, marker: str) -> None:
    n_states, n_samples = field.sizes["state"], field.sizes["sample"]
    states, every = np.arange(n_states), -(-n_states // 16)
    for k in range(min(n_samples, N_CURVES)):
        # over states, diagonal in both: C^{aa} of one sample
        curve = np.diagonal(_ordered(field.isel(sample=k, sample_=k)), axis1=-2, axis2=-1)
        color, label = SERIES[k], rf"$\alpha={k}$" if n_samples > 1 else None
        if "replicate" in field.dims:
            middle, error = curve.mean(axis=0), stderr(curve)
            ax.plot(states, middle, marker=marker, linestyle="none", markevery=every, color=color, label=label)
            ax.fill_between(states, middle - error, middle + error, color=color, alpha=0.25, linewidth=0)
        else:
            ax.plot(states, curve, color=color, label=label)
    low, high = ax.get_ylim()
    low = min(low, 0.0) if low < 0.6 * high else low
    ax.set_ylim(low, high + 0.4 * (high - low) * (n_samples > 1))  # room for the legend
    ax.set(xlabel="state $a$", ylabel=rf"variance ${symbol}^{{(a,a)}}_{{\alpha\alpha}}$", title="along the states")
    whole_ticks(ax, n_states, "x")
    if n_samples > 1:
        title = f"the first {N_CURVES} of {n_samples} samples" if n_samples > N_CURVES else None
        ax.legend(title=title, loc="upper center", ncols=N_CURVES, columnspacing=1, handlelength=1.2)


def _cross_state(ax: Axes, field: "xr.DataArray", symbol: str) -> None:
    block = _ordered(mean(field).isel(sample=0, sample_=0))
    of_first = r", $\alpha=\beta=0$" if field.sizes["sample"] > 1 else ""
    matrix(ax, block, f"between states{of_first}", rf"${symbol}^{{(a,b)}}$", ("state $b$", "state $a$"))


def _kernel(ax: Axes, field: "xr.DataArray", symbol: str) -> None:
    at_last = {dim: -1 for dim in ("state", "state_", "readout", "readout_") if dim in field.dims}
    block = mean(field).isel(at_last).transpose("sample", "sample_").values
    last = r"^{(\mathrm{last})}" if at_last else ""
    axes_names = (r"sample $\beta$", r"sample $\alpha$")
    matrix(ax, block, f"kernel ({field.name})", rf"${symbol}{last}_{{\alpha\beta}}$", axes_names)


def _ordered(field: "xr.DataArray") -> np.ndarray:
    leading = ("replicate",) if "replicate" in field.dims else ()
    return field.transpose(*leading, "state", "state_").values
