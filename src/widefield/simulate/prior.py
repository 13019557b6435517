r"""Random deep and recurrent networks of finite width.

Three samplers of one law. *Dense* draws the weights. *Weight-free* does without: untied weights by the Gram matrix of
each layer, tied weights by conditioning :math:`W` on its action so far (weights are drawn after all when samples times
transitions exceed the width). Inputs of high dimension enter through their inner products. One random stream per
replicate: a result depends on the seed and the method, not on batches or on which other quantities are asked for.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from widefield.answer import boundary
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.simulate.activate import activate
from widefield.simulate.certify import blocks, certify
from widefield.simulate.cost import Plan, plan
from widefield.simulate.dense import Dense
from widefield.simulate.drive import Drive, coordinates
from widefield.simulate.forward import Parameters, prior_scales
from widefield.simulate.record import Layout, Readout, State, draw_readout, layout, record, stored_numbers
from widefield.simulate.streams import HIDDEN, streams
from widefield.simulate.tangent import tangent_kernel
from widefield.simulate.tied import TiedWeightFree
from widefield.simulate.untied import UntiedWeightFree

Recurrence = Dense | UntiedWeightFree | TiedWeightFree


@boundary.x64
def prior(
    network: Network,
    task: Task,
    *,
    width: int,
    replicates: int,
    seed: int,
    method: str = "auto",
    n_outputs: int = 1,
    quantities: Iterable[str] | None = None,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Covariances and outputs of ``replicates`` independent random networks of finite ``width``.

    .. math::
        h^a = W^a \varphi(h^{a-1}) + U^a x^a + \xi^a, \qquad f^a = V \varphi(h^a) + \xi^{\rm out}

    Eqs. 6-8 of Segadlo et al. (2022), one network per replicate. Fields, each with a leading ``replicate`` dim:

    - ``hidden``, ``feature`` (state, state\_, sample, sample\_): :math:`\frac1n \sum_i h^a_{i\alpha} h^b_{i\beta}` and
      the same of :math:`\varphi(h)`; ``readout`` = :math:`v` ``feature`` + readout bias variance, the covariance of the
      outputs given the hidden states; ``output`` (sample, sample\_), its block at the last state.
    - ``draw`` (state, sample, output): the outputs themselves, with one drawn :math:`V` for all states.
    - ``ntk`` (sample, sample\_): the empirical neural tangent kernel of the first output at the last state, all
      parameters trained at unit rate; (state, state\_, sample, sample\_) over all states when the task supervises
      several. Expensive: computed only when named in ``quantities``.

    With ``readout_variance=None`` the outputs are the first ``n_outputs`` neurons of each state, ``readout`` is
    ``hidden``. With unequal widths averages over two different states do not exist: ``hidden_diagonal`` and
    ``feature_diagonal`` (state, sample, sample\_) take their place, and ``draw`` (sample, output) is at the last state.

    Notation: :math:`\mathrm{Var}\,W = w/n_{a-1}`, :math:`\mathrm{Var}\,U = u/D`, :math:`\mathrm{Var}\,\xi = b`,
    :math:`\mathrm{Var}\,V = v/n`; layer sizes are ``network.sizes(width)``.
    Method: ``"dense"`` draws the weights, ``"weight_free"`` samples the same law without them (see the module),
    ``"auto"`` takes the cheaper by counted work.
    Error: each replicate is exact for its network; the standard error of the mean over replicates, relative to the
    largest entry of each field, stands in the certificate.
    Limits: means over replicates differ from the infinite-width theory by :math:`O(1/n)`, see `extrapolate`. Recurrent
    relu networks near criticality are heavy-tailed at small width (Fig. 3 of the paper).
    """
    start = time.perf_counter()
    sizes = _check(network, task, width, replicates, seed, n_outputs, progress)
    fields = layout(network, sizes, task, n_outputs)
    wanted, left_out = _choose(quantities, fields, replicates)
    x = task.sequences(network.depth)
    chosen = plan(network, sizes, x.shape, method, wanted, stored_numbers(wanted, network, sizes, task.n_samples))
    run = _Run(network, sizes, coordinates(x, reduce=chosen.reduce_inputs), chosen, replicates, seed, n_outputs)
    arrays = {name: np.empty((replicates, *fields[name][1])) for name in wanted}
    with bar(f"{replicates} networks of width {width}", replicates, progress, replicates * chosen.seconds) as advance:
        for block in blocks(replicates, run.batch):
            _simulate(run, arrays, block)
            advance(block.stop - block.start)
    options, notes = run.options(width), _notes(run, task)
    certificate = certify(
        "simulate.prior", arrays, start, seed=int(seed), options=options, notes=notes, left_out=left_out
    )
    named = {name: (("replicate", *fields[name][0]), value) for name, value in arrays.items()}
    return make_solution(named, certificate, network, task, throw=throw)


@dataclass(frozen=True)
class _Run:
    """What all batches of one simulation share. ``inputs`` are (driven state, sample, coordinate)."""

    net: Network
    sizes: tuple[int, ...]
    inputs: np.ndarray
    plan: Plan
    replicates: int
    seed: int
    n_outputs: int

    @property
    def batch(self) -> int:
        return self.plan.batch(self.replicates)

    def options(self, width: int) -> dict[str, Any]:
        """What the certificate tells of the run."""
        return {
            "width": int(width),
            "replicates": int(self.replicates),
            "method": self.plan.method,
            "inputs": "inner products" if self.plan.reduce_inputs else "drawn weights",
            "n_outputs": int(self.n_outputs),
        }


def _check(
    net: Network, task: Task, width: int, replicates: int, seed: int, n_outputs: int, progress: bool | None
) -> tuple[int, ...]:
    """Layer sizes, once the arguments are known to make sense."""
    if not isinstance(net, Network):
        raise ValueError(f"`network` must be a widefield.Network (DNN or RNN), got {type(net).__name__}.")
    net.refuse_branch("simulate.prior")
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a widefield.Task, got {type(task).__name__}.")
    checks.integer("replicates", replicates, 1)
    checks.integer("seed", seed, 0)
    checks.integer("n_outputs", n_outputs, 1)
    if progress not in (None, True, False):
        raise ValueError(f"`progress` must be None, True or False, got {progress!r}.")
    sizes = net.sizes(width)
    n_driven = task.sequences(net.depth).shape[1]
    if net.inputs == "tied" and len(set(sizes[:n_driven])) > 1:
        raise ValueError(f"`inputs` must be 'untied': {n_driven} driven states of unequal widths {sizes} share no U.")
    if net.readout_variance is None and n_outputs > min(sizes):
        raise ValueError(f"`n_outputs` must be at most the smallest width {min(sizes)} without a readout layer.")
    return sizes


def _choose(
    quantities: Iterable[str] | None, fields: Layout, replicates: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    n_bytes = {name: 8 * replicates * math.prod(shape) for name, (_, shape) in fields.items()}
    if quantities is not None:
        return boundary.choose_quantities(quantities, n_bytes)
    cheap = {name: size for name, size in n_bytes.items() if name != "ntk"}
    wanted, left_out = boundary.choose_quantities(None, cheap)
    return wanted, (*left_out, *(n_bytes.keys() - cheap.keys()))


def _notes(run: _Run, task: Task) -> list[str]:
    notes = [*task.notes, *([run.plan.note] if run.plan.note else [])]
    if len(set(run.sizes)) > 1:
        notes.append("unequal widths: averages over two different states do not exist; draw is at the last state")
    return notes


@np.errstate(over="ignore", invalid="ignore")
def _simulate(run: _Run, arrays: dict[str, np.ndarray], block: slice) -> None:
    """One batch of networks."""
    replicates = range(block.start, block.stop)
    rngs = streams(run.seed, replicates, HIDDEN)
    drive = Drive(run.net, run.sizes, run.inputs, rngs, keep="ntk" in arrays)
    recurrence = _recurrence(run, rngs, keep="ntk" in arrays)
    readout = None
    if {"draw", "ntk"} & set(arrays):
        readout = draw_readout(run.net, run.seed, replicates, run.sizes[-1], run.n_outputs)
    record(arrays, block, _trajectory(run, drive, recurrence), run.net, readout)
    if "ntk" in arrays and isinstance(recurrence, Dense):
        _fill_ntk(run, arrays["ntk"][block], drive, recurrence, readout)


def _recurrence(run: _Run, rngs: Sequence[np.random.Generator], *, keep: bool) -> Recurrence:
    if run.plan.method == "dense":
        return Dense(run.net, run.sizes, rngs, keep)
    if run.net.weights == "tied":
        return TiedWeightFree(run.net, run.sizes, run.inputs.shape[1], rngs)
    return UntiedWeightFree(run.net, run.sizes, rngs)


def _trajectory(run: _Run, drive: Drive, recurrence: Recurrence) -> Iterator[State]:
    """The states of a batch: index, pre-activations and features, both (replicate, sample, neuron)."""
    h = np.zeros((len(drive.rngs), run.inputs.shape[1], run.sizes[0]))
    for a in range(run.net.depth):
        drive.add(a, h)
        feature = activate(run.net.activation, h, run.batch)
        yield a, h, feature
        if a + 1 < run.net.depth:
            h = recurrence.advance(a + 1, feature)


def _fill_ntk(run: _Run, ntk: np.ndarray, drive: Drive, recurrence: Dense, readout: Readout | None) -> None:
    states = tuple(range(run.net.depth)) if ntk.ndim == 5 else (run.net.depth - 1,)
    scales = prior_scales(run.net, run.sizes, dimension=1)
    for r in range(len(ntk)):
        parameters = Parameters(
            weights=[drawn[r] for drawn in recurrence.weights],
            input_weights=[drawn[r] for drawn in drive.input_weights],
            biases=[drawn[r] for drawn in drive.biases],
            readout=[] if readout is None else [drawn[r, :, :1] for drawn in readout],
        )
        kernel = np.asarray(tangent_kernel(parameters, run.inputs, scales, run.net.activation, run.sizes, states))
        ntk[r] = kernel if ntk.ndim == 5 else kernel[0, 0]
