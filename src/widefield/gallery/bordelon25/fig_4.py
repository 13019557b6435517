"""Fig. 4 of Bordelon & Pehlevan: residual networks, how richness, branch and depth change the training curve."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon25.losses import POPULATION, Ensemble, Losses, Question, log_range, loss_panel
from widefield.plot.style import COLORS


@dataclass(frozen=True)
class Parameters(Ensemble):
    """β = β0/√L, initial function subtracted; each panel varies one of richness γ0, branch β0 and depth L, with the other two as given.

    ``deepest`` is shown in theory alone.
    """

    richness: float = 1.0
    branch: float = 1.2
    depth: int = 8
    rate: float = 0.02
    steps: int = 24
    width_ratio: float = 1.0
    richnesses: tuple[float, ...] = (0.5, 1.0, 2.0)
    branches: tuple[float, ...] = (0.5, 1.0, 1.5)
    depths: tuple[int, ...] = (1, 2, 4, 8, 16)
    deepest: int = 32

    def question(
        self, *, richness: float | None = None, branch: float | None = None, depth: int | None = None
    ) -> Question:
        n_layers = depth or self.depth
        network = wf.ResNet(n_layers, "linear", branch=(branch or self.branch) / np.sqrt(n_layers))
        training = wf.Training(self.rate, self.steps, richness=richness or self.richness, centered=True)
        return Question(network, POPULATION, training, self.width_ratio)


FULL = Parameters()
QUICK = Parameters(dimension=96, replicates=200, depth=4, richnesses=(0.5, 1.0, 2.0), depths=(1, 2, 8))


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks of the three panels, on the population, and the theory at infinite depth."""
    loss, experiment = ("test_loss",), Losses(p)
    rich = {gamma: p.question(richness=gamma) for gamma in p.richnesses}
    branched = {beta: p.question(branch=beta) for beta in p.branches}
    deep = {depth: p.question(depth=depth) for depth in p.depths}
    families = (
        kit.Family("rich", "richness", "γ0 = {}", loss, rich),
        kit.Family("branched", "branch", "β0 = {}", loss, branched, seed=100),
        kit.Family("deep", "depth", "L = {}", loss, deep, seed=200),
    )
    job = work.jobs(len(rich) + len(branched) + len(deep) + 1)
    data = kit.measure(families, experiment, job)
    job("infinite depth")
    data["deep_limit"] = experiment.theory(p.question(), infinite_depth=True).test_loss
    data["deepest"] = experiment.theory(p.question(depth=p.deepest)).test_loss
    gamma, beta, depth = rf"$\gamma_0={p.richness:g}$", rf"$\beta_0={p.branch:g}$", f"$L={p.depth}$"
    panels = [
        partial(_losses, family=families[0], symbol=r"\gamma_0", title=f"{beta}, {depth}"),
        partial(_losses, family=families[1], symbol=r"\beta_0", title=f"{gamma}, {depth}"),
        partial(_losses, family=families[2], symbol="L", title=f"{gamma}, {beta}"),
    ]
    return kit.tested([panels], data, p, experiment, families, size=(3.3, 2.9))


def _losses(ax: kit.Axes, data: xr.Dataset, p: Parameters, family: kit.Family, symbol: str, title: str) -> None:
    loss_panel(ax, data, p, f"{family.name}_test_loss", family.dim, symbol, title)
    if family.name == "deep":
        for field, style, label in (("deepest", ":", rf"$L={p.deepest}$"), ("deep_limit", "--", r"$L=\infty$")):
            ax.plot(data.step, data[field], color=COLORS["theory"], linestyle=style, label=label)
    log_range(ax, data, [f"{name}_test_loss" for name in ("rich", "branched", "deep")])
    ax.legend()
