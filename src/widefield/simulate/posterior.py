r"""Trained networks of finite width: weights drawn from their posterior.

``"hmc"`` integrates out :math:`V`, in which the posterior is Gaussian, and samples :math:`U, W` by Hamiltonian Monte
Carlo that is exact under the prior, see `hmc`: the same law, without the stiff directions of :math:`V`; predictions are
averaged over :math:`V` given the features. ``"sgld"`` runs the Langevin dynamics of all weights; ``precondition=False``
is plain training, :math:`d\theta = -\nabla\frac12\sum(f-y)^2\,dt - K G^{-1}\theta\,dt + \sqrt{2K}\,dB`, whose input
weights relax :math:`N^2` times more slowly than its readout. Where :math:`W \to -W` is a symmetry, networks are reported
with positively correlated adjacent states (the certificate says so). Inputs of high dimension enter through their inner
products. One random stream per chain; a chain does not depend on the others.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from widefield.answer import boundary
from widefield.answer.certificate import Certificate, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.simulate import hmc, langevin
from widefield.simulate.certify import blocks, certify
from widefield.simulate.chains import MIN_DRAWS, effective_draws, split_r_hat
from widefield.simulate.drive import coordinates
from widefield.simulate.evidence import Form, Law, draw_readout
from widefield.simulate.forward import Parameters, prior_scales
from widefield.simulate.observe import TRACES, is_mirror_symmetric
from widefield.simulate.starts import kernel_of, kernel_weights, prior_weights
from widefield.simulate.streams import streams
from widefield.simulate.walk import Chains, walk

SAMPLERS = ("hmc", "sgld")
CHAIN = 2  # purpose of the random stream, beside those of `streams`
R_HAT_LIMIT = 1.05
LEAPS, NORMAL, BYTE = 8, 2.5e-8, 1.5e-10  # per trajectory; seconds per random number and per byte moved, one core
BATCH_NUMBERS = 2**14  # weights that move together: enough to hide the overhead of small networks
WORKING_COPIES = 8  # of all weights: positions, momenta and gradients, old and new


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
    steps: int = 400,
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

    Section 1 of the posterior theory: the law that noisy gradient descent with weight decay reaches. Fields, each with
    a leading ``replicate`` dim (one chain), each the average over the ``steps`` recorded networks of the chain:

    - ``hidden``, ``feature`` (state, state\_, sample, sample\_): :math:`\frac1N \sum_i h^a_{i\alpha} h^b_{i\beta}` and
      the same of :math:`\varphi(h)`; ``squared_correlation``: the average of :math:`H_{ab}^2/(H_{aa} H_{bb})`.
    - ``prediction`` (state, sample, output), with test inputs ``test_prediction`` (state, test, output), at all states.
    - ``energy``: :math:`\frac12 \mathrm{tr}\,\mathbb Y (v\Phi_{SS} + \kappa)^{-1}`.
    - ``eigenvalue_real``, ``eigenvalue_imag`` (eigenvalue), for tied weights: the spectrum of :math:`W` of the last network.

    Notation: :math:`\kappa` = ``temperature`` (:math:`NK` for :math:`\frac12\sum(f-y)^2` at temperature :math:`K`),
    :math:`N` = ``width``, :math:`\mathrm{Var}\,U = u/D`, :math:`\mathrm{Var}\,W = w/N`, :math:`\mathrm{Var}\,V = v/N^2`.
    Method: see this module. ``"sgld"`` takes ``updates`` steps of size ``rate`` between records. ``start`` is
    ``"prior"``, or a Solution or array with a ``hidden`` kernel: chains then start at networks with that kernel.
    Error: standard errors over chains, split :math:`\hat R` and effective sample sizes stand in the certificate; above
    :math:`\hat R = 1.05` the status is ``not_converged``. ``"sgld"`` has a bias of order ``rate`` besides.
    Limits: chains mix within a phase; near a transition compare starts in both. Small ``temperature`` is stiff.
    """
    began = time.perf_counter()
    task_labels = _check(network, task, width, replicates, seed, progress)
    kappa = checks.nonnegative("temperature", temperature, positive=True)
    run = _Run(
        net=network,
        law=_law(network, task, kappa, width, task_labels),
        form=_form(network, task, width),
        kernel=kernel_of(start, network, task.n_samples, width),
        sampler=checks.choice("sampler", sampler, SAMPLERS),
        steps=checks.integer("steps", steps, 2),
        warmup=checks.integer("warmup", warmup, 0),
        replicates=replicates,
        seed=seed,
        rate=None if rate is None else checks.nonnegative("rate", rate, positive=True),
        updates=None if updates is None else checks.integer("updates", updates, 1),
        precondition=_flag("precondition", precondition),
    )
    return _sample(run, task, quantities, progress, throw, began)


def _form(network: Network, task: Task, width: int) -> Form:
    states = task.supervised_states(network.depth)
    return Form(network.activation, network.sizes(width), states, is_mirror_symmetric(network, task))


def _sample(run: "_Run", task: Task, quantities, progress: bool | None, throw: bool, began: float) -> Solution:
    """Run the chains and average over them."""
    _check_langevin_options(run)
    layout, replicates = _layout(run, task), run.replicates
    sizes = {name: 8 * replicates * int(np.prod(shape, dtype=int)) for name, (_, shape) in layout.items()}
    wanted, left_out = boundary.choose_quantities(quantities, sizes)
    _check_memory(run)
    chains, spectra, notes = _run_chains(
        run, progress, spectra="eigenvalue_real" in wanted or "eigenvalue_imag" in wanted
    )
    arrays = _fields(run, task, chains, spectra)
    certificate = _certify(run, task, chains, {k: v for k, v in arrays.items() if k in wanted}, began, notes, left_out)
    named = {name: (("replicate", *layout[name][0]), arrays[name]) for name in wanted}
    return make_solution(named, certificate, run.net, task, throw=throw)


@dataclass(frozen=True)
class _Run:
    """What all chains share."""

    net: Network
    law: Law
    form: Form
    kernel: np.ndarray | None
    sampler: str
    steps: int
    warmup: int
    replicates: int
    seed: int
    rate: float | None
    updates: int | None
    precondition: bool

    def options(self) -> dict[str, Any]:
        """What the certificate tells of the run."""
        names = ("sampler", "steps", "warmup", "replicates")
        common = {"width": self.form.width, "temperature": float(self.law.temperature)}
        common |= {name: getattr(self, name) for name in names} | {
            "start": "prior" if self.kernel is None else "kernel"
        }
        if self.sampler == "hmc":
            return common
        return common | {"rate": self.rate, "updates": self.updates, "precondition": self.precondition}

    @property
    def n_weights(self) -> int:
        """Numbers in the weights of one network."""
        n, depth = self.form.width, self.net.depth
        n_uses = 1 if self.net.inputs == "tied" else len(self.law.inputs)
        n_recurrent = min(depth - 1, 1) if self.net.weights == "tied" else depth - 1
        return n * (n * n_recurrent + n_uses * self.law.inputs.shape[2])

    @property
    def batch(self) -> int:
        """Chains that move together."""
        most = min(max(1, BATCH_NUMBERS // self.n_weights), self.replicates)
        n_batches = -(-self.replicates // most)
        return -(-self.replicates // n_batches)

    @property
    def seconds(self) -> float:
        """A rough estimate of the whole run."""
        leap = 8 * self.n_weights * (6 + 2 * self.net.depth * (1 + self.law.inputs.shape[1] / 8)) * BYTE
        n_moves = self.replicates * (self.warmup + self.steps)
        per_move = LEAPS * leap + NORMAL * self.n_weights
        return n_moves * (per_move if self.sampler == "hmc" else 20 * (leap + NORMAL * self.n_weights))


def _check(net: Network, task: Task, width: int, replicates: int, seed: int, progress: bool | None) -> np.ndarray:
    """Labels as (sample, supervised state, output), once the arguments are known to make sense."""
    if not isinstance(net, Network):
        raise ValueError(f"`network` must be a widefield.Network (DNN or RNN), got {type(net).__name__}.")
    net.refuse_branch("simulate.posterior")
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a widefield.Task, got {type(task).__name__}.")
    checks.integer("width", width, 1)
    checks.integer("replicates", replicates, 1)
    checks.integer("seed", seed, 0)
    if progress not in (None, True, False):
        raise ValueError(f"`progress` must be None, True or False, got {progress!r}.")
    if task.y is None:
        raise ValueError("`y` is needed: the posterior is that of networks given labels, but the task has none.")
    if net.bias_variances.any():
        raise ValueError(f"`bias_variance` must be 0: the posterior has no biases, got {net.bias_variance}.")
    if net.readout_bias_variance:
        raise ValueError(f"`readout_bias_variance` must be 0 in the posterior, got {net.readout_bias_variance}.")
    if not net.readout_variance:
        raise ValueError(f"`readout_variance` must be positive in the posterior, got {net.readout_variance}.")
    if len(set(net.sizes(width))) > 1:
        raise ValueError(f"`widths` must all be equal in the posterior, got {net.widths}.")
    task.supervised_states(net.depth)
    return task.labels()


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False, got {value!r}.")
    return value


def _check_langevin_options(run: _Run) -> None:
    given = {"rate": run.rate is not None, "updates": run.updates is not None, "precondition": not run.precondition}
    for name, is_given in given.items():
        if is_given and run.sampler != "sgld":
            raise ValueError(f"`{name}` belongs to the posterior's sampler 'sgld', got sampler {run.sampler!r}.")


def _check_memory(run: _Run) -> None:
    need = 8 * WORKING_COPIES * run.n_weights
    if need > boundary.memory_budget():
        raise MemoryError(
            f"One network of width {run.form.width} needs {boundary.describe_bytes(need)} to be sampled, but only "
            f"{boundary.describe_bytes(boundary.memory_budget())} may be used. Lower the `width` or the depth."
        )


def _law(net: Network, task: Task, temperature: float, width: int, labels: np.ndarray) -> Law:
    """Training inputs first: their coordinates are those of the smaller problem, test inputs add theirs."""
    every = coordinates(task.sequences(net.depth, test=True), reduce=True)
    v = float(net.readout_variance or 0.0)
    return Law(
        inputs=every[:, : task.n_samples],
        every=every,
        labels=np.ascontiguousarray(labels.swapaxes(0, 1)),
        scales=prior_scales(net, net.sizes(width), 1)._replace(readout=np.sqrt(v) / width),
        readout_variance=np.asarray(v),
        temperature=np.asarray(temperature),
    )


def _layout(run: _Run, task: Task) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Dims and shape of one chain's share of every available quantity, the most wanted first."""
    s, p, n_out = run.net.depth, task.n_samples, run.law.labels.shape[2]
    cross = (("state", "state_", "sample", "sample_"), (s, s, p, p))
    fields: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {"energy": ((), ())}
    fields["prediction"] = (("state", "sample", "output"), (s, p, n_out))
    if task.n_test:
        fields["test_prediction"] = (("state", "test", "output"), (s, task.n_test, n_out))
    fields |= dict.fromkeys(("hidden", "feature", "squared_correlation"), cross)
    if run.net.weights == "tied" and s > 1:
        fields |= dict.fromkeys(("eigenvalue_real", "eigenvalue_imag"), (("eigenvalue",), (run.form.width,)))
    return fields


def _run_chains(run: _Run, progress: bool | None, *, spectra: bool) -> tuple[Chains, list[np.ndarray], list[str]]:
    """Chains, spectra of their last weights, and what there is to say about their starts."""
    parts, eigenvalues, mismatches = [], [], []
    pace = None
    title = f"{run.replicates} chains at width {run.form.width}"
    with bar(title, run.replicates * (run.warmup + run.steps), progress, run.seconds) as advance:
        for block in blocks(run.replicates, run.batch):
            rngs = streams(run.seed, range(block.start, block.start + run.batch), CHAIN)  # all alike: compiled once
            starts = [_start(run, rng) for rng in rngs]
            mismatches += [mismatch for _, mismatch in starts]
            if run.sampler == "sgld" and pace is None:
                pace = _pace(run, starts[0][0])
            tuning, move = (hmc.first_step(), hmc.move) if pace is None else (pace, langevin.move)
            chains, end = walk(
                jax.tree.map(lambda *rows: np.stack(rows), *(position for position, _ in starts)),
                jax.tree.map(lambda x: np.stack([x] * run.batch), tuning),
                jax.vmap(jax.random.key)(np.array([rng.integers(2**62) for rng in rngs])),
                run.law,
                run.form,
                move,
                warmup=run.warmup,
                steps=run.steps,
                advance=advance,
            )
            parts.append(chains)
            eigenvalues += [_spectrum(run, np.asarray(w)) for w in end.weights[0]] if spectra else []
    worst = max(mismatches)
    notes = [f"the starting kernel is reproduced to {worst:.1e} only"] if worst > 1e-6 else []
    together = jax.tree.map(lambda *rows: np.concatenate(rows)[: run.replicates], *parts)
    return together, eigenvalues[: run.replicates], notes


def _spectrum(run: _Run, weights: np.ndarray) -> np.ndarray:
    finite = np.isfinite(weights).all()
    return np.linalg.eigvals(run.law.scales.weights[0] * weights) if finite else np.full(len(weights), np.nan + 0j)


def _start(run: _Run, rng: np.random.Generator) -> tuple[Parameters, float]:
    """Weights to start from; Langevin dynamics moves the readout too, drawn here given the features."""
    mismatch = 0.0
    if run.kernel is None:
        position = prior_weights(run.net, run.law, run.form, rng)
    else:
        position, mismatch = kernel_weights(run.kernel, run.net, run.law, run.form, rng)
    if run.sampler == "sgld":
        readout = draw_readout(position, run.law, run.form, rng)
        position = position._replace(readout=[readout, np.zeros((1, readout.shape[1]))])
    return position, mismatch


def _pace(run: _Run, position: Parameters) -> langevin.Pace:
    """Rates of all weights, and as many updates between records as forget the recurrent weights' prior once."""
    relative = langevin.relative_rates(position, run.law, run.form, precondition=run.precondition)
    rate = langevin.safe_rate(position, relative, run.law, run.form) if run.rate is None else run.rate
    rates = jax.tree.map(lambda r: rate * r, relative)
    slow = (rates.weights or rates.input_weights)[0]
    updates = run.updates or int(np.clip(1 / max(float(slow), 1e-12), 1, langevin.MAX_UPDATES))
    return langevin.Pace(rates, np.asarray(updates))


def _fields(run: _Run, task: Task, chains: Chains, spectra: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    means = chains.mean._asdict()
    prediction = means.pop("prediction")
    means["prediction"] = prediction[:, :, : task.n_samples]
    if task.n_test:
        means["test_prediction"] = prediction[:, :, task.n_samples :]
    if spectra:
        means |= {"eigenvalue_real": np.stack(spectra).real, "eigenvalue_imag": np.stack(spectra).imag}
    return means


def _certify(
    run: _Run,
    task: Task,
    chains: Chains,
    arrays: dict[str, np.ndarray],
    began: float,
    notes: Sequence[str],
    left_out: tuple[str, ...],
) -> Certificate:
    """The certificate of a simulation, with what its chains say about each other."""
    averages = {name: values for name, values in arrays.items() if not name.startswith("eigenvalue")}
    said = [*task.notes, *notes]
    if run.form.mirror:
        said.append("W -> -W is a symmetry: networks are reported with positively correlated adjacent states")
    diagnostics, advice = _judge(run, chains)
    certificate = certify(
        "simulate.posterior",
        averages or {"energy": np.asarray(chains.mean.energy)},
        began,
        seed=int(run.seed),
        options=run.options(),
        notes=[*said, *advice],
        left_out=left_out,
    )
    if certificate.status is Status.success and advice:
        certificate = replace(certificate, failure=Status.not_converged)
    return replace(certificate, steps=run.steps, diagnostics=diagnostics)


def _judge(run: _Run, chains: Chains) -> tuple[dict[str, Any], list[str]]:
    """Diagnostics, and advice where the chains cannot be trusted."""
    traces, moves = chains.traces, chains.moves
    diagnostics: dict[str, Any] = {}
    if run.sampler == "hmc":
        diagnostics["acceptance"] = float(moves[..., 0].mean())
        diagnostics["step_size"] = float(np.exp(chains.tuning.mean).mean())
        diagnostics["leaps"] = float(moves[..., 1].mean())
    else:
        rates = jax.tree.map(lambda r: float(r[0]), chains.tuning.rates)
        diagnostics["updates"] = int(chains.tuning.updates[0])
        diagnostics["rate"] = {
            "inputs": rates.input_weights[0],
            "weights": rates.weights[0] if rates.weights else 0.0,
            "readout": rates.readout[0],
        }
    if run.replicates < 2 or run.steps < MIN_DRAWS:
        return diagnostics, [f"chains cannot be compared: use `replicates` of 2 or more and `steps` >= {MIN_DRAWS}"]
    if not np.isfinite(traces).all():
        return diagnostics, []
    named = {name: traces[..., i] for i, name in enumerate(TRACES[: traces.shape[2]])}
    diagnostics["r_hat"] = {name: split_r_hat(draws) for name, draws in named.items()}
    diagnostics["effective_samples"] = {name: effective_draws(draws) for name, draws in named.items()}
    worst = max(diagnostics["r_hat"], key=diagnostics["r_hat"].get)
    value = diagnostics["r_hat"][worst]
    if value <= R_HAT_LIMIT:
        return diagnostics, []
    return diagnostics, [
        f"chains disagree: split R-hat of the {worst} is {value:.3g}, above {R_HAT_LIMIT}: raise `steps` and "
        "`warmup`, or `start` from a kernel such as the theory's"
    ]
