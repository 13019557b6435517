r"""Deep linear networks of finite width, trained on finitely many random inputs of finite dimension.

Plain training with explicit weights, one replicate at a time (its weights then stay in the processor's cache), see
`training`. One random stream per replicate for each of weights, readout and data: a result depends on the seed, not on the
other replicates, and the same networks and data meet every rate and richness.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from widefield.answer import boundary
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.teacher import Teacher
from widefield.question.training import Training
from widefield.simulate.networks.call import (
    Layout,
    Names,
    check_options,
    choose,
    labeled,
    n_bytes,
    peak_bytes,
    refuse_memory,
    timed_bar,
)
from widefield.simulate.networks.cores import Advance, in_flight, share
from widefield.simulate.networks.streams import DATA, HIDDEN, READOUT, streams
from widefield.simulate.networks.trained import FLOW_COPIES, Trained, certify_trained, in_flow
from widefield.simulate.proportional.sizes import NAME, Sizes, sizes_of
from widefield.simulate.proportional.training import (
    Curves,
    Gradient,
    Learner,
    Model,
    correlations,
    population_gradient,
    sample_gradient,
    train,
)

LOSSES = ("train_loss", "test_loss")
CORRELATIONS = ("feature_correlation", "gradient_correlation")
JUDGED = "test_loss"  # what tells that the limit of small rates is reached
REFUSED = ("batches", "weight_decay", "momentum_time", "temperature", "loss", "initial_scale")
PASS, NORMAL = 3e-10, 1.2e-8  # seconds per weight and product, per random number, one core
CALLS = 2e-5  # seconds of Python per layer


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

    Eqs. 1-5 and 22-26 of Bordelon & Pehlevan (2025), corrected; residual Eq. 16, one batch per step Eq. 86, structured inputs
    Eq. 89, unequal widths Eq. 100, channels Eqs. 102-105. Fields, each with a leading ``replicate`` dim, row t before
    update t, coordinate ``time`` = sum of the rates so far:

    - ``train_loss``, ``test_loss`` (step): mean of :math:`\Delta^2` (no ½) over the training set (SGD: over the batch
      about to be used; population: equal to the test loss), and over all inputs and labels, evaluated exactly.
    - on request ``feature_correlation``, ``gradient_correlation`` (layer, step, step\_): averages over neurons of
      :math:`h^l(t)h^l(t')` and :math:`g^l(t)g^l(t')`, where :math:`h^0 = \frac{\sqrt D}{P}\sum_\mu \Delta_\mu x_\mu` is
      sent forward and :math:`w^L` backward (Eq. 26).

    Inputs are isotropic with D = ``dimension``, or have the teacher's ``spectrum`` :math:`(\lambda_k, \lambda_k w_k^2)`;
    then ``width`` and the teacher's ``batch`` take the place of the ratios. With ``target_overlap`` there is a readout per
    channel; several give the losses a last dim ``output``, the correlations ``output``, ``output_``.

    Notation: :math:`\gamma_0` = ``richness``, :math:`\eta` = ``rate``, :math:`N_l` = round(``width_ratio`` · ``widths`` · D),
    P = round(``data_ratio`` · D) fixed inputs, or round(``batch_ratio`` · D) fresh ones at each step; neither (or infinite):
    population gradient descent. ``label_noise`` is the variance of :math:`\epsilon`, drawn once per input.
    Method: ``paired`` trains two networks from the same weights on the same inputs, with opposite targets and label
    noise, and averages them; this removes what is odd in the target. :math:`|w^*|^2 = D` exactly. With ``flow`` the same
    networks train with rates η, η/2, η/4 … and each replicate is extrapolated to rate zero at the times asked for: 7 times
    the cost of descent, twice as much for each further halving.
    Error: each replicate is exact for its network. Success means that none diverged or overflowed and, with ``flow``, that
    the last halving of the rate changed no test loss by more than 1e-3 of the largest (``error``; at most 7 halvings, else
    ``inaccurate``); standard errors of the mean stand in the diagnostics.
    Limits: means differ from the proportional theory by :math:`O(1/D)`, and much more close to instability. A replicate
    whose loss grows 10¹² times has diverged: its further entries are infinite and the status is ``diverged``. ``flow`` is
    not for fresh batches, which small steps average out: leave them out for the population.
    """
    began = time.perf_counter()
    replicates, seed = check_options(replicates=replicates, seed=seed, progress=progress, throw=throw)
    if not isinstance(training, Training):
        raise ValueError(f"`training` must be a widefield.Training, got {type(training).__name__}.")
    training.refuse(NAME, *REFUSED)
    richness = checks.nonnegative("richness", training.richness, positive=True)
    sizes = sizes_of(network, teacher, richness, dimension, width_ratio, width)
    if training.flow and sizes.online:
        raise ValueError(
            "`flow` averages over fresh batches, which is the population: leave out `batch_ratio` and `batch`, or use a "
            "small rate."
        )
    signs = np.array([1.0, -1.0]) if checks.flag("paired", paired) else np.ones(1)
    ensemble = _Ensemble(sizes, teacher.label_noise, training, signs, replicates, seed)
    wanted, left_out = ensemble.choose(quantities)
    train = partial(_simulate, ensemble, progress)
    trained = in_flow(train, wanted, JUDGED) if training.flow else train(wanted, 1)
    certificate = certify_trained(
        NAME,
        trained,
        began,
        seed=ensemble.seed,
        options=sizes.options | {"paired": paired, "replicates": ensemble.replicates},
        notes=sizes.notes,
        left_out=left_out,
    )
    return make_solution(
        labeled(ensemble.layout, trained.arrays),
        certificate,
        network,
        teacher=teacher,
        training=training,
        coords={"time": ("step", training.times)},
        throw=throw,
    )


@dataclass(frozen=True)
class _Ensemble:
    """What all replicates share; ``signs`` of the targets of the networks that one replicate averages."""

    sizes: Sizes
    label_noise: float
    training: Training
    signs: np.ndarray
    replicates: int
    seed: int

    @cached_property
    def model(self) -> Model:
        """Sizes and scales of the networks; eigenvalues in memory of their own."""
        return replace(self.sizes.model, eigenvalues=np.array(self.sizes.model.eigenvalues))

    @property
    def n_rows(self) -> int:
        """One row before each update and one after the last."""
        return self.training.steps + 1

    @property
    def n_weights(self) -> int:
        """Numbers in the weights of one network."""
        return sum(math.prod(shape) for shape in self.model.shapes)

    @property
    def n_inputs(self) -> int:
        """Numbers in the inputs of one gradient."""
        return (self.sizes.n_data or 0) * len(self.model.eigenvalues)

    @property
    def seconds(self) -> float:
        """A rough estimate of one training of all replicates."""
        products = PASS * (3 * len(self.signs) * self.n_weights + 2 * self.n_inputs) * len(self.sizes.overlap)
        drawn = NORMAL * (self.n_inputs * (self.n_rows if self.sizes.online else 1) + self.n_weights)
        calls = CALLS * len(self.signs) * len(self.model.sizes)
        return self.replicates * (self.n_rows * (products + calls) + drawn)

    @property
    def layout(self) -> Layout:
        """Dims and shape of one replicate's share of every quantity, the most wanted first."""
        C = (len(self.sizes.overlap),) if len(self.sizes.overlap) > 1 else ()
        losses = (("step", *["output"] * len(C)), (self.n_rows, *C))
        dims = ("layer", "step", "step_", *["output", "output_"] * len(C))
        cross = (dims, (len(self.sizes.model.sizes), self.n_rows, self.n_rows, *C, *C))
        return dict.fromkeys(LOSSES, losses) | dict.fromkeys(CORRELATIONS, cross)

    def choose(self, quantities: Iterable[str] | None) -> tuple[Names, Names]:
        """The losses unless ``quantities`` says otherwise; refuses what does not fit in memory."""
        copies = FLOW_COPIES if self.training.flow else 1
        of_field = n_bytes(self.layout, copies * self.replicates)
        wanted, _ = choose(LOSSES if quantities is None else quantities, of_field)
        several, D = {*CORRELATIONS} & {*wanted}, len(self.sizes.model.eigenvalues)

        isotropic = self.sizes.powers is None
        name = "dimension" if isotropic else "width"
        first = self.sizes.options[name]

        def need(size: int, replicates: int) -> int:
            scale = size / first
            D_, n_data = (scale * D, scale * (self.sizes.n_data or 0)) if isotropic else (D, self.sizes.n_data or 0)
            layers = [scale * n for n in self.sizes.model.sizes]
            n_weights = D_ * layers[0] + sum(m * n for m, n in pairwise(layers))
            inputs = n_data * (D_ * (2 if self.sizes.online else 1) + 2 * len(self.sizes.overlap))
            kept = (2 * self.n_rows * sum(layers) + 3 * self.n_rows**2) * len(self.sizes.overlap) if several else 0
            signs = len(self.signs)
            working = 8 * in_flight(replicates, 1) * ((1 + signs) * n_weights + inputs + signs * kept)
            return peak_bytes(self.layout, wanted, replicates, int(working), copies)

        what = f"networks of layers {self.sizes.model.sizes} on {D} dimensions, {self.n_rows} rows: {', '.join(wanted)}"
        sizes = {name: first, "replicates": self.replicates}
        refuse_memory(NAME, lambda replicates, **size: need(size[name], replicates), sizes, what)
        return wanted, CORRELATIONS if quantities is None else ()


def _simulate(ensemble: _Ensemble, progress: bool | None, wanted: Names, divisor: int) -> Trained:
    """Train all replicates with rates divided by ``divisor``."""
    arrays = {name: np.empty((ensemble.replicates, *ensemble.layout[name][1])) for name in wanted}
    lasted = np.zeros(ensemble.replicates, dtype=int)
    title = f"{ensemble.replicates} networks of layers {', '.join(map(str, ensemble.model.sizes))}"
    title += f", rate / {divisor}" if divisor > 1 else ""

    def work(block: slice, advance: Advance) -> None:
        r, keep = block.start, bool({*CORRELATIONS} & {*wanted})
        curves = _replicate(ensemble, r, keep=keep, divisor=divisor, advance=advance)
        lasted[r] = curves.lasted
        for name, out in arrays.items():
            if name in CORRELATIONS:
                field = correlations(curves.h if name == "feature_correlation" else curves.g, curves.lasted)
            else:
                field = getattr(curves, name).mean(axis=0)
            out[r] = field.reshape(out[r].shape)
        advance(ensemble.n_rows - curves.lasted)

    with timed_bar(title, ensemble.replicates * ensemble.n_rows, progress, divisor * ensemble.seconds) as advance:
        share(work, ensemble.replicates, 1, advance)
    return Trained(arrays, lasted, ensemble.n_rows)


def _replicate(ensemble: _Ensemble, r: int, *, keep: bool, divisor: int, advance: Advance) -> Curves:
    """Train the network, or the pair, of replicate ``r``."""
    model, targets = ensemble.model, ensemble.sizes.targets
    weight_stream, readout_stream, data_stream = (streams(ensemble.seed, [r], k)[0] for k in (HIDDEN, READOUT, DATA))
    weights = [weight_stream.standard_normal(shape) for shape in model.shapes]
    readout = readout_stream.standard_normal((len(targets), model.sizes[-1]))
    return train(
        [Learner(model, weights, readout) for _ in ensemble.signs],
        ensemble.signs[:, None, None] * targets,
        _gradients(ensemble, data_stream),
        ensemble.training.rates,
        label_noise=ensemble.label_noise,
        centered=ensemble.training.centered,
        keep=keep,
        divisor=divisor,
        advance=advance,
    )


def _gradients(ensemble: _Ensemble, rng: np.random.Generator) -> Callable[[int], Gradient]:
    """The gradient at each step: of the population, of one training set, or of a fresh batch."""
    n_data, label_noise, model = ensemble.sizes.n_data, ensemble.label_noise, ensemble.model
    if n_data is None:
        population = population_gradient(model, label_noise)
        return lambda t: population

    def draw() -> Gradient:
        x = rng.standard_normal((n_data, len(model.eigenvalues)))
        noise = np.sqrt(label_noise) * rng.standard_normal((len(ensemble.sizes.targets), n_data))
        x *= np.sqrt(model.eigenvalues)
        return sample_gradient(model, x, noise, ensemble.signs)

    if ensemble.sizes.online:
        return lambda t: draw()
    fixed = draw()
    return lambda t: fixed
