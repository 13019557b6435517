r"""Random deep and recurrent networks of finite width.

Three samplers of one law. *Dense* draws the weights. *Weight-free* does without: untied weights by the Gram matrix of
each layer, tied weights by conditioning :math:`W` on its action so far (weights are drawn after all when samples times
transitions exceed the width). Inputs of high dimension enter through their inner products. One random stream per
replicate: a result depends on the seed and the method, not on batches or on which other quantities are asked for.
"""

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
from widefield.simulate.networks.activations import activate
from widefield.simulate.networks.arguments import check_call, check_shared_inputs
from widefield.simulate.networks.certify import certify
from widefield.simulate.networks.fields import Layout, blocks, labeled, n_bytes
from widefield.simulate.networks.forward import Parameters, prior_scales
from widefield.simulate.networks.inputs import ExternalInput, coordinates
from widefield.simulate.networks.streams import HIDDEN, streams
from widefield.simulate.networks.tangent import tangent_kernel
from widefield.simulate.networks.weights import DrawnWeights, TiedWeightFree, UntiedWeightFree, Weights
from widefield.simulate.prior.cost import Plan, plan
from widefield.simulate.prior.fields import Readout, State, draw_readout, layout, measure, stored_numbers

NAME = "simulate.prior"


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
    Error: each replicate is exact for its network. Success means that no network was lost to overflow; the standard error
    of the mean over replicates, relative to the largest entry of each field, stands in the certificate's diagnostics.
    Limits: means over replicates differ from the infinite-width theory by :math:`O(1/n)`, see `extrapolate`. Recurrent
    relu networks near criticality are heavy-tailed at small width (Fig. 3 there).
    """
    began = time.perf_counter()
    sizes = _check(network, task, width, replicates, seed, n_outputs, progress)
    fields = layout(network, sizes, task, n_outputs)
    wanted, left_out = _choose(quantities, fields, replicates)
    x = task.sequences(network.depth)
    chosen = plan(network, sizes, x.shape, method, wanted, stored_numbers(wanted, network, sizes, task.n_samples))
    inputs = coordinates(x, reduce=chosen.reduce_inputs)
    ensemble = _Ensemble(network, sizes, inputs, chosen, int(replicates), int(seed), int(n_outputs))
    arrays = {name: np.empty((replicates, *fields[name][1])) for name in wanted}
    with bar(f"{replicates} networks of width {width}", replicates, progress, replicates * chosen.seconds) as advance:
        for block in blocks(replicates, ensemble.batch):
            _simulate(ensemble, arrays, block)
            advance(block.stop - block.start)
    options, notes = {"width": int(width)} | ensemble.options(), _notes(ensemble, task)
    certificate = certify(NAME, arrays, began, seed=int(seed), options=options, notes=notes, left_out=left_out)
    return make_solution(labeled(fields, arrays), certificate, network, task, throw=throw)


@dataclass(frozen=True)
class _Ensemble:
    """What all batches of networks share. ``inputs`` are (driven state, sample, coordinate)."""

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

    def options(self) -> dict[str, Any]:
        """What the certificate tells of the networks, beside their width."""
        inputs = "inner products" if self.plan.reduce_inputs else "drawn weights"
        told = {"replicates": self.replicates, "method": self.plan.method, "inputs": inputs}
        return told | {"n_outputs": self.n_outputs}


def _check(
    net: Network, task: Task, width: int, replicates: int, seed: int, n_outputs: int, progress: bool | None
) -> tuple[int, ...]:
    """Layer sizes, once the arguments are known to make sense."""
    check_call(NAME, net, task, replicates=replicates, seed=seed, progress=progress)
    checks.integer("n_outputs", n_outputs, 1)
    sizes = net.sizes(width)
    check_shared_inputs(net, sizes, task.sequences(net.depth).shape[1])
    if net.readout_variance is None and n_outputs > min(sizes):
        raise ValueError(f"`n_outputs` must be at most the smallest width {min(sizes)} without a readout layer.")
    return sizes


def _choose(
    quantities: Iterable[str] | None, fields: Layout, replicates: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sizes = n_bytes(fields, replicates)
    if quantities is not None:
        return boundary.choose_quantities(quantities, sizes)
    cheap = {name: size for name, size in sizes.items() if name != "ntk"}
    wanted, left_out = boundary.choose_quantities(None, cheap)
    return wanted, (*left_out, *(sizes.keys() - cheap.keys()))


def _notes(ensemble: _Ensemble, task: Task) -> list[str]:
    notes = [*task.notes, *([ensemble.plan.note] if ensemble.plan.note else [])]
    if len(set(ensemble.sizes)) > 1:
        notes.append("unequal widths: averages over two different states do not exist; draw is at the last state")
    return notes


@np.errstate(over="ignore", invalid="ignore")
def _simulate(ensemble: _Ensemble, arrays: dict[str, np.ndarray], block: slice) -> None:
    """One batch of networks."""
    replicates, keep = range(block.start, block.stop), "ntk" in arrays
    rngs = streams(ensemble.seed, replicates, HIDDEN)
    external = ExternalInput(ensemble.net, ensemble.sizes, ensemble.inputs, rngs, keep)
    weights = _weights(ensemble, rngs, keep=keep)
    readout = None
    if {"draw", "ntk"} & set(arrays):
        readout = draw_readout(ensemble.net, ensemble.seed, replicates, ensemble.sizes[-1], ensemble.n_outputs)
    measure(arrays, block, _trajectory(ensemble, external, weights), ensemble.net, readout)
    if keep and isinstance(weights, DrawnWeights):
        _fill_ntk(ensemble, arrays["ntk"][block], external, weights, readout)


def _weights(ensemble: _Ensemble, rngs: Sequence[np.random.Generator], *, keep: bool) -> Weights:
    if ensemble.plan.method == "dense":
        return DrawnWeights(ensemble.net, ensemble.sizes, rngs, keep)
    if ensemble.net.weights == "tied":
        return TiedWeightFree(ensemble.net, ensemble.sizes, ensemble.inputs.shape[1], rngs)
    return UntiedWeightFree(ensemble.net, ensemble.sizes, rngs)


def _trajectory(ensemble: _Ensemble, external: ExternalInput, weights: Weights) -> Iterator[State]:
    """The states of a batch: index, pre-activations and features, both (replicate, sample, neuron)."""
    h = np.zeros((len(external.rngs), ensemble.inputs.shape[1], ensemble.sizes[0]))
    for a in range(ensemble.net.depth):
        external.add(a, h)
        feature = activate(ensemble.net.activation, h, ensemble.batch)
        yield a, h, feature
        if a + 1 < ensemble.net.depth:
            h = weights.advance(a + 1, feature)


def _fill_ntk(
    ensemble: _Ensemble, ntk: np.ndarray, external: ExternalInput, weights: DrawnWeights, readout: Readout | None
) -> None:
    net, sizes = ensemble.net, ensemble.sizes
    states = tuple(range(net.depth)) if ntk.ndim == 5 else (net.depth - 1,)
    scales = prior_scales(net, sizes, dimension=1)
    for r in range(len(ntk)):
        parameters = Parameters(
            weights=[drawn[r] for drawn in weights.weights],
            input_weights=[drawn[r] for drawn in external.input_weights],
            biases=[drawn[r] for drawn in external.biases],
            readout=[] if readout is None else [drawn[r, :, :1] for drawn in readout],
        )
        kernel = np.asarray(tangent_kernel(parameters, ensemble.inputs, scales, net.activation, sizes, states))
        ntk[r] = kernel if ntk.ndim == 5 else kernel[0, 0]
