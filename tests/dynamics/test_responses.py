"""Responses A and B: explicit matrices of linear networks, the paper's algorithm, identities of the page, and networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from tests.dynamics import algorithm, test_contracts, test_oracles, test_statistics
from tests.dynamics.test_oracles import LONG, SHAPES, ask, literal
from tests.simulate.students import agrees
from widefield.theories.dynamics import fields

BOTH = ("forward_response", "backward_response")
EVERYDAY = ("tied, weight decay", "deep", "deep, widths")
CASES = SHAPES | LONG
full = pytest.mark.full


def explicit(network, task, **changes):
    """The oracle's A and B in the layout of the fields: B of a state is that of g and u one above."""
    found, n = literal(network, task, **changes), task.n_samples
    A = found["A"][:, :, :n, :, :, :, :n].transpose(3, 0, 4, 1, 5, 2, 6).copy()
    B = np.zeros_like(A)
    B[:, :-1, :-1] = found["B"][:, :, :, :n, :, :, :n].transpose(0, 1, 4, 2, 5, 3, 6)[:, 1:, 1:]
    for i, (c, _) in enumerate(found["channels"]):
        A[i, :, c + 1 :] = 0  # states above their readout have no backward field
    n_read = len({c for c, _ in found["channels"]})
    split = lambda v: np.moveaxis(v.reshape(n_read, -1, *v.shape[1:]), 1, -1)  # noqa: E731
    return split(A), split(B)


def assert_is_explicit(network, task, **changes):
    solution = ask(network, task, quantities=BOTH, **changes)
    for name, right in zip(BOTH, explicit(network, task, **changes), strict=True):
        field = solution.data[name]
        if "layer" in field.dims:
            right = np.stack([right[:, k, k] for k in range(network.depth)], axis=1)
        assert np.abs(right).max() > 1e-2 or network.depth == 1
        np.testing.assert_allclose(field.values.ravel(), right.ravel(), rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in EVERYDAY else full) for n in CASES])
def test_linear_responses_are_the_explicit_ones(name):
    network, task, changes = CASES[name]
    assert_is_explicit(network, task, **changes)


def from_responses(solution):
    """f of the last state as v(Σ ηΔΦ + ΣA): Sec. 1 of the page, one readout at the end."""
    y, v = solution.task.labels()[:, 0, 0], solution.network.readout_variance
    f, rate = solution.prediction.values[..., 0], np.diff(solution.time.values)
    later = np.tril(np.ones((len(f), len(f))), -1) * np.append(rate, 0.0)
    learnt = np.einsum("tsma,ts,sa->tm", solution.feature_kernel.values[-1], later, y - f)
    return v * (learnt + solution.forward_response.values[-1].sum(axis=(1, 3)))


def test_outputs_are_made_of_responses():
    """Exactly for linear networks, within the error for others; without A they are not."""
    linear = ask(
        wf.DNN(2, "linear", readout_variance=1.3), test_oracles.DEEP, quantities=(*BOTH, *test_statistics.FIELDS)
    )
    np.testing.assert_allclose(from_responses(linear), linear.prediction.values[..., 0], rtol=0, atol=1e-12)
    tanh = test_contracts.sampled(quantities=(*BOTH, *test_statistics.FIELDS))
    gap = np.abs(from_responses(tanh) - tanh.prediction.values[..., 0])
    error = tanh.prediction_stderr.values[..., 0] + tanh.forward_response_stderr.values[-1].sum(axis=(1, 3))
    assert np.all(gap[1:] < 4 * error[1:])
    assert np.abs(tanh.forward_response.values[-1].sum(axis=(1, 3))).max() > 20 * gap.max()


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=full)])
def test_equal_time_backward_response(depth):
    """γ0 B^l(t,t) = δ [<φ''z> + γ0 B^{l+1}(t,t) <φ'²>] of the layer above; A(t,t) = 0; both causal."""
    found = test_contracts.ask(
        wf.DNN(depth, "tanh"), paths=256, at=[3, 7], quantities=(*BOTH, "preactivation", "pregradient")
    )
    gamma, B = test_contracts.PHYSICS["richness"], found.backward_response
    h, z = (
        found.data[name].transpose("layer", "at", "path", "sample").values for name in ("preactivation", "pregradient")
    )
    slope = 1 - np.tanh(h) ** 2
    curve = (-2 * np.tanh(h) * slope * z).mean(axis=2)
    for t in range(2):
        equal, above = B.values[:, t, t], np.zeros(2)
        for layer in reversed(range(depth - 1)):
            above = curve[layer + 1, t] + above * (slope[layer + 1, t] ** 2).mean(axis=0)
            # the recursion holds in every batch, its factors are averaged here
            np.testing.assert_allclose(gamma * equal[layer], np.diag(above), rtol=0, atol=2e-4)
        assert np.abs(above).max() > 0.02
    assert np.all(B.values[-1] == 0) and np.all(B.values[:, 0, 1] == 0)
    assert np.all(found.forward_response.values[:, [0, 0, 1], [0, 1, 1]] == 0)


def test_responses_are_made_on_request_at_chosen_steps(monkeypatch):
    everything, some = (test_contracts.ask(quantities=BOTH, at=at) for at in (None, [2, 7]))
    assert everything.forward_response.dims == ("layer", "step", "step_", "sample", "sample_")
    assert some.backward_response.dims == ("layer", "at", "at_", "sample", "sample_") and list(some.data["at"]) == [
        2,
        7,
    ]
    for name in BOTH:
        np.testing.assert_array_equal(some.data[name], everything.data[name].values[:, [2, 7]][:, :, [2, 7]])
    with pytest.raises(ValueError, match="responses need an activation without kinks, got 'relu'"):
        test_contracts.ask(wf.DNN(2, "relu"), quantities=BOTH)
    with pytest.raises(ValueError, match="responses are those of descent without `temperature`"):
        test_contracts.ask(temperature=0.1, quantities="forward_response")
    with pytest.raises(ValueError, match="method='independent' has no responses"):
        test_contracts.ask(method="independent", quantities=BOTH)
    with pytest.raises(ValueError, match="responses need an activation without kinks in simulate.dynamics"):
        simulated(wf.DNN(2, "relu"), width=10)
    monkeypatch.setattr(fields, "memory_budget", lambda: 10**7)
    with pytest.raises(MemoryError, match="`quantities` need .*forward_response.*may be used"):
        test_contracts.ask(steps=300, quantities="forward_response")


def simulated(network, task=test_statistics.FIRST, *, width, replicates=2, seed=0, **changes):
    physics = {"richness": 2.0, "rate": 0.15, "steps": 4, "quantities": BOTH, "progress": False} | changes
    return wf.simulate.dynamics(network, task, **physics, width=width, replicates=replicates, seed=seed)


def test_networks_respond_alike_whatever_else_is_asked():
    network = wf.DNN(2, "tanh")
    every, one = simulated(network, width=20), simulated(network, width=20, quantities="backward_response", at=[1, 3])
    np.testing.assert_allclose(
        one.backward_response, every.backward_response.values[:, :, [1, 3]][:, :, :, [1, 3]], atol=1e-13
    )
    assert np.all(every.forward_response.values[:, :, 0] == 0)


def overlaps(theory, samples):
    """How much of the theory is in each sample, A and B apart: 1 where it is right."""
    return np.stack(
        [[np.sum(t * s) / np.sum(t * t) for t, s in zip(theory, sample, strict=True)] for sample in samples]
    )


@full
def test_the_papers_algorithm_has_the_same_responses():
    """Entry by entry, and as a whole, where a rate 50 % off is seen (responses saturate)."""
    physics, x, y = {"richness": 3.0, "steps": 5}, test_oracles.X[:, :2] * 1.5, np.array([1.0, -1.0])
    later, earlier = np.tril_indices(6, -1)
    pick = lambda A, B: [A[:, later, :, earlier].ravel(), B[:1, later, :, earlier].ravel()]  # noqa: E731

    def march(rate):
        options = {"paths": 4096, "quantities": BOTH, "progress": False}
        solution = wf.dynamics(wf.DNN(2, "tanh"), wf.Task(x, y), **physics, rate=rate, **options)
        return pick(*(solution.data[name].values.transpose(0, 1, 3, 2, 4) for name in BOTH))

    samples = []
    with jax.enable_x64(True):
        for seed in range(16):
            *_, change, A, B = algorithm.solve(
                jnp.tanh, 2, x @ x.T / 2, y, **physics, rate=0.2, paths=500, seed=seed, sweeps=45, responses=True
            )
            assert change < 1e-4
            samples.append(pick(A[1:], B[1:]))
    right = march(0.2)
    assert agrees(np.concatenate(right), np.stack([np.concatenate(sample) for sample in samples]))
    assert agrees(np.ones(2), overlaps(right, samples))
    assert not agrees(np.ones(2), overlaps(march(0.3), samples))


NETWORKS = {
    "tanh 2": (wf.DNN(2, "tanh"), test_statistics.FIRST, {}),
    "tanh 3, decay": (wf.DNN(3, "tanh", weight_variance=1.3), test_statistics.FIRST, {"weight_decay": 0.5}),
    "tied tanh": (wf.RNN(3, "tanh", weight_variance=1.3), test_statistics.EVERYWHERE, {"richness": 1.0}),
    "several outputs": (wf.DNN(2, "tanh"), wf.Task(test_statistics.X, np.array([[1.0, 0.0], [-1.0, 0.5]])), {}),
}


@full
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_respond_as_the_theory_says(name):
    """2·wide − narrow of sources that are really added; a rate 30 % higher is seen."""
    network, task, changes = NETWORKS[name]
    physics = {"richness": 2.0, "rate": 0.15, "steps": 4} | changes

    def predicted(rate):
        options = {"at": [1, 4], "quantities": BOTH, "paths": 2048, "progress": False}
        data = wf.dynamics(network, task, **physics | {"rate": rate}, **options).data
        return [data[n].values.ravel() for n in BOTH], [data[f"{n}_stderr"].values.ravel() for n in BOTH]

    wide, narrow = (
        simulated(network, task, width=w, replicates=300, seed=w, at=[1, 4], **changes).data for w in (200, 100)
    )
    samples = [[(2 * wide[n] - narrow[n]).values[i].ravel() for n in BOTH] for i in range(300)]
    right, error = predicted(0.15)
    together = np.stack([np.concatenate(sample) for sample in samples])
    assert test_statistics.meets((np.concatenate(right), np.concatenate(error)), together)
    assert agrees(np.ones(2), overlaps(right, samples))
    assert not agrees(np.ones(2), overlaps(predicted(0.195)[0], samples)), "a rate 30 % off must be seen"
