"""Every published figure by name: theory, simulation, and the numbers that say how well they agree."""

import difflib
import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widefield.gallery.record import Report, Result, silent, store

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
        self, *, full: bool = False, out: Path = Path("figures"), report: Report = silent, parameters: Any = None
    ) -> Result:
        """Make the figure and write it with its data and numbers into ``out``, which is made if it is missing.

        ``full`` takes the published parameters, which may take hours; ``parameters`` replaces either set.
        """
        out = Path(out)
        out.mkdir(parents=True, exist_ok=True)
        module = importlib.import_module(f"widefield.gallery.{self.module}")
        start = time.perf_counter()
        made = module.make(parameters or (module.FULL if full else module.QUICK), out=out, full=full, report=report)
        wall_time = time.perf_counter() - start
        words = {"title": self.title, "source": self.source}
        return store(self.name, made, out, full=full, wall_time=wall_time, **words)


_SEGADLO = "Segadlo et al. (2022)"
_BAUER = "Bauer et al. (poster)"
_BORDELON = "Bordelon & Pehlevan (2025)"
_BORDELON22 = "Bordelon & Pehlevan (2022)"

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="segadlo-1",
            title="One theory for deep and recurrent networks",
            source=f"{_SEGADLO}, Fig. 1",
            module="segadlo_1",
            full_time="15 s",
        ),
        Entry(
            name="segadlo-2",
            title="Convergence to the theory with width and depth",
            source=f"{_SEGADLO}, Fig. 2",
            module="segadlo_2",
            full_time="a day, can be taken up",
        ),
        Entry(
            name="segadlo-3",
            title="Finite-size instability of recurrent networks",
            source=f"{_SEGADLO}, Fig. 3",
            module="segadlo_3",
            full_time="15 s",
        ),
        Entry(
            name="prior-regression",
            title="Handwritten digits, read out at one state and at every state",
            source=f"{_SEGADLO}, Sec. 4.2",
            module="prior_regression",
            full_time="20 min",
        ),
        Entry(
            name="bauer-transition",
            title="The transition to temporally coherent recurrent networks",
            source=f"{_BAUER}, panel 5",
            module="bauer_transition",
            full_time="6 h",
        ),
        Entry(
            name="bauer-endpoint",
            title="Weak and strong labels at the last state",
            source=f"{_BAUER}, panel 5",
            module="bauer_endpoint",
            full_time="2 h",
        ),
        Entry(
            name="bauer-convergence",
            title="Trained networks approach the theory with width",
            source=f"{_BAUER}, panel 4",
            module="bauer_convergence",
            full_time="1 h",
        ),
        Entry(
            name="bauer-sequence",
            title="A rotating teacher seen at some states only",
            source=f"{_BAUER}, panel 6",
            module="bauer_sequence",
            full_time="2 h",
        ),
        Entry(
            name="bauer-phases",
            title="Phase diagram in depth and temperature",
            source=f"{_BAUER}, extends panel 5",
            module="bauer_phases",
            full_time="5 min",
        ),
        Entry(
            name="width-flow",
            title="Kernel, vertex and first correction run with depth",
            source="Roberts, Yaida & Hanin (2022), chapter 4",
            module="width_flow",
            full_time="30 min",
        ),
        Entry(
            name="width-exact",
            title="Where the first order in 1/n stops: leading, exact and simulated",
            source="Roberts, Yaida & Hanin (2022), chapter 4, exact in n",
            module="width_exact",
            full_time="5 min",
        ),
        Entry(
            name="width-recurrent",
            title="Recurrent against deep corrections, and the finite-size instability predicted",
            source=f"{_SEGADLO}, Figs. 1 and 3, at finite width",
            module="width_recurrent",
            full_time="20 min",
        ),
        Entry(
            name="width-advice",
            title="How wide for a given depth and accuracy",
            source="Roberts, Yaida & Hanin (2022), chapter 4, and tied weights",
            module="width_advice",
            full_time="20 min",
        ),
        Entry(
            name="bordelon25-1",
            title="Loss curves across widths in NTK parameterisation and μP, and across depths",
            source=f"{_BORDELON}, Fig. 1",
            module="bordelon25_1",
            full_time="10 min",
        ),
        Entry(
            name="bordelon25-2",
            title="Learning rates transfer across widths in μP and not in NTK parameterisation",
            source=f"{_BORDELON}, Fig. 2",
            module="bordelon25_2",
            full_time="15 min",
        ),
        Entry(
            name="bordelon25-3",
            title="Dataset size, batch size and width",
            source=f"{_BORDELON}, Fig. 3",
            module="bordelon25_3",
            full_time="15 min",
        ),
        Entry(
            name="bordelon25-4",
            title="Training curves of residual networks of any depth",
            source=f"{_BORDELON}, Fig. 4",
            module="bordelon25_4",
            full_time="8 min",
        ),
        Entry(
            name="bordelon25-5",
            title="Learning-rate transfer over depth in residual networks",
            source=f"{_BORDELON}, Fig. 5",
            module="bordelon25_5",
            full_time="15 min",
        ),
        Entry(
            name="bordelon25-6",
            title="Power-law data: small batches, narrow networks, easy and hard tasks",
            source=f"{_BORDELON}, Fig. 6",
            module="bordelon25_6",
            full_time="20 min",
        ),
        Entry(
            name="bordelon25-7",
            title="The largest stable learning rate against width",
            source=f"{_BORDELON}, Fig. 7",
            module="bordelon25_7",
            full_time="10 min",
        ),
        Entry(
            name="bordelon25-8",
            title="Exponents of hard tasks depend on depth",
            source=f"{_BORDELON}, Fig. 8",
            module="bordelon25_8",
            full_time="5 min",
        ),
        Entry(
            name="bordelon25-cost",
            title="What the theory and a network cost",
            source=f"{_BORDELON}, Table 1",
            module="bordelon25_cost",
            full_time="5 min",
        ),
        Entry(
            name="bordelon22-1",
            title="Three tanh layers on images, theory and networks of growing width",
            source=f"{_BORDELON22}, Fig. 1",
            module="bordelon22_1",
            full_time="2 h",
        ),
        Entry(
            name="bordelon22-2",
            title="Deep linear networks: losses and kernels across depth and richness",
            source=f"{_BORDELON22}, Fig. 2",
            module="bordelon22_2",
            full_time="2 h",
        ),
        Entry(
            name="bordelon22-3",
            title="Weight decay ends at a kernel that depends on the richness",
            source=f"{_BORDELON22}, Fig. 3",
            module="bordelon22_3",
            full_time="2 min",
        ),
        Entry(
            name="bordelon22-4",
            title="Static, independent, perturbative and full theory across richness",
            source=f"{_BORDELON22}, Fig. 4",
            module="bordelon22_4",
            full_time="2 h",
        ),
        Entry(
            name="bordelon22-5",
            title="Convolutional networks of two widths coincide at fixed richness",
            source=f"{_BORDELON22}, Fig. 5",
            module="bordelon22_5",
            full_time="hours",
        ),
        Entry(
            name="bordelon22-6",
            title="Two layers of relu: densities and kernels",
            source=f"{_BORDELON22}, Fig. 6",
            module="bordelon22_6",
            full_time="2 min",
        ),
        Entry(
            name="bordelon22-7",
            title="Three tanh layers on synthetic data, lazy and rich",
            source=f"{_BORDELON22}, Fig. 7",
            module="bordelon22_7",
            full_time="5 min",
        ),
        Entry(
            name="bordelon22-8",
            title="Two layers follow one differential equation",
            source=f"{_BORDELON22}, Fig. 8",
            module="bordelon22_8",
            full_time="1 min",
        ),
        Entry(
            name="bordelon22-9",
            title="Independent gradients miss most of feature learning",
            source=f"{_BORDELON22}, Fig. 9",
            module="bordelon22_9",
            full_time="15 min",
        ),
        Entry(
            name="bordelon22-depth",
            title="The tangent kernel changes by γ0²L of itself",
            source=f"{_BORDELON22}, Appendix P.6",
            module="bordelon22_depth",
            full_time="1 h",
        ),
        Entry(
            name="bordelon22-cost",
            title="What a network, the approximations and the full theory cost",
            source=f"{_BORDELON22}, Table 1",
            module="bordelon22_cost",
            full_time="20 min",
        ),
        Entry(
            name="coherence-dynamics",
            title="Weight decay, not descent, makes recurrent networks temporally coherent",
            source=f"{_BAUER}, the question left open",
            module="coherence_dynamics",
            full_time="10 min",
        ),
    )
}


def find(name: str) -> Entry:
    """The entry called ``name``; an unknown name is a `ValueError` that says which are near and which there are."""
    if name in ENTRIES:
        return ENTRIES[name]
    near = difflib.get_close_matches(name, ENTRIES, n=3, cutoff=0.5)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    raise ValueError(f"The gallery has no entry {name!r}.{hint} It has: {', '.join(ENTRIES)}.")
