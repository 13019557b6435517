"""Wrong theories that must be seen: the printed Eqs. 68–69, and tables that are not causal."""

import numpy as np
import pytest

import widefield as wf
from tests.dynamics import oracle
from tests.dynamics.march import tables
from tests.dynamics.question import experiment, predict
from tests.simulate.students import agrees, same_mean

full = pytest.mark.full
MISTAKES = ("error on A", "error on B", "extra richness", "printed")


def linear(kernel, y, depth, *, richness, rate, steps, mistake=None):
    """Eqs. 68–71 of one input as step × step matrices: f (step,), then H and G of every layer at the end.

    Right: C = A + Θ H Δ, D = B + Θ G Δ. ``mistake``: Δ multiplies A (or B) too, γ0 stands before Θ G, or all (Eqs. 68–69).
    Causal: rows are added one by one and swept until they hold.
    """
    T = steps + 1
    past = rate * np.tril(np.ones((T, T)), -1)
    matrices = {
        "H": np.stack([np.full((T, T), kernel)] * (depth + 1)), "G": np.ones((depth + 2, T, T)),
        "A": np.zeros((depth + 1, T, T)), "B": np.zeros((depth + 1, T, T)),
    }  # fmt: skip
    delta, change = np.full(T, y), np.inf
    for n in range(1, T + 1):
        cut = {name: M[:, :n, :n] for name, M in matrices.items()}
        for _ in range(3 * depth + 3):
            sweep(cut, past[:n, :n], delta[:n], richness, mistake)
            new = y - (past[:n, :n] * cut["H"][depth]) @ delta[:n] - cut["A"][depth].sum(axis=1)
            change, delta[:n] = np.abs(new - delta[:n]).max(), new
        assert change < 1e-11
    last = [M[l, -1, -1] for M in (matrices["H"], matrices["G"]) for l in range(1, depth + 1)]
    return np.concatenate([(y - delta)[1:], last])


def sweep(matrices, past, delta, gamma, mistake):
    """H, G, A and B of all layers once, in place (Eq. 71)."""
    H, G, A, B = (matrices[name] for name in "HGAB")
    on = lambda name: mistake in (name, "printed")  # noqa: E731
    one = np.eye(len(past))
    for l in range(1, len(H)):
        C = A[l - 1] * (delta if on("error on A") else 1.0) + past * H[l - 1] * delta
        D = B[l] * (delta if on("error on B") else 1.0)
        D = D + past * G[l + 1] * delta * (gamma if on("extra richness") else 1.0)
        left, right = np.linalg.inv(one - gamma**2 * C @ D), np.linalg.inv(one - gamma**2 * D @ C)
        H[l] = left @ (H[l - 1] + gamma**2 * C @ G[l + 1] @ C.T) @ left.T
        G[l] = right @ (G[l + 1] + gamma**2 * D @ H[l - 1] @ D.T) @ right.T
        A[l], B[l - 1] = left @ C, right @ D


DEEP = wf.DNN(2, "linear")
ONE = wf.Task(np.array([[1.2, 0.4]]), [1.5])
PHYSICS = {"richness": 1.3, "rate": 0.08, "steps": 12}
KERNEL = float(ONE.x[0] @ ONE.x[0] / 2)


def test_the_printed_linear_equations_are_rejected_by_explicit_responses():
    """Eqs. 68–69 as corrected are the explicit solution of the oracle; each printed error is far from it."""
    explicit = oracle.solve(DEEP, ONE, **PHYSICS)
    phi, G = explicit["phi"], explicit["g"][0, :, :, :, 0]
    end = [M[l, -1, 0, l, -1, 0] for M in (phi, G) for l in range(2)]
    right = np.concatenate([explicit["f"][1:, -1, 0, 0], end])
    np.testing.assert_allclose(linear(KERNEL, 1.5, 2, **PHYSICS), right, rtol=0, atol=1e-9)
    for mistake in MISTAKES:
        gap = np.abs(linear(KERNEL, 1.5, 2, **PHYSICS, mistake=mistake) - right)
        assert gap.max() > 0.05, mistake


@full
def test_the_printed_linear_equations_are_rejected_by_networks():
    options = {"at": [12], "quantities": ("prediction", "feature_kernel", "gradient_kernel"), "progress": False}
    trials = [
        experiment(DEEP, ONE, **PHYSICS, width=n, replicates=4000, seed=n, centered=True, **options).data
        for n in (100, 200)
    ]

    def flat(data):
        kernels = (data[name].values.reshape(-1, 2) for name in ("feature_kernel", "gradient_kernel"))
        return np.concatenate([data.prediction.values[:, 1:, 0, 0], *kernels], axis=1)

    samples = 2 * flat(trials[1]) - flat(trials[0])
    assert agrees(linear(KERNEL, 1.5, 2, **PHYSICS), samples)
    for mistake in MISTAKES:
        assert not agrees(linear(KERNEL, 1.5, 2, **PHYSICS, mistake=mistake), samples), mistake


@full
def test_tables_that_are_not_causal_are_rejected_by_networks():
    """Deep relu, late: neurons that rest on h = 0 are kicked off it, and tr G¹ is a tenth too low."""
    x, y = np.random.default_rng(1).normal(size=(3, 6)), np.array([1.0, -1.0, 1.0])
    network, task, physics = wf.DNN(2, "relu"), wf.Task(x, y), {"richness": 2.0, "rate": 0.1, "steps": 30}
    options = {"at": [30], "quantities": "gradient_kernel", "progress": False}
    narrow, wide = (
        experiment(network, task, **physics, width=n, replicates=200, seed=n, **options).gradient_kernel
        for n in (200, 400)
    )
    trace = lambda G: np.trace(G.values[:, 0, 0, 0], axis1=1, axis2=2)  # noqa: E731
    samples = 2 * trace(wide) - trace(narrow)
    relu, step = lambda h: np.maximum(h, 0), lambda h: (h > 0).astype(float)
    march = {
        causal: [
            tables.solve(relu, step, x @ x.T / 6, y, **physics, paths=2048, seed=seed, causal=causal)[1]
            for seed in range(16)
        ]
        for causal in (True, False)
    }
    assert same_mean(march[True], samples) and not same_mean(march[False], samples)
    library = predict(network, task, **physics, paths=4096, **options)
    G, error = library.gradient_kernel[0, 0, 0].values, library.gradient_kernel_stderr[0, 0, 0].values
    error = np.trace(error)  # of the sum, at most
    spread = np.std(samples, ddof=1) / np.sqrt(len(samples))
    assert abs(np.trace(G) - samples.mean()) < 5 * np.hypot(error, spread)
    assert abs(np.trace(G) - np.mean(march[False])) > 5 * np.hypot(error, np.std(march[False], ddof=1) / 4)
