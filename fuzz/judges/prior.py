"""The prior against brute quadrature of its equations, dense regression, changed questions and finite networks."""

from dataclasses import replace

import numpy as np

import widefield as wf
from fuzz import questions as ask
from fuzz.quadrature import average, functions
from fuzz.questions import Question
from fuzz.verdicts import Defect, answer, close, student

AVERAGE = 1e-8  # of its scale: a hundred times what is promised, clear of what quadrature makes of roundings
STEEP = 1e-6  # where φ' jumps, averages near correlation ±1 move by the square root of a rounding of the covariance
JUMPS = ("relu", "leaky_relu", "abs", "np.maximum(z, -0.5)", "np.clip(z, -1, 1)")


def draw(rng: np.random.Generator) -> Question:
    words, n = ask.network(rng, (1, 2, 3, 4, 6, 12)), ask.pick(rng, 1, 2, 3, 5, 12, 30)
    x = ask.inputs(rng, n, words["depth"])
    if words["activation"] in ("exp", "quadratic"):  # grow without bound with depth
        words, x = words | {"depth": 1, "input_variance": 0.3}, np.clip(np.array(x)[:, :2], -2, 2).tolist()
        x = np.array(x)[:, 0].tolist() if np.ndim(x) == 3 else x
    x_test = None if np.ndim(x) == 3 else (np.array(x)[:2] + 0.3).tolist()
    return Question(words, x, ask.labels(rng, n), x_test, call={"noise": ask.spread(rng, 1e-3, 1)})


def by_quadrature(q: Question) -> None:
    """Eqs. (prior.2) to (prior.5): linear parts everywhere, averages and tangent kernel of some pairs by quadrature."""
    net, task, depth, n = q.net, q.task, q.network["depth"], len(q.x)
    found = answer(wf.prior, net, task, quantities=("hidden", "feature", "readout", "ntk"))
    C, F, R, K = (found.data[name].values for name in ("hidden", "feature", "readout", "ntk"))
    x = task.x if task.x.ndim == 3 else task.x[:, None]
    for a, b in np.ndindex(depth, depth):
        w, bias, u = (float(a == b or mask == "tied") for mask in (net.weights, net.biases, net.inputs))
        expected = np.full((n, n), bias * net.bias_variances[a])
        if a and b:
            expected = expected + w * net.weight_variances[a - 1] * F[a - 1, b - 1]
        if max(a, b) < x.shape[1]:
            expected = expected + u * net.input_variances[a] * x[:, a] @ x[:, b].T / task.dimension
        close("a state of hidden", C[a, b], expected, 1e-11 * (C[a, a].max() + C[b, b].max()))
    close("readout", R, net.readout_variance * F + net.readout_bias_variance, 1e-11 * np.abs(R).max())
    (f, slope, turns), rng = functions(q.network["activation"]), np.random.default_rng(q.seed)
    pairs = lambda k, a, b, i, j: average(k, C[a, a, i, i], C[b, b, j, j], C[a, b, i, j], turns)  # noqa: E731
    for a, b, i, j in [*(rng.integers((depth, depth, n, n)) for _ in range(4)), (depth - 1, depth - 1, 0, n - 1)]:
        scale = np.sqrt(F[a, a, i, i] * F[b, b, j, j])
        close(f"⟨φφ⟩ at states {a}, {b} of samples {i}, {j}", F[a, b, i, j], pairs(f, a, b, i, j), 2 * AVERAGE * scale)
    i, j = rng.integers((n, n))
    theta = C[0, 0, i, j]
    for a in range(1, depth):
        theta = C[a, a, i, j] + net.weight_variances[a - 1] * pairs(slope, a - 1, a - 1, i, j) * theta
    expected = R[-1, -1, i, j] + net.readout_variance * pairs(slope, depth - 1, depth - 1, i, j) * theta
    limit = STEEP if q.network["activation"] in JUMPS else 10 * AVERAGE
    close("tangent kernel", K[i, j], expected, limit * (np.sqrt(K[i, i] * K[j, j]) + abs(expected)))


def regression(q: Question) -> None:
    """Eqs. (prior.6), (prior.7) by a dense solve of the kernel between training and test inputs."""
    q = q if q.x_test else replace(q, x_test=q.x[:1])
    task, noise, n, y = q.task, q.call["noise"], len(q.x), np.array(q.y)
    wanted = ("test_prediction", "test_covariance", "log_evidence")
    found = answer(wf.prior, q.net, task, noise=noise, quantities=wanted)
    both = wf.Task(np.concatenate([task.x, task.x_test]))
    joint = answer(wf.prior, q.net, both, quantities=("output",)).output.values
    K, cross, tests = joint[:n, :n] + noise * np.eye(n), joint[n:, :n], joint[n:, n:]
    part, size = 1e-12 * n * np.linalg.cond(K) + 1e-8, np.abs(cross).max()
    mean, covariance = found.test_prediction.values[-1, :, 0], found.test_covariance.values[-1, -1]
    close("test prediction", mean, cross @ np.linalg.solve(K, y), part * size * np.abs(y).max() * n / noise)
    expected = tests - cross @ np.linalg.solve(K, cross.T)
    close("test covariance", covariance, expected, part * (np.abs(tests).max() + size**2 * n / noise))
    expected, logdet = y @ np.linalg.solve(K, y), np.linalg.slogdet(K)[1]
    evidence = -0.5 * (expected + logdet + n * np.log(2 * np.pi))
    close("log evidence", float(found.log_evidence), evidence, part * (y @ y / noise + abs(logdet) + n))


def changed(q: Question) -> None:
    """Another order of the samples, a copy, another unit of the inputs, one state: the same numbers."""
    net, x, n, wanted = q.net, q.task.x, len(q.x), ("hidden", "output", "ntk")
    kernels = lambda net, x: answer(wf.prior, net, wf.Task(x), quantities=wanted).data  # noqa: E731
    plain, order = kernels(net, x), np.random.default_rng(q.seed).permutation(n)
    twice, k = kernels(net, np.concatenate([x[order], x[:1]])), list(order).index(0)
    others = {"in other units": kernels(replace(net, input_variance=4 * net.input_variance), x / 2)}
    if net.depth == 1:
        others["with tied weights"] = kernels(replace(net, weights="tied"), x)
    for name in wanted:
        one, two = plain[name].values, twice[name].values
        limit = 1e-6 * np.abs(one).max()
        close(f"{name} in another order", two[..., :n, :n], one[..., order, :][..., order], limit)
        close(f"{name} of a copy", two[..., n, :n], two[..., k, :n], limit)
        for what, other in others.items():
            close(f"{name} {what}", other[name].values, one, limit)
    if np.linalg.eigvalsh(plain.output.values)[0] < -1e-9 * np.abs(plain.output.values).max():
        raise Defect("the output kernel has a negative eigenvalue")


def draw_small(rng: np.random.Generator) -> Question:
    words = ask.network(rng, (2, 3, 5), ask.BOUNDED)
    return Question(words, ask.inputs(rng, int(rng.integers(1, 4)), words["depth"]))


def networks(q: Question) -> None:
    """Means over random networks, 2 · wide − narrow."""
    wanted = ("hidden", "readout")
    found = answer(wf.prior, q.net, q.task, quantities=wanted)
    many = {"replicates": 200, "quantities": wanted}
    wide, narrow = (answer(wf.simulate.prior, q.net, q.task, width=n, seed=q.seed + n, **many) for n in (256, 128))
    for name in wanted:
        theory, large, small = (s.data[name].values for s in (found, wide, narrow))
        next_order = np.abs(large.mean(0) - small.mean(0)) ** 2 / (np.abs(theory).max() + 1e-300)
        student(name, theory, 2 * large - small, bound=next_order)
