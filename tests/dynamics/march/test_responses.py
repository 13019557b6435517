"""Responses A and B: explicit matrices of linear networks, Jacobians of nonlinear sites, the paper's algorithm, networks."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import widefield as wf
from tests.dynamics import algorithm, test_contracts, test_oracles, test_statistics
from tests.dynamics.march import single_site
from tests.dynamics.question import experiment, predict
from tests.dynamics.test_oracles import LONG, SHAPES, ask, literal
from tests.dynamics.test_statistics import meets

BOTH = ("forward_response", "backward_response")
EVERYDAY = ("deep", "deep, widths")
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


NETWORKS = {
    "tanh 2": (wf.DNN(2, "tanh"), test_statistics.FIRST, {}),
    "tanh 3, decay": (wf.DNN(3, "tanh", weight_variance=1.3), test_statistics.FIRST, {"weight_decay": 0.5}),
    "tied tanh": (wf.RNN(3, "tanh", weight_variance=1.3), test_statistics.EVERYWHERE, {"richness": 1.0}),
    "several outputs": (wf.DNN(2, "tanh"), wf.Task(test_statistics.X, np.array([[1.0, 0.0], [-1.0, 0.5]])), {}),
}
PHYSICS = {"richness": 2.0, "rate": 0.15, "steps": 4}


def laid_out(field):
    """Values ([replicate,] channel, layer or pair of states, step, step_, sample, sample_)."""
    ends = [d for d in ("readout", "output") if d not in field.dims]
    inner = [d for d in field.dims if d not in ("replicate", "readout", "output")]
    lead = [d for d in field.dims if d == "replicate"]
    value = field.expand_dims(ends).transpose(*lead, "readout", "output", *inner).values
    return value.reshape(*value.shape[: len(lead)], -1, *value.shape[len(lead) + 2 :])


def with_paths(network, task, physics, paths):
    """The march with all of its paths, h (step, state, sample, path) and z (step, channel, state, sample, path)."""
    solution = predict(
        network, task, **physics, paths=paths, at=range(physics["steps"] + 1), progress=False, throw=False,
        quantities=(*BOTH, "preactivation", "pregradient"),
    )  # fmt: skip
    h, z = (laid_out(solution.data[name]) for name in ("preactivation", "pregradient"))
    return solution, h[0].transpose(1, 0, 3, 2), z.transpose(2, 0, 1, 4, 3)


def by_brute_force(network, task, physics, paths, equal_time=True):
    """What the march says, and Jacobians of the equations on its own paths: of each of its 8 batches, averaged."""
    solution, h, z = with_paths(network, task, physics, paths)
    with jax.enable_x64(True):
        batches = zip(np.split(h, 8, axis=-1), np.split(z, 8, axis=-1), strict=True)
        found = [single_site.responses(jnp.tanh, network, task, *b, **physics, equal_time=equal_time) for b in batches]
    A, B = (np.mean(both, axis=0) for both in zip(*found, strict=True))
    if "layer" in solution.forward_response.dims:
        A, B = (np.stack([v[:, k, k] for k in range(network.depth)], axis=1) for v in (A, B))
    return [laid_out(solution.data[name]) for name in BOTH], [A, B]


def later(response, at):
    """Entries (…, pair, sample, sample_) with s < t, of an array over all steps."""
    t, s = np.array([(t, s) for t in at for s in at if s < t]).T
    return response[..., t, s, :, :]


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "tanh 2" else full) for n in NETWORKS])
def test_nonlinear_responses_are_jacobians_of_the_site(name):
    """On the march's own paths, to rounding; without B(t, t) in the equations, responses at s < t differ."""
    network, task, changes = NETWORKS[name]
    physics = PHYSICS | {"steps": 3} | changes
    found, right = by_brute_force(network, task, physics, 256)
    _, wrong = by_brute_force(network, task, physics, 256, equal_time=False)
    for reported, one, other in zip(found, right, wrong, strict=True):
        assert np.abs(later(one, range(4))).max() > 0.01
        np.testing.assert_allclose(reported, one, rtol=0, atol=1e-12)
        assert np.abs(later(reported - other, range(4))).max() > 1e-4


def from_responses(solution):
    """f of the last state as v(Σ ηΔΦ + ΣA): one readout at the end."""
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
    with pytest.raises(ValueError, match="method='independent' has no responses"):
        test_contracts.ask(method="independent", quantities=BOTH)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=240 * 10**6))
    with pytest.raises(MemoryError, match="`quantities` need .*forward_response.*may be used"):
        test_contracts.ask(steps=300, quantities="forward_response")


def simulated(network, task=test_statistics.FIRST, *, width, replicates=2, seed=0, **changes):
    physics = {"richness": 2.0, "rate": 0.15, "steps": 4, "quantities": BOTH, "progress": False} | changes
    return experiment(network, task, **physics, width=width, replicates=replicates, seed=seed)


def test_networks_respond_alike_whatever_else_is_asked():
    network = wf.DNN(2, "tanh")
    every, one = simulated(network, width=20), simulated(network, width=20, quantities="backward_response", at=[1, 3])
    np.testing.assert_allclose(
        one.backward_response, every.backward_response.values[:, :, [1, 3]][:, :, :, [1, 3]], atol=1e-13
    )
    assert np.all(every.forward_response.values[:, :, 0] == 0)


def assert_right_not_wrong(theory, wrong, samples):
    """Every entry agrees, and of every difference ``wrong`` − right the samples hold the part 0, neither 1/2 nor 1.

    ``theory`` has values and standard errors, which are added up as if entries erred all together.
    """
    assert meets(theory, samples)
    value, error = theory
    for other in wrong:
        gap = other - value
        part, doubt = (samples - value) @ gap / (gap @ gap), np.abs(gap) @ error / (gap @ gap)
        seen = {size: meets((np.array([size]), np.array([doubt])), part[:, None]) for size in (0.0, 0.5, 1.0)}
        assert seen == {0.0: True, 0.5: False, 1.0: False}, (part.mean(), part.std(ddof=1) / np.sqrt(len(part)), doubt)


def joined(both, at, lead=0):
    """A and B at s < t as one row per replicate."""
    return np.concatenate([later(v, at).reshape(*v.shape[:lead], -1) for v in both], axis=-1)


def without_equal_times(network, task, physics, at):
    """A wrong theory less the right one, on the same paths: B(t, t) does not act back."""
    right, wrong = (by_brute_force(network, task, physics, 256, equal_time)[1] for equal_time in (True, False))
    return joined(wrong, at) - joined(right, at)


def predicted(network, task, physics, at, paths=8192):
    data = predict(network, task, **physics, at=at, quantities=BOTH, paths=paths, progress=False).data
    value, error = ([laid_out(data[f"{n}{end}"]) for n in BOTH] for end in ("", "_stderr"))
    return joined(value, range(len(at))), joined(error, range(len(at)))


@full
def test_the_papers_algorithm_has_the_same_responses():
    """2·more − fewer paths; must reject: equations without B(t, t).

    Plan: the part of the wrong theory known to 0.05, so that half of it is 10 standard errors. It scatters by 0.22 from
    seed to seed (pilot of 6 seeds): 20 of them, and 40 since the pilot is small.
    """
    x, y = test_oracles.X[:, :2] * 1.5, np.array([1.0, -1.0])
    network, task, physics = wf.DNN(2, "tanh"), wf.Task(x, y), {"richness": 3.0, "rate": 0.2, "steps": 5}

    def sample(paths, seed):
        *_, change, A, B = algorithm.solve(
            jnp.tanh, 2, x @ x.T / 2, y, **physics, paths=paths, seed=seed, sweeps=45, responses=True
        )
        assert change < 1e-6
        return joined([v[1:].transpose(0, 1, 3, 2, 4)[None] for v in (A, B)], range(6))

    with jax.enable_x64(True):
        samples = np.stack([2 * sample(1000, 100 + seed) - sample(500, seed) for seed in range(40)])
    theory = predicted(network, task, physics, range(6))
    gap = without_equal_times(network, task, physics, range(6))
    assert_right_not_wrong(theory, [theory[0] + gap], samples)


@full
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_respond_as_the_theory_says(name):
    """2·wide − narrow of sources that are really added; must reject: B(t, t) left out, and the other mask for tied weights.

    Plan: the part of a wrong theory known to 0.05, so that half of it is 10 standard errors. At widths 100 and 200 it
    scatters by 0.63, 0.33, 1.2 (mask 0.6) and 0.74 (pilot of 24 replicates): at twice the widths 80, 22, 280 and 110
    replicates, and at least 1.7 times as many since the pilot is small.
    """
    network, task, changes = NETWORKS[name]
    physics, at = PHYSICS | changes, [0, 2, 4]
    tied, replicates = network.weights == "tied", {"tied": 500, "untied": 200}[network.weights]
    wide, narrow = (
        simulated(network, task, width=w, replicates=replicates, seed=2026 + w, at=at, **changes) for w in (400, 200)
    )
    samples = joined([laid_out(2 * wide.data[n] - narrow.data[n]) for n in BOTH], range(3), lead=1)
    theory = predicted(network, task, physics, at)
    wrong = [theory[0] + without_equal_times(network, task, physics, at)]
    if tied:
        wrong.append(predicted(wf.DNN(3, "tanh", weight_variance=1.3), task, physics, at, paths=1024)[0])
    assert_right_not_wrong(theory, wrong, samples)
