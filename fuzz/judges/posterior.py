"""The posterior where labels do not matter, by its own prediction formula, by minimization and in changed questions."""

import numpy as np
from scipy import stats
from scipy.optimize import minimize

import widefield as wf
from fuzz import questions as ask
from fuzz.questions import Question
from fuzz.verdicts import Defect, answer, close, student

FEW = ("erf", "relu", "tanh", "sin", "abs", "np.tanh(z) + 0.3 * z")


def draw(rng: np.random.Generator, linear: bool = False) -> Question:
    linear = linear or ask.chance(rng, 0.6)
    words = ask.network(rng, (1, 2, 3, 4) if linear else (1, 2), ("linear",) if linear else FEW)
    words.pop("bias_variance", None)
    n = int(rng.integers(1, 5 if linear else 3))
    y, kappa = ask.labels(rng, n, ask.spread(rng, 0.1, 3.0)), ask.spread(rng, 0.05, 5.0)
    q = Question(words, ask.inputs(rng, n, words["depth"]), y, call={"temperature": kappa})
    return ask.supervised(rng, q) if linear and ask.chance(rng, 0.3) else q


def solve(q: Question, y: np.ndarray, **changed) -> wf.Solution:
    wanted = ("hidden", "feature", "prediction", "free_energy", "branch")
    options = {"temperature": q.call["temperature"], "quantities": wanted} | changed
    task = wf.Task(options.pop("x", q.task.x), y, q.supervised)
    return answer(wf.posterior, options.pop("net", q.net), task, **options)


def uncertain(found: wf.Solution, name: str) -> float:
    """What is stated, largest."""
    stderr = found.data[f"{name}_stderr"].values.max() if f"{name}_stderr" in found.data else 0.0
    return 8 * stderr + 10 * (found.certificate.error or 0.0) * np.abs(found.data[name].values).max()


def hot(q: Question) -> None:
    """Without labels, and at a high temperature up to what labels still pull, the kernels are the prior's."""
    task = q.task
    prior = answer(wf.prior, q.net, wf.Task(task.x), quantities=("hidden", "feature"))
    size, signal = np.abs(prior.hidden.values).max(), q.net.readout_variance * prior.feature.values.max()
    for what, y, kappa in (("hot", task.y, 1e7), ("without labels", 0 * task.y, q.call["temperature"])):
        found = solve(q, y, temperature=kappa)
        pull = 10 * y.size**2 * np.abs(y).max() / kappa * signal
        limit = uncertain(found, "hidden") + (1e-6 + pull * np.abs(y).max() / kappa * q.net.depth) * size
        close(f"hidden {what}", found.hidden.values, prior.hidden.values, limit)
        close(f"prediction {what}", found.prediction.values, 0 * found.prediction.values, 1e-9 + pull)


def predicted(q: Question) -> None:
    """Eq. (posterior.6): the mean outputs are vΦ (vΦ + κ)⁻¹ y over the supervised states, with the Φ of the answer."""
    task, found = q.task, solve(q, q.task.y)
    y, states = task.labels(), list(task.supervised or (q.net.depth - 1,))
    y = y.swapaxes(0, 1).reshape(-1, y.shape[2])  # state by state
    v = q.net.readout_variance
    kernel = v * found.feature.values[np.ix_(states, states)].swapaxes(1, 2).reshape(len(y), len(y))
    expected = kernel @ np.linalg.solve(kernel + q.call["temperature"] * np.eye(len(y)), y)
    limit = 1e-6 * np.abs(y).max() * len(y) + uncertain(found, "prediction")
    outputs = found.prediction.values[states]
    close("prediction", outputs, expected.reshape(outputs.shape), limit)


def draw_deep(rng: np.random.Generator) -> Question:
    n, words = int(rng.integers(1, 3)), {"kind": "DNN", "depth": int(rng.integers(1, 4)), "activation": "linear"}
    words |= {"weight_variance": ask.spread(rng, 0.3, 2.0), "readout_variance": ask.spread(rng, 0.3, 2.0)}
    x = (np.eye(n) + 0.3 * rng.normal(size=(n, n))).round(2).tolist()
    kappa = ask.spread(rng, 0.1, 5.0)
    y = np.array(ask.labels(rng, n, ask.spread(rng, 0.3, 4.0)))
    y = (y[:, None] * rng.normal(size=2).round(2)).tolist() if ask.chance(rng, 0.3) else y.tolist()
    return Question(words, x, y, call={"temperature": kappa})


def by_hand(q: Question) -> None:
    r"""Deep linear networks: ½ yᵀ(vH_L + κ)⁻¹y + Σ_a ½[tr K_a⁻¹H_a − ln det K_a⁻¹H_a − P], K_a = w H_{a−1}, by BFGS."""
    net, task, n, y = q.net, q.task, len(q.x), q.task.y
    found, depth = solve(q, y), q.net.depth
    first, lower = net.input_variances[0] * task.x @ task.x.T / task.dimension, np.tril_indices(n)

    def energy(kernels) -> float:
        target = net.readout_variance * kernels[-1] + q.call["temperature"] * np.eye(n)
        total, K = 0.5 * np.sum(y * np.linalg.solve(target, y)), first
        for w, H in zip((1.0, *net.weight_variances), kernels):
            ratio, K = np.linalg.solve(w * K, H), H
            total += 0.5 * (np.trace(ratio) - np.linalg.slogdet(ratio)[1] - n)
        return float(total)

    def of_roots(flat: np.ndarray) -> float:
        roots = np.zeros((depth, n, n))
        roots[:, lower[0], lower[1]] = flat.reshape(depth, -1)
        return energy(roots @ roots.swapaxes(1, 2) + 1e-14 * np.eye(n))

    root = np.tile(np.linalg.cholesky(first + 1e-12 * np.eye(n))[lower], depth)
    best = min(minimize(of_roots, scale * root, method="BFGS").fun for scale in (0.2, 0.5, 1.0, 2.0, 4.0))
    hidden, free = found.hidden.values[np.arange(depth), np.arange(depth)], float(found.free_energy)
    close("free energy of its kernels", energy(hidden), free, 1e-8 * (1 + abs(best)))
    if free > best + 1e-6 * (1 + abs(best)):
        raise Defect(f"free energy above that by hand: {free:.10g}, {best:.10g}")


def changed(q: Question) -> None:
    """Another order of samples, labels of the other sign: the same free energy and, where it is one state, kernels."""
    x, y = q.task.x, q.task.y
    plain, free = solve(q, y), lambda found: float(found.free_energy)
    for what, other, order in (("order", solve(q, y[::-1], x=x[::-1]), -1), ("sign", solve(q, -y), 1)):
        close(f"free energy, other {what}", free(other), free(plain), 1e-7 * (1 + abs(free(plain))))
        if q.net.weights == "untied" or {plain.branch.item(), other.branch.item()} == {"incoherent"}:
            H = plain.hidden.values
            close(f"hidden, other {what}", other.hidden.values[..., ::order, ::order], H, 1e-5 * np.abs(H).max())


def draw_chains(rng: np.random.Generator) -> Question:
    words = {"kind": "DNN", "depth": int(rng.integers(1, 4)), "activation": "linear"}
    words |= {name: ask.spread(rng, 0.5, 2.0) for name in ("weight_variance", "input_variance", "readout_variance")}
    y = ask.labels(rng, 1, ask.spread(rng, 0.3, 2.0))
    y = [[y[0], 0.5]] if ask.chance(rng, 0.4) else y
    call = {"temperature": ask.spread(rng, 0.2, 3.0), "width": ask.pick(rng, 5, 20)}
    return Question(words, [rng.normal(size=3).round(2).tolist()], y, call=call)


def chains(q: Question) -> None:
    """One sample, linear, any width N: H of a layer given the last is χ²; the law of all H on a grid of their logarithms.

    p(H_1 … H_L | y) ∝ Π p(H_a | H_{a−1}) (vH_L + κ)^(−k/2) exp(−N|y|²/2(vH_L + κ)) for k outputs.
    """
    net, x, y, N, kappa = q.net, q.task.x[0], q.task.labels()[0, 0], q.call["width"], q.call["temperature"]
    found = answer(wf.simulate.posterior, net, q.task, replicates=24, seed=q.seed, draws=400, quantities=("hidden", "prediction"), **q.call)  # fmt: skip
    prior = net.input_variances[0] * x @ x / len(x)
    logs = np.linspace(np.log(prior) - 14, np.log(prior) + 8, 1500)
    H = np.exp(logs)
    chi = lambda ratio: stats.chi2.logpdf(N * ratio, N) + np.log(ratio)  # noqa: E731  of ln H
    noise = net.readout_variance * H + kappa
    forward = [np.exp(chi(H / prior))]
    kernels = [np.exp(chi(H[None, :] / (w * H[:, None]))) * (logs[1] - logs[0]) for w in net.weight_variances]
    for kernel in kernels:
        forward.append(forward[-1] @ kernel)
    evidence = -0.5 * len(y) * np.log(noise) - 0.5 * N * y @ y / noise
    backward = [np.exp(evidence - evidence.max())]
    for kernel in reversed(kernels):
        backward.insert(0, kernel @ backward[0])
    weights = [one * other / np.sum(one * other) for one, other in zip(forward, backward)]
    states = np.arange(net.depth)
    student("hidden", [w @ H for w in weights], found.hidden.values[:, states, states, 0, 0])
    learned = weights[-1] @ (1 - kappa / noise) * y
    student("prediction", learned, found.prediction.values[:, -1, 0])
