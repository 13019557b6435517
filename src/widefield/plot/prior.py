"""The prior: variance along the states, covariance between states, kernel matrices; of theory and simulation."""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from widefield.answer.solution import Solution
from widefield.plot.style import (
    MARKERS,
    N_CURVES,
    OTHER_MARKER,
    SERIES,
    Panel,
    curve,
    diagonal,
    matrix,
    mean,
    whole_ticks,
)

# field: symbol of the covariance between states a, b (first that is present is drawn) and of the matrix over samples
STATE_FIELDS = {"hidden": "C", "feature": r"\Phi", "readout": "R"}
KERNEL_FIELDS = {"output": "K", "ntk": r"\Theta"}


def pictures(solution: Solution) -> list[Panel]:
    """A theory is drawn as lines, a simulation as markers with tubes of the standard error over its replicates."""
    fields = {str(name): value for name, value in solution.data.data_vars.items()}
    panels: list[Panel] = []
    kernels = {name: symbol for name, symbol in KERNEL_FIELDS.items() if name in fields}
    name = next((n for n in STATE_FIELDS if n in fields), None)
    if name is not None:
        field, symbol = fields[name], STATE_FIELDS[name]
        if field.sizes["state"] > 1:
            marker = MARKERS.get(solution.network.kind, OTHER_MARKER)
            panels.append(partial(_variance, field=field, symbol=symbol, marker=marker))
            panels.append(partial(_cross_state, field=field, symbol=symbol))
        if not kernels and (field.sizes["sample"] > 1 or field.sizes["state"] < 2):
            kernels = {name: symbol}
    return panels + [partial(_kernel, field=fields[name], symbol=symbol) for name, symbol in kernels.items()]


def _variance(ax: Axes, field: xr.DataArray, symbol: str, marker: str) -> None:
    n_states, n_samples = field.sizes["state"], field.sizes["sample"]
    look: dict[str, Any] = {}
    if "replicate" in field.dims:
        look = {"marker": marker, "linestyle": "none", "markevery": -(-n_states // 16)}
    for k in range(min(n_samples, N_CURVES)):
        variance = diagonal(field.isel(sample=k, sample_=k), "state")
        label = rf"$\alpha={k}$" if n_samples > 1 else None
        curve(ax, np.arange(n_states), variance, color=SERIES[k], label=label, **look)
    low, high = ax.get_ylim()
    low = min(low, 0.0) if low < 0.6 * high else low
    ax.set_ylim(low, high + 0.4 * (high - low) * (n_samples > 1))  # room for the legend
    ax.set(xlabel="state $a$", ylabel=rf"variance ${symbol}^{{(a,a)}}_{{\alpha\alpha}}$", title="along the states")
    whole_ticks(ax, n_states, "x")
    if n_samples > 1:
        title = f"the first {N_CURVES} of {n_samples} samples" if n_samples > N_CURVES else None
        ax.legend(title=title, loc="upper center", ncols=N_CURVES, columnspacing=1, handlelength=1.2)


def _cross_state(ax: Axes, field: xr.DataArray, symbol: str) -> None:
    block = mean(field).isel(sample=0, sample_=0).transpose("state", "state_").values
    of_first = r", $\alpha=\beta=0$" if field.sizes["sample"] > 1 else ""
    matrix(ax, block, f"between states{of_first}", rf"${symbol}^{{(a,b)}}$", ("state $b$", "state $a$"))


def _kernel(ax: Axes, field: xr.DataArray, symbol: str) -> None:
    at_last = {dim: -1 for dim in ("state", "state_", "readout", "readout_") if dim in field.dims}
    block = mean(field).isel(at_last).transpose("sample", "sample_").values
    last = r"^{(\mathrm{last})}" if at_last else ""
    axes_names = (r"sample $\beta$", r"sample $\alpha$")
    matrix(ax, block, f"kernel ({field.name})", rf"${symbol}{last}_{{\alpha\beta}}$", axes_names)
