r"""Finite networks trained by gradient descent in the mean-field parameterisation.

Explicit weights and backpropagation through all states, see `dynamics_train`. One random stream per replicate for each
of weights, readout and Langevin noise: a result depends on the seed, not on batches or on what else is asked for.
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
from widefield.question.task import Task
from widefield.question.training import Training
from widefield.simulate import dynamics_observe as observe
from widefield.simulate import dynamics_response
from widefield.simulate.certify import blocks, certify
from widefield.simulate.dynamics_setup import (
    LIGHT,
    NAME,
    ON_REQUEST,
    Layout,
    Protocol,
    Question,
    layout_of,
    protocol_of,
    question_of,
    steps_of,
)
from widefield.simulate.dynamics_train import Arrays, Networks, Pass
from widefield.simulate.proportional_setup import flag

BATCH_NUMBERS = 2**17  # parameters that train together: they stay in the processor's cache
DEFAULT_BYTES = 2**27  # what kernels and pre-activations may take unless asked for by name
DIVERGED = 1e6  # growth of an output, against labels and first outputs, that no stable training shows
FLOP, PASS, NORMAL = 5e-11, 1e-9, 1.2e-8  # seconds per operation, per parameter and update, per random number


@boundary.x64
def dynamics(
    network: Network,
    task: Task,
    training: Training,
    *,
    width: int,
    replicates: int,
    seed: int,
    at: Sequence[int] | None = None,
    quantities: Iterable[str] | None = None,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Whole training runs of ``replicates`` independent finite networks.

    .. math::
        h^k = \sqrt{\tfrac{w}{N_{k-1}}}\, W^k \varphi(h^{k-1}) + \sqrt{\tfrac uD}\, U^k x^k + \sqrt b\, b^k, \qquad
        f^k = \frac{\sqrt v}{\gamma_0 N}\, V \cdot \varphi(h^k), \qquad
        \theta \leftarrow \theta - \eta\gamma_0^2 N\, \nabla_\theta \sum \ell(f, y)

    Eq. 1 and Appendices D.8 and H to L of Bordelon & Pehlevan (2022), with shared or separate parameters. The sum is
    over samples, supervised states and, for the squared loss :math:`\ell = \frac12 |f - y|^2`, outputs. Fields, each
    with a leading ``replicate`` dim; row t is before update t, coordinate ``time`` = sum of the rates so far:

    - ``loss``, ``test_loss`` (step): :math:`\sum\ell`, for the test inputs times P/P_test.
    - ``prediction`` (step, sample, output), ``test_prediction`` (step, test, output): the supervised state's; where
      several states are supervised, a ``state`` dim after ``step`` runs over all states.
    - ``state_prediction`` (step, state, sample, output): the readouts of all states, supervised or not.
    - ``ntk`` (step, sample, sample\_): :math:`\gamma_0^2 N \sum_\theta \partial_\theta f\,\partial_\theta f'`.
    - ``feature_kernel``, ``gradient_kernel`` (layer, step, step\_, sample, sample\_): averages over neurons of
      :math:`\varphi\varphi'` and :math:`g g'`, :math:`g^{k;c} = \gamma_0\sqrt{N_k N}\,\partial f^c/\partial h^k`.
      Recurrent networks, and deep ones driven or read out at several states, have (state, state\_, step, step\_,
      sample, sample\_). ``at`` keeps chosen steps, as dims ``at``, ``at_``. For the tangent and the gradient kernel
      several readouts put ``readout``, ``readout_`` first, several outputs ``output``, ``output_`` last.
    - ``forward_response``, ``backward_response``, on request, with the dims of ``feature_kernel`` and ``readout`` in front,
      ``output`` behind: see `dynamics_response`.
    - ``alignment`` (layer or state, step), ``ntk_alignment`` (step): cosines with the kernel of the labels.
    - ``preactivation``, ``pregradient`` (layer or state, neuron, sample): h and :math:`z = \gamma_0N\,\partial f/\partial
      \varphi` after the last update, or with ``at`` (layer, at, …); z with its readout in front and output behind.

    Notation: :math:`\gamma_0` = ``richness``, :math:`\eta` = ``rate`` (a number, one per step, or a function of the
    step), :math:`N` the last layer's width; all parameters start as N(0, 1) times ``initial_scale``,
    a scale that is no multiplier, or one per weight matrix (input, hidden, readout); the readout has no
    bias. ``centered`` subtracts the initial f.
    ``weight_decay`` :math:`\lambda`: :math:`\theta \leftarrow (1 - \eta\lambda)\theta + \dots`, with temperature too.
    ``momentum_time`` :math:`\tau`: :math:`Q \leftarrow (1 - \eta/\tau) Q - (\eta/\tau)\gamma_0^2 N\nabla`, then
    :math:`\theta \leftarrow (1 - \eta\lambda)\theta + \eta Q`, from :math:`Q = 0`. ``temperature`` :math:`1/\beta`
    adds :math:`\sqrt{2\eta/\beta}\,\xi` to every parameter. ``loss``: ``"squared"``, ``"logistic"`` (labels ±1),
    ``"cross_entropy"`` (labels are class probabilities), or a JAX function of (f, y), both (output,).
    Method: float64, exact backpropagation; inputs enter through their inner products, which changes no law.
    Error: each replicate is exact for its network; standard errors of the mean stand in the certificate.
    Limits: means differ from infinite width by :math:`O(1/N)`; :math:`f(0) \sim 1/(\gamma_0\sqrt N)` adds its variance
    to the losses. ``flow`` is for the theory: here lower the rate. A replicate whose outputs grow 10⁶ times, against
    labels and first outputs, has diverged: its further entries are infinite and the status is ``diverged``. Two-time
    kernels and pre-activations over 128 MiB are made only when named in ``quantities``. With unequal widths kernels are
    those of each layer with itself, and there are no ``preactivation``, ``pregradient`` and ``state_prediction``.
    """
    start = time.perf_counter()
    training.refuse("simulate.dynamics", "batches")
    richness, rate, steps, flow, loss = training.richness, training.rates, training.steps, training.flow, training.loss
    weight_decay, momentum_time, temperature = training.weight_decay, training.momentum_time, training.temperature
    initial_scale, centered = training.initial_scale, training.centered
    question = question_of(network, task, width, richness, loss)
    protocol = protocol_of(
        network, rate, steps, flow, weight_decay, momentum_time, temperature, initial_scale, centered
    )
    at_steps = steps_of(at, len(protocol.rates))
    run = _Run(
        question=question,
        protocol=protocol,
        at=at_steps,
        layout=layout_of(question, len(protocol.rates) + 1, at_steps, named=at is not None),
        replicates=checks.integer("replicates", replicates, 1),
        seed=checks.integer("seed", seed, 0),
    )
    if progress is not None:
        flag("progress", progress)
    wanted, left_out = _choose(run, quantities)
    arrays, n_rows = _simulate(run, wanted, progress)
    options = {"width": int(width), "replicates": run.replicates, "richness": question.model.richness}
    options |= protocol.options() | {"loss": question.loss.name} | ({} if at is None else {"at": at_steps})
    certificate = _certify(run, arrays, n_rows, start, options, task.notes, left_out)
    fields = {name: (("replicate", *run.layout[name][0]), value) for name, value in arrays.items()}
    return make_solution(
        fields, certificate, network, task, coords=_coords(run, wanted), throw=throw, training=training
    )


@dataclass(frozen=True)
class _Run:
    """What all batches of one simulation share."""

    question: Question
    protocol: Protocol
    at: np.ndarray
    layout: Layout
    replicates: int
    seed: int

    @property
    def n_rows(self) -> int:
        """One row before each update and one after the last."""
        return len(self.protocol.rates) + 1

    @property
    def batch(self) -> int:
        """Networks that train together."""
        return max(1, min(self.replicates, BATCH_NUMBERS // self.question.model.n_parameters))

    @property
    def seconds(self) -> float:
        """A rough estimate of the whole run."""
        model = self.question.model
        n_uses = len(model.sizes) if model.net.weights == "tied" else 1
        noise = NORMAL if self.protocol.temperature else 0.0
        per_row = model.n_parameters * (6 * FLOP * model.inputs.shape[1] * n_uses + PASS + noise)
        return self.replicates * self.n_rows * per_row

    def bytes_of(self, name: str) -> int:
        """What a field takes, with the room that it needs on the way."""
        model = self.question.model
        kept = 8 * self.batch * len(self.at) * model.n_train * sum(model.sizes)
        room = {"feature_kernel": kept, "gradient_kernel": kept * len(self.question.channels)}
        return 8 * self.replicates * math.prod(self.layout[name][1]) + room.get(name, 0)


def _choose(run: _Run, quantities: Iterable[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The asked fields, or all that are small; refuses what does not fit in memory."""
    sizes, budget = {name: run.bytes_of(name) for name in run.layout}, boundary.memory_budget()
    copies = 1 if run.protocol.momentum_time is None else 2
    need = 8 * run.batch * run.question.model.n_parameters * copies
    if need > budget:
        raise MemoryError(
            f"`width` {run.question.model.sizes[-1]} needs {boundary.describe_bytes(need)} for the weights of one "
            f"network, but only {boundary.describe_bytes(budget)} may be used."
        )
    if quantities is not None:
        return boundary.choose_quantities(quantities, sizes, budget - need)
    light = {name: size for name, size in sizes.items() if name in LIGHT}
    heavy = {name: size for name, size in sizes.items() if name not in (*LIGHT, *ON_REQUEST)}
    kept, lost = boundary.choose_quantities(None, light, budget - need)
    more, left_out = boundary.choose_quantities(None, heavy, min(DEFAULT_BYTES, budget - need))
    return (*kept, *more), (*lost, *left_out)


def _simulate(run: _Run, wanted: Sequence[str], progress: bool | None) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The wanted arrays, and how many rows each replicate lasted."""
    arrays = {name: np.zeros((run.replicates, *run.layout[name][1])) for name in wanted}
    n_rows = np.full(run.replicates, run.n_rows)
    title = f"{run.replicates} networks of layers {', '.join(map(str, run.question.model.sizes))}"
    with bar(title, run.replicates * run.n_rows, progress, run.seconds) as advance:
        for block in blocks(run.replicates, run.batch):
            mine = {name: array[block] for name, array in arrays.items()}
            _train(run, range(block.start, block.stop), mine, n_rows[block], advance)
    return arrays, n_rows


@np.errstate(all="ignore")  # a network that diverges overflows before it is found out
def _train(
    run: _Run, replicates: range, arrays: dict[str, np.ndarray], n_rows: np.ndarray, advance: Callable[[int], None]
) -> None:
    """Train one batch of networks and fill its share of ``arrays`` and ``n_rows``."""
    question, protocol = run.question, run.protocol
    networks = Networks(question.model, run.seed, replicates, protocol.initial_scale, run.batch)
    memory = observe.memory(question.model, len(replicates), run.at, question.channels, [*arrays])
    origin: np.ndarray | float = 0.0
    respond = bool(set(arrays) & set(ON_REQUEST))
    for t in range(run.n_rows):
        now = networks.forward()
        f = networks.outputs(now.phi, question.read)
        if t == 0:
            origin = f if protocol.centered else 0.0
            limit = DIVERGED * np.maximum(1.0, np.maximum(_largest(f), np.abs(question.labels).max()))
        f = f - origin
        n_rows[~(_largest(f) <= limit) & (n_rows > t)] = t
        _record_outputs(question, arrays, t, f)
        advance(len(replicates))
        if (n_rows <= t).all():
            advance(len(replicates) * (run.n_rows - t - 1))
            break
        if respond and t in run.at:
            dynamics_response.Probe(question, protocol, networks, origin, run.at, t).fill(arrays)
        pulls = question.pulls(f)
        force, fields = _fields(question, networks, now, pulls, needed=_needs_fields(run, arrays, t))
        _record_fields(run, arrays, t, now, fields, memory)
        if "pregradient" in arrays:
            _record_pregradients(run, arrays["pregradient"], t, networks, networks.slopes(now.h))
        if t + 1 < run.n_rows:
            networks.update(now.phi, force, pulls, protocol.step(t))
    _form_kernels(question, arrays, memory)
    _blank(run, arrays, n_rows)


def _largest(f: np.ndarray) -> np.ndarray:
    """Largest output of each network; not a number where one is not."""
    return np.abs(f).max(axis=(1, 2, 3))


def _needs_fields(run: _Run, arrays: dict[str, np.ndarray], t: int) -> bool:
    """Whether backward fields per readout and output are recorded at step ``t``."""
    return bool({"ntk", "ntk_alignment"} & set(arrays)) or ("gradient_kernel" in arrays and t in run.at)


def _fields(
    question: Question, networks: Networks, now: Pass, pulls: dict[int, np.ndarray], *, needed: bool
) -> tuple[Arrays, observe.Channels]:
    r"""What moves the weights, and :math:`g/\sqrt{N_k}` per readout and output where needed.

    With one readout and one output the first is Δ times the second; otherwise the sum over readouts and outputs is
    sent back in one go.
    """
    model, slopes = question.model, networks.slopes(now.h)
    unit = np.eye(model.n_outputs)[:, None, :] * np.ones((model.n_train, 1))
    send = lambda c, o: networks.backward(slopes, {question.supervised[c]: unit[o]})  # noqa: E731
    size = math.sqrt(model.gain)
    if len(question.channels) == 1:
        back = send(0, 0)
        (delta,) = pulls.values()
        return [delta * e for e in back], {(0, 0): [size * e for e in back]} if needed else {}
    force = networks.backward(slopes, pulls)
    return force, {(c, o): [size * e for e in send(c, o)] for c, o in question.channels} if needed else {}


def _record_outputs(question: Question, arrays: dict[str, np.ndarray], t: int, f: np.ndarray) -> None:
    """Losses and predictions of row ``t``; f is (replicate, read state, sample, output)."""
    n = question.model.n_train
    where = [question.read.index(c) for c in question.supervised]
    shown = f if len(question.supervised) > 1 else f[:, where[0]]
    if "prediction" in arrays:
        arrays["prediction"][:, t] = shown[..., :n, :]
    if "test_prediction" in arrays:
        arrays["test_prediction"][:, t] = shown[..., n:, :]
    if "state_prediction" in arrays:
        arrays["state_prediction"][:, t] = f[..., :n, :]
    if "loss" in arrays:
        arrays["loss"][:, t] = question.loss.value(f[:, where, :n], question.labels).sum(axis=(1, 2))
    if "test_loss" in arrays and question.test_labels is not None:
        values = question.loss.value(f[:, where, n:], question.test_labels)
        arrays["test_loss"][:, t] = values.sum(axis=(1, 2)) * n / question.n_test


def _record_fields(
    run: _Run, arrays: dict[str, np.ndarray], t: int, now: Pass, fields: observe.Channels, memory: observe.Memory
) -> None:
    """Kernels and pre-activations of row ``t``."""
    model = run.question.model
    phi = [x[:, : model.n_train] for x in now.phi]
    memory.keep(t, phi, fields)
    if "alignment" in arrays:
        arrays["alignment"][:, :, t] = observe.alignment(phi, run.question.labels)
    if {"ntk", "ntk_alignment"} & set(arrays):
        kernel = observe.tangent_kernel(model, phi, fields, run.question.supervised)
    if "ntk_alignment" in arrays:
        arrays["ntk_alignment"][:, t] = observe.tangent_alignment(kernel, run.question.labels)
    if "ntk" in arrays:
        row = np.moveaxis(arrays["ntk"], run.layout["ntk"][0].index("step") + 1, 0)[t]
        row[...] = kernel.reshape(row.shape)
    if "preactivation" in arrays:
        _record_neurons(run, arrays["preactivation"], t, [x[:, : model.n_train] for x in now.h])


def _record_neurons(run: _Run, kept: np.ndarray, t: int, h: Arrays) -> None:
    """(replicate, state[, at], neuron, sample) after the last update, or at the chosen steps."""
    for i in _places(run, t):
        kept[:, :, i] = np.stack([x.swapaxes(1, 2) for x in h], axis=1)


def _places(run: _Run, t: int) -> Sequence[Any]:
    """Where row ``t`` of what neurons have is kept, if at all."""
    named = "at" in run.layout["preactivation"][0]
    return [int(i) for i in np.flatnonzero(run.at == t)] if named else [...] * (t + 1 == run.n_rows)


def _record_pregradients(run: _Run, kept: np.ndarray, t: int, networks: Networks, slopes: Arrays) -> None:
    """z of every readout and output, γ0 N ∂f/∂φ, where row ``t`` is kept."""
    question, model = run.question, run.question.model
    if not len(_places(run, t)):
        return
    view = kept if model.n_outputs > 1 else kept[..., None]
    view = view if len(question.supervised) > 1 else view[:, None]
    unit = np.eye(model.n_outputs)[:, None, :] * np.ones((model.n_train, 1))
    for c, o in question.channels:
        pulls = {question.supervised[c]: unit[o]}
        z = networks.before_slopes(networks.backward(slopes, pulls), pulls)
        _record_neurons(run, view[:, c, ..., o], t, [model.richness * model.sizes[-1] * x for x in z])


def _form_kernels(question: Question, arrays: dict[str, np.ndarray], memory: observe.Memory) -> None:
    """Two-time kernels from what was kept."""
    cross = not question.by_layer
    if memory.features is not None:
        arrays["feature_kernel"][...] = observe.feature_kernel(question.model, memory.features, cross=cross)
    if memory.gradients is not None:
        kernel = observe.gradient_kernel(memory.gradients, cross=cross)
        arrays["gradient_kernel"][...] = kernel.reshape(arrays["gradient_kernel"].shape)


def _blank(run: _Run, arrays: dict[str, np.ndarray], n_rows: np.ndarray) -> None:
    """Infinite entries from the step on at which a network diverged."""
    for r in np.flatnonzero(n_rows < run.n_rows):
        late = {"step": np.arange(run.n_rows) >= n_rows[r], "at": run.at >= n_rows[r]}
        for name, array in arrays.items():
            dims = run.layout[name][0]
            timed = [i for i, dim in enumerate(dims) if dim.rstrip("_") in late]
            for axis in timed:
                np.moveaxis(array[r], axis, 0)[late[dims[axis].rstrip("_")]] = np.inf
            if not timed:
                array[r] = np.inf


def _coords(run: _Run, wanted: Sequence[str]) -> dict[str, Any]:
    """Physical time, and which steps and readouts are meant."""
    dims = {dim for name in wanted for dim in run.layout[name][0]}
    named = {"at": run.at, "readout": np.asarray(run.question.supervised)}
    coords: dict[str, Any] = {dim: named[dim.rstrip("_")] for dim in dims if dim.rstrip("_") in named}
    if "step" in dims:
        coords["time"] = ("step", np.concatenate([[0.0], np.cumsum(run.protocol.rates)]))
    return coords


def _certify(
    run: _Run,
    arrays: dict[str, np.ndarray],
    n_rows: np.ndarray,
    start: float,
    options: dict[str, Any],
    notes: Sequence[str],
    left_out: tuple[str, ...],
) -> Certificate:
    """The certificate of a simulation; one network that ran away makes every mean infinite."""
    lost, said = n_rows[n_rows < run.n_rows], [*notes]
    if lost.size:
        said.append(f"diverged in {lost.size} of {run.replicates} networks, first at step {lost.min()}")
    if not run.question.equal_widths:
        said.append(
            "unequal widths: kernels are those of each layer with itself, no preactivation, pregradient or state_prediction"
        )
    certificate = certify(NAME, arrays, start, seed=run.seed, options=options, notes=said, left_out=left_out)
    certificate = replace(certificate, steps=len(run.protocol.rates))
    if not lost.size or not lost.min():  # infinite before any update: the start overflowed
        return certificate
    told = {"diverged": int(lost.size), "diverged_at_step": int(lost.min())}
    return replace(certificate, failure=Status.diverged, diagnostics=told)
