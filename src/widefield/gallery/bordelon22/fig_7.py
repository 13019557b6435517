"""Fig. 7 of Bordelon & Pehlevan (2022): three tanh layers on synthetic data, lazy and rich."""

from dataclasses import dataclass
from functools import partial

from widefield.gallery import kit
from widefield.gallery.bordelon22 import kernels
from widefield.gallery.bordelon22.kernels import LAZY, Kernels, TwoClasses

FIELDS = ("loss", "label_feature", "gradient_trace")


@dataclass(frozen=True)
class Parameters(TwoClasses):
    """``paths`` is that of one of the theory's eight batches."""

    width: int = 2000
    depth: int = 3
    richnesses: tuple[float, ...] = (1.0, 2.0)
    paths: int = 4096


FULL = Parameters(replicates=20, rate=0.03)
QUICK = Parameters(width=200, replicates=48, n_samples=4, dimension=8, rate=0.05, steps=60, paths=512)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Theory and networks at each richness, and the static limit with networks of very small richness."""
    job, first, experiment = work.jobs(len(p.richnesses) + 1), p.richnesses[0], Kernels(p, paths=p.paths)
    question = p.question(p.depth, "tanh", first)
    families = kernels.rich(question, p.richnesses, FIELDS)
    data = kit.measure(families, experiment, job)
    data = data.assign(kernels.lazy_limit(experiment, question, job))
    loss = partial(kernels.loss_panel, title=f"tanh, $L={p.depth}$")
    final_and_times = kernels.kernel_panels({"richness": first}, rf"final ${{}}^\ell$, $\gamma_0={first:g}$")
    panels: kit.Panels = [[loss, *final_and_times]]
    note = f"lazy networks have γ0 = {LAZY:g}"
    return kit.tested(panels, data, p, experiment, families, more=kernels.lazy_pair, size=(3.0, 2.9), notes=(note,))
