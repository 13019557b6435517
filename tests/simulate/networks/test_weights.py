"""The samplers without weights against drawn weights."""

import jax
import numpy as np
import pytest

import widefield as wf
from widefield.simulate.networks import weights
from widefield.simulate.networks.weights import TiedWeightFree, UntiedWeightFree, coordinates

from ..students import same_mean, same_moments

X = np.random.default_rng(0).standard_normal((2, 5))
SEQUENCES = np.random.default_rng(1).standard_normal((2, 3, 5))
FIELDS = ("hidden", "feature", "draw")


def both(net, task, *, width=12, replicates=4000, methods=("dense", "weight_free")):
    return [
        wf.simulate.prior(net, task, width=width, replicates=replicates, seed=i, method=method, quantities=FIELDS)
        for i, method in enumerate(methods)
    ]


@pytest.mark.parametrize("activation", ["relu", "erf"])
@pytest.mark.parametrize("kind", [wf.DNN, wf.RNN])
@pytest.mark.parametrize("biases", ["tied", "untied"])
@pytest.mark.parametrize("x", [X, SEQUENCES], ids=["once", "sequence"])
def test_same_law(activation, kind, biases, x):
    net = kind(4, activation, weight_variance=1.5, bias_variance=0.2, biases=biases)
    dense, free = both(net, wf.Task(x))
    assert (dense.certificate.options["method"], free.certificate.options["method"]) == ("dense", "weight_free")
    for field in FIELDS:
        assert same_moments(dense.data[field].values, free.data[field].values), field


def test_untied_law_is_not_the_tied_law():
    tied_dense, tied_free = both(wf.RNN(4, "relu", weight_variance=1.5), wf.Task(X))
    untied_dense, untied_free = both(wf.DNN(4, "relu", weight_variance=1.5), wf.Task(X))
    assert not same_mean(tied_dense.hidden[:, 1, 2], untied_free.hidden[:, 1, 2])
    assert not same_mean(untied_dense.hidden[:, 1, 2], tied_free.hidden[:, 1, 2])


def test_more_samples_than_neurons():
    x = np.random.default_rng(2).standard_normal((6, 3))
    dense, free = both(wf.DNN(3, "relu", weight_variance=1.5), wf.Task(x), width=4)
    assert same_moments(dense.hidden.values, free.hidden.values)


def test_reduced_inputs_have_the_law_of_drawn_input_weights():
    x = np.random.default_rng(3).standard_normal((2, 40))
    dense, free = both(wf.DNN(1, "erf", input_variance=2.0), wf.Task(x), width=6)
    assert dense.certificate.options["inputs"] == "drawn weights"
    assert free.certificate.options["inputs"] == "inner products"
    assert same_moments(dense.hidden.values, free.hidden.values)


@pytest.mark.parametrize("shape", [(3, 1, 50), (3, 2, 50), (7, 1, 4), (2, 3, 2)])
def test_coordinates_keep_inner_products(shape):
    x = np.random.default_rng(4).standard_normal(shape)
    x[-1] = x[0]
    z = coordinates(x, reduce=True)
    assert z.shape[2] <= min(shape[2], shape[0] * shape[1])
    exact = np.einsum("asi,bti->satb", x, x) / shape[2]
    np.testing.assert_allclose(np.einsum("sai,tbi->satb", z, z), exact, atol=1e-13)


def test_coordinates_keep_small_distances():
    x = np.ones((2, 1, 1000))
    x[1, 0, 7] += 1e-9
    z = coordinates(x, reduce=True)[0]
    np.testing.assert_allclose(np.linalg.norm(z[1] - z[0]), 1e-9 / np.sqrt(1000), rtol=1e-4)


def features_of_low_rank(rng, n, n_steps, n_samples):
    """Features with zeros, duplicates, and steps inside the span of earlier ones."""
    base = rng.standard_normal((3, n))
    for step in range(n_steps):
        rows = rng.standard_normal((n_samples, 3)) @ base
        rows[0] = 0.0
        rows[-1] = rows[1]
        if step == 2:
            rows = rng.standard_normal((n_samples, n))
        yield rows


@pytest.mark.parametrize("n", [20, 60])
def test_tied_action_is_one_linear_map_at_any_rank(n):
    """Whatever the features, all actions together must be those of a single matrix."""
    n_steps, n_samples = 5, 4
    net = wf.RNN(n_steps + 1, "linear")
    free = TiedWeightFree(net, net.sizes(n), n_samples, [np.random.default_rng(0)])
    given = list(features_of_low_rank(np.random.default_rng(1), n, n_steps, n_samples))
    actions = np.concatenate([free.advance(a + 1, rows[None])[0] for a, rows in enumerate(given)])
    stacked = np.concatenate(given)
    matrix = np.linalg.lstsq(stacked, actions, rcond=1e-12)[0]
    np.testing.assert_allclose(stacked @ matrix, actions, atol=1e-12 * np.abs(actions).max())
    used = free.basis[0][np.linalg.norm(free.basis[0], axis=1) > 0.5]
    assert len(used) == np.linalg.matrix_rank(stacked)
    np.testing.assert_allclose(used @ used.T, np.eye(len(used)), atol=1e-12)


@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-9, 1e-12])
def test_tied_action_keeps_small_distances(distance):
    """Features a small distance apart stay so, at the scale set by fresh Gaussian numbers."""
    n, rng = 2000, np.random.default_rng(0)
    net = wf.RNN(3, "linear")
    free = TiedWeightFree(net, net.sizes(n), 1, [rng])
    first, other = np.abs(rng.standard_normal((2, 1, 1, n)))
    change = other - first * np.sum(first * other) / np.sum(first**2)
    action = free.advance(1, first)
    moved = free.advance(2, first + distance * change) - action
    ratio = np.linalg.norm(moved) / (distance * np.linalg.norm(change))
    assert abs(ratio - 1) < 7 / np.sqrt(2 * n) + 1e-14 / distance
    np.testing.assert_allclose(free.basis[0] @ free.basis[0].T, np.eye(2), atol=1e-9)


def test_the_careful_split_agrees_with_the_fast_one(monkeypatch):
    net, task = wf.RNN(4, "erf", weight_variance=1.5, bias_variance=0.1), wf.Task(X)
    options = {"width": 12, "replicates": 2000, "method": "weight_free", "quantities": "hidden"}
    fast = wf.simulate.prior(net, task, seed=0, **options).hidden.values
    monkeypatch.setattr(weights, "WEAK", np.inf)
    other_basis = wf.simulate.prior(net, task, seed=0, **options).hidden.values
    np.testing.assert_allclose(fast[:, 0, 0], other_basis[:, 0, 0], rtol=1e-12)
    assert not np.allclose(fast, other_basis), "another basis of the same span: another draw of the same law"
    careful = wf.simulate.prior(net, task, seed=1, **options).hidden.values
    assert same_moments(fast, careful)


@pytest.mark.parametrize("method", ["dense", "weight_free"])
@pytest.mark.parametrize("kind", [wf.DNN, wf.RNN])
def test_duplicate_inputs_stay_duplicates(kind, method):
    net = kind(6, "relu", weight_variance=1.8, bias_variance=0.1)
    task = wf.Task(X[[0, 1, 0]])
    draw = wf.simulate.prior(net, task, width=40, replicates=5, seed=0, method=method).draw.values
    np.testing.assert_allclose(draw[:, :, 0], draw[:, :, 2], rtol=1e-9, atol=1e-9)
    assert not np.allclose(draw[:, :, 0], draw[:, :, 1])


@pytest.mark.parametrize("method", ["dense", "weight_free"])
@pytest.mark.parametrize("kind", [wf.DNN, wf.RNN])
def test_zero_input_without_biases_stays_zero(kind, method):
    net = kind(5, "relu")
    solution = wf.simulate.prior(net, wf.Task(np.zeros((2, 3))), width=20, replicates=3, seed=0, method=method)
    for field in ("hidden", "feature", "draw", "output"):
        assert not solution.data[field].values.any()


def test_untied_rows_are_independent_of_the_factor():
    """Fresh numbers times the triangular factor have exactly the Gram matrix as their law."""
    net = wf.DNN(2, "linear")
    free = UntiedWeightFree(net, (50, 40_000), [np.random.default_rng(0)])
    feature = np.random.default_rng(1).standard_normal((1, 3, 50))
    h = free.advance(1, feature)[0]
    gram = feature[0] @ feature[0].T / 50
    error = np.sqrt((gram**2 + np.outer(np.diag(gram), np.diag(gram))) / 40_000)
    assert np.all(np.abs(h @ h.T / 40_000 - gram) < 6 * error)


def test_tied_fallback_is_said():
    net = wf.RNN(4, "erf")
    solution = wf.simulate.prior(net, wf.Task(X), width=5, replicates=2, seed=0, method="weight_free")
    assert solution.certificate.options["method"] == "dense"
    assert any("weight_free" in note for note in solution.notes)


def test_a_user_activation():
    net = wf.DNN(3, wf.Activation(lambda h: jax.numpy.clip(h, -1, 1), breaks=(-1, 1)), weight_variance=1.5)
    dense, free = both(net, wf.Task(X), replicates=2000)
    assert same_moments(dense.feature.values, free.feature.values)
