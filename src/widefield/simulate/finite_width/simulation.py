r"""Fluctuations of the kernel in real finite networks: mean and covariance of :math:`\hat G` over many of them.

Untied weights need no weights: given the layer below, the neurons of a layer are independent draws of N(0, Ĝ), and
:math:`\hat G` itself is an average over the neurons below (Eqs. 4.35–4.36 of Roberts, Yaida & Hanin). Tied weights go
through `widefield.simulate.prior`.
"""

import time
from collections.abc import Iterable

import numpy as np

from widefield.answer import boundary
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.simulate.networks.activations import activate
from widefield.simulate.networks.call import (
    blocks,
    certify,
    check_call,
    choose,
    count,
    labeled,
    n_bytes,
    peak_bytes,
    refuse_memory,
    timed_bar,
)
from widefield.simulate.networks.cores import Advance, in_flight, share
from widefield.simulate.networks.streams import HIDDEN, streams
from widefield.simulate.prior.cost import plan
from widefield.simulate.prior.simulation import prior

PAIR = ("layer", "sample", "sample_")
DIMS = {
    "covariance": PAIR,
    "kernel_variance": PAIR,
    "connected": (*PAIR, "sample__", "sample___"),
    "vertex": (*PAIR, "sample__", "sample___"),
}
CHUNK = 2**22  # numbers in flight
NAME = "simulate.finite_width"


@boundary.x64
def finite_width(
    network: Network,
    task: Task,
    *,
    width: int,
    replicates: int,
    seed: int,
    groups: int = 32,
    quantities: Iterable[str] | None = None,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Connected two- and four-point functions of ``replicates`` random networks of finite ``width``.

    .. math::
        \hat G^{\ell+1}_{12} = C_b + \frac{C_W}{n_\ell}\sum_i \varphi(z^\ell_{i1})\varphi(z^\ell_{i2}) + \text{input part}

    Eqs. 4.35 and 4.36 of Roberts, Yaida & Hanin (2022). The networks are split into ``groups``, the leading dim
    ``replicate`` of every field, each an independent estimate:

    - ``covariance`` (layer, sample, sample\_): the mean of Ĝ, which is the covariance of the outputs;
    - ``connected`` (layer, sample, sample\_, sample\_\_, sample\_\_\_): Cov(Ĝ12, Ĝ34), unbiased, and ``kernel_variance``
      (layer, sample, sample\_) = Var Ĝ12; ``vertex`` = ``connected`` times the number of neurons that feed the layer.

    Layers are those of `widefield.finite_width`. `extrapolate` of widths 2n and n turns ``vertex`` into its leading order
    and ``covariance`` into the kernel; the correction is n(``covariance`` − kernel), extrapolated likewise.

    Method: untied networks weight-free, O(n·P²) per layer; one random stream per group.
    Error: each group is an independent estimate; success means that no network overflowed, and the standard error over
    groups stands in the certificate's diagnostics.
    Limits: differs from the theory by higher orders in 1/n.
    """
    began = time.perf_counter()
    replicates, seed = check_call(NAME, network, task, replicates=replicates, seed=seed, progress=progress, throw=throw)
    width, groups = count("width", width, 1), count("groups", groups, 2)
    checks.integer("replicates", replicates, 2 * groups)
    sizes, per_group, n = network.sizes(width), replicates // groups, task.n_samples
    n_layers = network.depth + (network.readout_variance is not None)
    layout = {name: (dims, (n_layers, *[n] * (len(dims) - 1))) for name, dims in DIMS.items()}
    wanted, left_out = choose(quantities, n_bytes(layout, groups))

    def need(width: int, replicates: int) -> int:
        networks = -(-replicates // groups)
        if _is_deep(network, task):
            working = 8 * 3 * min(networks, _chunk(network.sizes(width), n)) * (width * n + n * n)
        else:
            chosen = plan(network, network.sizes(width), task, "auto", ("feature",), 1)
            working = chosen.n_bytes(networks) + 8 * networks * (network.depth * n) ** 2
        four_points = 8 * 3 * n_layers * n**4 * bool({"connected", "vertex"} & {*wanted})
        each = working + four_points + 8 * 3 * networks * n_layers * n * n
        return peak_bytes(layout, wanted, groups, in_flight(groups, 1) * each)

    what = f"{groups} groups of {per_group} networks: {', '.join(wanted)}"
    refuse_memory(NAME, need, {"width": width, "replicates": replicates}, what)
    arrays = {name: np.empty((groups, *layout[name][1])) for name in wanted}
    seconds = 1e-8 * replicates * sum(sizes) * n * (1 + n)

    def work(block: slice, advance: Advance) -> None:
        _fill(arrays, block.start, _kernels(network, task, sizes, width, per_group, seed, block.start), sizes)
        advance(1)

    with timed_bar(f"{replicates} networks of width {width}", groups, progress, seconds) as advance:
        share(work, groups, 1, advance)
    options = {"width": width, "replicates": per_group * groups, "groups": groups}
    certificate = certify(NAME, arrays, began, seed=seed, options=options, notes=task.notes, left_out=left_out)
    return make_solution(labeled(layout, arrays), certificate, network, task, throw=throw)


def _kernels(network: Network, task: Task, sizes, width: int, n_networks: int, seed: int, group: int) -> np.ndarray:
    """Ĝ of ``n_networks``, (network, layer, sample, sample).

    Layer by layer where, given one, the next is drawn with fresh parameters only; otherwise through the prior.
    """
    x = task.sequences(network.depth)
    sources = []  # bias and input part of the covariance of every layer
    for a in range(network.depth):
        overlap = x[:, a] @ x[:, a].T / x.shape[-1] if a < x.shape[1] else np.zeros((len(x), len(x)))
        sources.append(network.bias_variances[a] + network.input_variances[a] * overlap)
    sources.append(np.full((len(x), len(x)), float(network.readout_bias_variance or 0.0)))
    weights = [*network.weight_variances, *([] if network.readout_variance is None else [network.readout_variance])]
    if _is_deep(network, task):
        rng, size = streams(seed, [group], HIDDEN)[0], _chunk(sizes, task.n_samples)
        parts = [
            _deep(network, weights, sources, sizes, b.stop - b.start, min(size, n_networks), rng)
            for b in blocks(n_networks, size)
        ]
        return np.concatenate(parts)
    group_seed = int(np.random.SeedSequence(seed, spawn_key=(group,)).generate_state(1)[0])
    drawn = prior(
        network,
        task,
        width=width,
        replicates=n_networks,
        seed=group_seed,
        quantities="feature",
        progress=False,
        throw=False,
    )
    features = np.moveaxis(np.diagonal(drawn.feature.values, axis1=1, axis2=2), -1, 1)
    first = np.broadcast_to(sources[0], (n_networks, 1, *sources[0].shape))
    rest = [w * features[:, a] + sources[a + 1] for a, w in enumerate(weights)]
    return np.concatenate([first, *(v[:, None] for v in rest)], axis=1)


def _is_deep(network: Network, task: Task) -> bool:
    """Whether given a layer the next one is drawn with fresh parameters only."""
    shared_bias = network.biases == "tied" and network.bias_variances.any()
    shared_input = network.inputs == "tied" and task.sequences(network.depth).shape[1] > 1
    return network.depth == 1 or (network.weights == "untied" and not shared_bias and not shared_input)


def _chunk(sizes: tuple[int, ...], n: int) -> int:
    """Networks that are drawn together."""
    return max(1, CHUNK // (max(sizes) * n + n * n))


@np.errstate(over="ignore", invalid="ignore")
def _deep(
    network: Network, weights: list[float], sources, sizes, count: int, padded: int, rng: np.random.Generator
) -> np.ndarray:
    """One chunk of networks, layer by layer: z given Ĝ, then the next Ĝ from z."""
    n = len(sources[0])
    G = [np.broadcast_to(sources[0], (count, n, n))]
    for a, w in enumerate(weights):
        z = _root(G[-1]) @ rng.standard_normal((count, n, sizes[a]))
        feature = activate(network.activation, z, padded)
        G.append(w / sizes[a] * feature @ feature.swapaxes(1, 2) + sources[a + 1])
    return np.stack(G, axis=1)


def _root(G: np.ndarray) -> np.ndarray:
    """Lower-triangular L with LLᵀ = G of many small matrices at once; a direction without variance gets a zero column."""
    n = G.shape[-1]
    L = np.zeros(G.shape)
    for j in range(n):
        rest = G[:, j:, j] - np.einsum("rik,rk->ri", L[:, j:, :j], L[:, j, :j])
        pivot = np.sqrt(np.maximum(rest[:, :1], 0))
        L[:, j:, j] = rest / np.where(pivot > 1e-8 * np.sqrt(G[:, j : j + 1, j]), pivot, np.inf)
    return L


@np.errstate(over="ignore", invalid="ignore")
def _fill(arrays: dict[str, np.ndarray], r: int, G: np.ndarray, sizes: tuple[int, ...]) -> None:
    """Mean and unbiased covariance over the networks of group ``r``."""
    mean = G[0] + (G - G[0]).mean(axis=0)  # exact where nothing fluctuates
    centered = G - mean
    weight = len(G) - 1
    if "covariance" in arrays:
        arrays["covariance"][r] = mean
    if "kernel_variance" in arrays:
        arrays["kernel_variance"][r] = np.sum(centered**2, axis=0) / weight
    if {"connected", "vertex"} & set(arrays):
        n_layers, n = mean.shape[:2]
        flat = centered.reshape(len(G), n_layers, n * n).swapaxes(0, 1)
        connected = (flat.swapaxes(1, 2) @ flat / weight).reshape(n_layers, n, n, n, n)
        widths = np.asarray([1.0, *sizes][:n_layers]).reshape(-1, 1, 1, 1, 1)
        for name, factor in (("connected", 1.0), ("vertex", widths)):
            if name in arrays:
                arrays[name][r] = factor * connected
