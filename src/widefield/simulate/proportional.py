r"""Deep linear networks of finite width, trained on finitely many random inputs of finite dimension.

Plain training with explicit weights, one replicate at a time (its weights then stay in the processor's cache), see
`proportional_train`. One random stream per replicate for each of weights, readout and data: a result depends on the
seed, not on the other replicates, and the same networks and data meet every rate and richness.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from widefield.answer import boundary
from widefield.answer.certificate import Certificate, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.teacher import Teacher
from widefield.question.training import Training
from widefield.simulate import proportional_setup as setup
from widefield.simulate.certify import certify
from widefield.simulate.proportional_setup import NAME
from widefield.simulate.proportional_train import (
    Gradient,
    Learner,
    Model,
    Record,
    correlations,
    population_gradient,
    sample_gradient,
    train,
)
from widefield.simulate.streams import HIDDEN, READOUT, streams

Names = tuple[str, ...]
CORRELATIONS = ("feature_correlation", "gradient_correlation")
DATA = 3  # purpose of the random stream, beside those of `streams` and `posterior`
PASS, NORMAL = 3e-10, 1.2e-8  # seconds per weight and product, per random number, one core


@boundary.x64
def proportional(
    network: Network,
    teacher: Teacher,
    training: Training,
    *,
    dimension: int | None = None,
    width_ratio: float | None = None,
    width: int | None = None,
    paired: bool = True,
    replicates: int,
    seed: int,
    quantities: Iterable[str] | None = None,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Training and test loss of ``replicates`` deep linear networks trained by (stochastic) gradient descent.

    .. math::
        f(x) = \frac{\sqrt D}{N\gamma_0}\, w^L \cdot \prod_l \frac{W^l}{\sqrt N}\, \frac{W^0}{\sqrt D} x, \qquad
        y = \frac{w^*\cdot x}{\sqrt D} + \epsilon, \qquad \theta \leftarrow \theta - N\gamma_0^2\eta\,
        \nabla_\theta \frac{1}{2P}\sum_\mu \Delta_\mu^2, \quad \Delta = y - f

    Eqs. 1-5 and 22-26 of Bordelon & Pehlevan, corrected; residual Eq. 16, one batch per step Eq. 86, structured inputs
    Eq. 89, unequal widths Eq. 100, channels Eqs. 102-105. Fields, each with a leading ``replicate`` dim, row t before
    update t, coordinate ``time`` = sum of the rates so far:

    - ``train_loss``, ``test_loss`` (step): mean of :math:`\Delta^2` (no ½) over the training set (SGD: over the batch
      about to be used; population: equal to the test loss), and over all inputs and labels, evaluated exactly.
    - on request ``feature_correlation``, ``gradient_correlation`` (layer, step, step\_): averages over the neurons of
      layer 1 … L of :math:`h^l(t)h^l(t')` and :math:`g^l(t)g^l(t')`, where :math:`h^0 = \frac{\sqrt D}{P}\sum_\mu
      \Delta_\mu x_\mu` is sent forward and :math:`w^L` backward (Eq. 26).

    Inputs are isotropic with D = ``dimension``, or have covariance and target :math:`(\lambda_k, \lambda_k w_k^2)` =
    ``spectrum``; then ``width`` and ``batch`` take the place of the ratios. With ``target_overlap`` :math:`Q_{cc'} =
    w^*_c\cdot w^*_{c'}/D` there is a readout per channel; several channels give the losses a last dim ``output``, the
    correlations ``output``, ``output_``.

    Notation: :math:`\gamma_0` = ``richness``, :math:`\eta` = ``rate`` (a number, one per step, or a function of the
    step), :math:`N_l` = round(``width_ratio`` · ``widths`` · D), P = round(``data_ratio`` · D) fixed inputs, or a fresh
    batch of round(``batch_ratio`` · D) at each step; neither (or infinite): population gradient descent.
    ``label_noise`` is the variance of :math:`\epsilon`, drawn once per input. ``centered`` subtracts the initial f.
    Method: ``paired`` trains two networks from the same weights on the same inputs, with opposite targets and label
    noise, and averages them; this removes what is odd in the target. :math:`|w^*|^2 = D` exactly.
    Error: each replicate is exact for its network; standard errors of the mean stand in the certificate.
    Limits: means differ from the proportional theory by :math:`O(1/D)`, and much more close to instability. A replicate
    whose loss grows 10¹² times has diverged: its further entries are infinite and the status is ``diverged``.
    """
    start = time.perf_counter()
    training.refuse(
        "simulate.proportional",
        "batches",
        "weight_decay",
        "momentum_time",
        "temperature",
        "loss",
        "initial_scale",
        "flow",
    )
    richness, rate, steps, centered = training.richness, training.rates, training.steps, training.centered
    data_ratio, batch_ratio, batch = teacher.data_ratio, teacher.batch_ratio, teacher.batch
    label_noise, spectrum, target_overlap = teacher.label_noise, teacher.spectrum, teacher.target_overlap
    setup.check_network(network)
    sizes = _sizes(network, dimension, width_ratio, data_ratio, batch_ratio, spectrum, width, batch)
    gamma = checks.nonnegative("richness", richness, positive=True)
    run = _Run(
        model=Model(sizes.eigenvalues, sizes.input_scale, sizes.layers, gamma, network.branch),
        targets=setup.targets_of(sizes, target_overlap),
        rates=setup.rates_of(rate, checks.integer("steps", steps, 1)),
        n_data=sizes.n_data,
        online=sizes.online,
        label_noise=checks.nonnegative("label_noise", label_noise),
        centered=setup.flag("centered", centered),
        paired=setup.flag("paired", paired),
        replicates=checks.integer("replicates", replicates, 1),
        seed=checks.integer("seed", seed, 0),
    )
    if progress is not None:
        setup.flag("progress", progress)
    layout = run.layout()
    wanted, left_out = _choose(quantities, layout, run)
    arrays, n_rows = _simulate(run, {name: layout[name][1] for name in wanted}, progress)
    options = sizes.options | run.options(target_overlap)
    certificate = _certify(run, arrays, n_rows, start, options, sizes.notes, left_out)
    fields = {name: (("replicate", *layout[name][0]), value) for name, value in arrays.items()}
    times = np.concatenate([[0.0], np.cumsum(run.rates)])
    return make_solution(
        fields,
        certificate,
        network,
        None,
        coords={"time": ("step", times)},
        throw=throw,
        teacher=teacher,
        training=training,
    )


@dataclass(frozen=True)
class _Run:
    """What all replicates share; ``targets`` are (channel, D)."""

    model: Model
    targets: np.ndarray
    rates: np.ndarray
    n_data: int | None
    online: bool
    label_noise: float
    centered: bool
    paired: bool
    replicates: int
    seed: int

    @property
    def signs(self) -> np.ndarray:
        """Signs of the targets of the networks that one replicate averages."""
        return np.array([1.0, -1.0]) if self.paired else np.ones(1)

    @property
    def n_rows(self) -> int:
        """One row before each update and one after the last."""
        return len(self.rates) + 1

    @property
    def n_weights(self) -> int:
        """Numbers in the weights of one network."""
        return sum(math.prod(shape) for shape in self.model.shapes)

    @property
    def seconds(self) -> float:
        """A rough estimate of the whole run."""
        n_inputs = (self.n_data or 0) * len(self.model.eigenvalues)
        products = PASS * (3 * len(self.signs) * self.n_weights + 2 * n_inputs) * len(self.targets)
        drawn = NORMAL * (n_inputs * (self.n_rows if self.online else 1) + self.n_weights)
        return self.replicates * (self.n_rows * products + drawn)

    def layout(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
        """Dims and shape of one replicate's share of every quantity, the most wanted first."""
        channels = len(self.targets) > 1
        C = (len(self.targets),) * channels
        losses = (("step", *["output"] * channels), (self.n_rows, *C))
        pair = (self.n_rows, self.n_rows)
        cross = (("layer", "step", "step_", *["output", "output_"] * channels), (len(self.model.sizes), *pair, *C, *C))
        return dict.fromkeys(("train_loss", "test_loss"), losses) | dict.fromkeys(CORRELATIONS, cross)

    def options(self, overlap: Any) -> dict[str, Any]:
        """What the certificate tells of the run, beside the sizes."""
        names = ("label_noise", "centered", "paired", "replicates")
        constant = len(set(self.rates)) == 1
        return {
            "richness": self.model.richness,
            "rate": float(self.rates[0]) if constant else self.rates,
            "steps": len(self.rates),
            **{name: getattr(self, name) for name in names},
            **({} if overlap is None else {"target_overlap": np.asarray(overlap)}),
        }


def _sizes(net, dimension, width_ratio, data_ratio, batch_ratio, spectrum, width, batch) -> setup.Sizes:
    """Sizes by ratios for isotropic inputs, by counts for structured ones."""
    ratios = {"width_ratio": width_ratio, "data_ratio": data_ratio, "batch_ratio": batch_ratio}
    if spectrum is None:
        setup.refuse_together("without `spectrum`: isotropic inputs take ratios", width=width, batch=batch)
        return setup.isotropic_sizes(net, dimension, **ratios)
    reason = "with `spectrum`: structured inputs take `width` and `batch`"
    setup.refuse_together(reason, dimension=dimension, **ratios)
    return setup.structured_sizes(net, spectrum, width, batch)


def _choose(quantities: Iterable[str] | None, layout: dict[str, Any], run: _Run) -> tuple[Names, Names]:
    """The losses unless ``quantities`` says otherwise; refuses what does not fit in memory."""
    n_bytes = {name: 8 * run.replicates * math.prod(shape) for name, (_, shape) in layout.items()}
    losses = tuple(name for name in layout if name not in CORRELATIONS)
    wanted, _ = boundary.choose_quantities(losses if quantities is None else quantities, n_bytes)
    kept = 2 * run.n_rows * sum(run.model.sizes) * len(run.targets) if {*CORRELATIONS} & {*wanted} else 0
    n_inputs = (run.n_data or 0) * len(run.model.eigenvalues)
    need = 8 * ((1 + len(run.signs)) * run.n_weights + n_inputs + len(run.signs) * kept)
    if need > boundary.memory_budget():
        raise MemoryError(
            f"One network of layers {run.model.sizes} needs {boundary.describe_bytes(need)} to be trained, but only "
            f"{boundary.describe_bytes(boundary.memory_budget())} may be used. Lower the `dimension`, width or steps."
        )
    return wanted, CORRELATIONS if quantities is None else ()


def _simulate(run: _Run, shapes: dict[str, Any], progress: bool | None) -> tuple[dict[str, np.ndarray], list[int]]:
    """The wanted arrays, and how many rows each replicate lasted."""
    arrays = {name: np.empty((run.replicates, *shape)) for name, shape in shapes.items()}
    n_rows = []
    title = f"{run.replicates} networks of layers {', '.join(map(str, run.model.sizes))}"
    with bar(title, run.replicates * run.n_rows, progress, run.seconds) as advance:
        for r in range(run.replicates):
            record = _replicate(run, r, keep=bool({*CORRELATIONS} & {*shapes}), advance=advance)
            n_rows.append(record.n_rows)
            for name, out in arrays.items():
                out[r] = _measure(record, name).reshape(shapes[name])
            advance(run.n_rows - record.n_rows)
    return arrays, n_rows


def _replicate(run: _Run, r: int, *, keep: bool, advance: Callable[[int], None]) -> Record:
    """Train the network, or the pair, of replicate ``r``."""
    weight_stream, readout_stream, data_stream = (streams(run.seed, [r], k)[0] for k in (HIDDEN, READOUT, DATA))
    weights = [weight_stream.standard_normal(shape) for shape in run.model.shapes]
    readout = readout_stream.standard_normal((len(run.targets), run.model.sizes[-1]))
    return train(
        [Learner(run.model, weights, readout) for _ in run.signs],
        run.signs[:, None, None] * run.targets,
        _gradients(run, data_stream),
        run.rates,
        label_noise=run.label_noise,
        centered=run.centered,
        keep=keep,
        advance=advance,
    )


def _gradients(run: _Run, rng: np.random.Generator) -> Callable[[int], Gradient]:
    """The gradient at each step: of the population, of one training set, or of a fresh batch."""
    if run.n_data is None:
        population = population_gradient(run.model, run.label_noise)
        return lambda t: population
    n_data = run.n_data
    if run.online:
        return lambda t: _draw(run, rng, n_data)
    fixed = _draw(run, rng, n_data)
    return lambda t: fixed


def _draw(run: _Run, rng: np.random.Generator, n_data: int) -> Gradient:
    """The gradient on ``n_data`` inputs with their label noise."""
    x = rng.standard_normal((n_data, len(run.model.eigenvalues)))
    noise = np.sqrt(run.label_noise) * rng.standard_normal((len(run.targets), n_data))
    x *= np.sqrt(run.model.eigenvalues)
    return sample_gradient(run.model, x, noise, run.signs)


def _measure(record: Record, name: str) -> np.ndarray:
    """One field of a replicate, averaged over its networks."""
    if name in CORRELATIONS:
        return correlations(record.h if name == "feature_correlation" else record.g, record.n_rows)
    return getattr(record, name).mean(axis=0)


def _certify(
    run: _Run,
    arrays: dict[str, np.ndarray],
    n_rows: Sequence[int],
    start: float,
    options: dict[str, Any],
    notes: Sequence[str],
    left_out: Names,
) -> Certificate:
    """The certificate of a simulation; a loss that ran away in any replicate makes every mean infinite."""
    lost = [n for n in n_rows if n < run.n_rows]
    said = [*notes]
    if lost:
        said.append(f"diverged in {len(lost)} of {run.replicates} replicates, first at step {min(lost)}")
    certificate = certify(NAME, arrays, start, seed=run.seed, options=options, notes=said, left_out=left_out)
    certificate = replace(certificate, steps=len(run.rates))
    if not lost:
        return certificate
    return replace(
        certificate, failure=Status.diverged, diagnostics={"diverged": len(lost), "diverged_at_step": min(lost)}
    )
