"""Pictures of solutions. Imported only when something is drawn, so that matplotlib stays out of `import widefield`."""

import os
from collections.abc import Callable

from widefield.answer.solution import Solution
from widefield.plot import dynamics, generic, posterior, prior, proportional
from widefield.plot.style import Figure, Panel, format_of, house_style, panels, save

N_COLUMNS = 3
# what a certificate calls the theory: the panels of its picture; any other theory gets the generic one
PICTURES: dict[str, Callable[[Solution], list[Panel]]] = {
    "prior": prior.pictures,
    "simulate.prior": prior.pictures,
    "depth_limit": generic.scalars,
    "posterior": posterior.pictures,
    "simulate.posterior": posterior.pictures,
    "transition": posterior.transition,
    "landscape": posterior.landscape,
    "proportional": proportional.pictures,
    "simulate.proportional": proportional.pictures,
    "rate_sweep": proportional.rate_sweep,
    "optimal_rate": proportional.optimal_rate,
    "rate_transfer": proportional.rate_transfer,
    "loss_exponent": proportional.loss_exponent,
    "dynamics": dynamics.pictures,
    "simulate.dynamics": dynamics.pictures,
}


def solution(solution: Solution, path: str | os.PathLike | None = None) -> Figure:
    """Draw what is worth seeing of a solution; a theory without a picture of its own has its fields drawn one by one.

    Returns the matplotlib figure; with ``path`` it is also written.
    """
    if path is not None:
        format_of(path)  # before anything is drawn
    theory = solution.certificate.options.get("simulation", solution.certificate.theory)  # of an extrapolation
    draw = PICTURES.get(theory, generic.pictures)(solution) or generic.pictures(solution)
    if not draw:
        raise ValueError(
            f"There is no picture for a solution with only {', '.join(map(str, solution.data.data_vars))}."
        )
    n_columns = len(draw) if theory in PICTURES else min(len(draw), N_COLUMNS)
    with house_style():
        figure, axes = panels(-(-len(draw) // n_columns), n_columns, size=(3.3, 3.0))
        for ax, panel in zip(axes.flat, draw, strict=False):
            panel(ax)
        for ax in axes.flat[len(draw) :]:
            ax.set_axis_off()
        network = solution.network
        states = f"{network.depth} state{'s' * (network.depth > 1)}"
        figure.suptitle(f"{solution.certificate.theory}: {network.kind}, {states}, {network.activation}", fontsize=10)
    if path is not None:
        save(figure, path)
    return figure
