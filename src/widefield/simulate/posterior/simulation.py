r"""Trained networks of finite width: weights drawn from their posterior. One random stream per chain.

``"hmc"`` integrates out :math:`V`, in which the posterior is Gaussian, and samples :math:`U, W` by Hamiltonian Monte
Carlo that is exact under the prior, see `hmc`; predictions are averaged over :math:`V` given the features. ``"sgld"``
runs the Langevin dynamics of all weights; ``precondition=False`` is plain training, :math:`d\theta =
-\nabla\frac12\sum(f-y)^2\,dt - K G^{-1}\theta\,dt + \sqrt{2K}\,dB`, whose input weights relax :math:`N^2` times more
slowly than its readout. Inputs of high dimension enter through their inner products.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from widefield.answer import boundary
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.simulate.networks.call import (
    Layout,
    batch_size,
    blocks,
    certify,
    check_call,
    choose,
    count,
    labeled,
    n_bytes,
    peak_bytes,
    refuse_memory,
    require,
    timed_bar,
)
from widefield.simulate.networks.forward import Parameters
from widefield.simulate.networks.streams import CHAIN, streams
from widefield.simulate.posterior import hmc, langevin
from widefield.simulate.posterior.chains import TRACES, Chains, State, run_chains
from widefield.simulate.posterior.diagnostics import judge
from widefield.simulate.posterior.initial_weights import kernel_of, kernel_weights, prior_weights
from widefield.simulate.posterior.law import Law, draw_readout, law_of

NAME = "simulate.posterior"
SAMPLERS = ("hmc", "sgld")
SPECTRUM = ("eigenvalue_real", "eigenvalue_imag")
MIRROR = "W -> -W is a symmetry: networks are reported with positively correlated adjacent states"
LEAPS, UPDATES = 12, 200  # of a move, roughly
LONGEST_CALL = 0.5  # seconds, of a few moves in JAX
COMPILE, LEAP, NORMAL, BYTE = (
    2.0,
    1e-4,
    2.5e-8,
    1.5e-10,
)  # seconds in all; per leap, random number, byte moved, one core
BATCH_NUMBERS = 2**14  # weights that move together: enough to hide the overhead of small networks
WORKING_COPIES = 11  # of all weights: positions, momenta and gradients, old and new
TRACE_COPIES = 3  # of what is kept of every draw


@boundary.x64
def posterior(
    network: Network,
    task: Task,
    *,
    temperature: float,
    width: int,
    replicates: int,
    seed: int,
    sampler: str = "hmc",
    draws: int = 400,
    warmup: int = 200,
    start: Any = "prior",
    rate: float | None = None,
    updates: int | None = None,
    precondition: bool = True,
    quantities: Iterable[str] | None = None,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Averages over the weights of trained networks: ``replicates`` independent chains in the posterior of one task.

    .. math::
        p(U, W, V | y) \propto \exp\Big({-\frac{N}{2\kappa}} \sum_{S} (f - y)^2\Big)\, p(U)\, p(W)\, p(V), \qquad
        h^a = W^a \varphi(h^{a-1}) + U^a x^a, \quad f^a = V \varphi(h^a)

    Bauer et al., "A unified theory of feature learning in RNNs and DNNs", Section 2: the law that noisy gradient descent
    with weight decay reaches. Fields, each with a leading ``replicate`` dim (one chain), each the average over the
    ``draws`` networks of the chain:

    - ``hidden``, ``feature`` (state, state\_, sample, sample\_): :math:`\frac1N \sum_i h^a_{i\alpha} h^b_{i\beta}` and
      the same of :math:`\varphi(h)`; ``squared_correlation``: the average of :math:`H_{ab}^2/(H_{aa} H_{bb})`.
    - ``prediction`` (state, sample, output), with test inputs ``test_prediction`` (state, test, output), at all states.
    - ``energy``: :math:`\frac12 \mathrm{tr}\,\mathbb Y (v\Phi_{SS} + \kappa)^{-1}`.
    - ``eigenvalue_real``, ``eigenvalue_imag`` (eigenvalue), for tied weights: the spectrum of :math:`W` of the last network.

    Notation: :math:`\kappa` = ``temperature`` (:math:`NK` for :math:`\frac12\sum(f-y)^2` at temperature :math:`K`),
    :math:`N` = ``width``, :math:`\mathrm{Var}\,U = u/D`, :math:`\mathrm{Var}\,W = w/N`, :math:`\mathrm{Var}\,V = v/N^2`.
    Method: see this module. Each chain makes ``warmup`` moves, then ``draws`` measured ones. ``"sgld"`` makes ``updates``
    updates of size ``rate`` per move. ``start`` is ``"prior"``, or a Solution or array with a ``hidden`` kernel: chains
    then start at networks with that kernel.
    Error: success means that no chain was lost to overflow, that split :math:`\hat R` of a trace of every field (and of
    the correlation of adjacent states) is at most 1.05 and that every chain is worth 5 independent draws or more;
    otherwise the status is ``not_converged``. Standard errors over chains, :math:`\hat R` and effective draws of each trace
    stand in the diagnostics. ``"sgld"`` has a bias of order ``rate`` besides.
    Limits: chains mix within a phase; near a transition compare starts in both. Small ``temperature`` is stiff.
    """
    began = time.perf_counter()
    replicates, seed = check_call(NAME, network, task, replicates=replicates, seed=seed, progress=progress, throw=throw)
    width = count("width", width, 1)
    _check_network(network, task, width)
    kappa = checks.nonnegative("temperature", temperature, positive=True)
    asked: dict[str, Any] = {
        "sampler": checks.choice("sampler", sampler, SAMPLERS),
        "draws": count("draws", draws, 2),
        "warmup": count("warmup", warmup, 0),
        "rate": None if rate is None else checks.nonnegative("rate", rate, positive=True),
        "updates": None if updates is None else count("updates", updates, 1),
        "precondition": checks.flag("precondition", precondition),
    }
    kernel = kernel_of(start, network, task.n_samples, width)
    law = law_of(network, task, kappa, width)
    sampling = _Sampling(network, law, kernel, replicates, seed, **asked)
    langevin_only = {name: asked.pop(name) for name in ("rate", "updates", "precondition")}
    given = [name for name, value in langevin_only.items() if value is not None and value is not True]
    if given and sampler != "sgld":
        raise ValueError(f"`{given[0]}` belongs to the posterior's sampler 'sgld', got sampler {sampler!r}.")
    options = {"width": width, "temperature": kappa, "replicates": replicates} | asked
    options |= {"start": "prior" if kernel is None else "kernel"} | (langevin_only if sampler == "sgld" else {})
    layout = _layout(sampling, task)
    wanted, left_out = choose(quantities, n_bytes(layout, sampling.replicates))

    def need(width: int, replicates: int, draws: int) -> int:
        n_all = task.n_samples + task.n_test
        batch, weights = sampling.batch(width, replicates), sampling.n_weights(width)
        numbers = 3 * (network.depth * task.n_samples) ** 2 + network.depth * n_all * sampling.law.labels.shape[2]
        moving = batch * (WORKING_COPIES * weights + 4 * network.depth * n_all * width + numbers)
        kept = max(replicates, batch) * (2 * numbers + TRACE_COPIES * 8 * draws)
        return peak_bytes(layout, wanted, replicates, 8 * (moving + kept))

    what = f"chains of networks of {sampling.n_weights(width)} weights: {', '.join(wanted)}"
    refuse_memory(NAME, need, {"width": width, "replicates": replicates, "draws": draws}, what)
    chains, spectra, notes = _sample(sampling, progress, with_spectra=bool({*SPECTRUM} & {*wanted}))
    n, fields = task.n_samples, chains.mean._asdict()
    fields |= {"prediction": chains.mean.prediction[:, :, :n], "test_prediction": chains.mean.prediction[:, :, n:]}
    fields |= {"eigenvalue_real": np.real(spectra), "eigenvalue_imag": np.imag(spectra)} if spectra else {}
    arrays = {name: fields[name] for name in wanted}
    averages = {name: values for name, values in arrays.items() if name not in SPECTRUM}
    traces = dict(zip(TRACES, np.moveaxis(chains.traces, 2, 0), strict=False))
    knobs = "`draws` and `warmup`" if sampler == "hmc" else "`draws`, `warmup` and `updates`"
    judged, diagnostics, advice = judge(
        {k: v for k, v in traces.items() if k != "test_prediction" or task.n_test}, knobs
    )
    certificate = certify(
        NAME,
        averages or {"energy": np.asarray(chains.mean.energy)},
        began,
        seed=sampling.seed,
        options=options,
        notes=(*task.notes, *notes, *([MIRROR] if sampling.law.mirror else []), *advice),
        left_out=left_out,
        checks=judged,
        diagnostics=_tuning(sampling, chains) | diagnostics,
        steps=sampling.draws,
    )
    return make_solution(labeled(layout, arrays), certificate, network, task, throw=throw)


@dataclass(frozen=True)
class _Sampling:
    """What all chains share."""

    net: Network
    law: Law
    kernel: np.ndarray | None
    replicates: int
    seed: int
    sampler: str
    draws: int
    warmup: int
    rate: float | None
    updates: int | None
    precondition: bool

    def n_weights(self, width: int) -> int:
        """Numbers in the weights of one network."""
        depth = self.net.depth
        n_uses = 1 if self.net.inputs == "tied" else len(self.law.inputs)
        n_recurrent = min(depth - 1, 1) if self.net.weights == "tied" else depth - 1
        return width * (width * n_recurrent + n_uses * self.law.inputs.shape[2])

    def batch(self, width: int, replicates: int) -> int:
        """Chains that move together."""
        return batch_size(replicates, max(1, BATCH_NUMBERS // self.n_weights(width)))

    @property
    def seconds_of_move(self) -> float:
        """A rough estimate for one chain."""
        n_weights = self.n_weights(self.law.width)
        leap = 8 * n_weights * (6 + 2 * self.net.depth * (1 + self.law.inputs.shape[1] / 8)) * BYTE
        if self.sampler == "hmc":
            return LEAPS * leap + NORMAL * n_weights
        return (self.updates or UPDATES) * (leap + NORMAL * n_weights)

    @property
    def seconds(self) -> float:
        """A rough estimate of the whole work."""
        moves, n_batches = self.warmup + self.draws, -(-self.replicates // self.batch(self.law.width, self.replicates))
        leaps = LEAPS if self.sampler == "hmc" else self.updates or UPDATES
        return COMPILE + moves * (self.replicates * self.seconds_of_move + n_batches * leaps * LEAP)


def _check_network(net: Network, task: Task, width: int) -> None:
    """Refuse what the posterior does not cover, by name."""
    if task.y is None:
        raise ValueError("`y` is needed: the posterior is that of networks given labels, but the task has none.")
    require(NAME, net, bias_variance=0, readout_bias_variance=0)
    if not net.readout_variance:
        raise ValueError(f"`readout_variance` must be positive in the posterior, got {net.readout_variance}.")
    if len(set(net.sizes(width))) > 1:
        raise ValueError(f"`widths` must all be equal in the posterior, got {net.widths}.")


def _layout(sampling: _Sampling, task: Task) -> Layout:
    """Dims and shape of one chain's share of every available quantity, the most wanted first."""
    s, p, n_out = sampling.net.depth, task.n_samples, sampling.law.labels.shape[2]
    fields: Layout = {"energy": ((), ()), "prediction": (("state", "sample", "output"), (s, p, n_out))}
    if task.n_test:
        fields["test_prediction"] = (("state", "test", "output"), (s, task.n_test, n_out))
    cross = (("state", "state_", "sample", "sample_"), (s, s, p, p))
    fields |= dict.fromkeys(("hidden", "feature", "squared_correlation"), cross)
    if sampling.net.weights == "tied" and s > 1:
        fields |= dict.fromkeys(SPECTRUM, (("eigenvalue",), (sampling.law.width,)))
    return fields


def _sample(
    sampling: _Sampling, progress: bool | None, *, with_spectra: bool
) -> tuple[Chains, list[np.ndarray], list[str]]:
    """Chains, spectra of their last weights, and what there is to say about their first ones."""
    parts: list[Chains] = []
    spectra: list[np.ndarray] = []
    mismatches = [0.0]
    pace, law, warmup, draws = None, sampling.law, sampling.warmup, sampling.draws
    title = f"{sampling.replicates} chains at width {law.width}"
    with timed_bar(title, sampling.replicates * (warmup + draws), progress, sampling.seconds) as advance:
        batch = sampling.batch(law.width, sampling.replicates)
        together = max(1, int(LONGEST_CALL / (batch * sampling.seconds_of_move)))
        for block in blocks(sampling.replicates, batch):
            rngs = streams(sampling.seed, range(block.start, block.start + batch), CHAIN)  # compiled once
            positions: list[Parameters] = []
            for rng in rngs:
                if sampling.kernel is None:
                    position = prior_weights(sampling.net, law, rng)
                else:
                    position, mismatch = kernel_weights(sampling.kernel, sampling.net, law, rng)
                    mismatches.append(mismatch)
                if sampling.sampler == "sgld":  # moves the readout too, drawn here given the features
                    readout = draw_readout(position, law, rng)
                    position = position._replace(readout=[readout, np.zeros((1, readout.shape[1]))])
                positions.append(position)
            if sampling.sampler == "sgld" and pace is None:
                rate, updates, precondition = sampling.rate, sampling.updates, sampling.precondition
                pace = langevin.pace_of(positions[0], law, rate=rate, updates=updates, precondition=precondition)
            tuning, move = (hmc.first_step(), hmc.move) if pace is None else (pace, langevin.move)
            state = State(
                jax.tree.map(lambda *rows: np.stack(rows), *positions),
                jax.tree.map(lambda x: np.stack([x] * batch), tuning),
                jax.vmap(jax.random.key)(np.array([rng.integers(2**62) for rng in rngs])),
            )
            chains, last = run_chains(state, law, move, warmup=warmup, draws=draws, together=together, advance=advance)
            parts.append(chains)
            for w in np.asarray(last.position.weights[0]) if with_spectra else ():
                finite = np.isfinite(w).all()
                spectra.append(np.linalg.eigvals(law.scales.weights[0] * w) if finite else np.full(len(w), np.nan + 0j))
    worst = max(mismatches)
    notes = [f"the starting kernel is reproduced to {worst:.1e} only"] if worst > 1e-6 else []
    together = jax.tree.map(lambda *rows: np.concatenate(rows)[: sampling.replicates], *parts)
    return together, spectra[: sampling.replicates], notes


def _tuning(sampling: _Sampling, chains: Chains) -> dict[str, Any]:
    """How the sampler moved."""
    if sampling.sampler == "hmc":
        acceptance, leaps = (float(chains.moves[..., i].mean()) for i in (0, 1))
        return {"acceptance": acceptance, "step_size": float(np.exp(chains.tuning.mean).mean()), "leaps": leaps}
    rates = jax.tree.map(lambda r: float(r[0]), chains.tuning.rates)
    weights = rates.weights[0] if rates.weights else 0.0
    shown = {"inputs": rates.input_weights[0], "weights": weights, "readout": rates.readout[0]}
    return {"updates": int(chains.tuning.updates[0]), "rate": shown}
