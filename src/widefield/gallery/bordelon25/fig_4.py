"""Fig. 4 of Bordelon & Pehlevan: residual networks, how richness, branch and depth change the training curve."""

from dataclasses import dataclass

import numpy as np

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon25.losses import POPULATION, Ensemble, Losses, Question, loss_panels


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


FULL = Parameters()
QUICK = Parameters(dimension=96, replicates=200, depth=4, richnesses=(0.5, 1.0, 2.0), depths=(1, 2, 8))


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks of the three panels, on the population, and the theory at infinite depth."""
    loss, experiment = ("test_loss",), Losses(p)

    def question(richness: float = p.richness, branch: float = p.branch, depth: int = p.depth) -> Question:
        training = wf.Training(p.rate, p.steps, richness=richness, centered=True)
        return Question(wf.ResNet(depth, "linear", branch=branch / np.sqrt(depth)), POPULATION, training, p.width_ratio)

    families = (
        kit.Family("rich", "richness", "γ0 = {}", loss, {gamma: question(gamma) for gamma in p.richnesses}),
        kit.Family("branched", "branch", "β0 = {}", loss, {b: question(branch=b) for b in p.branches}, seed=100),
        kit.Family("deep", "depth", "L = {}", loss, {depth: question(depth=depth) for depth in p.depths}, seed=200),
    )
    job = work.jobs(sum(len(family.members) for family in families) + 1)
    data = kit.measure(families, experiment, job)
    job("infinite depth")
    data["deep_limit"] = experiment.theory(question(), infinite_depth=True).test_loss
    data["deepest"] = experiment.theory(question(depth=p.deepest)).test_loss
    gamma, beta, depth = rf"$\gamma_0={p.richness:g}$", rf"$\beta_0={p.branch:g}$", f"$L={p.depth}$"
    deepest, limit = ("deepest", (":", rf"$L={p.deepest}$")), ("deep_limit", ("--", r"$L=\infty$"))
    panels = loss_panels(
        families,
        (r"\gamma_0", f"{beta}, {depth}"),
        (r"\beta_0", f"{gamma}, {depth}"),
        ("L", f"{gamma}, {beta}", deepest, limit),
    )
    return kit.tested([panels], data, p, experiment, families, size=(3.3, 2.9))
