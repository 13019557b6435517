"""Every published figure by name: theory, simulation, and the numbers that say how well they agree."""

import difflib
import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widefield.gallery.points import Points
from widefield.gallery.record import Report, Result, Work, store

__all__ = ["ENTRIES", "Entry", "Result", "find"]


@dataclass(frozen=True)
class Entry:
    """A figure of the gallery; ``module`` (imported when it runs) has ``QUICK``, ``FULL`` and ``make``.

    ``full_time`` says how long the published parameters take on one core; a quick run takes about a minute at most.
    """

    name: str
    title: str
    source: str
    module: str
    full_time: str

    def run(
        self, *, full: bool = False, out: Path = Path("figures"), report: Report | None = None, parameters: Any = None
    ) -> Result:
        """Make the figure and write it with its data and numbers into ``out``, which is made if it is missing.

        ``full`` takes the published parameters, which may take hours; ``parameters`` replaces either set. A full run that
        keeps its points takes up where one was stopped.
        """
        out = Path(out)
        out.mkdir(parents=True, exist_ok=True)
        module = importlib.import_module(f"widefield.gallery.{self.module}")
        start = time.perf_counter()
        points = Points(out / f"{self.name}.points.jsonl" if full else None)
        work = Work(points=points) if report is None else Work(report, points)
        made = module.make(parameters or (module.FULL if full else module.QUICK), work)
        words = {"title": self.title, "source": self.source}
        return store(self.name, made, out, full=full, wall_time=time.perf_counter() - start, **words)


_SEGADLO = "Segadlo et al. (2022)"
_BAUER = "Bauer et al. (poster)"
_ROBERTS = "Roberts, Yaida & Hanin (2022), chapter 4"
_B22 = "Bordelon & Pehlevan (2022)"
_B25 = "Bordelon & Pehlevan (2025)"

# fmt: off
_TABLE = (
    Entry("segadlo-1", "One theory for deep and recurrent networks", f"{_SEGADLO}, Fig. 1", "segadlo.fig_1", "15 s"),
    Entry("segadlo-2", "Convergence to the theory with width and depth", f"{_SEGADLO}, Fig. 2", "segadlo.fig_2", "a day, can be taken up"),
    Entry("segadlo-3", "Finite-size instability of recurrent networks", f"{_SEGADLO}, Fig. 3", "segadlo.fig_3", "15 s"),
    Entry("prior-regression", "Handwritten digits, read out at one state and at every state", f"{_SEGADLO}, Sec. 4.2", "segadlo.digits", "20 min"),
    Entry("bauer-transition", "The transition to temporally coherent recurrent networks", f"{_BAUER}, panel 5", "bauer.transition", "6 h"),
    Entry("bauer-endpoint", "Weak and strong labels at the last state", f"{_BAUER}, panel 5", "bauer.endpoint", "2 h"),
    Entry("bauer-convergence", "Trained networks approach the theory with width", f"{_BAUER}, panel 4", "bauer.convergence", "1 h"),
    Entry("bauer-sequence", "A rotating teacher seen at some states only", f"{_BAUER}, panel 6", "bauer.sequence", "2 h"),
    Entry("bauer-phases", "Phase diagram in depth and temperature", f"{_BAUER}, extends panel 5", "bauer.phases", "5 min"),
    Entry("width-flow", "Kernel, vertex and first correction run with depth", _ROBERTS, "roberts.flow", "30 min"),
    Entry("width-exact", "Where the first order in 1/n stops: leading, exact and simulated", f"{_ROBERTS}, exact in n", "roberts.exact", "5 min"),
    Entry("width-recurrent", "Recurrent against deep corrections, and the finite-size instability predicted", f"{_SEGADLO}, Figs. 1 and 3, at finite width", "roberts.recurrent", "20 min"),
    Entry("width-advice", "How wide for a given depth and accuracy", f"{_ROBERTS}, and tied weights", "roberts.advice", "20 min"),
    Entry("bordelon25-1", "Loss curves across widths in NTK parameterization and μP, and across depths", f"{_B25}, Fig. 1", "bordelon25.fig_1", "10 min"),
    Entry("bordelon25-2", "Learning rates transfer across widths in μP and not in NTK parameterization", f"{_B25}, Fig. 2", "bordelon25.fig_2", "15 min"),
    Entry("bordelon25-3", "Dataset size, batch size and width", f"{_B25}, Fig. 3", "bordelon25.fig_3", "15 min"),
    Entry("bordelon25-4", "Training curves of residual networks of any depth", f"{_B25}, Fig. 4", "bordelon25.fig_4", "8 min"),
    Entry("bordelon25-5", "Learning-rate transfer over depth in residual networks", f"{_B25}, Fig. 5", "bordelon25.fig_5", "15 min"),
    Entry("bordelon25-6", "Power-law data: small batches, narrow networks, easy and hard tasks", f"{_B25}, Fig. 6", "bordelon25.fig_6", "20 min"),
    Entry("bordelon25-7", "The largest stable learning rate against width", f"{_B25}, Fig. 7", "bordelon25.fig_7", "10 min"),
    Entry("bordelon25-8", "Exponents of hard tasks depend on depth", f"{_B25}, Fig. 8", "bordelon25.fig_8", "5 min"),
    Entry("bordelon25-cost", "What the theory and a network cost", f"{_B25}, Table 1", "bordelon25.cost", "5 min"),
    Entry("bordelon22-1", "Three tanh layers on images, theory and networks of growing width", f"{_B22}, Fig. 1", "bordelon22.fig_1", "2 h"),
    Entry("bordelon22-2", "Deep linear networks: losses and kernels across depth and richness", f"{_B22}, Fig. 2", "bordelon22.fig_2", "2 h"),
    Entry("bordelon22-3", "Weight decay ends at a kernel that depends on the richness", f"{_B22}, Fig. 3", "bordelon22.fig_3", "2 min"),
    Entry("bordelon22-4", "Static, independent, perturbative and full theory across richness", f"{_B22}, Fig. 4", "bordelon22.fig_4", "2 h"),
    Entry("bordelon22-5", "Convolutional networks of two widths coincide at fixed richness", f"{_B22}, Fig. 5", "bordelon22.fig_5", "hours"),
    Entry("bordelon22-6", "Two layers of relu: densities and kernels", f"{_B22}, Fig. 6", "bordelon22.fig_6", "2 min"),
    Entry("bordelon22-7", "Three tanh layers on synthetic data, lazy and rich", f"{_B22}, Fig. 7", "bordelon22.fig_7", "5 min"),
    Entry("bordelon22-8", "Two layers follow one differential equation", f"{_B22}, Fig. 8", "bordelon22.fig_8", "1 min"),
    Entry("bordelon22-9", "Independent gradients miss most of feature learning", f"{_B22}, Fig. 9", "bordelon22.fig_9", "15 min"),
    Entry("bordelon22-depth", "The tangent kernel changes by γ0²L of itself", f"{_B22}, Appendix P.6", "bordelon22.depth", "1 h"),
    Entry("bordelon22-cost", "What a network, the approximations and the full theory cost", f"{_B22}, Table 1", "bordelon22.cost", "20 min"),
    Entry("coherence-dynamics", "Weight decay, not descent, makes recurrent networks temporally coherent", f"{_BAUER}, the question left open", "bauer.coherence", "10 min"),
)
# fmt: on
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _TABLE}


def find(name: str) -> Entry:
    """The entry called ``name``; an unknown name is a `ValueError` that says which are near and which there are."""
    if name in ENTRIES:
        return ENTRIES[name]
    near = difflib.get_close_matches(name, ENTRIES, n=3, cutoff=0.5)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    raise ValueError(f"The gallery has no entry {name!r}.{hint} It has: {', '.join(ENTRIES)}.")
