r"""Random deep and recurrent networks of finite width: one law, sampled with drawn weights or without them.

One random stream per replicate: a result depends on the seed and the method, not on batches or on what else is asked for.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from widefield.answer import boundary
from widefield.answer.solution import Solution, make_solution
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.simulate.networks.activations import activate
from widefield.simulate.networks.call import (
    certify,
    check_call,
    check_shared_inputs,
    choose,
    count,
    labeled,
    n_bytes,
    peak_bytes,
    refuse_memory,
    timed_bar,
)
from widefield.simulate.networks.cores import Advance, share
from widefield.simulate.networks.forward import Parameters, prior_scales, tangent_kernel
from widefield.simulate.networks.streams import HIDDEN, streams
from widefield.simulate.networks.weights import (
    DrawnWeights,
    ExternalInput,
    TiedWeightFree,
    UntiedWeightFree,
    coordinates,
)
from widefield.simulate.prior.cost import Plan, plan
from widefield.simulate.prior.fields import Readout, State, draw_readout, layout, measure

NAME = "simulate.prior"
UNEQUAL = "unequal widths: averages over two different states do not exist; draw is at the last state"


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
    Method: ``"dense"`` draws the weights, ``"weight_free"`` samples the same law without them (untied weights by the Gram
    matrix of each layer, tied ones by conditioning :math:`W` on its action so far), ``"auto"`` takes the cheaper by counted
    work. Inputs of high dimension enter through their inner products.
    Error: each replicate is exact for its network. Success means that no network was lost to overflow; the standard error
    of the mean over replicates, relative to the largest entry of each field, stands in the certificate's diagnostics.
    Limits: means over replicates differ from the infinite-width theory by :math:`O(1/n)`, see `extrapolate`. Recurrent
    relu networks near criticality are heavy-tailed at small width (Fig. 3 there).
    """
    began = time.perf_counter()
    replicates, seed = check_call(NAME, network, task, replicates=replicates, seed=seed, progress=progress, throw=throw)
    width, n_outputs = count("width", width, 1), count("n_outputs", n_outputs, 1)
    sizes, x = network.sizes(width), task.sequences(network.depth)
    check_shared_inputs(network, sizes, x.shape[1])
    if network.readout_variance is None and n_outputs > min(sizes):
        raise ValueError(f"`n_outputs` must be at most the smallest width {min(sizes)} without a readout layer.")
    fields = layout(network, sizes, task, n_outputs)
    of_field = {name: n for name, n in n_bytes(fields, replicates).items() if quantities is not None or name != "ntk"}
    room = plan(network, sizes, task, method, () if quantities is not None else tuple(of_field), n_outputs).n_bytes(
        replicates
    )
    wanted, left_out = choose(quantities, of_field, room)
    left_out = (*left_out, *(fields.keys() - of_field.keys()))
    chosen = plan(network, sizes, task, method, wanted, n_outputs)

    def need(width: int, replicates: int) -> int:
        smaller = plan(network, network.sizes(width), task, method, wanted, n_outputs)
        return peak_bytes(fields, wanted, replicates, smaller.n_bytes(replicates))

    parts = f"{replicates} replicates, batches of {chosen.batch(replicates)} networks by method {chosen.method!r}: {', '.join(wanted)}"
    refuse_memory(NAME, need, {"width": width, "replicates": replicates}, parts)
    ensemble = _Ensemble(network, sizes, coordinates(x, reduce=chosen.reduce_inputs), chosen, seed, n_outputs)
    batch = chosen.batch(replicates)
    arrays = {name: np.empty((replicates, *fields[name][1])) for name in wanted}
    with timed_bar(
        f"{replicates} networks of width {width}", replicates, progress, replicates * chosen.seconds
    ) as advance:
        share(partial(ensemble.simulate, arrays, batch), replicates, batch, advance)
    options = {
        "width": width,
        "replicates": replicates,
        "method": chosen.method,
        "inputs": "inner products" if chosen.reduce_inputs else "drawn weights",
        "n_outputs": n_outputs,
    }
    notes = [*task.notes, *([chosen.note] if chosen.note else []), *([UNEQUAL] if len(set(sizes)) > 1 else [])]
    certificate = certify(NAME, arrays, began, seed=seed, options=options, notes=notes, left_out=left_out)
    return make_solution(labeled(fields, arrays), certificate, network, task, throw=throw)


@dataclass(frozen=True)
class _Ensemble:
    """What all batches of networks share. ``inputs`` are (driven state, sample, coordinate)."""

    net: Network
    sizes: tuple[int, ...]
    inputs: np.ndarray
    plan: Plan
    seed: int
    n_outputs: int

    @np.errstate(over="ignore", invalid="ignore")
    def simulate(self, arrays: dict[str, np.ndarray], n_padded: int, block: slice, advance: Advance) -> None:
        """One batch of networks."""
        replicates, keep = range(block.start, block.stop), "ntk" in arrays
        rngs = streams(self.seed, replicates, HIDDEN)
        external = ExternalInput(self.net, self.sizes, self.inputs, rngs, keep)
        weights: DrawnWeights | TiedWeightFree | UntiedWeightFree
        if self.plan.method == "dense":
            weights = DrawnWeights(self.net, self.sizes, rngs, keep)
        elif self.net.weights == "tied":
            weights = TiedWeightFree(self.net, self.sizes, self.inputs.shape[1], rngs)
        else:
            weights = UntiedWeightFree(self.net, self.sizes, rngs)
        readout = None
        if {"draw", "ntk"} & set(arrays):
            readout = draw_readout(self.net, self.seed, replicates, self.sizes[-1], self.n_outputs)
        measure(arrays, block, self._trajectory(external, weights, n_padded), self.net, readout)
        if keep and isinstance(weights, DrawnWeights):
            self._fill_ntk(arrays["ntk"][block], external, weights, readout)
        advance(block.stop - block.start)

    def _trajectory(
        self, external: ExternalInput, weights: DrawnWeights | TiedWeightFree | UntiedWeightFree, n_padded: int
    ) -> Iterator[State]:
        """The states of a batch: index, pre-activations and features, both (replicate, sample, neuron)."""
        h = np.zeros((len(external.rngs), self.inputs.shape[1], self.sizes[0]))
        for a in range(self.net.depth):
            external.add(a, h)
            feature = activate(self.net.activation, h, n_padded)
            yield a, h, feature
            if a + 1 < self.net.depth:
                h = weights.advance(a + 1, feature)

    def _fill_ntk(
        self, ntk: np.ndarray, external: ExternalInput, weights: DrawnWeights, readout: Readout | None
    ) -> None:
        states = tuple(range(self.net.depth)) if ntk.ndim == 5 else (self.net.depth - 1,)
        scales = prior_scales(self.net, self.sizes, dimension=1)
        for r in range(len(ntk)):
            parameters = Parameters(
                weights=[drawn[r] for drawn in weights.weights],
                input_weights=[drawn[r] for drawn in external.input_weights],
                biases=[drawn[r] for drawn in external.biases],
                readout=[] if readout is None else [drawn[r, :, :1] for drawn in readout],
            )
            kernel = tangent_kernel(parameters, self.inputs, scales, self.net.activation, self.sizes, states)
            ntk[r] = np.asarray(kernel) if ntk.ndim == 5 else np.asarray(kernel)[0, 0]
