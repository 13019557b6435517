"""The posterior: correlations between all nodes, predictions along the states, transitions and landscapes."""

from functools import partial

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from widefield.answer.solution import Solution
from widefield.plot.generic import scalars
from widefield.plot.style import COLORS, Panel, matrix, mean, predictions, whole_ticks


def pictures(solution: Solution) -> list[Panel]:
    """Kernel as correlations, predictions against the state with the labels as crosses, numbers as text."""
    fields = solution.data.data_vars
    panels: list[Panel] = []
    kernel = fields.get("feature", fields.get("hidden"))
    if kernel is not None:
        panels.append(partial(_correlations, field=kernel))
    if "prediction" in fields:
        panels.append(partial(_predictions, solution=solution))
    return panels + scalars(solution)


def transition(solution: Solution) -> list[Panel]:
    """Order parameter and free energy of both branches."""
    return [partial(_order, solution=solution), partial(_free_energies, solution=solution)]


def landscape(solution: Solution) -> list[Panel]:
    """Free energy over the correlation."""
    return [partial(_landscape, solution=solution)]


def _correlations(ax: Axes, field: xr.DataArray) -> None:
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
        ax.set(xticks=middle, xticklabels=range(n_states), yticks=middle, yticklabels=range(n_states))
        for edge in n_samples * np.arange(1, n_states) - 0.5:
            ax.axhline(edge, color="white", linewidth=0.5)
            ax.axvline(edge, color="white", linewidth=0.5)


def _predictions(ax: Axes, solution: Solution) -> None:
    task, depth, labels, labeled = solution.task, solution.network.depth, None, None
    if task is not None and task.y is not None:
        labels, labeled = task.labels()[:, :, 0], list(task.supervised_states(depth))
    field = solution.prediction.isel(output=0)
    predictions(ax, np.arange(depth), field, labels, labeled, "state", marker="o", markersize=3)
    whole_ticks(ax, depth, "x")


def _order(ax: Axes, solution: Solution) -> None:
    for branch, color in (("incoherent", COLORS["DNN"]), ("coherent", COLORS["RNN"])):
        order = solution.data.order_parameter.sel(branch=branch)
        stable = solution.data.stability.sel(branch=branch) > 0
        ax.plot(order.factor, order.where(stable), color=color, label=branch)
        ax.plot(order.factor, order.where(~stable), color=color, linestyle=":")
    ax.set(ylabel="largest adjacent correlation", title="order parameter")
    _marks(ax, solution)
    ax.legend(loc="best")


def _free_energies(ax: Axes, solution: Solution) -> None:
    energy = solution.data.free_energy
    ax.axhline(0, color=COLORS["DNN"], label="incoherent")
    ax.plot(energy.factor, energy.sel(branch="coherent") - energy.sel(branch="incoherent"), color=COLORS["RNN"])
    ax.set(ylabel="difference per neuron", title="free energy, coherent − incoherent")
    _marks(ax, solution)


def _marks(ax: Axes, solution: Solution) -> None:
    """Where the transition lies, over the factor on what is varied."""
    for name, style in (("instability", "--"), ("equal_free_energy", "-."), ("spinodal", ":")):
        where = solution.certificate.diagnostics.get(name)
        if where is not None:
            ax.axvline(where, color=COLORS["theory"], linewidth=0.8, linestyle=style, label=name.replace("_", " "))
    ax.set_xlabel(f"factor on the {solution.certificate.options['along']}")


def _landscape(ax: Axes, solution: Solution) -> None:
    a, b = solution.certificate.options["along"]
    ax.plot(solution.data.correlation, solution.free_energy, color=COLORS["RNN"])
    ax.set(xlabel=f"correlation between states {a} and {b}", ylabel=r"$-\ln P/N$", title="landscape")
