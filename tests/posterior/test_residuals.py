"""Ordinary questions succeed and are right: many seeds of one shape, cold and warm, with silent samples, few steps."""

import numpy as np
import pytest

import widefield as wf

from . import oracle

NET = wf.RNN(3, "linear")


def ordinary(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(3, 3, 2)), rng.normal(size=(3, 3, 1)) * rng.choice([0.3, 1, 3])
    return x, y, 10 ** rng.uniform(-3, 1)


@pytest.mark.parametrize("seed", range(30))
def test_ordinary_questions_succeed(seed):
    """Nine labels, six directions. Along any change of the kernel the free energy of another program rises as a square."""
    x, y, kappa = ordinary(seed)
    task = wf.Task(x, y)
    found = wf.posterior(NET, task, temperature=kappa)
    assert found.status is wf.Status.success
    H = np.moveaxis(found.hidden.values, 1, 2).reshape(9, 9)
    values, vectors = np.linalg.eigh(H)
    basis = vectors[:, -6:]
    root = basis * np.sqrt(values[-6:])
    rng, step = np.random.default_rng(seed), 1e-3
    free = lambda E: oracle.free_energy(NET, task, kappa, root @ (np.eye(6) + E) @ root.T, basis)  # noqa: E731
    E = rng.normal(size=(6, 6))
    E = step * (E + E.T) / np.linalg.norm(E + E.T)
    up, middle, down = free(E), free(0 * E), free(-E)
    np.testing.assert_allclose(middle, found.free_energy, rtol=1e-9)
    curvature = up + down - 2 * middle
    assert curvature > 0 and abs(up - down) < 0.02 * curvature, "the slope is that of a stationary point"


@pytest.mark.parametrize(
    "seed", [0, 1, 3, 4, 5, 6]
)  # at 2 the other two samples are parallel to 1e-5: ten digits are lost
@pytest.mark.parametrize("make", [wf.RNN, wf.DNN])
def test_a_silent_sample_costs_its_labels_and_changes_nothing(make, seed):
    """Its states are zero, whatever its labels: the kernels of the others are those without it."""
    x, y, kappa = ordinary(seed)
    silent, others = seed % 3, [i for i in range(3) if i != seed % 3]
    x[silent] = 0
    found = wf.posterior(make(3, "linear"), wf.Task(x, y), temperature=kappa)
    alone = wf.posterior(make(3, "linear"), wf.Task(x[others], y[others]), temperature=kappa)
    assert found.status is wf.Status.success
    hidden = found.hidden.values
    np.testing.assert_array_equal(hidden[:, :, silent], 0)
    kept = hidden[:, :, others][..., others]
    np.testing.assert_allclose(kept, alone.hidden, atol=1e-8 * np.abs(kept).max())
    lost = 0.5 * np.sum(y[silent] ** 2) / kappa
    np.testing.assert_allclose(found.free_energy, alone.free_energy + lost, rtol=1e-9)


def test_stopped_searches_are_no_success():
    """λ = 20.25 at κ̂ = 1, coherent: with few steps the incoherent saddle was taken for the answer."""
    task = wf.Task(np.ones((1, 1)), [4.5])
    best = wf.posterior(wf.RNN(3, "linear"), task, temperature=1.0)
    assert best.branch == "coherent"
    for steps in range(1, 12):
        found = wf.posterior(wf.RNN(3, "linear"), task, temperature=1.0, max_steps=steps, throw=False)
        if found.status is wf.Status.success:
            np.testing.assert_allclose(found.free_energy, best.free_energy, rtol=1e-10)
        else:
            assert found.certificate.checks["lost"].value > 0 or not found.certificate.checks["error"].met


@pytest.mark.parametrize("phi", ["linear", "relu"])
def test_an_untied_network_has_no_coherence(phi):
    """Labels at two states correlate them; the word is about one matrix between states."""
    task = wf.Task(np.ones((1, 1)), np.array([[[1.0], [0.5]]]), supervised=(0, 1))
    found = wf.posterior(wf.DNN(2, phi), task, temperature=0.5)
    assert found.branch == "incoherent" and found.status is wf.Status.success
