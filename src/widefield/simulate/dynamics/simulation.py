r"""Finite networks trained by gradient descent in the mean-field parameterization.

Explicit weights and backpropagation through all states, see `training`. One random stream per replicate for each of
weights, readout and Langevin noise: a result depends on the seed, not on batches or on what else is asked for.
"""

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from widefield.answer import boundary
from widefield.answer.solution import Solution, make_solution
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.training import Training
from widefield.simulate.dynamics.problem import NAME, ON_REQUEST, Problem, problem_of
from widefield.simulate.dynamics.responses import Probe
from widefield.simulate.dynamics.rows import Rows
from widefield.simulate.dynamics.training import Networks
from widefield.simulate.networks.call import Names, check_call, count, labeled, timed_bar
from widefield.simulate.networks.cores import Advance, share
from widefield.simulate.networks.trained import Trained, certify_trained, in_flow

DIVERGED = 1e6  # growth of an output, against labels and first outputs, that no stable training shows
JUDGED = "prediction"  # what tells that the limit of small rates is reached
UNEQUAL = (
    "unequal widths: kernels are those of each layer with itself, no preactivation, pregradient or state_prediction"
)


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
      several are supervised, a ``state`` dim after ``step`` runs over all; ``state_prediction`` (step, state, sample,
      output) has all states in any case.
    - ``ntk`` (step, sample, sample\_): :math:`\gamma_0^2 N \sum_\theta \partial_\theta f\,\partial_\theta f'`.
    - ``feature_kernel``, ``gradient_kernel`` (layer, step, step\_, sample, sample\_): averages over neurons of
      :math:`\varphi\varphi'` and :math:`g g'`, :math:`g^{k;c} = \gamma_0\sqrt{N_k N}\,\partial f^c/\partial h^k`.
      Recurrent networks, and deep ones driven or read out at several states, have (state, state\_, step, step\_,
      sample, sample\_). ``at`` keeps chosen steps, as dims ``at``, ``at_``. For the tangent and the gradient kernel
      several readouts put ``readout``, ``readout_`` first, several outputs ``output``, ``output_`` last.
    - ``forward_response``, ``backward_response``, on request, with the dims of ``feature_kernel`` and ``readout`` in front,
      ``output`` behind: see `responses`.
    - ``alignment`` (layer or state, step), ``ntk_alignment`` (step): cosines with the kernel of the labels.
    - ``preactivation``, ``pregradient`` (layer or state, neuron, sample): h and :math:`z = \gamma_0N\,\partial f/\partial
      \varphi` after the last update, or with ``at`` (layer, at, …); z with its readout in front and output behind.

    Notation: :math:`\gamma_0` = ``richness``, :math:`\eta` = ``rate``; :math:`N` is the last layer's width. All parameters
    start as N(0, 1) times ``initial_scale``; the readout has no bias. ``momentum_time`` :math:`\tau`: :math:`Q \leftarrow
    (1 - \eta/\tau) Q - (\eta/\tau)\gamma_0^2 N\nabla` from :math:`Q = 0`, then :math:`\theta \leftarrow (1 - \eta\lambda)
    \theta + \eta Q`; :math:`\lambda` = ``weight_decay``.
    Method: float64, exact backpropagation; inputs enter through their inner products, which changes no law. With ``flow``
    the same networks train with rates η, η/2, η/4 … and each replicate is extrapolated to rate zero at the times asked
    for: 7 times the cost of descent, twice as much for each further halving.
    Error: each replicate is exact for its network. Success means that none diverged or overflowed and, with ``flow``, that
    the last halving of the rate changed no prediction by more than 1e-3 of the largest (``error``; at most 7 halvings, else
    ``inaccurate``); the changes of other fields, kinks included, and standard errors of the mean stand in the diagnostics.
    Limits: means differ from infinite width by :math:`O(1/N)`; :math:`f(0) \sim 1/(\gamma_0\sqrt N)` adds its variance
    to the losses. ``flow`` has no responses and no ``temperature``. A replicate whose outputs grow 10⁶ times, against
    labels and first outputs, has diverged: its further entries are infinite and the status is ``diverged``. Kernels and
    pre-activations over 128 MiB are made only when named in ``quantities``. Unequal widths have kernels of each layer with
    itself, and no ``preactivation``, ``pregradient`` and ``state_prediction``.
    """
    began = time.perf_counter()
    replicates, seed = check_call(NAME, network, task, replicates=replicates, seed=seed, progress=progress, throw=throw)
    problem = problem_of(
        network, task, training, width=count("width", width, 1), at=at, replicates=replicates, seed=seed
    )
    wanted, left_out = problem.choose(quantities)
    train = partial(_simulate, problem, progress)
    trained = in_flow(train, wanted, JUDGED) if training.flow else train(wanted, 1)
    certificate = certify_trained(
        NAME,
        trained,
        began,
        seed=problem.seed,
        options={"width": problem.width, "replicates": problem.replicates} | ({} if at is None else {"at": problem.at}),
        notes=(*task.notes, *([] if problem.equal_widths else [UNEQUAL])),
        left_out=left_out,
    )
    dims = {dim for name in wanted for dim in problem.layout[name][0]}
    named = {"at": problem.at, "readout": np.asarray(problem.supervised)}
    coords: dict[str, Any] = {dim: named[dim.rstrip("_")] for dim in dims if dim.rstrip("_") in named}
    coords |= {"time": ("step", training.times)} if "step" in dims else {}
    return make_solution(
        labeled(problem.layout, trained.arrays),
        certificate,
        network,
        task,
        training=training,
        coords=coords,
        throw=throw,
    )


def _simulate(problem: Problem, progress: bool | None, wanted: Names, divisor: int) -> Trained:
    """Train all networks with rates divided by ``divisor``."""
    replicates, n_rows = problem.replicates, problem.n_rows
    arrays = {name: np.zeros((replicates, *problem.layout[name][1])) for name in wanted}
    lasted = np.full(replicates, n_rows)
    title = f"{replicates} networks of layers {', '.join(map(str, problem.model.sizes))}"
    title += f", rate / {divisor}" if divisor > 1 else ""

    def work(block: slice, advance: Advance) -> None:
        mine = {name: array[block] for name, array in arrays.items()}
        _train(problem, range(block.start, block.stop), mine, lasted[block], divisor, advance)

    with timed_bar(title, replicates * n_rows, progress, divisor * problem.seconds(wanted)) as advance:
        share(work, replicates, problem.batch, advance)
    return Trained(arrays, lasted, n_rows)


@np.errstate(all="ignore")  # a network that diverges overflows before it is found out
def _train(
    problem: Problem,
    replicates: range,
    arrays: dict[str, np.ndarray],
    lasted: np.ndarray,
    divisor: int,
    advance: Advance,
) -> None:
    """Train one batch of networks and fill its share of ``arrays`` and of the rows that they ``lasted``."""
    n_rows = problem.n_rows
    networks = Networks(problem.model, problem.seed, replicates, problem.initial_scales, problem.batch)
    rows = Rows(problem, len(replicates), arrays)
    respond = bool(set(arrays) & set(ON_REQUEST))
    origin: np.ndarray | float = 0.0
    for t in range(n_rows):
        now = networks.forward()
        f = networks.outputs(now.phi, problem.read)
        if t == 0:
            origin = f if problem.training.centered else 0.0
            limit = DIVERGED * np.maximum(1.0, np.maximum(_largest(f), np.abs(problem.labels).max()))
        f = f - origin
        lasted[~(_largest(f) <= limit) & (lasted > t)] = t
        rows.fill_outputs(t, f)
        advance(len(replicates))
        if (lasted <= t).all():
            advance(len(replicates) * (n_rows - t - 1))
            break
        if respond and t in problem.at:
            Probe(problem, networks, origin, t).fill(arrays)
        pulls = problem.pulls(f)
        force = rows.fill_kernels(t, networks, now, pulls)
        if t + 1 < n_rows:
            step = problem.step(t, divisor)
            networks.update(now.phi, force, pulls, step)
            for _ in range(divisor - 1):
                problem.descend(networks, origin, step)
    rows.finish(lasted)


def _largest(f: np.ndarray) -> np.ndarray:
    """Largest output of each network; not a number where one is not."""
    return np.abs(f).max(axis=(1, 2, 3))
