"""Fig. 1 of Bordelon & Pehlevan: test loss across widths, in NTK parameterization and in μP, and across depths."""

from dataclasses import dataclass

import numpy as np

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon25.losses import POPULATION, Ensemble, Losses, Question, loss_panels, richness_at

LARGE = 1e4  # a kernel method in NTK parameterization, which has no ν = ∞ at γ0 > 0


@dataclass(frozen=True)
class Parameters(Ensemble):
    """γ0 = ``richness`` in μP and ``richness``/√ν in NTK parameterization; the depths have ν = ``deep_ratio``."""

    depth: int = 4
    richness: float = 2.0
    rate: float = 0.02
    steps: int = 30
    width_ratios: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    depths: tuple[int, ...] = (1, 2, 4, 6)
    deep_ratio: float = 1.0

    def question(self, width_ratio: float, parameterization: str = "mup", depth: int | None = None) -> Question:
        gamma = richness_at(self.richness, width_ratio, parameterization)
        training = wf.Training(self.rate, self.steps, richness=gamma)
        return Question(wf.DNN(depth or self.depth, "linear"), POPULATION, training, width_ratio)


FULL = Parameters()
QUICK = Parameters(dimension=96, replicates=160, width_ratios=(0.5, 1.0, 2.0), depths=(1, 2, 4))


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks of the three panels, on the population."""
    loss, experiment = ("test_loss",), Losses(p)
    wide = {name: {nu: p.question(nu, name) for nu in p.width_ratios} for name in ("ntk", "mup")}
    deep = {depth: p.question(p.deep_ratio, depth=depth) for depth in p.depths}
    families = (
        kit.Family("ntk", "width_ratio", "NTK, ν = {}", loss, wide["ntk"]),
        kit.Family("mup", "width_ratio", "μP, ν = {}", loss, wide["mup"], seed=100),
        kit.Family("deep", "depth", "μP, L = {}", loss, deep, seed=200),
    )
    data = kit.measure(families, experiment, work.jobs(2 * len(p.width_ratios) + len(p.depths)))
    data["ntk_limit"] = experiment.theory(p.question(LARGE, "ntk")).test_loss
    data["mup_limit"] = experiment.theory(p.question(np.inf)).test_loss
    gamma, depth = rf"$\gamma_0={p.richness:g}", f"$L={p.depth}$"
    panels = loss_panels(
        families,
        (r"\nu", rf"NTK, {gamma}/\sqrt{{\nu}}$, {depth}", ("ntk_limit", ("--", r"$\nu=10^4$"))),
        (r"\nu", rf"$\mu$P, {gamma}$, {depth}", ("mup_limit", ("--", r"$\nu=\infty$"))),
        ("L", rf"$\mu$P, {gamma}$, $\nu={p.deep_ratio:g}$"),
    )
    return kit.tested([panels], data, p, experiment, families, size=(3.3, 2.9))
