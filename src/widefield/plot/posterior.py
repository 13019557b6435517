"""The posterior: correlations between all nodes, predictions along the states, transitions and landscapes."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from widefield.plot.generic import scalars
from widefield.plot.style import COLORS, SERIES, Panel, matrix, mean, stderr, whole_ticks

if TYPE_CHECKING:
    import xarray as xr

    from widefield.answer.solution import Solution

N_CURVES = 3


def pictures(solution: "Solution") -> list[Panel]:
    """Kernel as correlations, predictions against the state with the labels as crosses, numbers as text."""
    fields = solution.data.data_vars
    panels: list[Panel] = []
    name = next((n for n in ("feature", "hidden") if n in fields), None)
    if name is not None:
        panels.append(partial(_correlations, field=fields[name]))
    if "prediction" in fields:
        panels.append(partial(_predictions, solution=solution))
    return panels + scalars(solution)


def transition(solution: "Solution") -> list[Panel]:
    """Order parameter and free energy of both branches."""
    return [partial(_order, solution=solution), partial(_free_energies, solution=solution)]


def landscape(solution: "Solution") -> list[Panel]:
    """Free energy over the correlation."""
    return [partial(_landscape, solution=solution)]


def _correlations(ax: Axes, field: "xr.DataArray") -> None:
    blocks = mean(field).transpose("state", "sample", "state_", "sample_").values
    n_states, n_samples = blocks.shape[:2]
    kernel = blocks.reshape(n_states * n_samples, -1)
    scale = np.sqrt(np.diagonal(kernel))
    scale = np.where(scale > 0, scale, 1)
    names = ("state", "state") if n_samples == 1 else ("state, sample", "state, sample")
    symbol = r"$\Phi_{ij}/\sqrt{\Phi_{ii}\Phi_{jj}}$"
    matrix(ax, kernel / scale / scale[:, None], "correlation of the features", symbol, names)
    if n_samples > 1:
        middle = n_samples * (np.arange(n_states) + 0.5) - 0.5
        ax.set_xticks(middle, map(str, range(n_states)))
        ax.set_yticks(middle, map(str, range(n_states)))
        for edge in n_samples * np.arange(1, n_states) - 0.5:
            ax.axhline(edge, color="white", linewidth=0.5)
            ax.axvline(edge, color="white", linewidth=0.5)


def _predictions(ax: Axes, solution: "Solution") -> None:
    field, task, network = solution.prediction, solution.task, solution.network
    states = np.arange(network.depth)
    for k in range(min(N_CURVES, field.sizes["sample"])):
        curve = field.isel(sample=k, output=0)
        middle = mean(curve).values
        ax.plot(states, middle, marker="o", markersize=3, color=SERIES[k])
        if "replicate" in curve.dims:
            error = stderr(curve.transpose("replicate", ...).values)
            ax.fill_between(states, middle - error, middle + error, color=SERIES[k], alpha=0.25, linewidth=0)
        if task is not None and task.y is not None:
            label = "label" if k == 0 else None
            supervised = list(task.supervised_states(network.depth))
            ax.plot(supervised, task.labels()[k, :, 0], "x", color=SERIES[k], markersize=7, label=label)
    ax.axhline(0, color=COLORS["theory"], linewidth=0.5)
    shown = "" if field.sizes["sample"] <= N_CURVES else f" (first {N_CURVES} samples)"
    ax.set(xlabel="state", ylabel="output", title=f"prediction{shown}")
    ax.legend(loc="best")
    whole_ticks(ax, network.depth, "x")


def _order(ax: Axes, solution: "Solution") -> None:
    along = solution.certificate.options["along"]
    for branch, color in (("incoherent", COLORS["DNN"]), ("coherent", COLORS["RNN"])):
        curve = solution.data.order_parameter.sel(branch=branch)
        stable = solution.data.stability.sel(branch=branch) > 0
        ax.plot(curve.factor, curve.where(stable), color=color, label=branch)
        ax.plot(curve.factor, curve.where(~stable), color=color, linestyle=":")
    _marks(ax, solution)
    ax.set(xlabel=f"factor on the {along}", ylabel="largest adjacent correlation", title="order parameter")
    ax.legend(loc="best")


def _free_energies(ax: Axes, solution: "Solution") -> None:
    along = solution.certificate.options["along"]
    energy = solution.data.free_energy
    ax.axhline(0, color=COLORS["DNN"], label="incoherent")
    ax.plot(energy.factor, energy.sel(branch="coherent") - energy.sel(branch="incoherent"), color=COLORS["RNN"])
    _marks(ax, solution)
    ax.set(xlabel=f"factor on the {along}", ylabel="difference per neuron", title="free energy, coherent − incoherent")


def _marks(ax: Axes, solution: "Solution") -> None:
    for name, style in (("instability", "--"), ("equal_free_energy", "-."), ("spinodal", ":")):
        where = solution.certificate.diagnostics.get(name)
        if where is not None:
            ax.axvline(where, color=COLORS["theory"], linewidth=0.8, linestyle=style, label=name.replace("_", " "))


def _landscape(ax: Axes, solution: "Solution") -> None:
    a, b = solution.certificate.options["along"]
    ax.plot(solution.data.correlation, solution.free_energy, color=COLORS["RNN"])
    ax.set(xlabel=f"correlation between states {a} and {b}", ylabel=r"$-\ln P/N$", title="landscape")
