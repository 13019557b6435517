"""Finite width against its own limit, closed forms and ensembles."""

import numpy as np

import widefield as wf
from fuzz import questions as ask
from fuzz.questions import Question
from fuzz.verdicts import answer, close, student

SMOOTH = ("linear", "erf", "tanh", "sin", "gelu", "sigmoid", "np.tanh(z) + 0.3 * z")


def draw(rng: np.random.Generator) -> Question:
    words = ask.network(rng, (1, 2, 3, 4), (*SMOOTH, "relu", "abs", "leaky_relu"), 1.5)
    return Question(words, ask.inputs(rng, int(rng.integers(1, 4 if words["kind"] == "DNN" else 3))))


def infinite(q: Question) -> None:
    """The kernel is the prior's, and all that is left at width 10¹⁰."""
    found = answer(wf.finite_width, q.net, q.task, width=10**10, quantities=("kernel", "correction", "covariance"))
    prior = answer(wf.prior, q.net, q.task, quantities=("hidden", "output"))
    states = np.arange(q.net.depth)
    kernels = np.concatenate([prior.hidden.values[states, states], prior.output.values[None]])
    scale = 1e-7 * np.abs(kernels).max(axis=(1, 2), keepdims=True)
    close("kernel", found.kernel.values, kernels, scale)
    close("covariance", found.covariance.values, kernels, scale + 1.01e-10 * np.abs(found.correction.values).max())


def draw_closed(rng: np.random.Generator) -> Question:
    words = {"kind": "DNN", "depth": ask.pick(rng, 1, 2, 5, 12), "activation": ask.pick(rng, "linear", "relu", "abs")}
    words |= {"weight_variance": ask.spread(rng, 0.3, 2.5), "readout_variance": ask.spread(rng, 0.3, 2.0)}
    words["widths"] = tuple(float(a) for a in rng.integers(1, 4, words["depth"]))
    n = int(rng.integers(1, 4)) if words["activation"] == "linear" else 1
    return Question(words, ask.inputs(rng, n), call={"width": ask.pick(rng, 10, 50)})


def closed_forms(q: Question) -> None:
    """Without biases V/n = (K13 K24 + K14 K23) Σ1/n (linear) or (3A4/A2² − 1) K² Σ1/n (one input), and G = 0."""
    wanted, width = ("kernel", "connected", "correction"), q.call["width"]
    found = answer(wf.finite_width, q.net, q.task, width=width, quantities=wanted)
    K = found.kernel.values
    expected = np.einsum("lac,lbd->labcd", K, K) + np.einsum("lad,lbc->labcd", K, K)
    if q.network["activation"] != "linear":
        expected = {"relu": 5.0, "abs": 2.0}[q.network["activation"]] * K[..., None, None] ** 2
    inverse = np.concatenate([[0.0], np.cumsum(1 / np.array(q.net.sizes(width)))])[:, None, None, None, None]
    scale = np.abs(K).max(axis=(1, 2), keepdims=True)
    close("vertex over n", found.connected.values, inverse * expected, 1e-7 * scale[..., None, None] ** 2)
    close("correction", found.correction.values, np.zeros_like(K), 1e-7 * scale)


def draw_small(rng: np.random.Generator) -> Question:
    words = ask.network(rng, (1, 2, 3), ("linear", "erf", "tanh", "sin"), 1.2)
    n = int(rng.integers(1, 3 if words["kind"] == "DNN" else 2))
    return Question(words, ask.inputs(rng, n, plain=True))


def networks(q: Question) -> None:
    """Shift and variance of the kernel over ensembles of widths n and 2n, extrapolated in 1/n."""
    n, wanted = 48, ("covariance", "kernel_variance")
    found = answer(wf.finite_width, q.net, q.task, width=n, quantities=("kernel", "correction", "kernel_variance"))
    many = {"replicates": 20_000, "groups": 40, "quantities": wanted}
    trials = {
        k * n: answer(wf.simulate.finite_width, q.net, q.task, width=k * n, seed=q.seed + k, **many) for k in (1, 2)
    }
    K = found.kernel.values
    shifts = [width * (trial.covariance.values - K) for width, trial in trials.items()]
    spreads = [width * trial.kernel_variance.values for width, trial in trials.items()]
    theories = found.correction.values, n * found.kernel_variance.values
    for what, theory, (small, large) in zip(("correction", "variance"), theories, (shifts, spreads)):
        next_order = 8 / n * np.abs(large.mean(0) - small.mean(0)) + 1e-9 * np.abs(K).max() ** 2
        student(what, theory, 2 * large - small, bound=next_order)
